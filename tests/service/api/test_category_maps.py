"""Clusters of each category of an attribute, over HTTP: from devices to maps, and what is refused."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.database.engine import Database
from service.schemas.results import Result as ResultSchema
from service.schemas.rounds import Round as RoundSchema
from sfumato.api.parsers import parse_result
from sfumato.device.bulk import pack, perturb_records
from sfumato.model.category_maps import category_maps
from sfumato.specs import round_spec_from_wire
from tests.service.api import FEATURES, SQLITE_BEFORE_RELEASE, Api, refused
from tests.service.api.test_reported_profiles import PLAN, open_round, work
from tests.service.api.test_series import EVERY_WEEK
from tests.service.commands import connect_commands, run_command
from tests.service.console.session import Console, words
from tests.service.ingestion.test_report_labels import send
from workers.job_runner import ClaimOutcome

pytestmark = SQLITE_BEFORE_RELEASE

N = 6_000
FORMING = PLAN | {"values": ["free", "pro"], "missing": "refuse", "use": "cluster"}
ALGORITHM = {"type": "shifted_grid", "epsilon": 8, "cells": 4, "clusters": 3}


def dataset(api: Api, **other: Any) -> str:
    made: str = api.dataset(attributes=[FORMING], epsilon=24, **other)["id"]
    return made


def people(n: int = N) -> dict[str, Any]:
    """Return records: the people of the plan free are in two groups, those of the plan pro in one between them."""
    chance = np.random.default_rng(0)
    group = np.arange(n) % 3
    return {
        "x": np.clip(np.choose(group, [0.2, 0.8, 0.5]) + chance.normal(0, 0.05, n), 0, 1),
        "y": np.clip(chance.normal(0, 0.1, n), -1, 1),
        "plan": np.where(group == 2, "pro", "free"),
    }


def box(page: str) -> str:
    """Return the box of the attribute in the form of a job."""
    found = re.search(r'<input type="checkbox" id="f-feature-0"[^>]*>', page)
    assert found is not None
    return found[0]


def submitted(api: Api, dataset_id: str, **other: Any) -> str:
    body: dict[str, Any] = {"dataset_id": dataset_id, "algorithm": ALGORITHM, "target_reports": N}
    made: str = api.made("/jobs", body | other)["id"]
    return made


class TestAJob:
    def test_finds_the_clusters_of_each_category(self, api: Api, database: Database) -> None:
        dataset_id = dataset(api)
        job_id = submitted(api, dataset_id)
        assert work(database, job_id) == ClaimOutcome.COLLECTING
        used = open_round(api, job_id)
        RoundSchema.model_validate(used)
        assert [each["name"] for each in used["spec"]["encoding"]["attributes"]] == ["plan"]
        send(api, used["id"], pack(perturb_records(round_spec_from_wire(used["spec"]), people())).tobytes())
        assert work(database, job_id) == ClaimOutcome.SUCCEEDED
        result = api.get(f"/jobs/{job_id}/result").json()
        ResultSchema.model_validate(result)
        model = parse_result(result).model
        assert model.label_map is not None
        assert model.label_map.shape == (16, 16, 2)
        assert model.sizes == pytest.approx([1 / 3] * 3, abs=0.05)
        assert sorted(model.category_shares["plan"].tolist()) == [[0, 1], [1, 0], [1, 0]]
        points = {"x": [0.2, 0.8, 0.5, 0.2], "y": [0.0] * 4, "plan": ["free", "free", "pro", "pro"]}
        left, right, pro, also_pro = model.assign(points).tolist()
        assert len({left, right, pro}) == 3
        assert also_pro == pro
        assert [each.category for each in category_maps(model)] == ["free", "pro"]
        assert [row["category"] for row in model.diagnostics["categories"]] == ["free", "pro"]
        console = Console(api)
        page = console.text(f"/jobs/{job_id}/result")
        assert "Describe the clusters by attributes" not in page  # a profile from reports refuses these clusters
        addresses = re.findall(r'data-map="/console([^"]*)"', page)
        free, pro = (console.get(address).json() for address in addresses)
        assert free["cells"] != pro["cells"]
        assert [len(each["centres"]) for each in (free, pro)] == [2, 1]

    def test_takes_the_rows_of_a_file_from_the_command_line(
        self, api: Api, database: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, no_settings: None
    ) -> None:
        dataset_id = dataset(api)
        job_id = submitted(api, dataset_id, target_reports=400)
        assert work(database, job_id) == ClaimOutcome.COLLECTING
        connect_commands(api, monkeypatch)
        rows = zip(*people(300).values(), strict=True)
        lines = ["x,y,plan", *(f"{x},{y},{plan}" for x, y, plan in rows)]
        (tmp_path / "people.csv").write_text("\n".join(lines))
        sent = run_command("report", "--from", str(tmp_path / "people.csv"), dataset_id, "--json")
        counts = {"name": "plan", "n_other": 0, "n_missing": 0, "n_outside": 0}
        used = open_round(api, job_id)["id"]
        expected = {"round_id": used, "n_sent": 300, "n_received": 300, "n_clipped": 0, "attributes": [counts]}
        assert json.loads(sent.stdout.splitlines()[-1]) == expected

    def test_may_leave_the_attribute_out(self, api: Api, database: Database) -> None:
        job_id = submitted(api, dataset(api), features=["x", "y"])
        assert work(database, job_id) == ClaimOutcome.COLLECTING
        assert "attributes" not in open_round(api, job_id)["spec"]["encoding"]

    @pytest.mark.parametrize(
        ("other", "pointer", "message"),
        [
            ({"features": ["x", "plan"]}, "/features", "y is missing"),
            ({"algorithm": ALGORITHM | {"clusters": 1}}, "/algorithm", "clusters must be at least 2"),
            (
                {"algorithm": {"type": "uniform_grid", "epsilon": 4}},
                "/algorithm",
                "takes no categories: use shifted_grid or phase_sketch",
            ),
        ],
    )
    def test_is_refused_with_a_reason(self, api: Api, other: dict[str, Any], pointer: str, message: str) -> None:
        body = {"dataset_id": dataset(api), "algorithm": ALGORITHM, "target_reports": N} | other
        (problem,) = refused(api.post("/jobs", body), 422, "validation_failed")["errors"]
        assert problem["pointer"] == pointer
        assert message in problem["message"]

    def test_needs_enough_reports_for_each_category(self, api: Api) -> None:
        body = {"dataset_id": dataset(api), "algorithm": ALGORITHM | {"epsilon": 0.5}, "target_reports": 1000}
        problem = refused(api.post("/jobs", body), 422, "insufficient_reports")
        assert "too few for 2 categories of plan" in problem["detail"]
        forecast = api.post(
            "/forecasts", {k: body[k] for k in ("dataset_id", "algorithm")} | {"expected_reports": 1000}
        )
        assert forecast.json()["insufficient"]["reports_needed"] == problem["reports_needed"]


class TestTheConsole:
    def test_offers_the_attribute_to_algorithms_that_take_categories(self, api: Api) -> None:
        console, dataset_id = Console(api), dataset(api)
        shown = console.text(f"/datasets/{dataset_id}")
        assert "<bdi>plan</bdi> (forms clusters)." in shown
        form = f"/datasets/{dataset_id}/jobs/new?type="
        assert box(console.text(form + "shifted_grid")).endswith(" checked>")
        assert box(console.text(form + "auto")).endswith(" checked>")
        assert "takes no categories" not in console.text(form + "shifted_grid")
        assert not box(console.text(form + "uniform_grid")).endswith(" checked>")
        assert "uniform_grid takes no categories" in console.text(form + "uniform_grid")

    def test_forecasts_an_algorithm_without_categories(self, api: Api) -> None:
        console, dataset_id = Console(api), dataset(api)
        values = {"type": "uniform_grid", "epsilon": "4", "clusters": "3", "target_reports": str(N), "step": "review"}
        shown = words(console.post(f"/datasets/{dataset_id}/jobs", values))
        assert "takes no categories" not in shown
        assert "This job spends at most ε 4" in shown


class TestADataset:
    def test_has_at_most_four_attributes_that_form_clusters(self, api: Api) -> None:
        body = {"name": "d", "trust": "local", "features": FEATURES, "epsilon": 8}
        body |= {"attributes": [FORMING | {"name": f"plan{place}"} for place in range(5)]}
        (problem,) = refused(api.post("/datasets", body), 422, "validation_failed")["errors"]
        assert "at most 4 attributes of a local dataset may have the use cluster, not 5" in problem["message"]

    def test_takes_no_weight(self, api: Api) -> None:
        body = {"name": "d", "trust": "local", "features": FEATURES, "epsilon": 8}
        body |= {"attributes": [FORMING | {"weight": 2}]}
        (problem,) = refused(api.post("/datasets", body), 422, "validation_failed")["errors"]
        assert "remove the weight of plan" in problem["message"]

    def test_has_few_categories_beside_more_than_three_features(self, api: Api) -> None:
        features = [{"name": f"f{place}", "lower": 0, "upper": 1} for place in range(4)]
        body = {"name": "d", "trust": "local", "features": features, "epsilon": 8}
        many = FORMING | {"values": [f"v{place}" for place in range(17)]}
        (problem,) = refused(api.post("/datasets", body | {"attributes": [many]}), 422, "validation_failed")["errors"]
        assert "at most 16 categories, and plan has 17" in problem["message"]
        assert api.post("/datasets", body | {"attributes": [FORMING]}).status_code == 201

    def test_has_no_series(self, api: Api) -> None:
        body = {"dataset_id": dataset(api), "name": "s", "algorithm": ALGORITHM, "target_reports": N, "cycle": 13}
        problem = refused(api.post("/series", body | {"windows": EVERY_WEEK}), 422, "validation_failed")
        assert "plan forms clusters of this dataset" in str(problem)


REGION = FORMING | {"name": "region", "values": ["north", "south", "west"]}
OPEN_REGION = REGION | {"unknown": "other"}
PHASES = {"type": "phase", "weights": [[900, 100], [-300, 1200]], "phases": 16}


class TestARoundOfPhases:
    def opened(self, api: Api, **encoding: Any) -> Any:
        dataset_id = api.dataset(attributes=[FORMING, REGION], epsilon=24)["id"]
        body = {"encoding": PHASES | encoding, "mechanism": "window", "epsilon": 2, "target_reports": N}
        return api.post(f"/datasets/{dataset_id}/rounds", body)

    def test_has_some_of_the_attributes_of_its_dataset(self, api: Api) -> None:
        for attributes, characters in (([FORMING, REGION], [[1, 2], [0, 1]]), ([REGION], [[2], [0]])):
            made = self.opened(api, attributes=attributes, characters=characters)
            assert made.status_code == 201, made.text
            spec = made.json()["spec"]
            RoundSchema.model_validate(made.json())
            assert [each["name"] for each in spec["encoding"]["attributes"]] == [each["name"] for each in attributes]
            assert spec["encoding"]["characters"][:2] == characters
            assert round_spec_from_wire(spec).attributes

    @pytest.mark.parametrize(
        ("encoding", "pointer", "message"),
        [
            ({"attributes": [REGION, FORMING], "characters": [[1, 1], [0, 1]]}, "/encoding/attributes", "its order"),
            ({"attributes": [OPEN_REGION], "characters": [[1], [0]]}, "/encoding/attributes", "as the"),
            ({"attributes": [REGION], "characters": [[3], [0]]}, "/encoding", "below its number of categories"),
            ({"attributes": [REGION]}, "/encoding", "characters must have 1 to 1024 rows"),
            ({"characters": [[1], [0]]}, "/encoding", "characters need attributes"),
        ],
    )
    def test_is_refused_with_a_reason(self, api: Api, encoding: dict[str, Any], pointer: str, message: str) -> None:
        (problem,) = refused(self.opened(api, **encoding), 422, "validation_failed")["errors"]
        assert problem["pointer"] == pointer
        assert message in problem["message"]
