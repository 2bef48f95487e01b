"""Jobs and results over HTTP, without a worker: the tests make its changes."""

import io
import json
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest
import redis
from PIL import Image
from sqlalchemy.exc import OperationalError

from models.collection import rounds
from models.database.engine import Database
from models.database.types import SECOND
from models.jobs import claims, lifecycle
from models.tables.datasets import Dataset
from models.tables.jobs import Job
from models.tables.rounds import CollectionTarget
from runtime.job_signal import PipeJobSignal, PollingJobSignal, RedisJobSignal
from service.live import event_stream, job_watcher
from service.live.event_stream import HEARTBEAT_SECONDS
from service.live.job_watcher import MAX_WATCHERS, JobSnapshot, JobWatchers
from service.schemas.jobs import Job as JobSchema
from sfumato import mechanisms
from sfumato.model.cluster_model import model_from_wire
from sfumato.specs import GridEncoding, RoundSpec
from tests.service.api import (
    SQLITE_KIND_ONLY,
    SQLITE_ONLY,
    UNIFORM,
    Api,
    a_model,
    claim_job,
    finish,
    refused,
    show_algorithm,
    unknown,
)


def open_round(database: Database, job_id: str) -> str:
    """Open a round as the worker of the job does."""
    claim, now = claim_job(database, job_id), database.clock()
    with database.transaction() as session:
        job = claims.load_claimed(session, claim)
        dataset = session.get_one(Dataset, job.dataset_id)
        spec = RoundSpec(dataset.features, GridEncoding((2, 2)), mechanisms.design("grr", 4, 1_000_000_000))
        target = CollectionTarget(1000, 1, 60)
        opened = rounds.open_for_job(session, dataset, spec, target, job_id=job_id, actor=job.created_by, now=now)
        lifecycle.wait_for_reports(session, claim, now=now)
    return opened.id


class TestSubmitting:
    def test_reserves_the_cost_and_queues_the_job(self, api: Api) -> None:
        dataset_id = api.dataset()["id"]
        algorithm = UNIFORM | {"clusters": 3}
        response = api.post("/jobs", {"dataset_id": dataset_id, "algorithm": algorithm, "target_reports": 500})
        job = response.json()
        assert response.status_code == 202
        assert response.headers["location"] == f"/v1/jobs/{job['id']}"
        assert int(response.headers["retry-after"]) >= 1
        assert job["algorithm"] == show_algorithm(UNIFORM | {"clusters": 3})
        assert (job["state"], job["epsilon"], job["target_reports"]) == ("queued", 1.0, 500)
        assert job["progress"] == {"rounds_opened": 0, "open_round_id": None, "n_received": 0, "target_reports": 500}
        assert api.get(f"/jobs/{job['id']}").json() == job
        assert api.budget(dataset_id)["reserved_nano"] == 1_000_000_000

    def test_notifies_workers_after_the_commit(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        states: list[str] = []

        def notify(_self: object, job_id: str) -> None:
            with api.database.reading() as session:
                states.append(session.get_one(Job, job_id).state)

        for kind in (PipeJobSignal, PollingJobSignal, RedisJobSignal):
            monkeypatch.setattr(kind, "notify", notify)
        api.job(api.dataset()["id"])
        assert states == ["queued"]

    @SQLITE_ONLY
    def test_notifies_workers_through_redis(self, over: Any, database: Database, redis_url: str) -> None:
        api: Api = over(database, redis_url=redis_url)
        job = api.job(api.dataset()["id"])
        with redis.Redis.from_url(redis_url, decode_responses=True) as client:
            assert client.lrange("sfumato:job-signal", 0, -1) == [job["id"]]
        api = over(database, redis_url="redis://127.0.0.1:1/0")  # an unavailable server
        assert api.job(api.dataset()["id"])["state"] == "queued"

    def test_over_earlier_rounds_costs_nothing(self, api: Api) -> None:
        dataset_id = api.dataset()["id"]
        opened, foreign = api.round(dataset_id, epsilon=1), api.round(api.dataset()["id"])
        body = {"dataset_id": dataset_id, "algorithm": UNIFORM, "round_ids": [opened["id"]]}
        assert f"round {opened['id']} is still open" in refused(api.post("/jobs", body), 409, "conflict")["detail"]
        for _ in range(3):
            api.report(opened["id"])
        for each in (opened, foreign):
            api.made(f"/rounds/{each['id']}/close?allow_empty=true", None)
        job = api.made("/jobs", body)
        assert job["used"] == {"n_rounds": 1, "n_reports": 3, "epsilon": 1}
        assert [each["used"] for each in api.get(f"/jobs?dataset_id={dataset_id}").json()["items"]] == [job["used"]]
        assert api.get(f"/jobs/{job['id']}").json()["used"] == job["used"]
        assert (job["round_ids"], job["epsilon"], job["target_reports"]) == ([opened["id"]], 0, None)
        assert api.budget(dataset_id)["reserved_nano"] == 0
        refused(api.post("/jobs", body | {"algorithm": UNIFORM | {"epsilon": 0.5}}), 409, "conflict")  # costs more
        unread = {"target_reports": 9, "min_reports": 9, "collect_seconds": 9, "min_batch": 9, "honest_share": 0.5}
        problem = refused(api.post("/jobs", body | unread), 422, "validation_failed")
        assert [each["pointer"] for each in problem["errors"]] == [f"/{name}" for name in unread]
        for missing in (unknown("rnd"), foreign["id"]):
            refused(api.post("/jobs", body | {"round_ids": [missing]}), 404, "not_found")

    @SQLITE_KIND_ONLY
    def test_above_the_limit_of_a_tenant_is_refused(self, started: Any) -> None:
        api: Api = started(max_active_jobs=1)
        dataset_id = api.dataset()["id"]
        job = api.job(dataset_id)
        body = {"dataset_id": dataset_id, "algorithm": UNIFORM, "target_reports": 10}
        refused(api.post("/jobs", body), 422, "validation_failed")
        api.made(f"/jobs/{job['id']}/cancel", None)
        assert api.job(dataset_id)["state"] == "queued"


class TestProgress:
    def test_shows_the_open_round(self, api: Api, database: Database) -> None:
        job = api.job(api.dataset()["id"])
        round_id = open_round(database, job["id"])
        assert api.report(round_id).status_code == 202
        current = api.get(f"/jobs/{job['id']}").json()
        assert current["state"] == "collecting"
        progress = {"rounds_opened": 1, "open_round_id": round_id, "n_received": 1, "target_reports": 1000}
        assert current["progress"] == progress
        assert api.get("/jobs").json()["items"] == [current]
        opened = api.get(f"/rounds/{round_id}").json()
        assert opened["job_id"] == opened["collection_id"] == job["id"]

    def test_can_be_listed_for_one_dataset(self, api: Api) -> None:
        first, second = api.dataset()["id"], api.dataset()["id"]
        ids = [api.job(first)["id"], api.job(first)["id"]]
        api.job(second)
        page = api.get("/jobs", params={"dataset_id": first, "limit": 1}).json()
        rest = api.get("/jobs", params={"dataset_id": first, "cursor": page["next_cursor"]}).json()
        assert [job["id"] for job in page["items"] + rest["items"]] == ids[::-1]
        assert len(api.get("/jobs").json()["items"]) == 3


class TestCancel:
    def test_releases_the_reservation_once(self, api: Api) -> None:
        job = api.job(api.dataset()["id"])
        canceled = api.made(f"/jobs/{job['id']}/cancel", None)
        assert canceled["state"] == "canceled"
        assert canceled["finished_at"] is not None
        assert api.made(f"/jobs/{job['id']}/cancel", None) == canceled
        assert api.budget(job["dataset_id"])["reserved_nano"] == 0

    def test_closes_the_open_round(self, api: Api, database: Database) -> None:
        job = api.job(api.dataset()["id"])
        round_id = open_round(database, job["id"])
        canceled = api.made(f"/jobs/{job['id']}/cancel", None)
        assert canceled["progress"]["open_round_id"] is None
        refused(api.report(round_id), 409, "round_closed")


class TestLongPoll:
    def test_returns_when_the_job_ends(self, api: Api, database: Database) -> None:
        job = api.job(api.dataset()["id"])
        finished_at: list[float] = []

        def end() -> None:
            finish(database, job["id"], a_model())
            finished_at.append(time.monotonic())

        ending = threading.Timer(0.3, end)
        ending.start()
        current = api.get(f"/jobs/{job['id']}", params={"wait": 50}).json()
        returned_at = time.monotonic()
        ending.join()
        assert current["state"] == "succeeded"
        assert (current["verdict"], api.get("/jobs").json()["items"][0]["verdict"]) == ("uncertain", "uncertain")
        assert returned_at - finished_at[0] < 25  # less than the timeout

    @SQLITE_ONLY
    def test_returns_at_its_timeout(self, api: Api) -> None:
        job = api.job(api.dataset()["id"])
        start = time.monotonic()
        assert api.get(f"/jobs/{job['id']}", params={"wait": 0.4}).json() == job
        assert 0.4 <= time.monotonic() - start < 30

    @SQLITE_ONLY
    def test_above_the_limit_or_of_an_unknown_job_is_refused_at_once(
        self, api: Api, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        refused(api.get(f"/jobs/{unknown('job')}", params={"wait": 20}), 404, "not_found")
        refused(api.get(f"/jobs/{unknown('job')}/events"), 404, "not_found")
        path = f"/jobs/{api.job(api.dataset()['id'])['id']}"
        monkeypatch.setattr("service.live.job_watcher.MAX_WATCHERS", 0)
        assert MAX_WATCHERS > 0
        response = api.get(path, params={"wait": 1})
        refused(response, 429, "rate_limited")
        assert int(response.headers["retry-after"]) >= 1
        refused(api.get(f"{path}/events"), 429, "rate_limited")
        assert api.get(path).status_code == 200


def after_reads(monkeypatch: pytest.MonkeyPatch, n_reads: int, act: Callable[[], object]) -> None:
    """Act once, before the watchers read a job again after this number of reads."""
    real, reads = JobWatchers._read, []

    def read(self: JobWatchers, job_id: str) -> JobSnapshot | None:
        reads.append(job_id)
        if len(reads) == n_reads + 1:
            act()
        return real(self, job_id)

    monkeypatch.setattr(JobWatchers, "_read", read)


def parse_events(stream: str) -> list[dict[str, Any]]:
    """Return the jobs of an event stream, which starts with the reconnection time."""
    first, *blocks = [block for block in stream.split("\n\n") if block and not block.startswith(":")]
    assert re.fullmatch(r"retry: \d+", first)
    found = [re.fullmatch(r"id: ([0-9a-f]{16})\nevent: job\ndata: (.*)", block) for block in blocks]
    assert all(found)
    assert len({each[1] for each in found if each}) == len(blocks)
    return [json.loads(each[2]) for each in found if each]


@SQLITE_ONLY
class TestEvents:
    def test_are_sent_at_every_change_until_the_job_ends(
        self, api: Api, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A short outage of the database delays the events."""
        monkeypatch.setattr(job_watcher, "SLOWEST_POLL_SECONDS", 0.1)
        job = api.job(api.dataset()["id"])
        acts = {3: lambda: open_round(database, job["id"]), 6: lambda: finish(database, job["id"], a_model())}
        real, reads = JobWatchers._read, []

        def read(self: JobWatchers, job_id: str) -> JobSnapshot | None:
            reads.append(job_id)
            if len(reads) in (4, 5):
                raise OperationalError("s", {}, Exception())
            acts.get(len(reads), lambda: None)()
            return real(self, job_id)

        monkeypatch.setattr(JobWatchers, "_read", read)
        response = api.get(f"/jobs/{job['id']}/events")
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-store"
        events = parse_events(response.text)
        assert events[0] == job
        assert [each["state"] for each in events] == ["queued", "collecting", "succeeded"]
        assert len(reads) == 6
        assert all(JobSchema.model_validate(each) for each in events)

    def test_resume_after_the_last_event_id_and_end_with_the_job(
        self, api: Api, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job = api.job(api.dataset()["id"])
        path = f"/jobs/{job['id']}/events"
        after_reads(monkeypatch, 1, lambda: finish(database, job["id"], a_model()))
        first, last = re.findall("^id: (.*)$", api.get(path).text, re.M)
        for event_id in ("", first, "x" * 1000):
            again = api.get(path, headers={"Last-Event-ID": event_id})
            assert [each["state"] for each in parse_events(again.text)] == ["succeeded"]
        ended = api.get(path, headers={"Last-Event-ID": last})
        assert (ended.status_code, ended.content) == (204, b"")
        refused(api.get(f"/jobs/{unknown('job')}/events", headers={"Last-Event-ID": last}), 404, "not_found")

    def test_end_when_the_key_is_revoked(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        job = api.job(api.dataset()["id"])
        key = api.made("/keys", {"name": "k", "scopes": ["jobs"]})
        watcher = Api(api.http, api.database, key["secret"])
        after_reads(monkeypatch, 1, lambda: api.delete(f"/keys/{key['id']}"))
        start = time.monotonic()
        assert parse_events(watcher.get(f"/jobs/{job['id']}/events").text) == [job]
        assert time.monotonic() - start < HEARTBEAT_SECONDS - 1  # less than the interval of heartbeats

    def test_and_long_polls_end_when_the_key_expires(self, api: Api, database: Database) -> None:
        job = api.job(api.dataset()["id"])
        watcher, poller = (api.key("jobs", expires_at=database.clock() + 2 * SECOND) for _ in range(2))
        responses: list[httpx.Response] = []
        polling = threading.Thread(
            target=lambda: responses.append(poller.get(f"/jobs/{job['id']}", params={"wait": 50}))
        )
        polling.start()
        assert parse_events(watcher.get(f"/jobs/{job['id']}/events").text) == [job]
        polling.join(100)
        refused(responses[0], 401, "unauthenticated")

    def test_include_heartbeats(self, api: Api, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(event_stream, "HEARTBEAT_SECONDS", 0.1)
        job = api.job(api.dataset()["id"])

        def end_later() -> None:
            time.sleep(1)  # heartbeats do not wait for the database
            finish(database, job["id"], a_model())

        after_reads(monkeypatch, 1, end_later)
        assert api.get(f"/jobs/{job['id']}/events").text.count(": heartbeat\n\n") >= 2


class TestResults:
    def test_do_not_exist_before_the_job_ends(self, api: Api) -> None:
        path = f"/jobs/{api.job(api.dataset()['id'])['id']}"
        for name in ("result", "labels", "plot.svg", "plot.png"):
            assert "yet" in refused(api.get(f"{path}/{name}"), 409, "job_not_finished")["detail"]
        refused(api.post(f"{path}/assign", {"points": [[0, 0]]}), 409, "job_not_finished")
        refused(api.get(f"/jobs/{unknown('job')}/result"), 404, "not_found")

    def test_contain_the_model_that_the_worker_stored_and_outlive_the_dataset(
        self, api: Api, database: Database
    ) -> None:
        dataset_id = api.dataset()["id"]
        opened, job = api.round(dataset_id), api.job(dataset_id)
        used = [{"id": opened["id"], "index": 0, "n_reports": 12, "epsilon_nano": 999_999_999}]
        finish(database, job["id"], a_model(), used)
        result = api.get(f"/jobs/{job['id']}/result").json()
        assert result["model"] == a_model().to_wire()
        assert model_from_wire(result["model"]).n_clusters == 2
        assert (result["job_id"], result["dataset_id"], result["epsilon"]) == (job["id"], dataset_id, 1.0)
        assert result["rounds"] == [{"id": opened["id"], "index": 0, "n_reports": 12, "epsilon": 0.999999999}]
        assert result["algorithm"] == show_algorithm(UNIFORM)
        assert result["software_version"] == "0.1.0"
        assert api.delete(f"/datasets/{dataset_id}").status_code == 204
        assert api.get(f"/jobs/{job['id']}/result").json() == result

    @SQLITE_ONLY
    @pytest.mark.parametrize("labels", [True, False])
    def test_assign_points_in_the_units_of_the_features_and_show_a_label_map(self, api: Api, labels: bool) -> None:
        path = f"/jobs/{api.finished_job(a_model(labels=labels))}"
        points = [[0.1, -0.9], [0.9, 0.9], [0.4, 0.0], [7.0, 0.0]]
        assert a_model(labels=labels).assign(np.array(points)).tolist() == [0, 1, 0, 1]
        assert api.made(f"{path}/assign", {"points": points}) == {"labels": [0, 1, 0, 1], "names": []}
        assert api.made(f"{path}/assign", {"points": []}) == {"labels": [], "names": []}
        for bad in ([[1]], [[1, 2], [1]], [[1, 2, 3]], [1, 2], [[None, 1]]):
            refused(api.post(f"{path}/assign", {"points": bad}), 422, "validation_failed")
        if labels:
            document = {"type": "cells", "grid_shape": [2, 2], "labels": [0, 0, 1, 1], "names": []}
            assert api.get(f"{path}/labels").json() == document
        else:
            refused(api.get(f"{path}/labels"), 409, "conflict")

    @SQLITE_ONLY
    def test_have_constant_plots(self, api: Api) -> None:
        path = f"/jobs/{api.finished_job()}"
        vector, image = api.get(f"{path}/plot.svg"), api.get(f"{path}/plot.png")
        assert vector.headers["content-type"].startswith("image/svg+xml")
        assert "<svg" in vector.text
        assert "script" not in vector.headers["content-security-policy"]
        assert "ε = 1 per installation" in vector.text
        assert api.get(f"{path}/plot.svg").content == vector.content
        assert image.headers["content-type"] == "image/png"
        assert image.headers["content-security-policy"] == "default-src 'none'"
        picture = Image.open(io.BytesIO(image.content))
        assert (picture.format, picture.width) == ("PNG", 1200)
        assert len(picture.convert("RGB").getcolors(1 << 24)) > 100  # the plot is not blank
        assert api.get(f"{path}/plot.png").content == image.content
