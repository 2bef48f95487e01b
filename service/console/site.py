"""Every page of the console by its path, and what stands before and behind each of them.

Before: a live session (else the sign-in page), the key's rate limit, and of a form that it is
ours. Behind: whatever was refused becomes a page with the problem's words.
"""

from collections.abc import Awaitable, Callable

import structlog
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, Router
from starlette.types import Message, Receive, Scope, Send

from models.console_session import SignedIn
from service.console import PATH, administration, comparing, datasets, jobs, making, new_job, overview, results, rounds
from service.console.rendering import HEADERS, go, page, static_file
from service.console.signing import login_form, login_url, sign_in, sign_out
from service.console.visits import Files, Page, Visit, check_csrf, check_origin, read_form, signed_in
from service.logs import describe
from service.problems import InternalError, Problem, from_exception
from service.services import Services

Endpoint = Callable[[Request], Awaitable[Response]]

PAGES: list[Page] = [
    ("GET", "/", overview.overview),
    *making.PAGES,  # before those with an id in place of `new`
    *datasets.PAGES,
    *rounds.PAGES,
    *new_job.PAGES,
    *jobs.PAGES,
    *results.PAGES,
    *comparing.PAGES,
    *administration.PAGES,
    ("POST", "/logout", sign_out),
]

WITH_FILES = frozenset({"/datasets/{dataset_id}/records"})

log = structlog.get_logger(__name__)


class Site:
    """Pure ASGI: the console of one gateway.

    Parameters
    ----------
    gateway : FastAPI
    """

    def __init__(self, gateway: FastAPI) -> None:
        self._gateway = gateway
        self._services: Services = gateway.state.services
        routes: list[BaseRoute] = [
            Route("/static/{name:path}", self._open("/static/{name}", static_file), methods=["GET"]),
            Route("/login", self._open("/login", self._login_form), methods=["GET"]),
            Route("/login", self._open("/login", self._sign_in), methods=["POST"]),
        ]
        routes += [Route(path, self._page(path, handler), methods=[method]) for method, path, handler in PAGES]
        self._router = Router(routes, redirect_slashes=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
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

    # ---- before a page ----

    def _open(self, path: str, endpoint: Endpoint) -> Endpoint:
        async def opened(request: Request) -> Response:
            request.scope["state"]["route"] = PATH + path
            return await endpoint(request)

        return opened

    def _page(
        self, path: str, handler: Callable[[Visit], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            services = self._services
            who = await signed_in(request, services)
            if who is None:
                return _to_login(request)
            request.scope["state"]["console"] = who
            limits = services.limits
            policy = limits.policy_of(request.scope, who.caller)
            if policy is not None:
                await limits.of_key(request.scope, policy, who.caller)
            form: dict[str, list[str]] = {}
            files: Files = {}
            if request.method == "POST":
                check_origin(request, services.settings.public_url)
                form, files = await read_form(request, takes_files=path in WITH_FILES)
                check_csrf(form, who)
            return await handler(Visit(request, services, self._gateway, who, form, files))

        return self._open(path, endpoint)

    async def _login_form(self, request: Request) -> Response:
        if await signed_in(request, self._services) is not None:
            return go("/")
        return login_form(request)

    async def _sign_in(self, request: Request) -> Response:
        return await sign_in(request, self._services)


def _to_login(request: Request) -> Response:
    """A script is told to take the whole browser there."""
    where = login_url(request.url.path if request.method == "GET" else "")
    if request.headers.get("hx-request") == "true" or "text/event-stream" in request.headers.get("accept", ""):
        return Response(status_code=401, headers=HEADERS | {"hx-redirect": login_url("")})
    return Response(status_code=303, headers=HEADERS | {"location": where})


# ---- behind it ----


def _refusal(scope: Scope, error: Exception) -> Response:
    problem = from_exception(error)
    request_id = scope["state"]["request_id"]
    if isinstance(problem, InternalError):
        log.error("page_failed", request_id=request_id, **describe(error.__cause__ or error))
    who: SignedIn | None = scope["state"].get("console")
    headers = {name.lower(): value for name, value in (problem.headers or {}).items()}
    return page(
        "problem.html",
        status=problem.status,
        headers=headers,
        visit=None,
        who=who,
        csrf=who.csrf if who else "",
        problem=problem,
        errors=told(problem),
        request_id=request_id,
    )


def told(problem: Problem) -> list[str]:
    """What a problem says beside its detail."""
    return [each["message"] for each in problem.more.get("errors", ()) if each["message"] != problem.detail]
