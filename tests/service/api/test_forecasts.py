"""Forecasts over HTTP: equal to those of the SDK, free of charge, and refused for invalid requests."""

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
from tests.service.api import FEATURES, SQLITE_ONLY, UNIFORM, Api, refused, unknown

AUTO = {"type": "auto", "epsilon": 1.0, "clusters": 3}


def body_of(**other: Any) -> dict[str, Any]:
    given = {"algorithm": AUTO, "n_features": 2, "expected_reports": 50_000}
    return {name: value for name, value in (given | other).items() if value is not None}


@SQLITE_ONLY
class TestForecast:
    def test_equals_the_forecast_of_the_sdk(self, api: Api) -> None:
        document = api.made("/forecasts", body_of())
        here = forecast(Auto(1.0, 3), n_features=2, expected_reports=50_000)
        assert document == forecast_to_wire(here)
        assert forecast_from_wire(document) == here
        assert document["algorithm"] == {"type": "shifted_grid", "epsilon": 1.0, "clusters": 3, **_defaults()}
        assert document["needed"] is None

    def test_of_a_family_is_that_of_the_sdk(self, api: Api) -> None:
        document = api.made("/forecasts", body_of(family="curved"))
        assert document == forecast_to_wire(
            forecast(Auto(1.0, 3), n_features=2, expected_reports=50_000, family="curved")
        )
        assert document["family"] == "curved"
        (row,) = (each for each in document["families"] if each["family"] == "curved")
        assert document["quality"] == {name: row[name] for name in ("lower", "median", "upper", "n_runs")}
        central = {"type": "private_kmeans", "epsilon": 1.0, "clusters": 3}
        body = body_of(algorithm=central, expected_reports=None, expected_records=1000, family="compact")
        assert [each["family"] for each in api.made("/forecasts", body)["families"]] == ["compact"]
        refused(api.post("/forecasts", body | {"family": "square"}), 422, "validation_failed")

    @pytest.mark.parametrize(
        "target", [{"quality": 0.5}, {"size_error": 0.01}, {"detectable_mass": 0.02}], ids=lambda target: str(*target)
    )
    def test_contains_the_reports_needed_for_a_target(self, api: Api, target: dict[str, float]) -> None:
        document = api.made("/forecasts", body_of(algorithm=UNIFORM | {"clusters": 3}, target=target))
        found = reports_needed(UniformGrid(1.0, 3), 2, **target)
        assert document["needed"] == {"n_reports": found.n_reports, "reason": found.reason}

    def test_is_equal_for_features_and_for_a_dataset_and_charges_nothing(self, api: Api) -> None:
        dataset_id = api.dataset()["id"]
        before = api.budget(dataset_id)
        document = api.made("/forecasts", body_of(algorithm=AUTO | {"epsilon": 30.0}))
        for other in ({"features": FEATURES}, {"dataset_id": dataset_id}):
            body = body_of(n_features=None, algorithm=AUTO | {"epsilon": 30.0}, **other)
            assert api.made("/forecasts", body) == document
        assert api.budget(dataset_id) == before
        assert api.get("/jobs").json()["items"] == []

    def test_explains_insufficient_reports(self, api: Api) -> None:
        algorithm = {"type": "shifted_grid", "epsilon": 1.0}
        document = api.made("/forecasts", body_of(algorithm=algorithm, expected_reports=10))
        assert document["verdict"] == "doubtful"
        needed = forecast(ShiftedGrid(1.0), n_features=2, expected_reports=10).insufficient
        assert needed is not None
        assert document["insufficient"] == {"reports_needed": needed.reports_needed, "reason": needed.reason}


@SQLITE_ONLY
class TestRefusals:
    def test_have_a_pointer(self, api: Api) -> None:
        for other, pointer in (
            ({"n_features": None}, ""),
            ({"features": FEATURES}, ""),
            *(({"n_features": n_features}, "/n_features") for n_features in (0, 1537)),
            ({"n_features": 65}, ""),
            ({"n_features": None, "features": {"dimensions": 2}}, ""),
            ({"n_features": None, "features": {"dimensions": 1537}}, "/features/dimensions"),
            *(({"expected_reports": n_reports}, "/expected_reports") for n_reports in (0, 2**53)),
            *(({"target": target}, "/target") for target in ({}, {"quality": 0.5, "size_error": 0.5})),
            ({"target": {"quality": 1.5}}, "/target/quality"),
            ({"target": {"size_error": 0}}, "/target/size_error"),
            ({"algorithm": {"type": "magic", "epsilon": 1.0}}, "/algorithm"),
            ({"algorithm": AUTO | {"epsilon": 33.0}}, "/algorithm/epsilon"),
            ({"colour": "red"}, "/colour"),
        ):
            document = refused(api.post("/forecasts", body_of(**other)), 422, "validation_failed")
            assert pointer in [error["pointer"] for error in document["errors"]], other

    def test_explain_the_limit_of_the_algorithm(self, api: Api) -> None:
        shifted = {"algorithm": {"type": "shifted_grid", "epsilon": 1.0}, "n_features": 4}
        large = {"algorithm": AUTO | {"clusters": 65}, "n_features": 5}
        for other in (shifted, shifted | {"target": {"quality": 0.5}}, large):
            document = refused(api.post("/forecasts", body_of(**other)), 422, "validation_failed")
            assert "features" in document["detail"]

    def test_are_alike_for_unknown_and_foreign_datasets(self, api: Api, other: Api) -> None:
        mine = api.dataset()["id"]
        for dataset_id in (mine, unknown("ds")):
            refused(other.post("/forecasts", body_of(n_features=None, dataset_id=dataset_id)), 404, "not_found")
        bound = api.key("jobs", dataset_id=api.dataset()["id"])
        refused(bound.post("/forecasts", body_of(n_features=None, dataset_id=mine)), 404, "not_found")

    def test_of_a_central_dataset_are_a_conflict(self, api: Api) -> None:
        central = api.dataset(trust="central")
        refused(api.post("/forecasts", body_of(n_features=None, dataset_id=central["id"])), 409, "conflict")

    def test_occur_without_the_scope_jobs(self, api: Api) -> None:
        refused(api.key("device", "datasets", "ledger").post("/forecasts", body_of()), 403, "forbidden")
        assert api.key("jobs").post("/forecasts", body_of()).status_code == 200


@SQLITE_ONLY
class TestOverRecords:
    BODY: ClassVar[dict[str, Any]] = {"algorithm": AUTO, "n_features": 2, "expected_records": 50_000}

    def test_equals_the_forecast_of_the_sdk(self, api: Api) -> None:
        document = api.made("/forecasts", self.BODY)
        here = forecast_records(Auto(1.0, 3), n_features=2, expected_records=50_000)
        assert records_forecast_from_wire(document) == here
        assert (document["trust"], document["algorithm"]["type"]) == ("central", "private_kmeans")

    def test_of_a_dataset_uses_its_features_and_user_limit(self, api: Api) -> None:
        dataset = api.dataset(trust="central", user_feature="user", max_records_per_user=9)
        document = api.made("/forecasts", {"algorithm": AUTO, "dataset_id": dataset["id"], "expected_records": 50_000})
        without = api.made("/forecasts", self.BODY | {"max_records_per_user": 9})
        assert document == without | {"jobs_granted": 8, "jobs_remaining": 8}
        before = api.get(f"/datasets/{dataset['id']}/budget").json()
        assert (before["reserved_nano"], before["charged_nano"]) == (0, 0)

    def test_of_far_too_wide_bounds_states_that_the_loss_is_not_known(self, api: Api) -> None:
        wide = api.made("/forecasts", self.BODY | {"occupied_share": 0.02})
        assert (wide["ratio"], wide["verdict"]) == (None, "doubtful")
        assert "about 0.02 of the bounds" in wide["warnings"][0]
        assert api.made("/forecasts", self.BODY | {"occupied_share": 0.5}) == api.made("/forecasts", self.BODY)

    def test_of_a_local_dataset_is_refused(self, api: Api) -> None:
        body = {"algorithm": AUTO, "dataset_id": api.dataset()["id"], "expected_records": 50_000}
        refused(api.post("/forecasts", body), 409, "conflict")

    def test_of_an_invalid_combination_is_refused(self, api: Api) -> None:
        local = {"expected_records": None, "expected_reports": 5}
        for other in (
            {"expected_reports": 50_000},
            {"expected_records": None},
            {"algorithm": UNIFORM},
            {"target": {"quality": 0.5}},
            local | {"max_records_per_user": 2},
            local | {"algorithm": UNIFORM, "occupied_share": 0.5},
            {"occupied_share": 0},
            local | {"algorithm": {"type": "dp_kmeans", "epsilon": 1.0, "clusters": 2}},
        ):
            body = {name: value for name, value in (self.BODY | other).items() if value is not None}
            refused(api.post("/forecasts", body), 422, "validation_failed")


def _defaults() -> dict[str, Any]:
    return {"shifts": 4, "amplitude": 2.5}  # the automatic length scale is left out
