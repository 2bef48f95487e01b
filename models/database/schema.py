"""Migrate the schema with Alembic, and check its revision."""

import re
from contextlib import closing
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

import structlog
from sqlalchemy import inspect, text
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from models.database.checks import check_settings
from models.database.engine import Database
from models.database.failures import is_database_unavailable, is_lock_timeout
from sfumato.errors import SfumatoError

if TYPE_CHECKING:
    from alembic.config import Config


log = structlog.get_logger(__name__)

CHECK_SECONDS = 2.0  # longest wait of a check for the lock of another writer

_DECLARED = re.compile(r"""^(revision|down_revision) = (?:["'](\w+)["']|None)$""", re.MULTILINE)


class SchemaInUse(SfumatoError):
    """A migration could not lock a table in time. The database is unchanged."""

    code = "unavailable"


class WrongSchema(SfumatoError):
    """The database has a schema that this version cannot use, and no migration leads from it to a known one."""

    code = "wrong_schema"


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
    WrongSchema
        If no migration exists for the database. It is unchanged.
    WrongSettings
        If a setting of the database does not permit correct work.
    SchemaInUse
        If a long transaction has locked a table that a migration changes. The database is unchanged.
    """
    from alembic import command

    database = Database(url, has_limits=False)
    config = _alembic(url)
    config.attributes["engine"] = database.engine
    try:
        problem = find_schema_problem(database)
        if problem is not None and not problem.can_migrate:
            raise WrongSchema(problem.text)
        check_settings(database)
        command.upgrade(config, "head")
    except OperationalError as error:
        if not is_lock_timeout(error):
            raise
        raise SchemaInUse(
            "another transaction has locked a table that a migration changes; nothing was changed, try again"
        ) from error
    finally:
        database.close()


class SchemaProblem(NamedTuple):
    """Why this version cannot use the schema of a database, in one sentence with the remedy."""

    text: str
    can_migrate: bool


def find_schema_problem(database: Database) -> SchemaProblem | None:
    """Return why this version cannot use the schema, or None if it has the newest revision."""
    newest, known = read_revisions()
    with database.reading() as session:
        has_schema = inspect(session.connection()).has_table("alembic_version")
        found = session.scalar(text("SELECT version_num FROM alembic_version")) if has_schema else None
    if found == newest:
        return None
    if found is None:
        return SchemaProblem("the database has no schema yet: run `sfumato migrate`", can_migrate=True)
    if found in known:
        return SchemaProblem(
            f"the database has the older schema {found} instead of {newest}: make a backup, then run `sfumato migrate`",
            can_migrate=True,
        )
    if found.isdecimal() and newest.isdecimal() and int(found) > int(newest):
        return SchemaProblem(
            f"the database has the schema {found} of a newer version, and this version knows {newest} at most: "
            "install the newer version, or restore a backup of this version",
            can_migrate=False,
        )
    return SchemaProblem(
        f"the database has the schema {found!r} of an older, unreleased version, from which no migration exists: "
        "use it with that version, or start with an empty database",
        can_migrate=False,
    )


def read_revisions() -> tuple[str, frozenset[str]]:
    """Return the newest revision and all revisions that this version knows, from the files of the migrations.

    Alembic can list them too. Gateways and workers do not import it, because it takes 8 MB of each process.
    """
    declared = [
        dict(_DECLARED.findall(each.read_text()))
        for each in (files("migrations") / "versions").iterdir()
        if each.name.endswith(".py") and each.name != "__init__.py"
    ]
    known = frozenset(each["revision"] for each in declared)
    (newest,) = known - {each["down_revision"] for each in declared}
    return newest, known


def check_start(database: Database, *, is_pooled: bool) -> str | None:
    """Check schema and settings before a gateway or a worker uses the database, and scrub what a killed process left.

    Returns
    -------
    str or None
        Why the database cannot be used yet, although it may be usable later: it is away, or not migrated.

    Raises
    ------
    WrongSchema, WrongSettings
        If waiting is of no use.
    """
    try:
        problem = find_schema_problem(database)
        if problem is not None and not problem.can_migrate:
            raise WrongSchema(problem.text)
        for warning in check_settings(database, is_pooled=is_pooled):
            log.warning("unusual_database_setting", reason=warning)
    except SQLAlchemyError as error:
        if not is_database_unavailable(error):
            raise
        return f"the database cannot be reached: {database.failure_reason(error)}"
    if problem is None:
        database.truncate_wal()
    return problem.text if problem is not None else None


def check_writes(database: Database) -> None:
    """Write the revision again and commit. Raise SQLAlchemyError or sqlite3.Error if the database accepts no write.

    A lock that another process holds for longer than `CHECK_SECONDS` is such an error too.
    """
    change = "UPDATE alembic_version SET version_num = version_num"
    if database.is_sqlite:
        with closing(database.connect_sqlite(CHECK_SECONDS)) as connection:
            for statement in ("BEGIN IMMEDIATE", change, "COMMIT"):
                connection.execute(statement)
        return
    with database.transaction() as session:
        session.execute(text(f"SET LOCAL lock_timeout = {round(1000 * CHECK_SECONDS)}"))
        session.execute(text(change))
