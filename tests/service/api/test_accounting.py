"""Gaussian accounting over HTTP: creation, switch, jobs that state mu, what was spent, and forecasts in jobs."""

from typing import Any

import pytest

from service.schemas.forecasts import CentralForecast
from service.schemas.ledger import Budget
from sfumato.api.parsers import parse_budget
from sfumato.forecast import records_forecast_from_wire
from sfumato.privacy.accountant import charge_mu2
from sfumato.privacy.accounting import NANO
from sfumato.specs import PrivateKmeans
from tests.service.api import SQLITE_ONLY, Api, refused
from tests.service.api.test_central_jobs import submit

WIDE = [{"name": f"x{i}", "lower": 0.0, "upper": 1.0} for i in range(5)]
BLOCK = {"type": "private_kmeans", "epsilon": 0.2, "delta": 1e-8, "clusters": 3}
OF_MU = {"type": "private_kmeans", "mu": 0.0424, "clusters": 3}
AUTO_OF_MU = OF_MU | {"type": "auto"}

pytestmark = SQLITE_ONLY


def wide(api: Api, **other: Any) -> str:
    """Create a dataset of five features with a budget of epsilon 2 and delta 1e-6."""
    given = {"trust": "central", "features": WIDE, "epsilon": 2, "delta": 1e-6}
    return str(api.dataset(**given | other)["id"])


def forecast(api: Api, dataset_id: str, algorithm: dict[str, Any]) -> dict[str, Any]:
    body = {"algorithm": algorithm, "dataset_id": dataset_id, "expected_records": 10_000}
    response = api.post("/forecasts", body)
    assert response.status_code == 200, response.text
    return dict(response.json())


class TestCreation:
    @pytest.mark.parametrize(("epsilon", "delta"), [(2, 0), (1e-6, 1e-15)])
    def test_needs_a_delta_that_covers_mu2(self, api: Api, epsilon: float, delta: float) -> None:
        body = {"name": "d", "trust": "central", "features": WIDE, "epsilon": epsilon, "delta": delta}
        problem = refused(api.post("/datasets", body | {"accounting": "gaussian"}), 422, "validation_failed")
        assert [error["pointer"] for error in problem["errors"]] == ["/accounting"]
        assert not api.get("/datasets").json()["items"]

    def test_is_gaussian_by_default_with_a_delta_above_four_features(self, api: Api) -> None:
        found = [
            api.get(f"/datasets/{wide(api, **other)}").json()["accounting"]
            for other in ({}, {"delta": 0}, {"features": WIDE[:4]}, {"accounting": "additive"})
        ]
        assert found == ["gaussian", "additive", "additive", "additive"]

    def test_of_a_local_dataset_is_additive(self, api: Api) -> None:
        body = {"name": "d", "trust": "local", "features": WIDE, "epsilon": 2, "accounting": "gaussian"}
        refused(api.post("/datasets", body), 422, "validation_failed")


class TestSwitch:
    def test_waits_for_open_reservations(self, api: Api) -> None:
        dataset_id = wide(api, accounting="additive")
        job = submit(api, dataset_id, BLOCK)
        entries = api.budget(dataset_id)["ledger_seq"]
        change = {"accounting": "gaussian"}
        problem = refused(api.patch(f"/datasets/{dataset_id}", change), 409, "conflict")
        assert "reservation" in problem["detail"]
        assert api.budget(dataset_id)["ledger_seq"] == entries
        api.post(f"/jobs/{job['id']}/cancel")
        assert api.patch(f"/datasets/{dataset_id}", change).json()["accounting"] == "gaussian"
        assert api.budget(dataset_id)["charged_mu2_pico"] == 0

    def test_has_no_way_back(self, api: Api) -> None:
        refused(api.patch(f"/datasets/{wide(api)}", {"accounting": "additive"}), 422, "validation_failed")

    def test_of_a_dataset_without_delta_is_refused(self, api: Api) -> None:
        dataset_id = wide(api, delta=0)
        refused(api.patch(f"/datasets/{dataset_id}", {"accounting": "gaussian"}), 422, "validation_failed")
        assert api.budget(dataset_id)["accounting"] == "additive"


class TestMu:
    @pytest.mark.parametrize("algorithm", [OF_MU, AUTO_OF_MU], ids=["private_kmeans", "auto"])
    def test_reserves_at_most_mu2(self, api: Api, algorithm: dict[str, Any]) -> None:
        dataset_id = wide(api)
        job = submit(api, dataset_id, algorithm)
        reserved = api.budget(dataset_id)["reserved_mu2_pico"]
        assert 0.0424**2 * 1e12 * (1 - 1e-6) < reserved <= 0.0424**2 * 1e12
        assert (job["algorithm"]["mu"], job["delta"]) == (0.0424, 1e-8)
        again = submit(api, dataset_id, job["algorithm"])
        assert again["epsilon"] == job["epsilon"]

    @pytest.mark.parametrize("other", [{"epsilon": 0.2}, {"delta": 1e-8}, {"epsilon": 0.2, "delta": 1e-8}])
    def test_excludes_epsilon_and_delta(self, api: Api, other: dict[str, float]) -> None:
        dataset_id = wide(api)
        body = {"dataset_id": dataset_id, "algorithm": OF_MU | other}
        problem = refused(api.post("/jobs", body), 422, "validation_failed")
        assert "give mu alone" in problem["errors"][0]["message"]
        assert api.budget(dataset_id)["ledger_seq"] == 1

    def test_or_epsilon_is_required(self, api: Api) -> None:
        body = {"dataset_id": wide(api), "algorithm": {"type": "private_kmeans", "clusters": 3}}
        problem = refused(api.post("/jobs", body), 422, "validation_failed")
        assert "epsilon is required" in problem["errors"][0]["message"]

    @pytest.mark.parametrize("other", [{"accounting": "additive"}, {"features": WIDE[:4], "accounting": "gaussian"}])
    def test_needs_gaussian_accounting_and_more_than_four_features(self, api: Api, other: dict[str, Any]) -> None:
        dataset_id = wide(api, **other)
        for algorithm in (OF_MU, AUTO_OF_MU):
            refused(api.post("/jobs", {"dataset_id": dataset_id, "algorithm": algorithm}), 422, "validation_failed")
            body = {"algorithm": algorithm, "dataset_id": dataset_id, "expected_records": 10_000}
            refused(api.post("/forecasts", body), 422, "validation_failed")
        assert api.budget(dataset_id)["ledger_seq"] == 1

    def test_of_auto_over_reports_is_refused(self, api: Api) -> None:
        dataset_id = str(api.dataset(trust="local", features=WIDE, epsilon=2)["id"])
        body = {"dataset_id": dataset_id, "algorithm": AUTO_OF_MU}
        problem = refused(api.post("/jobs", body | {"target_reports": 100_000}), 422, "validation_failed")
        assert problem["errors"][0]["pointer"] == "/algorithm/mu"
        refused(api.post("/forecasts", body | {"expected_reports": 100_000}), 422, "validation_failed")
        assert api.budget(dataset_id)["ledger_seq"] == 1


class TestSpent:
    def test_is_stated_in_three_ways(self, api: Api) -> None:
        dataset_id = wide(api)
        assert api.budget(dataset_id)["spent"] == {
            "epsilon": 0.0, "delta": 0.0, "certified_epsilon": 0.0, "certified_delta": 1e-6,
            "certified_shuffled_epsilon": 0.0, "certified_shuffled_delta": 0.0, "last_job_id": None, "more_jobs": None,
        }  # fmt: skip
        job = submit(api, dataset_id, BLOCK)
        budget = api.budget(dataset_id)
        Budget.model_validate(budget)
        assert (budget["spent"]["last_job_id"], budget["spent"]["more_jobs"]) == (job["id"], 111)
        mu2 = charge_mu2(NANO // 5, 10**10)
        assert budget["remaining_share"] == pytest.approx(1 - mu2 / budget["granted_mu2_pico"])
        parsed = parse_budget(budget)
        spent = parsed.spent
        assert (spent.last_job_id, spent.more_jobs, spent.epsilon) == (job["id"], 111, 0.0)
        assert parsed.remaining_jobs(PrivateKmeans(0.2, 3, delta=1e-8), len(WIDE)) == 111
        assert parsed.remaining_jobs(PrivateKmeans(0.2, 3), len(WIDE)) == 3  # beside a block, it counts mu^2

    def test_counts_jobs_of_additive_accounting(self, api: Api) -> None:
        dataset_id = wide(api, accounting="additive")
        submit(api, dataset_id, BLOCK)
        budget = api.budget(dataset_id)
        assert (budget["spent"]["more_jobs"], budget["remaining_share"]) == (9, 0.9)


class TestForecast:
    def test_states_how_many_jobs_remain(self, api: Api) -> None:
        dataset_id = wide(api)
        found = forecast(api, dataset_id, BLOCK)
        CentralForecast.model_validate(found)
        assert (found["jobs_granted"], found["jobs_remaining"]) == (112, 112)
        assert found["mu2_pico"] == charge_mu2(NANO // 5, 10**10)
        submit(api, dataset_id, BLOCK)
        parsed = records_forecast_from_wire(forecast(api, dataset_id, BLOCK))
        assert (parsed.jobs_granted, parsed.jobs_remaining) == (112, 111)
        for algorithm in (OF_MU, AUTO_OF_MU):
            assert forecast(api, dataset_id, algorithm)["algorithm"]["mu"] == 0.0424

    def test_hides_the_budget_from_other_keys(self, api: Api) -> None:
        found = forecast(api.key("jobs"), wide(api), BLOCK)
        assert (found["jobs_granted"], found["jobs_remaining"]) == (None, None)
