"""Clusters with category shares from phases, over HTTP: from devices to labels, and what is refused."""

from typing import Any

import numpy as np
import pytest

from models.database.engine import Database
from service.schemas.results import Result as ResultSchema
from sfumato.api.parsers import parse_result
from sfumato.device.bulk import pack, perturb_records
from sfumato.specs import round_spec_from_wire
from tests.service.api import SQLITE_BEFORE_RELEASE, Api, refused
from tests.service.api.test_category_maps import FORMING, REGION
from tests.service.api.test_reported_profiles import open_round, work
from tests.service.ingestion.test_report_labels import send
from workers.job_runner import ClaimOutcome

pytestmark = SQLITE_BEFORE_RELEASE

N = 20_000
ALGORITHM = {"type": "phase_sketch", "epsilon": 8, "clusters": 3, "slots": 256}


def dataset(api: Api) -> str:
    made: str = api.dataset(attributes=[FORMING, REGION], epsilon=24)["id"]
    return made


def people(n: int = N) -> dict[str, Any]:
    """Return records: two groups are at one place and differ in both attributes; the third is at another place."""
    chance = np.random.default_rng(0)
    group = np.arange(n) % 3
    away, far = chance.random((2, n)) < 0.15
    return {
        "x": np.clip(np.choose(group, [0.3, 0.3, 0.75]) + chance.normal(0, 0.06, n), 0, 1),
        "y": np.clip(np.choose(group, [-0.3, -0.3, 0.4]) + chance.normal(0, 0.12, n), -1, 1),
        "plan": np.where((group == 1) != away, "pro", "free"),
        "region": np.where(far, "west", np.choose(group, ["north", "south", "north"])),
    }


def body_of(api: Api, **other: Any) -> dict[str, Any]:
    return {"dataset_id": dataset(api), "algorithm": ALGORITHM, "target_reports": N} | other


class TestAJob:
    def test_finds_places_and_category_shares(self, api: Api, database: Database) -> None:
        job_id = api.made("/jobs", body_of(api))["id"]
        assert work(database, job_id) == ClaimOutcome.COLLECTING
        used = open_round(api, job_id)
        send(api, used["id"], pack(perturb_records(round_spec_from_wire(used["spec"]), people())).tobytes())
        assert work(database, job_id) == ClaimOutcome.SUCCEEDED
        result = api.get(f"/jobs/{job_id}/result").json()
        ResultSchema.model_validate(result)
        model = parse_result(result).model
        assert model.centroids is not None
        assert model.centroids.shape == (3, 2 + 2 + 3)
        assert model.sizes == pytest.approx([1 / 3] * 3, abs=0.08)
        pro, south = model.category_shares["plan"][:, 1], model.category_shares["region"][:, 1]
        second = int(south.argmax())
        assert pro.argmax() == second
        assert south[second] == pytest.approx(0.85, abs=0.2)
        third = int(model.centroids[:, 0].argmax())
        records = {"x": [0.3, 0.3, 0.75], "y": [-0.3, -0.3, 0.4]}
        records |= {"plan": ["free", "pro", "free"], "region": ["north", "south", "north"]}
        (first,) = {0, 1, 2} - {second, third}
        assert model.assign(records).tolist() == [first, second, third]
        assert model.memberships(records).argmax(axis=1).tolist() == [first, second, third]

    def test_may_use_some_of_the_attributes(self, api: Api, database: Database) -> None:
        job_id = api.made("/jobs", body_of(api, features=["x", "y", "region"]))["id"]
        assert work(database, job_id) == ClaimOutcome.COLLECTING
        encoding = open_round(api, job_id)["spec"]["encoding"]
        assert [each["name"] for each in encoding["attributes"]] == ["region"]

    @pytest.mark.parametrize(
        ("algorithm", "message"),
        [
            (ALGORITHM | {"refine": "lloyd"}, "refine=lloyd takes no attributes"),
            (ALGORITHM | {"clusters": 20}, "256 waves do not determine 7 numbers of each of 20 clusters"),
            ({"type": "shifted_grid", "epsilon": 8}, "shifted_grid clusters by 1 attribute at most, not 2"),
        ],
    )
    def test_is_refused_with_a_reason(self, api: Api, algorithm: dict[str, Any], message: str) -> None:
        (problem,) = refused(api.post("/jobs", body_of(api, algorithm=algorithm)), 422, "validation_failed")["errors"]
        assert message in problem["message"]

    def test_auto_runs_phase_sketch_for_several_attributes(self, api: Api, database: Database) -> None:
        job_id = api.made("/jobs", body_of(api, algorithm={"type": "auto", "epsilon": 4, "clusters": 3}))["id"]
        assert work(database, job_id) == ClaimOutcome.COLLECTING
        assert open_round(api, job_id)["spec"]["encoding"]["type"] == "phase"

    def test_a_forecast_states_the_error_of_a_share(self, api: Api) -> None:
        body = {"dataset_id": dataset(api), "algorithm": ALGORITHM | {"epsilon": 1}, "expected_reports": 100_000}
        forecast = api.post("/forecasts", body).json()
        assert forecast["insufficient"] is None
        assert any("the share of a category has an error of about 0.047" in each for each in forecast["warnings"])


def closed_round(api: Api, dataset_id: str, records: dict[str, Any], **other: Any) -> str:
    """Collect the reports of records in a round of its own, close it, and return its id."""
    opened = api.round(dataset_id, **other)
    send(api, opened["id"], pack(perturb_records(round_spec_from_wire(opened["spec"]), records)).tobytes())
    api.made(f"/rounds/{opened['id']}/close", None)
    return str(opened["id"])


EIGHT_WAVES = {"type": "phase", "weights": [[900, 100], [-300, 1200]] * 4, "phases": 16}  # a round adds one of weight 0


class TestEarlierRounds:
    @pytest.mark.parametrize(
        ("attributes", "characters", "message"),
        [
            ([FORMING, REGION], [[1, 2], [0, 1]] * 4, "9 waves do not determine 7 numbers of each of 3 clusters"),
            ([REGION], [[2], [0]] * 4, "collected region, and the job clusters by plan, region"),
        ],
    )
    def test_are_refused_with_a_reason(
        self, api: Api, attributes: list[Any], characters: list[Any], message: str
    ) -> None:
        dataset_id = dataset(api)
        encoding = EIGHT_WAVES | {"attributes": attributes, "characters": characters}
        names = ["x", "y", *(each["name"] for each in attributes)]
        records = {name: column for name, column in people(3).items() if name in names}
        earlier = closed_round(api, dataset_id, records, encoding=encoding, mechanism="window", epsilon=8)
        body = {"dataset_id": dataset_id, "algorithm": ALGORITHM, "round_ids": [earlier], "allow_insufficient": True}
        (problem,) = refused(api.post("/jobs", body), 422, "validation_failed")["errors"]
        assert problem["pointer"] == "/round_ids/0"
        assert message in problem["message"]

    def test_are_read_by_the_algorithm_that_auto_selects_for_their_reports(self, api: Api) -> None:
        """An attribute has more categories than phases take, which auto would select for one report."""
        many = FORMING | {"values": [f"v{place}" for place in range(17)]}
        dataset_id = api.dataset(attributes=[many], epsilon=32)["id"]
        encoding = {"type": "shifted_grid", "n_features": 2, "cells": 2, "shifts": 2, "attributes": [many]}
        records = {"x": [0.3] * 10, "y": [0.1] * 10, "plan": ["v3"] * 10}
        ids = [closed_round(api, dataset_id, records, encoding=encoding, epsilon=8) for _ in range(2)]
        body = {"dataset_id": dataset_id, "algorithm": {"type": "auto", "epsilon": 16}}
        assert api.made("/jobs", body | {"round_ids": ids[:1]})["round_ids"] == ids[:1]
        (problem,) = refused(api.post("/jobs", body | {"round_ids": ids}), 422, "validation_failed")["errors"]
        assert problem["pointer"] == "/round_ids"
        assert "which auto selects for 20 reports in 2 features, uses one round" in problem["message"]

    def test_of_one_plan_are_one(self, api: Api) -> None:
        dataset_id = dataset(api)
        records = {name: column for name, column in people(3).items() if name in ("x", "y")}
        ids = [
            closed_round(api, dataset_id, records, encoding=EIGHT_WAVES, mechanism="window", epsilon=4)
            for _ in range(2)
        ]
        body = {"dataset_id": dataset_id, "algorithm": ALGORITHM, "features": ["x", "y"], "allow_insufficient": True}
        api.made("/jobs", body | {"round_ids": ids[:1]})
        (problem,) = refused(api.post("/jobs", body | {"round_ids": ids}), 422, "validation_failed")["errors"]
        assert problem["message"].startswith("phase_sketch uses one round, and round_ids names 2")
