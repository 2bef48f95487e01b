"""Sign-in with a key, and sign-out."""

import re

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from models.identity import console_sessions
from models.identity.caller import Caller
from service.console import PATH
from service.console.rendering import page, redirect
from service.console.request import Visit, check_origin, cookie, read_form, read_token
from service.context import GatewayContext
from service.http.problems import Problem, RateLimited, Unauthenticated

_OURS = re.compile(f"{PATH}/[a-z0-9_/-]{{0,200}}")  # without host and query, so that a link cannot lead to another site


def login_url(path: str) -> str:
    """Return the URL of the sign-in page, with the page to open after signing in."""
    return f"{PATH}/login" + (f"?next={path}" if _OURS.fullmatch(path) and path != f"{PATH}/" else "")


def login_form(request: Request, problem: Problem | None = None) -> Response:
    """Return the sign-in page."""
    return page(
        "login.html",
        status=problem.status if problem else 200,
        headers={name.lower(): value for name, value in ((problem.headers or {}) if problem else {}).items()},
        visit=None,
        session=None,
        next=_next(request.query_params.get("next", "")),
        problem=problem,
    )


async def sign_in(request: Request, services: GatewayContext) -> Response:
    """Start a session for a key without storing the key. A failure counts against the limit for unknown keys."""
    check_origin(request, services.settings.public_url)
    form, _ = await read_form(request)
    key = form.get("key", [""])[0].strip()
    limits, scope = services.rate_limits, request.scope
    try:
        try:
            caller = await services.keys.find_caller(
                b"Bearer " + key.encode("latin-1", "replace"), is_suspicious=limits.is_slowed(scope)
            )
        except Unauthenticated:
            await limits.count_failure(scope)
            raise
    except (Unauthenticated, RateLimited) as problem:
        return login_form(request, problem)
    token = await run_in_threadpool(_begin, services, caller, read_token(request))
    response = redirect((_next(form.get("next", [""])[0]) or f"{PATH}/").removeprefix(PATH))
    response.set_cookie(**cookie(request, token, services.settings.public_url))
    return response


def _begin(services: GatewayContext, caller: Caller, earlier: str | None) -> str:
    """Create a new session token and end the earlier session, which prevents session fixation."""
    with services.database.transaction() as session:
        if earlier is not None:
            console_sessions.end(session, earlier)
        return console_sessions.begin(session, caller, now=services.database.clock())


def _next(path: str) -> str:
    return path if _OURS.fullmatch(path) and "//" not in path else ""


async def sign_out(visit: Visit) -> Response:
    """End the session for every holder of its token."""
    token = read_token(visit.request)
    if token is not None:
        await run_in_threadpool(_end, visit.services, token)
    response = redirect("/login")
    response.set_cookie(**cookie(visit.request, "", visit.services.settings.public_url))
    return response


def _end(services: GatewayContext, token: str) -> None:
    with services.database.transaction() as session:
        console_sessions.end(session, token)
