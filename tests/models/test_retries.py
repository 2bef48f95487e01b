"""Transactions that the database ends for others' sake are done again, counted by name; others are not."""

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

from models import db
from models.db import Database, new_id
from models.exposition import RetriedTransactions
from models.tenant import Tenant
from tests.models.world import NOW, Thread

SQLITE = pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
POSTGRES = pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)


def add(database: Database, *names: str) -> None:
    with database.transaction() as session:
        session.add_all(Tenant(id=new_id("ten"), name=name, created_at=NOW) for name in names)


def cross(database: Database, name: str, first: str, second: str, met: threading.Barrier) -> int:
    """Change two rows in this order; the first try meets whoever changes them in the other. How often it was tried."""
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


class TestAnEndedTransaction:
    @POSTGRES
    def test_by_a_deadlock_is_done_again_and_both_are_kept(self, database: Database) -> None:
        add(database, "a", "b")
        met = threading.Barrier(2)

        crossing = [Thread(lambda p=pair: cross(database, "cross", *p, met)) for pair in (("a", "b"), ("b", "a"))]

        assert sorted(each.outcome() for each in crossing) == [1, 2]
        assert database.retries == Counter({("cross", "deadlock"): 1})
        with database.reading() as session:
            assert set(session.scalars(text("SELECT created_at FROM tenants"))) == {NOW + 2}

    @POSTGRES
    def test_by_a_serialization_failure_is_done_again(self, database: Database) -> None:
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

    @SQLITE
    def test_that_did_not_get_the_one_lock_is_begun_again(
        self, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(db, "_SQLITE_BUSY_MILLISECONDS", 10)
        impatient = Database(url_of(database), pool_size=1)
        other = sqlite3.connect(str(database.engine.url.database), timeout=0, isolation_level=None)
        with closing(other):
            other.execute("BEGIN IMMEDIATE")

            def let_go(_seconds: float) -> None:
                with suppress(sqlite3.Error):
                    other.execute("ROLLBACK")

            monkeypatch.setattr("models.db.time.sleep", let_go)
            impatient.run("add", lambda s: s.add(Tenant(id=new_id("ten"), name="late", created_at=NOW)))
        assert impatient.retries == Counter({("add", "busy"): 1})
        impatient.close()

    def test_is_given_up_after_some_tries(self, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("models.db.time.sleep", lambda _: None)
        kind = sqlite3.OperationalError("locked") if database.is_sqlite else psycopg.errors.DeadlockDetected()
        if isinstance(kind, sqlite3.Error):
            kind.sqlite_errorcode = sqlite3.SQLITE_BUSY  # type: ignore[attr-defined]
        tries: list[int] = []

        def fail(_session: Session) -> None:
            tries.append(1)
            raise OperationalError("x", {}, kind)

        with pytest.raises(OperationalError):
            database.run("fail", fail)
        assert len(tries) == db.MAX_TRIES
        assert sum(database.retries.values()) == db.MAX_TRIES - 1

    def test_that_failed_for_its_own_sake_is_not_done_again(self, database: Database) -> None:
        add(database, "a")
        tries: list[int] = []

        def twice(session: Session) -> None:
            tries.append(1)
            session.add(Tenant(id=new_id("ten"), name="a", created_at=NOW))
            session.flush()

        with pytest.raises(DBAPIError):
            database.run("twice", twice)
        assert (len(tries), database.retries) == (1, Counter())

    @POSTGRES
    def test_whose_connection_was_lost_is_not_done_again_since_nobody_knows(self, database: Database) -> None:
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

    def test_is_counted_by_its_name_and_the_reason(self, database: Database) -> None:
        database.retries["submit", "deadlock"] += 2
        registry = CollectorRegistry()
        registry.register(RetriedTransactions(database))

        labels = {"transaction": "submit", "reason": "deadlock"}
        assert registry.get_sample_value("sfumato_transaction_retries_total", labels) == 2
        assert {"serialization", "deadlock", "busy"} == db.RETRY_REASONS


class TestABoundedWait:
    @POSTGRES
    def test_for_a_row_ends_and_nothing_was_done(self, database: Database) -> None:
        add(database, "a")
        hasty = Database(url_of(database), wait_seconds=0.1)
        with database.transaction() as session:
            session.execute(text("UPDATE tenants SET created_at = 1"))
            with pytest.raises(OperationalError, match="lock timeout"), hasty.transaction() as waiting:
                waiting.execute(text("UPDATE tenants SET created_at = 2"))
        hasty.close()

    def test_for_a_connection_ends(self, database: Database) -> None:
        hasty = Database(url_of(database), pool_size=1, wait_seconds=0.1)
        with hasty.reading() as one, hasty.reading() as two:
            for session in (one, two):
                session.execute(text("SELECT 1"))
            with pytest.raises(PoolExhausted), hasty.reading() as third:
                third.execute(text("SELECT 1"))
        hasty.close()

    @POSTGRES
    def test_of_a_session_that_is_stuck_ends_so_that_its_rows_are_free(
        self, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(db, "IDLE_SECONDS", 0.2)
        add(database, "a")
        hasty = Database(url_of(database), wait_seconds=1)
        stuck = hasty.engine.connect()
        stuck.execute(text("UPDATE tenants SET created_at = 1"))

        with database.transaction() as session:  # without a limit: for ever, were it not ended
            session.execute(text("UPDATE tenants SET created_at = 2"))
        with pytest.raises(DBAPIError):
            stuck.execute(text("SELECT 1"))
        stuck.close()
        hasty.close()

    @POSTGRES
    def test_is_what_the_url_says_where_it_says_something(self, database: Database) -> None:
        options = {"options": "-c lock_timeout=1234"}
        own = Database(
            database.engine.url.update_query_dict(options).render_as_string(hide_password=False), wait_seconds=5
        )
        with own.reading() as session:
            found = [session.scalar(text(f"SHOW {name}")) for name in ("lock_timeout", "statement_timeout")]
        own.close()
        assert found == ["1234ms", "5min"]

    @POSTGRES
    def test_is_none_for_whoever_waits_as_it_sees_fit(self, database: Database) -> None:
        with database.reading() as session:
            assert session.scalar(text("SHOW lock_timeout")) == "0"


class TestAServerThatIsGone:
    @POSTGRES
    def test_is_noticed_by_every_connection(self, database: Database) -> None:
        assert told_of(database) == ("10", "20000", "10")

    @POSTGRES
    def test_is_noticed_as_the_url_says_where_it_says_something(self, database: Database) -> None:
        url = database.engine.url.update_query_dict({"tcp_user_timeout": "1234"})
        own = Database(url.render_as_string(hide_password=False), wait_seconds=5)
        assert told_of(own) == ("10", "1234", "10")
        own.close()


def told_of(database: Database) -> tuple[str, ...]:
    """What a connection of it says of its time to connect, unacknowledged data and idleness."""
    with database.engine.connect() as connection:
        raw = connection.connection.dbapi_connection
        assert isinstance(raw, psycopg.Connection)
        given = raw.info.get_parameters()
    return tuple(given[name] for name in ("connect_timeout", "tcp_user_timeout", "keepalives_idle"))
