"""Step-by-step execution of jobs: claim a job, and execute the claim."""

from collections.abc import Sequence

from sqlalchemy import func, select

from models.database.engine import Database
from models.database.types import SECOND
from models.jobs import claims
from models.jobs.claims import Claim
from models.tables.rounds import ReportBatch, Round
from sfumato.mechanisms import design
from sfumato.privacy.accounting import NANO, cost
from sfumato.specs import Feature, GridEncoding, RoundSpec
from tests.workers.collection import Collection
from tests.workers.toy import Toy
from workers.job_runner import ClaimOutcome, run

LEASE = 60 * SECOND
TOY = Toy()
ONE_ROUND = Toy(draws=((0.0, 1.0),))


def claim(database: Database, *, later: int = 0) -> Claim | None:
    """Claim a job `later` microseconds from now."""
    with database.transaction() as session:
        return claims.claim(session, now=database.clock() + later, lease_microseconds=LEASE, max_attempts=100)


def must_claim(database: Database, *, later: int = 0) -> Claim:
    """Claim the next job, which must exist."""
    claimed = claim(database, later=later)
    assert claimed is not None
    return claimed


def step(collection: Collection, *, start: object = TOY) -> ClaimOutcome:
    """Execute one claim."""
    return run(collection.database, must_claim(collection.database), start=start)


def work_to_the_end(collection: Collection, *, start: object = TOY) -> ClaimOutcome:
    """Alternate between claims and reports until the job ends."""
    while (outcome := step(collection, start=start)) is ClaimOutcome.COLLECTING:
        collection.fill(collection.get_open_round())
    return outcome


def grid_spec(n_cells: int = 12) -> RoundSpec:
    """Return the spec of a round over a grid, for all devices."""
    return RoundSpec((Feature("x", 0.0, 10.0),), GridEncoding((n_cells,)), design("ss", n_cells, NANO // 4))


def cost_of_rounds(own: Sequence[Round]) -> int:
    """Return the cost of rounds from the accounting."""
    return cost([((each.spec.participation.lo, each.spec.participation.hi), each.epsilon_nano) for each in own])


def reports_in_log(database: Database, round_id: str) -> int:
    """Return the number of stored reports of a round."""
    with database.reading() as session:
        n = session.scalar(select(func.sum(ReportBatch.n_reports)).where(ReportBatch.round_id == round_id))
    return n or 0
