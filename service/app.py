"""The gateway application: its shared objects, its middleware and its routes.

A request passes RequestContext (id, problems, log), Authentication, BodyLimit and OpenRoundsMiddleware to its route.
An upload of reports bypasses the web framework: RequestContext, Authentication, BodyLimit, ReportEndpoint.
`ReportFront` answers most uploads before the application, and the gateway answers `/healthz` itself.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from functools import cache
from importlib.metadata import version
from threading import Lock
from typing import Any

import anyio.to_thread
from fastapi import Depends, FastAPI, Request, Security
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from fastapi.routing import APIRoute
from sqlalchemy.pool import QueuePool
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from connections.problems import new_request_id
from models.database.engine import Database
from runtime.job_signal import open_job_signal
from runtime.metrics_server import TransactionRetries, start_metrics_server
from runtime.settings import Settings
from runtime.tracing import Tracer, open_tracer
from service.api.openapi import document as openapi
from service.api.routes import (
    audit,
    datasets,
    forecasts,
    health,
    jobs,
    keys,
    ledger,
    records,
    results,
    rounds,
    series,
    sources,
    webhooks,
)
from service.api.routes import limits as tenant_limits
from service.console import PATH as CONSOLE_PATH
from service.console.mount import Console
from service.context import GatewayContext, Readiness
from service.http.auth import Authentication, KeyCache, documented_key
from service.http.metrics import GatewayMetrics
from service.http.middleware import (
    NO_SNIFF,
    NO_STORE,
    BodyLimit,
    DeviceCors,
    RequestContext,
    send_body,
)
from service.http.mount import Mount
from service.http.rate_limits import RateLimits
from service.http.route_table import HEALTH, REPORTS, enter
from service.http.unread_input import has_unread_input, reject_unread_input
from service.ingestion.open_rounds import OpenRoundsCache, OpenRoundsMiddleware
from service.ingestion.record_formats import JSON_WEIGHT, MAX_JSON_BYTES
from service.ingestion.report_endpoint import ReportEndpoint
from service.ingestion.report_front import ReportFront
from service.ingestion.report_writer import ReportWriter
from service.ingestion.upload_memory import MemoryLimit
from service.live.change_feed import ChangeFeed
from service.live.job_watcher import JobWatchers
from service.webhooks.sender import WebhookSender

ROUTES = (
    datasets,
    ledger,
    sources,
    records,
    rounds,
    forecasts,
    jobs,
    series,
    results,
    keys,
    audit,
    webhooks,
    tenant_limits,
)
UPLOADS_AT_ONCE = 2  # uploads of the largest size that fit into memory at the same time


class Gateway(FastAPI):
    """The FastAPI application, with separate ASGI applications for uploads of reports and for `/healthz`."""

    mount_path: Mount
    reports: ReportFront  # shortcut of connections, see `connections.connection`
    uploads: ASGIApp  # the endpoint for reports and its middleware

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:  # type: ignore[override]
        """Handle one request or the lifespan."""
        if scope["type"] == "http":
            scope, send = self.mount_path.enter(scope, send)
            scope["headers"] = list(scope["headers"])  # a server may append trailers to its own list later
            entry = enter(scope)
            if scope["method"] == "HEAD" and not entry.is_stream:
                scope = {**scope, "method": "GET"}  # the server sends the head of the answer without its body
            if entry is REPORTS:
                return self.uploads(scope, receive, send)
            is_health = entry is HEALTH and scope["method"] == "GET" and not has_unread_input(scope)
            if is_health and not self.state.context.stopping.is_set():
                return self._answer_health(send)
        return super().__call__(scope, receive, send)

    async def _answer_health(self, send: Send) -> None:
        """Answer as the route of the framework does, at the cost of a bare application."""
        start = time.perf_counter()
        more = ((b"x-request-id", new_request_id().encode()), NO_SNIFF, NO_STORE)
        await send_body(send, 200, b"application/json", b'{"status":"ok"}', *more)
        self.state.context.metrics.count_request("GET", HEALTH.template, 200, time.perf_counter() - start)


def create_app(settings: Settings, database: Database | None = None) -> Gateway:
    """Return a gateway application for one database.

    Parameters
    ----------
    settings : Settings
    database : Database, optional
        By default, the application opens the database of the settings, and closes it when it stops.
    """
    owns_database = database is None
    database = database or Database.from_settings(settings, pool_size=settings.database_pool_size)
    context, tracer = _build_context(settings, database), open_tracer(settings, "sfumato-gateway")
    metrics, rate_limits, writer = context.metrics, context.rate_limits, context.writer
    _add_metrics(context)
    sender = WebhookSender(settings, database, metrics)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        # Each request in a thread takes a database connection, so more threads would wait for connections.
        anyio.to_thread.current_default_thread_limiter().total_tokens = 2 * settings.database_pool_size - 1
        context.change_feed.start()
        writer.start()
        sender.start()
        stop_metrics_server = start_metrics_server(metrics.registry, settings.host, settings.metrics_port)
        try:
            yield
        finally:
            context.stopping.set()
            await run_in_threadpool(writer.stop)
            await run_in_threadpool(sender.stop)
            await context.change_feed.stop()
            await run_in_threadpool(stop_metrics_server)
            if tracer is not None:
                await run_in_threadpool(tracer.close)
            await rate_limits.close()
            if owns_database:
                database.close()

    origins = settings.allowed_origins
    common = [
        *([Middleware(DeviceCors, origins=origins)] if origins else []),
        Middleware(RequestContext, metrics=metrics, stopping=context.stopping, explain=context.database.failure_reason),
        Middleware(Authentication, key_cache=context.keys, limits=rate_limits),
        Middleware(
            BodyLimit,
            max_bytes=settings.max_body_bytes,
            max_records_bytes=settings.max_records_bytes,
            slow_seconds=settings.slow_seconds,
        ),
    ]
    app = Gateway(
        title="Sfumato",
        version=version("sfumato-server"),
        lifespan=lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        separate_input_output_schemas=False,
        generate_unique_id_function=_operation_id,
        dependencies=[Depends(reject_unread_input)],
        exception_handlers={HTTPException: _raise_again, RequestValidationError: _raise_again},
        middleware=[
            *_tracing(tracer),
            *common,
            Middleware(OpenRoundsMiddleware, open_rounds=context.open_rounds),
        ],
    )
    app.state.context = context
    app.mount_path = Mount(settings.public_url)
    endpoint = ReportEndpoint(settings, database, writer, metrics, context.body_memory, rate_limits)
    app.uploads = endpoint
    for each in reversed(common):
        app.uploads = each.cls(app.uploads, *each.args, **each.kwargs)
    app.reports = ReportFront(endpoint, settings, context.keys, writer, metrics, rate_limits, context.stopping)
    app.include_router(health.router)
    for module in ROUTES:
        app.include_router(module.router, dependencies=[Security(documented_key)])
    _add_documentation(app)
    _add_console(app)
    return app


def _build_context(settings: Settings, database: Database) -> GatewayContext:
    redis_url = settings.redis_url.get_secret_value() if settings.redis_url else None
    job_signal = open_job_signal(redis_url, settings.poll_seconds, settings.database_file)
    upload_memory = MemoryLimit(
        UPLOADS_AT_ONCE * max(settings.max_records_bytes, JSON_WEIGHT * MAX_JSON_BYTES),
        "too many records are being uploaded or counted: repeat the request later",
    )
    body_memory = MemoryLimit(settings.max_pending_bytes, "too many bodies are being read: send the request again")
    scratch = MemoryLimit(
        UPLOADS_AT_ONCE * settings.max_records_bytes, "too many batches are being uploaded: send the batch again later"
    )
    metrics, change_feed, stopping = GatewayMetrics(), ChangeFeed(redis_url, settings.database_file), asyncio.Event()
    writer = ReportWriter(database, job_signal, metrics, change_feed)
    return GatewayContext(
        settings,
        database,
        job_signal,
        KeyCache(database),
        writer,
        body_memory,
        upload_memory,
        scratch,
        metrics,
        RateLimits(settings, metrics),
        Readiness(settings, database, writer),
        change_feed,
        JobWatchers(database, change_feed, stopping),
        OpenRoundsCache(database, change_feed),
        stopping,
    )


def _operation_id(route: APIRoute) -> str:
    """Return the operation id of a route: the name of its function in camel case."""
    first, *words = route.name.split("_")
    return first + "".join(word.title() for word in words)


def _tracing(tracer: Tracer | None) -> list[Middleware]:
    if tracer is None:
        return []
    from service.http.tracing import Tracing  # its dependencies are optional

    return [Middleware(Tracing, tracer=tracer)]


def _add_metrics(context: GatewayContext) -> None:
    """Add the metrics that are read at each scrape."""
    metrics, pool, watchers = context.metrics, context.database.engine.pool, context.job_watchers.limit

    def redis_unavailable() -> dict[str, float]:
        return {
            "job_signal": not context.job_signal.is_available,
            "rate_limits": not context.rate_limits.is_redis_available,
            "change_feed": not context.change_feed.is_available,
        }

    metrics.registry.register(TransactionRetries(context.database.retries))
    metrics.add_queue_gauges(context.database)
    metrics.add_gauge("sfumato_watchers", "Requests that wait for a job.", lambda: {"": watchers.n_waiting})
    if isinstance(pool, QueuePool):
        metrics.add_gauge("sfumato_database_connections", "Connections in use.", lambda: {"": pool.checkedout()})
    metrics.add_gauge("sfumato_redis_unavailable", "1 while Redis is unavailable.", redis_unavailable, "part")


async def _raise_again(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException) and error.status_code == 405:
        # Starlette lists only the methods of the first route with this path.
        routes = [route for part in (request.app, health, *ROUTES) for route in part.router.routes]
        same = [each for each in routes if isinstance(each, Route) and each.matches(request.scope)[0] != Match.NONE]
        error.headers = {"Allow": ", ".join(sorted({method for each in same for method in each.methods or ()}))}
    raise error  # RequestContext answers it like all other errors


def _add_documentation(app: Gateway) -> None:
    building = Lock()  # concurrent first requests wait for one document, which takes seconds and megabytes

    @cache
    def document() -> dict[str, Any]:
        return openapi.document(app, app.mount_path.path)

    @cache
    def body() -> bytes:
        return openapi.canonical(document()).encode()

    @cache
    def page() -> tuple[bytes, dict[str, str]]:
        from service.api.openapi import reference_page

        return reference_page.page(document()).encode(), reference_page.HEADERS

    @app.get("/openapi.json", include_in_schema=False)
    def get_document() -> Response:
        with building:
            return Response(body(), media_type="application/json")

    @app.get("/docs", include_in_schema=False)
    def get_reference() -> HTMLResponse:
        with building:
            content, headers = page()
        return HTMLResponse(content, headers=headers)

    app.openapi = document  # type: ignore[method-assign]


def _add_console(app: FastAPI) -> None:
    async def redirect(_request: Request) -> Response:
        return Response(status_code=308, headers={"location": f"{CONSOLE_PATH}/"})

    for path in ("/", CONSOLE_PATH):
        app.add_route(path, redirect, include_in_schema=False)
    app.mount(CONSOLE_PATH, Console(app))
