"""Errors of the database: which ones a process repeats, which ones pass, and their reasons in one line."""

import re
import sqlite3
from urllib.parse import quote

from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolExhausted

_POSTGRES_NO_LOCK = "55P03"  # lock_not_available
# SQLSTATEs of transactions that were rolled back and can run again. A lost connection is not among them: its commit
# may have succeeded.
_POSTGRES_RETRIED = {"40001": "serialization", "40P01": "deadlock"}
BUSY = "busy"

_REASON_CHARACTERS = 500
_REMEDIES = {  # the key is a part of the message of the driver
    "unsupported startup parameter": "for PgBouncer in transaction mode, set SFUMATO_DATABASE_POOLER=true",
    "session is read-only": (
        "the address is that of a standby, or default_transaction_read_only is on: use the address of the primary"
    ),
    "database or disk is full": "free some space",
}


def retry_reason(error: DBAPIError) -> str | None:
    """Return why the transaction can run again, or None if it cannot."""
    if isinstance(error.orig, sqlite3.Error):
        return BUSY if is_lock_timeout(error) else None
    return None if error.connection_invalidated else _POSTGRES_RETRIED.get(getattr(error.orig, "sqlstate", None) or "")


def is_lock_timeout(error: DBAPIError) -> bool:
    """Return whether a statement failed because it waited too long for a lock."""
    if isinstance(error.orig, sqlite3.Error):
        code: int = getattr(error.orig, "sqlite_errorcode", 0)
        return code & 0xFF == sqlite3.SQLITE_BUSY  # primary result code; the other bytes are details
    return getattr(error.orig, "sqlstate", None) == _POSTGRES_NO_LOCK


def is_database_unavailable(error: Exception) -> bool:
    """Return whether the database is unreachable or overloaded, or ended the session, so that a retry may succeed."""
    if isinstance(error, OperationalError | InterfaceError | PoolExhausted):
        return True
    return isinstance(error, DBAPIError) and error.connection_invalidated


def failure_reason(error: BaseException, url: URL) -> str:
    """Return why the database cannot be used, without its password, in one line.

    Messages about values, such as that of a violated constraint, are left out: only the kind of the error remains.
    """
    if isinstance(error, PoolExhausted):
        return "no connection became free in time"
    cause = error.orig if isinstance(error, DBAPIError) else error
    code = getattr(cause, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return "the file is damaged or is no database: restore a backup"
    if not isinstance(error, OperationalError | InterfaceError | ProgrammingError | sqlite3.OperationalError):
        return type(error).__name__
    reason = " ".join(str(cause).split())
    if url.password:
        for form in {str(url.password), quote(str(url.password), safe="")}:
            # only the whole word: a short password may be a part of any word
            reason = re.sub(rf"(?<!\w){re.escape(form)}(?!\w)", "***", reason)
    reason = reason[:_REASON_CHARACTERS]
    remedies = [remedy for text, remedy in _REMEDIES.items() if text in reason]
    return "; ".join([reason.rstrip(".") if remedies else reason, *remedies])
