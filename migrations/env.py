"""Alembic's entry: runs migrations over the engine it is handed, one transaction a revision."""

from alembic import context
from sqlalchemy import Engine, text

import models.dataset
import models.idempotency
import models.job
import models.ledger
import models.report
import models.result
import models.round
import models.tenant  # noqa: F401 - every table must be known to the metadata
from models.db import Base, Database

LOCK_TIMEOUT = "5s"  # a migration that cannot have its lock gives up instead of stopping the service


def run(engine: Engine) -> None:
    """Run the revisions asked for."""
    with engine.connect() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(text(f"SET lock_timeout = '{LOCK_TIMEOUT}'"))
            # two processes that start together migrate one after the other
            connection.execute(text("SELECT pg_advisory_xact_lock(7301440612)"))
        context.configure(
            connection=connection,
            target_metadata=Base.metadata,
            render_as_batch=engine.dialect.name == "sqlite",
            compare_type=True,
        )
        with context.begin_transaction():
            context.run_migrations()
        connection.commit()


def _engine() -> Engine:
    given = context.config.attributes.get("engine")
    if isinstance(given, Engine):
        return given
    url = context.config.get_main_option("sqlalchemy.url")
    if url is None:
        raise SystemExit("give the database's URL, or run `sfumato migrate`")
    return Database(url).engine


run(_engine())
