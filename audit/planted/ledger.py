"""Broken ledgers: what is charged too late, too little, twice under one name, or rewritten."""

from datetime import UTC, datetime
from functools import partial
from threading import Barrier
from typing import Any

from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from audit import ledger as sound
from audit.check import Finding, Leak, Setting
from audit.ledger_chain import cut, edited, edited_to_fit, forgotten, history, rewritten
from audit.ledger_jobs import Work
from audit.ledger_jobs import looked_at as jobs_looked_at
from audit.ledger_world import ACTOR, START
from clustering.questions import Question
from models import job as jobs
from models import ledger
from models.answer import Asked
from models.answer import charge as charge_answer
from models.db import Database, new_id
from models.errors import BudgetExhausted
from models.job import Claim, Job, JobState
from models.ledger import Amounts, Kind, LedgerEntry
from sfumato.ledger import LedgerEntry as Published

MEETING_SECONDS = 60  # writers that check at once wait for one another at most so long


def delta_forgotten(
    session: Session, dataset_id: str, kind: str, amounts: Amounts, reference: str, job_id: str | None
) -> LedgerEntry | None:
    """Postings are of epsilon alone."""
    moved = Amounts(amounts.epsilon_nano, 0) if kind == Kind.POST else amounts
    return sound.charge(session, dataset_id, kind, moved, reference, job_id)


def named_anew(
    session: Session, dataset_id: str, kind: str, amounts: Amounts, reference: str, job_id: str | None
) -> LedgerEntry | None:
    """A posting whose name is taken gets another one, so that a retry posts once more."""
    query = select(LedgerEntry.id).where(
        LedgerEntry.dataset_id == dataset_id, LedgerEntry.kind == kind, LedgerEntry.reference == reference
    )
    is_taken = kind == Kind.POST and session.scalars(query).first() is not None
    return sound.charge(session, dataset_id, kind, amounts, new_id("ref") if is_taken else reference, job_id)


def committed_at_once(
    session: Session, dataset_id: str, kind: str, amounts: Amounts, reference: str, job_id: str | None
) -> LedgerEntry | None:
    """A charge is written for good before what it is for is done."""
    entry = sound.charge(session, dataset_id, kind, amounts, reference, job_id)
    session.flush()
    for statement in ("COMMIT", "BEGIN IMMEDIATE"):
        session.connection().exec_driver_sql(statement)
    return entry


class CheckedThenSpent:
    """Spending in two steps: a look at what is free, and an entry by what was seen; between them others look too."""

    def __init__(self, n_writers: int) -> None:
        self._meeting = Barrier(n_writers)

    def __call__(self, database: Database, dataset_id: str, amounts: Amounts, reference: str) -> None:
        with database.reading() as session:
            before = ledger.balance(session, dataset_id)
        after = before.after(Kind.POST, amounts, None)
        self._meeting.wait(MEETING_SECONDS)
        if after.is_over:
            raise BudgetExhausted(
                "epsilon", requested=amounts[0], granted=before[0], reserved=before[1], posted=before[2]
            )
        with database.transaction() as session:
            end = ledger.head(session, dataset_id)
            values: dict[str, Any] = {
                "id": new_id("led"), "dataset_id": dataset_id, "seq": end.seq + 1, "kind": "post", "reservation": None,
                "reference": reference, "actor": ACTOR, "prev_hash": end.hash, "hash": "",
                **amounts._asdict(), **after._asdict(),
            }  # fmt: skip
            at = datetime.fromtimestamp(START // 1_000_000, UTC)
            end.seq, end.hash = end.seq + 1, Published(**values, at=at).computed_hash()
            session.execute(insert(LedgerEntry), [values | {"at": START, "hash": end.hash}])


def raced(setting: Setting) -> list[Finding]:
    """Writers at once that check first and act later."""
    return sound.meetings(setting, of=CheckedThenSpent(sound.WRITERS))


# ---- jobs ----


def gives_back(database: Database, held: Claim) -> None:
    """A failed job's draws are forgiven: what they cost is granted anew."""
    with database.transaction() as session:
        job = jobs.held_job(session, held)
        left = ledger.reserved_for(session, job.dataset_id, job.id)
        spent = Amounts(job.epsilon_nano - left.epsilon_nano, job.delta_atto - left.delta_atto)
        jobs.fail(session, held, JobState.FAILED, code="audit", detail="", now=database.clock())
        if spent != Amounts(0, 0):
            _post(session, job, spent, Kind.GRANT, f"back_{job.id}")


def one_name(database: Database, held: Claim, index: int, question: Question) -> None:  # noqa: ARG001 - what is wrong
    """All of a job's questions are posted under the job's name, so that the second is taken for the first."""
    with database.transaction() as session:
        job = jobs.held_job(session, held)
        _post(session, job, Amounts(question.epsilon_nano, question.delta_atto), Kind.POST, job.id)


def name_of_a_claim(database: Database, held: Claim, index: int, question: Question) -> None:
    """A question is posted under the claim that asks it, so that a job that is run again pays again."""
    with database.transaction() as session:
        job = jobs.held_job(session, held)
        name = f"{job.id[-20:]}#{held.fence}#{index}"
        _post(session, job, Amounts(question.epsilon_nano, question.delta_atto), Kind.POST, name)


def epsilon_alone(database: Database, held: Claim, index: int, question: Question) -> None:
    """A question's delta is not passed on."""
    with database.transaction() as session:
        asked = Asked(question.what, question.epsilon_nano, question.n_values, question.digest)
        charge_answer(session, held, index, asked, now=database.clock())


def charged_later(database: Database, held: Claim, index: int, question: Question) -> None:
    """What the question before cost is posted with this one: so the last one of a job that fails never is."""
    with database.transaction() as session:
        job = jobs.held_job(session, held)
        if index:
            name = f"{job.id}#{index - 1}"
            _post(session, job, Amounts(question.epsilon_nano, question.delta_atto), Kind.POST, name)


def not_kept(database: Database, held: Claim, index: int) -> None:
    """Nothing is written down, in a ledger that is looked at without answers."""


def _post(session: Session, job: Job, amounts: Amounts, kind: Kind, name: str) -> None:
    common: dict[str, Any] = {"delta_atto": amounts.delta_atto, "actor": ACTOR, "now": START}
    if kind is Kind.GRANT:
        ledger.grant(session, job.dataset_id, amounts.epsilon_nano, reference=name, **common)
    else:
        ledger.post(session, job.dataset_id, amounts.epsilon_nano, reference=name, reservation=job.id, **common)


def _job(name: str, work: Work) -> Leak:
    return Leak(name, "ledger: jobs", partial(jobs_looked_at, work=work))


LEAKS: tuple[Leak, ...] = (
    Leak("delta forgotten", "ledger", partial(sound.charges, of=delta_forgotten)),
    Leak("a retry posts once more", "ledger", partial(sound.charges, of=named_anew)),
    Leak("a charge outlives its transaction", "ledger", partial(sound.charges, of=committed_at_once)),
    Leak("overspend by a race", "ledger: at once", raced),
    Leak("an entry edited", "ledger: history", partial(history, tamper=edited)),
    Leak("an entry edited, its hash made to fit", "ledger: history", partial(history, tamper=edited_to_fit)),
    Leak("a tail cut, the end made to fit", "ledger: history", partial(history, tamper=cut, with_end=True)),
    Leak("history rewritten", "ledger: history", partial(history, tamper=rewritten, with_end=True)),
    Leak("a charge forgotten, history rewritten", "ledger: history", partial(history, tamper=forgotten, with_end=True)),
    _job("release after failure", Work(fail=gives_back)),
    _job("a retry posts nothing new for a second draw", Work(charge=one_name, keep=not_kept)),
    _job("a job that is run again pays again", Work(charge=name_of_a_claim, keep=not_kept)),
    _job("a question's delta forgotten", Work(charge=epsilon_alone)),
    _job("noise before its charge", Work(charge=charged_later, keep=not_kept)),
)
