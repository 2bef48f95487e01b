"""A POST with a transaction that PostgreSQL aborts is retried: clients do not notice, but a metric counts it."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import text

from devservers.inprocess import InProcess
from models.database.engine import MAX_TRIES, Database
from models.database.schema import migrate
from models.identity import audit_trail
from models.ledger import ledger
from models.tables.datasets import Dataset
from runtime.settings import Settings
from service.app import create_app
from tests.models.world import together
from tests.service.api import FEATURES, Api, refused, stranger

# Every attempt increments a sequence, which a rollback does not undo.
ATTEMPTS = "CREATE SEQUENCE tries"
TRIGGER = "CREATE TRIGGER ends BEFORE INSERT ON datasets FOR EACH ROW EXECUTE FUNCTION ends()"

FAILS_AT_FIRST = """
CREATE FUNCTION ends() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF nextval('tries') <= :n THEN RAISE EXCEPTION 'could not serialize' USING ERRCODE = '40001'; END IF;
    RETURN NEW;
END $$"""

# Take two advisory locks in an order that depends on the name, so that the first two attempts deadlock.
CROSSES = """
CREATE FUNCTION ends() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE first integer := CASE NEW.name WHEN 'a' THEN 1 ELSE 2 END;
BEGIN
    PERFORM pg_advisory_xact_lock(1, first);
    IF nextval('tries') <= 2 THEN
        WHILE (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND classid = 1
               AND database = (SELECT oid FROM pg_database WHERE datname = current_database())) < 2
        LOOP PERFORM pg_sleep(0.01); END LOOP;
    END IF;
    PERFORM pg_advisory_xact_lock(1, 3 - first);
    RETURN NEW;
END $$"""


@pytest.fixture
def gateway(
    fresh_postgres_url: str, no_settings: None, tmp_path: Path
) -> Iterator[tuple[Api, CollectorRegistry, Database]]:
    """Return a gateway on a database of this test, and its metrics."""
    migrate(fresh_postgres_url)
    database = Database(fresh_postgres_url)
    app = create_app(Settings(home=tmp_path), database)
    with InProcess(app) as running:
        yield stranger(running.client, database), app.state.context.metrics.registry, database
    database.close()


def plant(database: Database, function: str) -> None:
    """Install this function as a trigger on new datasets."""
    with database.transaction() as session:
        for statement in (ATTEMPTS, function, TRIGGER):
            session.execute(text(statement))


def dataset(name: str) -> dict[str, object]:
    return {"name": name, "trust": "local", "features": FEATURES, "epsilon": 8}


def n_retried(registry: CollectorRegistry, reason: str) -> float | None:
    labels = {"transaction": "create_dataset", "reason": reason}
    return registry.get_sample_value("sfumato_transaction_retries_total", labels)


def assert_made_once(api: Api, database: Database, *ids: str) -> None:
    """Check that only these datasets exist, each with one grant and one audit event."""
    assert [item["id"] for item in api.get("/datasets").json()["items"]] == sorted(ids)
    with database.reading() as session:
        for each in ids:
            assert ledger.verify(session, each).ok
            assert len(ledger.page(session, each, after_seq=0, limit=10)) == 1
        owner = session.get_one(Dataset, ids[0]).tenant_id
        assert audit_trail.verify(session, owner).ok
        created = [event.subject_id for event in audit_trail.page(session, owner, limit=10, act="dataset.created")]
    assert sorted(created) == sorted(ids)


class TestPost:
    def test_succeeds_after_a_serialization_failure(self, gateway: tuple[Api, CollectorRegistry, Database]) -> None:
        api, registry, database = gateway
        n_failures = MAX_TRIES - 1
        plant(database, FAILS_AT_FIRST.replace(":n", str(n_failures)))

        answer = api.post("/datasets", dataset("a"), headers={"Idempotency-Key": "once"})

        assert answer.status_code == 201, answer.text
        assert n_retried(registry, "serialization") == n_failures
        again = api.post("/datasets", dataset("a"), headers={"Idempotency-Key": "once"})
        assert (again.status_code, again.json()) == (201, answer.json())
        assert_made_once(api, database, answer.json()["id"])

    def test_succeeds_after_a_deadlock_like_its_opponent(
        self, gateway: tuple[Api, CollectorRegistry, Database]
    ) -> None:
        api, registry, database = gateway
        plant(database, CROSSES)

        both = [(api, "a"), (stranger(api.http, database), "b")]  # two tenants share no other lock

        answers = together([partial(each.post, "/datasets", dataset(name)) for each, name in both])

        assert [answer.status_code for answer in answers] == [201, 201]
        assert n_retried(registry, "deadlock") == 1
        for (each, _), answer in zip(both, answers, strict=True):
            assert_made_once(each, database, answer.json()["id"])

    def test_that_always_fails_is_unavailable_and_changes_nothing(
        self, gateway: tuple[Api, CollectorRegistry, Database]
    ) -> None:
        api, registry, database = gateway
        plant(database, FAILS_AT_FIRST.replace(":n", str(MAX_TRIES)))

        refused(api.post("/datasets", dataset("a"), headers={"Idempotency-Key": "once"}), 503, "unavailable")

        assert n_retried(registry, "serialization") == MAX_TRIES - 1
        assert api.get("/datasets").json()["items"] == []
        created = api.post(
            "/datasets", dataset("a"), headers={"Idempotency-Key": "once"}
        )  # the idempotency key is unused
        assert created.status_code == 201
        assert_made_once(api, database, created.json()["id"])
