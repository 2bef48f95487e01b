"""Entry point of Alembic: run the requested migrations in one transaction."""

from alembic import context
from sqlalchemy import Connection, Engine, text

import models.tables.datasets
import models.tables.identity
import models.tables.jobs
import models.tables.ledger
import models.tables.rounds
import models.tables.series
import models.tables.webhooks  # noqa: F401 - registers all tables in the metadata
from models.database.engine import Database
from models.database.types import Base

# Later transactions queue behind a migration that waits for a lock. The migration therefore times out, and
# `models.database.schema.migrate` raises SchemaInUse.
LOCK_TIMEOUT = "5s"


def run(engine: Engine) -> None:
    """Run the requested revisions."""
    with engine.connect() as connection:
        _lock_migrations(connection)
        context.configure(
            connection=connection,
            target_metadata=Base.metadata,
            render_as_batch=engine.dialect.name == "sqlite",
            compare_type=True,
        )
        with context.begin_transaction():
            context.run_migrations()
        connection.commit()


def _lock_migrations(connection: Connection) -> None:
    """Begin a transaction and wait until no other process migrates."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(7301440612)"))  # before the timeout: it may wait long
        connection.execute(text(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'"))


def _run_from_command_line() -> None:
    url = context.config.get_main_option("sqlalchemy.url")
    if url is None:
        raise SystemExit("set sqlalchemy.url, or run `sfumato migrate`")
    database = Database(url)
    try:
        run(database.engine)
    finally:
        database.close()


_engine = context.config.attributes.get("engine")
if isinstance(_engine, Engine):
    run(_engine)
else:
    _run_from_command_line()
