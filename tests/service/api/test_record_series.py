"""Series over records through the API, the SDK, the command line and the console."""

from typing import Any

import numpy as np
import pytest
from sqlalchemy import select

from models.database.types import SECOND
from models.series import windows
from models.tables.datasets import RecordSegment
from models.tables.series import Series, Window
from sfumato import Client, DensityMap
from sfumato.forecast import forecast_series
from tests.service.api import SQLITE_ONLY, Api, refused
from tests.service.api.test_series import UNLIMITED, body
from tests.service.commands import connect_commands, run_command
from tests.service.console.session import Console, words

pytestmark = SQLITE_ONLY

EVERY_DAY = {"every": "day", "time_zone": "UTC", "count": 30}


@pytest.fixture
def console(api: Api) -> Console:
    return Console(api)


@pytest.fixture
def dataset(api: Api) -> dict[str, Any]:
    return api.dataset(trust="central")


def plan(dataset: dict[str, Any], **other: Any) -> dict[str, Any]:
    """Return a daily series of 30 windows, each with 20,000 expected records."""
    given = {"algorithm": {"type": "density_map", "epsilon": 0.5}, "windows": EVERY_DAY, "cycle": 30}
    return body(dataset, **given | {"target_reports": 600_000} | other)


def test_all_windows_cost_the_epsilon_of_one(api: Api, dataset: dict[str, Any]) -> None:
    made = api.made("/series", plan(dataset))
    costs = {name: value for name, value in made.items() if name.startswith("epsilon_")}
    assert costs["epsilon_per_window"] == costs["epsilon_per_cycle"] == costs["epsilon_total"] == 0.5
    assert made["algorithm"].items() >= {"type": "density_map", "epsilon": 0.5, "cells": 64}.items()
    assert made["cycle"] == 30
    assert api.get(f"/series/{made['id']}").json() == made


def test_a_window_is_open_until_its_end_and_closed_until_its_job_begins(api: Api, dataset: dict[str, Any]) -> None:
    made = api.made("/series", plan(dataset))
    assert [each["state"] for each in api.list_all(f"/series/{made['id']}/windows", limit=5)] == ["planned"]
    for back, state in ((12 * 3600, "open"), (24 * 3600 + 1, "closed")):
        shift(api, made["id"], back)
        (shown,) = api.list_all(f"/series/{made['id']}/windows", limit=5)
        assert (shown["state"], shown["n_reports"], shown["job_id"]) == (state, None, None)
    with api.database.transaction() as session:
        session.get_one(Series, made["id"]).next_at = api.database.clock()
        window = session.scalars(select(Window).where(Window.series_id == made["id"])).one()
        window.closes_at -= 61 * SECOND
    with api.database.transaction() as session:
        step = windows.take_step(session, made["id"], find_limits=lambda *_: UNLIMITED, now=api.database.clock())
    assert step.job is not None
    job = api.get(f"/jobs/{step.job.id}").json()
    assert (job["algorithm"]["type"], job["target_reports"]) == ("density_map", None)
    assert api.list_all(f"/series/{made['id']}/windows", limit=5)[0]["state"] == "closed"


def shift(api: Api, series_id: str, seconds: int) -> None:
    """Move the planned window, so that it began some seconds ago."""
    with api.database.transaction() as session:
        window = session.scalars(select(Window).where(Window.series_id == series_id)).one()
        window.opens_at = api.database.clock() - seconds * SECOND
        window.closes_at = window.opens_at + 86_400 * SECOND


@pytest.mark.parametrize(
    ("change", "pointer", "text"),
    [
        ({"cycle": 10}, "/cycle", "set cycle to 30"),
        ({"min_reports": 5}, "/min_reports", "min_reports must be 0 over records"),
        ({"min_batch": 5}, "/min_batch", "valid for a shuffled dataset only"),
        ({"algorithm": {"type": "density_map", "epsilon": 0.5, "bounds": "private"}}, "/algorithm", "declared"),
    ],
)
def test_terms_without_a_meaning_over_records_are_refused(
    api: Api, dataset: dict[str, Any], change: dict[str, Any], pointer: str, text: str
) -> None:
    problem = refused(api.post("/series", plan(dataset, **change)), 422, "validation_failed")
    (error,) = problem["errors"]
    assert error["pointer"].startswith(pointer)
    assert text in error["message"]
    assert api.get("/series").json()["items"] == []


def test_an_algorithm_of_the_other_trust_model_is_refused(api: Api, dataset: dict[str, Any]) -> None:
    over_reports = plan(dataset, algorithm={"type": "shifted_grid", "epsilon": 1.0})
    assert "does not work on records" in refused(api.post("/series", over_reports), 409, "conflict")["detail"]
    over_records = body(api.dataset(), algorithm={"type": "density_map", "epsilon": 1.0})
    assert "does not work on device reports" in refused(api.post("/series", over_records), 409, "conflict")["detail"]


def test_few_records_are_refused_unless_accepted(api: Api, dataset: dict[str, Any]) -> None:
    few = plan(dataset, target_reports=3000)
    problem = refused(api.post("/series", few), 422, "insufficient_reports")
    assert problem["reports_needed"] == 2000
    assert api.made("/series", few | {"allow_insufficient": True})["target_reports"] == 3000


def test_a_forecast_reads_the_limit_of_the_dataset(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    limited = api.dataset(trust="central", user_feature="person", max_records_per_user=30)
    asked = {"algorithm": {"type": "density_map", "epsilon": 0.5}, "cycle": 30, "target_reports": 600_000}
    connect_commands(api, monkeypatch)
    with Client("http://gateway", api.secret) as client:
        of_dataset = client.forecast_series(
            DensityMap(epsilon=0.5), dataset_id=limited["id"], cycle=30, target_reports=600_000
        )
    local = forecast_series(
        DensityMap(epsilon=0.5), n_features=2, cycle=30, target_reports=600_000, max_records_per_user=30
    )
    assert of_dataset == local
    assert local.n_eff < forecast_series(DensityMap(epsilon=0.5), n_features=2, cycle=30, target_reports=600_000).n_eff
    unlimited = api.post("/forecasts/series", asked | {"n_features": 2, "max_records_per_user": 30}).json()
    assert unlimited["n_eff"] == pytest.approx(local.n_eff)
    wrong = asked | {"n_features": 2, "max_records_per_user": 3, "algorithm": {"type": "shifted_grid", "epsilon": 1}}
    refused(api.post("/forecasts/series", wrong), 422, "validation_failed")


def test_the_sdk_and_the_commands_create_a_series(
    api: Api, dataset: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    connect_commands(api, monkeypatch)
    with Client("http://gateway", api.secret) as client:
        made = client.create_series(
            dataset["id"], "daily", DensityMap(epsilon=0.5), every="day", count=30, target_reports=600_000
        )
    assert (made.cycle, made.algorithm["type"]) == (30, "density_map")
    options = "--name x --epsilon 0.5 --count 30 --every day --target-reports 600000 --algorithm density_map"
    created = run_command("series", "create", dataset["id"], *options.split())
    assert created.exit_code == 0, created.output
    assert api.get(f"/series/{created.output.split()[-1]}").json()["algorithm"]["type"] == "density_map"
    asked = "--epsilon 0.5 --cycle 30 --target-reports 600000 --algorithm density_map"
    assert "found" in run_command("series", "forecast", dataset["id"], *asked.split()).output


def test_the_console_has_a_form_for_records(api: Api, console: Console, dataset: dict[str, Any]) -> None:
    shown = words(console.get(f"/datasets/{dataset['id']}/series/new"))
    assert "A window has the records that are uploaded in it" in shown
    assert "Records expected in all windows" in shown
    assert "Windows of a cycle" not in shown
    form = {"name": "daily", "epsilon": "0.5", "every": "day", "count": "30", "target_reports": "600000"}
    forecast = console.post(f"/datasets/{dataset['id']}/series", form | {"step": "forecast"})
    assert "Records per window, effective ones 20,000" in words(forecast)
    console.post(f"/datasets/{dataset['id']}/series", form)
    (made,) = api.get("/series").json()["items"]
    text = words(console.get(f"/series/{made['id']}"))
    assert "For all 30 windows ε 0.5" in text
    assert "the open window has no result" in text
    assert "Cells Records Season" in text


def test_uploads_have_the_time_of_their_completion(api: Api, dataset: dict[str, Any]) -> None:
    names = [feature["name"] for feature in dataset["features"]]
    rows = np.random.default_rng(1).random((50, len(names))).tolist()
    answer = api.post(f"/datasets/{dataset['id']}/records", {"columns": names, "rows": rows})
    assert answer.status_code == 201, answer.text
    with api.database.reading() as session:
        query = select(RecordSegment.completed_at).where(RecordSegment.dataset_id == dataset["id"])
        times = session.scalars(query).all()  # other tests store segments in the same database
    assert times
    assert all(time is not None and abs(time - api.database.clock()) < 3600 * SECOND for time in times)
