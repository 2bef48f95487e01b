"""What operators see: sums that add up, nothing private, and a table of all of it."""

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy.exc import OperationalError
from structlog.testing import capture_logs

from models import job as jobs
from models.db import SECOND, Database
from models.doorbell import PollingDoorbell
from models.exposition import expose
from models.job import Claim
from models.settings import Settings
from service import metrics
from service.app import create_app
from service.metrics import NO_ROUTE, TIMED, GatewayMetrics
from tests.service.api import Api, packed, stranger
from tests.service.inprocess import InProcess
from workers.metrics import DIED, WorkerMetrics

ROOT = Path(__file__).parents[2]


@pytest.fixture
def gateway(database: Database, tmp_path: Path) -> Iterator[tuple[Api, CollectorRegistry]]:
    """A gateway of the test's own on either database, and what it counts."""
    app = create_app(Settings(home=tmp_path), database)
    with InProcess(app) as running:
        yield stranger(running.client, database), app.state.services.metrics.registry


def requests(registry: CollectorRegistry) -> dict[tuple[str, str, str], float]:
    """Counts by route, method and status."""
    return {
        (sample.labels["route"], sample.labels["method"], sample.labels["status"]): sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "sfumato_requests_total"
    }


def shown(registry: CollectorRegistry) -> set[tuple[str, str, tuple[str, ...]]]:
    """Name, type and labels of everything registered, used or not."""
    found = set()
    for collector in set(registry._collector_to_names):
        for family in collector.describe():
            suffix = "_total" if family.type == "counter" else ""
            labels = getattr(collector, "_labelnames", None) or getattr(family, "_labelnames", ())
            found.add((family.name + suffix, family.type, tuple(labels)))
    return found


class TestTheTable:
    def test_is_what_gateways_and_workers_show(self, gateway: tuple[Api, CollectorRegistry]) -> None:
        api, registry = gateway
        api.get("/datasets")
        text = (ROOT / "docs" / "operations.md").read_text()
        rows = re.findall(r"^\| `(sfumato_\w+)` \| (\w+) \|([^|]*)\| (\w+) \| \S", text, re.MULTILINE)
        told = {(name, kind, tuple(re.findall(r"`(\w+)`", labels)), of) for name, kind, labels, of in rows}
        ours, theirs = shown(registry), shown(WorkerMetrics().registry)
        assert len(rows) == len(told) >= 16
        assert {row[:3] for row in told if row[3] in ("gateway", "both")} == ours
        assert {row[:3] for row in told if row[3] in ("worker", "both")} == theirs


class TestRequests:
    def test_are_counted_by_route_and_never_by_path(self, gateway: tuple[Api, CollectorRegistry]) -> None:
        api, registry = gateway
        made = api.dataset()
        round_id = api.round(made["id"])["id"]
        api.report(round_id)
        api.get(f"/datasets/{made['id']}")
        api.get("/nothing/private-4711")
        api.http.request("BREW", "/v1/datasets")
        Api(api.http, api.database, "sfk_x").get("/datasets")
        api.post("/rounds/private-4711/reports", {})
        assert requests(registry) == {
            ("/v1/datasets", "POST", "201"): 1,
            ("/v1/datasets/{dataset_id}/rounds", "POST", "201"): 1,
            ("/v1/rounds/{round_id}/reports", "POST", "202"): 1,
            ("/v1/rounds/{round_id}/reports", "POST", "404"): 1,
            ("/v1/datasets/{dataset_id}", "GET", "200"): 1,
            (NO_ROUTE, "GET", "404"): 1,
            (NO_ROUTE, "other", "401"): 1,
            (NO_ROUTE, "GET", "401"): 1,
        }
        text = generate_latest(registry).decode()
        assert "4711" not in text
        assert made["id"] not in text
        assert round_id not in text

    def test_are_timed_where_that_tells_nothing(self, document_routes: set[tuple[str, str]]) -> None:
        assert document_routes >= TIMED
        telling = {(method, route) for method, route in document_routes if re.search("/records$|/events$", route)}
        telling |= {("DELETE", "/v1/datasets/{dataset_id}"), ("GET", "/v1/jobs/{job_id}")}
        assert len(telling) == 6
        assert telling <= document_routes
        assert telling.isdisjoint(TIMED)

    def test_of_records_leave_no_time(self, gateway: tuple[Api, CollectorRegistry]) -> None:
        api, registry = gateway
        made = api.dataset(trust="central")
        api.get(f"/datasets/{made['id']}/records")
        timed = {
            sample.labels["route"]
            for family in registry.collect()
            for sample in family.samples
            if sample.name == "sfumato_request_seconds_count"
        }
        assert ("/v1/datasets/{dataset_id}/records", "GET", "200") in requests(registry)
        assert timed == {route for _, route in TIMED}


@pytest.fixture
def document_routes(tmp_path: Path) -> set[tuple[str, str]]:
    """Method and path of every operation."""
    document = create_app(Settings(home=tmp_path)).openapi()
    return {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}


class TestReports:
    def test_are_summed_over_all_rounds(self, gateway: tuple[Api, CollectorRegistry]) -> None:
        api, registry = gateway
        made = api.dataset()
        for n_reports in (30, 12):
            round_id = api.round(made["id"])["id"]
            api.post(
                f"/rounds/{round_id}/reports",
                content=packed(n_reports),
                headers={"content-type": "application/octet-stream"},
            )
        api.post(f"/rounds/{round_id}/close")
        api.report(round_id)  # refused
        assert registry.get_sample_value("sfumato_reports_total") == 42
        assert registry.get_sample_value("sfumato_commit_requests_sum") in (2, 3)
        assert registry.get_sample_value("sfumato_commit_seconds_count") in (2, 3)
        assert registry.get_sample_value("sfumato_pending_bytes") == 0


class TestTheQueue:
    def test_is_as_deep_as_sql_says(self, gateway: tuple[Api, CollectorRegistry]) -> None:
        api, registry = gateway
        database = api.database

        def depth() -> tuple[int, int]:
            with database.reading() as session:
                return jobs.queue_depth(session, now=database.clock())

        before = depth()
        made = api.dataset(epsilon=32)
        submitted = [api.job(made["id"])["id"] for _ in range(3)]
        assert depth() == (before[0] + 3, before[1])
        with database.transaction() as session:
            for lease_until in (database.clock() + 3600 * SECOND, database.clock() - SECOND):
                job = session.get_one(jobs.Job, submitted.pop())
                job.state, job.lease_until = jobs.JobState.RUNNING.value, lease_until
        assert depth() == (before[0] + 2, before[1] + 1)  # one that lapsed waits again
        shown = {state: registry.get_sample_value("sfumato_jobs", {"state": state}) for state in ("waiting", "running")}
        assert tuple(shown.values()) == depth()

    def test_is_looked_at_at_most_every_five_seconds_and_missing_while_the_database_is_away(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now, asked = [100.0], []
        monkeypatch.setattr(metrics.time, "monotonic", lambda: now[0])

        def away(*_: object) -> None:
            asked.append(now[0])
            raise OperationalError("", {}, Exception())

        counted = GatewayMetrics()
        counted.watch_queue(SimpleNamespace(reading=away))  # type: ignore[arg-type]
        for _ in range(20):
            text = generate_latest(counted.registry).decode()
            assert "sfumato_jobs{" not in text
            now[0] += 1
        assert asked == [100, 105, 110, 115]


class TestTheDoor:
    def test_shows_what_was_counted_and_closes(self) -> None:
        registry = GatewayMetrics().registry
        with capture_logs() as said:
            close = expose(registry, "127.0.0.1", 0)
        port = said[0]["port"]
        answer = httpx.get(f"http://127.0.0.1:{port}/metrics")
        assert answer.headers["content-type"].startswith("text/plain")
        assert {family.name for family in text_string_to_metric_families(answer.text)} >= {"sfumato_reports"}
        assert not re.search("_created|python_|process_", answer.text)
        close()
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"http://127.0.0.1:{port}/metrics")

    def test_that_is_taken_stops_nothing(self) -> None:
        with closing(socket.create_server(("127.0.0.1", 0))) as taken, capture_logs() as said:
            expose(GatewayMetrics().registry, "127.0.0.1", taken.getsockname()[1])()
        assert [line["event"] for line in said] == ["metrics_not_exposed"]

    def test_is_not_there_unless_asked_for(self, gateway: tuple[Api, CollectorRegistry]) -> None:
        before = threading.active_count()
        expose(CollectorRegistry(), "127.0.0.1", None)()
        assert threading.active_count() == before
        assert gateway[0].http.get("/metrics").status_code == 404
        assert Settings().metrics_port is None

    def test_of_a_gateway_is_open_as_long_as_it_runs(self, started: Callable[..., Api]) -> None:
        with capture_logs() as said:
            api = started(metrics_port=0)
        (port,) = [line["port"] for line in said if line["event"] == "metrics_exposed"]
        api.get("/datasets")
        text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
        assert 'sfumato_requests_total{method="GET",route="/v1/datasets",status="200"} 1.0' in text
        assert 'sfumato_jobs{state="waiting"} 0.0' in text
        assert "sfumato_database_connections" in text


class TestAWorker:
    def job(self, *, created_at: int, target_reports: int) -> jobs.Job:
        algorithm = {"type": "uniform_grid"}
        return jobs.Job(
            id="job_x", algorithm=algorithm, created_at=created_at, target_reports=target_reports, round_ids=[]
        )

    def value(self, counted: WorkerMetrics, name: str, **labels: str) -> float | None:
        return counted.registry.get_sample_value(f"sfumato_{name}", labels)

    def test_counts_how_claims_end_and_times_those_over_reports_alone(self) -> None:
        counted = WorkerMetrics(PollingDoorbell(1))
        for target_reports, n_timed in ((1000, 1), (0, 1)):
            job = self.job(created_at=0, target_reports=target_reports)
            counted.claimed(job, Claim("job_x", 1), now=SECOND, idle_since=None).ended("succeeded")
            assert self.value(counted, "claim_seconds_count") == n_timed
        assert self.value(counted, "claims_ended_total", outcome="succeeded") == 2
        counted.claimed(job, Claim("job_x", 1), now=SECOND, idle_since=None).child_ended(DIED)
        assert self.value(counted, "claims_ended_total", outcome="died") == 1
        assert self.value(counted, "children_ended_total", reason="died") == 1
        assert self.value(counted, "redis_away", part="doorbell") == 0

    @pytest.mark.parametrize(
        ("fence", "idle_since", "n_counted"),
        [(1, 5 * SECOND, 1), (1, None, 0), (1, 11 * SECOND, 0), (2, 5 * SECOND, 0)],
    )
    def test_tells_how_long_a_job_waited_only_where_no_other_job_was_before_it(
        self, fence: int, idle_since: int | None, n_counted: int
    ) -> None:
        counted = WorkerMetrics()
        job = self.job(created_at=10 * SECOND, target_reports=0)
        counted.claimed(job, Claim("job_x", fence), now=12 * SECOND, idle_since=idle_since)
        assert self.value(counted, "claim_latency_seconds_count") == n_counted
        assert self.value(counted, "claim_latency_seconds_sum") == 2 * n_counted
