"""A span a request, as pure ASGI; only there where the operator asked for traces."""

import time

from opentelemetry.trace import SpanKind
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from models.tracing import Tracer
from service.metrics import NO_ROUTE, REPORTS_ROUTE, route_of
from service.middleware import TELLING

# Devices, whose times nobody keeps; and probes, which tell nothing.
UNTRACED = {REPORTS_ROUTE, "/v1/datasets/{dataset_id}/round", "/healthz", "/readyz"}

_METHODS = {"GET", "HEAD", "POST", "PATCH", "DELETE", "PUT", "OPTIONS"}


class Tracing:
    """The outermost: tells the route as it is written in the code, the method and the status of each request.

    Where the time a request takes is private (as in the access log), the span has no length.
    """

    def __init__(self, app: ASGIApp, *, tracer: Tracer) -> None:
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.time_ns(), 0

        async def send_seen(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_seen)
        finally:
            route = route_of(scope)
            if route not in UNTRACED:
                self._tell(scope, route, status, began)

    def _tell(self, scope: Scope, route: str, status: int, began: int) -> None:
        method = scope["method"] if scope["method"] in _METHODS else "_OTHER"
        attributes: dict[str, str | int | bool] = {"http.request.method": method, "http.response.status_code": status}
        if route != NO_ROUTE:
            attributes["http.route"] = route
        self._tracer.tell(
            f"{method} {route}" if route != NO_ROUTE else method,
            attributes,
            kind=SpanKind.SERVER,
            began_ns=began,
            ended_ns=began if TELLING.fullmatch(scope["path"]) else time.time_ns(),
            failed=status >= 500 or status == 0,
        )
