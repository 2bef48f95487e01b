"""The Python device as an implementation of the protocol, started with `python -m audit.conformance.reference`.

It is also the example for other languages; see `docs/conformance.md`.
"""

import json
import math
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit.conformance.implementation import PROTOCOL
from sfumato.device.device import Device
from sfumato.device.sealing import seal, wrap
from sfumato.device.shuffled import ShuffledDevice
from sfumato.errors import SfumatoError
from sfumato.privacy.accounting import parse_epsilon
from sfumato.privacy.entropy import SystemEntropy, below
from sfumato.records.outside import encode
from sfumato.specs import Feature, round_spec_from_wire
from sfumato.specs.attributes import attribute_from_wire

NUMBERS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class ReplayEntropy:
    """A source of the given words, in order: eight little-endian bytes each, in hex."""

    def __init__(self, entropy: str) -> None:
        self._words = np.frombuffer(bytes.fromhex(entropy), dtype="<u8").astype(np.uint64)

    def words(self, n: int) -> NDArray[np.uint64]:
        """Return the next `n` words."""
        words, self._words = self._words[:n], self._words[n:]
        if len(words) < n:
            raise AssertionError("the device drew more words than the vector contains")
        return words

    @property
    def n_left(self) -> int:
        """Return the number of words that were not drawn."""
        return len(self._words)


def read_record(value: Any) -> Any:
    """Return a record with its numbers that JSON cannot express."""
    if isinstance(value, list):
        return [read_record(each) for each in value]
    if isinstance(value, dict):
        return NUMBERS[value["number"]] if set(value) == {"number"} else {k: read_record(v) for k, v in value.items()}
    return value


def describe(_: dict[str, Any]) -> dict[str, Any]:
    """Return what this implementation is."""
    return {"protocol": PROTOCOL, "name": "Python", "sealed": True}


def read_epsilon(call: dict[str, Any]) -> dict[str, Any]:
    """Parse an epsilon."""
    return {"epsilon_nano": str(parse_epsilon(call["epsilon"]))}


def perturb(call: dict[str, Any]) -> dict[str, Any]:
    """Perturb a record with given words."""
    spec, entropy = round_spec_from_wire(call["spec"]), ReplayEntropy(call["entropy"])
    slot = below(entropy, spec.encoding.n_slots)
    symbol = encode(spec, read_record(call["record"]), slot, entropy)
    value = spec.mechanism.perturb(symbol, entropy)
    cost = {
        "epsilon_nano": str(spec.mechanism.epsilon_nano()),
        "value_bytes": spec.mechanism.value_bytes,
    }
    return {"slot": slot, "value": value.hex(), "words_left": entropy.n_left, **cost}


def report(call: dict[str, Any]) -> dict[str, Any]:
    """Report a record with a new device object."""
    entropy = SystemEntropy() if call.get("entropy") is None else ReplayEntropy(call["entropy"])
    features = None if call.get("features") is None else [Feature(**each) for each in call["features"]]
    options: dict[str, Any] = {"cap": call["cap"], "store": call["store"], "features": features, "entropy": entropy}
    options |= {"retry_seconds": call["retry_seconds"], "accept_kept_reports": call.get("accept_kept_reports", False)}
    options["attributes"] = [attribute_from_wire(each) for each in call.get("attributes", ())]
    if (limit := call.get("cap_per_period")) is not None:
        options["cap_per_period"] = (limit["period"], limit["epsilon"])
    if call.get("clock") is not None:
        options["clock"] = partial(float, call["clock"])
    kind: Callable[..., Device] = Device
    if call.get("shuffler_key") is not None:
        kind = ShuffledDevice
        options |= {"shuffler_key": call["shuffler_key"], "min_honest_batch": call["min_honest_batch"]}
    with kind(call["url"], call["key"], call["dataset_id"], **options) as device:
        try:
            receipt = device.report(read_record(call["record"]))
        except SfumatoError as error:
            answer: dict[str, Any] = {"error": error.code}
        else:
            rounds = [
                {
                    "id": each.round_id,
                    "outcome": str(each.outcome),
                    "error": each.error and each.error.code,
                    "outside": list(each.outside),
                }
                for each in receipt.rounds
            ]
            answer = {"outcome": str(receipt.outcome), "rounds": rounds}
        if isinstance(entropy, ReplayEntropy):
            answer["words_left"] = entropy.n_left
        if answer.get("error") != "store_unusable":
            answer |= {"spent": device.spent, "pending": list(device.pending())}
    return answer


def seal_report(call: dict[str, Any]) -> dict[str, Any]:
    """Seal a report for the service."""
    report_id, value, document, key = (
        bytes.fromhex(call[name]) for name in ("report_id", "value", "round", "public_key")
    )
    return {"sealed": seal(report_id, call["slot"], value, call["round_id"], document, key).hex()}


def wrap_report(call: dict[str, Any]) -> dict[str, Any]:
    """Wrap a sealed report for the shuffler."""
    return {"wrapped": wrap(bytes.fromhex(call["sealed"]), call["round_id"], bytes.fromhex(call["outer_key"])).hex()}


CALLS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "describe": describe,
    "parse_epsilon": read_epsilon,
    "perturb": perturb,
    "report": report,
    "seal": seal_report,
    "wrap": wrap_report,
}


def main() -> None:
    """Answer each line of standard input."""
    output, sys.stdout = sys.stdout, sys.stderr  # logs of libraries are no answers
    for line in sys.stdin:
        call = json.loads(line)
        try:
            answer = CALLS[call["call"]](call)
        except SfumatoError as error:
            answer = {"error": error.code}
        body = answer if "error" in answer else {"result": answer}
        output.write(json.dumps({"id": call["id"], **body}) + "\n")
        output.flush()


if __name__ == "__main__":
    main()
