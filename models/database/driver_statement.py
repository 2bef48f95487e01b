"""Statements that are sent through the driver of the database, for transactions that run many times per second."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Dialect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.dml import UpdateBase


class DriverStatement:
    """A statement that is compiled once per dialect and runs without SQLAlchemy's execution layer.

    In a group commit, that layer takes longer than the database.

    Parameters
    ----------
    statement : UpdateBase
        Its parameters and its result are used as the driver converts them.
    columns : str
        Columns that an INSERT sets.
    """

    def __init__(self, statement: UpdateBase, *columns: str) -> None:
        self._statement = statement
        self._columns = columns or None
        self._compiled: dict[str, tuple[str, dict[str, Any], Sequence[str] | None]] = {}  # one entry per dialect

    def execute(self, connection: Connection, parameters: Mapping[str, Any]) -> Any:
        """Execute the statement and return its first row, or None. Raise DBAPIError."""
        dialect = connection.dialect
        text, constants, order = self._compiled.get(dialect.name) or self._compile(dialect)
        values = {**constants, **parameters}
        cursor = connection.connection.cursor()
        try:
            cursor.execute(text, values if order is None else [values[name] for name in order])
            return cursor.fetchone() if cursor.description else None
        except dialect.loaded_dbapi.Error as error:
            raise _converted(error, connection, cursor) from error
        finally:
            cursor.close()

    def _compile(self, dialect: Dialect) -> tuple[str, dict[str, Any], Sequence[str] | None]:
        found: Any = self._statement.compile(dialect=dialect, column_keys=self._columns)
        compiled = (found.string, dict(found.params), found.positiontup)
        self._compiled[dialect.name] = compiled
        return compiled


# SQLSTATEs after which a session is of no use. The session is read-only: the address of the database points to a
# standby, or its operator forbids writes. Or a standby, or a schema that changed, does not support the statement.
_READ_ONLY = "25006"
_NOT_SUPPORTED = "0A000"


def has_ended_session(error: BaseException | None, driver_connection: Any = None) -> bool:
    """Return whether the connection must be closed after this error of PostgreSQL.

    The server ended the session, which psycopg may notice only at the next statement. Or psycopg itself failed to send
    or to receive: such an error has no SQLSTATE. Or the session refuses writes that a new connection may accept,
    because the address of the database points to another server by then.
    """
    if getattr(getattr(error, "diag", None), "severity_nonlocalized", None) == "FATAL":
        return True
    state = getattr(error, "sqlstate", "")  # None is psycopg's, and errors of SQLite have none
    if state is None and type(error).__name__ == "OperationalError":
        return True
    if state == _READ_ONLY:  # expected in a transaction that this process itself declared as read-only
        return not getattr(driver_connection, "read_only", None)
    return state == _NOT_SUPPORTED


def _converted(error: Any, connection: Connection, cursor: Any) -> Exception:
    """Return the error of SQLAlchemy for an error of the driver. Invalidate a lost connection."""
    dialect = connection.dialect
    driver_connection: Any = connection.connection.dbapi_connection
    is_lost = has_ended_session(error, driver_connection) or dialect.is_disconnect(error, driver_connection, cursor)
    if is_lost:
        connection.invalidate(error)
    converted: Exception = DBAPIError.instance(
        None, None, error, dialect.loaded_dbapi.Error, hide_parameters=True, connection_invalidated=is_lost
    )
    return converted
