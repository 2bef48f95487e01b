"""Report log of a round in a SQLite file of its own, with perturbed values and distinct ids, in rows of batches."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy.orm import Session

from clustering.random import SeededEntropy
from models import datasets
from models.collection import report_log as report
from models.collection import rounds
from models.database.engine import Database
from models.database.schema import migrate
from models.identity import keys, tenants
from models.identity.caller import Caller
from models.tables.datasets import Dataset, Trust
from models.tables.identity import Scope
from models.tables.rounds import CollectionTarget, Round, RoundState
from sfumato.privacy.accounting import NANO
from sfumato.privacy.entropy import below_many
from sfumato.specs import Feature, GridEncoding, LatticeEncoding, RoundSpec, design_for

BATCH_REPORTS = 50_000
BATCHES_AT_ONCE = 50  # batches of one transaction
BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class ReportLog:
    """A closed round and its log."""

    path: Path
    database: Database
    closed: Round

    def rows(self) -> Iterator[bytes]:
        """Yield the rows of the log in order, as an aggregation reads them."""
        with self.database.reading() as session:
            for _, packed in report.batches(session, self.closed.id):
                yield packed

    def read(self) -> int:
        """Read all rows; return their number of bytes."""
        return sum(map(len, self.rows()))

    def read_file(self) -> int:
        """Read the file of the database; return its number of bytes."""
        block, n_bytes = bytearray(BLOCK_BYTES), 0
        with self.path.open("rb", buffering=0) as file:
            while n_read := file.readinto(block):
                n_bytes += n_read
        return n_bytes


def spec_of(kind: str, n_symbols: int) -> RoundSpec:
    """Return the spec of a round at epsilon 1; vectors have two features."""
    if kind == "discrete_laplace":
        features: tuple[Feature, ...] = (Feature("x", 0.0, 1.0), Feature("y", 0.0, 1.0))
        return RoundSpec(features, LatticeEncoding(2, 1000), design_for(LatticeEncoding(2, 1000), kind, NANO))
    encoding = GridEncoding((n_symbols,))
    return RoundSpec((Feature("x", 0.0, 1.0),), encoding, design_for(encoding, kind, NANO))


@contextmanager
def report_log(spec: RoundSpec, n_reports: int, *, repeated: float = 0.0) -> Iterator[ReportLog]:
    """Write a log of `n_reports`, and remove it at the end.

    Values repeat those of 50,000 devices; ids come from a seeded generator. The share `repeated` of the ids repeats ids
    of the batch before; all others are distinct.
    """
    with TemporaryDirectory(prefix="sfumato-speed-") as folder:
        path = Path(folder) / "sfumato.db"
        migrate(f"sqlite:///{path}")
        with closing_database(f"sqlite:///{path}") as database:
            closed = _closed_round(database, spec, n_reports)
            _fill(path, closed.id, _batch(spec), n_reports, repeated)
            log = ReportLog(path, database, closed)
            log.read()  # loads the file into the page cache
            yield log


@contextmanager
def closing_database(url: str) -> Iterator[Database]:
    """Open a database, and close it at the end."""
    with closing(Database(url, pool_size=2)) as database:
        yield database


def new_caller(session: Session, now: int) -> Caller:
    """Create a tenant, if there is none, and an admin key; return the key's caller."""
    owner = tenants.get_or_create_tenant(session, tenants.FIRST_TENANT, now=now)
    key, _ = keys.create_key(session, owner.id, name="speed", scopes=[Scope.ADMIN], now=now)
    return Caller(key.id, owner.id, frozenset(key.scopes), None, None)


def new_dataset(session: Session, caller: Caller, features: Sequence[Feature], now: int, **given: Any) -> Dataset:
    """Create a dataset with a grant, local unless `given` has other values."""
    values: dict[str, Any] = {"name": "speed", "trust": Trust.LOCAL, "epsilon_nano": 32 * NANO, "min_reports": 1}
    limits: dict[str, Any] = {"keep_reports": False, "max_datasets": 10**6}
    return datasets.create(session, caller, features=tuple(features), now=now, **(values | limits | given))


def _closed_round(database: Database, spec: RoundSpec, n_reports: int) -> Round:
    now = database.clock()
    with database.transaction() as session:
        caller = new_caller(session, now)
        dataset = new_dataset(session, caller, spec.features, now)
        target = CollectionTarget(10**9, 0, 3600)
        opened = rounds.open_standalone(session, caller, dataset, spec, target, max_open_rounds=1, now=now)
        opened.state, opened.n_received = RoundState.CLOSED.value, n_reports
    with database.reading() as session:
        return session.get_one(Round, opened.id)


def _batch(spec: RoundSpec) -> NDArray[np.uint8]:
    """Return the reports of one batch with empty ids."""
    entropy, d = SeededEntropy(0), spec.encoding.n_features
    if isinstance(spec.encoding, LatticeEncoding):
        symbols = below_many(entropy, spec.encoding.steps + 1, BATCH_REPORTS * d).reshape(-1, d)
    else:
        symbols = below_many(entropy, spec.encoding.n_symbols, BATCH_REPORTS)
    values = spec.mechanism.perturb_many(symbols, entropy)
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
