"""Alembic's entry: runs migrations over the engine it is handed, all that are asked for in one transaction."""

from alembic import context
from sqlalchemy import Connection, Engine, text

import models.answer
import models.audit
import models.console_session
import models.dataset
import models.delivery
import models.idempotency
import models.job
import models.ledger
import models.quota
import models.record
import models.record_key
import models.report
import models.result
import models.round
import models.tenant
import models.webhook  # noqa: F401 - every table must be known to the metadata
from models.db import Base, Database

# A migration that waits for its lock has all who come after it wait behind it: so it gives up, `models.db.migrate`
# says so, and whoever runs it tries again.
LOCK_TIMEOUT = "5s"


def run(engine: Engine) -> None:
    """Run the revisions asked for."""
    with engine.connect() as connection:
        _migrate_alone(connection)
        context.configure(
            connection=connection,
            target_metadata=Base.metadata,
            render_as_batch=engine.dialect.name == "sqlite",
            compare_type=True,
        )
        with context.begin_transaction():
            context.run_migrations()
        connection.commit()


def _migrate_alone(connection: Connection) -> None:
    """Begin a transaction in which nobody else migrates: processes that start together go one after the other."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(7301440612)"))  # first: it may take the others a while
        connection.execute(text(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'"))


def _run_by_hand() -> None:
    url = context.config.get_main_option("sqlalchemy.url")
    if url is None:
        raise SystemExit("give the database's URL, or run `sfumato migrate`")
    database = Database(url)
    try:
        run(database.engine)
    finally:
        database.close()


given = context.config.attributes.get("engine")
if isinstance(given, Engine):
    run(given)
else:
    _run_by_hand()
