"""Jobs over records: requests, and the odometer of a result."""

import pytest

from sfumato.api.resources import Charge
from sfumato.errors import ApiProblem, InvalidSpec
from sfumato.specs import Auto, PrivateKmeans, UniformGrid
from tests.sfumato.answers import JOB, RESULT, ok, serving
from tests.sfumato.scripted import refusal


class TestJobs:
    def test_sends_no_number_of_reports_for_records(self) -> None:
        service, client = serving({"POST jobs": ok(JOB | {"target_reports": None}, 202)})
        client.submit_job("ds_1", PrivateKmeans(epsilon=1, clusters=2))
        client.submit_job("ds_1", Auto(epsilon=1, clusters=2))
        assert [set(body) for body in service.bodies()] == [{"dataset_id", "algorithm"}] * 2

    def test_leaves_a_missing_number_of_reports_to_the_service(self) -> None:
        service, client = serving({"POST jobs": refusal(422, "validation_failed")})
        with pytest.raises(ApiProblem, match="validation_failed"):
            client.submit_job("ds_1", UniformGrid(epsilon=1))
        assert "target_reports" not in service.bodies()[0]


class TestResults:
    def test_lists_queries_with_their_costs(self) -> None:
        query = {"description": "counts", "n_values": 9, "reference": "job_1#0"}
        query |= {"epsilon": 0.25, "epsilon_nano": 250_000_000}
        service, client = serving({"GET jobs/job_1/result": ok(RESULT | {"rounds": [], "odometer": [query]})})
        assert client.result("job_1").odometer == (Charge("counts", 9, 250_000_000, "job_1#0"),)
        assert client.result("job_1").delta == 0
        approximate = query | {"delta": 1e-6, "delta_atto": 10**12, "rho_pico": 5}
        service.routes["GET jobs/job_1/result"] = [ok(RESULT | {"delta": 1e-6, "odometer": [approximate]})]
        result = client.result("job_1")
        assert result.odometer == (Charge("counts", 9, 250_000_000, "job_1#0", delta_atto=10**12, rho_pico=5),)
        assert result.delta == 1e-6
        service.routes["GET jobs/job_1/result"] = [ok(RESULT | {"odometer": [query | {"epsilon_nano": 0.25}]})]
        with pytest.raises(InvalidSpec):
            client.result("job_1")
