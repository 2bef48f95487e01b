"""Routes of the audit trail."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response
from pydantic import StringConstraints
from pydantic.json_schema import SkipJsonSchema

from models import datasets
from models.identity import audit_trail
from models.identity.caller import OPERATOR, Caller
from models.tables.identity import Scope
from service.api.bodies import DocumentRoute
from service.api.dependencies import NOT_FOUND, DatasetIdInQuery, NumberedPage, Services
from service.http.auth import require
from service.schemas import serializers
from service.schemas.fields import ULID
from service.schemas.keys import AuditAct, AuditPage

router = APIRouter(prefix="/v1/audit", tags=["audit"], route_class=DocumentRoute)

AdminCaller = Annotated[Caller, Depends(require(Scope.ADMIN, whole_tenant=True))]
ActionInQuery = Annotated[AuditAct | SkipJsonSchema[None], Query(description="Only events with this `act`.")]
ActorInQuery = Annotated[
    Annotated[str, StringConstraints(pattern=f"^({OPERATOR}|key_{ULID})$")] | SkipJsonSchema[None],
    Query(description="Only events with this `actor`: a key, or `operator`."),
]
ObjectInQuery = Annotated[
    Annotated[str, StringConstraints(pattern=f"^[a-z]{{2,6}}_{ULID}$")] | SkipJsonSchema[None],
    Query(description="Only events with this `subject_id`: the id of the object of the act."),
]


@router.get("", summary="List acts of administration", response_model=AuditPage, responses=NOT_FOUND)
def list_audit_events(
    caller: AdminCaller,
    page: NumberedPage,
    services: Services,
    dataset_id: DatasetIdInQuery = None,
    action: ActionInQuery = None,
    actor: ActorInQuery = None,
    object: ObjectInQuery = None,
) -> Response:
    """List the acts of administration, newest first.

    They are the creation, change and end of keys, datasets, grants, rounds, jobs and records. Each event has the hash
    of the previous one. Rejected requests and requests without effect are not listed. Events are kept for an unlimited
    time, also those of deleted datasets.

    Needs the scope `admin` and a key that is not bound to one dataset.
    """
    with services.database.reading() as session:
        if dataset_id is not None:
            datasets.get(session, caller, dataset_id, deleted=True)
        rows = audit_trail.page(
            session,
            caller.tenant_id,
            dataset_id=dataset_id,
            act=action,
            actor=actor,
            subject_id=object,
            **page.numbered_bounds,
        )
        return page.respond(rows, serializers.audit_event, lambda row: str(row.seq))
