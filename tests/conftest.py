"""Fixtures for databases and Redis: SQLite files, and private servers.

A server starts when the first test of a pytest process needs it, in about a second, and stops with that process. Each
xdist worker has its own servers. Two environment variables replace them: SFUMATO_TEST_POSTGRES_URL (a role that may
create databases) and SFUMATO_TEST_REDIS_URL (the tests empty its databases 0 to 15). A missing server is an error,
never a skip.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the setting of job processes; must precede numpy

import itertools
import re
import secrets
import shutil
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

import hypothesis
import psycopg
import pytest
import redis
from sqlalchemy.engine import make_url

from runtime.process import gc_paused
from tests.servers import PostgresServer, RedisServer

REDIS_DATABASES = 16

Server = TypeVar("Server", PostgresServer, RedisServer)

# An example may wait for the compiler or for a busy machine, so it has no deadline. Every run tries the same examples,
# so that a failure is reproducible. `--hypothesis-profile=explore` tries others.
PATIENT = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile("sfumato", PATIENT, derandomize=True)
hypothesis.settings.register_profile("explore", PATIENT)
hypothesis.settings.load_profile("sfumato")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that selects slow tests beside the fast ones."""
    text = "file, folder or test; of the slow tests, run only those in it (repeatable)"
    parser.addoption("--slow-in", action="append", default=[], metavar="ID", help=text)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the slow tests that `--slow-in` does not select. Run those that it selects first: they take longest."""
    selected = config.getoption("--slow-in")
    if not selected:
        return
    slow: dict[bool, list[pytest.Item]] = {True: [], False: []}
    fast, found = [], set()
    for item in items:
        if item.get_closest_marker("slow") is None:
            fast.append(item)
            continue
        places = [each for each in selected if re.match(rf"{re.escape(each)}($|/|::|\[)", item.nodeid)]
        found.update(places)
        slow[bool(places)].append(item)
    if missing := set(selected) - found:
        raise pytest.UsageError(f"--slow-in must name a slow test that exists: {', '.join(sorted(missing))}")
    items[:] = slow[True] + fast
    config.hook.pytest_deselected(items=slow[False])


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exempt imported modules and collected tests from garbage collection, which would scan them again and again."""
    with gc_paused():
        return (yield)


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """Return the SQLAlchemy URL of a PostgreSQL server with a role that may create databases."""
    if given := os.environ.get("SFUMATO_TEST_POSTGRES_URL"):
        yield make_url(given).set(drivername="postgresql+psycopg").render_as_string(hide_password=False)
        return
    with _running(PostgresServer()) as server:
        yield server.url()


@pytest.fixture
def durable_postgres() -> Iterator[PostgresServer]:
    """Return a private PostgreSQL server with fsync, for tests that kill it."""
    with _running(PostgresServer(durable=True)) as server:
        yield server


@contextmanager
def _running(server: Server) -> Iterator[Server]:
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
    with _running(RedisServer()) as server:
        yield server.url()


@pytest.fixture(scope="session")
def redis_session_url(_redis_session_url: str, _redis_databases: Iterator[int]) -> str:
    """Return the URL of a Redis database that tests share and may empty."""
    url = make_url(_redis_session_url).set(database=str(next(_redis_databases)))
    return url.render_as_string(hide_password=False)


@pytest.fixture(scope="session")
def _redis_databases() -> Iterator[int]:
    """Return an iterator over the database numbers of this pytest process."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    return itertools.cycle(range(worker % REDIS_DATABASES, REDIS_DATABASES, workers))


@pytest.fixture
def redis_url(_redis_session_url: str, _redis_databases: Iterator[int]) -> str:
    """Return the URL of an empty Redis database."""
    url = make_url(_redis_session_url).set(database=str(next(_redis_databases)))
    rendered = url.render_as_string(hide_password=False)
    with closing(redis.Redis.from_url(rendered)) as client:
        client.flushdb()
    return rendered


@contextmanager
def _postgres_database(admin_url: str, template: str = "template1") -> Iterator[str]:
    """Copy `template` to a new database, and drop it at the end even if there are connections."""
    name = f"sfumato_test_{os.getpid()}_{secrets.token_hex(4)}"
    with psycopg.connect(admin_url.replace("+psycopg", ""), autocommit=True) as admin:
        # Copying files takes half the time of logging all pages. Servers before 15 always copy files.
        strategy = "STRATEGY FILE_COPY" if admin.info.server_version >= 150_000 else ""
        admin.execute(f"CREATE DATABASE {name} TEMPLATE {template} {strategy}")
        try:
            yield make_url(admin_url).set(database=name).render_as_string(hide_password=False)
        finally:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def fresh_postgres_url(postgres_url: str) -> Iterator[str]:
    """Return an empty PostgreSQL database for one test."""
    with _postgres_database(postgres_url) as url:
        yield url


@pytest.fixture(scope="session")
def _postgres_template(postgres_url: str) -> Iterator[str]:
    """Return the name of a migrated database, as a template."""
    from models.database.schema import migrate

    with _postgres_database(postgres_url) as url:
        migrate(url)
        yield str(make_url(url).database)


@pytest.fixture(scope="session")
def _sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a migrated database file, as a template."""
    from models.database.schema import migrate

    path = tmp_path_factory.mktemp("template") / "sfumato.db"
    migrate(f"sqlite:///{path}")
    return path


@pytest.fixture(params=["sqlite", "postgresql"])
def database_kind(request: pytest.FixtureRequest) -> str:
    """Return the kind of database.

    A test for one kind uses `parametrize("database_kind", ["postgresql"], indirect=True)`.
    """
    return str(request.param)


@pytest.fixture
def empty_database_url(database_kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the SQLAlchemy URL of a database without tables, for each kind."""
    if database_kind == "sqlite":
        return f"sqlite:///{tmp_path / 'sfumato.db'}"
    return str(request.getfixturevalue("fresh_postgres_url"))


@pytest.fixture
def database_url(database_kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Return the SQLAlchemy URL of a migrated database, for each kind."""
    if database_kind == "sqlite":
        path = tmp_path / "sfumato.db"
        shutil.copyfile(request.getfixturevalue("_sqlite_template"), path)
        yield f"sqlite:///{path}"
        return
    template = request.getfixturevalue("_postgres_template")
    with _postgres_database(request.getfixturevalue("postgres_url"), template) as url:
        yield url
