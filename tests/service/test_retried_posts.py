"""A POST whose transaction PostgreSQL ends for others' sake: its client learns nothing of it, its operator does."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import text

from models import audit, ledger
from models.dataset import Dataset
from models.db import MAX_TRIES, Database, migrate
from models.settings import Settings
from service.app import create_app
from tests.models.world import together
from tests.service.api import FEATURES, Api, refused, stranger
from tests.service.inprocess import InProcess

# Every try takes a number, which no rollback takes back.
TRIES = "CREATE SEQUENCE tries"
TRIGGER = "CREATE TRIGGER ends BEFORE INSERT ON datasets FOR EACH ROW EXECUTE FUNCTION ends()"

FAILS_AT_FIRST = """
CREATE FUNCTION ends() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF nextval('tries') <= :n THEN RAISE EXCEPTION 'could not serialize' USING ERRCODE = '40001'; END IF;
    RETURN NEW;
END $$"""

# Two locks, in the order of the name or in the other; the first two tries meet with one each.
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
    """A gateway on a database of the test's own, and what it counts."""
    migrate(fresh_postgres_url)
    database = Database(fresh_postgres_url)
    app = create_app(Settings(home=tmp_path), database)
    with InProcess(app) as running:
        yield stranger(running.client, database), app.state.services.metrics.registry, database
    database.close()


def plant(database: Database, function: str) -> None:
    """Have every new dataset go through this function."""
    with database.transaction() as session:
        for statement in (TRIES, function, TRIGGER):
            session.execute(text(statement))


def dataset(name: str) -> dict[str, object]:
    return {"name": name, "trust": "local", "features": FEATURES, "epsilon": 8}


def n_retried(registry: CollectorRegistry, reason: str) -> float | None:
    labels = {"transaction": "create_dataset", "reason": reason}
    return registry.get_sample_value("sfumato_transaction_retries_total", labels)


def assert_made_once(api: Api, database: Database, *ids: str) -> None:
    """These datasets alone are there, each with its grant, and the audit trail names each once."""
    assert [item["id"] for item in api.get("/datasets").json()["items"]] == sorted(ids)
    with database.reading() as session:
        for each in ids:
            assert ledger.verify(session, each).ok
            assert len(ledger.page(session, each, after_seq=0, limit=10)) == 1
        owner = session.get_one(Dataset, ids[0]).tenant_id
        assert audit.verify(session, owner).ok
        made = [event.subject_id for event in audit.page(session, owner, limit=10, act="dataset.created")]
    assert sorted(made) == sorted(ids)


class TestAPost:
    def test_that_failed_to_serialize_is_answered_as_if_nothing_had_been(
        self, gateway: tuple[Api, CollectorRegistry, Database]
    ) -> None:
        api, registry, database = gateway
        n_failures = MAX_TRIES - 1
        plant(database, FAILS_AT_FIRST.replace(":n", str(n_failures)))

        answer = api.post("/datasets", dataset("a"), headers={"Idempotency-Key": "once"})

        assert answer.status_code == 201, answer.text
        assert n_retried(registry, "serialization") == n_failures
        again = api.post("/datasets", dataset("a"), headers={"Idempotency-Key": "once"})
        assert (again.status_code, again.json()) == (201, answer.json())
        assert_made_once(api, database, answer.json()["id"])

    def test_that_met_another_in_a_deadlock_is_answered_as_if_nothing_had_been_and_so_is_the_other(
        self, gateway: tuple[Api, CollectorRegistry, Database]
    ) -> None:
        api, registry, database = gateway
        plant(database, CROSSES)

        both = [(api, "a"), (stranger(api.http, database), "b")]  # two tenants, who would not meet otherwise

        answers = together([partial(each.post, "/datasets", dataset(name)) for each, name in both])

        assert [answer.status_code for answer in answers] == [201, 201]
        assert n_retried(registry, "deadlock") == 1
        for (each, _), answer in zip(both, answers, strict=True):
            assert_made_once(each, database, answer.json()["id"])

    def test_that_fails_every_time_is_refused_for_the_moment_and_leaves_nothing(
        self, gateway: tuple[Api, CollectorRegistry, Database]
    ) -> None:
        api, registry, database = gateway
        plant(database, FAILS_AT_FIRST.replace(":n", str(MAX_TRIES)))

        refused(api.post("/datasets", dataset("a"), headers={"Idempotency-Key": "once"}), 503, "unavailable")

        assert n_retried(registry, "serialization") == MAX_TRIES - 1
        assert api.get("/datasets").json()["items"] == []
        made = api.post("/datasets", dataset("a"), headers={"Idempotency-Key": "once"})  # its key is free
        assert made.status_code == 201
        assert_made_once(api, database, made.json()["id"])
