"""Databases and Redis for every test that asks: SQLite files, and servers of the tests' own.

A server begins when the first test of a pytest process asks for it (each xdist worker has
its own, in about a second) and ends with that process. A URL in the environment takes its
place: SFUMATO_TEST_POSTGRES_URL (a role that may create databases) and
SFUMATO_TEST_REDIS_URL (whose databases 0 to 15 are emptied). A missing server is an error,
never a skip.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as workers' children have it; read when numpy is loaded

import itertools
import secrets
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import hypothesis
import psycopg
import pytest
import redis
from sqlalchemy.engine import make_url

from tests.servers import PostgresServer, RedisServer

REDIS_DATABASES = 16

# An example that waits for the compiler, or for its turn on a busy machine, says nothing about the code. Every run
# looks at the same examples, so that one which fails fails everywhere: `--hypothesis-profile=explore` draws others.
PATIENT = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile("sfumato", PATIENT, derandomize=True)
hypothesis.settings.register_profile("explore", PATIENT)
hypothesis.settings.load_profile("sfumato")


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """SQLAlchemy URL of a PostgreSQL whose role may create databases; fsync is off, unless it was given."""
    if given := os.environ.get("SFUMATO_TEST_POSTGRES_URL"):
        yield make_url(given).set(drivername="postgresql+psycopg").render_as_string(hide_password=False)
        return
    server = PostgresServer()
    try:
        server.start()
        yield server.url()
    finally:
        server.stop()


@pytest.fixture
def durable_postgres() -> Iterator[PostgresServer]:
    """A private PostgreSQL with fsync on, for a test that ends it: `.url()`, `.kill()`, `.start()`."""
    server = PostgresServer(durable=True)
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def _redis_session_url() -> Iterator[str]:
    if given := os.environ.get("SFUMATO_TEST_REDIS_URL"):
        yield given
        return
    server = RedisServer()
    try:
        server.start()
        yield server.url()
    finally:
        server.stop()


@pytest.fixture(scope="session")
def redis_session_url(_redis_session_url: str, _redis_databases: Iterator[int]) -> str:
    """URL of a Redis database for many tests; those that ask for an empty one may empty it."""
    url = make_url(_redis_session_url).set(database=str(next(_redis_databases)))
    return url.render_as_string(hide_password=False)


@pytest.fixture(scope="session")
def _redis_databases() -> Iterator[int]:
    """Database numbers in turn: no two pytest processes share one, and neighbouring tests hardly do."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    return itertools.cycle(range(worker % REDIS_DATABASES, REDIS_DATABASES, workers))


@pytest.fixture
def redis_url(_redis_session_url: str, _redis_databases: Iterator[int]) -> str:
    """URL of an empty Redis database."""
    url = make_url(_redis_session_url).set(database=str(next(_redis_databases)))
    rendered = url.render_as_string(hide_password=False)
    with closing(redis.Redis.from_url(rendered)) as client:
        client.flushdb()
    return rendered


@contextmanager
def _postgres_database(admin_url: str, template: str = "template1") -> Iterator[str]:
    """A new database, copied from `template`; dropped in the end, whoever is still connected."""
    name = f"sfumato_test_{os.getpid()}_{secrets.token_hex(4)}"
    with psycopg.connect(admin_url.replace("+psycopg", ""), autocommit=True) as admin:
        # Copying files beats writing everything to the log by half; older servers know nothing else.
        strategy = "STRATEGY FILE_COPY" if admin.info.server_version >= 150_000 else ""
        admin.execute(f"CREATE DATABASE {name} TEMPLATE {template} {strategy}")
        try:
            yield make_url(admin_url).set(database=name).render_as_string(hide_password=False)
        finally:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def fresh_postgres_url(postgres_url: str) -> Iterator[str]:
    """An empty PostgreSQL database of this test's own."""
    with _postgres_database(postgres_url) as url:
        yield url


@pytest.fixture(scope="session")
def _postgres_template(postgres_url: str) -> Iterator[str]:
    """Name of a database on which the migrations ran, to copy from."""
    from models.db import migrate

    with _postgres_database(postgres_url) as url:
        migrate(url)
        yield str(make_url(url).database)


@pytest.fixture(scope="session")
def _sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database file on which the migrations ran, to copy from."""
    from models.db import migrate

    path = tmp_path_factory.mktemp("template") / "sfumato.db"
    migrate(f"sqlite:///{path}")
    return path


@pytest.fixture(params=["sqlite", "postgresql"])
def database_kind(request: pytest.FixtureRequest) -> str:
    """Which database; a test for one of them says `parametrize("database_kind", ["postgresql"], indirect=True)`."""
    return str(request.param)


@pytest.fixture
def empty_database_url(database_kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """SQLAlchemy URL of a database without tables; once for each kind."""
    if database_kind == "sqlite":
        return f"sqlite:///{tmp_path / 'sfumato.db'}"
    return str(request.getfixturevalue("fresh_postgres_url"))


@pytest.fixture
def database_url(database_kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """SQLAlchemy URL of a database that has run all migrations; once for each kind."""
    if database_kind == "sqlite":
        path = tmp_path / "sfumato.db"
        shutil.copyfile(request.getfixturevalue("_sqlite_template"), path)
        yield f"sqlite:///{path}"
        return
    template = request.getfixturevalue("_postgres_template")
    with _postgres_database(request.getfixturevalue("postgres_url"), template) as url:
        yield url
