"""OpenTelemetry traces, an optional extra that is off by default.

The standard `OTEL_*` variables set the destination, the sampling and the service name. A span contains the kind of an
operation and its outcome: no id, path, query, key or count. Callers make sure that its times reveal nothing private.
"""

import os
from typing import TYPE_CHECKING

from runtime.settings import Settings, tracing_is_installed

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.trace import SpanKind

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")

Attribute = str | int | bool


class Tracer:
    """Sends the spans of one process."""

    def __init__(self, service_name: str, processor: "SpanProcessor") -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider

        resource = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": service_name}
        self._provider = TracerProvider(resource=Resource.create(resource))
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("sfumato")

    def record_span(
        self,
        name: str,
        attributes: dict[str, Attribute],
        *,
        kind: "SpanKind | None" = None,
        began_ns: int,
        ended_ns: int,
        failed: bool,
    ) -> None:
        """Record a finished operation as a span without a parent; a trace context sent by the client is ignored."""
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind, Status, StatusCode

        span = self._tracer.start_span(
            name,
            context=Context(),
            kind=kind or SpanKind.INTERNAL,
            attributes=dict(attributes),
            start_time=began_ns,
            record_exception=False,
        )
        if failed:
            span.set_status(Status(StatusCode.ERROR))
        span.end(ended_ns)

    def close(self) -> None:
        """Send all buffered spans. Blocks."""
        self._provider.shutdown()


def open_tracer(settings: Settings, service_name: str) -> Tracer | None:
    """Return the tracer of this process, or None if tracing is off or its extra is not installed."""
    is_on = any(os.environ.get(name) for name in ENDPOINTS) if settings.tracing is None else settings.tracing
    if not is_on or not tracing_is_installed():
        return None
    return Tracer(service_name, _open_processor())


def _open_processor() -> "SpanProcessor":
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    return BatchSpanProcessor(OTLPSpanExporter())
