"""Overload: memory stays bounded, rejected clients retry, and no acknowledged report is lost."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from service.context import GatewayContext
from tests.service.api import Api, packed
from tests.service.ingestion.test_report_endpoint import OCTETS

MAX_PENDING_BYTES = 300_000
REPORTS_EACH, SENDERS, TRIES = 1000, 24, 6
COMMIT_SECONDS = 0.15
PATIENCE_SECONDS = 60.0


class _Slow:
    """A writer that commits nothing before a request is refused, and records the largest amount of waiting memory."""

    def __init__(self, services: GatewayContext, monkeypatch: pytest.MonkeyPatch) -> None:
        self._writer = services.writer
        self._commit = self._writer._commit
        self.most_waiting_bytes = 0
        self.has_refused = threading.Event()
        monkeypatch.setattr(self._writer, "_commit", self.commit)

    def commit(self, by_round: dict[str, list[Any]]) -> Any:
        self.has_refused.wait(PATIENCE_SECONDS)
        time.sleep(COMMIT_SECONDS)
        waiting = sum(len(packed.data) for requests in by_round.values() for packed in requests)
        waiting += sum(batch.n_bytes for batch in list(self._writer._pending))
        self.most_waiting_bytes = max(self.most_waiting_bytes, waiting)
        return self._commit(by_round)


def test_memory_is_bounded_and_acknowledged_reports_are_stored(
    started: Callable[..., Api], monkeypatch: pytest.MonkeyPatch
) -> None:
    api = started(max_pending_bytes=MAX_PENDING_BYTES)
    services: GatewayContext = api.http._transport._asgi.app.state.context  # type: ignore[attr-defined]
    slow = _Slow(services, monkeypatch)
    opened = api.round(api.dataset()["id"], target_reports=10**6)
    path, body = f"/rounds/{opened['id']}/reports", packed(REPORTS_EACH)
    accepted, refused, most_pending = [], [], [0.0]
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(0.005):
            pending = services.metrics.registry.get_sample_value("sfumato_pending_bytes")
            most_pending[0] = max(most_pending[0], pending or 0.0)

    def send() -> None:
        for _ in range(TRIES):
            answer = api.post(path, content=body, headers=OCTETS)
            if answer.status_code == 202:
                accepted.append(answer.json()["accepted"])
            else:
                assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
                refused.append(int(answer.headers["retry-after"]))
                slow.has_refused.set()

    watching = threading.Thread(target=watch)
    watching.start()
    with ThreadPoolExecutor(SENDERS) as senders:
        for sender in [senders.submit(send) for _ in range(SENDERS)]:
            sender.result()
    is_over.set()
    watching.join()
    assert len(accepted) + len(refused) == SENDERS * TRIES
    assert accepted
    assert refused
    assert min(refused) >= 1
    assert 0 < most_pending[0] <= MAX_PENDING_BYTES
    assert 0 < slow.most_waiting_bytes <= MAX_PENDING_BYTES
    assert api.n_received(opened["id"]) == sum(accepted) == REPORTS_EACH * len(accepted)
    assert services.metrics.registry.get_sample_value("sfumato_pending_bytes") == 0
    assert api.post(path, content=body, headers=OCTETS).status_code == 202
