"""Test data and helpers for the tests of `models`: tenants, datasets, jobs, rounds, and concurrent threads."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from sqlalchemy import text
from sqlalchemy.orm import Session

from models import datasets
from models.collection import report_intake, report_log, rounds
from models.database.engine import Database
from models.database.types import SECOND
from models.errors import BudgetExhausted
from models.identity import keys, tenants
from models.identity.caller import Caller
from models.jobs import claims, jobs, lifecycle
from models.jobs.claims import Claim
from models.ledger import ledger, sources
from models.ledger.amounts import Amounts, Balance
from models.tables.datasets import Dataset, Trust
from models.tables.identity import Scope
from models.tables.jobs import Job
from models.tables.rounds import CollectionTarget, Round
from sfumato import mechanisms
from sfumato.privacy.accounting import NANO
from sfumato.specs import Feature, GridEncoding, Participation, RoundSpec

NOW = 1_800_000_000 * SECOND
LEASE = 20 * SECOND
Result = TypeVar("Result")
FEATURES = (Feature("x", 0.0, 1.0), Feature("y", 0.0, 1.0))
ALGORITHM = {"type": "uniform_grid", "epsilon": 1}
TARGET = CollectionTarget(100, 1, 3600)
DOCUMENT = {"model": {"kind": "label_map"}, "rounds": []}


class World:
    """A database with one tenant and a clock that tests advance."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.now = NOW
        self.caller = self.new_caller("tenant")

    def write(self, change: Callable[..., Result], *arguments: Any, **named: Any) -> Result:
        """Call `change` with a session and these arguments, in one transaction."""
        with self.database.transaction() as session:
            return change(session, *arguments, **named)

    def read(self, query: Callable[..., Result], *arguments: Any, **named: Any) -> Result:
        """Call `query` with a session that only reads, and with these arguments."""
        with self.database.reading() as session:
            return query(session, *arguments, **named)

    def new_caller(self, tenant_name: str, dataset_id: str | None = None) -> Caller:
        """Create an admin key of this tenant."""
        with self.database.transaction() as session:
            owner = tenants.get_or_create_tenant(session, tenant_name, now=self.now)
            _, secret = keys.create_key(
                session, owner.id, name="test", scopes=[Scope.ADMIN], dataset_id=dataset_id, now=self.now
            )
            caller = keys.authenticate(session, keys.hash_secret(secret), now=self.now)
        assert caller is not None
        return caller

    def new_dataset(self, *, epsilon_nano: int = 10 * NANO, keep_reports: bool = False, **other: Any) -> Dataset:
        """Create a local dataset with two features."""
        given: dict[str, Any] = {"name": "d", "trust": Trust.LOCAL, "min_reports": 1, "max_datasets": 10_000, **other}
        caller = given.pop("caller", self.caller)
        return self.write(
            datasets.create,
            caller,
            features=FEATURES,
            epsilon_nano=epsilon_nano,
            keep_reports=keep_reports,
            now=self.now,
            **given,
        )

    def submit(self, within: Dataset, *, epsilon_nano: int = NANO, **other: Any) -> Job:
        """Submit a job with this epsilon."""
        return self.write(submit, self.caller, within, epsilon_nano=epsilon_nano, now=self.now, **other)

    def claim(self, *, max_attempts: int = 5) -> Claim | None:
        """Claim the next job."""
        return self.write(claims.claim, now=self.now, lease_microseconds=LEASE, max_attempts=max_attempts)

    def claimed(self) -> Claim:
        """Claim the next job, which must exist."""
        claim = self.claim()
        assert claim is not None
        return claim

    def open_for(self, claim: Claim, *, suspend: bool = True, **spec_parts: Any) -> Round:
        """Open the job's next round and let the job wait, like the job runner."""
        collect = spec_parts.pop("collect", CollectionTarget(100, 1, 3600))
        with self.database.transaction() as session:
            found = claims.load_claimed(session, claim)
            opened = rounds.open_for_job(
                session,
                session.get_one(Dataset, found.dataset_id),
                spec(**spec_parts),
                collect,
                job_id=found.id,
                actor=found.created_by,
                now=self.now,
            )
            if suspend:
                lifecycle.wait_for_reports(session, claim, now=self.now)
        return opened

    def open_standalone(self, within: Dataset, **other: Any) -> Round:
        """Open a standalone round."""
        collect = other.pop("collect", CollectionTarget(100, 1, 3600))
        max_open_rounds = other.pop("max_open_rounds", 16)
        ceiling = other.pop("ceiling", sources.UNLIMITED)
        return self.write(
            rounds.open_standalone,
            self.caller,
            within,
            spec(**other),
            collect,
            max_open_rounds=max_open_rounds,
            ceiling=ceiling,
            now=self.now,
        )

    def receive(self, round_id: str, n_reports: int = 1, packed: bytes | None = None) -> report_intake.Received:
        """Store reports of one round."""
        return self.write(
            report_intake.receive, round_id, n_reports, b"r" * n_reports if packed is None else packed, now=self.now
        )

    def close(self, round_id: str) -> Round:
        """Close the round as its tenant."""
        return self.write(rounds.close, self.caller, round_id, now=self.now)

    def job(self, job_id: str) -> Job:
        """Return the current state of a job."""
        with self.database.reading() as session:
            return session.get_one(Job, job_id)

    def round(self, round_id: str) -> Round:
        """Return the current state of a round."""
        with self.database.reading() as session:
            return session.get_one(Round, round_id)

    def log(self, round_id: str) -> list[bytes]:
        """Return the packed rows of a round in the log."""
        with self.database.reading() as session:
            return [packed for _, packed in report_log.batches(session, round_id)]

    def n_logged(self, round_id: str) -> int:
        """Return the number of reports of a round in the log."""
        return self.read(report_log.count, round_id)

    def balance(self, dataset_id: str) -> Balance:
        """Return the ledger's balance."""
        return self.read(ledger.balance, dataset_id)

    def chain(self, dataset_id: str) -> list[tuple[str, int, str]]:
        """Return kind, amount and reference of all ledger entries."""
        with self.database.reading() as session:
            entries = ledger.page(session, dataset_id, after_seq=0, limit=1000)
            return [(entry.kind, entry.epsilon_nano, entry.reference) for entry in entries]


def spec(*, epsilon_nano: int = NANO, lo: float = 0.0, hi: float = 1.0, kind: str = "grr") -> RoundSpec:
    """Return the spec of a round over a 2 x 2 grid for devices with a participation draw in [lo, hi)."""
    return RoundSpec(
        FEATURES, GridEncoding((2, 2)), mechanisms.design(kind, 4, epsilon_nano), Participation.between(lo, hi)
    )


def cost_of(published: RoundSpec) -> int:
    """Return the cost of a report in nano-epsilon."""
    return published.mechanism.epsilon_nano()


def submit(
    session: Session,
    caller: Caller,
    within: Dataset,
    *,
    epsilon_nano: int,
    delta_atto: int = 0,
    collect: CollectionTarget = TARGET,
    round_ids: Sequence[str] = (),
    now: int,
    **limits: Any,
) -> Job:
    """Submit a job in this session."""
    new = lifecycle.NewJob(ALGORITHM, Amounts(epsilon_nano, delta_atto), collect, round_ids)
    return lifecycle.submit(session, caller, within, new, now=now, **{"max_active_jobs": 1000, **limits})


def succeed(session: Session, claim: Claim, document: dict[str, Any] = DOCUMENT) -> None:
    """Store a result in this session."""
    lifecycle.succeed(session, claim, document, software_version="1.2.3", now=NOW + 9)


def cancel(world: World, job_id: str) -> Job:
    """Cancel a job as its tenant."""
    return world.write(lifecycle.cancel, world.caller, job_id, now=world.now)


def document_of(world: World, job_id: str) -> dict[str, Any]:
    """Return the stored document of a job."""
    with world.database.reading() as session:
        return jobs.get_result(session, job_id).document


def charge(
    session: Session,
    dataset_id: str,
    kind: str,
    amount: int,
    reference: str,
    job_id: str | None,
    delta: int = 0,
    shuffled: tuple[int, int] = (0, 0),
) -> Any:
    """Append a ledger entry of this kind. Return None if nothing was left to release."""
    given: dict[str, Any] = {"actor": "key_test", "now": NOW}
    if kind == "release":
        return ledger.release(session, dataset_id, job_id=reference, **given)
    amounts = Amounts(amount, delta, *shuffled)
    if kind == "reserve":
        return ledger.reserve(session, dataset_id, amounts, job_id=reference, **given)
    if kind == "grant":
        return ledger.grant(session, dataset_id, amounts, reference=reference, **given)
    return ledger.charge(session, dataset_id, amounts, reference=reference, reservation=job_id, **given)


def spend_all(database: Database, dataset_id: str, name: str) -> int:
    """Charge repeatedly until the budget is exhausted. Return the number of charges."""
    for i in itertools.count():
        try:
            with database.transaction() as session:
                charge(session, dataset_id, "charge", 1, f"{name}_{i}", None)
        except BudgetExhausted:
            return i
    raise AssertionError


# ---- threads ----


class Thread(threading.Thread):
    """A started thread. `.outcome()` joins it and returns its result or raises its error."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self._result: Any = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._result = self._call()
        except BaseException as error:
            self._error = error

    def outcome(self, seconds: float = 180) -> Any:
        """Return the result of the call, or raise its error."""
        self.join(seconds)
        assert not self.is_alive(), "the thread has not ended"
        if self._error is not None:
            raise self._error
        return self._result


def together(calls: list[Callable[[], Any]]) -> list[Any]:
    """Run the calls at once in threads. Return each result, or the exception."""
    gate = threading.Barrier(len(calls))

    def behind_gate(call: Callable[[], Any]) -> Any:
        gate.wait()
        try:
            return call()
        except Exception as error:
            return error

    threads = [Thread(lambda call=call: behind_gate(call)) for call in calls]
    return [thread.outcome() for thread in threads]


def wait_until_blocked(database: Database, n_waiting: int = 1, seconds: float = 120) -> None:
    """Wait until this many PostgreSQL transactions wait for a lock."""
    query = text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with database.engine.connect() as connection:
            if connection.execute(query).scalar_one() >= n_waiting:
                return
        time.sleep(0.01)
    raise AssertionError("no transaction waits for a lock")


@contextmanager
def rolled_back(database: Database) -> Iterator[Session]:
    """Open a transaction and roll it back."""

    class _Undo(Exception):
        pass

    try:
        with database.transaction() as session:
            yield session
            raise _Undo
    except _Undo:
        pass
