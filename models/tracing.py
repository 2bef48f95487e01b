"""Traces by OpenTelemetry, for operators who have a place for them: off unless asked for, an extra to install.

Where they go, how many are kept and what the service is called there, the standard `OTEL_*`
variables say. A span holds what kind of thing was done and how it ended: no id, no path, no
query, no key, no number of anything; the callers see to what its times may tell.
"""

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

from models.settings import Settings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.trace import SpanKind

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")

Attribute = str | int | bool


class Tracer:
    """Where one process sends its spans."""

    def __init__(self, service_name: str, processor: "SpanProcessor") -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider

        named = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": service_name}
        self._provider = TracerProvider(resource=Resource.create(named))
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("sfumato")

    def tell(
        self,
        name: str,
        attributes: dict[str, Attribute],
        *,
        kind: "SpanKind | None" = None,
        began_ns: int,
        ended_ns: int,
        failed: bool,
    ) -> None:
        """One span, of what is over; it belongs to no other, whatever the client sent."""
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
        """Send what waits. Blocks."""
        self._provider.shutdown()


def open_tracer(settings: Settings, service_name: str) -> Tracer | None:
    """The tracer of this process; None where nobody asked for one, or the extra is missing and nobody insisted."""
    asked = any(os.environ.get(name) for name in ENDPOINTS) if settings.tracing is None else settings.tracing
    if not asked or not is_installed():
        return None
    return Tracer(service_name, _processor())


def is_installed() -> bool:
    """Whether the extra is."""
    try:
        return all(find_spec(f"opentelemetry.{part}") for part in ("sdk", "exporter.otlp.proto.http"))
    except ModuleNotFoundError:  # not even the packages above them
        return False


def _processor() -> "SpanProcessor":
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    return BatchSpanProcessor(OTLPSpanExporter())
