"""Sources over HTTP: the costs of all datasets over the same people, and the limit that is on by default."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from devservers.inprocess import InProcess
from models.database.engine import Database
from runtime.settings import Settings
from service.app import create_app
from service.schemas.datasets import CreatedDataset
from service.schemas.sources import Source
from sfumato.api.parsers import parse_source
from tests.service.api import SQLITE_ONLY, Api, refused, stranger
from tests.service.api.test_accounting import BLOCK, WIDE
from tests.workers.archive import RECORDS_KEY

PURE = {"type": "private_kmeans", "epsilon": 1.5, "clusters": 3}

pytestmark = SQLITE_ONLY


@pytest.fixture(scope="module")
def limited(database: Database, settings: Settings) -> Iterator[httpx.Client]:
    """Yield a client of a gateway with the default limit of sources."""
    with InProcess(create_app(settings.model_copy(update={"source_limit": "grants"}), database)) as gateway:
        yield gateway.client


@pytest.fixture
def api(limited: httpx.Client, database: Database) -> Api:
    """Return an admin key of a new tenant."""
    return stranger(limited, database)


def records(api: Api, name: str = "ward", **other: Any) -> str:
    """Create a dataset of records with a budget of epsilon 2."""
    return str(api.dataset(**{"name": name, "trust": "central", "epsilon": 2} | other)["id"])


def submit(api: Api, dataset_id: str, algorithm: dict[str, Any] = PURE) -> Any:
    return api.key("jobs").post("/jobs", {"dataset_id": dataset_id, "algorithm": algorithm})


def spend(api: Api, **other: Any) -> str:
    """Create a dataset, reserve most of its budget, and return its id."""
    dataset_id = records(api, **other)
    assert submit(api, dataset_id).status_code == 202
    return dataset_id


def charge(api: Api, dataset_id: str) -> None:
    """Charge epsilon 1 to the free budget of a local dataset."""
    api.round(dataset_id)


class TestLimit:
    def test_is_on_by_default(self, api: Api) -> None:
        assert Settings().source_limit == "grants"
        assert api.get("/limits").json()["source_limit"] == "grants"

    def test_refuses_a_new_budget_by_creating_the_dataset_again(self, api: Api) -> None:
        first = api.dataset(name="lunch", epsilon=1)["id"]
        charge(api, first)
        assert api.delete(f"/datasets/{first}").status_code == 204
        again = api.dataset(name="lunch", epsilon=1)["id"]
        body = {"encoding": {"type": "grid", "cells": [2, 2]}, "mechanism": "grr", "epsilon": 1, "target_reports": 9}
        problem = refused(api.post(f"/datasets/{again}/rounds", body), 409, "budget_exhausted")
        assert (problem["ceiling"], problem["limit"], problem["spent"], problem["requested"]) == ("source", 1, 1, 1)
        assert "same people" in problem["detail"]
        assert api.budget(again)["ledger_seq"] == 1

    @pytest.mark.parametrize("other", [{}, {"source": "ward-1"}])
    def test_adds_reservations_of_the_same_people(self, api: Api, other: dict[str, str]) -> None:
        spend(api, **other)
        assert refused(submit(api, records(api, **other)), 409, "budget_exhausted")["spent"] == 1.5
        assert submit(api, records(api, epsilon=3, **other)).status_code == 202

    def test_leaves_other_people_alone(self, api: Api) -> None:
        spend(api)
        for other in ({"name": "other"}, {"source": "ward-1"}, {"source": "ward-2"}):
            assert submit(api, records(api, **other)).status_code == 202

    def test_follows_a_grant(self, api: Api) -> None:
        spend(api)
        second = records(api)
        refused(submit(api, second), 409, "budget_exhausted")
        api.made(f"/datasets/{second}/grants", {"epsilon": 1})
        assert submit(api, second).status_code == 202

    def test_adds_mu2_of_gaussian_datasets(self, api: Api) -> None:
        wide = {"features": WIDE, "delta": 1e-6}
        first, second = records(api, **wide), records(api, **wide)
        for n in range(20):
            assert submit(api, (first, second)[n % 2], BLOCK).status_code == 202
        assert api.get("/sources/-", params={"name": "ward"}).json()["accounting"] == "gaussian"
        additive = records(api, **wide, accounting="additive")
        assert refused(submit(api, additive, BLOCK), 409, "budget_exhausted")["short"] == "epsilon"

    def test_is_a_setting(self, over: Callable[..., Api], database: Database) -> None:
        api = over(database, records_key=RECORDS_KEY, source_limit="none")
        spend(api)
        spend(api)
        assert api.get("/limits").json()["source_limit"] == "none"
        assert api.get("/sources/-", params={"name": "ward"}).json()["limit"]["rule"] == "none"


class TestCreation:
    def test_says_that_others_have_the_same_people(self, api: Api) -> None:
        body = {"name": "ward", "trust": "central", "features": WIDE, "epsilon": 2}
        first = api.made("/datasets", body)
        CreatedDataset.model_validate(first)
        assert (first["n_same_people"], first["warnings"]) == (0, [])
        api.delete(f"/datasets/{first['id']}")
        second = api.made("/datasets", body)
        assert second["n_same_people"] == 1
        assert "1 other dataset of this name" in second["warnings"][0]
        labelled = [api.made("/datasets", body | {"name": name, "source": "w"}) for name in ("a", "b")]
        assert [each["n_same_people"] for each in labelled] == [0, 1]


class TestSource:
    def test_adds_up_all_datasets_with_deleted_ones(self, api: Api) -> None:
        first = api.dataset(name="lunch", epsilon=4, source="staff")["id"]
        charge(api, first)
        api.delete(f"/datasets/{first}")
        spend(api, source="staff", name="wages")
        document = api.get("/sources/staff").json()
        Source.model_validate(document)
        assert (document["n_datasets"], document["charged"], document["reserved"]) == (2, 1.0, 1.5)
        assert [each["name"] for each in document["datasets"]] == ["wages", "lunch"]
        assert [each["deleted_at"] is None for each in document["datasets"]] == [True, False]
        limit = document["limit"]
        assert (limit["rule"], limit["epsilon"], limit["remaining"], limit["remaining_share"]) == (
            "grants",
            4,
            1.5,
            0.375,
        )
        found = parse_source(document)
        assert (found.source, found.datasets[1].charged, found.limit.remaining) == ("staff", 1.0, 1.5)

    def test_without_a_label_is_chosen_by_name(self, api: Api) -> None:
        spend(api)
        records(api, name="other")
        assert api.get("/sources/-").json()["n_datasets"] == 2
        found = api.get("/sources/-", params={"name": "ward"}).json()
        assert (found["source"], found["name"], found["n_datasets"], found["reserved"]) == (None, "ward", 1, 1.5)

    def test_states_amounts_of_the_operator(self, over: Callable[..., Api], database: Database) -> None:
        api = over(database, records_key=RECORDS_KEY, max_source_epsilon=3)
        spend(api, source="staff")
        limit = api.get("/sources/staff").json()["limit"]
        assert (limit["rule"], limit["epsilon"], limit["remaining"]) == ("amounts", 3, 1.5)

    def test_is_read_by_officers_of_the_tenant(self, api: Api) -> None:
        dataset_id = records(api, source="staff")
        assert api.key("ledger").get("/sources/staff").status_code == 200
        refused(api.key("jobs").get("/sources/staff"), 403, "forbidden")
        refused(api.key("ledger", dataset_id=dataset_id).get("/sources/staff"), 403, "forbidden")

    @pytest.mark.parametrize("label", ["nobody", "-"])
    def test_without_datasets_does_not_exist(self, api: Api, label: str) -> None:
        refused(api.get(f"/sources/{label}"), 404, "not_found")

    def test_of_another_tenant_does_not_exist(self, api: Api) -> None:
        records(api, source="ward-1")
        assert api.get("/sources/ward-1").status_code == 200
        refused(stranger(api.http, api.database).get("/sources/ward-1"), 404, "not_found")

    def test_of_a_label_takes_no_name(self, api: Api) -> None:
        records(api, source="staff")
        refused(api.get("/sources/staff", params={"name": "ward"}), 422, "validation_failed")
