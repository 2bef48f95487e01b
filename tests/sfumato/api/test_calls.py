"""Forecasts of the client, over reports and over records."""

import json
from typing import Any

import pytest

from sfumato.errors import ApiProblem, InvalidSpec
from sfumato.forecast import forecast, forecast_records, forecast_to_wire, records_forecast_to_wire
from sfumato.specs import Auto, PrivateKmeans, ShiftedGrid
from tests.sfumato.answers import ok, serving
from tests.sfumato.scripted import refusal

AUTO = {"type": "auto", "epsilon": 1.0, "clusters": 3, "delta": 0.0, "bounds": "declared"}
FORECAST = forecast(Auto(1.0, 3), n_features=2, expected_reports=50_000)
WIRE = json.loads(json.dumps(forecast_to_wire(FORECAST)))
OVER_RECORDS = forecast_records(Auto(1.0, 3), n_features=2, expected_records=50_000)
RECORDS_WIRE = json.loads(json.dumps(records_forecast_to_wire(OVER_RECORDS)))


class TestOverReports:
    @pytest.mark.parametrize(
        ("arguments", "body"),
        [
            ({"dataset_id": "ds_1"}, {"dataset_id": "ds_1"}),
            ({"n_features": 2, "quality": 0.9}, {"n_features": 2, "target": {"quality": 0.9}}),
            ({"n_features": 2, "size_error": 0.1}, {"n_features": 2, "target": {"size_error": 0.1}}),
        ],
    )
    def test_returns_the_forecast_of_the_service(self, arguments: dict[str, Any], body: dict[str, Any]) -> None:
        service, client = serving({"POST forecasts": ok(WIRE)})
        assert client.forecast(Auto(1.0, 3), expected_reports=50_000, **arguments) == FORECAST
        assert service.bodies() == [{"algorithm": AUTO, "expected_reports": 50_000} | body]

    def test_raises_a_problem(self) -> None:
        _, client = serving({"POST forecasts": refusal(422, "validation_failed")})
        with pytest.raises(ApiProblem):
            client.forecast(ShiftedGrid(1.0), expected_reports=1, n_features=9)

    @pytest.mark.parametrize("response", [{}, WIRE | {"rounds": 5}])
    def test_refuses_an_invalid_response(self, response: Any) -> None:
        _, client = serving({"POST forecasts": ok(response)})
        with pytest.raises(InvalidSpec, match="forecast"):
            client.forecast(ShiftedGrid(1.0), expected_reports=1, n_features=2)


class TestOverRecords:
    @pytest.mark.parametrize(
        "body", [{"dataset_id": "ds_1", "occupied_share": 0.5}, {"n_features": 2, "max_records_per_user": 7}]
    )
    def test_returns_the_forecast_of_the_service(self, body: dict[str, Any]) -> None:
        service, client = serving({"POST forecasts": ok(RECORDS_WIRE | {"new": 1})})
        assert client.forecast_records(Auto(1.0, 3), expected_records=50_000, **body) == OVER_RECORDS
        assert service.bodies() == [{"algorithm": AUTO, "expected_records": 50_000} | body]

    @pytest.mark.parametrize(
        "response", [{}, RECORDS_WIRE | {"warnings": 5}, RECORDS_WIRE | {"algorithm": {"type": "auto", "epsilon": 1}}]
    )
    def test_refuses_an_invalid_response(self, response: Any) -> None:
        _, client = serving({"POST forecasts": ok(response)})
        with pytest.raises(InvalidSpec, match=r"forecast|unknown algorithm"):
            client.forecast_records(PrivateKmeans(1.0, 2), expected_records=1, n_features=2)
