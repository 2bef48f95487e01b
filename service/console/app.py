"""The ASGI application of the console, with the routes of all pages.

Before a page handler runs, the application checks the session, the rate limit of the key and the origin of a form.
Without a session it redirects to the sign-in page. An error becomes a page with the message of the problem.
"""

from collections.abc import Awaitable, Callable

import structlog
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, Router
from starlette.types import Message, Receive, Scope, Send

from connections.log_records import describe
from models.identity.console_sessions import SessionIdentity
from service.console import PATH
from service.console.login import login_form, login_url, sign_in, sign_out
from service.console.pages import (
    administration,
    compare,
    create,
    datasets,
    jobs,
    new_job,
    overview,
    profile,
    results,
    search,
    series,
)
from service.console.rendering import HEADERS, page, redirect, static_file
from service.console.request import Files, Page, Visit, check_csrf, check_origin, find_session, read_form
from service.context import GatewayContext
from service.http.headers import header
from service.http.problems import InternalError, Problem, from_exception
from service.http.unread_input import check_query

Endpoint = Callable[[Request], Awaitable[Response]]

PAGES: list[Page] = [
    Page("GET", "/", overview.overview, (*overview.FILTERS, "cursor")),
    *create.PAGES,  # before paths with an id in the position of `new`
    *datasets.PAGES,
    *new_job.PAGES,
    *jobs.PAGES,
    *series.PAGES,
    *results.PAGES,
    *profile.PAGES,
    *compare.PAGES,
    *search.PAGES,
    *administration.PAGES,
    Page("POST", "/logout", sign_out),
]

REPEATABLE = ("of", "features")  # query parameters that may have several values

log = structlog.get_logger(__name__)


class Site:
    """The console of one gateway, as an ASGI application.

    Parameters
    ----------
    gateway : FastAPI
    """

    def __init__(self, gateway: FastAPI) -> None:
        self._gateway = gateway
        self._services: GatewayContext = gateway.state.context
        routes: list[BaseRoute] = [
            Route("/static/{name:path}", self._open("/static/{name}", static_file), methods=["GET"]),
            Route("/login", self._open("/login", self._login_form), methods=["GET"]),
            Route("/login", self._open("/login", self._sign_in), methods=["POST"]),
        ]
        routes += [Route(each.path, self._page(each), methods=[each.method]) for each in PAGES]
        self._router = Router(routes, redirect_slashes=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        is_begun = False

        async def sending(message: Message) -> None:
            nonlocal is_begun
            is_begun = True
            await send(message)

        scope["state"].setdefault("route", PATH)
        try:
            await self._router(scope, receive, sending)
        except Exception as error:
            if is_begun:
                raise
            await _refusal(scope, error)(scope, receive, send)

    # ---- checks before a page ----

    def _open(self, path: str, endpoint: Endpoint) -> Endpoint:
        async def opened(request: Request) -> Response:
            request.scope["state"]["route"] = PATH + path
            return await endpoint(request)

        return opened

    def _page(self, shown: Page) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            services = self._services
            session = await find_session(request, services)
            if session is None:
                return _to_login(request)
            request.scope["state"]["console"] = session
            limits = services.rate_limits
            policy = limits.policy_for(request.scope, session.caller)
            if policy is not None:
                await limits.count_key(request.scope, policy, session.caller)
            check_query(request.scope, shown.parameters, REPEATABLE, allow_empty=True)
            form: dict[str, list[str]] = {}
            files: Files = {}
            if request.method == "POST":
                check_origin(request, services.settings.public_url)
                form, files = await read_form(request, takes_files=shown.takes_files)
                check_csrf(form, session)
            return await shown.handler(Visit(request, services, self._gateway, session, form, files))

        return self._open(shown.path, endpoint)

    async def _login_form(self, request: Request) -> Response:
        check_query(request.scope, ("next",), allow_empty=True)
        if await find_session(request, self._services) is not None:
            return redirect("/")
        return login_form(request)

    async def _sign_in(self, request: Request) -> Response:
        return await sign_in(request, self._services)


def _to_login(request: Request) -> Response:
    """Redirect to the sign-in page. For a request of a script, set the header that makes htmx redirect the browser."""
    where = login_url(request.url.path if request.method == "GET" else "")
    is_stream = b"text/event-stream" in (header(request.scope, b"accept") or b"").lower()
    if request.headers.get("hx-request", "").lower() == "true" or is_stream:
        return Response(status_code=401, headers=HEADERS | {"hx-redirect": login_url("")})
    return Response(status_code=303, headers=HEADERS | {"location": where})


# ---- errors ----


def _refusal(scope: Scope, error: Exception) -> Response:
    problem = from_exception(error)
    request_id = scope["state"]["request_id"]
    if isinstance(problem, InternalError):
        log.error("page_failed", request_id=request_id, **describe(error.__cause__ or error))
    session: SessionIdentity | None = scope["state"].get("console")
    headers = {name.lower(): value for name, value in (problem.headers or {}).items()}
    return page(
        "problem.html",
        status=problem.status,
        headers=headers,
        visit=None,
        current_path="",
        search_text="",
        session=session,
        csrf=session.csrf if session else "",
        problem=problem,
        errors=_error_messages(problem),
        request_id=request_id,
    )


def _error_messages(problem: Problem) -> list[str]:
    """Return the messages of a problem that differ from its detail."""
    return [each["message"] for each in problem.more.get("errors", ()) if each["message"] != problem.detail]
