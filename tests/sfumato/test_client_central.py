"""The analyst's client and jobs over records: what is asked, and the odometer of the answer."""

import json
from typing import Any

import pytest

from sfumato.errors import ApiProblem, InvalidSpec
from sfumato.forecast import forecast_records, records_forecast_to_wire
from sfumato.resources import Charge
from sfumato.specs import Auto, GatedGridKmeans, UniformGrid
from tests.sfumato.answers import JOB, RESULT, ok, serving
from tests.sfumato.scripted import refusal


class TestJobs:
    def test_one_over_records_says_nothing_of_reports(self) -> None:
        service, client = serving({"POST jobs": ok(JOB | {"target_reports": None}, 202)})
        client.submit_job("ds_1", GatedGridKmeans(epsilon=1, clusters=2))
        client.submit_job("ds_1", Auto(epsilon=1, clusters=2))
        assert [set(body) for body in service.bodies()] == [{"dataset_id", "algorithm"}] * 2

    def test_one_that_ought_to_say_how_much_is_sent_for_the_service_to_say_so(self) -> None:
        service, client = serving({"POST jobs": refusal(422, "validation_failed")})
        with pytest.raises(ApiProblem, match="validation_failed"):
            client.submit_job("ds_1", UniformGrid(epsilon=1))
        assert service.bodies()[0]["target_reports"] is None


class TestResults:
    def test_one_over_records_lists_what_was_asked_and_what_it_cost(self) -> None:
        asked = {"what": "counts", "n_values": 9, "epsilon": 0.25, "epsilon_nano": 250_000_000, "reference": "job_1#0"}
        service, client = serving({"GET jobs/job_1/result": ok(RESULT | {"rounds": [], "odometer": [asked]})})
        assert client.result("job_1").odometer == (Charge("counts", 9, 250_000_000, "job_1#0"),)
        assert client.result("job_1").delta == 0
        approximate = asked | {"delta": 1e-6, "delta_atto": 10**12, "rho_pico": 5}
        service.routes["GET jobs/job_1/result"] = [ok(RESULT | {"delta": 1e-6, "odometer": [approximate]})]
        told = client.result("job_1")
        assert told.odometer == (Charge("counts", 9, 250_000_000, "job_1#0", delta_atto=10**12, rho_pico=5),)
        assert told.delta == 1e-6
        service.routes["GET jobs/job_1/result"] = [ok(RESULT | {"odometer": [asked | {"epsilon_nano": 0.25}]})]
        with pytest.raises(InvalidSpec):
            client.result("job_1")


MADE = forecast_records(Auto(1.0, 3), n_features=2, expected_records=50_000)
WIRE = json.loads(json.dumps(records_forecast_to_wire(MADE)))


class TestForecasts:
    @pytest.mark.parametrize(
        "of", [{"n_features": 2}, {"dataset_id": "ds_1"}, {"n_features": 2, "max_records_per_user": 7}]
    )
    def test_one_is_asked_for_as_told_and_read(self, of: dict[str, Any]) -> None:
        service, client = serving({"POST forecasts": ok(WIRE | {"new": 1})})
        assert client.forecast_records(Auto(1.0, 3), expected_records=50_000, **of) == MADE
        assert service.bodies() == [
            {"algorithm": {"type": "auto", "epsilon": 1.0, "clusters": 3}, "expected_records": 50_000} | of
        ]

    @pytest.mark.parametrize(
        "answer", [{}, WIRE | {"warnings": 5}, WIRE | {"algorithm": {"type": "auto", "epsilon": 1}}]
    )
    def test_an_answer_that_is_none_is_refused(self, answer: Any) -> None:
        _, client = serving({"POST forecasts": ok(answer)})
        with pytest.raises(InvalidSpec, match="forecast"):
            client.forecast_records(GatedGridKmeans(1.0, 2), expected_records=1, n_features=2)
