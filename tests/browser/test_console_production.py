"""The tests of test_console_walk with PostgreSQL, Redis, and separate gateway and worker processes."""

from collections.abc import Iterator

import pytest

from models import encryption
from models.database.engine import Database
from models.database.schema import migrate
from models.identity import keys, tenants
from models.tables.identity import Scope
from sfumato import Client
from tests.browser.conftest import Served
from tests.browser.test_console_walk import (
    TestAWalk,
    TestWithLess,
    dataset_id,
    finished,
)  # pytest collects them here again
from tests.conftest import _postgres_database
from tests.service.processes import running

__all__ = ["TestAWalk", "TestWithLess", "dataset_id", "finished"]

pytestmark = pytest.mark.release


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, postgres_url: str, redis_session_url: str) -> Iterator[Served]:
    """Start a production setup instead of `sfumato serve`."""
    home = tmp_path_factory.mktemp("production")
    with _postgres_database(postgres_url) as url:
        migrate(url)
        database = Database(url)
        with database.transaction() as session:
            owner = tenants.get_or_create_tenant(session, "default", now=database.clock())
            _, secret = keys.create_key(session, owner.id, name="office", scopes=[Scope.ADMIN], now=database.clock())
        database.close()
        settings = {
            "SFUMATO_DATABASE_URL": url,
            "SFUMATO_REDIS_URL": redis_session_url,
            "SFUMATO_RECORDS_KEY": encryption.encode_key(encryption.new_secret()),
        }
        with (
            running(home / "gateway", "gateway", "--port", "0", **settings) as gateway,
            running(home / "worker", "worker", **settings),
            Client(gateway.url(), secret) as client,
        ):
            yield Served(gateway.url(), secret, client)
