"""Responses of a service to analysts, and a service in memory that sends them."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import httpx

from sfumato.api.client import Client
from sfumato.device.bulk import REPORT_ID_BYTES, SLOT_BYTES
from sfumato.privacy.ledger import LedgerEntry
from sfumato.specs import Feature, to_wire
from tests.sfumato.model.test_cluster_model import label_map
from tests.sfumato.scripted import round_spec

AT = "2026-03-04T05:06:07.000008Z"
MOMENT = datetime(2026, 3, 4, 5, 6, 7, 8, tzinfo=UTC)
FEATURES = (Feature("x", 0, 1), Feature("y", 0, 1, "m"))

DATASET = {
    "id": "ds_1",
    "name": "world",
    "trust": "local",
    "features": [to_wire(feature) for feature in FEATURES],
    "min_reports": 100,
    "keep_reports": False,
    "created_at": AT,
}
ROUND = {
    "id": "rnd_1",
    "dataset_id": "ds_1",
    "job_id": None,
    "collection_id": "rnd_1",
    "index": 0,
    "state": "open",
    "epsilon": 1.0,
    "spec": to_wire(round_spec()),
    "target_reports": 1000,
    "min_reports": 100,
    "n_received": 5,
    "n_reports": None,
    "keep_reports": False,
    "opened_at": AT,
    "closes_at": AT,
    "closed_at": None,
    "tallied_at": None,
}
JOB = {
    "id": "job_1",
    "dataset_id": "ds_1",
    "algorithm": {"type": "uniform_grid", "epsilon": 1.0},
    "round_ids": ["rnd_1"],
    "state": "collecting",
    "epsilon": 1.0,
    "target_reports": None,
    "min_reports": 0,
    "collect_seconds": 60,
    "progress": {"rounds_opened": 1, "open_round_id": "rnd_1", "n_received": 5, "target_reports": 10},
    "attempts": 1,
    "error": None,
    "created_at": AT,
    "started_at": AT,
    "finished_at": None,
}
RESULT = {
    "job_id": "job_1",
    "dataset_id": "ds_1",
    "algorithm": {"type": "shifted_grid", "epsilon": 2.0},
    "epsilon": 2.0,
    "rounds": [{"id": "rnd_1", "index": 0, "n_reports": 1000, "epsilon": 2.0}],
    "model": label_map().to_wire(),
    "software_version": "0.1.0",
    "created_at": AT,
}
KEY = {
    "id": "key_1",
    "name": "app",
    "scopes": ["device"],
    "dataset_id": "ds_1",
    "created_at": AT,
    "expires_at": None,
    "revoked_at": None,
}


def entry_wire(entry: LedgerEntry) -> dict[str, Any]:
    values = {name: getattr(entry, name) for name in entry.__slots__}
    return values | {"at": entry.at.strftime("%Y-%m-%dT%H:%M:%S.%fZ"), "epsilon": entry.epsilon_nano / 1e9}


Reply = httpx.Response | Callable[[httpx.Request], httpx.Response]


class Service:
    """A service with responses by method and path. It repeats the last response of a list."""

    def __init__(self, **routes: Any) -> None:
        self.routes: dict[str, list[Reply]] = {
            path: list(reply) if isinstance(reply, list) else [reply] for path, reply in routes.items()
        }
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        replies = self.routes[f"{request.method} {request.url.path.removeprefix('/v1/')}"]
        reply = replies.pop(0) if len(replies) > 1 else replies[0]
        if isinstance(reply, httpx.Response):
            return httpx.Response(reply.status_code, headers=reply.headers, content=reply.content)
        return reply(request)

    def client(self) -> Client:
        return Client("http://service.example", "sfk_x", transport=httpx.MockTransport(self), retry_seconds=5)

    def bodies(self) -> list[Any]:
        return [json.loads(request.content) for request in self.requests]


def serving(routes: dict[str, Any]) -> tuple[Service, Client]:
    service = Service(**routes)
    return service, service.client()


def ok(value: Any, status: int = 200) -> httpx.Response:
    return httpx.Response(status, json=value)


def receipt(request: httpx.Request) -> httpx.Response:
    """Return the receipt for the packed reports of `ROUND`, which a request contains."""
    report_bytes = REPORT_ID_BYTES + SLOT_BYTES + round_spec().mechanism.value_bytes
    return ok({"round_id": request.url.path.split("/")[-2], "accepted": len(request.content) // report_bytes}, 202)


def lost(_request: httpx.Request) -> httpx.Response:
    raise httpx.ReadTimeout("lost")


def pages(*parts: list[Any]) -> Callable[[httpx.Request], httpx.Response]:
    def reply(request: httpx.Request) -> httpx.Response:
        place = int(request.url.params.get("cursor", "0"))
        following = str(place + 1) if place + 1 < len(parts) else None
        return ok({"items": parts[place], "next_cursor": following})

    return reply
