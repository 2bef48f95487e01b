"""Approximate differential privacy over HTTP: delta granted, reserved, posted, released, and refused."""

import json
from typing import Any

import numpy as np
import pytest

from clustering.central.cells import GridCells
from clustering.curator import Curator
from models.db import Database
from service.job_resources import Job as JobSchema
from service.job_resources import Result as ResultSchema
from service.resources import Budget as BudgetSchema
from sfumato.accounting import NANO
from sfumato.cluster_model import ClusterModel
from tests.service.api import FEATURES, UNIFORM, Api, a_model, finish, refused, unknown
from tests.service.test_central_jobs import GATED, api, central, submit, work
from tests.service.test_datasets import hash_of
from workers.runner import Outcome

__all__ = ["api"]  # the fixture: a gateway that knows the records' key

MICRO = 10**12  # of delta, in atto-delta
JSON = {"Content-Type": "application/json"}
WRONG = [-1e-6, -5e-324, 0.002, 1.0, 1e-16, 1e-6 / 3, "1e-6", None, True, [1e-6]]
NO_NUMBER = ["NaN", "Infinity", "-Infinity", "1e999"]


def budget(api: Api, dataset_id: str) -> dict[str, Any]:
    found: dict[str, Any] = api.get(f"/datasets/{dataset_id}/budget").json()
    BudgetSchema.model_validate(found)
    return found


def entries(api: Api, dataset_id: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.get(f"/datasets/{dataset_id}/ledger", params={"limit": 20}).json()["items"]
    return found


def a_block(params: object, features: Any, curator: Curator) -> ClusterModel:
    """An algorithm: one pure question, a block, two questions within it; half of its delta is left."""
    cells = GridCells((2, 2))
    curator.count(NANO // 4)
    block = curator.concentrated(NANO // 2, MICRO)
    for _ in range(2):
        block.counts(cells, block.left_pico // 2)
    centroids = np.array([[(f.lower + f.upper) / 2 for f in features]])
    return ClusterModel("centroids", features, np.ones(1), np.zeros(1), centroids)


class TestADataset:
    def test_is_granted_delta_with_its_epsilon(self, api: Api) -> None:
        made = api.dataset(trust="central", delta=1e-6)
        (first,) = entries(api, made["id"])
        assert (first["kind"], first["epsilon"], first["delta"], first["delta_atto"]) == ("grant", 8.0, 1e-6, MICRO)
        found = budget(api, made["id"])
        assert (found["granted"], found["remaining"], found["granted_nano"]) == (8.0, 8.0, 8 * NANO)
        assert (found["delta_granted"], found["delta_remaining"], found["granted_delta_atto"]) == (1e-6, 1e-6, MICRO)
        assert {found[name] for name in ("delta_reserved", "delta_posted", "posted_delta_atto")} == {0}

    def test_has_none_unless_it_is_asked_for(self, api: Api) -> None:
        for made in (api.dataset(), api.dataset(trust="central"), api.dataset(delta=0)):
            assert budget(api, made["id"])["granted_delta_atto"] == 0

    def test_that_is_local_has_none(self, api: Api) -> None:
        body = {"name": "d", "trust": "local", "features": FEATURES, "epsilon": 4, "delta": 1e-6}
        assert "central" in refused(api.post("/datasets", body), 422, "validation_failed")["detail"]
        made = api.dataset()
        answer = api.post(f"/datasets/{made['id']}/grants", {"epsilon": 1, "delta": 1e-6})
        refused(answer, 422, "validation_failed")
        assert api.get("/datasets").json()["items"] == [made]
        assert len(entries(api, made["id"])) == 1

    @pytest.mark.parametrize("delta", WRONG, ids=repr)
    def test_with_what_is_no_delta_is_refused_at_its_place(self, api: Api, delta: Any) -> None:
        body = {"name": "d", "trust": "central", "features": FEATURES, "epsilon": 4, "delta": delta}
        problem = refused(api.post("/datasets", body), 422, "validation_failed")
        assert [error["pointer"] for error in problem["errors"]] == ["/delta"]
        assert api.get("/datasets").json()["items"] == []

    @pytest.mark.parametrize("delta", NO_NUMBER)
    def test_with_what_is_no_number_is_refused(self, api: Api, delta: str) -> None:
        def answered(delta: str) -> int:
            features = json.dumps(FEATURES)
            text = f'{{"name": "d", "trust": "central", "epsilon": 4, "delta": {delta}, "features": {features}}}'
            return api.request("POST", "/datasets", content=text, headers=JSON).status_code

        assert answered(delta) in (400, 422)
        assert api.get("/datasets").json()["items"] == []
        assert answered("1e-6") == 201


class TestAGrant:
    def test_adds_to_both_or_to_one(self, api: Api) -> None:
        path = f"/datasets/{central(api, epsilon=1, delta=1e-6)}"
        api.made(f"{path}/grants", {"epsilon": 1, "delta": 1e-9})
        api.made(f"{path}/grants", {"epsilon": 0, "delta": 1e-15})
        entry = api.made(f"{path}/grants", {"epsilon": 0.5})
        assert (entry["delta"], entry["granted_delta_atto"], entry["granted_nano"]) == (
            0,
            1_001_000_001_000,
            25 * 10**8,
        )
        found = api.get(f"{path}/budget").json()
        assert (found["delta_granted"], found["remaining_delta_atto"]) == (1.001000001e-6, 1_001_000_001_000)

    @pytest.mark.parametrize(
        "grant",
        [
            *({"epsilon": 1, "delta": delta} for delta in WRONG),
            {"epsilon": 0},
            {"epsilon": 0, "delta": 0},
            {"epsilon": 1e-7, "delta": 1e-6},
            {"epsilon": -1, "delta": 1e-6},
            {"delta": 1e-6},
        ],
        ids=repr,
    )
    def test_of_nothing_or_of_what_is_none_is_refused(self, api: Api, grant: dict[str, Any]) -> None:
        dataset_id = central(api, delta=1e-6)
        refused(api.post(f"/datasets/{dataset_id}/grants", grant), 422, "validation_failed")
        assert len(entries(api, dataset_id)) == 1

    def test_comes_to_one_in_a_thousand_in_all(self, api: Api) -> None:
        dataset_id = central(api, delta=1e-3)
        for _ in range(2):
            answer = api.post(f"/datasets/{dataset_id}/grants", {"epsilon": 1, "delta": 1e-15})
            assert "1e-3" in refused(answer, 422, "validation_failed")["detail"]
        assert budget(api, dataset_id)["granted_delta_atto"] == 10**15
        assert len(entries(api, dataset_id)) == 1


class TestAJob:
    def test_reserves_posts_and_releases_delta(self, api: Api, database: Database) -> None:
        dataset_id = central(api, rows=20, delta=5e-6)
        job = submit(api, dataset_id, GATED | {"delta": 2e-6})
        JobSchema.model_validate(job)
        assert (job["epsilon"], job["delta"], job["algorithm"]["delta"]) == (1.0, 2e-6, 2e-6)
        assert budget(api, dataset_id)["reserved_delta_atto"] == 2 * MICRO
        assert work(database, job["id"], run_central=a_block) is Outcome.SUCCEEDED

        result = api.get(f"/jobs/{job['id']}/result").json()
        ResultSchema.model_validate(result)
        assert (result["epsilon"], result["delta"]) == (0.75, 1e-6)
        told = [(asked["epsilon_nano"], asked["delta_atto"], asked["delta"]) for asked in result["odometer"]]
        assert told == [(NANO // 4, 0, 0), (NANO // 2, MICRO, 1e-6), (0, 0, 0), (0, 0, 0)]
        assert [asked["rho_pico"] > 0 for asked in result["odometer"]] == [False, False, True, True]
        posts = [entry for entry in entries(api, dataset_id) if entry["kind"] == "post"]
        odometer = {asked["reference"]: (asked["epsilon_nano"], asked["delta_atto"]) for asked in result["odometer"]}
        assert {entry["reference"]: (entry["epsilon_nano"], entry["delta_atto"]) for entry in posts} == odometer
        (release,) = [entry for entry in entries(api, dataset_id) if entry["kind"] == "release"]
        assert (release["epsilon_nano"], release["delta_atto"]) == (NANO // 4, MICRO)
        found = budget(api, dataset_id)
        assert (found["delta_posted"], found["delta_reserved"], found["delta_remaining"]) == (1e-6, 0, 4e-6)
        prev_hash = "0" * 64
        for entry in entries(api, dataset_id):
            assert entry["prev_hash"] == prev_hash
            prev_hash = entry["hash"]
            assert hash_of(entry) == prev_hash

    def test_with_more_than_is_left_is_refused_with_the_figures_of_delta(self, api: Api) -> None:
        dataset_id = central(api, delta=5e-6)
        submit(api, dataset_id, GATED | {"delta": 3e-6})
        before = entries(api, dataset_id)
        body = {"dataset_id": dataset_id, "algorithm": GATED | {"delta": 2.000000000001e-6}}  # by one atto
        problem = refused(api.post("/jobs", body), 409, "budget_exhausted")
        amounts = [problem[name] for name in ("short", "requested", "granted", "reserved", "posted")]
        assert amounts == ["delta", 2.000000000001e-6, 5e-6, 3e-6, 0]
        assert "delta" in problem["detail"]
        assert problem["entries"] == [before[1]["id"]]
        assert entries(api, dataset_id) == before
        assert len(api.get("/jobs").json()["items"]) == 1
        assert submit(api, dataset_id, GATED | {"delta": 2e-6})["state"] == "queued"

    def test_with_too_little_epsilon_is_told_of_epsilon(self, api: Api) -> None:
        dataset_id = central(api, epsilon=0.5)
        body = {"dataset_id": dataset_id, "algorithm": GATED | {"delta": 1e-6}}
        problem = refused(api.post("/jobs", body), 409, "budget_exhausted")
        assert [problem[name] for name in ("short", "requested", "granted")] == ["epsilon", 1.0, 0.5]

    def test_over_a_dataset_without_delta_is_refused(self, api: Api) -> None:
        dataset_id = central(api)
        body = {"dataset_id": dataset_id, "algorithm": GATED | {"delta": 1e-15}}
        problem = refused(api.post("/jobs", body), 409, "budget_exhausted")
        assert [problem[name] for name in ("short", "requested", "granted")] == ["delta", 1e-15, 0]
        assert budget(api, dataset_id)["reserved_nano"] == 0

    @pytest.mark.parametrize("delta", WRONG, ids=repr)
    def test_with_what_is_no_delta_is_refused(self, api: Api, delta: Any) -> None:
        body = {"dataset_id": unknown("ds"), "algorithm": GATED | {"delta": delta}}
        problem = refused(api.post("/jobs", body), 422, "validation_failed")
        assert all(error["pointer"].startswith("/algorithm") for error in problem["errors"])

    @pytest.mark.parametrize(
        "algorithm", [UNIFORM, {"type": "auto", "epsilon": 1.0, "clusters": 2}], ids=["local", "auto"]
    )
    def test_of_an_algorithm_that_has_none_may_not_ask_for_it(self, api: Api, algorithm: dict[str, Any]) -> None:
        body = {"dataset_id": unknown("ds"), "algorithm": algorithm | {"delta": 1e-6}, "target_reports": 1000}
        refused(api.post("/jobs", body), 422, "validation_failed")

    def test_cancelled_before_it_began_gives_all_back(self, api: Api) -> None:
        dataset_id = central(api, delta=1e-6)
        job = submit(api, dataset_id, GATED | {"delta": 1e-6})
        assert api.post(f"/jobs/{job['id']}/cancel").json()["state"] == "canceled"
        found = budget(api, dataset_id)
        assert (found["delta_reserved"], found["delta_posted"], found["delta_remaining"]) == (0, 0, 1e-6)

    def test_of_before_there_was_a_delta_is_told_with_none(self, api: Api, database: Database) -> None:
        job = submit(api, central(api))
        finish(database, job["id"], a_model(), odometer=[("counts", 4, NANO)])
        result = api.get(f"/jobs/{job['id']}/result").json()
        ResultSchema.model_validate(result)
        (asked,) = result["odometer"]
        assert (result["delta"], asked["delta"], asked["delta_atto"], asked["rho_pico"]) == (0, 0, 0, 0)


class TestAForecast:
    def test_tells_the_delta_a_job_reserves(self, api: Api) -> None:
        body = {"algorithm": GATED | {"delta": 1e-6}, "n_features": 2, "expected_records": 10_000}
        told = api.made("/forecasts", body)
        assert (told["epsilon"], told["delta"], told["delta_atto"]) == (1.0, 1e-6, MICRO)
        pure = api.made("/forecasts", body | {"algorithm": GATED})
        assert (pure["delta"], pure["delta_atto"]) == (0, 0)
