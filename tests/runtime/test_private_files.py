"""Private files: mode 0600 in any directory and with any umask."""

import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from models.database.engine import Database
from models.database.schema import migrate
from models.tables.identity import Tenant
from runtime.private_files import prepare_sqlite_files, write_private
from service.cli import serve
from tests.databases import on_sqlite


@pytest.fixture(params=[0o000, 0o777], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    """Set the umask of a test."""
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """Return a directory that existed before and that everyone may enter."""
    tmp_path.chmod(0o755)
    return tmp_path


def modes(*paths: Path) -> set[int]:
    return {stat.S_IMODE(path.stat().st_mode) for path in paths}


class TestDatabase:
    def test_and_its_journals_are_private(self, shared: Path, umask: None) -> None:
        path = shared / "sfumato.db"
        migrate(f"sqlite:///{path}")
        with closing(Database(f"sqlite:///{path}")) as database, database.transaction() as session:
            session.add(Tenant(id="ten_1", name="t", created_at=1))
            session.flush()
            files = list(shared.iterdir())
            assert {file.name for file in files} == {"sfumato.db", "sfumato.db-wal", "sfumato.db-shm"}
            assert modes(*files) == {0o600}

    def test_of_an_earlier_version_becomes_private(self, shared: Path) -> None:
        path = shared / "sfumato.db"
        with closing(sqlite3.connect(path)) as earlier:
            earlier.execute("PRAGMA journal_mode=WAL")
            earlier.execute("CREATE TABLE t (x)")
            files = [shared / f"sfumato.db{suffix}" for suffix in ("", "-wal", "-shm")]
            for file in files:
                file.chmod(0o644)
            with closing(Database(f"sqlite:///{path}")) as database, database.reading() as session:
                assert session.execute(text("SELECT count(*) FROM t")).scalar_one() == 0
                assert modes(*files) == {0o600}

    def test_that_cannot_be_created_is_an_error_of_the_connection(self, shared: Path) -> None:
        (shared / "sfumato.db").mkdir()
        with (
            closing(Database(f"sqlite:///{shared / 'sfumato.db'}")) as database,
            pytest.raises(OperationalError, match="unable to open"),
            database.reading() as session,
        ):
            session.execute(text("SELECT 1"))

    def test_keeps_the_locks_of_other_connections(self, shared: Path) -> None:
        path = shared / "sfumato.db"
        migrate(f"sqlite:///{path}")
        script = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0).execute('BEGIN EXCLUSIVE')"
        command = [sys.executable, "-c", script, str(path)]
        with closing(sqlite3.connect(path, isolation_level=None)) as holder:
            holder.execute("PRAGMA journal_mode=DELETE")
            holder.execute("BEGIN EXCLUSIVE")
            prepare_sqlite_files(path)
            assert subprocess.run(command, capture_output=True, check=False).returncode == 1
            holder.execute("ROLLBACK")
        assert subprocess.run(command, capture_output=True, check=False).returncode == 0


class TestKeyFile:
    def test_is_private_in_place_of_an_open_one(self, shared: Path, umask: None) -> None:
        path, leftover = shared / "admin.key", shared / f".admin.key.{os.getpid()}"
        for existing in (path, leftover):
            existing.touch()
            existing.chmod(0o644)
        write_private(path, "secret")
        assert modes(path) == {0o600}
        assert (path.read_text(), leftover.exists()) == ("secret", False)

    def test_is_written_through_a_link(self, shared: Path) -> None:
        (shared / "volume").mkdir()
        (shared / "admin.key").symlink_to("volume/admin.key")
        for secret in ("first", "second"):
            write_private(shared / "admin.key", secret)
            assert (shared / "volume" / "admin.key").read_text() == secret
        assert (shared / "admin.key").is_symlink()

    @on_sqlite
    def test_of_an_earlier_version_becomes_private(self, shared: Path, database_url: str) -> None:
        with closing(Database(database_url)) as database:
            serve.create_first_key(database, shared)
            (shared / "admin.key").chmod(0o640)
            assert serve.create_first_key(database, shared) is None
        assert modes(shared / "admin.key") == {0o600}
