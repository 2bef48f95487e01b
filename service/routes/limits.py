"""What the caller's tenant may have, and how much of it there is."""

from typing import Annotated

from fastapi import APIRouter, Depends, Response

from models import dataset as datasets
from models import job as jobs
from models import quota
from models.tenant import Caller, Scope
from service import problems
from service.auth import require
from service.dependencies import ServicesHere, respond
from service.limit_resources import Limits, Used
from service.problems import documented

router = APIRouter(prefix="/v1/limits", tags=["limits"])

WholeTenantHere = Annotated[Caller, Depends(require(Scope.DATASETS, Scope.JOBS, whole_tenant=True))]


@router.get(
    "",
    operation_id="getLimits",
    summary="Get the limits",
    response_model=Limits,
    responses=documented(problems.Unauthenticated, problems.Forbidden),
)
def get_limits(caller: WholeTenantHere, services: ServicesHere) -> Response:
    """What the tenant may have at once, by the operator's settings or by a quota of its own, and what it has.
    How many of its jobs run at the moment is not told, nor how many records there are.

    Needs one of the scopes `datasets`, `jobs`, and a key that is not bound to one dataset.
    """
    with services.database.reading() as session:
        found = quota.limits(session, caller.tenant_id, services.settings)
        n_jobs = jobs.n_active(session, caller.tenant_id) if caller.may(Scope.JOBS) else None
        n_datasets = datasets.n_held(session, caller.tenant_id)
    return respond(
        Limits(
            datasets=Used(limit=found.max_datasets, used=n_datasets),
            active_jobs=Used(limit=found.max_active_jobs, used=n_jobs),
            max_running_jobs=found.max_running_jobs,
            max_open_rounds=found.max_open_rounds,
            max_dataset_records=found.max_dataset_records,
        )
    )
