"""What the tests of `models` begin with: a tenant, datasets, specs, jobs, and threads that meet."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from models import dataset, job, ledger, report, result, tenant
from models import round as rounds
from models.dataset import Dataset, Trust
from models.db import SECOND, Database
from models.errors import BudgetExhausted
from models.job import Claim, Job
from models.ledger import Balance
from models.round import Collect, Round
from models.tenant import Caller, Scope
from sfumato import mechanisms
from sfumato.accounting import NANO
from sfumato.specs import Draw, Feature, GridEncoding, RoundSpec

NOW = 1_800_000_000 * SECOND
LEASE = 20 * SECOND
FEATURES = (Feature("x", 0.0, 1.0), Feature("y", 0.0, 1.0))
ALGORITHM = {"type": "uniform_grid", "epsilon": 1}
DOCUMENT = {"model": {"kind": "label_map"}, "rounds": []}


class World:
    """One database with one tenant, whose clock stands until a test moves it."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.now = NOW
        self.caller = self.new_caller("tenant")

    def new_caller(self, tenant_name: str, dataset_id: str | None = None) -> Caller:
        """A live admin key of this tenant."""
        with self.database.transaction() as session:
            owner = tenant.get_or_create_tenant(session, tenant_name, now=self.now)
            _, secret = tenant.create_key(
                session, owner.id, name="test", scopes=[Scope.ADMIN], dataset_id=dataset_id, now=self.now
            )
            caller = tenant.authenticate(session, tenant.hash_secret(secret), now=self.now)
        assert caller is not None
        return caller

    def new_dataset(self, *, epsilon_nano: int = 10 * NANO, keep_reports: bool = False, **other: Any) -> Dataset:
        """A local dataset of two features."""
        given: dict[str, Any] = {"name": "d", "trust": Trust.LOCAL, "min_reports": 1, "max_datasets": 10_000, **other}
        caller = given.pop("caller", self.caller)
        with self.database.transaction() as session:
            return dataset.create(
                session,
                caller,
                features=FEATURES,
                epsilon_nano=epsilon_nano,
                keep_reports=keep_reports,
                now=self.now,
                **given,
            )

    def submit(self, within: Dataset, *, epsilon_nano: int = NANO, **other: Any) -> Job:
        """Queue a job that declares this epsilon."""
        with self.database.transaction() as session:
            return submit(session, self.caller, within, epsilon_nano=epsilon_nano, now=self.now, **other)

    def claim(self, *, max_attempts: int = 5) -> Claim | None:
        """Claim whatever needs a worker."""
        with self.database.transaction() as session:
            return job.claim(session, now=self.now, lease_microseconds=LEASE, max_attempts=max_attempts)

    def claimed(self) -> Claim:
        """Claim, and insist."""
        held = self.claim()
        assert held is not None
        return held

    def open_for(self, held: Claim, *, suspend: bool = True, **spec_parts: Any) -> Round:
        """As the runner does: post and publish the job's next round, let the job wait."""
        collect = spec_parts.pop("collect", Collect(100, 1, 3600))
        with self.database.transaction() as session:
            found = job.held_job(session, held)
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
                job.suspend(session, held, now=self.now)
        return opened

    def open_standalone(self, within: Dataset, **other: Any) -> Round:
        """A collection of one round."""
        collect = other.pop("collect", Collect(100, 1, 3600))
        max_open_rounds = other.pop("max_open_rounds", 16)
        with self.database.transaction() as session:
            return rounds.open_standalone(
                session,
                self.caller,
                within,
                spec(**other),
                collect,
                max_open_rounds=max_open_rounds,
                now=self.now,
            )

    def receive(self, round_id: str, n_reports: int = 1, packed: bytes | None = None) -> rounds.Received:
        """A group commit of one round."""
        with self.database.transaction() as session:
            return rounds.receive(
                session, round_id, n_reports, b"r" * n_reports if packed is None else packed, now=self.now
            )

    def close(self, round_id: str) -> Round:
        """Close by hand."""
        with self.database.transaction() as session:
            return rounds.close(session, self.caller, round_id, now=self.now)

    def job(self, job_id: str) -> Job:
        """A job as it is now."""
        with self.database.reading() as session:
            return session.get_one(Job, job_id)

    def round(self, round_id: str) -> Round:
        """A round as it is now."""
        with self.database.reading() as session:
            return session.get_one(Round, round_id)

    def log(self, round_id: str) -> list[bytes]:
        """The packed rows a round still has."""
        with self.database.reading() as session:
            return [packed for _, packed in report.batches(session, round_id)]

    def n_logged(self, round_id: str) -> int:
        """Reports a round's log still holds."""
        with self.database.reading() as session:
            return report.count(session, round_id)

    def balance(self, dataset_id: str) -> Balance:
        """What was granted, reserved, posted."""
        with self.database.reading() as session:
            return ledger.balance(session, dataset_id)

    def chain(self, dataset_id: str) -> list[tuple[str, int, str]]:
        """The ledger: kind, amount, reference."""
        with self.database.reading() as session:
            entries = ledger.page(session, dataset_id, after_seq=0, limit=1000)
            return [(entry.kind, entry.epsilon_nano, entry.reference) for entry in entries]


def spec(*, epsilon_nano: int = NANO, lo: float = 0.0, hi: float = 1.0, kind: str = "grr") -> RoundSpec:
    """A round over a 2 x 2 grid for the devices with a draw in [lo, hi)."""
    return RoundSpec(FEATURES, GridEncoding((2, 2)), mechanisms.design(kind, 4, epsilon_nano), Draw.between(lo, hi))


def cost_of(published: RoundSpec) -> int:
    """What one answer to it costs."""
    return mechanisms.epsilon_nano(published.mechanism)


def submit(session: Session, caller: Caller, within: Dataset, *, epsilon_nano: int, now: int, **other: Any) -> Job:
    """Queue a job in this session."""
    given: dict[str, Any] = {"collect": Collect(100, 1, 3600), "max_active_jobs": 1000, **other}
    return job.submit(session, caller, within, algorithm=ALGORITHM, epsilon_nano=epsilon_nano, now=now, **given)


def succeed(session: Session, held: Claim, document: dict[str, Any] = DOCUMENT) -> None:
    """Publish a result, in this session."""
    job.succeed(session, held, document, software_version="1.2.3", now=NOW + 9)


def cancel(world: World, job_id: str) -> Job:
    """Cancel as the job's tenant."""
    with world.database.transaction() as session:
        return job.cancel(session, world.caller, job_id, now=world.now)


def document_of(world: World, job_id: str) -> dict[str, Any]:
    """A job's stored result."""
    with world.database.reading() as session:
        return result.get(session, job_id).document


def charge(
    session: Session, dataset_id: str, kind: str, amount: int, reference: str, job_id: str | None, delta: int = 0
) -> Any:
    """An entry of this kind, None for a release of nothing."""
    given: dict[str, Any] = {"actor": "key_test", "now": NOW}
    if kind == "release":
        return ledger.release(session, dataset_id, job_id=reference, **given)
    given["delta_atto"] = delta
    if kind == "grant":
        return ledger.grant(session, dataset_id, amount, reference=reference, **given)
    if kind == "reserve":
        return ledger.reserve(session, dataset_id, amount, job_id=reference, **given)
    return ledger.post(session, dataset_id, amount, reference=reference, reservation=job_id, **given)


def spend_all(database: Database, dataset_id: str, who: str) -> int:
    """Post one after the other until the budget is exhausted; how many went through."""
    for i in itertools.count():
        try:
            with database.transaction() as session:
                charge(session, dataset_id, "post", 1, f"{who}_{i}", None)
        except BudgetExhausted:
            return i
    raise AssertionError


# ---- threads that meet ----


class Thread(threading.Thread):
    """A thread whose outcome is kept: `.outcome()` joins, and returns or raises."""

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
        """What the call returned; raises what it raised."""
        self.join(seconds)
        assert not self.is_alive(), "still waiting for somebody"
        if self._error is not None:
            raise self._error
        return self._result


def together(calls: list[Callable[[], Any]]) -> list[Any]:
    """Run the calls at once, each in a thread; for each what it returned, or the exception it raised."""
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
    """Return as soon as this many PostgreSQL transactions wait for somebody's lock."""
    query = text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with database.engine.connect() as connection:
            if connection.execute(query).scalar_one() >= n_waiting:
                return
        time.sleep(0.01)
    raise AssertionError("nobody waits")


@contextmanager
def rolled_back(database: Database) -> Iterator[Session]:
    """A transaction that comes to nothing."""

    class _Undo(Exception):
        pass

    try:
        with database.transaction() as session:
            yield session
            raise _Undo
    except _Undo:
        pass
