"""Transactions that the database aborts because of a conflict are retried and counted. Other errors are not retried."""

import sqlite3
import threading
from collections import Counter
from contextlib import closing, suppress

import psycopg
import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolExhausted
from sqlalchemy.orm import Session

from models.database import engine
from models.database.engine import Database
from models.database.types import new_id
from models.tables.identity import Tenant
from runtime.metrics_server import TransactionRetries
from runtime.settings import Settings
from tests.databases import on_postgresql, on_sqlite
from tests.models.world import NOW, Thread


def add(database: Database, *names: str) -> None:
    with database.transaction() as session:
        session.add_all(Tenant(id=new_id("ten"), name=name, created_at=NOW) for name in names)


def cross(database: Database, name: str, first: str, second: str, met: threading.Barrier) -> int:
    """Change two rows in this order, while another thread changes them in reverse. Return the number of tries."""
    tries: list[int] = []

    def change(session: Session) -> None:
        tries.append(1)
        session.execute(text("UPDATE tenants SET created_at = created_at + 1 WHERE name = :name"), {"name": first})
        if len(tries) == 1:
            met.wait(60)
        session.execute(text("UPDATE tenants SET created_at = created_at + 1 WHERE name = :name"), {"name": second})

    database.run(name, change)
    return len(tries)


def url_of(database: Database) -> str:
    return database.engine.url.render_as_string(hide_password=False)


class TestRetry:
    @on_postgresql
    def test_after_a_deadlock_keeps_both_changes(self, database: Database) -> None:
        add(database, "a", "b")
        met = threading.Barrier(2)

        crossing = [Thread(lambda p=pair: cross(database, "cross", *p, met)) for pair in (("a", "b"), ("b", "a"))]

        assert sorted(each.outcome() for each in crossing) == [1, 2]
        assert database.retries == Counter({("cross", "deadlock"): 1})
        with database.reading() as session:
            assert set(session.scalars(text("SELECT created_at FROM tenants"))) == {NOW + 2}

    @on_postgresql
    def test_after_a_serialization_failure(self, database: Database) -> None:
        add(database, "a")
        tries: list[int] = []

        def change(session: Session) -> None:
            tries.append(1)
            session.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
            session.execute(text("SELECT created_at FROM tenants")).all()
            if len(tries) == 1:
                with database.transaction() as other:
                    other.execute(text("UPDATE tenants SET created_at = 1"))
            session.execute(text("UPDATE tenants SET created_at = created_at + 1"))

        database.run("change", change)

        assert database.retries == Counter({("change", "serialization"): 1})
        with database.reading() as session:
            assert session.scalars(text("SELECT created_at FROM tenants")).one() == 2

    @on_sqlite
    def test_without_the_write_lock(self, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(engine, "_SQLITE_BUSY_MILLISECONDS", 10)
        impatient = Database(url_of(database), pool_size=1)
        other = sqlite3.connect(str(database.engine.url.database), timeout=0, isolation_level=None)
        with closing(other):
            other.execute("BEGIN IMMEDIATE")

            def release(_seconds: float) -> None:
                with suppress(sqlite3.Error):
                    other.execute("ROLLBACK")

            monkeypatch.setattr("models.database.engine.time.sleep", release)
            impatient.run("add", lambda s: s.add(Tenant(id=new_id("ten"), name="late", created_at=NOW)))
        assert impatient.retries == Counter({("add", "busy"): 1})
        impatient.close()

    def test_ends_after_some_tries(self, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("models.database.engine.time.sleep", lambda _: None)
        kind = sqlite3.OperationalError("locked") if database.is_sqlite else psycopg.errors.DeadlockDetected()
        if isinstance(kind, sqlite3.Error):
            kind.sqlite_errorcode = sqlite3.SQLITE_BUSY  # type: ignore[attr-defined]
        tries: list[int] = []

        def fail(_session: Session) -> None:
            tries.append(1)
            raise OperationalError("x", {}, kind)

        with pytest.raises(OperationalError):
            database.run("fail", fail)
        assert len(tries) == engine.MAX_TRIES
        assert sum(database.retries.values()) == engine.MAX_TRIES - 1

    def test_does_not_apply_to_other_errors(self, database: Database) -> None:
        add(database, "a")
        tries: list[int] = []

        def twice(session: Session) -> None:
            tries.append(1)
            session.add(Tenant(id=new_id("ten"), name="a", created_at=NOW))
            session.flush()

        with pytest.raises(DBAPIError):
            database.run("twice", twice)
        assert (len(tries), database.retries) == (1, Counter())

    @on_postgresql
    def test_does_not_apply_to_a_lost_connection(self, database: Database) -> None:
        tries: list[int] = []

        def lose(session: Session) -> None:
            tries.append(1)
            pid = session.scalar(text("SELECT pg_backend_pid()"))
            with database.transaction() as other:
                other.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
            session.execute(text("SELECT 1"))

        with pytest.raises(DBAPIError):
            database.run("lose", lose)
        assert (len(tries), database.retries) == (1, Counter())

    def test_is_counted_by_transaction_and_reason(self, database: Database) -> None:
        database.retries["submit", "deadlock"] += 2
        registry = CollectorRegistry()
        registry.register(TransactionRetries(database.retries))

        labels = {"transaction": "submit", "reason": "deadlock"}
        assert registry.get_sample_value("sfumato_transaction_retries_total", labels) == 2


class TestTimeout:
    @on_postgresql
    def test_ends_the_wait_for_a_row(self, database: Database) -> None:
        add(database, "a")
        hasty = Database(url_of(database), wait_seconds=0.1)
        with database.transaction() as session:
            session.execute(text("UPDATE tenants SET created_at = 1"))
            with pytest.raises(OperationalError, match="lock timeout"), hasty.transaction() as waiting:
                waiting.execute(text("UPDATE tenants SET created_at = 2"))
        hasty.close()

    def test_ends_the_wait_for_a_connection(self, database: Database) -> None:
        hasty = Database(url_of(database), pool_size=1, wait_seconds=0.1)
        with hasty.reading() as one, hasty.reading() as two:
            for session in (one, two):
                session.execute(text("SELECT 1"))
            with pytest.raises(PoolExhausted), hasty.reading() as third:
                third.execute(text("SELECT 1"))
        hasty.close()

    @on_postgresql
    def test_of_an_idle_transaction_frees_its_rows(self, database: Database) -> None:
        add(database, "a")
        hasty = Database(url_of(database), idle_seconds=0.2)
        stuck = hasty.engine.connect()
        stuck.execute(text("UPDATE tenants SET created_at = 1"))

        with database.transaction() as session:  # waits until the server has ended the idle session
            session.execute(text("UPDATE tenants SET created_at = 2"))
        with pytest.raises(DBAPIError):
            stuck.execute(text("SELECT 1"))
        stuck.close()
        hasty.close()

    @on_postgresql
    def test_of_the_url_has_priority(self, database: Database) -> None:
        options = {"options": "-c lock_timeout=1234"}
        own = Database(
            database.engine.url.update_query_dict(options).render_as_string(hide_password=False), wait_seconds=5
        )
        with own.reading() as session:
            found = [session.scalar(text(f"SHOW {name}")) for name in ("lock_timeout", "statement_timeout")]
        own.close()
        assert found == ["1234ms", "5min"]

    @on_postgresql
    def test_follows_the_settings_of_a_process(self, database: Database) -> None:
        limits = ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout")
        settings = Settings(database_url=url_of(database), database_wait_seconds=3, lease_seconds=7)
        with closing(Database.from_settings(settings)) as own, own.reading() as session:
            assert [session.scalar(text(f"SHOW {name}")) for name in limits] == ["3s", "5min", "7s"]
        for bare in (
            Database(url_of(database), has_limits=False),
            Database.from_settings(Settings(database_url=url_of(database), database_pooler=True)),
        ):
            with closing(bare), bare.reading() as session:
                assert [session.scalar(text(f"SHOW {name}")) for name in limits] == ["0", "0", "0"]


class TestLostServer:
    @on_postgresql
    def test_is_detected_by_every_connection(self, database: Database) -> None:
        assert connection_timeouts(database) == ("10", "20000", "10")

    @on_postgresql
    def test_is_detected_within_the_time_of_the_url(self, database: Database) -> None:
        url = database.engine.url.update_query_dict({"tcp_user_timeout": "1234"})
        own = Database(url.render_as_string(hide_password=False), wait_seconds=5)
        assert connection_timeouts(own) == ("10", "1234", "10")
        own.close()


def connection_timeouts(database: Database) -> tuple[str, ...]:
    """Return the time-outs of a connection: to connect, for unacknowledged data, and before the first probe."""
    with database.engine.connect() as connection:
        raw = connection.connection.dbapi_connection
        assert isinstance(raw, psycopg.Connection)
        given = raw.info.get_parameters()
    return tuple(given[name] for name in ("connect_timeout", "tcp_user_timeout", "keepalives_idle"))
