"""Signing in with a key, and out."""

import re

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from models import console_session
from models.tenant import Caller
from service.console import PATH
from service.console.rendering import go, page
from service.console.visits import Visit, check_origin, cookie, read_form, token_of
from service.problems import Problem, RateLimited, Unauthenticated
from service.services import Services

_OURS = re.compile(f"{PATH}/[a-z0-9_/-]{{0,200}}")  # no host, no query: nowhere else can a link lead


def login_url(path: str) -> str:
    """The sign-in page, and where to go from there."""
    return f"{PATH}/login" + (f"?next={path}" if _OURS.fullmatch(path) and path != f"{PATH}/" else "")


def login_form(request: Request, problem: Problem | None = None) -> Response:
    """The page that asks for a key."""
    return page(
        "login.html",
        status=problem.status if problem else 200,
        headers={name.lower(): value for name, value in ((problem.headers or {}) if problem else {}).items()},
        visit=None,
        who=None,
        next=_next(request.query_params.get("next", "")),
        problem=problem,
    )


async def sign_in(request: Request, services: Services) -> Response:
    """Takes a key, keeps nothing of it, and gives a session for it. What fails is counted like any unknown key."""
    check_origin(request, services.settings.public_url)
    form, _ = await read_form(request)
    given = form.get("key", [""])[0].strip()
    limits, scope = services.limits, request.scope
    try:
        try:
            caller = await services.keys.caller(
                b"Bearer " + given.encode("latin-1", "replace"), known_only=limits.is_shut_out(scope)
            )
        except Unauthenticated:
            await limits.of_failure(scope)
            raise
    except (Unauthenticated, RateLimited) as problem:
        return login_form(request, problem)
    token = await run_in_threadpool(_begin, services, caller, token_of(request))
    answer = go((_next(form.get("next", [""])[0]) or f"{PATH}/").removeprefix(PATH))
    answer.set_cookie(**cookie(request, token))
    return answer


def _begin(services: Services, caller: Caller, earlier: str | None) -> str:
    """A new token at each sign-in, and the session of before ends: nobody can plant one."""
    with services.database.transaction() as session:
        if earlier is not None:
            console_session.end(session, earlier)
        return console_session.begin(session, caller, now=services.database.clock())


def _next(path: str) -> str:
    return path if _OURS.fullmatch(path) and "//" not in path else ""


async def sign_out(visit: Visit) -> Response:
    """Ends the session, here and for whoever else holds its token."""
    token = token_of(visit.request)
    if token is not None:
        await run_in_threadpool(_end, visit.services, token)
    answer = go("/login")
    answer.set_cookie(**cookie(visit.request, ""))
    return answer


def _end(services: Services, token: str) -> None:
    with services.database.transaction() as session:
        console_session.end(session, token)
