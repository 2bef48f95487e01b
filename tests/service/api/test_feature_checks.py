"""Irrelevant features over HTTP, in the SDK, the command line and the console."""

from typing import Any

import pytest

from models.database.engine import Database
from service.schemas.results import Result as ResultSchema
from sfumato.api.parsers import parse_result
from tests.clustering.central.test_feature_check import three_groups
from tests.service.api import SQLITE_ONLY, Api, claim_job, refused
from tests.service.commands import connect_commands, run_command
from tests.service.console.session import Console
from tests.workers.archive import KEYRING
from workers.job_runner import ClaimOutcome, run

FEATURES = [{"name": name, "lower": 0.0, "upper": 1.0} for name in ("x", "y", "z", "weekday")]
CHECKED: dict[str, Any] = {"type": "private_kmeans", "epsilon": 2.0, "clusters": 3, "check_features": True}


@SQLITE_ONLY
def test_are_named_in_the_result_the_command_line_and_the_console(
    api: Api, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset_id = str(api.dataset(trust="central", features=FEATURES)["id"])
    rows = three_groups(1, n=30_000).tolist()
    api.made(f"/datasets/{dataset_id}/records", {"columns": ["x", "y", "z", "weekday"], "rows": rows})
    for _ in range(3):  # the noise decides whether the clusters divide the weekday, which about one job in ten avoids
        job_id = api.made("/jobs", {"dataset_id": dataset_id, "algorithm": CHECKED})["id"]
        assert run(database, claim_job(database, job_id), keyring=lambda: KEYRING) == ClaimOutcome.SUCCEEDED
        result = api.get(f"/jobs/{job_id}/result").json()
        if result["model"]["feature_check"]["irrelevant"]:
            break
    ResultSchema.model_validate(result)
    check, shares = result["model"]["feature_check"], result["model"]["feature_shares"]
    assert (check["irrelevant"], check["is_conclusive"], check["epsilon"]) == (["weekday"], True, 0.16)
    assert sum(shares) == pytest.approx(1)
    assert {result["model"]["privacy"][name] for name in ("feature_check", "feature_shares")} == {"post_processed"}
    assert parse_result(result).model.feature_check.irrelevant == ("weekday",)
    page = Console(api).text(f"/jobs/{job_id}/result")
    assert "The check for irrelevant features cost ε 0.16 of the job." in page
    assert page.count('<span class="wrong">yes</span>') == 1
    connect_commands(api, monkeypatch)
    printed = run_command("jobs", "result", job_id).output
    assert "Share of the features in the separation: " in printed
    assert "'weekday' divides the people where nothing separates them." in printed


def test_need_an_epsilon_that_can_be_divided(api: Api) -> None:
    dataset_id = str(api.dataset(trust="central", features=FEATURES)["id"])
    job = {"dataset_id": dataset_id, "algorithm": CHECKED | {"epsilon": 1e-6}}
    problem = refused(api.post("/jobs", job), 422, "validation_failed")
    assert "too small for check_features" in str(problem)
