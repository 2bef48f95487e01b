"""What a tenant may have: quotas of its own by the command line, the view of them, and refusals that say which."""

from collections.abc import Callable
from functools import partial

import pytest
from typer.testing import CliRunner

from models import audit, quota, tenant
from models.db import Database
from models.tenant import Scope
from service.cli import app
from tests.models.world import together
from tests.service.api import Api, refused


def set_quota(api: Api, **changes: int | None) -> None:
    with api.database.transaction() as session:
        caller = tenant.authenticate(session, tenant.hash_secret(api.secret), now=api.database.clock())
        assert caller is not None
        quota.set_own(session, caller.tenant_id, dict(changes), now=api.database.clock())


class TestTheView:
    def test_tells_the_settings_or_the_quotas_of_the_tenants_own_and_what_there_is(self, api: Api, other: Api) -> None:
        made = api.dataset()
        api.job(made["id"])
        set_quota(api, max_active_jobs=5, max_running_jobs=2, max_dataset_records=100)

        assert api.get("/limits").json() == {
            "datasets": {"limit": 10_000, "used": 1},
            "active_jobs": {"limit": 5, "used": 1},
            "max_running_jobs": 2,
            "max_open_rounds": 16,
            "max_dataset_records": 100,
        }
        assert other.get("/limits").json()["active_jobs"] == {"limit": 1000, "used": 0}

    def test_tells_how_many_jobs_there_are_to_whoever_may_list_them_alone(self, api: Api) -> None:
        api.job(api.dataset()["id"])

        assert api.key("datasets").get("/limits").json()["active_jobs"] == {"limit": 1000, "used": None}
        assert api.key("jobs").get("/limits").json()["active_jobs"] == {"limit": 1000, "used": 1}

    def test_is_closed_to_a_key_of_one_dataset(self, api: Api) -> None:
        bound = api.key("jobs", "datasets", dataset_id=api.dataset()["id"])
        refused(bound.get("/limits"), 403, "forbidden")


class TestAtTheLimit:
    def test_of_datasets_jobs_and_rounds_a_sentence_says_which_and_what_to_do(self, api: Api) -> None:
        made = api.dataset(epsilon=30)
        set_quota(api, max_datasets=1, max_active_jobs=1, max_open_rounds=1)
        api.job(made["id"])
        api.round(made["id"])
        dataset = {"name": "d", "trust": "local", "features": made["features"], "epsilon": 1}
        job = {"dataset_id": made["id"], "algorithm": {"type": "uniform_grid", "epsilon": 1.0}, "target_reports": 1000}
        asked = {"encoding": {"type": "grid", "cells": [2, 2]}, "epsilon": 1, "target_reports": 1000}
        for path, body, said in (
            ("/datasets", dataset, "max_datasets): delete one"),
            ("/jobs", job, "max_active_jobs): wait for one to end"),
            (f"/datasets/{made['id']}/rounds", asked, "max_open_rounds): close one"),
        ):
            assert said in refused(api.post(path, body), 422, "validation_failed")["detail"]

    def test_of_two_that_ask_at_once_one_gets_the_last_place(self, api: Api) -> None:
        made = [api.dataset()["id"] for _ in range(4)]
        set_quota(api, max_active_jobs=2)
        body = {"algorithm": {"type": "uniform_grid", "epsilon": 1.0}, "target_reports": 1000}

        answers = together([partial(api.post, "/jobs", body | {"dataset_id": each}) for each in made])

        assert sorted(answer.status_code for answer in answers) == [202, 202, 422, 422]


class TestTheCommand:
    @pytest.fixture
    def run(self, database_url: str, no_settings: None, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
        monkeypatch.setenv("SFUMATO_DATABASE_URL", database_url)

        def run(*arguments: str, status: int = 0) -> str:
            done = CliRunner().invoke(app, ["tenant", *arguments])
            assert done.exit_code == status, done.output
            return done.output if status else done.stdout

        return run

    def test_makes_a_tenant_and_prints_its_admin_key_once(self, run: Callable[..., str], database_url: str) -> None:
        secret = run("create", "acme").strip()

        database = Database(database_url)
        with database.reading() as session:
            caller = tenant.authenticate(session, tenant.hash_secret(secret), now=database.clock())
        database.close()
        assert caller is not None
        assert caller.may(Scope.ADMIN)
        assert "there is such a tenant" in run("create", "acme", status=1)
        assert secret not in run("list")

    def test_sets_quotas_and_takes_them_back(self, run: Callable[..., str]) -> None:
        run("create", "acme")
        assert run("set-quota", "acme", "max_datasets=3", "max_running_jobs=1") == (
            "acme: max_datasets=3 max_running_jobs=1\n"
        )
        assert run("list").split(maxsplit=1)[1] == "acme  max_datasets=3 max_running_jobs=1\n"
        assert run("set-quota", "acme", "max_datasets=default", "max_running_jobs=default") == (
            "acme: no quotas of its own\n"
        )

    def test_leaves_an_event_of_what_the_operator_did_to_the_tenant_and_none_where_nothing_changed(
        self, run: Callable[..., str], database_url: str
    ) -> None:
        run("create", "acme")
        run("create", "acme", status=1)
        for quotas in (("max_datasets=3", "max_running_jobs=1"), ("max_datasets=3",), ("max_datasets=2", "turn=9")):
            run("set-quota", "acme", *quotas, status=1 if "turn=9" in quotas else 0)
        run("set-quota", "acme", "max_datasets=default", "max_running_jobs=1")

        database = Database(database_url)
        with database.reading() as session:
            owner = tenant.find_tenant(session, "acme")
            assert owner is not None
            events = audit.page(session, owner.id, limit=100)
            assert audit.verify(session, owner.id).ok
        database.close()
        assert {event.actor for event in events} == {audit.OPERATOR}
        assert [(event.act, event.subject_id == owner.id) for event in events] == [
            ("tenant.created", True),
            ("key.created", False),
            ("quota.updated", True),
            ("quota.updated", True),
        ]
        assert [event.details for event in events[2:]] == [
            {"changed": ["max_datasets", "max_running_jobs"]},
            {"changed": ["max_datasets"]},
        ]

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (("set-quota", "nobody", "max_datasets=3"), "no such tenant"),
            (("set-quota", "acme", "max_nonsense=3"), "no such quota"),
            (("set-quota", "acme", "max_datasets"), "write a quota as"),
            (("set-quota", "acme", "max_datasets=-1"), "write a quota as"),
            (("set-quota", "acme", "max_datasets=0"), "a whole number from 1"),
            (("set-quota", "acme", "max_datasets=99999999999"), "write a quota as"),
            (("set-quota", "acme", "max_open_rounds=65"), "from 1 to 64"),
            (("create", ""), "1 to 100 printable"),
            (("create", "a\nb"), "1 to 100 printable"),
            (("create", "a" * 101), "1 to 100 printable"),
        ],
        ids=lambda value: value[0] if isinstance(value, tuple) else "said",
    )
    def test_says_what_is_wrong(self, run: Callable[..., str], arguments: tuple[str, ...], said: str) -> None:
        run("create", "acme")
        assert said in run(*arguments, status=1)


class TestAStuckSession:
    def test_costs_others_a_bounded_wait_and_a_503(self, over: Callable[..., Api], database_url: str) -> None:
        """Fifty requests at two connections, the dataset's row in the hands of somebody who is gone."""
        small = Database(database_url, pool_size=2, wait_seconds=0.2)
        api = over(small, database_pool_size=2)
        made = api.dataset()
        assert {a.status_code for a in together([partial(api.get, f"/datasets/{made['id']}")] * 50)} == {200}

        connections = [small.engine.connect() for _ in range(4)]
        answers = together([partial(api.get, f"/datasets/{made['id']}")] * 8)
        for connection in connections:
            connection.close()

        for answer in answers:
            refused(answer, 503, "unavailable")
            assert answer.headers["retry-after"] == "1"
        assert api.get(f"/datasets/{made['id']}").status_code == 200
        small.close()
