"""The pages of series: their cost, their windows, and the form of a new one."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from clustering.poles import warn_of_poles
from models.database.types import new_id
from sfumato.specs import Place
from tests.service.api import SQLITE_ONLY, Api, a_model, finish
from tests.service.api.test_series import EVERY_WEEK, advance, body
from tests.service.console.session import Console, words
from tests.service.followed import follow
from tests.service.shuffler import shuffled_dataset

pytestmark = SQLITE_ONLY

FORM = {
    "name": "lunch",
    "epsilon": "1",
    "every": "week",
    "time_zone": "Europe/Berlin",
    "count": "52",
    "cycle": "13",
    "target_reports": "1300000",
}


@pytest.fixture
def dataset_id(api: Api) -> str:
    return str(api.dataset(name="people")["id"])


def test_a_series_is_created_by_a_form_and_shows_its_cost(api: Api, console: Console, dataset_id: str) -> None:
    assert "26 a year" in words(console.get(f"/datasets/{dataset_id}/series/new"))
    answer = console.post(f"/datasets/{dataset_id}/series", FORM)
    (made,) = api.get("/series").json()["items"]
    assert answer.headers["location"] == f"/console/series/{made['id']}"
    text = words(console.get(f"/series/{made['id']}"))
    assert "Per window, and per cycle of 13 ε 1" in text
    assert "Per year, in each cycle once ε 4" in text
    assert "52, each a week, from" in text
    listed = console.text(f"/series?dataset_id={dataset_id}")
    assert "lunch" in listed
    assert f"/console/datasets/{dataset_id}/series/new" in listed


def test_the_form_forecasts_which_changes_are_found(api: Api, console: Console, dataset_id: str) -> None:
    answer = console.post(f"/datasets/{dataset_id}/series", FORM | {"step": "forecast"})
    assert answer.status_code == 200
    assert "A gain of 5 points found after 20 windows; in 4 of 5 series after 7 or more, or never" in words(answer)
    narrow = console.post(f"/datasets/{dataset_id}/series", FORM | {"step": "forecast", "cluster_width": "0.03"})
    assert "A gain of 5 points found after 7 windows; in 4 of 5 series after 3 to 13" in words(narrow)
    few = console.post(f"/datasets/{dataset_id}/series", FORM | {"step": "forecast", "target_reports": "20000"})
    assert "A gain of 10 points never found" in words(few)
    assert api.get("/series").json()["items"] == []


def test_a_shuffled_series_has_fields_and_costs_of_releases(api: Api, console: Console) -> None:
    of = shuffled_dataset(api)
    assert "Reports in a release" in words(console.get(f"/datasets/{of}/series/new"))
    form = FORM | {"min_batch": "90000", "honest_share": "0.8"}
    predicted = words(console.post(f"/datasets/{of}/series", form | {"step": "forecast"}))
    console.post(f"/datasets/{of}/series", form)
    (made,) = api.get("/series").json()["items"]
    per_year = f"{made['releases']['epsilon_per_year']:.9f}".rstrip("0")
    text = words(console.get(f"/series/{made['id']}"))
    assert f"Towards the service, per year ε {per_year}, δ 4e-06" in text
    assert "90,000 or more, 80.0 % honest" in text
    assert "Towards the service, per year" in predicted
    large = console.post(f"/datasets/{of}/series", form | {"min_batch": "100000"})
    assert "lower min_batch" in words(large)


def test_a_series_is_revised_on_its_page(api: Api, console: Console, dataset_id: str) -> None:
    console.post(f"/datasets/{dataset_id}/series", FORM)
    (made,) = api.get("/series").json()["items"]
    path = f"/series/{made['id']}"
    assert "Revise from the next cycle on" in words(console.get(path))
    answer = console.post(f"{path}/revisions", {"epsilon": "0.5", "clusters": "4", "season": "2"})
    assert answer.headers["location"] == f"/console{path}"
    (revision, _) = api.get(f"{path}/revisions").json()["items"]
    assert (revision["epsilon_per_cycle"], revision["season"]) == (0.5, 2)
    assert revision["algorithm"]["clusters"] == 4
    text = words(console.get(path))
    assert f"1 0 0.5 {revision['algorithm']['cells']} 1,300,000 2 0.01" in text
    assert "Per window, and per cycle of 13 ε 0.5 Per year, in each cycle once ε 2" in text
    assert "of the total is left" in words(console.post(f"{path}/revisions", {"epsilon": "3"}))


def test_the_page_states_the_cost_of_the_open_window_before_a_revision(
    api: Api, console: Console, dataset_id: str
) -> None:
    made = api.made("/series", body({"id": dataset_id}, windows=EVERY_WEEK | {"count": 4}, cycle=2))
    path, note = f"/series/{made['id']}", "Costs and plan are those from window 2 on."
    advance(api, made["id"], 0)
    api.made(f"{path}/revisions", {"algorithm": {"type": "shifted_grid", "epsilon": 0.5}})
    assert note not in words(console.get(path))  # the next window is of this cycle, too
    advance(api, made["id"], 0)
    first = words(console.get(path))
    assert f"{note} Window 1 is open and costs ε 1. Per window, and per cycle of 2 ε 0.5" in first
    advance(api, made["id"], 0)
    assert note not in words(console.get(path))


def test_the_cost_of_the_open_window_needs_no_page_with_all_revisions(api: Api, over: Callable[..., Api]) -> None:
    """The operator may limit pages to one item, and the open window has the revision before the newest one."""
    limited = over(api.database, max_page=1)
    made = limited.made("/series", body(limited.dataset(name="people"), windows=EVERY_WEEK | {"count": 4}, cycle=1))
    advance(limited, made["id"], 0)
    for epsilon in (0.5, 0.75):
        limited.made(f"/series/{made['id']}/revisions", {"algorithm": {"type": "shifted_grid", "epsilon": epsilon}})
    text = words(Console(limited).get(f"/series/{made['id']}"))
    assert "Costs and plan are those from window 1 on. Window 0 is open and costs ε 1. Per window" in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"time_zone": "Nowhere/City"}, "name of the IANA database"),
        ({"cycle": "60"}, "at most as many as the series"),
        ({"count": "many"}, "integer"),
        ({"first": "2020-01-06"}, "more than half of the first window has passed"),
    ],
)
def test_a_refusal_keeps_the_form(console: Console, dataset_id: str, change: dict[str, Any], message: str) -> None:
    answer = console.post(f"/datasets/{dataset_id}/series", FORM | change)
    assert answer.status_code == 422
    assert message in words(answer)
    assert 'value="lunch"' in answer.text


def test_windows_show_their_state_and_link_to_their_results(api: Api, console: Console, dataset_id: str) -> None:
    series_id = api.made("/series", body({"id": dataset_id}))["id"]
    (job_id,) = advance(api, series_id, 0)
    assert "open" in words(console.get(f"/series/{series_id}"))
    finish(api.database, job_id, a_model())
    advance(api, series_id, 4)
    text = console.text(f"/series/{series_id}")
    assert f"/console/jobs/{job_id}/result" in text
    assert "no worker was running in the first half of the window" in text
    assert len(text) < 250_000


def test_the_result_of_a_window_has_the_ids_of_its_clusters(api: Api, console: Console, dataset_id: str) -> None:
    series_id = api.made("/series", body({"id": dataset_id}))["id"]
    west, east = follow(api, series_id)
    (window,) = (each for each in api.list_all(f"/series/{series_id}/windows", limit=20) if each["job_id"])
    path = f"/jobs/{window['job_id']}"
    text = words(console.get(f"{path}/result"))
    assert "Id in the series" in text
    assert west in text
    assert east not in text  # the second cluster of the window matches none of the pool
    header, first, second = console.text(f"{path}/clusters.csv").splitlines()
    assert header.startswith("cluster,id,size,")
    assert (first.split(",")[1], second.split(",")[1]) == (west, "")


def test_a_series_is_paused_continued_and_ended(api: Api, console: Console, dataset_id: str) -> None:
    series_id = api.made("/series", body({"id": dataset_id}))["id"]
    for state, offered in (("paused", "Continue"), ("active", "Pause")):
        console.post(f"/series/{series_id}/state", {"state": state})
        assert offered in words(console.get(f"/series/{series_id}"))
    console.post(f"/series/{series_id}/state", {"state": "ended"})
    text = words(console.get(f"/series/{series_id}"))
    assert "Pause" not in text
    assert "the series ended before the first one" in text
    assert console.post(f"/series/{series_id}/state", {"state": "active"}).status_code == 409


def test_the_page_shows_shares_clusters_events_and_maps(api: Api, console: Console, dataset_id: str) -> None:
    series_id = api.made("/series", body({"id": dataset_id}))["id"]
    west, east = follow(api, series_id, event=new_id("evt"))
    for _ in range(3):
        follow(api, series_id, (west, east))
    console.post(f"/series/{series_id}/clusters/{west}", {"name": "<commuters>"})
    text = console.text(f"/series/{series_id}")
    assert text.count("<polygon") == 2
    assert "&lt;commuters&gt;" in text
    assert "grown (+10.0 ± 1.0 points)" in words(console.get(f"/series/{series_id}"))
    assert text.count("map.svg?window=") == 4
    assert text.count("Window 3: a warning") == 1
    picture = console.get(f"/series/{series_id}/map.svg?window=2")
    assert picture.headers["content-type"].startswith("image/svg+xml")
    assert picture.text.count("<path") == 2
    assert console.get(f"/series/{series_id}/map.svg?window=99").status_code == 404


def test_the_page_warns_of_clusters_near_a_pole(api: Api, console: Console) -> None:
    """The newest map has a cluster there. An older one with a warning is not repeated."""
    north = Place(0.0, -90.0, 90.0, 90.0).features
    features = [
        {"name": each.name, "lower": each.lower, "upper": each.upper, "coordinate": each.coordinate} for each in north
    ]
    series_id = api.made("/series", body(api.dataset(name="people", features=features)))["id"]
    maps = [
        warn_of_poles(replace(a_model(), features=north, centroids=np.array([[latitude, 0.0], [20.0, 30.0]])))
        for latitude in (10.0, 80.0)
    ]
    ids = follow(api, series_id, model=maps[0])
    assert "Near a pole" not in words(console.get(f"/series/{series_id}"))
    follow(api, series_id, (ids[0], ids[1]), model=maps[1])
    text = words(console.get(f"/series/{series_id}"))
    assert text.count("Window 1: Near a pole: cluster 0. Beyond 75 degrees of latitude, the map stretches") == 1


def test_a_page_of_52_windows_is_below_250_kb(api: Api, console: Console, dataset_id: str) -> None:
    series_id = api.made("/series", body({"id": dataset_id}, windows={"every": "week", "count": 60}, cycle=60))["id"]
    ids = [new_id("clu") for _ in range(8)]
    for _ in range(52):
        follow(api, series_id, (ids[0], ids[1]), others=ids[2:])
    text = console.text(f"/series/{series_id}")
    assert text.count("<polygon") == 8
    assert len(text) < 250_000
