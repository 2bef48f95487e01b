"""Routes of liveness and readiness."""

from typing import Literal

from fastapi import APIRouter

from service.api.dependencies import Services
from service.http.problems import Unavailable, problem_responses
from service.schemas.base import Wire

router = APIRouter(tags=["health"])


class Health(Wire):
    """The gateway is running."""

    status: Literal["ok"]


@router.get("/healthz", responses=problem_responses(is_limited=False), summary="Check that the process is alive")
async def get_health() -> Health:
    """Answer while the process is running. It checks nothing else and needs no key."""
    return Health(status="ok")


@router.get("/readyz", responses=problem_responses(is_limited=False), summary="Check that requests can be served")
async def get_readiness(services: Services) -> Health:
    """Answer if the gateway can serve all requests; otherwise respond `unavailable` and names the missing part.

    It checks that the database is reachable, has the newest schema and accepts writes, that reports can be stored,
    that a key for records is present if there are records, and that the gateway is not shutting down. Needs no key.
    """
    if services.stopping.is_set():
        raise Unavailable("the gateway is shutting down; retry with another gateway")
    missing = await services.readiness.find_problem()
    if missing is not None:
        raise Unavailable(missing)
    return Health(status="ok")
