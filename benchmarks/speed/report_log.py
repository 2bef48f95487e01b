"""A round's report log in a SQLite file of its own: real values, ids that all differ, rows as batches leave them."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from clustering.seeded_entropy import SeededEntropy
from models import dataset as datasets
from models import report, tenant
from models import round as rounds
from models.dataset import Trust
from models.db import Database, migrate
from models.round import Collect, Round, RoundState
from models.tenant import Caller, Scope
from sfumato.accounting import NANO
from sfumato.entropy import below_many
from sfumato.mechanisms import design_for, perturb_many
from sfumato.specs import Feature, GridEncoding, LatticeEncoding, RoundSpec

BATCH_REPORTS = 50_000
BATCHES_AT_ONCE = 50  # in one transaction
BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class ReportLog:
    """A closed round and where its log is."""

    path: Path
    database: Database
    closed: Round

    def rows(self) -> Iterator[bytes]:
        """The log's rows, in their order, as a fold reads them."""
        with self.database.reading() as session:
            for _, packed in report.batches(session, self.closed.id):
                yield packed

    def read(self) -> int:
        """Read the rows and do nothing with them; how many bytes there are."""
        return sum(map(len, self.rows()))

    def read_file(self) -> int:
        """Read the database's file from its beginning to its end."""
        block, n_bytes = bytearray(BLOCK_BYTES), 0
        with self.path.open("rb", buffering=0) as file:
            while n_read := file.readinto(block):
                n_bytes += n_read
        return n_bytes


def spec_of(kind: str, n_symbols: int) -> RoundSpec:
    """A round at epsilon 1; of vectors two features."""
    if kind == "discrete_laplace":
        features: tuple[Feature, ...] = (Feature("x", 0.0, 1.0), Feature("y", 0.0, 1.0))
        return RoundSpec(features, LatticeEncoding(2, 1000), design_for(LatticeEncoding(2, 1000), kind, NANO))
    encoding = GridEncoding((n_symbols,))
    return RoundSpec((Feature("x", 0.0, 1.0),), encoding, design_for(encoding, kind, NANO))


@contextmanager
def report_log(spec: RoundSpec, n_reports: int, *, repeated: float = 0.0) -> Iterator[ReportLog]:
    """A log of so many reports, in whole batches; gone in the end.

    Values are those of 50,000 devices over and over; ids are words of a seeded generator. None comes twice, but for the
    given share of them, which have come in the batch before.
    """
    with TemporaryDirectory(prefix="sfumato-speed-") as folder:
        path = Path(folder) / "sfumato.db"
        migrate(f"sqlite:///{path}")
        with closing_database(f"sqlite:///{path}") as database:
            closed = _closed_round(database, spec, n_reports)
            _fill(path, closed.id, _batch(spec), n_reports, repeated)
            log = ReportLog(path, database, closed)
            log.read()  # from now on it is in the page cache
            yield log


@contextmanager
def closing_database(url: str) -> Iterator[Database]:
    """A database that is closed in the end."""
    with closing(Database(url, pool_size=2)) as database:
        yield database


def _closed_round(database: Database, spec: RoundSpec, n_reports: int) -> Round:
    now = database.clock()
    with database.transaction() as session:
        owner = tenant.get_or_create_tenant(session, tenant.FIRST_TENANT, now=now)
        key, _ = tenant.create_key(session, owner.id, name="speed", scopes=[Scope.ADMIN], now=now)
        caller = Caller(key.id, owner.id, frozenset(key.scopes), None, None)
        made = datasets.create(
            session,
            caller,
            name="speed",
            trust=Trust.LOCAL,
            features=spec.features,
            epsilon_nano=32 * NANO,
            min_reports=0,
            keep_reports=False,
            max_datasets=1,
            now=now,
        )
        asked = rounds.open_standalone(session, caller, made, spec, Collect(10**9, 0, 3600), max_open_rounds=1, now=now)
        asked.state, asked.n_received = RoundState.CLOSED.value, n_reports
    with database.reading() as session:
        return session.get_one(Round, asked.id)


def _batch(spec: RoundSpec) -> NDArray[np.uint8]:
    """The reports of one batch, ids left open."""
    entropy, d = SeededEntropy(0), spec.encoding.n_features
    if isinstance(spec.encoding, LatticeEncoding):
        held = below_many(entropy, spec.encoding.steps + 1, BATCH_REPORTS * d).reshape(-1, d)
    else:
        held = below_many(entropy, spec.encoding.n_symbols, BATCH_REPORTS)
    values = perturb_many(spec.mechanism, held, entropy)
    head = np.zeros((BATCH_REPORTS, report.HEADER_BYTES), dtype=np.uint8)  # slot 0
    return np.concatenate([head, values], axis=1)


def _fill(path: Path, round_id: str, batch: NDArray[np.uint8], n_reports: int, repeated: float) -> None:
    words = np.random.PCG64(1)
    before = np.empty((0, report.ID_BYTES), dtype=np.uint8)
    insert = "INSERT INTO report_batches (round_id, n_reports, packed) VALUES (?, ?, ?)"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous=OFF")
        connection.execute("BEGIN")
        for begin in range(0, n_reports, BATCH_REPORTS):
            n = min(BATCH_REPORTS, n_reports - begin)
            ids = np.asarray(words.random_raw(2 * n), dtype="<u8").view(np.uint8).reshape(n, report.ID_BYTES)
            n_again = min(round(repeated * n), len(before))
            ids[:n_again] = before[:n_again]
            batch[:n, : report.ID_BYTES] = ids
            before = ids[::-1]  # new ones first
            connection.execute(insert, (round_id, n, batch[:n].tobytes()))
            if begin // BATCH_REPORTS % BATCHES_AT_ONCE == 0:
                connection.execute("COMMIT")
                connection.execute("BEGIN")
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
