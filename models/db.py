"""The database: engine, transactions, identifiers, clock, and the way to the newest schema.

Nobody but `Database.transaction` commits. Times are integers, microseconds since the epoch
in UTC, so that both databases keep them alike. PostgreSQL's own clock is everybody's there.

Rows are locked in one order, so that no two transactions wait for each other: idempotency
key, dataset, tenant, key, jobs by id, rounds by id, ledger head, a tenant's quota, the audit trail's
head. A claim, once it holds a tenant's quota, takes a job that nobody holds and waits for none. A
transaction that follows more than one round (a group commit) takes them by id as well. Webhooks are
held shared by whoever has something to tell them, anywhere in this order; who holds one alone
waits for nothing but its deliveries and the audit trail's head.
"""

import json
import secrets
import select
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import structlog
from sqlalchemy import URL, Connection, Dialect, Engine, MetaData, String, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, InvalidatePoolError, OperationalError
from sqlalchemy.orm import DeclarativeBase, Session
from sqlalchemy.types import Text, TypeDecorator

from models.server_clock import ServerClock
from sfumato.errors import SfumatoError

if TYPE_CHECKING:
    from alembic.config import Config

MICROSECOND = 1
SECOND = 1_000_000 * MICROSECOND

Clock = Callable[[], int]

SCRUBBED = "scrubbed"  # set in `Session.info` by whoever removes what must not be found again

log = structlog.get_logger(__name__)

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32
_SQLITE_BUSY_MILLISECONDS = 15_000
_SQLITE_PAGE_BYTES = 16 << 10  # batches of reports are large: half the work of pages of 4 KiB, small ones cost no more
_SQLITE_READING = {"reading": True}  # for the engine's own "begin" below
_POOL_SECONDS = 30.0  # the longest wait for a connection of whoever is not in a hurry
_WAL_PATIENCE_SECONDS = 0.2  # writers wait while the log is emptied, so this long at most
_WAL_RETRY_SECONDS = 1.0
_POSTGRES_NO_LOCK = "55P03"  # lock_not_available
# What the database ends a transaction for that can simply be done again: nothing of it was kept. A connection that is
# lost is not among them: the commit may have been, and nobody knows.
_POSTGRES_RETRIED = {"40001": "serialization", "40P01": "deadlock"}
RETRY_REASONS = frozenset({*_POSTGRES_RETRIED.values(), "busy"})
MAX_TRIES = 5
_RETRY_SECONDS = 0.02  # the longest pause before the second try; doubled before each later one

# Backstops, so that no session that is stuck keeps others out for ever; an operator's own `options` in the URL win.
IDLE_SECONDS = 60  # within a transaction, between two statements
STATEMENT_SECONDS = 300
# Nobody says so where a server, or the network to it, is gone: without these a process waits for an answer for a
# quarter of an hour, or for two hours. They break no connection whose server is there, however long it computes.
_POSTGRES_GONE = {
    "connect_timeout": "10",  # seconds
    "tcp_user_timeout": "20000",  # milliseconds that what was sent may stay unacknowledged
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "2",
}
FRESH_SECONDS = 1.0  # so long after its use a connection is taken to be there, unless the server said otherwise
_USED_AT = "used_at"  # in a connection's own record
_POSTGRES_READING = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}


T = TypeVar("T")
S = TypeVar("S")


class SchemaInUse(SfumatoError):
    """A migration could not have its lock in time; the database is as it was."""

    code = "unavailable"


def system_clock() -> int:
    """Microseconds since the epoch, UTC."""
    return time.time_ns() // 1000


def new_id(prefix: str, *, at: int | None = None) -> str:
    """A fresh identifier: prefix, underscore, a lower-case ULID that sorts by time.

    It tells its millisecond: that of `at`, where the moment itself is not to be told.
    """
    value = ((system_clock() if at is None else at) // 1000) << 80 | secrets.randbits(80)
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


def insert_unless_there(session: Session, table: type[Base]) -> Any:
    """An INSERT that does nothing where a unique key is taken; waits for whoever is about to take it."""
    if session.get_bind().dialect.name == "postgresql":
        from sqlalchemy.dialects import postgresql  # loaded already, where it is in use

        return postgresql.insert(table).on_conflict_do_nothing()
    from sqlalchemy.dialects import sqlite

    return sqlite.insert(table).on_conflict_do_nothing()


class Database:
    """One engine and its transactions.

    Parameters
    ----------
    url : str
        SQLAlchemy URL, SQLite or PostgreSQL (psycopg 3).
    pool_size : int
        Connections kept; as many again may be opened under load.
    clock : callable, optional
        Microseconds since the epoch; by default the machine's, with PostgreSQL the server's.
    wait_seconds : float, optional
        Longest wait for a connection, and on PostgreSQL for a row that somebody else holds; what is
        stuck there is ended. None is for whoever waits as it sees fit: migrations, the command line.
    """

    def __init__(
        self, url: str, *, pool_size: int = 10, clock: Clock | None = None, wait_seconds: float | None = None
    ) -> None:
        self.is_sqlite = make_url(url).get_backend_name() == "sqlite"
        self.clock: Clock = clock or (system_clock if self.is_sqlite else ServerClock(system_clock))
        open_engine = _sqlite_engine if self.is_sqlite else _postgres_engine
        self.engine = open_engine(url, pool_size, wait_seconds)
        self.retries: Counter[tuple[str, str]] = Counter()  # by transaction and reason
        self._wal_tried_at: float | None = None  # when emptying the log was tried last, in vain
        self._reader = self.engine.execution_options(**(_SQLITE_READING if self.is_sqlite else _POSTGRES_READING))

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """A unit of work that writes: committed at the end, rolled back on any exception.

        On SQLite it takes the one write lock with its first statement; on PostgreSQL rows
        are locked as they are read for change.
        """
        with Session(self.engine, expire_on_commit=False) as session, session.begin():
            self.follow_clock(session)
            yield session
        self.look_after_wal(scrubbed=SCRUBBED in session.info)

    def run(self, name: str, work: Callable[[Session], T]) -> T:
        """What `work` makes of a transaction; the whole of it again where the database ended it for others' sake.

        Parameters
        ----------
        name : str
            The transaction's, as metrics and the log have it; never made of anything that was sent.
        work : callable
            Changes nothing but the database: it may be called again, with a session of its own.
        """
        return self.run_in(self.transaction, name, work)

    def run_in(self, transaction: Callable[[], AbstractContextManager[S]], name: str, work: Callable[[S], T]) -> T:
        """The same in transactions of another kind."""
        for tries in range(1, MAX_TRIES + 1):
            try:
                with transaction() as session:
                    return work(session)
            except DBAPIError as error:
                reason = _retry_reason(error)
                if reason is None or tries == MAX_TRIES:
                    raise
                self.retries[name, reason] += 1
                log.warning("transaction_retried", transaction=name, reason=reason, tries=tries)
                time.sleep(_RETRY_SECONDS * 2**tries * secrets.randbelow(1000) / 1000)  # two that met part
        raise AssertionError("not reached")

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """A unit of work that reads one state of the database, whoever writes meanwhile.

        It holds up no writer; what it tries to write is refused.
        """
        with Session(self._reader, expire_on_commit=False) as session, session.begin():
            self.follow_clock(session)
            yield session

    def follow_clock(self, session: Session | Connection) -> None:
        """Ask PostgreSQL for its time, now and then: each transaction's first step."""
        if isinstance(self.clock, ServerClock):
            self.clock.follow(session)

    def close(self) -> None:
        """Give all connections back."""
        self.engine.dispose()

    def look_after_wal(self, *, scrubbed: bool = False) -> None:
        """After a commit: SQLite's log is emptied where something was removed for good, or could not be before."""
        if self.is_sqlite and (self._wal_tried_at is not None or scrubbed):
            self._empty_wal(at_once=scrubbed)

    def _empty_wal(self, *, at_once: bool) -> None:
        """Empty SQLite's write-ahead log, which still holds what was removed from the database file.

        Where somebody reads from it, a later transaction tries again. Never raises: the
        transaction is committed already.
        """
        now = time.monotonic()
        if not at_once and self._wal_tried_at is not None and now < self._wal_tried_at + _WAL_RETRY_SECONDS:
            return
        self._wal_tried_at = now
        with suppress(sqlite3.Error), closing(self._connect_sqlite()) as connection:
            is_busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if not is_busy:
                self._wal_tried_at = None

    def _connect_sqlite(self) -> sqlite3.Connection:
        return sqlite3.connect(self.engine.url.database or "", timeout=_WAL_PATIENCE_SECONDS, isolation_level=None)


def _sqlite_engine(url: str, pool_size: int, wait_seconds: float | None) -> Engine:
    path = make_url(url).database
    if path and path != ":memory:":
        Path(path).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    engine = create_engine(
        url,
        hide_parameters=True,  # an error's message goes to the log; what was written does not
        pool_size=pool_size,
        max_overflow=pool_size,
        pool_timeout=_POOL_SECONDS if wait_seconds is None else wait_seconds,
        connect_args={"isolation_level": None, "check_same_thread": False, "timeout": _SQLITE_BUSY_MILLISECONDS / 1000},
    )

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _record: Any) -> None:
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout={_SQLITE_BUSY_MILLISECONDS}")
        cursor.execute(f"PRAGMA page_size={_SQLITE_PAGE_BYTES}")  # of a file that is made now
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=FULL")  # an acknowledged report outlives a power cut
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.execute("PRAGMA secure_delete=ON")  # scrubbed reports are overwritten, not only unlinked
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        reading = connection.get_execution_options().get("reading", False)
        raw: Any = connection.connection.dbapi_connection
        raw.execute(f"PRAGMA query_only={'ON' if reading else 'OFF'}").close()
        connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")

    return engine


def _postgres_engine(url: str, pool_size: int, wait_seconds: float | None) -> Engine:
    given = make_url(url)
    noticing = given.update_query_dict(
        {name: value for name, value in _POSTGRES_GONE.items() if name not in given.query}
    )
    engine = create_engine(
        noticing if wait_seconds is None else _bounded(noticing, wait_seconds),
        hide_parameters=True,
        pool_size=pool_size,
        max_overflow=pool_size,
        pool_timeout=_POOL_SECONDS if wait_seconds is None else wait_seconds,
        isolation_level="READ COMMITTED",  # what is read under a lock is what its last holder left
    )
    _look_after_idle(engine)
    return engine


def _look_after_idle(engine: Engine) -> None:
    """Hand nobody a connection whose server has gone meanwhile.

    One that was in use a moment ago is not asked, which would be a round trip before every transaction:
    a server that ended it has said so on the connection, and of one that fell silent since, the
    transaction finds out. `pool_pre_ping` asks every time.
    """

    @event.listens_for(engine, "connect")
    @event.listens_for(engine, "checkin")
    def note(_connection: Any, record: Any) -> None:
        record.info[_USED_AT] = time.monotonic()

    @event.listens_for(engine, "checkout")
    def ask(connection: Any, record: Any, _proxy: Any) -> None:
        try:
            if time.monotonic() < record.info[_USED_AT] + FRESH_SECONDS and not _is_told(connection):
                return
            engine.dialect.do_ping(connection)
        except connection.Error as error:
            raise InvalidatePoolError from error


def _is_told(connection: Any) -> bool:
    """Whether the server has sent something unasked: that it ends the connection, mostly."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def _bounded(url: URL, wait_seconds: float) -> URL:
    """The URL of connections that wait, idle and compute so long at most; what it says itself comes last, and wins."""
    milliseconds = {
        "lock_timeout": wait_seconds * 1000,
        "idle_in_transaction_session_timeout": IDLE_SECONDS * 1000,
        "statement_timeout": STATEMENT_SECONDS * 1000,
    }
    options = [f"-c {name}={max(1, round(value))}" for name, value in milliseconds.items()]
    if given := url.query.get("options"):
        options += [given] if isinstance(given, str) else given
    return url.update_query_dict({"options": " ".join(options)})


def _retry_reason(error: DBAPIError) -> str | None:
    if isinstance(error.orig, sqlite3.Error):
        return "busy" if _is_lock_refused(error) else None
    return None if error.connection_invalidated else _POSTGRES_RETRIED.get(getattr(error.orig, "sqlstate", None) or "")


def _alembic(url: str) -> "Config":
    from alembic.config import Config  # here and below: a fifth of a second that only those pay who migrate or ask

    config = Config()
    config.set_main_option("script_location", str(files("migrations")))
    config.set_main_option("sqlalchemy.url", url.replace("%", "%%"))
    return config


def migrate(url: str) -> None:
    """Bring the schema to the newest revision; creates it in an empty database.

    Raises
    ------
    SchemaInUse
        A long transaction holds what a migration needs; nothing was changed.
    """
    from alembic import command

    database = Database(url, pool_size=2)
    config = _alembic(url)
    config.attributes["engine"] = database.engine
    try:
        command.upgrade(config, "head")
    except OperationalError as error:
        if not _is_lock_refused(error):
            raise
        raise SchemaInUse(
            "a transaction under way holds what a migration needs; nothing was changed, try again"
        ) from error
    finally:
        database.close()


def _is_lock_refused(error: DBAPIError) -> bool:
    if isinstance(error.orig, sqlite3.Error):
        code: int = getattr(error.orig, "sqlite_errorcode", 0)
        return code & 0xFF == sqlite3.SQLITE_BUSY  # the low byte says it, the others why
    return getattr(error.orig, "sqlstate", None) == _POSTGRES_NO_LOCK


def is_migrated(database: Database) -> bool:
    """Whether the schema is the newest this software knows."""
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory

    newest = ScriptDirectory.from_config(_alembic("")).get_current_head()
    with database.reading() as session:
        return MigrationContext.configure(session.connection()).get_current_revision() == newest
