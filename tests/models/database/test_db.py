"""The database: transactions, read-only sessions, identifiers, and closed connections."""

import gc
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import psycopg
import pytest
from sqlalchemy import select, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, OperationalError

from models import hash_chain
from models.collection import report_log
from models.database import engine, failures
from models.database.engine import Database, DedicatedConnection
from models.database.schema import find_schema_problem, migrate
from models.database.types import SCRUBBED, canonical_json, new_id
from models.ledger import ledger
from models.ledger.amounts import Amounts
from models.tables.identity import Tenant
from models.tables.ledger import LedgerEntry
from tests.databases import on_postgresql, on_sqlite
from tests.models.world import NOW, Thread


def add(database: Database, name: str) -> None:
    with database.transaction() as session:
        session.add(Tenant(id=new_id("ten"), name=name, created_at=NOW))


def names(database: Database) -> set[str]:
    with database.reading() as session:
        return set(session.execute(text("SELECT name FROM tenants")).scalars())


class TestTransaction:
    def test_commits_at_its_end_and_rolls_back_after_any_exception(self, database: Database) -> None:
        add(database, "kept")
        with pytest.raises(KeyboardInterrupt):
            interrupted(database)

        assert names(database) == {"kept"}

    @on_sqlite
    def test_holds_the_write_lock_from_its_first_statement(self, database: Database) -> None:
        other = sqlite3.connect(str(database.engine.url.database), timeout=0, isolation_level=None)
        with closing(other), database.transaction() as session:
            session.execute(text("SELECT name FROM tenants"))
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                other.execute("BEGIN IMMEDIATE")

    @on_sqlite
    def test_without_the_write_lock_leaves_every_connection_usable(
        self, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(engine, "_SQLITE_BUSY_MILLISECONDS", 10)
        impatient = Database(database.engine.url.render_as_string(), pool_size=1)
        with database.transaction() as session:
            session.execute(text("SELECT name FROM tenants"))
            for _ in range(4):
                with pytest.raises(OperationalError, match="locked"):
                    add(impatient, "late")

        add(impatient, "in time")
        impatient.close()
        assert names(database) == {"in time"}

    @on_sqlite
    def test_is_durable_and_overwrites_deleted_rows(self, database: Database) -> None:
        with database.transaction() as session:
            pragmas = {
                name: session.execute(text(f"PRAGMA {name}")).scalar_one()
                for name in ("journal_mode", "synchronous", "foreign_keys", "secure_delete")
            }

        assert pragmas == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "secure_delete": 1}

    @on_postgresql
    def test_is_read_committed_whatever_the_default_of_the_server(self, database: Database) -> None:
        strict = Database(
            database.engine.url.update_query_dict(
                {"options": "-c default_transaction_isolation=serializable"}
            ).render_as_string(hide_password=False)
        )
        with strict.transaction() as session:
            before = session.execute(text("SELECT count(*) FROM tenants")).scalar_one()
            add(database, "meanwhile")
            after = session.execute(text("SELECT count(*) FROM tenants")).scalar_one()
        strict.close()

        assert (before, after) == (0, 1)


def interrupted(database: Database) -> None:
    with database.transaction() as session:
        session.add(Tenant(id=new_id("ten"), name="undone", created_at=NOW))
        session.flush()
        raise KeyboardInterrupt


class TestFailedCommit:
    """A COMMIT that fails, for example on a full disk, leaves no open transaction behind."""

    @pytest.mark.parametrize("kind", ["session", "dedicated"])
    def test_leaves_every_connection_usable(
        self, database: Database, monkeypatch: pytest.MonkeyPatch, kind: str
    ) -> None:
        one = Database(database.engine.url.render_as_string(hide_password=False), pool_size=1)
        dialect, dedicated = one.engine.dialect, DedicatedConnection(one)
        commit, failures_left = dialect.do_commit, [1]

        def fail_once(connection: Any) -> None:
            if failures_left:
                failures_left.pop()
                if one.is_sqlite:
                    raise sqlite3.OperationalError("database or disk is full")
                raise psycopg.errors.DiskFull("could not extend file")
            commit(connection)

        def write(name: str) -> None:
            statement = text("INSERT INTO tenants (id, name, created_at) VALUES (:name, :name, 1)")
            if kind == "session":
                with one.transaction() as session:
                    session.execute(statement, {"name": name})
            else:
                dedicated.run("write", lambda connection: connection.execute(statement, {"name": name}))

        monkeypatch.setattr(dialect, "do_commit", fail_once)
        with pytest.raises(OperationalError) as caught:
            write("lost")
        assert failures.is_database_unavailable(caught.value)
        for name in ("first", "second"):
            write(name)
        assert names(database) == {"first", "second"}
        dedicated.close()
        one.close()

    @on_sqlite
    def test_reason_names_the_remedy_and_no_password(self, database: Database) -> None:
        full = OperationalError("x", {}, sqlite3.OperationalError("database or disk is full"))
        assert database.failure_reason(full) == "database or disk is full; free some space"
        url = make_url("postgresql://u:a@h/x")
        for password in ("a", "p/w@rd#1"):
            error = OperationalError("x", {}, psycopg.OperationalError(f"a database at u:{password}@h refuses a word"))
            reason = failures.failure_reason(error, url.set(password=password))
            assert f":{password}@" not in reason
            assert "database at u:***@h refuses" in reason


@on_sqlite
class TestScrubbedLog:
    """The write-ahead log keeps what a transaction deleted until a checkpoint, which a reader delays."""

    def test_is_empty_after_the_last_reader_without_any_further_transaction(
        self, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(engine, "_WAL_RETRY_SECONDS", 0.05)
        add(database, "name-7f3a")
        log = Path(f"{database.engine.url.database}-wal")
        other = sqlite3.connect(str(database.engine.url.database), isolation_level=None)
        with closing(other):
            other.execute("BEGIN")
            other.execute("SELECT count(*) FROM tenants").fetchone()
            for _ in range(2):  # the second one while the first is repeated
                with database.transaction() as session:
                    session.execute(text("DELETE FROM tenants"))
                    session.info[SCRUBBED] = True
            assert b"name-7f3a" in log.read_bytes()
        deadline = time.monotonic() + 60
        while log.stat().st_size:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert b"name-7f3a" not in Path(str(database.engine.url.database)).read_bytes()


class TestReading:
    def test_sees_one_snapshot(self, database: Database) -> None:
        add(database, "first")
        with database.reading() as session:
            before = session.execute(text("SELECT count(*) FROM tenants")).scalar_one()
            add(database, "second")
            after = session.execute(text("SELECT count(*) FROM tenants")).scalar_one()

        assert (before, after) == (1, 1)
        assert names(database) == {"first", "second"}

    def test_does_not_wait_for_a_writer(self, database: Database) -> None:
        with database.transaction() as session:
            session.add(Tenant(id=new_id("ten"), name="not yet", created_at=NOW))
            session.flush()
            assert Thread(lambda: names(database)).outcome() == set()  # does not wait for the writer

    def test_rejects_writes_and_leaves_the_connection_usable(self, database: Database) -> None:
        one = Database(database.engine.url.render_as_string(hide_password=False), pool_size=1)
        for _ in range(3):
            with pytest.raises(DBAPIError, match=r"read-?only"), one.reading() as session:
                session.execute(text("DELETE FROM tenants"))
            with pytest.raises(DBAPIError, match=r"read-?only"), one.reading() as session:
                session.add(Tenant(id=new_id("ten"), name="never", created_at=NOW))
            add(one, new_id("x"))
        found = names(one)
        one.close()

        assert len(found) == 3
        assert "never" not in found

    @on_sqlite
    def test_sets_query_only_once_for_transactions_of_one_kind(self, database: Database) -> None:
        """SQLite compiles all statements again after the PRAGMA, which takes as long as a group commit."""
        one, statements = Database(database.engine.url.render_as_string(), pool_size=1), list[str]()
        with one.engine.connect() as connection:
            raw = connection.connection.driver_connection
            assert isinstance(raw, sqlite3.Connection)
            raw.set_trace_callback(statements.append)
        for work in (names, names, lambda of: add(of, "x"), lambda of: add(of, "y"), names):
            work(one)
        one.close()

        assert [each[-3:] for each in statements if "query_only" in each] == ["=ON", "OFF", "=ON"]


def n_connections(url: str) -> int:
    """Return the number of open connections: of this process to SQLite, of all processes to PostgreSQL."""
    name = str(make_url(url).database)
    if url.startswith("sqlite"):
        return sum(opened.path.startswith(name) for opened in psutil.Process().open_files())
    admin = make_url(url).set(drivername="postgresql", database="postgres").render_as_string(hide_password=False)
    with psycopg.connect(admin) as connection:
        row = connection.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = %s", [name]).fetchone()
    return int(row[0]) if row else 0


@on_postgresql
class TestIdleConnection:
    @pytest.fixture
    def only(self, database: Database) -> Iterator[Database]:
        """A database with one connection."""
        opened = Database(database.engine.url.render_as_string(hide_password=False), pool_size=1)
        yield opened
        opened.close()

    @staticmethod
    def server_process(of: Database) -> int:
        with of.reading() as session:
            return int(session.execute(text("SELECT pg_backend_pid()")).scalar_one())

    def test_is_replaced_after_the_server_closed_it(
        self, database: Database, only: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(engine, "FRESH_SECONDS", 3600.0)
        ended = self.server_process(only)
        with database.transaction() as session:
            session.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": ended})
        until_gone(database, ended)

        assert self.server_process(only) != ended

    def test_is_validated_unless_it_was_used_recently(self, only: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        ping, asked = only.engine.dialect.do_ping, []
        monkeypatch.setattr(only.engine.dialect, "do_ping", lambda connection: asked.append(1) or ping(connection))
        monkeypatch.setattr(engine, "FRESH_SECONDS", 3600.0)
        first = [self.server_process(only) for _ in range(3)]
        assert (len(set(first)), asked) == (1, [])

        monkeypatch.setattr(engine, "FRESH_SECONDS", 0.0)
        assert [self.server_process(only) for _ in range(2)] == first[:2]
        assert asked == [1, 1]

    def test_is_replaced_if_the_validation_fails(self, only: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        def away(_connection: object) -> bool:
            monkeypatch.undo()
            raise psycopg.OperationalError("gone")

        first = self.server_process(only)
        monkeypatch.setattr(engine, "FRESH_SECONDS", 0.0)
        monkeypatch.setattr(only.engine.dialect, "do_ping", away)
        assert self.server_process(only) != first

    def test_that_the_server_ended_is_replaced_before_the_driver_notices(
        self, only: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Ended(psycopg.errors.IdleInTransactionSessionTimeout):
            diag = SimpleNamespace(severity_nonlocalized="FATAL")  # type: ignore[assignment]

        def end(*_: object) -> None:
            raise Ended

        first = self.server_process(only)
        with monkeypatch.context() as patch:
            patch.setattr(only.engine.dialect, "do_execute", end)
            with pytest.raises(DBAPIError) as caught:
                self.server_process(only)
        assert failures.is_database_unavailable(caught.value)
        assert self.server_process(only) != first


def until_gone(database: Database, pid: int, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    query = text("SELECT count(*) FROM pg_stat_activity WHERE pid = :pid")
    while True:
        with database.reading() as session:
            if not session.execute(query, {"pid": pid}).scalar_one():
                return
        assert time.monotonic() < deadline
        time.sleep(0.02)


class TestClose:
    def test_leaves_no_connection_open_after_interrupted_reads(self, database: Database) -> None:
        url = database.engine.url.render_as_string(hide_password=False)
        opened = Database(url, pool_size=2)
        assert find_schema_problem(opened) is None
        with opened.transaction() as session:
            ledger.open_ledger(session, "ds_x")
            for i in range(3):
                ledger.grant(session, "ds_x", Amounts(1), reference=str(i), actor="key", now=NOW)
        with opened.reading() as session:
            assert next(hash_chain.read_all(session, select(LedgerEntry), LedgerEntry.seq)).seq == 1
            assert next(report_log.batches(session, "rnd_x"), None) is None
        with pytest.raises(DBAPIError), opened.transaction() as session:
            session.execute(text("SELECT nonsense"))
        database.close()
        during = n_connections(url)

        opened.close()
        gc.collect()  # an unclosed connection in a reference cycle warns here

        assert during > 0
        assert n_connections(url) == 0

    def test_leaves_one_file(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path / 'deep' / 'sfumato.db'}"
        migrate(url)
        opened = Database(url)
        add(opened, "x")
        opened.close()

        assert [path.name for path in (tmp_path / "deep").iterdir()] == ["sfumato.db"]
        assert (tmp_path / "deep").stat().st_mode & 0o777 == 0o700


class TestNewId:
    def test_is_a_prefix_and_a_lower_case_ulid_with_its_time(self) -> None:
        created = new_id("job")
        assert re.fullmatch(r"job_[0-9a-hjkmnp-tv-z]{26}", created)
        alphabet = "0123456789abcdefghjkmnpqrstvwxyz"
        value = 0
        for letter in created[4:14]:
            value = value * 32 + alphabet.index(letter)
        assert abs(value / 1000 - time.time()) < 60

    def test_is_unique_and_sorts_by_time(self) -> None:
        assert len({new_id("x") for _ in range(10_000)}) == 10_000
        created = []
        for _ in range(5):
            created.append(new_id("x"))
            time.sleep(0.002)
        assert created == sorted(created)


class TestCanonicalJson:
    def test_has_the_same_bytes_for_the_same_value(self) -> None:
        assert canonical_json({"b": [1, 2.5, None], "a": "ä"}) == '{"a":"ä","b":[1,2.5,null]}'

    def test_rejects_values_that_json_cannot_express(self) -> None:
        with pytest.raises(ValueError, match="JSON"):
            canonical_json(float("nan"))
