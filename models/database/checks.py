"""Check the settings of a database before it is used: wrong ones would lose data, mix up text, or undo promises."""

from collections.abc import Callable
from typing import NamedTuple

from sqlalchemy import text
from sqlalchemy.orm import Session

from models.database.engine import Database
from sfumato.errors import SfumatoError


class WrongSettings(SfumatoError):
    """A setting of the database does not permit correct work."""

    code = "wrong_settings"


class _Setting(NamedTuple):
    name: str
    is_right: Callable[[str], bool]
    reason: str
    remedy: str
    is_fatal: bool = True


_ALTER = "ALTER DATABASE {database} SET {name} = on"
_ON = "on".__eq__

POSTGRES_SETTINGS = (
    _Setting(
        "server_encoding", "UTF8".__eq__, "names could not be stored", "create the database with ENCODING 'UTF8'"
    ),
    _Setting("standard_conforming_strings", _ON, "texts would be read wrongly", _ALTER),
    _Setting(
        "transaction_read_only",
        "off".__eq__,
        "nothing can be written",
        "use the address of the primary, or ALTER DATABASE {database} SET default_transaction_read_only = off",
    ),
    _Setting(
        "synchronous_commit",
        lambda value: value != "off",
        "a crash could lose acknowledged reports, and charges of noise that was released",
        _ALTER,
    ),
    _Setting(
        "session_replication_role",
        "origin".__eq__,
        "the triggers that protect the ledger are off",
        "ALTER DATABASE {database} RESET {name}",
    ),
    _Setting(
        "fsync", _ON, "a crash of the machine could destroy the database", "set it to on in postgresql.conf", False
    ),
    _Setting(
        "full_page_writes", _ON, "a crash of the machine could destroy the database",
        "set it to on in postgresql.conf", False,
    ),
)  # fmt: skip
# Settings that a direct connection sets itself. Behind a pooler the role needs them.
POOLED_SETTINGS = tuple(
    _Setting(
        name,
        lambda value: value != "0",
        "a stuck session would keep its locks",
        f"ALTER ROLE ... SET {{name}} = '{value}'",
        False,
    )
    for name, value in (("lock_timeout", "10s"), ("idle_in_transaction_session_timeout", "20s"))
)
SQLITE_SETTINGS = (
    _Setting(
        "journal_mode",
        ("wal", "memory").__contains__,  # a database in memory has no log
        "readers would stop writers",
        "put the file on a local file system, and close other programs that use it",
    ),
    _Setting("encoding", "UTF-8".__eq__, "texts would be compared wrongly", "start with a new file"),
    _Setting("foreign_keys", "1".__eq__, "deletions would leave rows behind", "use a SQLite with foreign keys"),
    _Setting("secure_delete", "1".__eq__, "deleted reports would remain in the file", "use a complete SQLite"),
)


def check_settings(database: Database, *, is_pooled: bool = False) -> list[str]:
    """Check the settings of the database, and return a warning for each one that is unusual but permitted.

    Parameters
    ----------
    database : Database
    is_pooled : bool
        Whether a pooler is in front of PostgreSQL, so that the service sets no limits of its own.

    Raises
    ------
    WrongSettings
        If a setting does not permit correct work. The message has the remedy.
    """
    with database.reading() if database.is_sqlite else database.transaction() as session:
        if database.is_sqlite:
            found = {each: _read(session, f"PRAGMA {each.name}") for each in SQLITE_SETTINGS}
        else:
            chosen = (*POSTGRES_SETTINGS, *(POOLED_SETTINGS if is_pooled else ()))
            found = {each: _read(session, f"SHOW {each.name}") for each in chosen}
    wrong = [(each, _describe(each, value, database)) for each, value in found.items() if not each.is_right(value)]
    for each, sentence in wrong:
        if each.is_fatal:
            raise WrongSettings(sentence)
    return [sentence for _, sentence in wrong]


def _read(session: Session, statement: str) -> str:
    return str(session.execute(text(statement)).scalar_one())


def _describe(setting: _Setting, value: str, database: Database) -> str:
    remedy = setting.remedy.format(name=setting.name, database=database.engine.url.database)
    return f"{setting.name} of the database is {value}, so {setting.reason}: {remedy}"
