"""Migrate the schema with Alembic, and check its revision."""

from importlib.resources import files
from typing import TYPE_CHECKING

from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from models.database.engine import Database, is_lock_timeout
from sfumato.errors import SfumatoError

if TYPE_CHECKING:
    from alembic.config import Config


class SchemaInUse(SfumatoError):
    """A migration could not lock a table in time. The database is unchanged."""

    code = "unavailable"


def _alembic(url: str) -> "Config":
    from alembic.config import Config  # imported in functions: it takes 0.2 s, which most commands do not need

    config = Config()
    config.set_main_option("script_location", str(files("migrations")))
    config.set_main_option("sqlalchemy.url", url.replace("%", "%%"))
    return config


def migrate(url: str) -> None:
    """Migrate the schema to the newest revision, or create it in an empty database.

    Raises
    ------
    SchemaInUse
        If a long transaction has locked a table that a migration changes. The database is unchanged.
    """
    from alembic import command

    database = Database(url, has_limits=False)
    config = _alembic(url)
    config.attributes["engine"] = database.engine
    try:
        command.upgrade(config, "head")
    except OperationalError as error:
        if not is_lock_timeout(error):
            raise
        raise SchemaInUse(
            "another transaction has locked a table that a migration changes; nothing was changed, try again"
        ) from error
    finally:
        database.close()


def is_migrated(database: Database) -> bool:
    """Return whether the schema has the newest revision that this software knows."""
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory

    newest = ScriptDirectory.from_config(_alembic("")).get_current_head()
    with database.reading() as session:
        return MigrationContext.configure(session.connection()).get_current_revision() == newest


def check_writes(database: Database) -> None:
    """Write the revision again and commit. Raise SQLAlchemyError if the database refuses writes.

    A database that is only busy accepts writes later, so this is no error.
    """
    try:
        with database.transaction() as session:
            session.execute(text("UPDATE alembic_version SET version_num = version_num"))
    except OperationalError as error:
        if not is_lock_timeout(error):
            raise
