"""Jobs over records through HTTP: refusals, reservations and charges, and the result of every algorithm."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from models.database.engine import Database
from service.schemas.jobs import Job as JobSchema
from service.schemas.results import Result as ResultSchema
from sfumato.privacy.accounting import NANO
from sfumato.specs import CENTRAL_ALGORITHMS, LOCAL_ALGORITHMS, to_wire
from tests.service.api import SQLITE_ONLY, UNIFORM, Api, claim_job, refused, unknown
from tests.texts import numbers_in
from tests.workers.archive import KEYRING
from tests.workers.toy_central import PRICES, ToyCentral
from workers.job_runner import ClaimOutcome, run
from workers.kernels.warmup import small_parameters

GATED = {"type": "private_kmeans", "epsilon": 1.0, "clusters": 2}
PLACES = np.array([[0.2, -0.6], [0.7, 0.6]])  # cluster centres, about equally frequent
N_RECORDS = 3456


def people(n: int = N_RECORDS) -> list[list[float]]:
    chance = np.random.default_rng(0)
    return (PLACES[np.arange(n) % 2] + chance.normal(0, 0.05, size=(n, 2))).tolist()


def central(api: Api, *, rows: int = 0, **other: Any) -> str:
    """Create a central dataset with this number of records."""
    dataset_id = str(api.dataset(trust="central", **other)["id"])
    if rows:
        api.made(f"/datasets/{dataset_id}/records", {"columns": ["x", "y"], "rows": people(rows)})
    return dataset_id


def submit(api: Api, dataset_id: str, algorithm: dict[str, Any] = GATED, **other: Any) -> dict[str, Any]:
    """Submit a job with a key that may not read the number of records, so that the dataset may be empty."""
    return api.key("jobs").made("/jobs", {"dataset_id": dataset_id, "algorithm": algorithm, **other})


def work(database: Database, job_id: str, **other: Any) -> ClaimOutcome:
    """Claim this job as a worker does."""
    return run(database, claim_job(database, job_id), keyring=lambda: KEYRING, **other)


def read_charges(api: Api, dataset_id: str) -> list[tuple[str, int]]:
    """Return the charges of the ledger."""
    entries = api.get(f"/datasets/{dataset_id}/ledger", params={"limit": 20, "order": "oldest"}).json()["items"]
    return read_costs([entry for entry in entries if entry["kind"] == "charge"])


def read_costs(entries: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(entry["reference"], entry["epsilon_nano"]) for entry in entries]


def without_nulls(algorithm: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in algorithm.items() if value is not None}


class TestSubmit:
    def test_reserves_the_cost_and_opens_no_round(self, api: Api) -> None:
        dataset_id = central(api)
        job = submit(api, dataset_id)
        JobSchema.model_validate(job)
        assert (job["state"], job["epsilon"], job["target_reports"], job["round_ids"]) == ("queued", 1.0, None, [])
        assert job["progress"] == {"rounds_opened": 0, "open_round_id": None, "n_received": 0, "target_reports": None}
        assert job["algorithm"] == GATED | {"seed": 0, "delta": 0.0, "bounds": "declared", "check_features": False}
        assert api.budget(dataset_id)["reserved_nano"] == NANO

    @SQLITE_ONLY
    def test_with_a_parameter_of_collections_is_refused_with_a_pointer(self, api: Api) -> None:
        dataset_id = central(api)
        collection = {"target_reports": 10, "min_reports": 1, "collect_seconds": 60, "round_ids": [unknown("rnd")]}
        for algorithm in (GATED, {"type": "auto", "epsilon": 1.0, "clusters": 2}):
            for name, value in collection.items():
                body = {"dataset_id": dataset_id, "algorithm": algorithm, name: value}
                problem = refused(api.post("/jobs", body), 422, "validation_failed")
                assert [error["pointer"] for error in problem["errors"]] == [f"/{name}"]
        assert api.budget(dataset_id)["reserved_nano"] == 0

    @SQLITE_ONLY
    @pytest.mark.parametrize(
        ("trust", "tags", "fitting", "more"),
        [
            ("central", LOCAL_ALGORITHMS, CENTRAL_ALGORITHMS, {"target_reports": 1000}),
            ("local", CENTRAL_ALGORITHMS, LOCAL_ALGORITHMS, {}),
        ],
        ids=["central", "local"],
    )
    def test_of_an_algorithm_of_the_other_trust_model_is_refused_with_alternatives(
        self, api: Api, trust: str, tags: dict[str, type], fitting: dict[str, type], more: dict[str, int]
    ) -> None:
        body = {"dataset_id": api.dataset(trust=trust)["id"]} | more
        for tag in tags.keys() - {"auto"}:
            algorithm = without_nulls(to_wire(small_parameters(tag)))
            detail = refused(api.post("/jobs", body | {"algorithm": algorithm}), 409, "conflict")["detail"]
            assert tag in detail
            assert all(fit in detail for fit in fitting)

    @SQLITE_ONLY
    def test_needs_devices_over_reports_and_no_clusters(self, api: Api) -> None:
        auto, local_id = {"type": "auto", "epsilon": 1.0}, api.dataset()["id"]
        for algorithm in (auto, UNIFORM):
            body = {"dataset_id": local_id, "algorithm": algorithm}
            refused(api.post("/jobs", body), 422, "validation_failed")
        for algorithm in (auto, {"type": "private_kmeans", "epsilon": 1.0}):
            over_records = {"dataset_id": central(api), "algorithm": algorithm}
            assert api.key("jobs").post("/jobs", over_records).status_code == 202
        assert api.post("/jobs", body | {"target_reports": 1000}).status_code == 202

    @SQLITE_ONLY
    def test_needs_the_scope_jobs(self, api: Api) -> None:
        body = {"dataset_id": central(api), "algorithm": GATED}
        refused(api.key("records", "datasets", "ledger").post("/jobs", body), 403, "forbidden")
        assert api.key("jobs").post("/jobs", body).status_code == 202


@SQLITE_ONLY
class TestOverNoRecords:
    def test_is_refused_before_a_charge_if_the_key_may_count_them(self, api: Api) -> None:
        body = {"dataset_id": central(api, max_records_per_user=3, user_feature="p"), "algorithm": GATED}
        for key in (api, api.key("jobs", "records")):
            problem = refused(key.post("/jobs", body), 409, "no_records")
            assert problem["least_records"] == 150  # 50 times 3 records per user, at epsilon 1
            assert "upload records first" in problem["detail"]
            assert "at least 150" in problem["detail"]
        assert api.budget(body["dataset_id"])["ledger_seq"] == 1
        assert api.get("/jobs").json()["items"] == []

    def test_is_accepted_if_the_key_may_not_count_them(self, api: Api) -> None:
        """Otherwise the answer would reveal whether there are records."""
        body = {"dataset_id": central(api), "algorithm": GATED}
        analyst = api.key("jobs", "datasets", "ledger")
        assert analyst.made("/jobs", body)["state"] == "queued"
        expected = {"expected_records": 100, **body}
        assert analyst.made("/forecasts", expected)["least_records"] == 50

    def test_is_refused_again_after_the_records_were_deleted(self, api: Api) -> None:
        dataset_id = central(api, rows=1)
        body = {"dataset_id": dataset_id, "algorithm": GATED}
        api.made("/jobs", body)
        assert api.delete(f"/datasets/{dataset_id}/records?all=true").status_code == 204
        refused(api.post("/jobs", body), 409, "no_records")


class TestBudget:
    @SQLITE_ONLY
    def test_that_lacks_one_nano_epsilon_is_exhausted(self, api: Api) -> None:
        dataset_id = central(api, epsilon=0.999999999)
        body = {"dataset_id": dataset_id, "algorithm": GATED}
        problem = refused(api.key("jobs").post("/jobs", body), 409, "budget_exhausted")
        assert (problem["requested"], problem["granted"]) == (1.0, 0.999999999)
        assert submit(api, dataset_id, GATED | {"epsilon": 0.999999999})["state"] == "queued"

    @pytest.mark.slow
    def test_for_ten_jobs_admits_ten_of_two_hundred_concurrent_jobs(self, api: Api, database: Database) -> None:
        dataset_id = central(api, rows=10, epsilon=10.0)
        body = {"dataset_id": dataset_id, "algorithm": GATED}
        with ThreadPoolExecutor(200) as pool:
            responses = list(pool.map(lambda _: api.post("/jobs", body), range(200)))
        job_ids = [response.json()["id"] for response in responses if response.status_code == 202]
        assert len(job_ids) == 10
        for response in responses:
            if response.status_code != 202:
                refused(response, 409, "budget_exhausted")
        whole = ToyCentral(prices=(NANO - 1, 1))
        assert [work(database, job_id, run_central=whole) for job_id in job_ids] == [ClaimOutcome.SUCCEEDED] * 10
        budget = api.budget(dataset_id)
        assert (budget["charged_nano"], budget["reserved_nano"], budget["remaining_nano"]) == (10 * NANO, 0, 0)
        refused(api.post("/jobs", body), 409, "budget_exhausted")

    def test_is_charged_query_by_query_like_the_odometer(self, api: Api, database: Database) -> None:
        dataset_id = central(api, rows=10)
        job = submit(api, dataset_id)
        assert work(database, job["id"], run_central=ToyCentral()) is ClaimOutcome.SUCCEEDED
        result = api.get(f"/jobs/{job['id']}/result").json()
        assert read_costs(result["odometer"]) == read_charges(api, dataset_id)
        assert [entry["epsilon"] for entry in result["odometer"]] == [price / NANO for price in PRICES]
        assert result["epsilon"] == sum(PRICES) / NANO
        assert api.budget(dataset_id)["remaining_nano"] == 8 * NANO - sum(PRICES)


@SQLITE_ONLY
class TestEveryAlgorithm:
    @pytest.mark.parametrize("tag", sorted(CENTRAL_ALGORITHMS))
    def test_has_a_result_that_can_be_read_plotted_and_used(self, api: Api, database: Database, tag: str) -> None:
        algorithm = without_nulls(to_wire(replace(small_parameters(tag), epsilon=4.0)))
        dataset_id = central(api, rows=N_RECORDS)
        path = f"/jobs/{submit(api, dataset_id, algorithm)['id']}"
        assert work(database, path.rpartition("/")[2]) is ClaimOutcome.SUCCEEDED
        result = api.get(f"{path}/result").json()
        ResultSchema.model_validate(result)
        assert (result["rounds"], result["algorithm"]) == ([], algorithm)
        assert result["model"]["n_clusters"] == 2
        assert read_costs(result["odometer"]) == read_charges(api, dataset_id) != []
        cost = sum(entry["epsilon_nano"] for entry in result["odometer"])
        assert cost == round(result["epsilon"] * NANO) <= 4 * NANO
        budget = api.budget(dataset_id)
        assert (budget["charged_nano"], budget["reserved_nano"]) == (cost, 0)
        assert api.get(path).json()["state"] == "succeeded"
        is_map = result["model"]["type"] == "label_map"
        assert is_map == (tag == "density_map")
        if is_map:
            assert set(api.get(f"{path}/labels").json()["labels"]) == {0, 1}
        for query in ("?of=reports",) if is_map else ("", "?of=reports"):
            detail = refused(api.get(f"{path}/labels{query}"), 409, "conflict")["detail"]
            assert "assign" in detail
            assert "keep_reports" not in detail  # a dataset of records has no reports
        labels = api.made(f"{path}/assign", {"points": PLACES.tolist()})["labels"]
        assert sorted(labels) == [0, 1]
        picture = api.get(f"{path}/plot.svg")
        assert picture.status_code == 200
        assert "reports" not in picture.text

    def test_rejects_a_label_map_of_four_features_without_a_reservation(self, api: Api) -> None:
        features = [{"name": f"x{i}", "lower": 0, "upper": 1} for i in range(4)]
        dataset_id = central(api, features=features)
        body = {"dataset_id": dataset_id, "algorithm": {"type": "density_map", "epsilon": 0.5}}
        assert "1 to 3 features" in refused(api.post("/jobs", body), 422, "validation_failed")["detail"]
        assert api.budget(dataset_id)["reserved_nano"] == 0

    def test_hides_the_number_of_records_from_keys_without_the_scope_records(
        self, api: Api, database: Database
    ) -> None:
        dataset_id = central(api, rows=N_RECORDS)
        job = submit(api, dataset_id)
        assert work(database, job["id"], run_central=ToyCentral(prices=())) is ClaimOutcome.SUCCEEDED
        analyst = api.key("jobs", "datasets", "ledger")
        paths = [f"/jobs/{job['id']}{suffix}" for suffix in ("", "/result", "/plot.svg")]
        for path in (*paths, f"/datasets/{dataset_id}", f"/datasets/{dataset_id}/ledger"):
            response = analyst.get(path)
            assert response.status_code == 200
            assert N_RECORDS not in numbers_in(response.text)
        assert N_RECORDS in numbers_in(api.get(f"/datasets/{dataset_id}/records").text)
        refused(analyst.get(f"/datasets/{dataset_id}/records"), 403, "forbidden")


class TestPrivateBounds:
    PRIVATE = GATED | {"bounds": "private"}

    @SQLITE_ONLY
    def test_are_those_of_the_result(self, api: Api, database: Database) -> None:
        wide = [{"name": name, "lower": -30.0, "upper": 30.0} for name in ("x", "y")]
        dataset_id = central(api, rows=6000, features=wide)
        job = submit(api, dataset_id, self.PRIVATE)
        assert work(database, job["id"]) is ClaimOutcome.SUCCEEDED
        result = api.get(f"/jobs/{job['id']}/result").json()
        ResultSchema.model_validate(result)
        assert all(-6 < each["lower"] < each["upper"] < 6 for each in result["model"]["features"])
        assert np.allclose(sorted(result["model"]["centroids"]), PLACES, atol=0.15)
        assert read_charges(api, dataset_id)[0][1] == NANO // 200

    @SQLITE_ONLY
    def test_of_few_records_fail_and_cost_their_count(self, api: Api, database: Database) -> None:
        dataset_id = central(api, rows=20)
        job = submit(api, dataset_id, self.PRIVATE)
        assert work(database, job["id"]) is ClaimOutcome.FAILED
        error = api.get(f"/jobs/{job['id']}").json()["error"]
        assert error["code"] == "too_few_records"
        assert "would do" in error["detail"]
        budget = api.budget(dataset_id)
        assert (budget["reserved_nano"], budget["charged_nano"]) == (0, NANO // 200)

    @SQLITE_ONLY
    def test_are_refused_where_they_cannot_be_found(self, api: Api) -> None:
        auto = {"type": "auto", "epsilon": 1.0, "bounds": "private"}
        body = {"dataset_id": api.dataset()["id"], "algorithm": auto, "target_reports": 1000}
        problem = refused(api.post("/jobs", body), 422, "validation_failed")
        assert [error["pointer"] for error in problem["errors"]] == ["/algorithm/bounds"]
        body = {"dataset_id": central(api), "algorithm": self.PRIVATE | {"epsilon": 1e-6}}
        assert "private bounds" in refused(api.post("/jobs", body), 422, "validation_failed")["detail"]


class TestCancel:
    @pytest.mark.parametrize(("moment", "cost"), [(None, 0), (("before", 0), 0), (("before", 1), PRICES[0])])
    def test_releases_the_reservation_of_open_queries(
        self, api: Api, database: Database, moment: tuple[str, int] | None, cost: int
    ) -> None:
        dataset_id = central(api, rows=10)
        path = f"/jobs/{submit(api, dataset_id)['id']}"
        if moment is None:  # before a worker claims the job
            assert api.made(f"{path}/cancel", None)["state"] == "canceled"
        else:
            stop = ToyCentral(at=moment, stop=lambda: api.made(f"{path}/cancel", None))
            assert work(database, path.rpartition("/")[2], run_central=stop) is ClaimOutcome.CANCELED
        budget = api.budget(dataset_id)
        assert (budget["charged_nano"], budget["reserved_nano"]) == (cost, 0)
        detail = refused(api.get(f"{path}/result"), 409, "job_not_finished")["detail"]
        assert detail == "this job ended as canceled and has no result"

    def test_by_deleting_the_dataset_ends_its_jobs(self, api: Api, database: Database) -> None:
        dataset_id = central(api, rows=10)
        job = submit(api, dataset_id)
        delete = ToyCentral(at=("before", 1), stop=lambda: api.delete(f"/datasets/{dataset_id}"))
        assert work(database, job["id"], run_central=delete) is ClaimOutcome.CANCELED
        assert read_charges(api, dataset_id) == [(f"{job['id']}#0", PRICES[0])]


THREE = [{"name": name, "lower": -1.0, "upper": 1.0} for name in ("x", "noise", "y")]


def of_three(api: Api, **other: Any) -> str:
    """Create a central dataset with two informative features, and one that is even."""
    dataset_id = str(api.dataset(trust="central", features=THREE, **other)["id"])
    noise = np.random.default_rng(1).uniform(-1, 1, N_RECORDS).tolist()
    rows = [[x, third, y] for (x, y), third in zip(people(), noise, strict=True)]
    api.made(f"/datasets/{dataset_id}/records", {"columns": ["x", "noise", "y"], "rows": rows})
    return dataset_id


class TestFeaturesOfAJob:
    def test_are_those_of_the_result_in_the_order_of_the_dataset(self, api: Api, database: Database) -> None:
        dataset_id = of_three(api)
        job = submit(api, dataset_id, GATED, features=["y", "x"])
        JobSchema.model_validate(job)
        assert job["features"] == ["x", "y"]
        assert work(database, job["id"]) == ClaimOutcome.SUCCEEDED
        model = api.get(f"/jobs/{job['id']}/result").json()["model"]
        assert [each["name"] for each in model["features"]] == ["x", "y"]
        found = np.array(sorted(model["centroids"]))
        assert np.abs(found - PLACES).max() < 0.1
        assert api.made(f"/jobs/{job['id']}/assign", {"points": PLACES.tolist()})["labels"] in ([0, 1], [1, 0])
        rest = submit(api, dataset_id, GATED)
        assert rest["features"] is None
        assert work(database, rest["id"]) == ClaimOutcome.SUCCEEDED
        assert api.budget(dataset_id)["charged_nano"] == 2 * NANO  # jobs over different features add up

    @SQLITE_ONLY
    def test_of_all_features_are_those_of_a_job_that_names_none(self, api: Api) -> None:
        assert submit(api, of_three(api), GATED, features=["y", "noise", "x"])["features"] is None

    @SQLITE_ONLY
    @pytest.mark.parametrize(
        ("features", "message"),
        [
            (["x", "nose"], "there is no feature 'nose': use 'noise'"),
            (["x", "x"], "'x' is named twice"),
        ],
    )
    def test_with_a_wrong_name_are_refused_with_the_nearest(self, api: Api, features: list[str], message: str) -> None:
        dataset_id = of_three(api)
        body = {"dataset_id": dataset_id, "algorithm": GATED, "features": features}
        (error,) = refused(api.post("/jobs", body), 422, "validation_failed")["errors"]
        assert error["pointer"] == "/features"
        assert message in error["message"]
        forecast = {"dataset_id": dataset_id, "algorithm": GATED, "expected_records": 100, "job_features": features}
        (error,) = refused(api.post("/forecasts", forecast), 422, "validation_failed")["errors"]
        assert error["pointer"] == "/job_features"
        assert api.budget(dataset_id)["reserved_nano"] == 0

    @SQLITE_ONLY
    def test_are_refused_over_reports_and_over_an_embedding(self, api: Api) -> None:
        embedding = api.dataset(trust="central", features={"dimensions": 3})["id"]
        for dataset_id, given in ((embedding, {"algorithm": GATED}), (api.dataset()["id"], {"algorithm": UNIFORM})):
            body = {"dataset_id": dataset_id, "features": ["x0"], **given}
            body |= {"target_reports": 1000} if given["algorithm"] is UNIFORM else {}
            (error,) = refused(api.post("/jobs", body), 422, "validation_failed")["errors"]
            assert error["pointer"] == "/features"
        empty = {"dataset_id": embedding, "algorithm": GATED, "features": []}
        refused(api.post("/jobs", empty), 422, "validation_failed")

    @SQLITE_ONLY
    def test_decide_the_forecast_and_the_limits_of_the_algorithm(self, api: Api) -> None:
        five = [{"name": f"x{place}", "lower": 0.0, "upper": 1.0} for place in range(5)]
        dataset_id = api.dataset(trust="central", features=five, epsilon=4)["id"]
        body = {"dataset_id": dataset_id, "algorithm": GATED, "expected_records": 10_000}
        assert api.made("/forecasts", body)["n_features"] == 5
        chosen = api.made("/forecasts", body | {"job_features": ["x4", "x1"]})
        alone = {"n_features": 2, "algorithm": GATED, "expected_records": 10_000}
        n_jobs = {"jobs_granted": 4, "jobs_remaining": 4}  # members of the budget of the dataset
        assert chosen == api.made("/forecasts", alone) | n_jobs
        map_job = {"type": "density_map", "epsilon": 1.0}
        refused(
            api.key("jobs").post("/jobs", {"dataset_id": dataset_id, "algorithm": map_job}), 422, "validation_failed"
        )
        assert submit(api, dataset_id, map_job, features=["x1", "x4"])["features"] == ["x1", "x4"]
        refused(api.post("/forecasts", alone | {"job_features": ["x1"]}), 422, "validation_failed")
