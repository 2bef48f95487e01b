"""A round that no worker can count is given up after so many attempts, and does not stand in others' way."""

from pathlib import Path

import pytest
from sqlalchemy import text

from models.tables.rounds import Round, RoundState
from tests.workers.collection import Collection
from tests.workers.driving import grid_spec, reports_in_log
from tests.workers.processes import worker
from tests.workers.toy import wait_for

pytestmark = pytest.mark.slow


class TestGivenUp:
    def filled(self, collection: Collection) -> str:
        round_id = collection.open_alone(grid_spec(), target_reports=50)
        asked = collection.get_open_round()
        collection.fill(asked)
        return round_id

    def state(self, collection: Collection, round_id: str) -> str:
        with collection.database.reading() as session:
            return session.get_one(Round, round_id).state

    def test_after_its_attempts_and_in_the_log(self, collection: Collection, database_url: str, tmp_path: Path) -> None:
        broken = self.filled(collection)
        with collection.database.transaction() as session:
            session.execute(text("UPDATE rounds SET spec = '{}'"))  # its aggregation fails
        whole = self.filled(collection)
        with worker(tmp_path / "log", database_url, SFUMATO_LEASE_SECONDS=0.3, SFUMATO_MAX_ATTEMPTS=2) as running:
            wait_for(lambda: self.state(collection, broken) == RoundState.FAILED)
            wait_for(lambda: self.state(collection, whole) == RoundState.TALLIED)
            assert len(running.logged("task_crashed")) == 2
            (given_up,) = running.logged("aggregation_abandoned")
            assert (given_up["round_id"], given_up["attempts"]) == (broken, 2)
            assert running.process.poll() is None
        assert reports_in_log(collection.database, broken) == 50
