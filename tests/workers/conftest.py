"""Fixtures of a migrated database with one dataset.

The tests use SQLite. Tests of locks and of concurrent workers are marked with `on_both_databases`.
"""

from collections.abc import Iterator

import pytest

from models.database.engine import Database
from tests.workers.collection import Collection


@pytest.fixture
def database_kind(request: pytest.FixtureRequest) -> str:
    """Return the kind of database."""
    return str(getattr(request, "param", "sqlite"))


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """Return a connection pool of the test's database."""
    opened = Database(database_url, pool_size=4)
    yield opened
    opened.close()


@pytest.fixture
def collection(database: Database) -> Collection:
    """Return a dataset of one feature."""
    return Collection.create(database)
