"""A worker tells the bulletin what it changed, after the commit."""

import threading
import time

import pytest

from models.doorbell import PollingDoorbell
from models.job import Job, JobState
from models.settings import Settings
from tests.workers.collection import Collection
from tests.workers.toy import Toy
from workers.supervisor import Supervisor

PATIENCE_SECONDS = 180.0


class Told:
    """A bulletin that looks at once at what it is told of."""

    is_away = False

    def __init__(self, collection: Collection) -> None:
        self._collection = collection
        self.seen: list[tuple[tuple[str, ...], str]] = []

    def tell(self, *ids: str) -> None:
        with self._collection.database.reading() as session:
            self.seen.append((ids, session.get_one(Job, ids[0]).state))


@pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("soon", "pause", "n_told"), [(0.03, 2.0, 2), (PATIENCE_SECONDS, 0.0, 1)], ids=["a longer one", "a short one"]
)
def test_that_a_job_began_unless_it_is_soon_over_and_that_it_ended(
    collection: Collection, database_url: str, monkeypatch: pytest.MonkeyPatch, soon: float, pause: float, n_told: int
) -> None:
    monkeypatch.setattr("workers.supervisor.SOON_SECONDS", soon)
    told = Told(collection)
    here = Supervisor(
        Settings(database_url=database_url, warm_kernels=False),
        collection.database,
        PollingDoorbell(0.02),
        start=Toy(draws=(), pause_seconds=pause),
        bulletin=told,
    )
    thread = threading.Thread(target=here.run)
    thread.start()
    try:
        job_id = collection.submit()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(told.seen) < n_told:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        here.stop()
        thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()
    *began, ended = told.seen
    assert [ids for ids, _ in began] == [(job_id,)] * (n_told - 1)
    assert JobState.QUEUED not in [state for _, state in began]  # it may have ended meanwhile
    assert ended == ((job_id, collection.job(job_id).dataset_id), JobState.SUCCEEDED)
