"""Queries of jobs over records to the curator: charge each query once, and store its answer.

    requested ──charge──► charged ──store──► answered ──(job ends)──► deleted

The charge is committed before the answer is drawn, and the answer is stored before the algorithm continues. A job that
runs again after a crash therefore receives its stored answers and pays for no query twice. It draws only answers that
were charged but not stored. Answers are deleted at the end of the job; the result's odometer and the ledger remain.
"""

from dataclasses import dataclass

from sqlalchemy.orm import Session

from models.errors import Conflict
from models.jobs.claims import Claim, load_claimed
from models.ledger import ledger
from models.ledger.amounts import Amounts
from models.tables.jobs import Job, QueryAnswer

MAX_QUERIES = 1_000_000  # per job; a reference with six digits fits its column


@dataclass(frozen=True, slots=True)
class ChargedQuery:
    """The public facts of a query.

    Attributes
    ----------
    description : str
        Name of the query in the odometer.
    epsilon_nano : int
    n_values : int
        Number of values in the answer.
    digest : str
        Digest of the query's public arguments.
    delta_atto : int
    """

    description: str
    epsilon_nano: int
    n_values: int
    digest: str = ""
    delta_atto: int = 0


def reference(job_id: str, index: int) -> str:
    """Return the ledger reference of a job's query: `job_…#0`, `job_…#1`, ..."""
    return f"{job_id}#{index}"


def charge(session: Session, claim: Claim, index: int, query: ChargedQuery, *, now: int) -> bytes | None:
    """Charge the cost of a query unless it is charged already. Return its stored answer, if any.

    A query with a cost that another query has paid is charged like every other, with amounts of 0.

    Raises
    ------
    StaleFence
    BudgetExhausted
        If the job's reservation is too small.
    Conflict
        If the query differs from the charged one, or the job has too many queries.
    """
    job = load_claimed(session, claim)
    before = session.get(QueryAnswer, (job.id, index), populate_existing=True)
    if before is not None:
        charged = (before.description, before.epsilon_nano, before.n_values, before.digest, before.delta_atto)
        if ChargedQuery(*charged) != query:
            raise Conflict(f"query {index} of this job differs from the charged one")
        return before.packed
    if index >= MAX_QUERIES:
        raise Conflict(f"a job may have at most {MAX_QUERIES} queries")
    at = job.started_at or now  # the same for all queries: the time between two reveals the number of records
    ledger.charge(
        session,
        job.dataset_id,
        _cost(session, job, query),
        reference=reference(job.id, index),
        reservation=job.collection_id or job.id,
        actor=job.created_by,
        now=at,
    )
    session.add(
        QueryAnswer(
            job_id=job.id,
            index=index,
            description=query.description,
            n_values=query.n_values,
            digest=query.digest,
            epsilon_nano=query.epsilon_nano,
            charged_at=at,
            packed=None,
            delta_atto=query.delta_atto,
        )
    )
    session.flush()
    return None


def _cost(session: Session, job: Job, query: ChargedQuery) -> Amounts:
    """Return what a query is charged. A window of a series is charged what its cycle has not paid yet.

    The windows of a series have disjoint records, and a user has a bounded number of records in all of them. So all
    windows together cost one person at most the epsilon of one (`models.records.window_records`).

    Raise Conflict if the cycle has ended, because its grant has expired.
    """
    if job.collection_id is None:
        return Amounts(query.epsilon_nano, query.delta_atto)
    left = ledger.reserved_for(session, job.dataset_id, job.collection_id).epsilon_nano
    if left + ledger.charged_nano(session, job.dataset_id, [job.collection_id]) < job.epsilon_nano:
        raise Conflict("the series has ended, so that this window has no budget: create another series")
    return Amounts(min(query.epsilon_nano, left))


def store(session: Session, claim: Claim, index: int, packed: bytes) -> None:
    """Store the answer of a query before the algorithm uses it.

    Raises
    ------
    StaleFence
    Conflict
        If the query is not charged, or has an answer.
    """
    job = load_claimed(session, claim)
    charged = session.get(QueryAnswer, (job.id, index), populate_existing=True)
    if charged is None or charged.packed is not None:
        raise Conflict(f"query {index} of this job needs no answer")
    charged.packed = packed
    session.flush()
