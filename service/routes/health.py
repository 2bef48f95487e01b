"""Whether the service is there, and whether it can work."""

from fastapi import APIRouter

from service.dependencies import ServicesHere
from service.problems import Unavailable, documented
from service.resources import Health

router = APIRouter(tags=["health"])


@router.get(
    "/healthz", operation_id="getHealth", responses=documented(is_limited=False), summary="Is the process alive?"
)
async def get_health() -> Health:
    """Answers as long as the process does; asks nobody else. Needs no key."""
    return Health(status="ok")


@router.get(
    "/readyz", operation_id="getReadiness", responses=documented(is_limited=False), summary="Can it take requests?"
)
async def get_readiness(services: ServicesHere) -> Health:
    """Answers where the gateway can do all it is asked, and `unavailable` elsewhere, saying what is missing.

    That is: the database can be reached and has the newest schema, reports can be stored, a key is there for the
    records, if there are any, and the gateway is not about to end. Needs no key.
    """
    if services.stopping.is_set():
        raise Unavailable("the service is ending")
    missing = await services.readiness.lacks()
    if missing is not None:
        raise Unavailable(missing)
    return Health(status="ok")
