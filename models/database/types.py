"""Clocks, identifiers, canonical JSON and column types.

Times are integers, microseconds since the epoch in UTC, so that both databases store them exactly.
"""

import json
import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVarTuple

from sqlalchemy import Connection, Dialect, MetaData, Select, String, text
from sqlalchemy.orm import DeclarativeBase, InstrumentedAttribute, Session
from sqlalchemy.types import Text, TypeDecorator

MICROSECOND = 1
SECOND = 1_000_000 * MICROSECOND

Clock = Callable[[], int]
Columns = TypeVarTuple("Columns")

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

SCRUBBED = "scrubbed"  # set in `Session.info` after deleting private data, to truncate the write-ahead log

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32

READ_SECONDS = 2.0  # seconds between readings of the server's clock; the clocks drift by microseconds in this time
SLOW_SECONDS = 1.0  # a reading that took longer is repeated: its error is up to half of its duration

_SERVER_TIME = text("SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)")


def timestamp(microseconds: int) -> str:
    """Format microseconds since the epoch, such as '2023-11-14T22:13:20.000000Z'."""
    at = EPOCH + timedelta(microseconds=microseconds)
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def system_clock() -> int:
    """Return microseconds since the epoch, UTC."""
    return time.time_ns() // 1000


class ServerClock:
    """The clock of a PostgreSQL server, in microseconds since the epoch.

    One process writes leases, closing times and expiries, and others compare them with their clocks. If each used the
    clock of its machine, a wrong clock could extend a lease or a round. Between two readings of the server, the time
    advances by this machine's monotonic clock, which clock adjustments do not affect.

    Parameters
    ----------
    initial : callable
        Clock to use before the first reading, in microseconds since the epoch.
    monotonic : callable, optional
        Monotonic clock in seconds.
    """

    def __init__(self, initial: Clock, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._initial, self._monotonic = initial, monotonic
        self._reading: tuple[int, float] | None = None  # server time and monotonic time; one value, set atomically
        self._read_at = 0.0

    def __call__(self) -> int:
        """Return the current time."""
        if self._reading is None:
            return self._initial()
        server_time, at = self._reading
        return server_time + round((self._monotonic() - at) * 1_000_000)

    def follow(self, session: Session | Connection) -> None:
        """Read the server's clock unless it was read in the last `READ_SECONDS`."""
        start = self._monotonic()
        if self._reading is not None and start < self._read_at + READ_SECONDS:
            return
        server_time = session.scalar(_SERVER_TIME)
        end = self._monotonic()
        if server_time is not None and (self._reading is None or end - start <= SLOW_SECONDS):
            self._reading, self._read_at = (int(server_time), (start + end) / 2), end


def new_id(prefix: str, *, at: int | None = None) -> str:
    """Return a new identifier: prefix, underscore, and a lower-case ULID that sorts by time.

    The ULID reveals its millisecond. Pass `at` if the current time is private.
    """
    value = ((system_clock() if at is None else at) // 1000) << 80 | secrets.randbits(80)
    return f"{prefix}_" + "".join(_ALPHABET[value >> shift & 31] for shift in range(125, -5, -5))


def first_id(prefix: str, at: int) -> str:
    """Return the smallest identifier of a time, in microseconds since the epoch."""
    value = max(0, at // 1000) << 80
    return f"{prefix}_" + "".join(_ALPHABET[value >> shift & 31] for shift in range(125, -5, -5))


def select_page(
    query: Select[*Columns],
    column: InstrumentedAttribute[Any],
    *,
    after: str | int,
    limit: int,
    newest_first: bool,
    counts_from: int = 1,
) -> Select[*Columns]:
    """Return a query of a page in the order of a unique column that increases with time.

    Parameters
    ----------
    query : Select
    column : attribute
        Id or sequence number.
    after : str or int
        Id of the last row of the previous page, or its sequence number, counted from 1; empty or 0 for the first page.
    limit : int
        Maximum number of rows.
    newest_first : bool
    counts_from : int
        Value of the column for the sequence number 1.
    """
    if after:
        last = after if isinstance(after, str) else after - 1 + counts_from
        query = query.where(column < last if newest_first else column > last)
    return query.order_by(column.desc() if newest_first else column).limit(limit)


def canonical_json(value: Any) -> str:
    """Return JSON with sorted keys and no spaces. Equal values give equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


class CanonicalJson(TypeDecorator[Any]):
    """A column type for JSON values, stored as canonical text."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:  # noqa: ARG002
        return None if value is None else canonical_json(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:  # noqa: ARG002
        return None if value is None else json.loads(value)


class Base(DeclarativeBase):
    """Base class of all tables. Its naming convention gives every constraint a name that migrations can use."""

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


def insert_if_absent(session: Session, table: type[Base]) -> Any:
    """Return an INSERT that does nothing if the unique key exists. It waits for a transaction that inserts the key."""
    if session.get_bind().dialect.name == "postgresql":
        from sqlalchemy.dialects import postgresql  # loaded here: the engine has already loaded the one in use

        return postgresql.insert(table).on_conflict_do_nothing()
    from sqlalchemy.dialects import sqlite

    return sqlite.insert(table).on_conflict_do_nothing()
