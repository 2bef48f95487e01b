"""The client's forecasts: what is asked, and how the answer is read."""

import json
from typing import Any

import pytest

from sfumato.errors import ApiProblem, InvalidSpec
from sfumato.forecast import forecast, forecast_to_wire
from sfumato.specs import Auto, ShiftedGrid
from tests.sfumato.answers import ok, serving
from tests.sfumato.scripted import refusal

MADE = forecast(Auto(1.0, 3), n_features=2, expected_reports=50_000)
WIRE = json.loads(json.dumps(forecast_to_wire(MADE)))


class TestForecasts:
    @pytest.mark.parametrize(
        ("given", "asked"),
        [
            ({"n_features": 2}, {"n_features": 2}),
            ({"dataset_id": "ds_1"}, {"dataset_id": "ds_1"}),
            ({"n_features": 2, "quality": 0.9}, {"n_features": 2, "wanted": {"quality": 0.9}}),
            ({"n_features": 2, "size_error": 0.1}, {"n_features": 2, "wanted": {"size_error": 0.1}}),
        ],
    )
    def test_one_is_asked_for_as_told_and_read(self, given: dict[str, Any], asked: dict[str, Any]) -> None:
        service, client = serving({"POST forecasts": ok(WIRE)})
        assert client.forecast(Auto(1.0, 3), expected_reports=50_000, **given) == MADE
        assert service.bodies() == [
            {"algorithm": {"type": "auto", "epsilon": 1.0, "clusters": 3}, "expected_reports": 50_000} | asked
        ]

    def test_one_that_is_refused_is_a_problem(self) -> None:
        _, client = serving({"POST forecasts": refusal(422, "validation_failed")})
        with pytest.raises(ApiProblem):
            client.forecast(ShiftedGrid(1.0), expected_reports=1, n_features=9)

    @pytest.mark.parametrize("answer", [{}, WIRE | {"rounds": 5}])
    def test_an_answer_that_is_none_is_refused(self, answer: Any) -> None:
        _, client = serving({"POST forecasts": ok(answer)})
        with pytest.raises(InvalidSpec, match="forecast"):
            client.forecast(ShiftedGrid(1.0), expected_reports=1, n_features=2)
