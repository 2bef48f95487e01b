"""An in-memory service for one device. It opens rounds, stores the received bytes, and loses responses on request."""

import base64
import json
from collections.abc import Iterable, Sequence
from typing import Any

import httpx

from sfumato import mechanisms
from sfumato.device.device import Device
from sfumato.device.store import MemoryStore, Store
from sfumato.errors import SfumatoError
from sfumato.privacy.accounting import NANO
from sfumato.privacy.entropy import Entropy
from sfumato.specs import Encoding, Feature, GridEncoding, Mechanism, Participation, RoundSpec, to_wire

TWO_CELLS = GridEncoding((2,))  # the half of the range that contains the record


def make_round(
    epsilon: float,
    participation: Participation | None = None,
    encoding: Encoding = TWO_CELLS,
    mechanism: Mechanism | None = None,
) -> RoundSpec:
    """Return a round of randomised response over few symbols."""
    features = tuple(Feature(f"x{place}", 0, 1) for place in range(encoding.n_features))
    chosen = mechanism or mechanisms.design("grr", encoding.n_symbols, round(epsilon * NANO))
    return RoundSpec(features, encoding, chosen, participation or Participation())


def open_round(number: int, spec: RoundSpec, collection: str = "col", epsilon: float | None = None) -> dict[str, Any]:
    """Return an open round as the service lists it. `epsilon` may declare another epsilon than the round costs."""
    cost = spec.mechanism.epsilon_nano() / NANO
    return {
        "id": f"rnd_{number}",
        "collection_id": collection,
        "epsilon": cost if epsilon is None else epsilon,
        "keep_reports": False,
        "spec": to_wire(spec),
    }


class SimulatedService:
    """The service that a device sends its reports to.

    Attributes
    ----------
    rounds : list
        Open rounds.
    sent : list of (str, bytes)
        Round and body of every attempt to report.
    n_lost : int
        Number of responses to lose, each after the report is stored.
    """

    def __init__(self) -> None:
        self.rounds: list[dict[str, Any]] = []
        self.sent: list[tuple[str, bytes]] = []
        self.n_lost = 0

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, json={"rounds": self.rounds})
        self.sent.append((request.url.path.split("/")[-2], request.content))
        if self.n_lost:
            self.n_lost -= 1
            raise httpx.ReadError("the response was lost")
        return httpx.Response(202, json={})

    def make_device(self, kind: type[Device], entropy: Entropy, store: Store | None = None, cap: float = 32) -> Device:
        """Return a device of this class that uses this service."""
        return kind(
            "http://service.example",
            "key",
            "ds",
            cap=cap,
            store=store or MemoryStore(),
            entropy=entropy,
            retry_seconds=0,
            transport=httpx.MockTransport(self),
        )

    def received_reports(self) -> tuple[tuple[str, str, int, bytes], ...]:
        """Return all received reports: round, report id, slot and value."""
        reports = []
        for round_id, body in self.sent:
            report = json.loads(body)
            value = base64.b64decode(report["value"])
            reports.append((round_id, report["report_id"], report["slot"], value))
        return tuple(reports)


def run_device(
    service: SimulatedService, device: Device, record: Sequence[float], polls: Iterable[Sequence[dict[str, Any]]]
) -> None:
    """Let the device report once for each list of open rounds. Continue if it refuses a round or cannot send."""
    for rounds in polls:
        service.rounds = list(rounds)
        try:
            device.report(record)
        except SfumatoError:
            continue
