"""The dedicated connection: commits, rollbacks, and its return to the pool."""

from typing import Any

import pytest
from sqlalchemy import Connection, func, select, text

from models.database.engine import Database, DedicatedConnection
from models.tables.identity import Tenant
from tests.models.world import World

INSERT = text("INSERT INTO tenants (id, name, created_at) VALUES (:id, :name, 1)")


def add(name: str) -> Any:
    """Work that makes a tenant."""
    return lambda connection: connection.execute(INSERT, {"id": f"tnt_{name}", "name": name})


def n_named(database: Database, name: str) -> int:
    with database.reading() as session:
        return session.scalar(select(func.count()).where(Tenant.name == name)) or 0


@pytest.fixture
def steady(world: World) -> Any:
    kept = DedicatedConnection(world.database)
    yield kept
    kept.close()


class TestRun:
    def test_commits_and_returns_the_result(self, world: World, steady: DedicatedConnection) -> None:
        assert steady.run("x", lambda connection: (add("one")(connection), 7)[1]) == 7
        assert n_named(world.database, "one") == 1

    def test_rolls_back_after_an_error_and_continues(self, world: World, steady: DedicatedConnection) -> None:
        def fail(connection: Connection) -> None:
            add("two")(connection)
            raise ValueError("no")

        with pytest.raises(ValueError, match="no"):
            steady.run("x", fail)
        steady.run("x", add("three"))
        assert (n_named(world.database, "two"), n_named(world.database, "three")) == (0, 1)

    def test_keeps_its_connection_while_in_use(
        self, world: World, steady: DedicatedConnection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        taken: list[Any] = []
        connect = world.database.engine.connect
        monkeypatch.setattr(world.database.engine, "connect", lambda: taken.append(connect()) or taken[-1])
        for index in range(5):
            steady.run("x", add(f"busy{index}"))
        assert len(taken) == 1
        steady._used_at -= 10  # idle since
        steady.run("x", add("later"))
        assert len(taken) == 2
        assert taken[0].closed

    def test_replaces_a_broken_connection(self, world: World, steady: DedicatedConnection) -> None:
        steady.run("x", add("before"))

        def break_it(connection: Connection) -> None:
            connection.connection.dbapi_connection.close()  # type: ignore[union-attr]
            connection.execute(text("SELECT 1"))

        with pytest.raises(Exception, match=r"closed|connection"):
            steady.run("x", break_it)
        steady.run("x", add("after"))
        assert n_named(world.database, "after") == 1

    def test_close_returns_the_connection(self, world: World) -> None:
        pool: Any = world.database.engine.pool
        before = pool.checkedout()
        kept = DedicatedConnection(world.database)
        kept.run("x", add("end"))
        assert pool.checkedout() == before + 1
        kept.close()
        kept.close()
        assert pool.checkedout() == before
