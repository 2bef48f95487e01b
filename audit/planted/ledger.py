"""Broken ledgers: late, missing, repeated or rewritten charges."""

from datetime import UTC, datetime
from functools import partial
from threading import Barrier
from typing import Any

from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from audit.checks.check import Finding, Leak, Setting
from audit.ledger import walks
from audit.ledger.chain import check_history, cut_tail, edit_and_rehash, edit_entry, remove_charge, rewrite_history
from audit.ledger.database import ACTOR, START
from audit.ledger.jobs import WorkerActions, check_jobs
from audit.ledger.walks import Entry
from clustering.central.queries import Query
from models.database.engine import Database
from models.database.types import new_id
from models.errors import BudgetExhausted
from models.jobs import claims, lifecycle
from models.jobs.claims import Claim
from models.jobs.curator_answers import ChargedQuery
from models.jobs.curator_answers import charge as charge_answer
from models.ledger import ledger
from models.ledger.amounts import Amounts
from models.tables.jobs import Job, JobState
from models.tables.ledger import Kind, LedgerEntry
from sfumato.privacy.ledger import LedgerEntry as Published

BARRIER_SECONDS = 60  # timeout of the barrier between check and entry


def forget_delta(session: Session, dataset_id: str, entry: Entry) -> LedgerEntry | None:
    """Charge epsilon only."""
    changed = entry._replace(amounts=Amounts(entry.amounts.epsilon_nano, 0))
    return walks.add_entry(session, dataset_id, changed if entry.kind == Kind.CHARGE else entry)


def rename_on_retry(session: Session, dataset_id: str, entry: Entry) -> LedgerEntry | None:
    """Give a repeated charge a new reference, so that a retry charges again."""
    query = select(LedgerEntry.id).where(
        LedgerEntry.dataset_id == dataset_id, LedgerEntry.kind == entry.kind, LedgerEntry.reference == entry.reference
    )
    if entry.kind == Kind.CHARGE and session.scalars(query).first() is not None:
        entry = entry._replace(reference=new_id("ref"))
    return walks.add_entry(session, dataset_id, entry)


def commit_early(session: Session, dataset_id: str, entry: Entry) -> LedgerEntry | None:
    """Commit a charge before the transaction ends."""
    stored = walks.add_entry(session, dataset_id, entry)
    session.flush()
    for statement in ("COMMIT", "BEGIN IMMEDIATE"):
        session.connection().exec_driver_sql(statement)
    return stored


class CheckThenSpend:
    """Spending in two steps: a check of the free budget, and later an entry. Other writers check in between."""

    def __init__(self, n_writers: int) -> None:
        self._barrier = Barrier(n_writers)

    def __call__(self, database: Database, dataset_id: str, amounts: Amounts, reference: str) -> None:
        with database.reading() as session:
            before = ledger.balance(session, dataset_id)
        after = before.after(Kind.CHARGE, amounts, None)
        self._barrier.wait(BARRIER_SECONDS)
        if after.is_over:
            raise BudgetExhausted(
                "epsilon", requested=amounts[0], granted=before[0], reserved=before[1], charged=before[2]
            )
        with database.transaction() as session:
            head = ledger.head(session, dataset_id)
            values: dict[str, Any] = {
                "id": new_id("led"), "dataset_id": dataset_id, "seq": head.seq + 1, "kind": "charge",
                "reservation": None,
                "reference": reference, "actor": ACTOR, "prev_hash": head.hash, "hash": "",
                **amounts._asdict(), **after._asdict(), "mu2_pico": None,
            }  # fmt: skip
            time = datetime.fromtimestamp(START // 1_000_000, UTC)
            head.seq, head.hash = head.seq + 1, Published(**values, at=time).computed_hash()
            session.execute(insert(LedgerEntry), [values | {"at": START, "hash": head.hash}])


def check_race(setting: Setting) -> list[Finding]:
    """Let writers check at the same time and charge later."""
    return walks.check_concurrency(setting, implementation=CheckThenSpend(walks.N_WRITERS))


# ---- jobs ----


def forgive_on_failure(database: Database, claim: Claim) -> None:
    """Grant the charges of a failed job again."""
    with database.transaction() as session:
        job = claims.load_claimed(session, claim)
        left = ledger.reserved_for(session, job.dataset_id, job.id)
        spent = Amounts(job.epsilon_nano - left.epsilon_nano, job.delta_atto - left.delta_atto)
        lifecycle.fail(session, claim, JobState.FAILED, code="audit", detail="", now=database.clock())
        if spent != Amounts(0, 0):
            _add_entry(session, job, spent, Kind.GRANT, f"back_{job.id}")


def charge_job_once(database: Database, claim: Claim, index: int, query: Query) -> None:  # noqa: ARG001 - the fault
    """Charge all queries of a job under the job's name, so that the second counts as a repetition."""
    with database.transaction() as session:
        job = claims.load_claimed(session, claim)
        _add_entry(session, job, Amounts(query.epsilon_nano, query.delta_atto), Kind.CHARGE, job.id)


def charge_per_claim(database: Database, claim: Claim, index: int, query: Query) -> None:
    """Charge a query under the name of its claim, so that a repeated job pays again."""
    with database.transaction() as session:
        job = claims.load_claimed(session, claim)
        name = f"{job.id[-20:]}#{claim.fence}#{index}"
        _add_entry(session, job, Amounts(query.epsilon_nano, query.delta_atto), Kind.CHARGE, name)


def charge_epsilon_only(database: Database, claim: Claim, index: int, query: Query) -> None:
    """Ignore the delta of a query."""
    with database.transaction() as session:
        terms = ChargedQuery(query.description, query.epsilon_nano, query.n_values, query.digest)
        charge_answer(session, claim, index, terms, now=database.clock())


def charge_late(database: Database, claim: Claim, index: int, query: Query) -> None:
    """Charge a query together with the next one, so that a failed job never pays for its last query."""
    with database.transaction() as session:
        job = claims.load_claimed(session, claim)
        if index:
            name = f"{job.id}#{index - 1}"
            _add_entry(session, job, Amounts(query.epsilon_nano, query.delta_atto), Kind.CHARGE, name)


def skip_keep(database: Database, claim: Claim, index: int) -> None:
    """Store nothing, because these ledgers have no answers."""


def _add_entry(session: Session, job: Job, amounts: Amounts, kind: Kind, name: str) -> None:
    common: dict[str, Any] = {"actor": ACTOR, "now": START}
    if kind is Kind.GRANT:
        ledger.grant(session, job.dataset_id, amounts, reference=name, **common)
    else:
        ledger.charge(session, job.dataset_id, amounts, reference=name, reservation=job.id, **common)


def _job(name: str, actions: WorkerActions) -> Leak:
    return Leak(name, "ledger: jobs", partial(check_jobs, actions=actions))


LEAKS: tuple[Leak, ...] = (
    Leak("delta forgotten", "ledger", partial(walks.check_entries, implementation=forget_delta)),
    Leak("retry charged again", "ledger", partial(walks.check_entries, implementation=rename_on_retry)),
    Leak("charge kept after rollback", "ledger", partial(walks.check_entries, implementation=commit_early)),
    Leak("overspending by a race", "ledger: concurrent charges", check_race),
    Leak("entry edited", "ledger: history", partial(check_history, tamper=edit_entry)),
    Leak("entry edited, hash updated", "ledger: history", partial(check_history, tamper=edit_and_rehash)),
    Leak("tail cut, head updated", "ledger: history", partial(check_history, tamper=cut_tail, with_head=True)),
    Leak("history rewritten", "ledger: history", partial(check_history, tamper=rewrite_history, with_head=True)),
    Leak(
        "charge removed, history rewritten",
        "ledger: history",
        partial(check_history, tamper=remove_charge, with_head=True),
    ),
    _job("release after failure", WorkerActions(fail=forgive_on_failure)),
    _job("second draw not charged", WorkerActions(charge=charge_job_once, keep=skip_keep)),
    _job("repeated job charged again", WorkerActions(charge=charge_per_claim, keep=skip_keep)),
    _job("delta of a query forgotten", WorkerActions(charge=charge_epsilon_only)),
    _job("noise before its charge", WorkerActions(charge=charge_late, keep=skip_keep)),
)
