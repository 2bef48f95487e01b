"""Plain ASGI application in front of the gateway: it answers simple uploads of reports without any middleware.

Most devices send one report in one piece, with a cached key, to a round that is known to be open. The front validates
such a request, waits for its commit and answers 202. All other requests and all errors are left to the application,
which gets the same message again. If the outcome of a commit is unknown, the application stores the report again; the
report counts once.
"""

import asyncio
import time
from collections.abc import Awaitable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from connections.connection import IS_WHOLE
from connections.problems import new_request_id
from models.identity.caller import Caller
from models.tables.identity import Scope as KeyScope
from runtime.settings import Settings
from service.http.auth import KeyCache
from service.http.metrics import GatewayMetrics
from service.http.middleware import NO_SNIFF, NO_STORE, send_body
from service.http.rate_limits import RateLimits
from service.http.route_table import REPORTS, path_id
from service.ingestion.report_endpoint import INLINE_BYTES, READERS, REQUEST_BYTES, Reader, ReportEndpoint
from service.ingestion.report_formats import PackedReports, ReportFormat, do_nothing
from service.ingestion.report_writer import ReportWriter

_SCOPES = frozenset({KeyScope.DEVICE, KeyScope.DATASETS, KeyScope.ADMIN})


class ReportFront:
    """ASGI application that handles uploads of reports.

    Parameters
    ----------
    app : ASGI application
        Handles all requests that this one does not answer.
    endpoint : ReportEndpoint
        The endpoint of `app`; its cached rounds and its memory limit are shared.
    settings : Settings
    key_cache : KeyCache
    writer : ReportWriter
    metrics : GatewayMetrics
    rate_limits : RateLimits
        If one of them applies to reports, `app` handles all requests.
    stopping : Event
        Once it is set, `app` handles all requests, because it closes connections.
    """

    def __init__(
        self,
        app: ASGIApp,
        endpoint: ReportEndpoint,
        settings: Settings,
        key_cache: KeyCache,
        writer: ReportWriter,
        metrics: GatewayMetrics,
        rate_limits: RateLimits,
        stopping: asyncio.Event,
    ) -> None:
        self._app, self._endpoint, self._key_cache, self._writer = app, endpoint, key_cache, writer
        self._memory, self._metrics, self._stopping = endpoint.memory, metrics, stopping
        self._max_bytes = min(INLINE_BYTES, settings.max_body_bytes)
        self._rate_limits = rate_limits
        self._is_enabled = not rate_limits.counts_reports
        self._has_cors = bool(settings.allowed_origins)
        vary = [(b"vary", b"Origin")] if self._has_cors and "*" not in settings.allowed_origins else []
        self._headers = (NO_SNIFF, NO_STORE, *vary)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Handle one request."""
        found = self._format_and_reader(scope)
        return self._app(scope, receive, send) if found is None else self._answer(scope, receive, send, *found)

    async def _answer(
        self, scope: Scope, receive: Receive, send: Send, report_format: ReportFormat, read: Reader, caller: Caller
    ) -> None:
        start = time.perf_counter()
        message = await receive()  # does not wait, because the whole body has arrived
        packed = self._pack(report_format, read, message, self._endpoint.max_reports(caller))
        if packed is not None and not self._rate_limits.allows_reports(scope, caller, packed.n_reports):
            packed = None
        n_bytes = REQUEST_BYTES + len(message["body"]) if packed else 0
        if packed is None or not self._memory.try_reserve(n_bytes):
            await self._app(scope, _replay(message, receive), send)
            return
        try:
            errors = await self._writer.enqueue(report_format.round_id, packed)
        finally:
            self._memory.release(n_bytes)
        if errors and report_format.round_id in errors:
            await self._app(scope, _replay(message, receive), send)
            return
        request_id = (b"x-request-id", new_request_id().encode())
        receipt = report_format.receipt(packed.n_reports)
        await send_body(send, 202, b"application/json", receipt, request_id, *self._headers)
        self._metrics.count_request("POST", REPORTS.template, 202, time.perf_counter() - start)

    def _format_and_reader(self, scope: Scope) -> tuple[ReportFormat, Reader, Caller] | None:
        """Return the format, the reader of the body and the caller, if the head of the request qualifies."""
        if (
            not scope.get("state", {}).get(IS_WHOLE)
            or scope["method"] != "POST"
            or scope.get("query_string")
            or not self._is_enabled
            or self._stopping.is_set()
        ):
            return None
        authorization = media_type = None
        for name, value in scope["headers"]:
            if name == b"authorization":
                if authorization is not None:
                    return None
                authorization = value
            elif name == b"content-type":
                if media_type is not None:
                    return None
                media_type = value
            elif name == b"content-encoding" or (name == b"origin" and self._has_cors):
                return None
        read = READERS.get(media_type or b"")
        report_format = self._endpoint.cached_format(path_id(scope))
        caller = self._key_cache.cached_caller(authorization)
        if read is None or report_format is None or caller is None or not _may_report(caller, report_format):
            return None
        return report_format, read, caller

    def _pack(self, report_format: ReportFormat, read: Reader, message: Message, most: int) -> PackedReports | None:
        """Return the reports of a small complete body if they are valid."""
        if message["type"] != "http.request" or message.get("more_body") or len(message["body"]) > self._max_bytes:
            return None
        try:
            return read(report_format, message["body"], most, do_nothing)
        except Exception:  # the application raises the same error and reports it
            return None


def _replay(message: Message, receive: Receive) -> Receive:
    """Return a `receive` that starts with a message that was received before."""
    messages = [message]

    async def receive_again() -> Message:
        return messages.pop() if messages else await receive()

    return receive_again


def _may_report(caller: Caller, report_format: ReportFormat) -> bool:
    return (
        not caller.scopes.isdisjoint(_SCOPES)
        and caller.tenant_id == report_format.tenant_id
        and caller.sees(report_format.dataset_id)
    )
