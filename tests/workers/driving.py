"""A worker's half of a job, driven step by step: claims, and what a claim does."""

from sqlalchemy import func, select

from models import job as jobs
from models.db import SECOND, Database
from models.job import Claim
from models.report import ReportBatch
from sfumato.accounting import NANO
from sfumato.mechanisms import design
from sfumato.specs import Feature, GridEncoding, RoundSpec
from tests.workers.collection import Collection
from tests.workers.toy import Toy
from workers.runner import Outcome, run

LEASE = 60 * SECOND
TOY = Toy()


def claim(database: Database, *, later: int = 0) -> Claim | None:
    """Claim a job, as if `later` microseconds had gone by."""
    with database.transaction() as session:
        return jobs.claim(session, now=database.clock() + later, lease_microseconds=LEASE, max_attempts=100)


def must_claim(database: Database, *, later: int = 0) -> Claim:
    held = claim(database, later=later)
    assert held is not None
    return held


def step(collection: Collection, *, start: object = TOY) -> Outcome:
    """One claim, as far as it goes."""
    return run(collection.database, must_claim(collection.database), start=start)


def work_to_the_end(collection: Collection, *, start: object = TOY) -> Outcome:
    """A worker and devices in turn, until the job is over."""
    while (outcome := step(collection, start=start)) is Outcome.COLLECTING:
        asked = collection.open_round()
        assert asked is not None
        collection.fill(asked)
    return outcome


def grid_spec(n_cells: int = 12) -> RoundSpec:
    return RoundSpec((Feature("x", 0.0, 10.0),), GridEncoding((n_cells,)), design("ss", n_cells, NANO // 4))


def reports_in_log(database: Database, round_id: str) -> int:
    with database.reading() as session:
        n = session.scalar(select(func.sum(ReportBatch.n_reports)).where(ReportBatch.round_id == round_id))
    return n or 0
