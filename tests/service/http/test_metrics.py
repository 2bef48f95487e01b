"""Metrics add up, reveal nothing private and are documented in a table."""

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

from devservers.inprocess import InProcess
from devservers.loopback import NO_TLS
from models.database.engine import Database
from models.database.types import SECOND
from models.jobs import claims
from models.jobs.claims import Claim
from models.tables.jobs import Job, JobState
from runtime.job_signal import PollingJobSignal
from runtime.metrics_server import start_metrics_server
from runtime.settings import Settings
from service.app import create_app
from service.http import metrics
from service.http.metrics import NO_ROUTE, TIMED, GatewayMetrics
from tests.service.api import Api, packed, stranger
from workers.metrics import DIED, ClaimMetrics, WorkerMetrics

ROOT = Path(__file__).parents[3]


@pytest.fixture
def gateway(database: Database, tmp_path: Path) -> Iterator[tuple[Api, CollectorRegistry]]:
    """Return a new gateway and its metrics registry."""
    app = create_app(Settings(home=tmp_path), database)
    with InProcess(app) as running:
        yield stranger(running.client, database), app.state.context.metrics.registry


def requests(registry: CollectorRegistry) -> dict[tuple[str, str, str], float]:
    """Return the counts by route, method and status."""
    return {
        (sample.labels["route"], sample.labels["method"], sample.labels["status"]): sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "sfumato_requests_total"
    }


def shown(registry: CollectorRegistry) -> set[tuple[str, str, tuple[str, ...]]]:
    """Return the name, type and labels of all registered metrics."""
    found = set()
    for collector in set(registry._collector_to_names):
        for family in collector.describe():
            suffix = "_total" if family.type == "counter" else ""
            labels = getattr(collector, "_labelnames", None) or getattr(family, "_labelnames", ())
            found.add((family.name + suffix, family.type, tuple(labels)))
    return found


class TestDocumentation:
    def test_lists_the_metrics_of_gateways_and_workers(self, gateway: tuple[Api, CollectorRegistry]) -> None:
        api, registry = gateway
        api.get("/datasets")
        text = (ROOT / "docs" / "operations.md").read_text()
        rows = re.findall(r"^\| `(sfumato_\w+)` \| (\w+) \|([^|]*)\| (\w+) \| \S", text, re.MULTILINE)
        documented = {(name, kind, tuple(re.findall(r"`(\w+)`", labels)), of) for name, kind, labels, of in rows}
        ours, theirs = shown(registry), shown(WorkerMetrics().registry)
        assert len(rows) == len(documented) >= 16
        assert {row[:3] for row in documented if row[3] in ("gateway", "both")} == ours
        assert {row[:3] for row in documented if row[3] in ("worker", "both")} == theirs


class TestRequests:
    def test_are_counted_by_route_and_not_by_path(self, gateway: tuple[Api, CollectorRegistry]) -> None:
        api, registry = gateway
        dataset_id = api.dataset()["id"]
        round_id = api.round(dataset_id)["id"]
        api.report(round_id)
        api.get(f"/datasets/{dataset_id}")
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
        assert not any(private in text for private in ("private-4711", dataset_id, round_id))

    def test_are_timed_on_the_allowed_routes_only(self, gateway: tuple[Api, CollectorRegistry]) -> None:
        """The duration of other requests depends on private numbers of records."""
        api, registry = gateway
        paths = api.http.get("/openapi.json").json()["paths"]
        routes = {(method.upper(), path) for path, methods in paths.items() for method in methods}
        private = {(method, route) for method, route in routes if re.search("/records$|/events$", route)}
        private |= {("DELETE", "/v1/datasets/{dataset_id}"), ("GET", "/v1/jobs/{job_id}")}
        assert len(private) == 7
        assert private <= routes >= TIMED
        assert private.isdisjoint(TIMED)
        assert len(TIMED) > 5
        api.get(f"/datasets/{api.dataset(trust='central')['id']}/records")
        timed = {
            sample.labels["route"]
            for family in registry.collect()
            for sample in family.samples
            if sample.name == "sfumato_request_seconds_count"
        }
        assert ("/v1/datasets/{dataset_id}/records", "GET", "200") in requests(registry)
        assert timed == {route for _, route in TIMED}


class TestReports:
    def test_are_summed_over_all_rounds(self, gateway: tuple[Api, CollectorRegistry]) -> None:
        api, registry = gateway
        dataset_id, headers = api.dataset()["id"], {"content-type": "application/octet-stream"}
        for n_reports in (30, 12):
            round_id = api.round(dataset_id)["id"]
            api.post(f"/rounds/{round_id}/reports", content=packed(n_reports), headers=headers)
        api.post(f"/rounds/{round_id}/close")
        api.report(round_id)  # refused
        assert registry.get_sample_value("sfumato_reports_total") == 42
        assert registry.get_sample_value("sfumato_commit_requests_sum") in (2, 3)
        assert registry.get_sample_value("sfumato_commit_seconds_count") in (2, 3)
        assert registry.get_sample_value("sfumato_pending_bytes") == 0


class TestQueueDepth:
    def test_equals_the_count_in_the_database(self, gateway: tuple[Api, CollectorRegistry]) -> None:
        api, registry = gateway
        database = api.database

        def depth() -> tuple[int, int]:
            with database.reading() as session:
                return claims.queue_depth(session, now=database.clock())

        before = depth()
        made = api.dataset(epsilon=32)
        submitted = [api.job(made["id"])["id"] for _ in range(3)]
        assert depth() == (before[0] + 3, before[1])
        with database.transaction() as session:
            for lease_until in (database.clock() + 3600 * SECOND, database.clock() - SECOND):
                job = session.get_one(Job, submitted.pop())
                job.state, job.lease_until = JobState.RUNNING.value, lease_until
        assert depth() == (before[0] + 2, before[1] + 1)  # a job with an expired lease waits again
        shown = {state: registry.get_sample_value("sfumato_jobs", {"state": state}) for state in ("waiting", "running")}
        assert tuple(shown.values()) == depth()

    def test_is_read_every_five_seconds_and_absent_without_a_database(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now, times = [100.0], []
        monkeypatch.setattr(metrics.time, "monotonic", lambda: now[0])

        def away(*_: object) -> None:
            times.append(now[0])
            raise OperationalError("", {}, Exception())

        counted = GatewayMetrics()
        counted.add_queue_gauges(SimpleNamespace(reading=away))  # type: ignore[arg-type]
        for _ in range(20):
            text = generate_latest(counted.registry).decode()
            assert "sfumato_jobs{" not in text
            now[0] += 1
        assert times == [100, 100, 105, 105, 110, 110, 115, 115]  # jobs and deliveries


class TestMetricsServer:
    def test_serves_the_registry_until_it_stops(self) -> None:
        registry = GatewayMetrics().registry
        with capture_logs() as lines:
            close = start_metrics_server(registry, "127.0.0.1", 0)
        port = lines[0]["port"]
        answer = httpx.get(f"http://127.0.0.1:{port}/metrics", verify=NO_TLS)
        assert answer.headers["content-type"].startswith("text/plain")
        assert {family.name for family in text_string_to_metric_families(answer.text)} >= {"sfumato_reports"}
        assert not re.search("_created|python_|process_", answer.text)
        close()
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"http://127.0.0.1:{port}/metrics", verify=NO_TLS)

    def test_on_an_occupied_port_stops_nothing(self) -> None:
        with closing(socket.create_server(("127.0.0.1", 0))) as taken, capture_logs() as lines:
            start_metrics_server(GatewayMetrics().registry, "127.0.0.1", taken.getsockname()[1])()
        assert [line["event"] for line in lines] == ["metrics_server_failed"]

    def test_is_off_by_default(self, gateway: tuple[Api, CollectorRegistry]) -> None:
        before = threading.active_count()
        start_metrics_server(CollectorRegistry(), "127.0.0.1", None)()
        assert threading.active_count() == before
        assert gateway[0].http.get("/metrics").status_code == 404
        assert Settings().metrics_port is None

    def test_of_a_gateway_runs_as_long_as_the_gateway(self, started: Callable[..., Api]) -> None:
        with capture_logs() as lines:
            api = started(metrics_port=0)
        (port,) = [line["port"] for line in lines if line["event"] == "metrics_server_started"]
        api.get("/datasets")
        text = httpx.get(f"http://127.0.0.1:{port}/metrics", verify=NO_TLS).text
        assert 'sfumato_requests_total{method="GET",route="/v1/datasets",status="200"} 1.0' in text
        assert 'sfumato_jobs{state="waiting"} 0.0' in text
        assert "sfumato_database_connections" in text


class TestWorkerMetrics:
    def start(
        self, metrics: WorkerMetrics, target_reports: int, *, fence: int = 1, idle_since: int | None = None
    ) -> ClaimMetrics:
        """Start a claim 2 s after the submission of its job."""
        job = Job(
            id="job_x", algorithm={"type": "uniform_grid"}, created_at=0, target_reports=target_reports, round_ids=[]
        )
        return metrics.start_claim(job, Claim("job_x", fence), now=2 * SECOND, idle_since=idle_since)

    def value(self, metrics: WorkerMetrics, name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(f"sfumato_{name}", labels)

    def test_count_ended_claims_and_time_those_over_reports_only(self) -> None:
        metrics = WorkerMetrics(PollingJobSignal(1))
        for target_reports in (1000, 0):
            self.start(metrics, target_reports).end("succeeded")
            assert self.value(metrics, "claim_seconds_count") == 1
        assert self.value(metrics, "claims_ended_total", outcome="succeeded") == 2
        self.start(metrics, 0).end_with_process(DIED)
        assert self.value(metrics, "claims_ended_total", outcome="died") == 1
        assert self.value(metrics, "job_processes_ended_total", reason="died") == 1
        assert self.value(metrics, "redis_unavailable", part="job_signal") == 0

    def test_measure_claim_latency_only_if_the_worker_was_idle(self) -> None:
        for fence, idle_since, n_measured in ((1, -5 * SECOND, 1), (1, None, 0), (1, SECOND, 0), (2, -5 * SECOND, 0)):
            metrics = WorkerMetrics()
            self.start(metrics, 0, fence=fence, idle_since=idle_since)
            assert self.value(metrics, "claim_latency_seconds_count") == n_measured
            assert self.value(metrics, "claim_latency_seconds_sum") == 2 * n_measured
