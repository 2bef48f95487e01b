"""Whether the service is there, and whether it can work."""

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool

from models.db import is_migrated
from service.dependencies import ServicesHere
from service.problems import Unavailable, documented, is_database_away
from service.resources import Health

router = APIRouter(tags=["health"])


@router.get("/healthz", operation_id="getHealth", responses=documented(), summary="Is the process alive?")
async def get_health() -> Health:
    """Answers as long as the process does; asks nobody else. Needs no key."""
    return Health(status="ok")


@router.get("/readyz", operation_id="getReadiness", responses=documented(), summary="Can it take requests?")
async def get_readiness(services: ServicesHere) -> Health:
    """Answers where the database can be reached and has the newest schema, and `unavailable` elsewhere.

    Needs no key.
    """
    try:
        ready = await run_in_threadpool(is_migrated, services.database)
    except Exception as error:
        if is_database_away(error):
            raise Unavailable("the database cannot be reached") from error
        raise
    if not ready or services.stopping.is_set():
        raise Unavailable("the database has another schema" if not ready else "the service is ending")
    return Health(status="ok")
