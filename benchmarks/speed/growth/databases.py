"""Growth of databases: thousands of datasets, keys, jobs and rounds, and a ledger of a million entries.

Rows are inserted in bulk, as copies of rows of the service. No query here verifies the hashes of the copied ledger.
Every timed operation is a transaction of the service.
"""

import hashlib
import re
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, count
from pathlib import Path
from statistics import median
from typing import Any

from sqlalchemy import Table, case, event, func, insert, inspect, select, text
from sqlalchemy.orm import Session

from benchmarks.speed.growth.axis import Axis, Point
from benchmarks.speed.harness.measurement import Measurement, Setting, seconds
from benchmarks.speed.harness.report_log import new_caller, new_dataset
from devservers.servers import PostgresServer, postgres_installations
from models import datasets
from models.collection import rounds
from models.database.engine import Database
from models.database.schema import migrate
from models.database.types import SECOND, Base, new_id, system_clock
from models.identity import keys as tenant
from models.identity.caller import Caller
from models.jobs import claims, jobs, lifecycle
from models.ledger import ledger
from models.tables.datasets import Dataset
from models.tables.identity import Key, Scope
from models.tables.jobs import Job, JobState
from models.tables.ledger import Kind, LedgerEntry, LedgerHead, LedgerReservation
from models.tables.rounds import CollectionTarget, Round, RoundState
from sfumato import mechanisms
from sfumato.privacy.accounting import NANO
from sfumato.privacy.ledger import GENESIS_HASH
from sfumato.specs import Feature, GridEncoding, Participation, RoundSpec

FEATURES = (Feature("x", 0.0, 1.0), Feature("y", 0.0, 1.0))
SPEC = RoundSpec(FEATURES, GridEncoding((2, 2)), mechanisms.design("grr", 4, NANO), Participation.between(0.0, 1.0))
FLAT = 0.2  # largest exponent of a lookup by index
TIMES = 21  # repetitions of each small transaction; the median counts
MANY = 10_000  # rows inserted at once
N_UNFINISHED = 20  # queued jobs, independent of the number of finished ones

INDEXED = "an index finds the rows"
SUMMED = "the sum of a reservation's entries"
LARGE_ROWS = 500  # scans of smaller tables are ignored, because they are faster than an index

_SQLITE_SCAN = re.compile(r"^SCAN (?!CONSTANT ROW)(\w+)(?! USING (COVERING )?INDEX)")
_POSTGRES_SCAN = re.compile(r"Seq Scan on (\w+)")


def open_databases(setting: Setting) -> Iterator["GrowingDatabase"]:
    """Yield SQLite, and PostgreSQL if it is installed."""
    with ExitStack() as resources:
        folder = resources.enter_context(tempfile.TemporaryDirectory(prefix="sfumato-growth-"))
        urls = {"SQLite": f"sqlite:///{Path(folder) / 'growth.db'}"}
        if postgres_installations():
            server = PostgresServer()
            server.start()
            resources.callback(server.stop)
            urls["PostgreSQL"] = server.url()
        for name, url in urls.items():
            migrate(url)
            opened = Database(url)
            resources.callback(opened.close)
            yield GrowingDatabase(name, opened, setting)


@dataclass
class GrowingDatabase:
    """A database that grows step by step, and the operations that are timed at each step."""

    name: str
    database: Database
    setting: Setting
    caller: Caller = field(init=False)
    templates: dict[type[Base], dict[str, Any]] = field(init=False)
    hashes: list[bytes] = field(init=False, default_factory=list)
    dataset_ids: list[str] = field(init=False, default_factory=list)
    round_ids: list[str] = field(init=False, default_factory=list)
    numbers: Iterator[int] = field(init=False, default_factory=count)

    def __post_init__(self) -> None:
        now = system_clock()
        with self.database.transaction() as session:
            self.caller = new_caller(session, now)
        self._rolled_back(partial(self._make_templates, now))

    def _make_templates(self, now: int, session: Session) -> None:
        """Store the columns of a dataset, a key, a round and a job, as the service writes them."""
        dataset = new_dataset(session, self.caller, FEATURES, now)
        key, _ = tenant.create_key(session, self.caller.tenant_id, name="device", scopes=[Scope.DEVICE], now=now)
        target = CollectionTarget(10**9, 1, 10**6)
        opened = rounds.open_standalone(session, self.caller, dataset, SPEC, target, max_open_rounds=1, now=now)
        job = lifecycle.submit(
            session,
            self.caller,
            dataset,
            algorithm={"type": "uniform_grid", "epsilon": 1},
            epsilon_nano=NANO,
            collect=CollectionTarget(100, 1, 3600),
            max_active_jobs=1,
            now=now,
        )
        session.flush()
        self.templates = {type(row): _columns_of(row) for row in (dataset, key, opened, job)}

    def _clone(self, table: type[Base], prefix: str, **changes: Any) -> dict[str, Any]:
        return self.templates[table] | {"id": new_id(prefix)} | changes

    def axes(self) -> Iterator[tuple[Axis, list[Point]]]:
        """Yield axes with their points."""
        yield from self._among_datasets()
        yield from self._along_a_ledger()
        yield self._along_a_job()

    def _among_datasets(self) -> Iterator[tuple[Axis, list[Point]]]:
        sizes = (100, 1_000) if self.setting.quick else (100, 1_000, 10_000)
        why = f"{INDEXED}; per dataset a finished job, two rounds and a key; {N_UNFINISHED} jobs are queued"
        yield from self._grown(sizes, self.fill, self.operations, Axis("", "datasets", sizes, FLAT, why))

    def _grown(
        self,
        sizes: Sequence[int],
        grow: Callable[[int], None],
        works: Callable[[], dict[str, Callable[[], object]]],
        axis: Axis,
    ) -> Iterator[tuple[Axis, list[Point]]]:
        """Grow to each size and time all works there; the first axis has the sizes of the database too."""
        points: dict[str, list[Point]] = {}
        for size in sizes:
            grow(size)
            for number, (name, work) in enumerate(works().items()):
                n_bytes = self.n_bytes() if number == 0 else 0
                label = f"{self.name}: {name}"
                points.setdefault(label, []).append(Point(label, size, self._median_seconds(work), 0, n_bytes))
        for label, found in points.items():
            yield replace(axis, name=label), found

    # ---- datasets ----

    def fill(self, n_datasets: int) -> None:
        """Insert datasets with their rounds, jobs and keys until there are `n_datasets`."""
        new = [self._clone(Dataset, "ds", name=f"d{number}") for number in range(n_datasets - len(self.dataset_ids))]
        ids = [each["id"] for each in new]
        secrets = [hashlib.sha256(b"key %d" % next(self.numbers)).digest() for _ in ids]
        n_waiting = 0 if self.dataset_ids else N_UNFINISHED
        new_jobs = [self._clone(Job, "job", dataset_id=ids[0], state=JobState.QUEUED.value) for _ in range(n_waiting)]
        new_jobs += [self._clone(Job, "job", dataset_id=each, state=JobState.SUCCEEDED.value) for each in ids]
        new_rounds = {
            state: [self._clone(Round, "rnd", dataset_id=each, state=state.value) for each in ids]
            for state in (RoundState.OPEN, RoundState.TALLIED)
        }
        for each in chain.from_iterable(new_rounds.values()):
            each["collection_id"] = each["id"]
        with self.database.transaction() as session:
            _put(session, Dataset, new)
            _put(session, LedgerHead, [{"dataset_id": each, "seq": 0, "hash": GENESIS_HASH} for each in ids])
            _put(session, Job, new_jobs)
            _put(session, Round, [*chain.from_iterable(new_rounds.values())])
            _put(session, Key, [self._clone(Key, "key", secret_hash=secret) for secret in secrets])
        self.dataset_ids += ids
        self.round_ids += [each["id"] for each in new_rounds[RoundState.OPEN]]
        self.hashes += secrets
        self._checkpoint()

    def operations(self) -> dict[str, Callable[[], object]]:
        """Return the frequent operations by name; each is a transaction of its own."""
        now = system_clock()
        middle = len(self.dataset_ids) // 2
        own, of_round, secret = self.dataset_ids[middle], self.round_ids[middle], self.hashes[middle]
        read, write = self._read, self._rolled_back
        return {
            "key lookup": lambda: read(lambda s: tenant.authenticate(s, secret, now=now)),
            "open rounds of a dataset": lambda: read(lambda s: rounds.list_open(s, own, now=now)),
            "a page of datasets": lambda: read(lambda s: datasets.page(s, self.caller, after=own, limit=50)),
            "a page of jobs": lambda: read(
                lambda s: jobs.page(s, self.caller, dataset_id=None, after="job_0", limit=50)
            ),
            "a dataset's rounds": lambda: read(lambda s: rounds.page(s, own, after="", limit=50)),
            "a dataset's jobs": lambda: read(lambda s: jobs.page(s, self.caller, dataset_id=own, after="", limit=50)),
            "is any job waiting": lambda: read(lambda s: claims.is_any_waiting(s, now=now)),
            "claim": lambda: write(lambda s: claims.claim(s, now=now, lease_microseconds=SECOND, max_attempts=3)),
            "rounds past their time": lambda: write(lambda s: rounds.close_due(s, now=now)),
            "a group commit": lambda: write(lambda s: rounds.receive(s, of_round, 1, b"r", now=now)),
        }

    # ---- the ledger ----

    def _along_a_ledger(self) -> Iterator[tuple[Axis, list[Point]]]:
        sizes = (100, 1_000, 10_000) if self.setting.quick else (100, 1_000, 10_000, 100_000, 1_000_000)
        own = self._dataset_with_grant("a long ledger")
        works: dict[str, Callable[[], object]] = {
            "ledger.charge from what is free": lambda: self._rolled_back(partial(self._charge, own, None)),
            "ledger.charge from a reservation": lambda: self._rolled_back(partial(self._charge, own, "job_long")),
            "ledger.balance": lambda: self._read(lambda s: ledger.balance(s, own)),
            "a page of the ledger": lambda: self._read(lambda s: ledger.page(s, own, after_seq=50, limit=50)),
            SUMMED: lambda: self._read(partial(_sum_of_entries, own)),
        }
        why = "the last entry has the balance, and a row of its own the remainder of a reservation"
        axis = Axis("", "entries", sizes, FLAT, why)
        for each, found in self._grown(sizes, partial(self._extend, own), lambda: works, axis):
            is_sum = each.name.endswith(SUMMED)
            yield replace(each, bar=None, why="an addition per entry, for comparison") if is_sum else each, found

    def _dataset_with_grant(self, name: str) -> str:
        """Create a dataset with a grant and the reservation of one job; return its id."""
        now = system_clock()
        with self.database.transaction() as session:
            dataset = new_dataset(session, self.caller, FEATURES, now, name=name, epsilon_nano=10**6 * NANO)
            ledger.reserve(session, dataset.id, 10**5 * NANO, job_id="job_long", actor=self.caller.key_id, now=now)
        return dataset.id

    def _charge(self, dataset_id: str, reservation: str | None, session: Session) -> object:
        return ledger.charge(
            session,
            dataset_id,
            1,
            reference=f"draw_{next(self.numbers)}",
            reservation=reservation,
            actor=self.caller.key_id,
            now=system_clock(),
        )

    def _extend(self, dataset_id: str, size: int) -> None:
        """Insert charges of one nano-epsilon under the reservation of the job until the ledger has `size` entries."""
        with self.database.reading() as session:
            entries = ledger.page(session, dataset_id, after_seq=ledger.head(session, dataset_id).seq - 1, limit=1)
        (last,) = entries
        columns = _columns_of(last) | {"kind": Kind.CHARGE.value, "epsilon_nano": 1, "reservation": "job_long"}
        for begin in range(last.seq + 1, size + 1, MANY):
            numbers = range(begin, min(begin + MANY, size + 1))
            rows = [columns | _charge_entry(last, number) for number in numbers]
            with self.database.transaction() as session:
                _put(session, LedgerEntry, rows)
                end = session.get_one(LedgerHead, dataset_id)
                end.seq, end.hash = rows[-1]["seq"], rows[-1]["hash"]
                reservation = session.get_one(LedgerReservation, (dataset_id, "job_long"))
                reservation.epsilon_nano -= len(rows)
        self._checkpoint()

    # ---- rounds of a job ----

    def _along_a_job(self) -> tuple[Axis, list[Point]]:
        """Measure the rounds of a job, each opened and closed before the next."""
        sizes = (1, 2, 4, 8, 16, 32)
        label = f"{self.name}: rounds of one job opened and closed"
        points = [
            Point(label, size, median(self._seconds_of_rounds(size) for _ in range(self.setting.turns)))
            for size in sizes
        ]
        why = "a transaction per round; each reads the earlier rounds of the job, at most 32"
        return Axis(label, "rounds", sizes, 1.1, why), points

    def _seconds_of_rounds(self, n_rounds: int) -> float:
        dataset_id = self._dataset_with_grant("rounds")

        def work() -> None:
            for index in range(n_rounds):
                now = system_clock()
                share = Participation.between(index / n_rounds, (index + 1) / n_rounds)
                spec = RoundSpec(FEATURES, SPEC.encoding, SPEC.mechanism, share)
                with self.database.transaction() as session:
                    opened = rounds.open_for_job(
                        session,
                        session.get_one(Dataset, dataset_id),
                        spec,
                        CollectionTarget(100, 1, 3600),
                        job_id="job_long",
                        actor=self.caller.key_id,
                        now=now,
                    )
                with self.database.transaction() as session:
                    rounds.close(session, self.caller, opened.id, now=now)

        took = seconds(work)
        with self.database.transaction() as session:  # the next measurement starts without rounds
            session.execute(text("UPDATE rounds SET job_id = NULL WHERE job_id = 'job_long'"))
        return took

    # ---- all of them ----

    def plans(self) -> Measurement:
        """Return the row with the number of frequent statements that scan no large table."""
        with recorded_statements(self.database) as seen:
            for work in self.operations().values():
                work()
        scans = full_scans(self.database, seen)
        n_seen = len(seen)
        share = 1 - len(scans) / n_seen
        note = "EXPLAIN of every statement of key lookup, open rounds, pages and claims"
        name = f"plans: {self.name}: frequent statements without a scan of a large table"
        figures = (float(n_seen - len(scans)), float(n_seen), share, share, share)
        return Measurement(name, f"all {n_seen}", "", *figures, 1.0, 1, "; ".join([note, *scans]))

    def n_bytes(self) -> int:
        """Return the size of the database."""
        with self.database.reading() as session:
            if self.database.is_sqlite:
                pages = session.execute(text("PRAGMA page_count")).scalar_one()
                return int(pages) * int(session.execute(text("PRAGMA page_size")).scalar_one())
            return int(session.execute(text("SELECT pg_database_size(current_database())")).scalar_one())

    def _median_seconds(self, work: Callable[[], object]) -> float:
        """Return the median time. The garbage collector does not run first, because it takes longer than the work."""
        work()
        took = []
        for _ in range(TIMES):
            began = time.perf_counter()
            work()
            took.append(time.perf_counter() - began)
        return median(took)

    def _read(self, work: Callable[[Session], object]) -> None:
        with self.database.reading() as session:
            work(session)

    def _rolled_back(self, work: Callable[[Session], object]) -> None:
        """Run a transaction without its commit, so that the next one finds the same state."""
        with Session(self.database.engine, expire_on_commit=False) as session, session.begin() as transaction:
            work(session)
            transaction.rollback()

    def _checkpoint(self) -> None:
        """Update statistics in PostgreSQL, or checkpoint the log of SQLite, as a database does over time."""
        if self.database.is_sqlite:
            with closing(sqlite3.connect(self.database.engine.url.database or "")) as log:
                log.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            return
        with self.database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("ANALYZE")


def _put(session: Session, table: type[Base], values: Sequence[dict[str, Any]]) -> None:
    own = table.__table__
    assert isinstance(own, Table)
    for begin in range(0, len(values), MANY):
        session.execute(insert(own), values[begin : begin + MANY])


def _columns_of(row: Base) -> dict[str, Any]:
    """Return the columns of a row that have a value, by their names."""
    columns = {each.columns[0].name: getattr(row, each.key) for each in inspect(type(row)).column_attrs}
    return {name: value for name, value in columns.items() if value is not None}


def _sum_of_entries(dataset_id: str, session: Session) -> object:
    """Return the remainder of a reservation as the sum of its entries, for comparison."""
    sign = case((LedgerEntry.kind == Kind.RESERVE.value, 1), else_=-1)
    query = select(func.sum(sign * LedgerEntry.epsilon_nano), func.sum(sign * LedgerEntry.delta_atto))
    return session.execute(
        query.where(LedgerEntry.dataset_id == dataset_id, LedgerEntry.reservation == "job_long")
    ).one()


def _charge_entry(last: LedgerEntry, number: int) -> dict[str, Any]:
    n_more = number - last.seq
    return {
        "id": new_id("led"),
        "seq": number,
        "reference": f"job_long#{number}",
        "reserved_nano": last.reserved_nano - n_more,
        "charged_nano": last.charged_nano + n_more,
        "prev_hash": hashlib.sha256(b"%d" % (number - 1)).hexdigest(),
        "hash": hashlib.sha256(b"%d" % number).hexdigest(),
    }


# ---- query plans ----


@contextmanager
def recorded_statements(database: Database) -> Iterator[dict[str, Any]]:
    """Record every distinct SELECT, UPDATE and DELETE that a database executes, with its values."""
    seen: dict[str, Any] = {}

    def record(_connection: Any, _cursor: Any, statement: str, values: Any, _context: Any, many: bool) -> None:
        if not many and statement.split(maxsplit=1)[0] in ("SELECT", "UPDATE", "DELETE", "WITH"):
            seen.setdefault(statement, values)

    event.listen(database.engine, "before_cursor_execute", record)
    try:
        yield seen
    finally:
        event.remove(database.engine, "before_cursor_execute", record)


def full_scans(database: Database, statements: dict[str, Any]) -> list[str]:
    """Return the name of each large table that is scanned, with the start of the statement."""
    found = []
    prefix = "EXPLAIN QUERY PLAN " if database.is_sqlite else "EXPLAIN "
    pattern = _SQLITE_SCAN if database.is_sqlite else _POSTGRES_SCAN
    with database.engine.connect() as connection:
        for statement, values in statements.items():
            lines = [str(row[-1]) for row in connection.exec_driver_sql(prefix + statement, values)]
            for table in {match[1] for line in lines if (match := pattern.search(line))}:
                if _n_rows(connection, table) >= LARGE_ROWS:
                    found.append(f"{table}: {' '.join(statement.split())[:80]}")
        connection.rollback()
    return sorted(found)


def _n_rows(connection: Any, table: str) -> int:
    try:
        return int(connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one())  # noqa: S608 - a name from a query plan
    except Exception:  # an alias or the name of a subquery counts as a large table
        connection.rollback()
        return LARGE_ROWS
