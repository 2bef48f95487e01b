"""A gateway in this process, on SQLite and on PostgreSQL. Each test has a separate tenant."""

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from pydantic import SecretStr
from sqlalchemy.engine import make_url

from devservers.inprocess import InProcess
from models.database.engine import Database
from models.database.schema import migrate
from runtime.settings import Settings
from service.app import create_app
from tests.service.api import Api, stranger
from tests.workers.archive import RECORDS_KEY


@pytest.fixture(scope="session")
def no_settings() -> Iterator[None]:
    """Remove the settings of the environment."""
    foreign = [name for name in os.environ if name.startswith("SFUMATO_") and not name.startswith("SFUMATO_TEST_")]
    kept = {name: os.environ.pop(name) for name in foreign}
    yield
    os.environ.update(kept)


@contextmanager
def own_database(kind: str, request: pytest.FixtureRequest, directory: Path) -> Iterator[str]:
    """Yield the URL of a migrated temporary database."""
    if kind == "sqlite":
        url = f"sqlite:///{directory / 'sfumato.db'}"
        migrate(url)
        yield url
        return
    admin_url = str(request.getfixturevalue("postgres_url"))
    name = f"sfumato_service_{secrets.token_hex(4)}"
    with psycopg.connect(admin_url.replace("+psycopg", ""), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")
        url = make_url(admin_url).set(database=name).render_as_string(hide_password=False)
        migrate(url)
        yield url
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session", params=["sqlite", "postgresql"])
def database(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, no_settings: None
) -> Iterator[Database]:
    """Yield a migrated database that all tests share; each test has its own tenant."""
    with own_database(request.param, request, tmp_path_factory.mktemp("gateway")) as url:
        opened = Database(url)
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Return the default settings, with lower limits that tests can reach."""
    return Settings(
        home=tmp_path_factory.mktemp("home"),
        records_key=SecretStr(RECORDS_KEY),  # workers in the tests open the records with it
        max_body_bytes=4 << 20,
        max_batch_reports=50_000,
        max_page=20,
        source_limit="none",  # many tests create datasets of one name over different people
    )


@pytest.fixture(scope="session")
def http(database: Database, settings: Settings, request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    """Yield an HTTP client without a key for a gateway over this database, with Redis in addition to PostgreSQL."""
    if database.engine.dialect.name == "postgresql":
        settings = settings.model_copy(update={"redis_url": SecretStr(request.getfixturevalue("redis_session_url"))})
    with InProcess(create_app(settings, database)) as gateway:
        yield gateway.client


@pytest.fixture
def api(http: httpx.Client, database: Database) -> Api:
    """Return an API client with an admin key of a new tenant."""
    return stranger(http, database)


@pytest.fixture
def other(http: httpx.Client, database: Database) -> Api:
    """Return an API client with an admin key of another tenant."""
    return stranger(http, database)


@pytest.fixture
def over(tmp_path: Path, no_settings: None) -> Iterator[Callable[..., Api]]:
    """Start gateways with a new tenant over a database: `over(database, max_pending_bytes=...)`."""
    running: list[InProcess] = []

    def start(database: Database, **settings: object) -> Api:
        given: dict[str, Any] = {"home": tmp_path, "source_limit": "none", **settings}
        gateway = InProcess(create_app(Settings(**given), database))
        gateway.__enter__()
        running.append(gateway)
        return stranger(gateway.client, database)

    yield start
    for gateway in running:
        gateway.__exit__(None, None, None)


@pytest.fixture
def started(
    over: Callable[..., Api], database_kind: str, database_url: str, request: pytest.FixtureRequest
) -> Iterator[Callable[..., Api]]:
    """Start gateways over a database of this test: SQLite without servers, or PostgreSQL and Redis."""
    opened = Database(database_url)
    as_it_runs = {} if database_kind == "sqlite" else {"redis_url": request.getfixturevalue("redis_url")}

    def start(**settings: object) -> Api:
        return over(opened, **(as_it_runs | settings))

    yield start
    opened.close()
