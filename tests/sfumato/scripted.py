"""A service in memory for devices. It announces given rounds, stores reports, and fails on demand."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx

from sfumato import mechanisms
from sfumato.device.device import Device
from sfumato.device.store import MemoryStore
from sfumato.privacy.accounting import NANO
from sfumato.specs import Feature, GridEncoding, Participation, Place, RoundSpec, to_wire
from sfumato.transport.exchange import PROBLEM_MEDIA_TYPE, PROBLEM_TYPE

FEATURES = (Feature("x", 0, 8), Feature("y", 0, 8))
RECORD = [3.5, 7.5]

Reply = httpx.Response | BaseException | None


def round_spec(epsilon: float = 1.0, participation: Participation | None = None, cells: int = 4) -> RoundSpec:
    encoding = GridEncoding((cells, cells))
    mechanism = mechanisms.design("ss", encoding.n_symbols, round(epsilon * NANO))
    return RoundSpec(FEATURES, encoding, mechanism, participation or Participation())


def place_spec() -> RoundSpec:
    """Return a round of a place in the north of Europe."""
    return replace(round_spec(), features=Place(58.0, -10.0, 71.2, 31.2).features)


def open_round(round_id: str = "rnd_1", spec: RoundSpec | None = None, **changes: Any) -> dict[str, Any]:
    spec = spec or round_spec()
    return {
        "id": round_id,
        "collection_id": round_id,
        "index": 0,
        "epsilon": changes["epsilon"] if "epsilon" in changes else spec.mechanism.epsilon_nano() / NANO,
        "closes_at": "2030-01-01T00:00:00.000000Z",
        "keep_reports": False,
        "spec": to_wire(spec),
    } | changes


def refusal(status: int, code: str, **members: Any) -> httpx.Response:
    problem = {"type": f"{PROBLEM_TYPE}{code}", "code": code, "title": code, "status": status, "detail": "no"} | members
    return httpx.Response(status, json=problem, headers={"Content-Type": PROBLEM_MEDIA_TYPE})


class ScriptedService:
    """A service with the rounds of a test and a list of its requests.

    It answers reports with `replies` first: a response (the report is not stored), an
    exception (the connection breaks after the report was stored), or None (success).
    """

    def __init__(self, *rounds: dict[str, Any]) -> None:
        self.rounds = list(rounds)
        self.replies: list[Reply] = []
        self.requests: list[httpx.Request] = []  # requests for the open rounds
        self.sent: list[tuple[str, bytes]] = []  # round and body of every attempt to report
        self.stored: dict[str, list[dict[str, Any]]] = {}
        self.retry_after = "17"

    def __call__(self, request: httpx.Request) -> httpx.Response:
        parts = request.url.path.split("/")
        if request.method == "GET" and parts[-1] == "round":
            return self._show(request)
        assert (request.method, parts[-1]) == ("POST", "reports")
        round_id = parts[-2]
        self.sent.append((round_id, request.content))
        reply = self.replies.pop(0) if self.replies else None
        if isinstance(reply, httpx.Response):
            return reply
        self._store(round_id, json.loads(request.content))
        if reply is not None:
            raise reply
        return httpx.Response(202, json={"round_id": round_id, "accepted": 1})

    def _show(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        body = json.dumps({"rounds": self.rounds})
        etag = f'"{hash(body):x}"'
        if request.headers.get("If-None-Match") == etag:
            return httpx.Response(304, headers={"ETag": etag})
        headers = {"ETag": etag} if self.rounds else {"ETag": etag, "Retry-After": self.retry_after}
        return httpx.Response(200, headers=headers, content=body)

    def _store(self, round_id: str, report: dict[str, Any]) -> None:
        kept = self.stored.setdefault(round_id, [])
        if all(report["report_id"] != other["report_id"] for other in kept):
            kept.append(report)

    def bodies(self, round_id: str = "rnd_1") -> list[bytes]:
        return [body for sent_round, body in self.sent if sent_round == round_id]

    def device(self, transport: Callable[[httpx.Request], httpx.Response] | None = None, **options: Any) -> Device:
        defaults: dict[str, Any] = {"cap": 2, "retry_seconds": 5, "store": MemoryStore()}
        return Device(
            "http://service.example",
            "sfk_device",
            "ds_1",
            transport=httpx.MockTransport(transport or self),
            **(defaults | options),
        )
