"""Traces: off unless asked for; a span a request, that names no thing and nobody, and no time that is private."""

from collections.abc import Callable, Iterator

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from pydantic import ValidationError
from typer.testing import CliRunner

from models import tracing
from models.job import Claim, Job
from models.settings import Settings
from service.cli import app as commands
from service.tracing import Tracing
from tests.service.api import Api, refused, unknown
from workers.metrics import DIED, WorkerMetrics

Spans = Callable[[], tuple[ReadableSpan, ...]]


@pytest.fixture(autouse=True)
def _no_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*tracing.ENDPOINTS, "OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES", "OTEL_SDK_DISABLED"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spans]:
    """What was sent; asks for traces."""
    exporter = InMemorySpanExporter()
    monkeypatch.setattr(tracing, "_processor", lambda: SimpleSpanProcessor(exporter))
    yield exporter.get_finished_spans
    exporter.clear()


class TestARequest:
    def test_leaves_a_span_of_its_route_method_and_status(self, started: Callable[..., Api], spans: Spans) -> None:
        api = started(tracing=True)
        api.get("/jobs", params={"limit": 7})
        refused(api.get(f"/rounds/{unknown('rnd')}"), 404, "not_found")
        refused(api.http.get("/v1/jobs"), 401, "unauthenticated")
        first, second, third = spans()
        assert (first.name, first.kind, first.status.status_code) == ("GET /v1/jobs", SpanKind.SERVER, StatusCode.UNSET)
        assert dict(first.attributes or {}) == {
            "http.request.method": "GET",
            "http.route": "/v1/jobs",
            "http.response.status_code": 200,
        }
        assert (first.end_time or 0) > (first.start_time or 0)
        assert (second.attributes or {})["http.response.status_code"] == 404
        assert (third.name, (third.attributes or {}).get("http.route")) == ("GET", None)
        assert first.resource.attributes["service.name"] == "sfumato-gateway"

    def test_that_fails_says_so_and_not_how(
        self, started: Callable[..., Api], spans: Spans, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        api = started(tracing=True)

        def broken(*_what: object, **_more: object) -> None:
            raise RuntimeError("a private thing")

        monkeypatch.setattr("service.routes.jobs.jobs.page", broken)
        refused(api.get("/jobs"), 500, "internal_error")
        (span,) = spans()
        assert span.status.status_code == StatusCode.ERROR
        assert not span.events
        assert "private" not in span.to_json()

    def test_tells_no_id_no_query_no_key_and_nothing_a_client_made_up(
        self, started: Callable[..., Api], spans: Spans
    ) -> None:
        api = started(tracing=True)
        made = api.dataset(name="clinic")
        parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
        api.request(
            "BREW", f"/datasets/{made['id']}?clinic=1", headers={"traceparent": parent, "x-request-id": "clinic"}
        )
        api.get(f"/datasets/{made['id']}/budget", headers={"traceparent": parent})
        told = "".join(span.to_json() for span in spans())
        assert "/v1/datasets/{dataset_id}/budget" in told
        for private in (made["id"], "clinic", "BREW", api.secret, "4bf92f3577b34da6a3ce929d0e0e4736"):
            assert private not in told

    def test_of_a_device_or_a_probe_leaves_none(self, started: Callable[..., Api], spans: Spans) -> None:
        api = started(tracing=True)
        within = api.dataset()["id"]
        opened = api.round(within)["id"]
        before = len(spans())
        assert api.report(opened).status_code == 202
        assert api.post(f"/rounds/{opened}/reports", {}).status_code == 422
        assert api.get(f"/datasets/{within}/round").status_code == 200
        assert api.http.get("/healthz").status_code == api.http.get("/readyz").status_code == 200
        assert len(spans()) == before

    def test_whose_time_is_private_has_no_length(self, started: Callable[..., Api], spans: Spans) -> None:
        api = started(tracing=True)
        within = api.dataset()["id"]
        job = api.job(within)["id"]
        before = len(spans())
        for path in (f"/datasets/{within}", f"/datasets/{within}/records", f"/jobs/{job}", f"/jobs/{job}?wait=0.2"):
            api.get(path)
        told = spans()[before:]
        assert len(told) == 4
        assert [(span.end_time or 0) - (span.start_time or 0) for span in told] == [0] * 4


class TestAnAttemptAtAJob:
    def attempt(self, *, target_reports: int, idle_since: int | None) -> WorkerMetrics:
        tracer = tracing.open_tracer(Settings(tracing=True), "sfumato-worker")
        job = Job(
            id="job_1", algorithm={"type": "uniform_grid"}, round_ids=[], target_reports=target_reports, created_at=5
        )
        metrics = WorkerMetrics(tracer=tracer)
        metrics.claimed(job, Claim("job_1", 1), now=9, idle_since=idle_since).ended(DIED)
        return metrics

    def test_leaves_a_span_of_its_algorithm_and_its_end(self, spans: Spans) -> None:
        self.attempt(target_reports=10, idle_since=1)
        (span,) = spans()
        assert (span.name, span.status.status_code) == ("job attempt", StatusCode.ERROR)
        assert dict(span.attributes or {}) == {"sfumato.algorithm": "uniform_grid", "sfumato.outcome": DIED}
        assert "job_1" not in span.to_json()

    def test_over_records_leaves_none(self, spans: Spans) -> None:
        self.attempt(target_reports=0, idle_since=1)
        assert spans() == ()

    def test_that_began_as_another_job_ended_leaves_none(self, spans: Spans) -> None:
        self.attempt(target_reports=10, idle_since=None)
        assert spans() == ()


class TestTraces:
    def test_are_off_unless_asked_for_and_then_cost_nothing(self, started: Callable[..., Api], spans: Spans) -> None:
        api = started()
        api.get("/jobs")
        assert spans() == ()
        gateway = api.http._transport._asgi.app  # type: ignore[attr-defined]
        assert Tracing not in [each.cls for each in gateway.user_middleware]

    def test_are_sent_where_the_standard_variable_says_where(
        self, spans: Spans, monkeypatch: pytest.MonkeyPatch, no_settings: None
    ) -> None:
        assert tracing.open_tracer(Settings(), "x") is None
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
        assert tracing.open_tracer(Settings(), "x") is not None
        assert tracing.open_tracer(Settings(tracing=False), "x") is None

    def test_have_the_name_the_operator_gives(self, spans: Spans, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OTEL_SERVICE_NAME", "ours")
        tracer = tracing.open_tracer(Settings(tracing=True), "x")
        assert tracer is not None
        tracer.tell("a", {}, began_ns=1, ended_ns=2, failed=False)
        assert spans()[0].resource.attributes["service.name"] == "ours"

    def test_that_are_insisted_on_need_the_extra(self, monkeypatch: pytest.MonkeyPatch, no_settings: None) -> None:
        monkeypatch.setattr(tracing, "is_installed", lambda: False)
        with pytest.raises(ValidationError, match="extra otel"):
            Settings(tracing=True)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
        assert tracing.open_tracer(Settings(), "x") is None
        monkeypatch.setenv("SFUMATO_TRACING", "true")
        said = CliRunner().invoke(commands, ["gateway"])
        assert said.exit_code == 2
        assert "sfumato-server[otel]" in said.output

    @pytest.mark.parametrize(
        "missing", ["opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http", "opentelemetry"]
    )
    def test_know_whether_the_extra_is_there(self, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
        assert tracing.is_installed()

        def find(name: str) -> object:
            if missing == "opentelemetry":
                raise ModuleNotFoundError(name)  # as the real one does for what lies in a missing package
            return None if name == missing else object()

        monkeypatch.setattr(tracing, "find_spec", find)
        assert not tracing.is_installed()
