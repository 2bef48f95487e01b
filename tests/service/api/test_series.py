"""Series over HTTP: creation, its refusals, the cost of a person, and windows from their start to their result."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from models.collection import rounds
from models.database.types import SECOND, new_id
from models.identity.tenants import TenantLimits
from models.jobs import claims, lifecycle
from models.ledger import sources
from models.series import windows
from models.tables.datasets import Dataset
from models.tables.jobs import Job, JobState
from models.tables.series import Series
from models.tables.webhooks import Delivery
from sfumato import Client
from sfumato.sizing import planned_rounds
from sfumato.specs import local_algorithm_from_wire
from tests.blocks import blocks_of
from tests.service.api import SQLITE_ONLY, Api, a_model, finish, refused, stranger, unknown
from tests.service.commands import connect_commands, run_command
from tests.service.followed import follow

DAY = 86_400 * SECOND
UNLIMITED = TenantLimits(1000, 1000, None, 16, 1000, sources.UNLIMITED, sources.UNLIMITED)
EVERY_WEEK = {"every": "week", "time_zone": "Europe/Berlin", "count": 26}


def body(dataset: dict[str, Any], **other: Any) -> dict[str, Any]:
    """Return a weekly series of two cycles."""
    return {
        "dataset_id": dataset["id"],
        "name": "lunch",
        "algorithm": {"type": "shifted_grid", "epsilon": 1.0},
        "windows": EVERY_WEEK,
        "cycle": 13,
        "target_reports": 1_300_000,
        **other,
    }


def created(api: Api, **other: Any) -> dict[str, Any]:
    """Create a series over a new dataset."""
    return api.made("/series", body(api.dataset(min_reports=1), **other))


def advance(api: Api, series_id: str, days: float) -> list[str]:
    """Take the steps of a worker at a time after the next window has begun. Return the ids of new jobs."""
    found = []
    with api.database.transaction() as session:
        now = (session.get_one(Series, series_id).next_at or 0) + int(days * DAY)
    while True:
        with api.database.transaction() as session:
            step = windows.take_step(session, series_id, find_limits=lambda *_: UNLIMITED, now=now)
            found += [step.job.id] if step.job is not None else []
        if step.is_done:
            return found


def test_a_series_states_its_cost_for_a_window_a_cycle_and_a_year(api: Api) -> None:
    made = created(api, epsilon_total=3.0)
    assert made["state"] == "active"
    costs = {name: value for name, value in made.items() if name.startswith("epsilon_")}
    assert costs == {
        "epsilon_per_window": 1.0,
        "epsilon_per_cycle": 1.0,
        "epsilon_per_year": 4.0,
        "epsilon_total": 3.0,
        "epsilon_charged": 0.0,
        "epsilon_pending": 3.0,
    }
    assert made["algorithm"]["cells"] == 16  # chosen for the 100,000 devices of one window
    opens_at = datetime.fromisoformat(made["next_window_at"])
    assert timedelta(0) < opens_at - datetime.now(UTC) < timedelta(days=8)
    assert api.get(f"/series/{made['id']}").json() == made
    assert api.get("/series", params={"dataset_id": made["dataset_id"]}).json()["items"] == [made]
    assert api.budget(made["dataset_id"])["granted"] == 8


def test_windows_from_the_plan_to_the_result(api: Api) -> None:
    made = created(api)
    (planned,) = api.list_all(f"/series/{made['id']}/windows", limit=20)
    assert (planned["index"], planned["cycle"], planned["state"], planned["job_id"]) == (0, 0, "planned", None)
    (job_id,) = advance(api, made["id"], 0)
    opened, following = api.list_all(f"/series/{made['id']}/windows", limit=20)
    assert (opened["state"], opened["job_id"], opened["opens_at"]) == ("open", job_id, planned["opens_at"])
    assert following["opens_at"] == opened["closes_at"]
    job = api.get(f"/jobs/{job_id}").json()
    assert job["algorithm"] == made["algorithm"]
    assert 100_000 < job["target_reports"] < 101_000  # a window closes at its end, unless more than all report
    finish(api.database, job_id, a_model())
    assert api.list_all(f"/series/{made['id']}/windows", limit=20)[0]["state"] == "done"
    advance(api, made["id"], 4)
    newest = api.get(f"/series/{made['id']}/windows", params={"limit": 2}).json()
    assert [each["state"] for each in newest["items"]] == ["planned", "missed"]
    assert "no worker was running" in newest["items"][1]["reason"]
    rest = api.get(f"/series/{made['id']}/windows", params={"limit": 2, "cursor": newest["next_cursor"]}).json()
    assert [each["index"] for each in rest["items"]] == [0]
    assert rest["next_cursor"] is None


@pytest.mark.parametrize(
    ("state", "code", "shown"),
    [
        (JobState.EXPIRED, "too_few_reports", "empty"),
        (JobState.FAILED, "too_few_reports", "empty"),
        (JobState.FAILED, "internal_error", "failed"),
        (JobState.CANCELED, None, "failed"),
    ],
)
def test_the_end_of_a_job_is_the_state_of_its_window(api: Api, state: JobState, code: str | None, shown: str) -> None:
    made = created(api)
    (job_id,) = advance(api, made["id"], 0)
    with api.database.transaction() as session:
        claims.end_job(session, session.get_one(Job, job_id), state, now=api.database.clock(), code=code, detail="why")
    window = api.list_all(f"/series/{made['id']}/windows", limit=20)[0]
    assert (window["state"], window["reason"]) == (shown, "why")


def test_pause_continue_rename_and_end(api: Api) -> None:
    made = created(api)
    at = f"/series/{made['id']}"
    assert api.patch(at, {"state": "paused"}).json()["state"] == "paused"
    assert api.patch(at, {"state": "active", "name": "supper"}).json()["name"] == "supper"
    ended = api.patch(at, {"state": "ended"}).json()
    assert (ended["state"], ended["next_window_at"], ended["epsilon_pending"]) == ("ended", None, 0)
    assert ended["ended_at"] is not None
    assert "create another one" in refused(api.patch(at, {"state": "active"}), 409, "conflict")["detail"]
    assert api.patch(at, {}).json() == ended


@pytest.mark.parametrize(
    ("change", "pointer", "message"),
    [
        ({"windows": EVERY_WEEK | {"time_zone": "Mars/Olympus"}}, "/windows", "IANA database"),
        ({"windows": EVERY_WEEK | {"first": "2027-02-30"}}, "/windows/first", "must exist in the calendar"),
        ({"windows": EVERY_WEEK | {"first": "2020-01-06"}}, "/windows", "more than half of the first window"),
        ({"windows": EVERY_WEEK | {"first": "2999-01-07"}}, "/windows", "within a year"),
        ({"windows": EVERY_WEEK | {"every": "hour"}}, "/windows/every", "day"),
        ({"windows": EVERY_WEEK | {"count": 1001}}, "/windows/count", "1000"),
        ({"cycle": 27}, "/cycle", "at most as many as the series"),
        ({"epsilon_total": 1.5}, "", "has 2 cycles, which cost epsilon 2"),
        ({"algorithm": {"type": "ldp_kmeans", "epsilon": 1.0, "clusters": 3}}, "/algorithm/type", "shifted_grid"),
        ({"cycle": 1, "algorithm": {"type": "shifted_grid", "epsilon": 2.0}}, "", "more than any device allows"),
    ],
)
def test_a_bad_plan_is_refused(api: Api, change: dict[str, Any], pointer: str, message: str) -> None:
    dataset = api.dataset()
    document = refused(api.post("/series", body(dataset, **change)), 422, "validation_failed")
    pointers = [each["pointer"] for each in document["errors"]]
    assert pointer in pointers or "/algorithm" in pointers
    assert message in " ".join([document["detail"], *(each["message"] for each in document["errors"])])
    assert api.budget(dataset["id"])["ledger_seq"] == 1
    assert api.list_all("/series", limit=20) == []


def test_a_series_with_too_few_reports_is_refused_unless_it_is_allowed(api: Api) -> None:
    dataset = api.dataset()
    few = body(dataset, target_reports=1300, algorithm={"type": "shifted_grid", "epsilon": 0.1, "clusters": 6})
    assert refused(api.post("/series", few), 422, "insufficient_reports")["reports_needed"] > 1000
    api.made("/series", few | {"allow_insufficient": True})


def test_a_series_needs_a_dataset_that_exists_and_fits_its_algorithm(api: Api) -> None:
    central = api.dataset(trust="central")
    assert "does not work on records" in refused(api.post("/series", body(central)), 409, "conflict")["detail"]
    refused(api.post("/series", body({"id": unknown("ds")})), 404, "not_found")
    refused(api.get(f"/series/{unknown('ser')}"), 404, "not_found")
    refused(api.patch(f"/series/{unknown('ser')}", {"state": "paused"}), 404, "not_found")
    refused(api.get(f"/series/{unknown('ser')}/windows"), 404, "not_found")


def test_a_series_needs_the_scopes_of_a_job_and_of_a_grant(api: Api) -> None:
    made = created(api)
    again = body({"id": made["dataset_id"]})
    for scopes in (["jobs"], ["grants"], ["datasets", "ledger"]):
        refused(api.key(*scopes).post("/series", again), 403, "forbidden")
    assert api.key("jobs", "grants").post("/series", again).status_code == 201
    for scope in ("jobs", "grants", "ledger"):
        assert api.key(scope).get(f"/series/{made['id']}").status_code == 200
    refused(api.key("ledger").patch(f"/series/{made['id']}", {"state": "ended"}), 403, "forbidden")
    refused(api.key("device").get("/series"), 403, "forbidden")


def test_other_tenants_see_no_series(api: Api, http: httpx.Client) -> None:
    made = created(api)
    other = stranger(http, api.database)
    refused(other.get(f"/series/{made['id']}"), 404, "not_found")
    refused(other.patch(f"/series/{made['id']}", {"state": "ended"}), 404, "not_found")
    assert other.list_all("/series", limit=20) == []


def test_an_idempotency_key_creates_one_series(api: Api) -> None:
    wanted, headers = body(api.dataset()), {"Idempotency-Key": "one"}
    first, second = (api.post("/series", wanted, headers=headers) for _ in range(2))
    assert first.json() == second.json()
    assert first.headers["location"] == f"/v1/series/{first.json()['id']}"
    assert len(api.list_all("/series", limit=20)) == 1


def test_devices_see_the_cycle_as_the_collection_of_a_round(api: Api) -> None:
    """Two windows of a cycle have one collection, disjoint intervals, and one cost in the ledger."""
    made = created(api, windows=EVERY_WEEK | {"count": 2}, cycle=2)
    shown = []
    for _ in range(2):
        (job_id,) = advance(api, made["id"], 0)
        open_window(api, made["dataset_id"], job_id)
        shown.append(api.get(f"/datasets/{made['dataset_id']}/round").json()["rounds"][0])
        api.post(f"/jobs/{job_id}/cancel")
    assert {each["collection_id"] for each in shown} == {f"{made['id']}-0"}
    ends = [each["spec"]["participation"] for each in shown]
    assert [ends[0]["lo"], ends[0]["hi"], ends[1]["hi"]] == ["0", str(2**63), str(2**64)]
    assert ends[1]["lo"] == ends[0]["hi"]
    assert api.get(f"/series/{made['id']}").json()["epsilon_charged"] == 1.0
    entries = api.list_all(f"/datasets/{made['dataset_id']}/ledger", limit=20)
    assert [each["kind"] for each in entries] == ["grant", "grant", "reserve", "charge", "charge"]
    assert entries[1]["reference"] == entries[2]["reservation"] == f"{made['id']}-0"
    assert api.budget(made["dataset_id"])["spent"]["last_job_id"] is None  # a cycle is no job


def open_window(api: Api, dataset_id: str, job_id: str) -> None:
    """Open the round of a window, like a worker."""
    with api.database.transaction() as session:
        job, dataset = session.get_one(Job, job_id), session.get_one(Dataset, dataset_id)
        algorithm = local_algorithm_from_wire(job.algorithm)
        (planned,) = planned_rounds(algorithm, dataset.n_features, job.target_reports)
        job.state, job.fence = JobState.RUNNING.value, 1
        slot = windows.find_slot(session, job)
        assert slot is not None
        rounds.open_for_job(
            session,
            dataset,
            planned.spec(dataset.features),
            job.collection_target,
            job_id=job_id,
            actor=job.created_by,
            slot=slot,
            now=api.database.clock(),
        )
        lifecycle.wait_for_reports(session, claims.Claim(job_id, 1), now=api.database.clock())


def test_clusters_keep_their_ids_and_names_over_windows(api: Api) -> None:
    made = created(api)
    at = f"/series/{made['id']}"
    refused(api.get(f"{at}/map"), 409, "job_not_finished")
    west, east = follow(api, made["id"])
    south = new_id("clu")
    follow(api, made["id"], (west, south))
    named = api.patch(f"{at}/clusters/{west}", {"name": "commuters"}).json()
    assert (named["name"], named["born_in"], named["gone_in"]) == ("commuters", 0, None)
    assert (
        "unique"
        in refused(api.patch(f"{at}/clusters/{east}", {"name": "commuters"}), 422, "validation_failed")["detail"]
    )
    found = {each["id"]: each for each in api.list_all(f"{at}/clusters", limit=20)}
    assert {name: (each["born_in"], each["gone_in"]) for name, each in found.items()} == {
        west: (0, None),
        east: (0, 1),
        south: (1, None),
    }
    assert api.get(f"{at}/clusters/{east}").json() == found[east]
    first, second = api.list_all(f"{at}/windows", limit=20)[:2]
    assert first["clusters"][0] == {
        "cluster_id": west, "share": 0.25, "error": 0.01, "pooled_share": 0.25, "pooled_error": 0.005,
    }  # fmt: skip
    assert [each["cluster_id"] for each in second["clusters"]] == [west, south]
    last = api.get(f"{at}/map").json()
    assert (last["window"], last["pooled"], last["cluster_ids"]) == (1, True, [west, south])
    assert last["model"]["names"] == ["commuters", ""]
    assert last["weights"] == [{"window": 0, "weight": 0.9}, {"window": 1, "weight": 1.0}]
    alone = api.get(f"{at}/map", params={"window": 0, "pooled": "false"}).json()
    assert (alone["cluster_ids"], alone["weights"]) == ([west, None], [{"window": 0, "weight": 1.0}])
    assert (last["model"]["ids"], alone["model"]["ids"]) == ([west, south], [west, None])
    assert api.get(f"/jobs/{first['job_id']}/result").json()["model"]["ids"] == [west, None]
    refused(api.get(f"{at}/map", params={"window": 9}), 404, "not_found")
    refused(api.get(f"{at}/clusters/{unknown('clu')}"), 404, "not_found")


def test_an_event_states_what_changed_and_reaches_webhooks(api: Api) -> None:
    made = created(api)
    wanted = {"url": "https://hooks.example.invalid/", "event_types": ["series.event"]}
    webhook = api.made("/webhooks", wanted)
    assert api.list_all(f"/series/{made['id']}/events", limit=20) == []
    west, _ = follow(api, made["id"], event=(event_id := new_id("evt")))
    (event,) = api.list_all(f"/series/{made['id']}/events", limit=20)
    assert event == {
        "id": event_id,
        "window": 0,
        "change": 0,
        "change_first": 0,
        "change_last": 0,
        "evidence": 25.0,
        "false_alarms": 0.05,
        "kinds": [{"kind": "grown", "cluster_id": west, "others": [], "size": 0.1, "error": 0.01}],
        "described_in": 0,
    }
    with api.database.reading() as session:
        payloads = session.scalars(select(Delivery.payload).where(Delivery.webhook_id == webhook["id"])).all()
    data = [json.loads(payload)["data"] for payload in payloads]
    assert (
        data == [{"id": event_id, "series_id": made["id"], "window": 0, "dataset_id": made["dataset_id"]}] * 2
    )  # the alarm, and its description: no kind and no number


def test_a_cluster_that_an_event_calls_born_is_no_part_of_an_older_one(api: Api) -> None:
    made = created(api)
    west, _ = follow(api, made["id"])
    young = new_id("clu")
    follow(api, made["id"], (west, young), parent=west)
    at = f"/series/{made['id']}/clusters/{young}"
    assert (api.get(at).json()["born_in"], api.get(at).json()["parents"]) == (1, [west])
    follow(api, made["id"], (west, young), event=new_id("evt"), is_born=True)
    assert (api.get(at).json()["born_in"], api.get(at).json()["parents"]) == (1, [])


@SQLITE_ONLY
def test_the_history_of_the_client_has_a_frame_and_a_plot(
    api: Api, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, no_settings: None
) -> None:
    made = created(api)
    west, east = follow(api, made["id"], event=new_id("evt"))
    follow(api, made["id"], (west, east))
    api.patch(f"/series/{made['id']}/clusters/{west}", {"name": "west"})
    connect_commands(api, monkeypatch)
    with Client("http://gateway", api.secret) as client:
        history = client.series_history(made["id"])
        found = client.series_map(made["id"], 0, pooled=False)
        (block,) = [each for each in blocks_of("docs/series.md") if each.run_by]
        shown = {"client": client, "series": client.get_series(made["id"])}
        exec(block.text, shown)  # noqa: S102 - a block of our own page
    assert len(shown["table"]) == 4  # type: ignore[arg-type]
    frame = history.frame()
    assert frame.index.tolist() == [(0, west), (0, east), (1, west), (1, east)]
    assert frame.loc[(1, west), "share"] == 0.25
    assert frame["name"].tolist() == ["west", "", "west", ""]
    axes = history.plot().axes[0]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["west", east]
    assert found.assign([[0.1, 0.1], [0.9, 0.1]]).tolist() == [west, None]
    monkeypatch.setenv("SFUMATO_HOME", str(tmp_path))
    assert "25.0 ± 1.0 %" in run_command("series", "clusters", made["id"]).output
    assert f"{west} grown (+10.0 ± 1.0 %)" in run_command("series", "events", made["id"]).output
    shown_map = run_command("series", "map", made["id"]).output
    assert "2 windows pooled" in shown_map
    assert "Note: a warning" in shown_map
    job_id = next(each["job_id"] for each in api.list_all(f"/series/{made['id']}/windows", limit=20) if each["job_id"])
    assert west in run_command("jobs", "result", job_id).output
    plan = ("--epsilon", "0.5", "--cycle", "13", "--target-reports", "20000")
    assert "never found" in run_command("series", "forecast", made["dataset_id"], *plan).output
    plan = ("--epsilon", "1", "--cycle", "1", "--target-reports", "100000", "--cluster-width", "0.03")
    output = run_command("series", "forecast", made["dataset_id"], *plan).output
    assert "a gain of 5 points: found after 7 windows; in 4 of 5 series after 3 to 13" in output
    run_command("series", "name", made["id"], east, "east")
    assert api.get(f"/series/{made['id']}/clusters/{east}").json()["name"] == "east"


def test_a_forecast_states_costs_and_delays_before_the_series_exists(api: Api) -> None:
    dataset = api.dataset()
    wanted = {"algorithm": {"type": "shifted_grid", "epsilon": 1.0}, "cycle": 13, "target_reports": 1_300_000}
    of_features = api.made("/forecasts/series", wanted | {"n_features": 2})
    assert api.made("/forecasts/series", wanted | {"dataset_id": dataset["id"]}) == of_features
    assert (of_features["epsilon_per_year"], of_features["reports_per_window"]) == (4.0, 100_000)
    assert [[each[name] for name in ("share", "windows", "earliest", "latest")] for each in of_features["delays"]] == [
        [0.05, 20, 7, None],
        [0.1, 2, 1, 3],
        [0.2, 1, 1, 1],
    ]
    wide = api.made("/forecasts/series", wanted | {"n_features": 2, "cluster_width": 0.08})
    assert wide["delays"][1]["windows"] > 2
    refused(api.post("/forecasts/series", wanted | {"n_features": 2, "cluster_width": 0.4}), 422, "validation_failed")
    few = api.made("/forecasts/series", wanted | {"n_features": 2, "target_reports": 26_000})
    assert few["delays"][0]["windows"] is None
    assert "never found" in few["warnings"][0]
    for wrong in ({}, {"n_features": 2, "dataset_id": dataset["id"]}):
        assert "exactly one of" in api.post("/forecasts/series", wanted | wrong).json()["errors"][0]["message"]
    hour = {"name": "hour", "lower": 0, "upper": 24, "periodic": True}
    of_clock = api.made("/forecasts/series", wanted | {"dataset_id": api.dataset(features=[hour])["id"]})
    one = api.made("/forecasts/series", wanted | {"n_features": 1})
    assert of_clock["smallest_changes"] != one["smallest_changes"]  # a shift has one cell less on a circle
    central = api.dataset(trust="central")["id"]
    refused(api.post("/forecasts/series", wanted | {"dataset_id": central}), 409, "conflict")
