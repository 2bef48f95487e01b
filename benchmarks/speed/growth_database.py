"""Axes of `growth` over databases: datasets, keys, jobs and rounds by the thousand, a ledger of a million entries.

Rows are put in by the thousand, as the service would have left them but for the ledger's hashes, which nobody walks
here; what is timed is what the service does, a transaction each.
"""

import hashlib
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

from sqlalchemy import Table, case, func, insert, select, text
from sqlalchemy.orm import Session

from benchmarks.speed import growth_filling as filling
from benchmarks.speed.growth_axis import Axis, Point
from benchmarks.speed.growth_plans import Statements, full_scans
from benchmarks.speed.row import Row, Setting, seconds
from demo.servers import PostgresServer, postgres_installations
from models import dataset, job, ledger, tenant
from models import round as rounds
from models.dataset import Dataset, Trust
from models.db import SECOND, Base, Database, migrate, new_id, system_clock
from models.job import Job, JobState
from models.ledger import Kind, LedgerEntry, LedgerHead
from models.ledger_hold import LedgerHold
from models.round import Collect, Round, RoundState
from models.tenant import Caller, Key, Scope
from sfumato.accounting import NANO
from sfumato.specs import Draw, RoundSpec

GROUP = "growth"
FLAT = 0.2  # an exponent of what looks up one row among many
TIMES = 21  # of each small transaction; the median counts
MANY = 10_000  # rows put in at once
N_UNFINISHED = 20  # jobs that wait, however many have ended

INDEXED = "an index leads to what is asked for"


def databases(setting: Setting) -> Iterator["Grown"]:
    """SQLite, and PostgreSQL where it is installed."""
    with ExitStack() as held:
        folder = held.enter_context(tempfile.TemporaryDirectory(prefix="sfumato-growth-"))
        urls = {"SQLite": f"sqlite:///{Path(folder) / 'growth.db'}"}
        if postgres_installations():
            server = PostgresServer()
            server.start()
            held.callback(server.stop)
            urls["PostgreSQL"] = server.url()
        for name, url in urls.items():
            migrate(url)
            opened = Database(url)
            held.callback(opened.close)
            yield Grown(name, opened, setting)


@dataclass
class Grown:
    """A database that is filled further and further, and what is timed in between."""

    name: str
    database: Database
    setting: Setting
    caller: Caller = field(init=False)
    hashes: list[bytes] = field(init=False, default_factory=list)
    dataset_ids: list[str] = field(init=False, default_factory=list)
    round_ids: list[str] = field(init=False, default_factory=list)
    numbers: Iterator[int] = field(init=False, default_factory=count)

    def __post_init__(self) -> None:
        now = system_clock()
        with self.database.transaction() as session:
            owner = tenant.get_or_create_tenant(session, "growth", now=now)
            _, secret = tenant.create_key(session, owner.id, name="first", scopes=[Scope.ADMIN], now=now)
            found = tenant.authenticate(session, tenant.hash_secret(secret), now=now)
        assert found is not None
        self.caller = found

    # ---- datasets ----

    def grown(self) -> Iterator[tuple[Axis, list[Point]]]:
        """Axes with their points."""
        yield from self._among_datasets()
        yield from self._along_a_ledger()
        yield self._along_a_job()

    def _among_datasets(self) -> Iterator[tuple[Axis, list[Point]]]:
        sizes = (100, 1_000) if self.setting.quick else (100, 1_000, 10_000)
        points: dict[str, list[Point]] = {}
        for size in sizes:
            self.fill(size)
            for name, work in self.operations().items():
                label = f"{self.name}: {name}"
                took = self._took(work)
                points.setdefault(label, []).append(Point(label, size, took, 0, self.n_bytes()))
        for label, found in points.items():
            why = f"{INDEXED}; a finished job, an open and a tallied round and a key each, {N_UNFINISHED} jobs wait"
            kept = found if label.endswith("key lookup") else [Point(p.axis, p.size, p.seconds) for p in found]
            yield Axis(label, "datasets", sizes, _nothing, FLAT, why), kept

    def fill(self, n_datasets: int) -> None:
        """As many datasets as this, with their rounds, jobs and keys."""
        missing = n_datasets - len(self.dataset_ids)
        made = [filling.dataset(self.caller, number) for number in range(missing)]
        waiting = [
            filling.job(self.caller, made[0]["id"], JobState.QUEUED)
            for _ in range(N_UNFINISHED if not self.dataset_ids else 0)
        ]
        keys = [filling.key(self.caller, next(self.numbers)) for _ in made]
        open_rounds = [filling.round(each["id"], RoundState.OPEN) for each in made]
        with self.database.transaction() as session:
            _put(session, Dataset, made)
            _put(session, LedgerHead, [{"dataset_id": e["id"], "seq": 0, "hash": ledger.GENESIS_HASH} for e in made])
            _put(session, Job, [filling.job(self.caller, each["id"], JobState.SUCCEEDED) for each in made] + waiting)
            _put(session, Round, open_rounds + [filling.round(each["id"], RoundState.TALLIED) for each in made])
            _put(session, Key, keys)
        self.dataset_ids += [each["id"] for each in made]
        self.round_ids += [each["id"] for each in open_rounds]
        self.hashes += [each["secret_hash"] for each in keys]
        self._settle()

    def operations(self) -> dict[str, Callable[[], object]]:
        """What is asked for again and again, by name: each a transaction of its own."""
        now = system_clock()
        middle = len(self.dataset_ids) // 2
        own, of_round, secret = self.dataset_ids[middle], self.round_ids[middle], self.hashes[middle]
        read, write = self._read, self._undone
        return {
            "key lookup": lambda: read(lambda s: tenant.authenticate(s, secret, now=now)),
            "open rounds of a dataset": lambda: read(lambda s: rounds.open_rounds(s, own, now=now)),
            "a page of datasets": lambda: read(lambda s: dataset.page(s, self.caller, after=own, limit=50)),
            "a page of jobs": lambda: read(
                lambda s: job.page(s, self.caller, dataset_id=None, after="job_0", limit=50)
            ),
            "a dataset's rounds": lambda: read(lambda s: rounds.page(s, own, after="", limit=50)),
            "a dataset's jobs": lambda: read(lambda s: job.page(s, self.caller, dataset_id=own, after="", limit=50)),
            "is any job waiting": lambda: read(lambda s: job.is_any_waiting(s, now=now)),
            "claim": lambda: write(lambda s: job.claim(s, now=now, lease_microseconds=SECOND, max_attempts=3)),
            "rounds past their time": lambda: write(lambda s: rounds.close_due(s, now=now)),
            "a group commit": lambda: write(lambda s: rounds.receive(s, of_round, 1, b"r", now=now)),
        }

    # ---- the ledger ----

    def _along_a_ledger(self) -> Iterator[tuple[Axis, list[Point]]]:
        sizes = (100, 1_000, 10_000) if self.setting.quick else (100, 1_000, 10_000, 100_000, 1_000_000)
        book = self._book("a long ledger")
        works: dict[str, Callable[[], object]] = {
            "ledger.post from what is free": lambda: self._undone(partial(self._post, book, None)),
            "ledger.post from a reservation": lambda: self._undone(partial(self._post, book, "job_long")),
            "ledger.balance": lambda: self._read(lambda s: ledger.balance(s, book)),
            "a page of the ledger": lambda: self._read(lambda s: ledger.page(s, book, after_seq=50, limit=50)),
        }
        points: dict[str, list[Point]] = {}
        before: list[tuple[int, float]] = []
        for size in sizes:
            self._lengthen(book, size)
            for name, work in works.items():
                label = f"{self.name}: {name}"
                points.setdefault(label, []).append(Point(label, size, self._took(work), 0, self.n_bytes()))
            before.append((size, self._took(lambda: self._read(partial(_added_up, book)), 5)))
        for label, found in points.items():
            is_first = label.endswith("is free")
            kept = found if is_first else [Point(p.axis, p.size, p.seconds) for p in found]
            why = "the last entry has the balance, and a row of its own what a reservation still holds"
            yield Axis(label, "entries", sizes, _nothing, FLAT, why), kept
        label = f"{self.name}: before: a reservation added up"
        yield (
            Axis(
                label, "entries", sizes, _nothing, None, "what each post from a reservation did: all its entries read"
            ),
            [Point(label, size, took) for size, took in before],
        )

    def _book(self, name: str) -> str:
        """A dataset with a grant and one job's reservation."""
        now = system_clock()
        with self.database.transaction() as session:
            made = dataset.create(
                session,
                self.caller,
                name=name,
                trust=Trust.LOCAL,
                features=filling.FEATURES,
                epsilon_nano=10**6 * NANO,
                min_reports=1,
                keep_reports=False,
                max_datasets=10**6,
                now=now,
            )
            ledger.reserve(session, made.id, 10**5 * NANO, job_id="job_long", actor=self.caller.key_id, now=now)
        return made.id

    def _post(self, book: str, reservation: str | None, session: Session) -> object:
        return ledger.post(
            session,
            book,
            1,
            reference=f"draw_{next(self.numbers)}",
            reservation=reservation,
            actor=self.caller.key_id,
            now=system_clock(),
        )

    def _lengthen(self, book: str, size: int) -> None:
        """Posts of one nano-epsilon each under the job's reservation, until there are so many entries."""
        with self.database.reading() as session:
            entries = ledger.page(session, book, after_seq=ledger.head(session, book).seq - 1, limit=1)
        (last,) = entries
        columns = {column.key: getattr(last, column.key) for column in LedgerEntry.__table__.columns}
        columns |= {"kind": Kind.POST.value, "epsilon_nano": 1, "reservation": "job_long"}
        for begin in range(last.seq + 1, size + 1, MANY):
            numbers = range(begin, min(begin + MANY, size + 1))
            rows = [columns | _posted(last, number) for number in numbers]
            with self.database.transaction() as session:
                _put(session, LedgerEntry, rows)
                end = session.get_one(LedgerHead, book)
                end.seq, end.hash = rows[-1]["seq"], rows[-1]["hash"]
                held = session.get_one(LedgerHold, (book, "job_long"))
                held.epsilon_nano -= len(rows)
                held.seq = rows[-1]["seq"]
        self._settle()

    # ---- rounds of a job ----

    def _along_a_job(self) -> tuple[Axis, list[Point]]:
        """A plan's rounds, each opened by the runner and tallied before the next."""
        sizes = (1, 2, 4, 8, 16, 32)
        label = f"{self.name}: rounds of one job opened and closed"
        points = [Point(label, size, median(self._job_of(size) for _ in range(self.setting.turns))) for size in sizes]
        why = "a transaction a round; each looks at the job's earlier ones, of which there are 32 at most"
        return Axis(label, "rounds", sizes, _nothing, 1.1, why), points

    def _job_of(self, n_rounds: int) -> float:
        book = self._book("rounds")

        def work() -> None:
            for index in range(n_rounds):
                now = system_clock()
                share = Draw.between(index / n_rounds, (index + 1) / n_rounds)
                spec = RoundSpec(filling.FEATURES, filling.SPEC.encoding, filling.SPEC.mechanism, share)
                with self.database.transaction() as session:
                    opened = rounds.open_for_job(
                        session,
                        session.get_one(Dataset, book),
                        spec,
                        Collect(100, 1, 3600),
                        job_id="job_long",
                        actor=self.caller.key_id,
                        now=now,
                    )
                with self.database.transaction() as session:
                    rounds.close(session, self.caller, opened.id, now=now)

        took = seconds(work)
        with self.database.transaction() as session:  # the next one has no rounds before it
            session.execute(text("UPDATE rounds SET job_id = NULL WHERE job_id = 'job_long'"))
        return took

    # ---- all of them ----

    def plans(self) -> Row:
        """How many of the hot statements read a table from end to end."""
        with Statements(self.database) as heard:
            for work in self.operations().values():
                work()
        scans = full_scans(self.database, heard.seen)
        n_seen = len(heard.seen)
        share = 1 - len(scans) / n_seen
        note = "EXPLAIN of every statement of key lookup, open rounds, pages, claims and group commits"
        return Row(
            GROUP,
            f"plans: {self.name}: hot statements that read no large table from end to end",
            f"all {n_seen}",
            "",
            float(n_seen - len(scans)),
            float(n_seen),
            share,
            share,
            share,
            1.0,
            1,
            "; ".join([note, *scans]),
        )

    def n_bytes(self) -> int:
        """Of the whole database."""
        with self.database.reading() as session:
            if self.database.is_sqlite:
                pages = session.execute(text("PRAGMA page_count")).scalar_one()
                return int(pages) * int(session.execute(text("PRAGMA page_size")).scalar_one())
            return int(session.execute(text("SELECT pg_database_size(current_database())")).scalar_one())

    def _took(self, work: Callable[[], object], times: int = TIMES) -> float:
        """Median. The collector is not asked to work first: that takes longer than what is timed."""
        work()
        took = []
        for _ in range(times):
            began = time.perf_counter()
            work()
            took.append(time.perf_counter() - began)
        return median(took)

    def _read(self, work: Callable[[Session], object]) -> None:
        with self.database.reading() as session:
            work(session)

    def _undone(self, work: Callable[[Session], object]) -> None:
        """All of a transaction but its commit, so that the next one finds what this one found."""
        with Session(self.database.engine, expire_on_commit=False) as session, session.begin() as begun:
            work(session)
            begun.rollback()

    def _settle(self) -> None:
        """What a database does by itself in time: statistics, and SQLite's log emptied."""
        if self.database.is_sqlite:
            with closing(sqlite3.connect(self.database.engine.url.database or "")) as log:
                log.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            return
        with self.database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("ANALYZE")


def _nothing(_: int) -> Callable[[], object]:
    raise AssertionError("points of a database are measured as it is filled")


def _put(session: Session, table: type[Base], values: Sequence[dict[str, Any]]) -> None:
    own = table.__table__
    assert isinstance(own, Table)
    for begin in range(0, len(values), MANY):
        session.execute(insert(own), [_by_column(own, each) for each in values[begin : begin + MANY]])


def _by_column(table: Table, values: dict[str, Any]) -> dict[str, Any]:
    return {column.name: values[column.key] for column in table.columns if column.key in values}


def _added_up(book: str, session: Session) -> object:
    """A reservation's rest as it was found before: by all of its entries."""
    sign = case((LedgerEntry.kind == Kind.RESERVE.value, 1), else_=-1)
    query = select(func.sum(sign * LedgerEntry.epsilon_nano), func.sum(sign * LedgerEntry.delta_atto))
    return session.execute(query.where(LedgerEntry.dataset_id == book, LedgerEntry.reservation == "job_long")).one()


def _posted(last: LedgerEntry, number: int) -> dict[str, Any]:
    n_more = number - last.seq
    return {
        "id": new_id("led"),
        "seq": number,
        "reference": f"job_long#{number}",
        "reserved_nano": last.reserved_nano - n_more,
        "posted_nano": last.posted_nano + n_more,
        "prev_hash": hashlib.sha256(b"%d" % (number - 1)).hexdigest(),
        "hash": hashlib.sha256(b"%d" % number).hexdigest(),
    }
