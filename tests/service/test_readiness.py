"""Ready means that a gateway can do what it is asked, and what it lacks is said."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from pydantic import SecretStr
from sqlalchemy import text

from models import sealing
from models.db import Database
from models.settings import Settings
from service import readiness
from service.app import create_app
from tests.service.api import Api, refused, stranger
from tests.service.conftest import own_database
from tests.service.inprocess import InProcess

MISSING_KEY = "the database holds records and SFUMATO_RECORDS_KEY none of their keys"


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path, no_settings: None) -> Iterator[Database]:
    """A database that the test may damage."""
    with own_database(request.param, request, tmp_path) as url:
        opened = Database(url)
        yield opened
        opened.close()


@pytest.fixture(autouse=True)
def _looked_at_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "HOLD_SECONDS", 0.0)


@contextmanager
def gateway(database: Database, home: Path, *keys: bytes) -> Iterator[tuple[InProcess, Api]]:
    """A gateway with these keys for records."""
    given = SecretStr(",".join(map(sealing.write_key, keys))) if keys else None
    with InProcess(create_app(Settings(home=home, records_key=given), database)) as running:
        yield running, stranger(running.client, database)


def lacks(running: InProcess) -> str:
    """What a gateway that is not ready says is missing."""
    answer = running.client.get("/readyz")
    assert answer.headers["retry-after"] == "1"
    detail: str = refused(answer, 503, "unavailable")["detail"]
    return detail


class TestReadiness:
    def test_needs_the_newest_schema(self, database: Database, tmp_path: Path) -> None:
        with gateway(database, tmp_path) as (running, _):
            assert running.client.get("/readyz").json() == {"status": "ok"}
            with database.transaction() as session:
                newest = session.execute(text("SELECT version_num FROM alembic_version")).scalar_one()
                session.execute(text("UPDATE alembic_version SET version_num = 'older'"))
            assert lacks(running) == "the database has another schema"
            with database.transaction() as session:
                session.execute(text("UPDATE alembic_version SET version_num = :newest"), {"newest": newest})
            assert running.client.get("/readyz").status_code == 200

    def test_needs_a_key_of_the_records_there_are(self, database: Database, tmp_path: Path) -> None:
        used, other = sealing.new_secret(), sealing.new_secret()
        with gateway(database, tmp_path, other) as (running, api):
            assert running.client.get("/readyz").status_code == 200  # there are none
        with gateway(database, tmp_path, used) as (_, api):
            made = api.dataset(trust="central")
            assert api.post(f"/datasets/{made['id']}/records", {"columns": ["x", "y"], "rows": [[0.5, 0.5]]}).is_success
        for keys, ready in (((), False), ((other,), False), ((other, used), True), ((used,), True)):
            with gateway(database, tmp_path, *keys) as (running, _):
                if ready:
                    assert running.client.get("/readyz").status_code == 200
                else:
                    assert lacks(running) == MISSING_KEY
        with gateway(database, tmp_path, other) as (running, _):
            assert api.database.clock()
            with database.transaction() as session:
                session.execute(text("DELETE FROM record_keys"))
            assert running.client.get("/readyz").status_code == 200

    def test_needs_somebody_who_stores_reports(self, database: Database, tmp_path: Path) -> None:
        with gateway(database, tmp_path) as (running, _):
            services = running.app.state.services
            services.writer.stop()
            assert lacks(running) == "reports cannot be stored"
            assert running.client.get("/healthz").status_code == 200
            services.writer.start()
            assert running.client.get("/readyz").status_code == 200

    def test_ends_with_the_first_word_of_the_end(
        self, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(readiness, "HOLD_SECONDS", 3600.0)
        with gateway(database, tmp_path) as (running, api):
            answer = running.client.get("/readyz")
            assert answer.status_code == 200
            assert "connection" not in answer.headers
            running.loop.call_soon_threadsafe(running.app.state.services.stopping.set)
            assert lacks(running) == "the service is ending"
            answer = api.get("/datasets")
            assert (answer.status_code, answer.headers["connection"]) == (200, "close")

    def test_looks_once_for_all_who_ask(
        self, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(readiness, "HOLD_SECONDS", 3600.0)
        looks: list[int] = []
        look = readiness.is_migrated
        monkeypatch.setattr(readiness, "is_migrated", lambda database: (looks.append(1), look(database))[1])
        with gateway(database, tmp_path) as (running, _), ThreadPoolExecutor(8) as pool:
            statuses = set(pool.map(lambda _: running.client.get("/readyz").status_code, range(40)))
        assert statuses == {200}
        assert len(looks) == 1
