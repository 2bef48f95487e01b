"""Jobs that cluster by categories, over HTTP, in the SDK, the command line and the console."""

import html
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from models.database.engine import Database
from service.schemas.datasets import Dataset as DatasetSchema
from service.schemas.results import Result as ResultSchema
from sfumato.api.client import Client
from sfumato.model.cluster_model import model_from_wire
from sfumato.specs import Auto
from tests.clustering.central.test_categories import N, people, table
from tests.service.api import SQLITE_ONLY, Api, claim_job, refused
from tests.service.api.test_assign import STREAM, to_stream
from tests.service.commands import connect_commands, run_command
from tests.service.console.session import Console, words
from tests.workers.archive import KEYRING
from workers.job_runner import ClaimOutcome, run

PLAN: dict[str, Any] = {"name": "plan", "kind": "categorical", "values": ["free", "basic", "pro"], "use": "cluster"}
REGION = PLAN | {"name": "region", "values": ["n", "e", "s", "w"], "missing": "category"}
NOTE = {"name": "note", "kind": "categorical", "values": ["a", "b"]}
EAST = {"name": "east", "lower": 0.0, "upper": 10.0}
FRAME = table(*people()[1:])
KMEANS = {"type": "private_kmeans", "epsilon": 2.0, "clusters": 4, "delta": 1e-6}


def filled(api: Api) -> str:
    """Create a dataset of four groups that differ in a number and two categories."""
    made = api.dataset(
        trust="central", features=[EAST], attributes=[NOTE, PLAN, REGION], epsilon=8, delta=1e-5, accounting="additive"
    )
    frame = table(*people()[1:])[["east", "plan", "region"]].astype(object)
    frame["note"] = np.where(np.arange(N) % 2, "a", "b")
    rows = [[None if pd.isna(value) else value for value in row] for row in frame.to_numpy().tolist()]
    api.made(f"/datasets/{made['id']}/records", {"columns": list(frame.columns), "rows": rows})
    return str(made["id"])


def work(database: Database, job_id: str) -> None:
    assert run(database, claim_job(database, job_id), keyring=lambda: KEYRING) == ClaimOutcome.SUCCEEDED


class TestAJob:
    def test_clusters_by_categories_and_is_profiled(self, api: Api, database: Database) -> None:
        dataset_id = filled(api)
        DatasetSchema.model_validate(shown := api.get(f"/datasets/{dataset_id}").json())
        assert [each["use"] for each in shown["attributes"]] == ["describe", "cluster", "cluster"]
        job_id = api.made("/jobs", {"dataset_id": dataset_id, "algorithm": KMEANS})["id"]
        work(database, job_id)
        result = api.get(f"/jobs/{job_id}/result").json()
        ResultSchema.model_validate(result)
        model = result["model"]
        assert [each["name"] for each in model["attributes"]] == ["plan", "region"]
        assert [each["name"] for each in model["features"]][:3] == ["east", "plan = free", "plan = basic"]
        assert "concentrated" in model["diagnostics"]["route"]
        points = [[2.5, 1, 0, 0, 1, 0, 0, 0, 0], [7.5, 0, 0, 1, 0, 0, 0, 1, 0]]
        labels = api.made(f"/jobs/{job_id}/assign", {"points": points})["labels"]
        assert labels[0] != labels[1]
        profile = {"type": "profile", "of": job_id, "attributes": ["note", "plan"], "epsilon": 1.0}
        profile_id = api.made("/jobs", {"dataset_id": dataset_id, "algorithm": profile})["id"]
        work(database, profile_id)
        described = api.get(f"/jobs/{profile_id}/result").json()["profile"]
        assert {each["attribute"] for each in described["distinguishing"]} == {"plan"}

    def test_uses_the_named_columns(self, api: Api, database: Database) -> None:
        dataset_id = filled(api)
        job = {"dataset_id": dataset_id, "algorithm": KMEANS | {"clusters": 2}, "features": ["plan", "east"]}
        made = api.made("/jobs", job)
        assert made["features"] == ["east", "plan"]
        work(database, made["id"])
        names = [each["name"] for each in api.get(f"/jobs/{made['id']}/result").json()["model"]["features"]]
        assert names == ["east", "plan = free", "plan = basic", "plan = pro"]
        whole = api.made("/jobs", job | {"features": ["region", "plan", "east"]})
        assert whole["features"] is None
        for wrong, message in ((["plan"], "at least one feature"), (["east", "note"], "no feature 'note'")):
            problem = refused(api.post("/jobs", job | {"features": wrong}), 422, "validation_failed")
            assert message in str(problem)
            assert problem["errors"][0]["pointer"] == "/features"

    def test_is_forecast_for_each_category(self, api: Api) -> None:
        dataset_id = filled(api)
        body = {"dataset_id": dataset_id, "algorithm": KMEANS, "expected_records": N}
        ratio = api.made("/forecasts", body)["ratio"]
        same = {"n_features": 9, "algorithm": KMEANS, "expected_records": N}
        assert api.made("/forecasts", same)["ratio"] == ratio
        fewer = api.made("/forecasts", body | {"job_features": ["east"]})["ratio"]
        assert fewer != ratio

    @SQLITE_ONLY
    @pytest.mark.parametrize("algorithm", ["density_map", "dp_kmeans"])
    def test_needs_an_algorithm_that_takes_categories(self, api: Api, algorithm: str) -> None:
        dataset_id = filled(api)
        other = {"type": algorithm, "epsilon": 1.0, "clusters": 3}
        for path, body in (("/jobs", {}), ("/forecasts", {"expected_records": N})):
            answer = api.post(path, {"dataset_id": dataset_id, "algorithm": other} | body)
            problem = refused(answer, 422, "validation_failed")
            assert "takes no categories: use private_kmeans" in str(problem)

    @SQLITE_ONLY
    def test_is_not_over_an_embedding(self, api: Api) -> None:
        body = {"name": "d", "trust": "central", "epsilon": 1, "features": {"dimensions": 8}, "attributes": [PLAN]}
        assert "must describe" in str(refused(api.post("/datasets", body), 422, "validation_failed"))
        taken = body | {"features": [EAST, EAST | {"name": "plan = pro"}]}
        assert "'plan = pro' occurs twice" in str(refused(api.post("/datasets", taken), 422, "validation_failed"))


@SQLITE_ONLY
def test_the_sdk_and_the_commands_create_cluster_and_label(
    api: Api, database: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, no_settings: None
) -> None:
    connect_commands(api, monkeypatch)
    monkeypatch.setenv("SFUMATO_HOME", str(tmp_path))
    given = (
        "--epsilon",
        "4",
        "--delta",
        "1e-5",
        "--trust",
        "central",
        "--feature",
        "east:0:10",
        "--missing",
        "category",
    )
    given += ("--category", "plan=free,basic,pro", "--category", "region=n,e,s,w", "--cluster-by", "plan")
    assert (
        "--cluster-by names no attribute"
        in run_command("datasets", "create", "d", *given, "--cluster-by", "plam=2", status=2).output
    )
    dataset_id = run_command("datasets", "create", "d", *given, "--cluster-by", "region=1.5").output.splitlines()[-1]
    assert "region: n, e, s, w, missing; forms clusters" in run_command("datasets", "show", dataset_id).output
    frame = table(*people()[1:])
    with Client("http://gateway", api.secret) as client:
        assert [each.weight for each in client.get_dataset(dataset_id).attributes] == [1.0, 1.5]
        client.upload_records(dataset_id, frame)
        job = client.submit_job(dataset_id, Auto(2.0, 4, delta=1e-6))
        work(database, job.id)
        model = job.result().model
        assert model.category_shares["region"].shape == (4, 5)
        assert (client.assign(job.id, frame) == model.assign(frame)).all()
        columns = model.to_columns()
        assert "plan = pro_error" in columns
    printed = run_command("jobs", "result", job.id).output
    assert "plan = pro" in printed
    (line,) = (each for each in printed.splitlines() if "Share of the features in the separation" in each)
    assert "region " in line
    assert " = " not in line  # the categories of an attribute are added


@SQLITE_ONLY
class TestRecords:
    """Records that are labelled have the columns and values of an upload."""

    @pytest.fixture
    def labelled(self, api: Api, database: Database) -> tuple[str, list[int]]:
        job_id = api.made("/jobs", {"dataset_id": filled(api), "algorithm": KMEANS})["id"]
        work(database, job_id)
        model = model_from_wire(api.get(f"/jobs/{job_id}/result").json()["model"])
        return f"/jobs/{job_id}/assign", model.assign(FRAME).tolist()

    def test_in_every_format_get_the_labels_of_the_model(self, api: Api, labelled: tuple[str, list[int]]) -> None:
        path, expected = labelled
        rows = [[None if pd.isna(value) else value for value in row] for row in FRAME.to_numpy().tolist()]
        arrow = pa.Table.from_pandas(FRAME, preserve_index=False)
        dictionary = arrow.set_column(0, "region", arrow["region"].dictionary_encode())
        answers = [
            api.post(path, {"columns": list(FRAME), "rows": rows}),
            api.post(path, content=FRAME.to_csv(index=False).encode(), headers={"Content-Type": "text/csv"}),
            *(api.post(path, content=to_stream(each), headers=STREAM) for each in (arrow, dictionary)),
        ]
        for each in answers:
            assert each.status_code == 200, each.text[:300]
            assert each.json()["labels"] == expected

    def test_that_no_upload_could_have_are_refused_without_their_values(
        self, api: Api, labelled: tuple[str, list[int]]
    ) -> None:
        path, _ = labelled
        columns = ["east", "plan", "region"]
        for rows, message in (
            ([[1, "pro", "n"], [1, "gold", "n"]], "record 2: plan must be one of its declared values"),
            ([[1, None, "n"]], "record 1: plan is missing"),
            ([["1", "pro", "n"]], "record 1: east must be a number"),
            ([[1, "pro"]], "record 1: expected 3 values"),
        ):
            detail = refused(api.post(path, {"columns": columns, "rows": rows}), 422, "validation_failed")["detail"]
            assert message in detail
            assert "gold" not in detail
        for wrong in (["east", "plan"], [*columns, "note"]):
            body = {"columns": wrong, "rows": [[1, "pro", "n", "a"][: len(wrong)]]}
            assert "column " in refused(api.post(path, body), 422, "validation_failed")["detail"]
        table = pa.table({"plan": ["gold"], "region": ["n"], "east": [1.0]})
        detail = refused(api.post(path, content=to_stream(table), headers=STREAM), 422, "validation_failed")["detail"]
        assert "record 1: plan must be one" in detail


@SQLITE_ONLY
def test_the_console_declares_offers_and_shows_them(api: Api, database: Database) -> None:
    console = Console(api)
    form = {"name": "d", "trust": "central", "epsilon": "1", "features": "x, 0, 1"}
    lines = "plan, clustering 2, free, pro\nregion, clustering, n, s\nnote, categorical, a, b"
    location = console.location("/datasets", form | {"attributes": lines})
    declared = api.get(f"/datasets/{location.rpartition('/')[2]}").json()["attributes"]
    assert [(each["use"], each["weight"]) for each in declared] == [("cluster", 2), ("cluster", 1), ("describe", 1)]
    assert "free, pro ; unknown values are refused; forms clusters with weight 2" in words(
        console.get(f"{location}/settings")
    )
    for wrong in ("plan, clustering 9, a, b", "plan, clustering x, a, b"):
        assert "f-attributes-wrong" in console.post("/datasets", form | {"attributes": wrong}).text
    boxes = console.text(f"{location}/jobs/new?type=private_kmeans")
    assert boxes.count('name="feature" value="') == 4  # a hidden one, x, plan and region
    dataset_id = filled(api)
    job_id = api.made("/jobs", {"dataset_id": dataset_id, "algorithm": KMEANS})["id"]
    work(database, job_id)
    page = html.unescape(console.text(f"/jobs/{job_id}/result"))
    assert "plan = pro" in page
