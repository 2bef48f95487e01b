"""Bench of the kit, with the implementation, a service and an empty folder for each case."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from audit.conformance.implementation import Implementation
from audit.conformance.scripted_service import ScriptedService

KEY = "sfk_conformance"
DATASET = "ds_1"
CAP = "2"
WHOLE = {"lo": "0", "hi": str(2**64)}  # the participation that selects each device


class Difference(Exception):
    """A result that differs from the expected one."""


@dataclass(frozen=True, slots=True)
class Case:
    """A case of the kit. `run` raises Difference if the implementation differs."""

    part: str
    name: str
    run: Callable[["Bench"], None]


class Bench:
    """The implementation, a service on this machine, and a folder that is empty for each case."""

    def __init__(self, command: Sequence[str], service: ScriptedService) -> None:
        self.command = command
        self.implementation = Implementation(command)
        self.service = service
        self.folder = Path()

    def __enter__(self) -> "Bench":
        return self

    def __exit__(self, *_error: object) -> None:
        self.implementation.kill()

    def restart(self) -> None:
        """Start the implementation again after it has broken the protocol."""
        self.implementation.kill()
        self.implementation = Implementation(self.command)

    @property
    def store(self) -> Path:
        """Return the path of the device memory of the case."""
        return self.folder / "device.json"

    def arguments(self, record: object, **changes: Any) -> dict[str, Any]:
        """Return the members of the call `report`."""
        common = {"url": self.service.url, "key": KEY, "dataset_id": DATASET, "cap": CAP, "store": str(self.store)}
        return {**common, "record": record, "retry_seconds": 0, **changes}

    def report(self, record: object, **changes: Any) -> dict[str, Any]:
        """Let the implementation report a record. Return its answer."""
        return self.implementation.call("report", **self.arguments(record, **changes))

    @contextmanager
    def another(self, *, disk_full: bool = False) -> Iterator[Implementation]:
        """Yield another process of the implementation."""
        with Implementation(self.command, disk_full=disk_full) as implementation:
            yield implementation


def expect(actual: object, expected: object, what: str) -> None:
    """Raise Difference unless both values are equal."""
    if actual != expected:
        raise Difference(f"{what}: {actual!r}, expected {expected!r}")


def expect_error(answer: dict[str, Any], code: str) -> None:
    """Raise Difference unless the call failed with this code."""
    expect(answer.get("error", f"no error: {answer.get('result')}"), code, "error")


def expect_outcome(answer: dict[str, Any], outcome: str) -> dict[str, Any]:
    """Return the result of a call of `report`. Raise Difference unless it has this outcome."""
    if "result" not in answer:
        raise Difference(f"error {answer['error']!r}, expected the outcome {outcome!r}")
    result: dict[str, Any] = answer["result"]
    expect(result.get("outcome"), outcome, "outcome")
    return result
