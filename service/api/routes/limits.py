"""Route of the limits of a tenant."""

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Depends, Response

from models import datasets
from models.identity import tenants
from models.identity.caller import Caller
from models.jobs import jobs
from models.tables.identity import Scope
from service.api.bodies import DocumentRoute
from service.api.dependencies import Services, rejections, respond
from service.http.auth import require
from service.schemas import serializers
from service.schemas.keys import Limits

router = APIRouter(prefix="/v1/limits", tags=["limits"], route_class=DocumentRoute)

TenantCaller = Annotated[Caller, Depends(require(Scope.DATASETS, Scope.JOBS, whole_tenant=True))]


@router.get("", summary="Get the limits of the tenant", response_model=Limits, responses=rejections())
def get_limits(caller: TenantCaller, services: Services) -> Response:
    """Return the limits of the tenant, from the settings of the operator or from its own quota, and their present use.

    The number of running jobs and the number of records are not shown.

    Needs one of the scopes `datasets`, `jobs`, and a key that is not bound to one dataset.
    """
    with services.database.reading() as session:
        found = tenants.limits(session, caller.tenant_id, services.settings)
        n_jobs = jobs.count_active(session, caller.tenant_id) if caller.may(Scope.JOBS) else None
        n_datasets = datasets.count(session, caller.tenant_id)
    limits = asdict(found)
    for name in ("dataset", "source"):
        ceiling = limits.pop(f"{name}_ceiling")
        nano, atto = ceiling["epsilon_nano"], ceiling["delta_atto"]
        if name == "source":
            limits["source_limit"] = (
                "grants" if ceiling["is_largest_grant"] else "none" if nano is atto is None else "amounts"
            )
        limits[f"max_{name}_epsilon"] = None if nano is None else serializers.epsilon(nano)
        limits[f"max_{name}_delta"] = None if atto is None else serializers.delta(atto)
    datasets_used = {"limit": limits.pop("max_datasets"), "used": n_datasets}
    jobs_used = {"limit": limits.pop("max_active_jobs"), "used": n_jobs}
    return respond(limits | {"datasets": datasets_used, "active_jobs": jobs_used})
