"""The database engine, its transactions, and their retries.

Only `Database` commits. With PostgreSQL, all processes use the server's clock.

Transactions lock rows in one order, so that they cannot deadlock: idempotency key, dataset, tenant, key, jobs by id,
rounds by id, ledger head, tenant quota, head of the audit trail. A claim that has locked a tenant's quota takes an
unlocked job and waits for none. A group commit over several rounds locks them by id. A transaction with an event locks
webhooks in share mode at any point of this order. A transaction that locks a webhook exclusively afterwards waits only
for its deliveries and the audit trail's head.
"""

import secrets
import select
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import structlog
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import ExceptionContext, make_url
from sqlalchemy.exc import DBAPIError, InvalidatePoolError
from sqlalchemy.orm import Session

from models.database.driver_statement import has_ended_session
from models.database.failures import BUSY, failure_reason, retry_reason
from models.database.types import SCRUBBED, Clock, ServerClock, system_clock
from runtime.private_files import prepare_sqlite_files
from runtime.settings import Settings

log = structlog.get_logger(__name__)
_SQLITE_BUSY_MILLISECONDS = 15_000
MAX_BUSY_SECONDS = 12.0  # a wait for the write lock of SQLite is not repeated after this time; the API responds 503
# Pages of 16 KiB halve the work for large report batches, compared with 4 KiB, and cost no more for small rows.
_SQLITE_PAGE_BYTES = 16 << 10
_SQLITE_READING = {"reading": True}  # read by the "begin" listener below
_QUERY_ONLY = "query_only"  # key in the `info` of a pooled connection: the last value of this PRAGMA
_WAL_WAIT_SECONDS = 0.2  # longest time that a truncation of the write-ahead log may delay writers
_WAL_RETRY_SECONDS = 1.0
_WAL_RETRY_WAIT_SECONDS = 0.05  # the same for a repeated attempt
MAX_TRIES = 5
_RETRY_SECONDS = 0.02  # longest pause before the second try, doubled before each further try

# Limits that end a stuck session, which would otherwise keep its locks. The URL's own `options` override them.
MAX_IDLE_SECONDS = 60.0  # between two statements of a transaction
STATEMENT_SECONDS = 300
# Options of a connection, unless the URL has them. Detection of a lost server or network would otherwise take from 15
# minutes to two hours. These options do not affect long statements of a reachable server.
_POSTGRES_OPTIONS = {
    "connect_timeout": "10",  # seconds
    "tcp_user_timeout": "20000",  # milliseconds until unacknowledged data breaks the connection
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "2",
    # After a fail-over, an address may point to a standby for a while. A connection to it would be kept.
    "target_session_attrs": "read-write",
    "client_encoding": "UTF8",
}
FRESH_SECONDS = 1.0  # seconds after its last use in which a connection is not validated
_USED_AT = "used_at"  # key in the `info` of a pooled connection
_POSTGRES_READING = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}


T = TypeVar("T")
S = TypeVar("S")


class Database:
    """An engine and its transactions.

    Parameters
    ----------
    url : str
        SQLAlchemy URL, SQLite or PostgreSQL (psycopg 3).
    pool_size : int
        Connections to keep open. The pool opens as many again under load.
    clock : callable, optional
        Microseconds since the epoch. By default the server's clock with PostgreSQL, else the machine's.
    wait_seconds : float
        Longest wait for a connection, and on PostgreSQL for a row lock.
    idle_seconds : float
        On PostgreSQL, the longest time between two statements of a transaction. It is at most the lease of a worker,
        so that a frozen process delays others no longer than a dead one.
    has_limits : bool
        Whether the server ends sessions that wait, idle or compute for too long, and keeps prepared statements.
        Migrations and connections through a pooler pass False. A pooler in transaction mode shares a session among
        clients, so it accepts neither.
    """

    def __init__(
        self,
        url: str,
        *,
        pool_size: int = 10,
        clock: Clock | None = None,
        wait_seconds: float = 10.0,
        idle_seconds: float = 20.0,
        has_limits: bool = True,
    ) -> None:
        self.is_sqlite = make_url(url).get_backend_name() == "sqlite"
        self.clock: Clock = clock or (system_clock if self.is_sqlite else ServerClock(system_clock))
        limits = _postgres_limits(wait_seconds, idle_seconds) if has_limits else {}
        self.engine = (
            _sqlite_engine(url, pool_size, wait_seconds)
            if self.is_sqlite
            else _postgres_engine(url, pool_size, wait_seconds, limits)
        )
        self.retries: Counter[tuple[str, str]] = Counter()  # name of the transaction and reason to number
        self._scrub_lock = threading.Lock()
        self._n_unscrubbed = 0  # failed truncations since the last successful one
        self._is_closed = threading.Event()
        self._reader = self.engine.execution_options(**(_SQLITE_READING if self.is_sqlite else _POSTGRES_READING))

    @classmethod
    def from_settings(cls, settings: Settings, *, pool_size: int = 2) -> "Database":
        """Return the database of a process, with the limits of its settings."""
        return cls(
            settings.resolved_database_url,
            pool_size=pool_size,
            wait_seconds=settings.database_wait_seconds,
            idle_seconds=min(settings.lease_seconds, MAX_IDLE_SECONDS),
            has_limits=not settings.database_pooler,
        )

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """Open a session, commit it at the end, and roll it back on any exception.

        On SQLite the transaction takes the write lock at once. On PostgreSQL, statements lock rows.
        """
        with Session(self.engine, expire_on_commit=False) as session, session.begin():
            self.follow_clock(session)
            yield session
        if SCRUBBED in session.info:
            self.truncate_wal()

    def run(self, name: str, work: Callable[[Session], T]) -> T:
        """Call `work` in a transaction and return its result. Retry after a deadlock or a serialization failure.

        Parameters
        ----------
        name : str
            Name of the transaction in metrics and logs. It must not contain request data.
        work : callable
            Must have no effect outside the database, because each try calls it with a new session.
        """
        return self.run_in(self.transaction, name, work)

    def run_in(self, transaction: Callable[[], AbstractContextManager[S]], name: str, work: Callable[[S], T]) -> T:
        """Do the same as `run` with another kind of transaction."""
        start = time.monotonic()
        for tries in range(1, MAX_TRIES + 1):
            try:
                with transaction() as session:
                    return work(session)
            except DBAPIError as error:
                reason = retry_reason(error)
                has_waited = time.monotonic() - start >= MAX_BUSY_SECONDS
                if reason is None or tries == MAX_TRIES or (reason == BUSY and has_waited):
                    raise
                self.retries[name, reason] += 1
                log.warning("transaction_retried", transaction=name, reason=reason, tries=tries)
                time.sleep(
                    _RETRY_SECONDS * 2**tries * secrets.randbelow(1000) / 1000
                )  # random: separates colliding ones
        raise AssertionError("not reached")

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """Open a read-only session that sees one state of the database. It blocks no writer."""
        with Session(self._reader, expire_on_commit=False) as session, session.begin():
            self.follow_clock(session)
            yield session

    def follow_clock(self, session: Session | Connection) -> None:
        """Update the clock from PostgreSQL if it is due. Each transaction begins with this."""
        if isinstance(self.clock, ServerClock):
            self.clock.follow(session)

    def failure_reason(self, error: BaseException) -> str:
        """Return why this database cannot be used, see `failure_reason`."""
        return failure_reason(error, self.engine.url)

    def close(self) -> None:
        """Close all connections."""
        self._is_closed.set()
        self.engine.dispose()

    def truncate_wal(self) -> None:
        """Truncate SQLite's write-ahead log. Each commit that deleted private data calls this.

        The log still contains data that was deleted from the database file. If a reader uses the log, a thread repeats
        the attempt every second until it succeeds. Never raise: the transaction is committed already.
        """
        if not self.is_sqlite or self._try_to_truncate(_WAL_WAIT_SECONDS):
            return
        with self._scrub_lock:
            self._n_unscrubbed += 1
            if self._n_unscrubbed == 1:
                threading.Thread(target=self._truncate_later, name="wal-truncation", daemon=True).start()

    def _truncate_later(self) -> None:
        while not self._is_closed.wait(_WAL_RETRY_SECONDS):
            n_before = self._n_unscrubbed
            if self._try_to_truncate(_WAL_RETRY_WAIT_SECONDS):
                with self._scrub_lock:
                    self._n_unscrubbed -= n_before
                    if not self._n_unscrubbed:  # else a commit during the attempt needs another one
                        return

    def _try_to_truncate(self, wait_seconds: float) -> bool:
        with suppress(sqlite3.Error), closing(self.connect_sqlite(wait_seconds)) as connection:
            is_busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            return not is_busy
        return False

    def connect_sqlite(self, wait_seconds: float) -> sqlite3.Connection:
        """Return a connection of the driver to SQLite, which waits this long for locks. The caller closes it."""
        return sqlite3.connect(self.engine.url.database or "", timeout=wait_seconds, isolation_level=None)


def _sqlite_engine(url: str, pool_size: int, wait_seconds: float) -> Engine:
    path = make_url(url).database
    is_file = bool(path) and path != ":memory:" and not str(path).startswith("file:")
    if path and is_file:
        Path(path).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    engine = create_engine(
        url,
        hide_parameters=True,  # messages of errors are logged, values are not
        pool_size=pool_size,
        max_overflow=pool_size,
        pool_timeout=wait_seconds,
        connect_args={"isolation_level": None, "check_same_thread": False, "timeout": _SQLITE_BUSY_MILLISECONDS / 1000},
    )

    if is_file:

        @event.listens_for(engine, "do_connect")
        def restrict(*_: Any) -> None:
            prepare_sqlite_files(Path(path or ""))

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _record: Any) -> None:
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout={_SQLITE_BUSY_MILLISECONDS}")
        cursor.execute(f"PRAGMA page_size={_SQLITE_PAGE_BYTES}")  # applies to new files
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=FULL")  # acknowledged reports survive a power cut
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.execute("PRAGMA secure_delete=ON")  # deleted data is overwritten with zeros
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        reading = connection.get_execution_options().get("reading", False)
        if connection.info.get(_QUERY_ONLY) is not reading:  # SQLite compiles all statements again after this PRAGMA
            raw: Any = connection.connection.dbapi_connection
            raw.execute(f"PRAGMA query_only={'ON' if reading else 'OFF'}").close()
            connection.info[_QUERY_ONLY] = reading
        connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")

    return engine


def _postgres_engine(url: str, pool_size: int, wait_seconds: float, limits: dict[str, int]) -> Engine:
    given = make_url(url)
    added = {name: value for name, value in _POSTGRES_OPTIONS.items() if name not in given.query}
    options = [f"-c {name}={milliseconds}" for name, milliseconds in limits.items()]
    if own := given.query.get("options"):  # the last of two equal options wins
        options += [own] if isinstance(own, str) else own
    prepared: dict[str, Any] = {} if limits else {"prepare_threshold": None}
    engine = create_engine(
        given,
        hide_parameters=True,
        connect_args=added | {"options": " ".join(options)} | prepared,
        pool_size=pool_size,
        max_overflow=pool_size,
        pool_timeout=wait_seconds,
        isolation_level="READ COMMITTED",  # a locked row has its last committed values
    )
    _validate_idle(engine)

    @event.listens_for(engine, "handle_error")
    def note_end(context: ExceptionContext) -> None:
        """Invalidate all connections after the end of a session, or when one refuses writes."""
        connection = context.connection
        driver_connection = None
        if connection is not None and not connection.invalidated:
            driver_connection = connection.connection.dbapi_connection
        if has_ended_session(context.original_exception, driver_connection):
            context.is_disconnect = True

    return engine


def _validate_idle(engine: Engine) -> None:
    """Validate idle connections before checkout.

    A connection that was used in the last `FRESH_SECONDS` is not pinged, which saves a round trip per transaction; it
    is only checked for a message from the server. SQLAlchemy's `pool_pre_ping` would ping every time.
    """

    @event.listens_for(engine, "connect")
    @event.listens_for(engine, "checkin")
    def note_use(_connection: Any, record: Any) -> None:
        record.info[_USED_AT] = time.monotonic()

    @event.listens_for(engine, "checkout")
    def validate(connection: Any, record: Any, _proxy: Any) -> None:
        try:
            if time.monotonic() < record.info[_USED_AT] + FRESH_SECONDS and not _has_message(connection):
                return
            engine.dialect.do_ping(connection)
        except connection.Error as error:
            raise InvalidatePoolError from error


def _has_message(connection: Any) -> bool:
    """Return whether the server has sent a message, usually that it closed the connection."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def _postgres_limits(wait_seconds: float, idle_seconds: float) -> dict[str, int]:
    """Return the server's limits on waiting, idling and computing, in milliseconds."""
    seconds = {
        "lock_timeout": wait_seconds,
        "idle_in_transaction_session_timeout": idle_seconds,
        "statement_timeout": STATEMENT_SECONDS,
    }
    return {name: max(1, round(1000 * value)) for name, value in seconds.items()}


class DedicatedConnection:
    """A connection that one thread keeps for many small transactions, without the ORM's unit of work.

    A group commit runs two statements. Checking out a pooled connection and creating a session would cost as much as
    both statements and the commit. After `FRESH_SECONDS` without use, the connection returns to the pool, which
    validates it before the next transaction.

    Parameters
    ----------
    database : Database
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: Connection | None = None
        self._used_at = 0.0

    def run(self, name: str, work: Callable[[Connection], T]) -> T:
        """Call `work` in a transaction and return its result, see `Database.run`."""
        return self._database.run_in(self._transaction, name, work)

    def close(self) -> None:
        """Return the connection to the pool."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        if time.monotonic() > self._used_at + FRESH_SECONDS:
            self.close()
        if self._connection is None:
            self._connection = self._database.engine.connect()
        try:
            with self._connection.begin():
                self._database.follow_clock(self._connection)
                yield self._connection
        except BaseException:
            self.close()  # its state is unknown
            raise
        self._used_at = time.monotonic()
