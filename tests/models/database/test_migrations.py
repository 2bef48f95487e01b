"""Migrations produce the declared tables, and run in one process at a time."""

import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, text
from sqlalchemy.exc import DBAPIError
from typer.testing import CliRunner

from models.database.engine import Database
from models.database.schema import SchemaInUse, find_schema_problem, migrate, read_revisions
from models.database.types import Base
from models.tables.jobs import UNFINISHED
from service.cli.main import app
from tests.databases import on_postgresql, on_sqlite

REPOSITORY = Path(__file__).parents[3]
OBVIOUS = {"id", "name", "tenant_id", "dataset_id", "round_id", "job_id", "webhook_id", "n_reports", "state"}
OBVIOUS |= {"closed_at", "tallied_at", "finished_at", "error_code", "location"}


class TestMigration:
    def test_of_an_empty_database_creates_the_declared_tables(self, empty_database_url: str) -> None:
        database = Database(empty_database_url)
        before = find_schema_problem(database) is None

        migrate(empty_database_url)

        with database.engine.connect() as connection:
            differences = compare_metadata(
                MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True}),
                Base.metadata,
            )
            tables = set(inspect(connection).get_table_names())
        assert differences == []
        assert tables == {*Base.metadata.tables, "alembic_version"}
        assert (before, find_schema_problem(database) is None) == (False, True)
        database.close()

    @on_postgresql
    def test_lets_postgresql_compress_no_reports(self, database_url: str) -> None:
        database = Database(database_url)
        query = "SELECT attstorage FROM pg_attribute WHERE attrelid = 'report_batches'::regclass AND attname = 'packed'"
        with database.reading() as session:
            assert session.execute(text(query)).scalar_one() in ("e", b"e")  # EXTERNAL: apart from the row, as it is
        database.close()

    def test_indexes_the_unfinished_jobs_alone(self, database_url: str) -> None:
        """The comparison with the declared tables does not see the predicate of an index."""
        database = Database(database_url)
        query = "SELECT sql FROM sqlite_master WHERE name = 'ix_jobs_unfinished'"
        if database.engine.dialect.name == "postgresql":
            query = "SELECT indexdef FROM pg_indexes WHERE indexname = 'ix_jobs_unfinished'"
        with database.reading() as session:
            definition = session.execute(text(query)).scalar_one()
        predicate = definition.partition("WHERE")[2]
        assert sorted(re.findall(r"'(\w+)'", predicate)) == sorted(UNFINISHED)
        database.close()

    def test_again_changes_nothing(self, database_url: str) -> None:
        database = Database(database_url)
        with database.transaction() as session:
            session.execute(text("INSERT INTO tenants VALUES ('ten_1', 'kept', 1)"))

        migrate(database_url)

        with database.reading() as session:
            assert session.execute(text("SELECT name FROM tenants")).scalars().all() == ["kept"]
        database.close()

    def test_failure_changes_nothing(self, empty_database_url: str) -> None:
        database = Database(empty_database_url)
        with database.transaction() as session:
            session.execute(text("CREATE TABLE report_batches (in_the_way INTEGER)"))

        with pytest.raises(DBAPIError, match="report_batches"):
            migrate(empty_database_url)

        assert inspect(database.engine).get_table_names() == ["report_batches"]
        assert find_schema_problem(database) is not None
        database.close()

    def test_runs_once_if_two_processes_migrate(self, empty_database_url: str) -> None:
        script = (
            "import sys\n"
            "from models.database.schema import migrate\n"
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
        assert find_schema_problem(database) is None
        database.close()

    @on_postgresql
    def test_waits_for_another_migration_beyond_the_lock_timeout(self, empty_database_url: str) -> None:
        database = Database(empty_database_url)
        migrating = threading.Thread(target=migrate, args=[empty_database_url])
        with database.transaction() as session:
            session.execute(text("SELECT pg_advisory_xact_lock(7301440612)"))
            migrating.start()
            time.sleep(5.5)  # LOCK_TIMEOUT is 5 s
            assert migrating.is_alive()
        migrating.join()

        assert find_schema_problem(database) is None
        database.close()


class TestRevisions:
    def test_are_those_of_alembic(self) -> None:
        scripts = ScriptDirectory(str(REPOSITORY / "migrations"))
        known = {each.revision for each in scripts.walk_revisions()}
        assert len(known) >= 2
        assert read_revisions() == (scripts.get_current_head(), known)

    def test_must_be_declared_in_each_file(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        (tmp_path / "versions").mkdir()
        (tmp_path / "versions" / "odd.py").write_text('revision, down_revision = "0001", None\n')
        monkeypatch.setattr("models.database.schema.files", lambda _: tmp_path)
        with pytest.raises(KeyError, match="revision"):
            read_revisions()


class TestMigrationUnderLoad:
    """A later migration, on tables that other transactions use."""

    @pytest.fixture
    def later(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """Add a revision that changes the table `jobs`."""
        scripts = tmp_path / "migrations"
        shutil.copytree(REPOSITORY / "migrations", scripts)
        (scripts / "versions" / "later.py").write_text(
            "import sqlalchemy as sa\nfrom alembic import op\n"
            'revision = "later"\ndown_revision = "0002"\nbranch_labels = None\ndepends_on = None\n'
            'def upgrade():\n    op.add_column("jobs", sa.Column("later", sa.Integer()))\n'
        )
        monkeypatch.setattr("models.database.schema.files", lambda _: scripts)

    @on_postgresql
    def test_times_out_on_a_locked_table_and_succeeds_afterwards(
        self, database_url: str, later: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        database = Database(database_url)
        with database.reading() as long_query:
            long_query.execute(text("SELECT count(*) FROM jobs"))

            with pytest.raises(SchemaInUse, match="nothing was changed, try again"):
                migrate(database_url)

            assert "later" not in columns(database, "jobs")
            assert find_schema_problem(database) is not None
            with database.transaction() as session:  # no transaction waits behind the migration
                session.execute(text("SET LOCAL lock_timeout = '1s'"))
                session.execute(text("LOCK TABLE jobs IN ROW EXCLUSIVE MODE"))

        migrate(database_url)
        assert "later" in columns(database, "jobs")
        assert find_schema_problem(database) is None
        database.close()

    @on_sqlite
    def test_command_explains_the_timeout(
        self, database_url: str, later: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("models.database.engine._SQLITE_BUSY_MILLISECONDS", 50)
        monkeypatch.setenv("SFUMATO_DATABASE_URL", database_url)
        database = Database(database_url)
        with database.transaction() as session:
            session.execute(text("UPDATE jobs SET state = 'queued'"))
            rejected = CliRunner().invoke(app, ["migrate"])
        accepted = CliRunner().invoke(app, ["migrate"])

        assert (rejected.exit_code, accepted.exit_code) == (1, 0)
        assert "nothing was changed, try again" in rejected.output
        database.close()


def columns(database: Database, table: str) -> list[str]:
    return [column["name"] for column in inspect(database.engine).get_columns(table)]


class TestTables:
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
