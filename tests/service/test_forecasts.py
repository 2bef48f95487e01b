"""Forecasts over HTTP: answered as the package answers, charged nothing, refused where they cannot be."""

from typing import Any, ClassVar

import pytest

from sfumato.forecast import (
    forecast,
    forecast_from_wire,
    forecast_records,
    forecast_to_wire,
    records_forecast_from_wire,
    reports_needed,
)
from sfumato.specs import Auto, ShiftedGrid, UniformGrid
from tests.service.api import FEATURES, UNIFORM, Api, refused, unknown

AUTO = {"type": "auto", "epsilon": 1.0, "clusters": 3}


def asked(**other: Any) -> dict[str, Any]:
    given = {"algorithm": AUTO, "n_features": 2, "expected_reports": 50_000}
    return {name: value for name, value in (given | other).items() if value is not None}


class TestAForecast:
    def test_is_what_the_package_forecasts(self, api: Api) -> None:
        made = api.made("/forecasts", asked())
        here = forecast(Auto(1.0, 3), n_features=2, expected_reports=50_000)
        assert made == forecast_to_wire(here)
        assert forecast_from_wire(made) == here
        assert made["algorithm"] == {"type": "shifted_grid", "epsilon": 1.0, "clusters": 3, **_defaults()}
        assert made["needed"] is None

    @pytest.mark.parametrize(
        "wanted", [{"quality": 0.5}, {"size_error": 0.01}, {"detectable_mass": 0.02}], ids=lambda wanted: str(*wanted)
    )
    def test_answers_a_wish(self, api: Api, wanted: dict[str, float]) -> None:
        made = api.made("/forecasts", asked(algorithm=UNIFORM | {"clusters": 3}, wanted=wanted))
        found = reports_needed(UniformGrid(1.0, 3), 2, **wanted)
        assert made["needed"] == {"n_reports": found.n_reports, "reason": found.reason}

    def test_of_features_or_of_a_dataset_is_the_same(self, api: Api) -> None:
        dataset = api.dataset()
        of_number = api.made("/forecasts", asked())
        assert api.made("/forecasts", asked(n_features=None, features=FEATURES)) == of_number
        assert api.made("/forecasts", asked(n_features=None, dataset_id=dataset["id"])) == of_number

    def test_charges_and_stores_nothing(self, api: Api) -> None:
        dataset = api.dataset()
        before = api.get(f"/datasets/{dataset['id']}/budget").json()
        api.made("/forecasts", asked(n_features=None, dataset_id=dataset["id"], algorithm=AUTO | {"epsilon": 30.0}))
        assert api.get(f"/datasets/{dataset['id']}/budget").json() == before
        assert api.get("/jobs").json()["items"] == []

    def test_says_what_is_not_enough(self, api: Api) -> None:
        made = api.made("/forecasts", asked(algorithm={"type": "shifted_grid", "epsilon": 1.0}, expected_reports=10))
        assert made["confidence"] == "none"
        needed = forecast(ShiftedGrid(1.0), n_features=2, expected_reports=10).insufficient
        assert needed is not None
        assert made["insufficient"] == {"reports_needed": needed.reports_needed, "reason": needed.reason}


class TestRefusals:
    @pytest.mark.parametrize(
        ("other", "pointer"),
        [
            ({"n_features": None}, ""),
            ({"features": FEATURES}, ""),
            ({"n_features": 0}, "/n_features"),
            ({"n_features": 65}, "/n_features"),
            ({"expected_reports": 0}, "/expected_reports"),
            ({"expected_reports": 2**53}, "/expected_reports"),
            ({"wanted": {}}, "/wanted"),
            ({"wanted": {"quality": 0.5, "size_error": 0.5}}, "/wanted"),
            ({"wanted": {"quality": 1.5}}, "/wanted/quality"),
            ({"wanted": {"size_error": 0}}, "/wanted/size_error"),
            ({"algorithm": {"type": "magic", "epsilon": 1.0}}, "/algorithm"),
            ({"algorithm": AUTO | {"epsilon": 33.0}}, "/algorithm/epsilon"),
            ({"colour": "red"}, ""),
        ],
    )
    def test_point_to_the_place(self, api: Api, other: dict[str, Any], pointer: str) -> None:
        body = {"algorithm": AUTO, "n_features": 2, "expected_reports": 50_000} | other
        document = refused(
            api.post("/forecasts", {name: value for name, value in body.items() if value is not None}),
            422,
            "validation_failed",
        )
        assert pointer in [error["pointer"] for error in document["errors"]]

    @pytest.mark.parametrize(
        "other",
        [
            {"algorithm": {"type": "shifted_grid", "epsilon": 1.0}, "n_features": 4},
            {"algorithm": {"type": "shifted_grid", "epsilon": 1.0}, "n_features": 4, "wanted": {"quality": 0.5}},
            {"algorithm": AUTO | {"clusters": 65}, "n_features": 5},
        ],
    )
    def test_say_what_the_algorithm_cannot_take(self, api: Api, other: dict[str, Any]) -> None:
        document = refused(api.post("/forecasts", asked(**other)), 422, "validation_failed")
        assert "features" in document["detail"]

    def test_of_a_dataset_that_is_not_there_or_not_theirs_are_alike(self, api: Api, other: Api) -> None:
        mine = api.dataset()["id"]
        for dataset_id in (mine, unknown("ds")):
            refused(other.post("/forecasts", asked(n_features=None, dataset_id=dataset_id)), 404, "not_found")
        bound = api.key("jobs", dataset_id=api.dataset()["id"])
        refused(bound.post("/forecasts", asked(n_features=None, dataset_id=mine)), 404, "not_found")

    def test_of_a_curators_dataset_are_a_conflict(self, api: Api) -> None:
        central = api.dataset(trust="central")
        refused(api.post("/forecasts", asked(n_features=None, dataset_id=central["id"])), 409, "conflict")

    def test_need_the_scope_jobs(self, api: Api) -> None:
        refused(api.key("device", "datasets", "ledger").post("/forecasts", asked()), 403, "forbidden")
        assert api.key("jobs").post("/forecasts", asked()).status_code == 200


class TestOverRecords:
    ASKED: ClassVar[dict[str, Any]] = {"algorithm": AUTO, "n_features": 2, "expected_records": 50_000}

    def test_is_what_the_package_forecasts(self, api: Api) -> None:
        made = api.made("/forecasts", self.ASKED)
        here = forecast_records(Auto(1.0, 3), n_features=2, expected_records=50_000)
        assert records_forecast_from_wire(made) == here
        assert (made["trust"], made["algorithm"]["type"]) == ("central", "gated_grid_kmeans")

    def test_of_a_dataset_takes_its_features_and_its_users(self, api: Api) -> None:
        dataset = api.dataset(trust="central", user_feature="user", max_records_per_user=9)
        made = api.made("/forecasts", {"algorithm": AUTO, "dataset_id": dataset["id"], "expected_records": 50_000})
        assert made == api.made("/forecasts", self.ASKED | {"max_records_per_user": 9})
        before = api.get(f"/datasets/{dataset['id']}/budget").json()
        assert (before["reserved_nano"], before["posted_nano"]) == (0, 0)

    def test_of_a_local_dataset_is_refused(self, api: Api) -> None:
        body = {"algorithm": AUTO, "dataset_id": api.dataset()["id"], "expected_records": 50_000}
        refused(api.post("/forecasts", body), 409, "conflict")

    @pytest.mark.parametrize(
        "other",
        [
            {"expected_reports": 50_000},
            {"expected_records": None},
            {"algorithm": UNIFORM},
            {"wanted": {"quality": 0.5}},
            {"expected_records": None, "expected_reports": 5, "max_records_per_user": 2},
            {
                "expected_records": None,
                "expected_reports": 5,
                "algorithm": {"type": "dp_kmeans", "epsilon": 1.0, "clusters": 2},
            },
            {"algorithm": {"type": "auto", "epsilon": 1.0}},
        ],
        ids=str,
    )
    def test_of_what_does_not_go_together_is_refused(self, api: Api, other: dict[str, Any]) -> None:
        body = {name: value for name, value in (self.ASKED | other).items() if value is not None}
        refused(api.post("/forecasts", body), 422, "validation_failed")


def _defaults() -> dict[str, Any]:
    return {"shifts": 4, "length_scale": 0.06, "amplitude": 2.5}
