"""Readiness of a gateway, and the reasons why it is not ready."""

import resource
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr
from sqlalchemy import text

from devservers.inprocess import InProcess
from devservers.loopback import NO_TLS
from models import encryption
from models.database import schema
from models.database.engine import Database
from models.database.schema import migrate
from runtime.settings import Settings
from service import context
from service.app import create_app
from tests.service import processes
from tests.service.api import Api, refused, stranger
from tests.service.conftest import own_database

REFUSED = "the database accepts no write: its disk is full, it is read-only, or another program has locked it"
MISSING_KEY = "the database has encrypted records, and SFUMATO_RECORDS_KEY has none of their keys"


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path, no_settings: None) -> Iterator[Database]:
    """Return a database that the test may damage."""
    with own_database(request.param, request, tmp_path) as url:
        opened = Database(url)
        yield opened
        opened.close()


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "CACHE_SECONDS", 0.0)


@contextmanager
def gateway(database: Database, home: Path, *keys: bytes) -> Iterator[tuple[InProcess, Api]]:
    """Run a gateway with these keys for records."""
    given = SecretStr(",".join(map(encryption.encode_key, keys))) if keys else None
    with InProcess(create_app(Settings(home=home, records_key=given), database)) as running:
        yield running, stranger(running.client, database)


def find_problem(running: InProcess) -> str:
    """Return the reason why a gateway is not ready."""
    answer = running.client.get("/readyz")
    assert answer.headers["retry-after"] == "1"
    detail: str = refused(answer, 503, "unavailable")["detail"]
    return detail


class TestReadiness:
    def test_needs_the_newest_schema(self, database: Database, tmp_path: Path) -> None:
        with gateway(database, tmp_path) as (running, _):
            assert running.client.get("/readyz").json() == {"status": "ok"}
            with database.reading() as session:
                newest = session.scalar(text("SELECT version_num FROM alembic_version"))
            set_revision = text("UPDATE alembic_version SET version_num = :version")
            for version, reason in (("0042x", "older, unreleased version"), ("9999", "newer version")):
                with database.transaction() as session:
                    session.execute(set_revision, {"version": version})
                assert reason in find_problem(running)
            with database.transaction() as session:
                session.execute(set_revision, {"version": newest})
            assert running.client.get("/readyz").status_code == 200

    def test_needs_a_key_of_the_existing_records(self, database: Database, tmp_path: Path) -> None:
        used, other = encryption.new_secret(), encryption.new_secret()
        with gateway(database, tmp_path, used) as (_, api):
            path = f"/datasets/{api.dataset(trust='central')['id']}/records"
            api.made(path, {"columns": ["x", "y"], "rows": [[0.5, 0.5]]})
        for keys, is_ready in (((), False), ((other,), False), ((other, used), True), ((used,), True)):
            with gateway(database, tmp_path, *keys) as (running, _):
                if is_ready:
                    assert running.client.get("/readyz").status_code == 200
                else:
                    assert find_problem(running) == MISSING_KEY
        with gateway(database, tmp_path, other) as (running, _):
            with database.transaction() as session:
                session.execute(text("DELETE FROM record_keys"))
            assert running.client.get("/readyz").status_code == 200

    def test_needs_a_running_report_writer(self, database: Database, tmp_path: Path) -> None:
        with gateway(database, tmp_path) as (running, _):
            services = running.app.state.context
            services.writer.stop()
            assert find_problem(running) == "the report writer has stopped: reports cannot be stored"
            assert running.client.get("/healthz").status_code == 200
            services.writer.start()
            assert running.client.get("/readyz").status_code == 200

    def test_ends_when_the_server_starts_to_stop(
        self, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(context, "CACHE_SECONDS", 3600.0)
        with gateway(database, tmp_path) as (running, api):
            answer = running.client.get("/readyz")
            assert answer.status_code == 200
            assert "connection" not in answer.headers
            running.loop.call_soon_threadsafe(running.app.state.context.stopping.set)
            assert find_problem(running) == "the gateway is shutting down; retry with another gateway"
            answer = api.get("/datasets")
            assert (answer.status_code, answer.headers["connection"]) == (200, "close")

    def test_concurrent_requests_share_one_check(
        self, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(context, "CACHE_SECONDS", 3600.0)
        looks: list[int] = []
        look = context.find_schema_problem
        monkeypatch.setattr(context, "find_schema_problem", lambda database: (looks.append(1), look(database))[1])
        with gateway(database, tmp_path) as (running, _), ThreadPoolExecutor(8) as pool:
            statuses = set(pool.map(lambda _: running.client.get("/readyz").status_code, range(40)))
        assert statuses == {200}
        assert len(looks) == 1

    def test_needs_a_database_that_accepts_writes(self, database: Database, tmp_path: Path) -> None:
        """A trigger refuses writes, as PostgreSQL does on a replica."""
        if database.is_sqlite:
            refuse = "SELECT RAISE(ABORT, 'read-only');"
            create = f"CREATE TRIGGER refuse BEFORE UPDATE ON alembic_version BEGIN {refuse} END"
            drop = "DROP TRIGGER refuse"
        else:
            raise_error = "RAISE read_only_sql_transaction;"
            with database.transaction() as session:
                function = f"CREATE FUNCTION refuse() RETURNS trigger AS $$ BEGIN {raise_error} END $$ LANGUAGE plpgsql"
                session.execute(text(function))
            create = "CREATE TRIGGER refuse BEFORE UPDATE ON alembic_version FOR EACH ROW EXECUTE FUNCTION refuse()"
            drop = "DROP TRIGGER refuse ON alembic_version"
        with gateway(database, tmp_path) as (running, api):
            assert running.client.get("/readyz").status_code == 200
            with database.transaction() as session:
                session.execute(text(create))
            assert find_problem(running) == REFUSED
            assert running.client.get("/healthz").status_code == 200
            assert api.get("/datasets").status_code == 200
            with database.transaction() as session:
                session.execute(text(drop))
            assert running.client.get("/readyz").status_code == 200

    def test_needs_the_lock_of_writers(
        self, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(schema, "CHECK_SECONDS", 0.1)
        with gateway(database, tmp_path) as (running, _):
            with database.transaction() as session:
                session.execute(text("UPDATE alembic_version SET version_num = version_num"))
                assert find_problem(running) == REFUSED
            assert running.client.get("/readyz").status_code == 200


@pytest.mark.slow
def test_a_gateway_on_a_full_disk_is_not_ready(tmp_path: Path) -> None:
    """Files of the process cannot grow, which SQLite reports like a full disk."""
    migrate(f"sqlite:///{tmp_path / 'sfumato.db'}")
    with processes.running(tmp_path, "gateway", "--port", "0") as started:
        url = f"{started.url()}/readyz"
        assert httpx.get(url, verify=NO_TLS).status_code == 200
        size = (tmp_path / "sfumato.db-wal").stat().st_size
        resource.prlimit(started.process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        processes.until(lambda: httpx.get(url, verify=NO_TLS).status_code == 503)
        assert "accepts no write" in httpx.get(url, verify=NO_TLS).json()["detail"]
        assert httpx.get(f"{started.url()}/healthz", verify=NO_TLS).status_code == 200
        resource.prlimit(started.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        processes.until(lambda: httpx.get(url, verify=NO_TLS).status_code == 200)
