"""Migrations: from nothing to the very tables the code declares, by one process at a time."""

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import inspect, text
from sqlalchemy.exc import DBAPIError
from typer.testing import CliRunner

from models.db import Base, Database, SchemaInUse, _alembic, is_migrated, migrate
from service.cli import app

POSTGRES = pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
REPOSITORY = Path(__file__).parents[2]
OBVIOUS = {"id", "name", "tenant_id", "dataset_id", "round_id", "job_id", "webhook_id", "n_reports", "state"}
OBVIOUS |= {"closed_at", "tallied_at", "finished_at", "error_code", "location"}


class TestMigrating:
    def test_an_empty_database_gives_the_tables_the_code_declares(self, empty_database_url: str) -> None:
        database = Database(empty_database_url)
        before = is_migrated(database)

        migrate(empty_database_url)

        with database.engine.connect() as connection:
            differences = compare_metadata(
                MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True}),
                Base.metadata,
            )
            tables = set(inspect(connection).get_table_names())
        assert differences == []
        assert tables == {*Base.metadata.tables, "alembic_version"}
        assert (before, is_migrated(database)) == (False, True)
        database.close()

    def test_again_changes_nothing(self, database_url: str) -> None:
        database = Database(database_url)
        with database.transaction() as session:
            session.execute(text("INSERT INTO tenants VALUES ('ten_1', 'kept', 1)"))

        migrate(database_url)

        with database.reading() as session:
            assert session.execute(text("SELECT name FROM tenants")).scalars().all() == ["kept"]
        database.close()

    def test_that_fails_half_way_leaves_the_database_as_it_was(self, empty_database_url: str) -> None:
        database = Database(empty_database_url)
        with database.transaction() as session:
            session.execute(text("CREATE TABLE report_batches (in_the_way INTEGER)"))

        with pytest.raises(DBAPIError, match="report_batches"):
            migrate(empty_database_url)

        assert inspect(database.engine).get_table_names() == ["report_batches"]
        assert not is_migrated(database)
        database.close()

    def test_by_two_processes_at_once_is_done_by_one(self, empty_database_url: str) -> None:
        script = (
            "import sys\n"
            "from models.db import migrate\n"
            "print('ready', flush=True); sys.stdin.readline(); migrate(sys.argv[1])\n"
        )
        pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        command = [sys.executable, "-W", "error", "-c", script, empty_database_url]
        other = subprocess.Popen(command, text=True, cwd=REPOSITORY, **pipes)
        ready = other.stdout.readline()  # imported, so that the two meet
        other.stdin.write("\n")
        other.stdin.flush()
        migrate(empty_database_url)
        _, said = other.communicate()

        assert (ready, other.returncode, said) == ("ready\n", 0, "")
        database = Database(empty_database_url)
        assert is_migrated(database)
        database.close()

    @POSTGRES
    def test_waits_for_another_longer_than_it_would_for_a_table(self, empty_database_url: str) -> None:
        database = Database(empty_database_url)
        migrating = threading.Thread(target=migrate, args=[empty_database_url])
        with database.transaction() as session:
            session.execute(text("SELECT pg_advisory_xact_lock(7301440612)"))
            migrating.start()
            time.sleep(5.5)  # LOCK_TIMEOUT is 5 s
            assert migrating.is_alive()
        migrating.join()

        assert is_migrated(database)
        database.close()


class TestMigratingUnderWork:
    @POSTGRES
    def test_gives_up_on_a_table_somebody_holds_and_succeeds_afterwards(self, empty_database_url: str) -> None:
        database = Database(empty_database_url)
        config = _alembic(empty_database_url)
        config.attributes["engine"] = database.engine
        command.upgrade(config, "0002")
        before = columns(database)
        with database.reading() as long_query:
            long_query.execute(
                text("SET LOCAL idle_in_transaction_session_timeout = '120s'")
            )  # no migration waits for ever
            long_query.execute(text("SELECT count(*) FROM jobs"))

            with pytest.raises(SchemaInUse, match="nothing was changed, try again"):
                migrate(empty_database_url)

            assert columns(database) == before
            assert not is_migrated(database)
            with database.transaction() as session:  # and nobody waits behind it
                session.execute(text("SET LOCAL lock_timeout = '1s'"))
                session.execute(text("LOCK TABLE jobs IN ROW EXCLUSIVE MODE"))

        migrate(empty_database_url)
        assert is_migrated(database)
        database.close()

    @pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
    def test_that_gave_up_is_said_in_a_sentence(self, empty_database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("models.db._SQLITE_BUSY_MILLISECONDS", 50)
        monkeypatch.setenv("SFUMATO_DATABASE_URL", empty_database_url)
        database = Database(empty_database_url)
        config = _alembic(empty_database_url)
        config.attributes["engine"] = database.engine
        command.upgrade(config, "0002")
        with database.transaction() as session:
            session.execute(text("UPDATE jobs SET state = 'queued'"))
            refused = CliRunner().invoke(app, ["migrate"])
        accepted = CliRunner().invoke(app, ["migrate"])

        assert (refused.exit_code, accepted.exit_code) == (1, 0)
        assert "nothing was changed, try again" in refused.output
        database.close()


def columns(database: Database) -> dict[str, list[str]]:
    """By table."""
    found = inspect(database.engine)
    return {table: [column["name"] for column in found.get_columns(table)] for table in found.get_table_names()}


class TestTheTables:
    def test_every_column_has_a_comment_or_an_obvious_name(self) -> None:
        silent = [
            f"{table.name}.{column.name}"
            for table in Base.metadata.tables.values()
            for column in table.columns
            if not column.comment and column.name not in OBVIOUS
        ]

        assert silent == []

    def test_every_reference_to_another_row_has_an_index(self) -> None:
        def is_indexed(table: str, column: str) -> bool:
            found = Base.metadata.tables[table]
            firsts = [next(iter(index.columns)).name for index in found.indexes]
            firsts += [
                next(iter(constraint.columns)).name
                for constraint in found.constraints
                if type(constraint).__name__ in ("UniqueConstraint", "PrimaryKeyConstraint")
            ]
            return column in firsts

        references = {
            (table.name, key.parent.name) for table in Base.metadata.tables.values() for key in table.foreign_keys
        }
        assert [each for each in sorted(references) if not is_indexed(*each)] == []
