"""Traces are off by default. A span names a route, no object or caller, and no private duration."""

from collections.abc import Callable, Iterator

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from pydantic import ValidationError
from typer.testing import CliRunner

from models.jobs.claims import Claim
from models.tables.jobs import Job
from runtime import tracing
from runtime.settings import Settings, tracing_is_installed
from service.cli.main import app as commands
from service.http.tracing import Tracing
from tests.service.api import SQLITE_KIND_ONLY, Api, refused, unknown
from workers.metrics import DIED, WorkerMetrics

Spans = Callable[[], tuple[ReadableSpan, ...]]


@pytest.fixture(autouse=True)
def _no_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*tracing.ENDPOINTS, "OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES", "OTEL_SDK_DISABLED"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spans]:
    """Enable traces and return the exported spans."""
    exporter = InMemorySpanExporter()
    monkeypatch.setattr(tracing, "_open_processor", lambda: SimpleSpanProcessor(exporter))
    yield exporter.get_finished_spans
    exporter.clear()


@SQLITE_KIND_ONLY
class TestRequest:
    @pytest.fixture
    def api(self, started: Callable[..., Api], spans: Spans) -> Api:
        """Return a client of a gateway with traces."""
        return started(tracing=True)

    def test_has_a_span_with_route_method_and_status(self, api: Api, spans: Spans) -> None:
        api.get("/jobs", params={"limit": 7})
        refused(api.get(f"/rounds/{unknown('rnd')}"), 404, "not_found")
        refused(api.http.get("/v1/jobs"), 401, "unauthenticated")
        first, second, third = spans()
        assert (first.name, first.kind, first.status.status_code) == ("GET /v1/jobs", SpanKind.SERVER, StatusCode.UNSET)
        attributes = {"http.request.method": "GET", "http.route": "/v1/jobs", "http.response.status_code": 200}
        assert dict(first.attributes or {}) == attributes
        assert (first.end_time or 0) > (first.start_time or 0)
        assert (second.attributes or {})["http.response.status_code"] == 404
        assert (third.name, (third.attributes or {}).get("http.route")) == ("GET", None)
        assert first.resource.attributes["service.name"] == "sfumato-gateway"

    def test_that_fails_has_a_span_without_the_error(
        self, api: Api, spans: Spans, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_what: object, **_more: object) -> None:
            raise RuntimeError("a private value")

        monkeypatch.setattr("service.api.routes.jobs.jobs.page", fail)
        refused(api.get("/jobs"), 500, "internal_error")
        (span,) = spans()
        assert span.status.status_code == StatusCode.ERROR
        assert not span.events
        assert "private" not in span.to_json()

    def test_has_no_id_query_key_or_client_text_in_its_span(self, api: Api, spans: Spans) -> None:
        dataset_id = api.dataset(name="clinic")["id"]
        trace_id = "4bf92f3577b34da6a3ce929d0e0e4736"
        headers = {"traceparent": f"00-{trace_id}-00f067aa0ba902b7-01", "x-request-id": "clinic"}
        api.request("BREW", f"/datasets/{dataset_id}?clinic=1", headers=headers)
        api.get(f"/datasets/{dataset_id}/budget", headers=headers)
        text = "".join(span.to_json() for span in spans())
        assert "/v1/datasets/{dataset_id}/budget" in text
        assert not any(private in text for private in (dataset_id, "clinic", "BREW", api.secret, trace_id))

    def test_of_a_device_or_a_probe_has_no_span(self, api: Api, spans: Spans) -> None:
        opened = api.round(api.dataset()["id"])
        before = len(spans())
        assert api.report(opened["id"]).status_code == 202
        assert api.post(f"/rounds/{opened['id']}/reports", {}).status_code == 422
        assert api.get(f"/datasets/{opened['dataset_id']}/round").status_code == 200
        assert api.http.get("/healthz").status_code == api.http.get("/readyz").status_code == 200
        assert len(spans()) == before

    def test_with_a_private_duration_has_a_span_of_zero_length(self, api: Api, spans: Spans) -> None:
        job = api.job(api.dataset()["id"])
        dataset, path = f"/datasets/{job['dataset_id']}", f"/jobs/{job['id']}"
        before = len(spans())
        for each in (f"{dataset}/records", path, f"{path}?wait=0.2"):
            api.get(each)
        api.delete(dataset)
        assert [(span.end_time or 0) - (span.start_time or 0) for span in spans()[before:]] == [0] * 4


class TestClaimedJob:
    def attempt(self, *, target_reports: int, idle_since: int | None) -> WorkerMetrics:
        tracer = tracing.open_tracer(Settings(tracing=True), "sfumato-worker")
        job = Job(
            id="job_1", algorithm={"type": "uniform_grid"}, round_ids=[], target_reports=target_reports, created_at=5
        )
        metrics = WorkerMetrics(tracer=tracer)
        metrics.start_claim(job, Claim("job_1", 1), now=9, idle_since=idle_since).end(DIED)
        return metrics

    def test_has_a_span_with_algorithm_and_outcome(self, spans: Spans) -> None:
        self.attempt(target_reports=10, idle_since=1)
        (span,) = spans()
        assert (span.name, span.status.status_code) == ("job attempt", StatusCode.ERROR)
        assert dict(span.attributes or {}) == {"sfumato.algorithm": "uniform_grid", "sfumato.outcome": DIED}
        assert "job_1" not in span.to_json()

    def test_over_records_has_no_span(self, spans: Spans) -> None:
        self.attempt(target_reports=0, idle_since=1)
        assert spans() == ()

    def test_that_followed_another_job_has_no_span(self, spans: Spans) -> None:
        self.attempt(target_reports=10, idle_since=None)
        assert spans() == ()


class TestSettings:
    @SQLITE_KIND_ONLY
    def test_traces_are_off_by_default_and_then_cost_nothing(self, started: Callable[..., Api], spans: Spans) -> None:
        api = started()
        api.get("/jobs")
        assert spans() == ()
        gateway = api.http._transport._asgi.app  # type: ignore[attr-defined]
        assert Tracing not in [each.cls for each in gateway.user_middleware]

    def test_the_standard_variable_sets_the_endpoint(
        self, spans: Spans, monkeypatch: pytest.MonkeyPatch, no_settings: None
    ) -> None:
        assert tracing.open_tracer(Settings(), "x") is None
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
        assert tracing.open_tracer(Settings(), "x") is not None
        assert tracing.open_tracer(Settings(tracing=False), "x") is None

    def test_the_operator_sets_the_service_name(self, spans: Spans, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OTEL_SERVICE_NAME", "ours")
        tracer = tracing.open_tracer(Settings(tracing=True), "x")
        assert tracer is not None
        tracer.record_span("a", {}, began_ns=1, ended_ns=2, failed=False)
        assert spans()[0].resource.attributes["service.name"] == "ours"

    def test_required_traces_need_the_extra(self, monkeypatch: pytest.MonkeyPatch, no_settings: None) -> None:
        monkeypatch.setattr(tracing, "tracing_is_installed", lambda: False)
        monkeypatch.setattr("runtime.settings.tracing_is_installed", lambda: False)
        with pytest.raises(ValidationError, match="extra otel"):
            Settings(tracing=True)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
        assert tracing.open_tracer(Settings(), "x") is None
        monkeypatch.setenv("SFUMATO_TRACING", "true")
        result = CliRunner().invoke(commands, ["gateway"])
        assert result.exit_code == 2
        assert "sfumato-server[otel]" in result.output

    def test_the_extra_is_detected(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert tracing_is_installed()
        for missing in ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"):
            monkeypatch.setattr("runtime.settings.find_spec", lambda name, missing=missing: name != missing or None)
            assert not tracing_is_installed()

        def fail(name: str) -> object:
            raise ModuleNotFoundError(name)  # like the real function for a module of a missing package

        monkeypatch.setattr("runtime.settings.find_spec", fail)
        assert not tracing_is_installed()
