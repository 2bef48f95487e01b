"""The database: engine, transactions, identifiers, clock, and the way to the newest schema.

Nobody but `Database.transaction` commits. Times are integers, microseconds since the epoch
in UTC, so that both databases keep them alike.
"""

import json
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Dialect, Engine, MetaData, String, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.orm import DeclarativeBase, Session
from sqlalchemy.types import Text, TypeDecorator

MICROSECOND = 1
SECOND = 1_000_000 * MICROSECOND

Clock = Callable[[], int]

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32
_SQLITE_BUSY_MILLISECONDS = 15_000


def system_clock() -> int:
    """Microseconds since the epoch, UTC."""
    return time.time_ns() // 1000


def new_id(prefix: str) -> str:
    """A fresh identifier: prefix, underscore, a lower-case ULID that sorts by time."""
    value = (time.time_ns() // 1_000_000) << 80 | secrets.randbits(80)
    return f"{prefix}_" + "".join(_ALPHABET[value >> shift & 31] for shift in range(125, -5, -5))


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces: the same value gives the same bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


class CanonicalJson(TypeDecorator[Any]):
    """A JSON value kept as canonical text, read back to plain Python values."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:  # noqa: ARG002
        return None if value is None else canonical_json(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:  # noqa: ARG002
        return None if value is None else json.loads(value)


class Base(DeclarativeBase):
    """Every table; constraints named, so that migrations can speak of them."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(column_0_N_label)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


Id = String(40)


class Database:
    """One engine and its transactions.

    Parameters
    ----------
    url : str
        SQLAlchemy URL, SQLite or PostgreSQL (psycopg 3).
    pool_size : int
        Connections kept; as many again may be opened under load.
    clock : callable
        Microseconds since the epoch.
    """

    def __init__(self, url: str, *, pool_size: int = 10, clock: Clock = system_clock) -> None:
        self.clock = clock
        self.is_sqlite = make_url(url).get_backend_name() == "sqlite"
        self.engine = _sqlite_engine(url, pool_size) if self.is_sqlite else _postgres_engine(url, pool_size)
        self._reader = self.engine.execution_options(reading=True)

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """A unit of work that writes: committed at the end, rolled back on any exception.

        On SQLite it takes the one write lock at its start; on PostgreSQL rows are locked
        as they are read for change.
        """
        with Session(self.engine, expire_on_commit=False) as session, session.begin():
            yield session

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """A unit of work that only reads; holds up no writer."""
        with Session(self._reader, expire_on_commit=False) as session, session.begin():
            yield session

    def close(self) -> None:
        """Give all connections back."""
        self.engine.dispose()


def _sqlite_engine(url: str, pool_size: int) -> Engine:
    path = make_url(url).database
    if path and path != ":memory:":
        Path(path).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    engine = create_engine(
        url,
        pool_size=pool_size,
        max_overflow=pool_size,
        connect_args={"isolation_level": None, "check_same_thread": False, "timeout": _SQLITE_BUSY_MILLISECONDS / 1000},
    )

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _record: Any) -> None:
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout={_SQLITE_BUSY_MILLISECONDS}")
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=FULL")  # an acknowledged report outlives a power cut
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.execute("PRAGMA secure_delete=ON")  # scrubbed reports are overwritten, not only unlinked
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        reading = connection.get_execution_options().get("reading", False)
        connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")

    return engine


def _postgres_engine(url: str, pool_size: int) -> Engine:
    return create_engine(url, pool_size=pool_size, max_overflow=pool_size, pool_pre_ping=True)


def _alembic(url: str) -> Config:
    config = Config()
    config.set_main_option("script_location", str(files("migrations")))
    config.set_main_option("sqlalchemy.url", url.replace("%", "%%"))
    return config


def migrate(url: str) -> None:
    """Bring the schema to the newest revision; creates it in an empty database."""
    database = Database(url, pool_size=2)
    config = _alembic(url)
    config.attributes["engine"] = database.engine
    try:
        command.upgrade(config, "head")
    finally:
        database.close()


def is_migrated(database: Database) -> bool:
    """Whether the schema is the newest this software knows."""
    newest = ScriptDirectory.from_config(_alembic("")).get_current_head()
    with database.reading() as session:
        return MigrationContext.configure(session.connection()).get_current_revision() == newest
