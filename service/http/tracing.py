"""Pure ASGI middleware that records one OpenTelemetry span per request. Loaded only if tracing is enabled."""

import time

from opentelemetry.trace import SpanKind
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runtime.tracing import Tracer
from service.http.metrics import METHODS, NO_ROUTE, route_of
from service.http.route_table import entry_of


class Tracing:
    """Middleware that records the route template, method and status of each request.

    Unless the duration is public (`Entry.timed`), the span has zero length.
    """

    def __init__(self, app: ASGIApp, *, tracer: Tracer) -> None:
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status = time.time_ns(), 0

        async def send_observed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_observed)
        finally:
            if entry_of(scope).is_traced:
                self._record(scope, route_of(scope), status, start)

    def _record(self, scope: Scope, route: str, status: int, start: int) -> None:
        method = scope["method"] if scope["method"] in METHODS else "_OTHER"
        attributes: dict[str, str | int | bool] = {"http.request.method": method, "http.response.status_code": status}
        if route != NO_ROUTE:
            attributes["http.route"] = route
        self._tracer.record_span(
            f"{method} {route}" if route != NO_ROUTE else method,
            attributes,
            kind=SpanKind.SERVER,
            began_ns=start,
            ended_ns=time.time_ns() if scope["method"] in entry_of(scope).timed else start,
            failed=status >= 500 or status == 0,
        )
