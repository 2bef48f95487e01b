"""Jobs and results over HTTP, without a worker: the tests do what it would."""

import io
import json
import re
import threading
import time
from typing import Any

import httpx
import numpy as np
import pytest
import redis
from PIL import Image
from sqlalchemy.exc import OperationalError

from models import job as jobs
from models import round as rounds
from models import tenant
from models.dataset import Dataset
from models.db import Database
from models.doorbell import PipeDoorbell, PollingDoorbell, RedisDoorbell
from models.job import Claim, Job, JobState
from models.round import Collect
from models.tenant import Scope
from service import events
from service.events import HEARTBEAT_SECONDS
from service.job_resources import Job as JobSchema
from service.services import MAX_WATCHERS
from service.watches import Seen, Watches
from sfumato import mechanisms
from sfumato.cluster_model import model_from_wire
from sfumato.specs import GridEncoding, RoundSpec
from tests.service.api import UNIFORM, Api, a_model, finish, refused, told, unknown


def claimed(database: Database, job_id: str) -> Claim:
    """As if a worker held it."""
    with database.transaction() as session:
        job = session.get_one(Job, job_id)
        job.state, job.fence = JobState.RUNNING.value, 1
    return Claim(job_id, 1)


def open_round(database: Database, job_id: str) -> str:
    """As the job's worker does."""
    held = claimed(database, job_id)
    with database.transaction() as session:
        job = jobs.held_job(session, held)
        dataset = session.get_one(Dataset, job.dataset_id)
        mechanism = mechanisms.design("grr", 4, 1_000_000_000)
        spec = RoundSpec(dataset.features, GridEncoding((2, 2)), mechanism)
        opened = rounds.open_for_job(
            session, dataset, spec, Collect(1000, 1, 60), job_id=job_id, actor=job.created_by, now=database.clock()
        )
        jobs.suspend(session, held, now=database.clock())
    return opened.id


class TestSubmitting:
    def test_reserves_and_queues(self, api: Api) -> None:
        made = api.dataset()
        body = {"dataset_id": made["id"], "algorithm": UNIFORM | {"clusters": 3}, "target_reports": 500}
        answer = api.post("/jobs", body)
        job = answer.json()
        assert answer.status_code == 202
        assert answer.headers["location"] == f"/v1/jobs/{job['id']}"
        assert int(answer.headers["retry-after"]) >= 1
        assert job["algorithm"] == told(UNIFORM | {"clusters": 3})
        assert (job["state"], job["epsilon"], job["target_reports"]) == ("queued", 1.0, 500)
        assert job["progress"] == {"rounds_opened": 0, "open_round_id": None, "n_received": 0, "target_reports": 500}
        assert api.get(f"/jobs/{job['id']}").json() == job
        assert api.get(f"/datasets/{made['id']}/budget").json()["reserved_nano"] == 1_000_000_000

    def test_takes_parameters_that_are_null_as_left_out(self, api: Api) -> None:
        job = api.job(api.dataset()["id"], algorithm=UNIFORM | {"clusters": None, "cells": None})
        assert job["algorithm"] == told(UNIFORM)

    def test_rings_for_a_worker_after_the_commit(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        rung: list[str] = []

        def ring(_self: object, job_id: str) -> None:
            with api.database.reading() as session:
                rung.append(session.get_one(Job, job_id).state)

        for kind in (PipeDoorbell, PollingDoorbell, RedisDoorbell):
            monkeypatch.setattr(kind, "ring", ring)
        api.job(api.dataset()["id"])
        assert rung == ["queued"]

    def test_rings_over_redis(self, over: Any, database: Database, redis_url: str) -> None:
        api: Api = over(database, redis_url=redis_url)
        job = api.job(api.dataset()["id"])
        with redis.Redis.from_url(redis_url, decode_responses=True) as bell:
            assert bell.lrange("sfumato:doorbell", 0, -1) == [job["id"]]

    def test_needs_no_redis_that_is_away(self, started: Any) -> None:
        api: Api = started(redis_url="redis://127.0.0.1:1/0")
        assert api.job(api.dataset()["id"])["state"] == "queued"

    def test_over_earlier_rounds_costs_nothing(self, api: Api) -> None:
        made = api.dataset()
        opened = api.round(made["id"], epsilon=1)
        body = {"dataset_id": made["id"], "algorithm": UNIFORM, "round_ids": [opened["id"]]}
        refused(api.post("/jobs", body), 409, "conflict")  # still open
        api.made(f"/rounds/{opened['id']}/close", None)
        job = api.made("/jobs", body)
        assert (job["round_ids"], job["epsilon"], job["target_reports"]) == ([opened["id"]], 0, None)
        assert api.get(f"/datasets/{made['id']}/budget").json()["reserved_nano"] == 0
        refused(api.post("/jobs", body | {"algorithm": UNIFORM | {"epsilon": 0.5}}), 409, "conflict")  # costs more
        refused(api.post("/jobs", body | {"round_ids": [unknown("rnd")]}), 404, "not_found")

    def test_over_another_datasets_rounds_is_refused(self, api: Api) -> None:
        elsewhere = api.round(api.dataset()["id"])
        api.made(f"/rounds/{elsewhere['id']}/close", None)
        body = {"dataset_id": api.dataset()["id"], "algorithm": UNIFORM, "round_ids": [elsewhere["id"]]}
        refused(api.post("/jobs", body), 404, "not_found")

    def test_more_than_a_tenant_may_have_is_refused(self, started: Any) -> None:
        api: Api = started(max_active_jobs=1)
        made = api.dataset()
        job = api.job(made["id"])
        body = {"dataset_id": made["id"], "algorithm": UNIFORM, "target_reports": 10}
        refused(api.post("/jobs", body), 422, "validation_failed")
        api.made(f"/jobs/{job['id']}/cancel", None)
        assert api.job(made["id"])["state"] == "queued"


class TestProgress:
    def test_shows_the_open_round(self, api: Api, database: Database) -> None:
        job = api.job(api.dataset()["id"])
        round_id = open_round(database, job["id"])
        assert api.report(round_id).status_code == 202
        seen = api.get(f"/jobs/{job['id']}").json()
        assert seen["state"] == "collecting"
        assert seen["progress"] == {
            "rounds_opened": 1,
            "open_round_id": round_id,
            "n_received": 1,
            "target_reports": 1000,
        }
        assert api.get("/jobs").json()["items"] == [seen]
        opened = api.get(f"/rounds/{round_id}").json()
        assert (opened["job_id"], opened["collection_id"]) == (job["id"], job["id"])

    def test_of_one_dataset_only_is_listed_on_request(self, api: Api) -> None:
        first, second = api.dataset()["id"], api.dataset()["id"]
        mine = [api.job(first)["id"], api.job(first)["id"]]
        api.job(second)
        page = api.get("/jobs", params={"dataset_id": first, "limit": 1}).json()
        rest = api.get("/jobs", params={"dataset_id": first, "cursor": page["next_cursor"]}).json()
        assert [job["id"] for job in page["items"] + rest["items"]] == mine
        assert len(api.get("/jobs").json()["items"]) == 3


class TestCancelling:
    def test_releases_what_was_reserved_and_happens_once(self, api: Api) -> None:
        made = api.dataset()
        job = api.job(made["id"])
        canceled = api.made(f"/jobs/{job['id']}/cancel", {})
        assert canceled["state"] == "canceled"
        assert canceled["finished_at"] is not None
        assert api.made(f"/jobs/{job['id']}/cancel", None) == canceled
        assert api.get(f"/datasets/{made['id']}/budget").json()["reserved_nano"] == 0

    def test_closes_its_round(self, api: Api, database: Database) -> None:
        job = api.job(api.dataset()["id"])
        round_id = open_round(database, job["id"])
        canceled = api.made(f"/jobs/{job['id']}/cancel", None)
        assert canceled["progress"]["open_round_id"] is None
        refused(api.report(round_id), 409, "round_closed")


class TestWaiting:
    def test_ends_as_soon_as_the_job_is_over(self, api: Api, database: Database) -> None:
        job = api.job(api.dataset()["id"])
        finished: list[float] = []

        def end() -> None:
            finish(database, job["id"], a_model())
            finished.append(time.monotonic())

        later = threading.Timer(0.3, end)
        later.start()
        seen = api.get(f"/jobs/{job['id']}", params={"wait": 50}).json()
        answered = time.monotonic()
        later.join()
        assert seen["state"] == "succeeded"
        assert answered - finished[0] < 25  # and not when the wait was over

    def test_ends_when_its_time_is_over(self, api: Api) -> None:
        job = api.job(api.dataset()["id"])
        began = time.monotonic()
        assert api.get(f"/jobs/{job['id']}", params={"wait": 0.4}).json() == job
        assert 0.4 <= time.monotonic() - began < 30

    def test_of_more_than_the_gateway_bears_is_put_off(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        job = api.job(api.dataset()["id"])
        monkeypatch.setattr("service.services.MAX_WATCHERS", 0)
        assert MAX_WATCHERS > 0
        answer = api.get(f"/jobs/{job['id']}", params={"wait": 1})
        refused(answer, 429, "rate_limited")
        assert int(answer.headers["retry-after"]) >= 1
        refused(api.get(f"/jobs/{job['id']}/events"), 429, "rate_limited")
        assert api.get(f"/jobs/{job['id']}").status_code == 200

    def test_of_an_unknown_job_is_not_found_at_once(self, api: Api) -> None:
        refused(api.get(f"/jobs/{unknown('job')}", params={"wait": 20}), 404, "not_found")
        refused(api.get(f"/jobs/{unknown('job')}/events"), 404, "not_found")


def events_of(stream: str) -> list[dict[str, Any]]:
    """The jobs of an event stream, which begins with when to come back."""
    first, *blocks = [block for block in stream.split("\n\n") if block and not block.startswith(":")]
    assert re.fullmatch(r"retry: \d+", first)
    found = [re.fullmatch(r"id: ([0-9a-f]{16})\nevent: job\ndata: (.*)", block) for block in blocks]
    assert all(found)
    assert len({each[1] for each in found if each}) == len(blocks)
    return [json.loads(each[2]) for each in found if each]


class TestEvents:
    def test_tell_every_change_until_the_job_is_over(
        self, api: Api, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job = api.job(api.dataset()["id"])
        acts = {3: lambda: open_round(database, job["id"]), 6: lambda: finish(database, job["id"], a_model())}
        real, looks = Watches._read, []

        def read(self: Watches, job_id: str) -> Seen | None:
            looks.append(job_id)
            acts.get(len(looks), lambda: None)()
            return real(self, job_id)

        monkeypatch.setattr(Watches, "_read", read)
        answer = api.get(f"/jobs/{job['id']}/events")
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-store"
        seen = events_of(answer.text)
        assert seen[0] == job
        assert [each["state"] for each in seen] == ["queued", "collecting", "succeeded"]
        assert len(looks) == 6
        assert all(JobSchema.model_validate(each) for each in seen)

    def test_of_a_job_that_is_over_tell_it_once(self, api: Api, database: Database) -> None:
        job = api.job(api.dataset()["id"])
        finish(database, job["id"], a_model())
        assert [each["state"] for each in events_of(api.get(f"/jobs/{job['id']}/events").text)] == ["succeeded"]

    def test_are_not_sent_again_to_who_saw_them_and_the_last_one_ends_it(self, api: Api, database: Database) -> None:
        job = api.job(api.dataset()["id"])
        path = f"/jobs/{job['id']}/events"
        threading.Timer(0.5, lambda: finish(database, job["id"], a_model())).start()
        text = api.get(path).text
        first, last = re.findall("^id: (.*)$", text, re.M)
        for seen in ("", first, "x" * 1000):
            again = api.get(path, headers={"Last-Event-ID": seen})
            assert [each["state"] for each in events_of(again.text)] == ["succeeded"]
        over = api.get(path, headers={"Last-Event-ID": last})
        assert (over.status_code, over.content) == (204, b"")
        refused(api.get(f"/jobs/{unknown('job')}/events", headers={"Last-Event-ID": last}), 404, "not_found")

    def test_end_with_the_key_that_asked(self, api: Api) -> None:
        job = api.job(api.dataset()["id"])
        made = api.made("/keys", {"name": "k", "scopes": ["jobs"]})
        watcher = Api(api.http, api.database, made["secret"])
        threading.Timer(0.5, lambda: api.request("DELETE", f"/keys/{made['id']}")).start()
        began = time.monotonic()
        stream = watcher.get(f"/jobs/{job['id']}/events").text
        assert events_of(stream) == [job]
        assert time.monotonic() - began < HEARTBEAT_SECONDS - 1  # a stream says so far less often that it is there

    def test_end_with_the_life_of_the_key_that_asked_and_long_polls_too(self, api: Api, database: Database) -> None:
        job = api.job(api.dataset()["id"])
        secrets = []
        for _ in range(2):
            ends = database.clock() + 2_000_000
            with database.transaction() as session:
                caller = tenant.authenticate(session, tenant.hash_secret(api.secret), now=database.clock())
                assert caller is not None
                _, secret = tenant.create_key(
                    session, caller.tenant_id, name="k", scopes=[Scope.JOBS], expires_at=ends, now=database.clock()
                )
            secrets.append(secret)
        polling = threading.Thread(
            target=lambda: answers.append(
                Api(api.http, database, secrets[0]).get(f"/jobs/{job['id']}", params={"wait": 50})
            )
        )
        answers: list[httpx.Response] = []
        polling.start()
        assert events_of(Api(api.http, database, secrets[1]).get(f"/jobs/{job['id']}/events").text) == [job]
        polling.join(100)
        refused(answers[0], 401, "unauthenticated")

    def test_say_now_and_then_that_they_are_there(
        self, api: Api, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(events, "HEARTBEAT_SECONDS", 0.1)
        job = api.job(api.dataset()["id"])
        threading.Timer(1.0, lambda: finish(database, job["id"], a_model())).start()
        assert api.get(f"/jobs/{job['id']}/events").text.count(": still there\n\n") >= 2

    def test_outlast_a_database_that_is_away_for_a_moment(
        self, api: Api, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        looks = []
        real = Watches._read

        def read(self: Watches, job_id: str) -> Seen | None:
            looks.append(time.monotonic())
            if 2 <= len(looks) <= 3:
                raise OperationalError("s", {}, Exception())
            if len(looks) == 5:
                finish(database, job_id, a_model())
            return real(self, job_id)

        monkeypatch.setattr(Watches, "_read", read)
        job = api.job(api.dataset()["id"])
        assert events_of(api.get(f"/jobs/{job['id']}/events").text)[-1]["state"] == "succeeded"
        assert len(looks) >= 5


class TestResults:
    def test_are_not_there_before_the_job_is_over(self, api: Api) -> None:
        job = api.job(api.dataset()["id"])
        for path in ("result", "labels", "plot.svg", "plot.png"):
            assert "yet" in refused(api.get(f"/jobs/{job['id']}/{path}"), 409, "job_not_finished")["detail"]
        refused(api.post(f"/jobs/{job['id']}/assign", {"points": [[0, 0]]}), 409, "job_not_finished")
        refused(api.get(f"/jobs/{unknown('job')}/result"), 404, "not_found")

    def test_hold_the_model_as_the_worker_left_it(self, api: Api, database: Database) -> None:
        made = api.dataset()
        opened = api.round(made["id"])
        job = api.job(made["id"])
        used = [{"id": opened["id"], "index": 0, "n_reports": 12, "epsilon_nano": 999_999_999}]
        finish(database, job["id"], a_model(), used)
        result = api.get(f"/jobs/{job['id']}/result").json()
        assert result["model"] == a_model().to_wire()
        assert model_from_wire(result["model"]).n_clusters == 2
        assert (result["job_id"], result["dataset_id"], result["epsilon"]) == (job["id"], made["id"], 1.0)
        assert result["rounds"] == [{"id": opened["id"], "index": 0, "n_reports": 12, "epsilon": 0.999999999}]
        assert result["algorithm"] == told(UNIFORM)
        assert result["software_version"] == "0.1.0"

    def test_outlive_their_dataset(self, api: Api, database: Database) -> None:
        made = api.dataset()
        job = api.job(made["id"])
        finish(database, job["id"], a_model())
        api.request("DELETE", f"/datasets/{made['id']}")
        assert api.get(f"/jobs/{job['id']}/result").status_code == 200

    def test_show_their_label_map_where_they_have_one(self, api: Api, database: Database) -> None:
        made = api.dataset()
        mapped, centred = api.job(made["id"]), api.job(made["id"])
        finish(database, mapped["id"], a_model())
        finish(database, centred["id"], a_model(labels=False))
        assert api.get(f"/jobs/{mapped['id']}/labels").json() == {
            "type": "cells",
            "grid_shape": [2, 2],
            "labels": [0, 0, 1, 1],
        }
        refused(api.get(f"/jobs/{centred['id']}/labels"), 409, "conflict")

    def test_label_points_in_the_features_units(self, api: Api, database: Database) -> None:
        made = api.dataset()
        for labels in (True, False):
            job = api.job(made["id"])
            finish(database, job["id"], a_model(labels=labels))
            points = np.array([[0.1, -0.9], [0.9, 0.9], [0.4, 0.0], [7.0, 0.0]])
            answer = api.post(f"/jobs/{job['id']}/assign", {"points": points.tolist()})
            assert (
                answer.json() == {"labels": a_model(labels=labels).assign(points).tolist()} == {"labels": [0, 1, 0, 1]}
            )
            assert api.made(f"/jobs/{job['id']}/assign", {"points": []}) == {"labels": []}

    def test_label_no_points_of_another_shape(self, api: Api, database: Database) -> None:
        job = api.job(api.dataset()["id"])
        finish(database, job["id"], a_model())
        for points in ([[1]], [[1, 2], [1]], [[1, 2, 3]], [1, 2], [[None, 1]]):
            refused(api.post(f"/jobs/{job['id']}/assign", {"points": points}), 422, "validation_failed")

    def test_come_as_a_picture_that_stays_the_same(self, api: Api, database: Database) -> None:
        job = api.job(api.dataset()["id"])
        finish(database, job["id"], a_model())
        first, second = (api.get(f"/jobs/{job['id']}/plot.svg") for _ in range(2))
        assert first.headers["content-type"].startswith("image/svg+xml")
        assert "<svg" in first.text
        assert "script" not in first.headers["content-security-policy"]
        assert first.content == second.content
        assert "ε = 1 per person" in first.text

    def test_come_as_pixels_that_stay_the_same(self, api: Api, database: Database) -> None:
        job = api.job(api.dataset()["id"])
        finish(database, job["id"], a_model())
        first, second = (api.get(f"/jobs/{job['id']}/plot.png") for _ in range(2))
        assert first.headers["content-type"] == "image/png"
        assert first.headers["content-security-policy"] == "default-src 'none'"
        image = Image.open(io.BytesIO(first.content))
        assert (image.format, image.width) == ("PNG", 1200)
        assert len(image.convert("RGB").getcolors(1 << 24)) > 100  # something is drawn
        assert first.content == second.content
