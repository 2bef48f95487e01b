"""Jobs over records through HTTP: what is refused, what is reserved and spent, what comes of every algorithm."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from models.db import Database
from models.job import Claim, Job, JobState
from service.job_resources import Job as JobSchema
from service.job_resources import Result as ResultSchema
from sfumato.accounting import NANO
from sfumato.specs import CENTRAL_ALGORITHMS, LOCAL_ALGORITHMS, to_wire
from tests.service.api import UNIFORM, Api, refused
from tests.texts import numbers_in
from tests.workers.archive import KEYRING, RECORDS_KEY
from tests.workers.toy_central import PRICES, ToyCentral
from workers.runner import Outcome, run
from workers.warm import small

GATED = {"type": "gated_grid_kmeans", "epsilon": 1.0, "clusters": 2}
PLACES = np.array([[0.2, -0.6], [0.7, 0.6]])  # of people, about evenly
N_RECORDS = 3456


@pytest.fixture
def api(over: Callable[..., Api], database: Database) -> Api:
    """An admin key of a fresh tenant, at a gateway that knows the records' key."""
    return over(database, records_key=RECORDS_KEY)


def people(n: int = N_RECORDS) -> list[list[float]]:
    chance = np.random.default_rng(0)
    return (PLACES[np.arange(n) % 2] + chance.normal(0, 0.05, size=(n, 2))).tolist()


def central(api: Api, *, rows: int = 0, **other: Any) -> str:
    """A central dataset, with so many records in it."""
    dataset_id = str(api.dataset(trust="central", **other)["id"])
    if rows:
        api.made(f"/datasets/{dataset_id}/records", {"columns": ["x", "y"], "rows": people(rows)})
    return dataset_id


def submit(api: Api, dataset_id: str, algorithm: dict[str, Any] = GATED, **other: Any) -> dict[str, Any]:
    return api.made("/jobs", {"dataset_id": dataset_id, "algorithm": algorithm, **other})


def work(database: Database, job_id: str, **other: Any) -> Outcome:
    """As a worker that claims this job."""
    with database.transaction() as session:
        job = session.get_one(Job, job_id)
        job.state, job.fence, job.started_at = JobState.RUNNING.value, 1, database.clock()
    return run(database, Claim(job_id, 1), keyring=lambda: KEYRING, **other)


def postings(api: Api, dataset_id: str) -> list[tuple[str, int]]:
    entries = api.get(f"/datasets/{dataset_id}/ledger", params={"limit": 20}).json()["items"]
    return [(e["reference"], e["epsilon_nano"]) for e in entries if e["kind"] == "post"]


class TestSubmitting:
    def test_reserves_and_asks_no_device(self, api: Api) -> None:
        dataset_id = central(api)
        job = submit(api, dataset_id)
        JobSchema.model_validate(job)
        assert (job["state"], job["epsilon"], job["target_reports"], job["round_ids"]) == ("queued", 1.0, None, [])
        assert job["progress"] == {"rounds_opened": 0, "open_round_id": None, "n_received": 0, "target_reports": None}
        assert job["algorithm"] == GATED | {"seed": 0, "delta": 0.0}
        assert api.get(f"/datasets/{dataset_id}/budget").json()["reserved_nano"] == NANO

    @pytest.mark.parametrize(
        ("name", "value"),
        [("target_reports", 10), ("min_reports", 1), ("collect_seconds", 60), ("round_ids", [f"rnd_{'0' * 26}"])],
    )
    @pytest.mark.parametrize(
        "algorithm", [GATED, {"type": "auto", "epsilon": 1.0, "clusters": 2}], ids=["gated", "auto"]
    )
    def test_with_anything_to_collect_is_refused_at_its_place(
        self, api: Api, algorithm: dict[str, Any], name: str, value: Any
    ) -> None:
        dataset_id = central(api)
        body = {"dataset_id": dataset_id, "algorithm": algorithm, name: value}
        problem = refused(api.post("/jobs", body), 422, "validation_failed")
        assert [error["pointer"] for error in problem["errors"]] == [f"/{name}"]
        assert api.get(f"/datasets/{dataset_id}/budget").json()["reserved_nano"] == 0

    @pytest.mark.parametrize("tag", sorted(LOCAL_ALGORITHMS.keys() - {"auto"}))
    def test_of_an_algorithm_over_reports_is_refused_and_told_which_would_do(self, api: Api, tag: str) -> None:
        algorithm = {name: value for name, value in to_wire(small(tag)).items() if value is not None}
        body = {"dataset_id": central(api), "algorithm": algorithm, "target_reports": 1000}
        detail = refused(api.post("/jobs", body), 409, "conflict")["detail"]
        assert tag in detail
        assert all(fit in detail for fit in CENTRAL_ALGORITHMS)

    @pytest.mark.parametrize("tag", sorted(CENTRAL_ALGORITHMS.keys() - {"auto"}))
    def test_of_an_algorithm_over_records_is_refused_by_a_local_dataset(self, api: Api, tag: str) -> None:
        algorithm = {name: value for name, value in to_wire(small(tag)).items() if value is not None}
        body = {"dataset_id": api.dataset()["id"], "algorithm": algorithm}
        detail = refused(api.post("/jobs", body), 409, "conflict")["detail"]
        assert tag in detail
        assert all(fit in detail for fit in LOCAL_ALGORITHMS)

    def test_of_auto_needs_the_number_of_clusters_here_and_a_number_of_devices_there(self, api: Api) -> None:
        auto = {"type": "auto", "epsilon": 1.0}
        refused(api.post("/jobs", {"dataset_id": central(api), "algorithm": auto}), 422, "validation_failed")
        refused(api.post("/jobs", {"dataset_id": api.dataset()["id"], "algorithm": auto}), 422, "validation_failed")

    def test_needs_the_scope_jobs(self, api: Api) -> None:
        body = {"dataset_id": central(api), "algorithm": GATED}
        refused(api.key("records", "datasets", "ledger").post("/jobs", body), 403, "forbidden")
        assert api.key("jobs").post("/jobs", body).status_code == 202


class TestTheBudget:
    def test_that_is_short_by_one_nano_epsilon_is_exhausted(self, api: Api) -> None:
        dataset_id = central(api, epsilon=0.999999999)
        problem = refused(api.post("/jobs", {"dataset_id": dataset_id, "algorithm": GATED}), 409, "budget_exhausted")
        assert (problem["requested"], problem["granted"]) == (1.0, 0.999999999)
        assert submit(api, dataset_id, GATED | {"epsilon": 0.999999999})["state"] == "queued"

    @pytest.mark.slow
    @pytest.mark.ci
    def test_for_ten_runs_ten_of_two_hundred_jobs_at_once(self, api: Api, database: Database) -> None:
        dataset_id = central(api, rows=10, epsilon=10.0)
        body = {"dataset_id": dataset_id, "algorithm": GATED}
        with ThreadPoolExecutor(200) as pool:
            answers = list(pool.map(lambda _: api.post("/jobs", body), range(200)))
        taken = [answer.json()["id"] for answer in answers if answer.status_code == 202]
        assert len(taken) == 10
        for answer in answers:
            if answer.status_code != 202:
                refused(answer, 409, "budget_exhausted")
        whole = ToyCentral(prices=(NANO - 1, 1))
        assert [work(database, job_id, run_central=whole) for job_id in taken] == [Outcome.SUCCEEDED] * 10
        budget = api.get(f"/datasets/{dataset_id}/budget").json()
        assert (budget["posted_nano"], budget["reserved_nano"], budget["remaining_nano"]) == (10 * NANO, 0, 0)
        refused(api.post("/jobs", body), 409, "budget_exhausted")

    def test_is_spent_question_by_question_as_the_odometer_says(self, api: Api, database: Database) -> None:
        dataset_id = central(api, rows=10)
        job = submit(api, dataset_id)
        assert work(database, job["id"], run_central=ToyCentral()) is Outcome.SUCCEEDED
        result = api.get(f"/jobs/{job['id']}/result").json()
        assert [(asked["reference"], asked["epsilon_nano"]) for asked in result["odometer"]] == postings(
            api, dataset_id
        )
        assert [asked["epsilon"] for asked in result["odometer"]] == [price / NANO for price in PRICES]
        assert result["epsilon"] == sum(PRICES) / NANO
        assert api.get(f"/datasets/{dataset_id}/budget").json()["remaining_nano"] == 8 * NANO - sum(PRICES)


class TestEveryAlgorithm:
    @pytest.mark.parametrize("tag", sorted(CENTRAL_ALGORITHMS))
    def test_comes_to_a_result_that_is_read_drawn_and_used(self, api: Api, database: Database, tag: str) -> None:
        params = replace(small(tag), epsilon=4.0)
        algorithm = {name: value for name, value in to_wire(params).items() if value is not None}
        dataset_id = central(api, rows=N_RECORDS)
        job = submit(api, dataset_id, algorithm)
        assert work(database, job["id"]) is Outcome.SUCCEEDED
        answered = api.get(f"/jobs/{job['id']}/result")
        result = answered.json()
        ResultSchema.model_validate(result)
        assert (result["rounds"], result["algorithm"]) == ([], algorithm)
        assert result["model"]["n_clusters"] == 2
        assert result["odometer"]
        assert [(asked["reference"], asked["epsilon_nano"]) for asked in result["odometer"]] == postings(
            api, dataset_id
        )
        spent = sum(asked["epsilon_nano"] for asked in result["odometer"])
        assert spent == round(result["epsilon"] * NANO) <= 4 * NANO
        budget = api.get(f"/datasets/{dataset_id}/budget").json()
        assert (budget["posted_nano"], budget["reserved_nano"]) == (spent, 0)
        assert api.get(f"/jobs/{job['id']}").json()["state"] == "succeeded"
        told = {
            refused(api.get(f"/jobs/{job['id']}/labels{of}"), 409, "conflict")["detail"] for of in ("", "?of=reports")
        }
        assert all("assign" in detail and "keep_reports" not in detail for detail in told)  # it never had reports
        labels = api.made(f"/jobs/{job['id']}/assign", {"points": PLACES.tolist()})["labels"]
        assert sorted(labels) == [0, 1]
        picture = api.get(f"/jobs/{job['id']}/plot.svg")
        assert picture.status_code == 200
        assert "reports" not in picture.text

    def test_of_a_key_without_the_scope_records_is_not_told_how_many_there_are(
        self, api: Api, database: Database
    ) -> None:
        dataset_id = central(api, rows=N_RECORDS)
        job = submit(api, dataset_id)
        assert work(database, job["id"], run_central=ToyCentral(prices=())) is Outcome.SUCCEEDED
        analyst = api.key("jobs", "datasets", "ledger")
        paths = [f"/datasets/{dataset_id}", f"/jobs/{job['id']}", f"/jobs/{job['id']}/result"]
        paths += [f"/datasets/{dataset_id}/ledger", f"/jobs/{job['id']}/plot.svg"]
        for path in paths:
            answer = analyst.get(path)
            assert answer.status_code == 200
            assert N_RECORDS not in numbers_in(answer.text)
        assert N_RECORDS in numbers_in(api.get(f"/datasets/{dataset_id}/records").text)
        refused(analyst.get(f"/datasets/{dataset_id}/records"), 403, "forbidden")


class TestCancelling:
    def test_before_a_worker_has_it_releases_all(self, api: Api) -> None:
        dataset_id = central(api)
        job = submit(api, dataset_id)
        assert api.made(f"/jobs/{job['id']}/cancel", None)["state"] == "canceled"
        budget = api.get(f"/datasets/{dataset_id}/budget").json()
        assert (budget["posted_nano"], budget["reserved_nano"]) == (0, 0)

    @pytest.mark.parametrize(("moment", "posted"), [(("before", 0), 0), (("before", 1), PRICES[0])])
    def test_releases_what_was_not_asked(
        self, api: Api, database: Database, moment: tuple[str, int], posted: int
    ) -> None:
        dataset_id = central(api, rows=10)
        job = submit(api, dataset_id)
        stop = ToyCentral(at=moment, stop=lambda: api.made(f"/jobs/{job['id']}/cancel", None))
        assert work(database, job["id"], run_central=stop) is Outcome.CANCELED
        budget = api.get(f"/datasets/{dataset_id}/budget").json()
        assert (budget["posted_nano"], budget["reserved_nano"]) == (posted, 0)
        told = refused(api.get(f"/jobs/{job['id']}/result"), 409, "job_not_finished")["detail"]
        assert told == "this job is over (canceled) and will have no result"

    def test_by_deleting_the_dataset_ends_its_jobs(self, api: Api, database: Database) -> None:
        dataset_id = central(api, rows=10)
        job = submit(api, dataset_id)
        gone = ToyCentral(at=("before", 1), stop=lambda: api.request("DELETE", f"/datasets/{dataset_id}"))
        assert work(database, job["id"], run_central=gone) is Outcome.CANCELED
        assert postings(api, dataset_id) == [(f"{job['id']}#0", PRICES[0])]


class TestLocalDatasets:
    def test_still_say_how_many_devices_they_expect(self, api: Api) -> None:
        body = {"dataset_id": api.dataset()["id"], "algorithm": UNIFORM}
        refused(api.post("/jobs", body), 422, "validation_failed")
        assert api.post("/jobs", body | {"target_reports": 1000}).status_code == 202
