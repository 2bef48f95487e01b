"""A service in memory for one device: it asks rounds, keeps the bytes it is sent, and loses answers on demand."""

import base64
import json
from collections.abc import Iterable, Sequence
from typing import Any

import httpx

from sfumato import mechanisms
from sfumato.accounting import NANO
from sfumato.device import Device
from sfumato.entropy import Entropy
from sfumato.errors import SfumatoError
from sfumato.specs import Draw, Encoding, Feature, GridEncoding, Mechanism, RoundSpec, to_wire
from sfumato.store import MemoryStore, Store

COINS = GridEncoding((2,))  # on which side of the middle a record lies


def round_of(
    epsilon: float, draw: Draw | None = None, encoding: Encoding = COINS, mechanism: Mechanism | None = None
) -> RoundSpec:
    """A round of randomised response over few symbols."""
    features = tuple(Feature(f"x{place}", 0, 1) for place in range(encoding.n_features))
    asked = mechanism or mechanisms.design("grr", encoding.n_symbols, round(epsilon * NANO))
    return RoundSpec(features, encoding, asked, draw or Draw())


def asked_round(number: int, spec: RoundSpec, collection: str = "col", epsilon: float | None = None) -> dict[str, Any]:
    """An open round as the service lists it; it may declare another epsilon than it costs."""
    cost = mechanisms.epsilon_nano(spec.mechanism) / NANO
    return {
        "id": f"rnd_{number}",
        "collection_id": collection,
        "epsilon": cost if epsilon is None else epsilon,
        "spec": to_wire(spec),
    }


class Service:
    """What a device talks to.

    Attributes
    ----------
    rounds : list
        Open now.
    sent : list of (str, bytes)
        Round and body of every attempt to report.
    n_lost : int
        So many answers to reports are lost, after they were stored.
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
            raise httpx.ReadError("the answer was lost")
        return httpx.Response(202, json={})

    def device(self, kind: type[Device], entropy: Entropy, store: Store | None = None, cap: float = 32) -> Device:
        """A device of this class that talks to this service."""
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

    def told(self) -> tuple[tuple[str, str, int, bytes], ...]:
        """Everything the service saw: round, report id, slot, value."""
        seen = []
        for round_id, body in self.sent:
            report = json.loads(body)
            value = base64.b64decode(report["value"])
            seen.append((round_id, report["report_id"], report["slot"], value))
        return tuple(seen)


def report_to(
    service: Service, device: Device, record: Sequence[float], steps: Iterable[Sequence[dict[str, Any]]]
) -> None:
    """The device looks once for each list of open rounds; what it refuses or cannot send is no end."""
    for rounds in steps:
        service.rounds = list(rounds)
        try:
            device.report(record)
        except SfumatoError:
            continue
