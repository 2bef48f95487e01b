"""A worker continues the job of a dead worker with a clock that was a quarter of an hour ahead."""

import json
from pathlib import Path

import pytest

from models.collection import aggregation_leases
from models.database.types import SECOND
from models.jobs import claims
from models.tables.jobs import JobState
from models.tables.rounds import Round, RoundState
from sfumato.mechanisms import design
from sfumato.specs import Feature, GridEncoding, RoundSpec
from tests.databases import on_both_databases
from tests.workers.collection import Collection
from tests.workers.processes import worker
from tests.workers.toy import wait_for

pytestmark = pytest.mark.slow

AHEAD = 86_400 * SECOND  # no test waits that long
LEASE = SECOND


@on_both_databases
def test_a_job_and_a_fold_that_a_clock_far_ahead_holds_are_taken_up(
    collection: Collection, database_url: str, tmp_path: Path
) -> None:
    spec = RoundSpec((Feature("x", 0.0, 10.0),), GridEncoding((12,)), design("ss", 12, 250_000_000))
    alone = collection.open_alone(spec, target_reports=50)
    asked = collection.get_open_round()
    collection.answer(asked, 50)
    job_id = collection.submit()
    database = collection.database
    with database.transaction() as session:
        now = database.clock() + AHEAD
        assert claims.claim(session, now=now, lease_microseconds=LEASE, max_attempts=5) is not None
        assert aggregation_leases.claim_aggregation(session, now=now, lease_microseconds=LEASE, max_attempts=5) == alone

    with worker(tmp_path / "log", database_url, TOY=json.dumps({"draws": []}), SFUMATO_LEASE_SECONDS=1):
        wait_for(lambda: collection.job(job_id).is_final)
        assert (collection.job(job_id).state, collection.job(job_id).fence) == (JobState.SUCCEEDED, 2)

        def is_tallied() -> bool:
            with database.reading() as session:
                return session.get_one(Round, alone).state == RoundState.TALLIED

        wait_for(is_tallied)
