"""Settings of a database that would lose data or undo promises are refused or named before it is used."""

import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError

from models.database.checks import WrongSettings, check_settings
from models.database.engine import Database, DedicatedConnection
from models.database.failures import is_database_unavailable
from models.database.schema import WrongSchema, check_start, find_schema_problem, migrate
from runtime.settings import sqlite_url
from tests.databases import on_postgresql, on_sqlite


def reopened(database: Database, **query: str) -> Database:
    url = database.engine.url.update_query_dict(query)
    return Database(url.render_as_string(hide_password=False), pool_size=1)


class TestSettings:
    @on_postgresql
    @pytest.mark.parametrize(
        "setting",
        [
            "standard_conforming_strings=off",
            "synchronous_commit=off",
            "session_replication_role=replica",
            "default_transaction_read_only=on",
        ],
    )
    def test_that_break_promises_are_refused_with_the_remedy(self, database: Database, setting: str) -> None:
        with closing(reopened(database, options=f"-c {setting}", target_session_attrs="any")) as wrong:
            name = setting.partition("=")[0].removeprefix("default_")
            with pytest.raises(WrongSettings, match=f"{name} of the database is .*: .*ALTER DATABASE"):
                check_settings(wrong)

    @on_postgresql
    def test_of_a_session_that_is_read_only_prevent_the_connection(self, database: Database) -> None:
        with closing(reopened(database, options="-c default_transaction_read_only=on")) as wrong:
            reason = check_start(wrong, is_pooled=False)
        assert reason is not None
        assert "use the address of the primary" in reason

    def test_with_another_encoding_prevent_the_migration(self, postgres_url: str) -> None:
        with psycopg.connect(postgres_url.replace("+psycopg", ""), autocommit=True) as admin:
            name = sql.Identifier("sfumato_latin")
            admin.execute(sql.SQL("CREATE DATABASE {} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0").format(name))
            try:
                url = make_url(postgres_url).set(database="sfumato_latin").render_as_string(hide_password=False)
                with pytest.raises(WrongSettings, match=r"server_encoding of the database is LATIN1.*ENCODING 'UTF8'"):
                    migrate(url)
            finally:
                admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))

    @on_postgresql
    def test_that_risk_the_database_are_named(self, database: Database) -> None:
        assert [warning.split()[0] for warning in check_settings(database)] == ["fsync", "full_page_writes"]
        with closing(reopened(database, options="-c lock_timeout=0")) as pooled:
            assert [warning.split()[0] for warning in check_settings(pooled, is_pooled=True)][2:] == ["lock_timeout"]

    @on_sqlite
    def test_of_a_file_in_another_encoding_are_refused(self, tmp_path: Path, database: Database) -> None:
        with closing(sqlite3.connect(tmp_path / "wide.db")) as connection:
            connection.execute("PRAGMA encoding = 'UTF-16'")
            connection.execute("CREATE TABLE t (x)")
        with pytest.raises(WrongSettings, match="encoding of the database is UTF-16"):
            migrate(sqlite_url(tmp_path / "wide.db"))
        assert check_settings(database) == []


class TestSchema:
    @pytest.mark.parametrize(
        ("revision", "words"),
        [("9999", "of a newer version, .*install the newer version"), ("2025_old", "older, unreleased version")],
    )
    def test_of_another_version_is_refused_in_one_sentence(self, database: Database, revision: str, words: str) -> None:
        change = text("UPDATE alembic_version SET version_num = :revision")
        with database.transaction() as session:
            newest = session.scalar(text("SELECT version_num FROM alembic_version"))
            session.execute(change, {"revision": revision})
        url = database.engine.url.render_as_string(hide_password=False)
        for refuse in (lambda: migrate(url), lambda: check_start(database, is_pooled=False)):
            with pytest.raises(WrongSchema, match=words) as caught:
                refuse()
            assert "\n" not in str(caught.value)
        with database.transaction() as session:
            assert session.scalar(text("SELECT version_num FROM alembic_version")) == revision
            session.execute(change, {"revision": newest})  # other tests use the same database

    def test_that_does_not_exist_yet_is_awaited(self, empty_database_url: str) -> None:
        with closing(Database(empty_database_url)) as database:
            assert check_start(database, is_pooled=False) == "the database has no schema yet: run `sfumato migrate`"
            migrate(empty_database_url)
            assert find_schema_problem(database) is None
            assert check_start(database, is_pooled=False) is None


@on_postgresql
class TestReadOnlySession:
    """A session of a standby refuses writes. The next connection may reach the primary."""

    @pytest.mark.parametrize("state", ["read_only_sql_transaction", "feature_not_supported"])
    def test_is_closed_and_the_failure_may_be_repeated(self, database: Database, state: str) -> None:
        refuse = text(f"DO $$ BEGIN RAISE {state}; END $$")
        with closing(reopened(database)) as one:
            before = _session_of(one)
            with pytest.raises(DBAPIError) as caught, one.transaction() as session:
                session.execute(refuse)
            assert is_database_unavailable(caught.value)
            assert _session_of(one) != before

    def test_of_a_dedicated_connection_is_closed(self, database: Database) -> None:
        with closing(reopened(database)) as one:
            dedicated = DedicatedConnection(one)
            before = dedicated.run("look", lambda connection: connection.scalar(text("SELECT pg_backend_pid()")))
            with pytest.raises(DBAPIError) as caught:
                dedicated.run(
                    "refused",
                    lambda connection: connection.execute(text("DO $$ BEGIN RAISE read_only_sql_transaction; END $$")),
                )
            assert is_database_unavailable(caught.value)
            after = dedicated.run("look", lambda connection: connection.scalar(text("SELECT pg_backend_pid()")))
            dedicated.close()
        assert after != before

    def test_of_a_transaction_that_was_declared_so_stays(self, database: Database) -> None:
        with closing(reopened(database)) as one:
            before = _session_of(one)
            with pytest.raises(DBAPIError) as caught, one.reading() as session:
                session.execute(text("DELETE FROM tenants"))
            assert not is_database_unavailable(caught.value)
            assert _session_of(one) == before


def _session_of(database: Database) -> int:
    with database.reading() as session:
        return int(session.scalar(text("SELECT pg_backend_pid()")) or 0)
