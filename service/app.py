"""The gateway: what it is made of, and in which order a request passes it.

RequestContext (id, problems, log) → Authentication → BodyLimit → DeviceDesk → the routes.
Reports go another way, on which the framework is not: RequestContext → Authentication → BodyLimit → ReportIngest.
Most of those do not even go that: `service.fast_path`.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

import anyio.to_thread
from fastapi import FastAPI, Request, Security
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from sqlalchemy.pool import QueuePool
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from models.db import Database
from models.doorbell import open_doorbell
from models.exposition import RetriedTransactions, expose
from models.settings import Settings
from models.tracing import Tracer, open_tracer
from service import openapi
from service.auth import Authentication, KeyCache, documented_key
from service.console import PATH as CONSOLE_PATH
from service.console import Console
from service.cors import DeviceCors
from service.device_rounds import DeviceDesk, DeviceRounds
from service.fast_path import FastPath
from service.ingest import PATH as REPORTS_PATH
from service.ingest import ReportIngest
from service.limits import RateLimits
from service.metrics import GatewayMetrics
from service.middleware import BodyLimit, RequestContext
from service.notices import Notices
from service.readiness import Readiness
from service.record_formats import JSON_WEIGHT, MAX_JSON_BYTES
from service.routes import audit, datasets, forecasts, health, jobs, keys, ledger, records, results, rounds, webhooks
from service.routes import limits as tenant_limits
from service.services import Services
from service.uploads import Uploads
from service.watches import Watches
from service.webhooks import WebhookSender
from service.writer import ReportWriter

NOUNS = (datasets, ledger, records, rounds, forecasts, jobs, results, keys, audit, webhooks, tenant_limits)
UPLOADS_AT_ONCE = 2  # of the largest size: what all uploads under way may hold together


class Gateway(FastAPI):
    """The framework's application, and in front of it the way of reports."""

    reports: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, or the lifespan."""
        is_report = scope["type"] == "http" and REPORTS_PATH.fullmatch(scope["path"])
        await (self.reports if is_report else super().__call__)(scope, receive, send)


def create_app(settings: Settings, database: Database | None = None) -> FastAPI:
    """A gateway over one database.

    Parameters
    ----------
    settings : Settings
    database : Database, optional
        By default the one the settings name, closed as the gateway ends.
    """
    ours = database is None
    database = database or Database(
        settings.resolved_database_url,
        pool_size=settings.database_pool_size,
        wait_seconds=settings.database_wait_seconds,
    )
    services, tracer = _services(settings, database), open_tracer(settings, "sfumato-gateway")
    metrics, limits = services.metrics, services.limits
    _watch(services)
    sender = WebhookSender(settings, database, metrics)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        # a request in a thread takes a connection: more threads than connections would only wait for each other
        anyio.to_thread.current_default_thread_limiter().total_tokens = 2 * settings.database_pool_size - 1
        services.notices.start()
        services.writer.start()
        sender.start()
        stop_exposing = expose(metrics.registry, settings.host, settings.metrics_port)
        try:
            yield
        finally:
            services.stopping.set()
            await run_in_threadpool(services.writer.stop)
            await run_in_threadpool(sender.stop)
            await services.notices.stop()
            await run_in_threadpool(stop_exposing)
            if tracer is not None:
                await run_in_threadpool(tracer.close)
            await limits.close()
            if ours:
                database.close()

    common = [
        *_cors(settings),
        Middleware(RequestContext, metrics=metrics, stopping=services.stopping),
        Middleware(Authentication, keys=services.keys, limits=limits),
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
        exception_handlers={HTTPException: _hand_on, RequestValidationError: _hand_on},
        middleware=[
            *_traced(tracer),
            *common,
            Middleware(DeviceDesk, device_rounds=services.device_rounds),
        ],
    )
    app.state.services = services
    ingest = ReportIngest(services=services)
    app.state.fast_path = FastPath(ingest, services)
    app.reports = ingest
    for each in reversed(common):
        app.reports = each.cls(app.reports, *each.args, **each.kwargs)
    app.include_router(health.router)
    for noun in NOUNS:
        app.include_router(noun.router, dependencies=[Security(documented_key)])
    _add_documentation(app)
    _add_console(app)
    return app


def _services(settings: Settings, database: Database) -> Services:
    """What requests are served with."""
    redis_url = settings.redis_url.get_secret_value() if settings.redis_url else None
    doorbell = open_doorbell(redis_url, settings.poll_seconds, settings.database_file)
    uploads = Uploads(UPLOADS_AT_ONCE * max(settings.max_records_bytes, JSON_WEIGHT * MAX_JSON_BYTES))
    metrics, notices, stopping = GatewayMetrics(), Notices(redis_url, settings.database_file), asyncio.Event()
    writer = ReportWriter(database, doorbell, metrics, notices)
    return Services(
        settings,
        database,
        doorbell,
        KeyCache(database),
        writer,
        uploads,
        metrics,
        RateLimits(settings, metrics),
        Readiness(settings, database, writer),
        notices,
        Watches(database, notices, stopping),
        DeviceRounds(database, notices),
        stopping,
    )


def _traced(tracer: Tracer | None) -> list[Middleware]:
    if tracer is None:
        return []
    from service.tracing import Tracing  # what it needs may not be installed

    return [Middleware(Tracing, tracer=tracer)]


def _cors(settings: Settings) -> list[Middleware]:
    origins = settings.allowed_origins
    return [Middleware(DeviceCors, origins=origins)] if origins else []


def _watch(services: Services) -> None:
    """Expose what is asked for only at a scrape."""
    metrics, pool = services.metrics, services.database.engine.pool

    def redis_away() -> dict[str, float]:
        return {
            "doorbell": services.doorbell.is_away,
            "limits": services.limits.is_redis_away,
            "bulletin": services.notices.is_away,
        }

    metrics.watch_queue(services.database)
    metrics.registry.register(RetriedTransactions(services.database))
    metrics.watch_deliveries(services.database)
    metrics.watch("sfumato_watchers", "Requests that wait for a job.", lambda: {"": services.watchers.n_waiting})
    if isinstance(pool, QueuePool):
        metrics.watch("sfumato_database_connections", "Connections in use.", lambda: {"": pool.checkedout()})
    metrics.watch("sfumato_redis_away", "1 where Redis does not answer.", redis_away, "part")


async def _hand_on(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException) and error.status_code == 405:
        # the router names the methods of the first route of the path alone
        known = [one for part in (request.app, health, *NOUNS) for one in part.router.routes]
        same = [one for one in known if isinstance(one, Route) and one.matches(request.scope)[0] != Match.NONE]
        error.headers = {"Allow": ", ".join(sorted({method for one in same for method in one.methods or ()}))}
    raise error  # RequestContext answers it, like every other


def _add_documentation(app: FastAPI) -> None:
    document: dict[str, Any] = {}

    def made() -> dict[str, Any]:
        if not document:
            document.update(openapi.document(app))
        return document

    @app.get("/openapi.json", include_in_schema=False)
    def get_document() -> Response:
        return Response(openapi.canonical(made()), media_type="application/json")

    @app.get("/docs", include_in_schema=False)
    def get_pages() -> HTMLResponse:
        from service import reference

        return HTMLResponse(reference.page(made()), headers=reference.HEADERS)

    app.openapi = made  # type: ignore[method-assign]


def _add_console(app: FastAPI) -> None:
    async def go_there(_request: Request) -> Response:
        return Response(status_code=308, headers={"location": f"{CONSOLE_PATH}/"})

    app.add_route(CONSOLE_PATH, go_there, include_in_schema=False)
    app.mount(CONSOLE_PATH, Console(app))
