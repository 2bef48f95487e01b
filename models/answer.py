"""Answers: what a central job has asked its curator, what each question was charged, and what was answered.

    (asked) ──charge──► charged ──keep──► answered ──(job ends)──► gone

A charge is posted to the ledger and committed before anything is drawn for it; the answer
is kept before the algorithm goes on. So a job that is run again after a crash is told again
what it was told before, pays for nothing twice, and draws anew only what was charged and
never seen. Answers go when their job ends: the result's odometer and the ledger stay.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import BigInteger, ForeignKey, Integer, LargeBinary, String, delete
from sqlalchemy.orm import Mapped, Session, mapped_column

from models import ledger
from models.db import Base
from models.errors import Conflict

if TYPE_CHECKING:
    from models.job import Claim

MAX_QUESTIONS = 1_000_000  # of a job: a reference with six digits fits its column


class Answer(Base):
    """One charged question of a job, and its answer once it was drawn."""

    __tablename__ = "answers"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    index: Mapped[int] = mapped_column(Integer, primary_key=True, comment="0, 1, ... in the order they were asked")
    what: Mapped[str] = mapped_column(String(40), comment="what was asked, as the odometer names it")
    n_values: Mapped[int] = mapped_column(BigInteger, comment="numbers in the answer")
    digest: Mapped[str] = mapped_column(String(32), comment="of what was asked: cells, centres, radii; all public")
    epsilon_nano: Mapped[int] = mapped_column(BigInteger, comment="posted for it")
    charged_at: Mapped[int] = mapped_column(BigInteger, comment="microseconds since the epoch")
    packed: Mapped[bytes | None] = mapped_column(LargeBinary, comment="the noisy numbers; none: not drawn, or not kept")
    delta_atto: Mapped[int] = mapped_column(BigInteger, server_default="0", comment="posted for it")


@dataclass(frozen=True, slots=True)
class Asked:
    """A question in public terms."""

    what: str
    epsilon_nano: int
    n_values: int
    digest: str = ""  # of all it was made of
    delta_atto: int = 0


def reference(job_id: str, index: int) -> str:
    """What the ledger calls the charge of a job's question: `job_…#0`, `job_…#1`, ..."""
    return f"{job_id}#{index}"


def charge(session: Session, held: "Claim", index: int, question: Asked, *, now: int) -> bytes | None:
    """Post what a question costs, once however often it is asked; the answer it had, where it had one.

    A question that another one paid for is posted like every other, with amounts of 0.

    Raises
    ------
    StaleFence
        Somebody else holds the job by now.
    BudgetExhausted
        The job's reservation does not bear it.
    Conflict
        The job asks something else than it did before its crash, or too much.
    """
    from models.job import held_job  # a job drops its answers as it ends; here it is the other way round

    job = held_job(session, held)
    before = session.get(Answer, (job.id, index), populate_existing=True)
    if before is not None:
        if Asked(before.what, before.epsilon_nano, before.n_values, before.digest, before.delta_atto) != question:
            raise Conflict(f"question {index} of this job is not the one that was charged")
        return before.packed
    if index >= MAX_QUESTIONS:
        raise Conflict(f"a job asks {MAX_QUESTIONS} questions at most")
    at = job.started_at or now  # for all of its questions: the time between two tells how many records there are
    ledger.post(
        session,
        job.dataset_id,
        question.epsilon_nano,
        delta_atto=question.delta_atto,
        reference=reference(job.id, index),
        reservation=job.id,
        actor=job.created_by,
        now=at,
    )
    session.add(
        Answer(
            job_id=job.id,
            index=index,
            what=question.what,
            n_values=question.n_values,
            digest=question.digest,
            epsilon_nano=question.epsilon_nano,
            charged_at=at,
            packed=None,
            delta_atto=question.delta_atto,
        )
    )
    session.flush()
    return None


def keep(session: Session, held: "Claim", index: int, packed: bytes) -> None:
    """Write an answer down, before anybody acts on it.

    Raises
    ------
    StaleFence
        Somebody else holds the job by now.
    Conflict
        The question was never charged, or has its answer.
    """
    from models.job import held_job

    job = held_job(session, held)
    charged = session.get(Answer, (job.id, index), populate_existing=True)
    if charged is None or charged.packed is not None:
        raise Conflict(f"question {index} of this job waits for no answer")
    charged.packed = packed
    session.flush()


def drop(session: Session, job_id: str) -> None:
    """Remove a job's answers; what they cost stays in the ledger."""
    session.execute(delete(Answer).where(Answer.job_id == job_id))
