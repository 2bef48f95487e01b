"""A migrated database with one dataset in it."""

from collections.abc import Iterator

import pytest

from models.db import Database
from tests.workers.collection import Collection


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """One connection pool on the test's database."""
    opened = Database(database_url, pool_size=4)
    yield opened
    opened.close()


@pytest.fixture
def collection(database: Database) -> Collection:
    """A dataset of one feature."""
    return Collection.create(database)
