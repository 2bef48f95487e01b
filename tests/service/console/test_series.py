"""The pages of series: their cost, their windows, and the form of a new one."""

from typing import Any

import pytest

from tests.service.api import SQLITE_ONLY, Api, a_model, finish
from tests.service.console.session import Console, words
from tests.service.test_series import advance, body

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
