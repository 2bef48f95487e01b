"""More senders than the database keeps up with: memory stays bounded, who is refused comes again, nothing is lost."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from service.services import Services
from tests.service.api import Api, packed
from tests.service.test_ingest import OCTETS

MAX_PENDING_BYTES = 300_000
REPORTS_EACH, SENDERS, TRIES = 1000, 24, 6
COMMIT_SECONDS = 0.15


class _Slow:
    """A writer whose commits take their time; knows how much waited for them at most."""

    def __init__(self, services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
        self._writer = services.writer
        self._commit = self._writer._commit
        self.most_waiting_bytes = 0
        monkeypatch.setattr(self._writer, "_commit", self.commit)

    def commit(self, group: list[Any]) -> Any:
        time.sleep(COMMIT_SECONDS)
        waiting = sum(len(each.packed.data) for each in [*group, *self._writer._pending])
        self.most_waiting_bytes = max(self.most_waiting_bytes, waiting)
        return self._commit(group)


def test_memory_is_bounded_refusals_say_when_and_what_is_acknowledged_is_stored(
    started: Callable[..., Api], monkeypatch: pytest.MonkeyPatch
) -> None:
    api = started(max_pending_bytes=MAX_PENDING_BYTES)
    services: Services = api.http._transport._asgi.app.state.services  # type: ignore[attr-defined]
    slow = _Slow(services, monkeypatch)
    opened = api.round(api.dataset()["id"], target_reports=10**6)
    path, body = f"/rounds/{opened['id']}/reports", packed(REPORTS_EACH)
    accepted, refused, most_held = [], [], [0.0]
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(0.005):
            held = services.metrics.registry.get_sample_value("sfumato_pending_bytes")
            most_held[0] = max(most_held[0], held or 0.0)

    def send() -> None:
        for _ in range(TRIES):
            answer = api.post(path, content=body, headers=OCTETS)
            if answer.status_code == 202:
                accepted.append(answer.json()["accepted"])
            else:
                assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
                refused.append(int(answer.headers["retry-after"]))

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
    assert 0 < most_held[0] <= MAX_PENDING_BYTES
    assert 0 < slow.most_waiting_bytes <= MAX_PENDING_BYTES
    assert api.n_received(opened["id"]) == sum(accepted) == REPORTS_EACH * len(accepted)
    assert services.metrics.registry.get_sample_value("sfumato_pending_bytes") == 0
    assert api.post(path, content=body, headers=OCTETS).status_code == 202
