"""Approximate differential privacy over HTTP: grants, reservations, charges, releases and refusals of delta."""

import json
from typing import Any

import numpy as np

from clustering.central.cells import GridCells
from clustering.central.curator import Curator
from models.database.engine import Database
from service.schemas.jobs import Job as JobSchema
from service.schemas.ledger import Budget as BudgetSchema
from service.schemas.results import Result as ResultSchema
from sfumato.model.cluster_model import ClusterModel
from sfumato.privacy.accounting import NANO
from tests.service.api import FEATURES, SQLITE_ONLY, UNIFORM, Api, refused, unknown
from tests.service.api.test_central_jobs import GATED, central, submit, work
from tests.service.api.test_datasets import check_chain
from workers.job_runner import ClaimOutcome

MICRO = 10**12  # 1e-6 in atto-delta
WRONG = [-1e-6, -5e-324, 0.002, 1.0, 1e-16, 1e-6 / 3, "1e-6", None, True, [1e-6]]


def entries(api: Api, dataset_id: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.get(
        f"/datasets/{dataset_id}/ledger", params={"limit": 20, "order": "oldest"}
    ).json()["items"]
    return found


def a_block(params: object, features: Any, curator: Curator) -> ClusterModel:
    """Algorithm with one pure query and a block of two queries, which leaves half of its delta."""
    cells = GridCells((2, 2))
    curator.count(NANO // 4)
    block = curator.open_block(NANO // 2, MICRO)
    for _ in range(2):
        block.counts(cells, block.left_pico // 2)
    centroids = np.array([[(f.lower + f.upper) / 2 for f in features]])
    return ClusterModel("centroids", features, np.ones(1), np.zeros(1), centroids)


class TestDataset:
    def test_gets_delta_with_its_epsilon(self, api: Api) -> None:
        dataset_id = api.dataset(trust="central", delta=1e-6)["id"]
        (first,) = entries(api, dataset_id)
        assert (first["kind"], first["epsilon"], first["delta"], first["delta_atto"]) == ("grant", 8.0, 1e-6, MICRO)
        budget = api.budget(dataset_id)
        BudgetSchema.model_validate(budget)
        assert (budget["granted"], budget["remaining"], budget["granted_nano"]) == (8.0, 8.0, 8 * NANO)
        assert (budget["delta_granted"], budget["delta_remaining"], budget["granted_delta_atto"]) == (1e-6, 1e-6, MICRO)
        assert {budget[name] for name in ("delta_reserved", "delta_charged", "charged_delta_atto")} == {0}

    @SQLITE_ONLY
    def test_has_no_delta_by_default(self, api: Api) -> None:
        for dataset in (api.dataset(), api.dataset(trust="central"), api.dataset(delta=0)):
            assert api.budget(dataset["id"])["granted_delta_atto"] == 0

    @SQLITE_ONLY
    def test_that_is_local_has_no_delta(self, api: Api) -> None:
        body = {"name": "d", "trust": "local", "features": FEATURES, "epsilon": 4, "delta": 1e-6}
        assert "central" in refused(api.post("/datasets", body), 422, "validation_failed")["detail"]
        dataset = api.dataset()
        grant = {"epsilon": 1, "delta": 1e-6}
        refused(api.post(f"/datasets/{dataset['id']}/grants", grant), 422, "validation_failed")
        assert api.get("/datasets").json()["items"] == [dataset]
        assert len(entries(api, dataset["id"])) == 1

    @SQLITE_ONLY
    def test_with_an_invalid_delta_is_refused_with_a_pointer(self, api: Api) -> None:
        body = {"name": "d", "trust": "central", "features": FEATURES, "epsilon": 4}
        for delta in WRONG:
            problem = refused(api.post("/datasets", body | {"delta": delta}), 422, "validation_failed")
            assert [error["pointer"] for error in problem["errors"]] == ["/delta"]
        for delta in ("NaN", "Infinity", "-Infinity", "1e999"):
            text = json.dumps(body)[:-1] + f', "delta": {delta}}}'
            headers = {"Content-Type": "application/json"}
            assert api.post("/datasets", content=text, headers=headers).status_code in (400, 422)
        assert api.get("/datasets").json()["items"] == []


class TestGrant:
    def test_adds_to_epsilon_to_delta_or_to_both(self, api: Api) -> None:
        dataset_id = central(api, epsilon=1, delta=1e-6)
        for grant in ({"epsilon": 1, "delta": 1e-9}, {"epsilon": 0, "delta": 1e-15}, {"epsilon": 0.5}):
            entry = api.made(f"/datasets/{dataset_id}/grants", grant)
        total = (entry["delta"], entry["granted_delta_atto"], entry["granted_nano"])
        assert total == (0, 1_001_000_001_000, 25 * 10**8)
        budget = api.budget(dataset_id)
        assert (budget["delta_granted"], budget["remaining_delta_atto"]) == (1.001000001e-6, 1_001_000_001_000)

    @SQLITE_ONLY
    def test_of_nothing_or_of_an_invalid_amount_is_refused(self, api: Api) -> None:
        dataset_id = central(api, delta=1e-6)
        for grant in (
            *({"epsilon": 1, "delta": delta} for delta in WRONG),
            {"epsilon": 0},
            {"epsilon": 0, "delta": 0},
            {"epsilon": 1e-7, "delta": 1e-6},
            {"epsilon": -1, "delta": 1e-6},
            {"delta": 1e-6},
        ):
            refused(api.post(f"/datasets/{dataset_id}/grants", grant), 422, "validation_failed")
        assert len(entries(api, dataset_id)) == 1

    @SQLITE_ONLY
    def test_total_of_delta_is_at_most_one_in_a_thousand(self, api: Api) -> None:
        dataset_id = central(api, delta=1e-3)
        for _ in range(2):
            response = api.post(f"/datasets/{dataset_id}/grants", {"epsilon": 1, "delta": 1e-15})
            assert "1e-3" in refused(response, 422, "validation_failed")["detail"]
        assert api.budget(dataset_id)["granted_delta_atto"] == 10**15
        assert len(entries(api, dataset_id)) == 1


class TestJob:
    def test_reserves_charges_and_releases_delta(self, api: Api, database: Database) -> None:
        dataset_id = central(api, rows=20, delta=5e-6)
        job = submit(api, dataset_id, GATED | {"delta": 2e-6})
        JobSchema.model_validate(job)
        assert (job["epsilon"], job["delta"], job["algorithm"]["delta"]) == (1.0, 2e-6, 2e-6)
        assert api.budget(dataset_id)["reserved_delta_atto"] == 2 * MICRO
        assert work(database, job["id"], run_central=a_block) is ClaimOutcome.SUCCEEDED

        result = api.get(f"/jobs/{job['id']}/result").json()
        ResultSchema.model_validate(result)
        assert (result["epsilon"], result["delta"]) == (0.75, 1e-6)
        costs = [(entry["epsilon_nano"], entry["delta_atto"], entry["delta"]) for entry in result["odometer"]]
        assert costs == [(NANO // 4, 0, 0), (NANO // 2, MICRO, 1e-6), (0, 0, 0), (0, 0, 0)]
        assert [entry["rho_pico"] > 0 for entry in result["odometer"]] == [False, False, True, True]
        ledger = entries(api, dataset_id)
        charges = [entry for entry in ledger if entry["kind"] == "charge"]
        odometer = {entry["reference"]: (entry["epsilon_nano"], entry["delta_atto"]) for entry in result["odometer"]}
        assert {entry["reference"]: (entry["epsilon_nano"], entry["delta_atto"]) for entry in charges} == odometer
        (release,) = [entry for entry in ledger if entry["kind"] == "release"]
        assert (release["epsilon_nano"], release["delta_atto"]) == (NANO // 4, MICRO)
        budget = api.budget(dataset_id)
        assert (budget["delta_charged"], budget["delta_reserved"], budget["delta_remaining"]) == (1e-6, 0, 4e-6)
        check_chain(ledger)

    @SQLITE_ONLY
    def test_above_the_free_budget_is_refused_with_the_amounts(self, api: Api) -> None:
        dataset_id = central(api, delta=5e-6)
        submit(api, dataset_id, GATED | {"delta": 3e-6})
        before = entries(api, dataset_id)
        too_much = 2.000000000001e-6  # one atto above the budget
        body = {"dataset_id": dataset_id, "algorithm": GATED | {"delta": too_much}}
        problem = refused(api.key("jobs").post("/jobs", body), 409, "budget_exhausted")
        amounts = [problem[name] for name in ("short", "requested", "granted", "reserved", "charged")]
        assert amounts == ["delta", too_much, 5e-6, 3e-6, 0]
        assert "delta" in problem["detail"]
        assert problem["entries"] == [before[1]["id"]]
        assert entries(api, dataset_id) == before
        assert len(api.get("/jobs").json()["items"]) == 1
        assert submit(api, dataset_id, GATED | {"delta": 2e-6})["state"] == "queued"
        for granted, delta, amounts in (
            ({"epsilon": 0.5}, 1e-6, ["epsilon", 1.0, 0.5]),
            ({}, 1e-15, ["delta", 1e-15, 0]),
        ):
            dataset_id = central(api, **granted)
            body = {"dataset_id": dataset_id, "algorithm": GATED | {"delta": delta}}
            problem = refused(api.key("jobs").post("/jobs", body), 409, "budget_exhausted")
            assert [problem[name] for name in ("short", "requested", "granted")] == amounts
            assert api.budget(dataset_id)["reserved_nano"] == 0

    @SQLITE_ONLY
    def test_with_an_invalid_delta_or_an_algorithm_without_delta_is_refused(self, api: Api) -> None:
        body = {"dataset_id": unknown("ds")}
        for delta in WRONG:
            response = api.post("/jobs", body | {"algorithm": GATED | {"delta": delta}})
            problem = refused(response, 422, "validation_failed")
            assert all(error["pointer"].startswith("/algorithm") for error in problem["errors"])
        for algorithm in (UNIFORM,):
            response = api.post("/jobs", body | {"algorithm": algorithm | {"delta": 1e-6}, "target_reports": 1000})
            refused(response, 422, "validation_failed")

    @SQLITE_ONLY
    def test_canceled_before_its_start_releases_everything(self, api: Api) -> None:
        dataset_id = central(api, delta=1e-6)
        job = submit(api, dataset_id, GATED | {"delta": 1e-6})
        assert api.post(f"/jobs/{job['id']}/cancel").json()["state"] == "canceled"
        budget = api.budget(dataset_id)
        assert (budget["delta_reserved"], budget["delta_charged"], budget["delta_remaining"]) == (0, 0, 1e-6)


@SQLITE_ONLY
def test_a_forecast_has_the_delta_that_a_job_reserves(api: Api) -> None:
    body = {"n_features": 2, "expected_records": 10_000}
    forecast = api.made("/forecasts", body | {"algorithm": GATED | {"delta": 1e-6}})
    assert (forecast["epsilon"], forecast["delta"], forecast["delta_atto"]) == (1.0, 1e-6, MICRO)
    pure = api.made("/forecasts", body | {"algorithm": GATED})
    assert (pure["delta"], pure["delta_atto"]) == (0, 0)
