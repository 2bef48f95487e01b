"""Statements through the driver: results, errors and lost connections are those of SQLAlchemy."""

import sqlite3
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, bindparam, insert, text, update
from sqlalchemy.exc import DBAPIError, IntegrityError

from models.database.driver_statement import DriverStatement, has_ended_session
from models.database.engine import DedicatedConnection
from models.database.failures import is_database_unavailable
from models.tables.identity import Tenant
from tests.databases import on_postgresql
from tests.models.world import World

TENANTS: Any = Tenant.__table__
ADD = DriverStatement(insert(TENANTS).inline(), "id", "name", "created_at")
RENAME = DriverStatement(
    update(TENANTS)
    .where(TENANTS.c.id == bindparam("only"), TENANTS.c.name == "old")
    .values(name="new")
    .returning(TENANTS.c.id, TENANTS.c.name)
)


@pytest.fixture
def steady(world: World) -> Any:
    kept = DedicatedConnection(world.database)
    yield kept
    kept.close()


def add(connection: Connection, name: str = "old") -> None:
    assert ADD.execute(connection, {"id": "ten_x", "name": name, "created_at": 1}) is None


def rename(connection: Connection) -> Any:
    return RENAME.execute(connection, {"only": "ten_x"})


class TestExecute:
    def test_returns_the_first_row_or_none(self, steady: DedicatedConnection) -> None:
        assert steady.run("x", rename) is None
        steady.run("x", add)
        assert tuple(steady.run("x", rename)) == ("ten_x", "new")
        assert steady.run("x", rename) is None

    def test_raises_the_errors_of_sqlalchemy_without_values(self, steady: DedicatedConnection) -> None:
        steady.run("x", add)
        with pytest.raises(IntegrityError) as raised:
            steady.run("x", lambda connection: add(connection, "private"))
        assert "private" not in str(raised.value)
        assert tuple(steady.run("x", rename)) == ("ten_x", "new")

    def test_replaces_a_lost_connection(self, steady: DedicatedConnection) -> None:
        def lose(connection: Connection) -> None:
            connection.connection.dbapi_connection.close()  # type: ignore[union-attr]
            add(connection)

        with pytest.raises(DBAPIError) as raised:
            steady.run("x", lose)
        assert raised.value.connection_invalidated
        assert steady.run("x", rename) is None  # nothing was stored
        steady.run("x", add)
        assert tuple(steady.run("x", rename)) == ("ten_x", "new")

    @pytest.mark.parametrize(
        ("error", "has_ended"),
        [
            (psycopg.OperationalError("connection socket closed"), True),
            (psycopg.ProgrammingError("the last operation produced no result"), False),
            (psycopg.errors.LockNotAvailable(), False),
            (sqlite3.OperationalError("database is locked"), False),
            (None, False),
        ],
        ids=str,
    )
    def test_knows_failures_of_the_driver_to_send_or_receive(self, error: Exception | None, has_ended: bool) -> None:
        assert has_ended_session(error) is has_ended

    @on_postgresql
    def test_replaces_the_connection_of_an_ended_session_before_the_driver_notices(
        self, steady: DedicatedConnection, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(world.database.engine.dialect, "is_disconnect", lambda *_: False)

        def end_session(connection: Connection) -> None:
            session = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
            with world.database.engine.connect() as other:  # ends it when the driver has read all that was sent
                other.execute(text("SELECT pg_terminate_backend(:session, 60000)"), {"session": session})
            add(connection)

        with pytest.raises(DBAPIError) as raised:
            steady.run("x", end_session)
        assert raised.value.connection_invalidated
        assert is_database_unavailable(raised.value)
        assert steady.run("x", rename) is None
