"""The walk through the console again, over PostgreSQL and Redis, with a gateway and a worker of their own."""

from collections.abc import Iterator

import pytest

from models import sealing, tenant
from models.db import Database, migrate
from models.tenant import Scope
from sfumato import Client
from tests.browser.conftest import Served
from tests.browser.test_console_walk import TestAWalk, TestWithLess, dataset_id, finished  # collected here once more
from tests.conftest import _postgres_database
from tests.service.processes import running

__all__ = ["TestAWalk", "TestWithLess", "dataset_id", "finished"]

pytestmark = [pytest.mark.slow, pytest.mark.ci]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, postgres_url: str, redis_session_url: str) -> Iterator[Served]:
    """In place of `sfumato serve`: what production runs."""
    home = tmp_path_factory.mktemp("production")
    with _postgres_database(postgres_url) as url:
        migrate(url)
        database = Database(url)
        with database.transaction() as session:
            owner = tenant.get_or_create_tenant(session, "default", now=database.clock())
            _, secret = tenant.create_key(session, owner.id, name="office", scopes=[Scope.ADMIN], now=database.clock())
        database.close()
        settings = {
            "SFUMATO_DATABASE_URL": url,
            "SFUMATO_REDIS_URL": redis_session_url,
            "SFUMATO_RECORDS_KEY": sealing.write_key(sealing.new_secret()),
        }
        with (
            running(home / "gateway", "gateway", "--port", "0", **settings) as gateway,
            running(home / "worker", "worker", **settings),
            Client(gateway.url(), secret) as client,
        ):
            yield Served(gateway.url(), secret, client)
