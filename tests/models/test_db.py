"""The database: units of work that write or only read, identifiers, and a clean end."""

import gc
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, OperationalError

from models import db, ledger, report
from models.db import Database, canonical_json, is_migrated, migrate, new_id
from models.tenant import Tenant
from tests.models.world import NOW, Thread

SQLITE = pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
POSTGRES = pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)


def add(database: Database, name: str) -> None:
    with database.transaction() as session:
        session.add(Tenant(id=new_id("ten"), name=name, created_at=NOW))


def names(database: Database) -> set[str]:
    with database.reading() as session:
        return set(session.execute(text("SELECT name FROM tenants")).scalars())


class TestATransaction:
    def test_is_kept_at_its_end_and_undone_by_any_exception(self, database: Database) -> None:
        add(database, "kept")
        with pytest.raises(KeyboardInterrupt):
            interrupted(database)

        assert names(database) == {"kept"}

    @SQLITE
    def test_holds_the_one_write_lock_from_its_first_statement(self, database: Database) -> None:
        other = sqlite3.connect(str(database.engine.url.database), timeout=0, isolation_level=None)
        with closing(other), database.transaction() as session:
            session.execute(text("SELECT name FROM tenants"))
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                other.execute("BEGIN IMMEDIATE")

    @SQLITE
    def test_that_did_not_get_the_lock_leaves_every_connection_usable(
        self, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(db, "_SQLITE_BUSY_MILLISECONDS", 10)
        impatient = Database(database.engine.url.render_as_string(), pool_size=1)
        with database.transaction() as session:
            session.execute(text("SELECT name FROM tenants"))
            for _ in range(4):
                with pytest.raises(OperationalError, match="locked"):
                    add(impatient, "late")

        add(impatient, "in time")
        impatient.close()
        assert names(database) == {"in time"}

    @SQLITE
    def test_reaches_the_disk_and_overwrites_what_it_removes(self, database: Database) -> None:
        with database.transaction() as session:
            pragmas = {
                name: session.execute(text(f"PRAGMA {name}")).scalar_one()
                for name in ("journal_mode", "synchronous", "foreign_keys", "secure_delete")
            }

        assert pragmas == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "secure_delete": 1}

    @POSTGRES
    def test_reads_what_is_committed_whatever_the_server_does_by_default(self, database: Database) -> None:
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


class TestReading:
    def test_sees_one_state_while_others_write(self, database: Database) -> None:
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
            assert Thread(lambda: names(database)).outcome() == set()  # or both would wait for ever

    def test_is_refused_every_write_and_writing_goes_on_afterwards(self, database: Database) -> None:
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


def n_connections(url: str) -> int:
    """Connections to this database that are open: of this process in SQLite, of anybody in PostgreSQL."""
    name = str(make_url(url).database)
    if url.startswith("sqlite"):
        return sum(opened.path.startswith(name) for opened in psutil.Process().open_files())
    admin = make_url(url).set(drivername="postgresql", database="postgres").render_as_string(hide_password=False)
    with psycopg.connect(admin) as connection:
        row = connection.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = %s", [name]).fetchone()
    return int(row[0]) if row else 0


@POSTGRES
class TestAnIdleConnection:
    @pytest.fixture
    def only(self, database: Database) -> Iterator[Database]:
        """A database of one connection."""
        opened = Database(database.engine.url.render_as_string(hide_password=False), pool_size=1)
        yield opened
        opened.close()

    @staticmethod
    def server_process(of: Database) -> int:
        with of.reading() as session:
            return int(session.execute(text("SELECT pg_backend_pid()")).scalar_one())

    def test_that_its_server_ended_is_handed_to_nobody_however_new_it_is(
        self, database: Database, only: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(db, "FRESH_SECONDS", 3600.0)
        ended = self.server_process(only)
        with database.transaction() as session:
            session.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": ended})
        until_gone(database, ended)

        assert self.server_process(only) != ended

    def test_is_asked_whether_it_is_there_unless_it_was_in_use_a_moment_ago(
        self, only: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ping, asked = only.engine.dialect.do_ping, []
        monkeypatch.setattr(only.engine.dialect, "do_ping", lambda connection: asked.append(1) or ping(connection))
        monkeypatch.setattr(db, "FRESH_SECONDS", 3600.0)
        first = [self.server_process(only) for _ in range(3)]
        assert (len(set(first)), asked) == (1, [])

        monkeypatch.setattr(db, "FRESH_SECONDS", 0.0)
        assert [self.server_process(only) for _ in range(2)] == first[:2]
        assert asked == [1, 1]

    def test_that_does_not_answer_is_replaced(self, only: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        def away(_connection: object) -> bool:
            monkeypatch.undo()
            raise psycopg.OperationalError("gone")

        first = self.server_process(only)
        monkeypatch.setattr(db, "FRESH_SECONDS", 0.0)
        monkeypatch.setattr(only.engine.dialect, "do_ping", away)
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


class TestClosing:
    def test_leaves_no_connection_open_even_after_reads_that_were_broken_off(self, database: Database) -> None:
        url = database.engine.url.render_as_string(hide_password=False)
        opened = Database(url, pool_size=2)
        assert is_migrated(opened)
        with opened.transaction() as session:
            ledger.open_ledger(session, "ds_x")
            for i in range(3):
                ledger.grant(session, "ds_x", 1, reference=str(i), actor="key", now=NOW)
        with opened.reading() as session:
            assert next(ledger._entries(session, "ds_x")).seq == 1
            assert next(report.batches(session, "rnd_x"), None) is None
        with pytest.raises(DBAPIError), opened.transaction() as session:
            session.execute(text("SELECT nonsense"))
        database.close()
        during = n_connections(url)

        opened.close()
        gc.collect()  # what is still referred to by nobody but a cycle would warn here

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


class TestAnIdentifier:
    def test_is_a_prefix_and_a_lower_case_ulid(self) -> None:
        assert re.fullmatch(r"job_[0-9a-hjkmnp-tv-z]{26}", new_id("job"))

    def test_sorts_by_time(self) -> None:
        made = []
        for _ in range(5):
            made.append(new_id("x"))
            time.sleep(0.002)

        assert made == sorted(made)

    def test_does_not_repeat(self) -> None:
        assert len({new_id("x") for _ in range(10_000)}) == 10_000

    def test_holds_the_time_in_its_first_ten_letters(self) -> None:
        alphabet = "0123456789abcdefghjkmnpqrstvwxyz"
        value = 0
        for letter in new_id("x")[2:12]:
            value = value * 32 + alphabet.index(letter)

        assert abs(value / 1000 - time.time()) < 60


class TestCanonicalJson:
    def test_is_the_same_bytes_for_the_same_value(self) -> None:
        assert canonical_json({"b": [1, 2.5, None], "a": "ä"}) == '{"a":"ä","b":[1,2.5,null]}'

    def test_refuses_what_json_cannot_say(self) -> None:
        with pytest.raises(ValueError, match="JSON"):
            canonical_json(float("nan"))
