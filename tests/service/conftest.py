"""A gateway in this process, on SQLite and on PostgreSQL; every test has a tenant of its own in it."""

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psycopg
import pytest
from pydantic import SecretStr
from sqlalchemy.engine import make_url

from models import sealing
from models.db import Database, migrate
from models.settings import Settings
from service.app import create_app
from tests.service.api import Api, stranger
from tests.service.inprocess import InProcess


@pytest.fixture(scope="session")
def no_settings() -> Iterator[None]:
    """Nobody's settings reach the tests."""
    foreign = [name for name in os.environ if name.startswith("SFUMATO_") and not name.startswith("SFUMATO_TEST_")]
    kept = {name: os.environ.pop(name) for name in foreign}
    yield
    os.environ.update(kept)


@contextmanager
def own_database(kind: str, request: pytest.FixtureRequest, directory: Path) -> Iterator[str]:
    """URL of a migrated database that is there as long as this lasts."""
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
    """Migrated; shared by the tests, which do not meet: each has its own tenant."""
    with own_database(request.param, request, tmp_path_factory.mktemp("gateway")) as url:
        opened = Database(url)
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """As they come, but for limits a test can reach."""
    return Settings(
        home=tmp_path_factory.mktemp("home"),
        records_key=SecretStr(sealing.write_key(sealing.new_secret())),
        max_body_bytes=4 << 20,
        max_batch_reports=50_000,
        max_page=20,
    )


@pytest.fixture(scope="session")
def http(database: Database, settings: Settings, request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    """The client of a gateway as it runs over this database, with Redis beside PostgreSQL; without a key."""
    if database.engine.dialect.name == "postgresql":
        settings = settings.model_copy(update={"redis_url": SecretStr(request.getfixturevalue("redis_session_url"))})
    with InProcess(create_app(settings, database)) as gateway:
        yield gateway.client


@pytest.fixture
def api(http: httpx.Client, database: Database) -> Api:
    """An admin key of a fresh tenant."""
    return stranger(http, database)


@pytest.fixture
def other(http: httpx.Client, database: Database) -> Api:
    """An admin key of another tenant."""
    return stranger(http, database)


@pytest.fixture
def over(tmp_path: Path, no_settings: None) -> Iterator[Callable[..., Api]]:
    """Starts another gateway over a database: `over(database, max_pending_bytes=...)`; as a stranger."""
    running: list[InProcess] = []

    def start(database: Database, **settings: object) -> Api:
        gateway = InProcess(create_app(Settings(home=tmp_path, **settings), database))  # type: ignore[arg-type]
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
    """Starts a gateway over a database of the test's own: SQLite without servers, or PostgreSQL and Redis."""
    opened = Database(database_url)
    as_it_runs = {} if database_kind == "sqlite" else {"redis_url": request.getfixturevalue("redis_url")}

    def start(**settings: object) -> Api:
        return over(opened, **(as_it_runs | settings))

    yield start
    opened.close()
