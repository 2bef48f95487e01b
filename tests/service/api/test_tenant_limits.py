"""Quotas of a tenant: set by the command line, shown by the API, and named in refusals."""

from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import partial
from typing import ClassVar

import pytest

from models.database.engine import Database
from models.identity import audit_trail, keys, tenants
from models.identity.caller import OPERATOR
from models.tables.identity import Scope
from tests.models.world import together
from tests.service.api import SQLITE_KIND_ONLY, SQLITE_ONLY, Api, refused
from tests.service.commands import run_command


def set_quota(api: Api, **changes: int) -> None:
    with api.database.transaction() as session:
        changed = {name: Decimal(value) for name, value in changes.items()}
        tenants.set_quotas(session, api.caller().tenant_id, changed, now=api.database.clock())


@SQLITE_ONLY
class TestLimits:
    def test_show_the_settings_or_own_quotas_and_the_usage(self, api: Api, other: Api) -> None:
        api.job(api.dataset()["id"])
        assert api.key("datasets").get("/limits").json()["active_jobs"] == {"limit": 1000, "used": None}
        assert api.key("jobs").get("/limits").json()["active_jobs"] == {"limit": 1000, "used": 1}
        set_quota(api, max_active_jobs=5, max_running_jobs=2, max_dataset_records=100)
        assert api.get("/limits").json() == {
            "datasets": {"limit": 10_000, "used": 1},
            "active_jobs": {"limit": 5, "used": 1},
            "max_running_jobs": 2,
            "max_open_rounds": 16,
            "max_dataset_records": 100,
            "max_dataset_epsilon": None,
            "max_dataset_delta": None,
            "max_source_epsilon": None,
            "max_source_delta": None,
            "source_limit": "none",
        }
        assert other.get("/limits").json()["active_jobs"] == {"limit": 1000, "used": 0}

    def test_are_forbidden_for_a_key_of_one_dataset(self, api: Api) -> None:
        bound = api.key("jobs", "datasets", dataset_id=api.dataset()["id"])
        refused(bound.get("/limits"), 403, "forbidden")


class TestAtTheLimit:
    JOB: ClassVar = {"algorithm": {"type": "uniform_grid", "epsilon": 1.0}, "target_reports": 1000}

    @SQLITE_ONLY
    def test_refusals_name_the_quota_and_the_remedy(self, api: Api) -> None:
        dataset = api.dataset(epsilon=30)
        set_quota(api, max_datasets=1, max_active_jobs=1, max_open_rounds=1)
        api.job(dataset["id"])
        api.round(dataset["id"])
        body = {"name": "d", "trust": "local", "features": dataset["features"], "epsilon": 1}
        round_body = {"encoding": {"type": "grid", "cells": [2, 2]}, "epsilon": 1, "target_reports": 1000}
        for path, document, message in (
            ("/datasets", body, "max_datasets): delete one"),
            ("/jobs", self.JOB | {"dataset_id": dataset["id"]}, "max_active_jobs): wait until one ends"),
            (f"/datasets/{dataset['id']}/rounds", round_body, "max_open_rounds): close one"),
        ):
            assert message in refused(api.post(path, document), 422, "validation_failed")["detail"]

    def test_concurrent_requests_do_not_exceed_it(self, api: Api) -> None:
        bodies = [self.JOB | {"dataset_id": api.dataset()["id"]} for _ in range(4)]
        set_quota(api, max_active_jobs=2)
        responses = together([partial(api.post, "/jobs", body) for body in bodies])
        assert sorted(response.status_code for response in responses) == [202, 202, 422, 422]


@SQLITE_KIND_ONLY
class TestCommand:
    @pytest.fixture
    def database(self, database_url: str, no_settings: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
        """Return the database of the commands."""
        monkeypatch.setenv("SFUMATO_DATABASE_URL", database_url)
        opened = Database(database_url)
        yield opened
        opened.close()

    def run(self, *arguments: str, status: int = 0) -> str:
        result = run_command("tenant", *arguments, status=status)
        return result.output if status else result.stdout

    def test_creates_a_tenant_and_prints_its_admin_key_once(self, database: Database) -> None:
        secret = self.run("create", "acme").strip()
        with database.reading() as session:
            caller = keys.authenticate(session, keys.hash_secret(secret), now=database.clock())
        assert caller is not None
        assert caller.may(Scope.ADMIN)
        assert "a tenant of this name exists" in self.run("create", "acme", status=1)
        assert secret not in self.run("list")

    def test_sets_and_removes_quotas_with_an_audit_event_for_each_change(self, database: Database) -> None:
        self.run("create", "acme")
        self.run("create", "acme", status=1)
        both = "acme: max_datasets=3 max_running_jobs=1\n"
        assert self.run("set-quota", "acme", "max_datasets=3", "max_running_jobs=1") == both
        assert self.run("list").split(maxsplit=1)[1] == both.replace(": ", "  ")
        self.run("set-quota", "acme", "max_datasets=3")
        self.run("set-quota", "acme", "max_datasets=2", "turn=9", status=1)
        removed = self.run("set-quota", "acme", "max_datasets=default", "max_running_jobs=default")
        assert removed == "acme: no quotas of its own\n"
        with database.reading() as session:
            owner = tenants.find_tenant(session, "acme")
            assert owner is not None
            events = audit_trail.page(session, owner.id, limit=100)
            assert audit_trail.verify(session, owner.id).ok
        assert {event.actor for event in events} == {OPERATOR}
        acts = ["tenant.created", "key.created", "quota.updated", "quota.updated"]
        assert [event.act for event in events] == acts
        assert [event.subject_id == owner.id for event in events] == [True, False, True, True]
        assert [event.details for event in events[2:]] == [{"changed": ["max_datasets", "max_running_jobs"]}] * 2

    def test_explains_invalid_arguments(self, database: Database) -> None:
        self.run("create", "acme")
        for quota, message in (
            ("max_nonsense=3", "no such quota"),
            ("max_datasets", "write a quota as"),
            ("max_datasets=-1", "write a quota as"),
            ("max_datasets=0", "an integer from 1"),
            ("max_datasets=99999999999", "write a quota as"),
            ("max_open_rounds=65", "from 1 to 64"),
        ):
            assert message in self.run("set-quota", "acme", quota, status=1)
        assert "no such tenant" in self.run("set-quota", "unknown", "max_datasets=3", status=1)
        for name in ("", "a\nb", "a" * 101):
            assert "1 to 100 printable" in self.run("create", name, status=1)


class TestBlockedRow:
    def test_costs_other_requests_a_bounded_wait_and_a_503(self, over: Callable[..., Api], database_url: str) -> None:
        """Send requests over two connections while stale transactions hold all connections."""
        small = Database(database_url, pool_size=2, wait_seconds=0.2)
        api = over(small, database_pool_size=2)
        get = partial(api.get, f"/datasets/{api.dataset()['id']}")
        assert {response.status_code for response in together([get] * 50)} == {200}

        connections = [small.engine.connect() for _ in range(4)]
        responses = together([get] * 8)
        for connection in connections:
            connection.close()

        for response in responses:
            refused(response, 503, "unavailable")
            assert response.headers["retry-after"] == "1"
        assert get().status_code == 200
        small.close()
