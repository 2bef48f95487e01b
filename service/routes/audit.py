"""The audit trail: who did which act of administration, when."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response
from pydantic import StringConstraints
from pydantic.json_schema import SkipJsonSchema

from models import audit
from models import dataset as datasets
from models.audit import OPERATOR
from models.tenant import Caller, Scope
from service import problems, views
from service.auth import require
from service.dependencies import DatasetIdInQuery, PageHere, ServicesHere, respond
from service.key_resources import AuditPage
from service.problems import documented
from service.resources import ULID

router = APIRouter(prefix="/v1/audit", tags=["audit"])

AdminHere = Annotated[Caller, Depends(require(Scope.ADMIN, whole_tenant=True))]
ActInQuery = Annotated[
    Annotated[str, StringConstraints(pattern="^[a-z]+[.][a-z_]+$", max_length=40)] | SkipJsonSchema[None],
    Query(description="Only such acts."),
]
ActorInQuery = Annotated[
    Annotated[str, StringConstraints(pattern=f"^({OPERATOR}|key_{ULID})$")] | SkipJsonSchema[None],
    Query(description="Only acts of this key, or of `operator`."),
]


@router.get(
    "",
    operation_id="listAuditEvents",
    summary="List acts of administration",
    response_model=AuditPage,
    responses=documented(problems.Unauthenticated, problems.Forbidden, problems.NotFound, problems.ValidationFailed),
)
def list_audit_events(
    caller: AdminHere,
    page: PageHere,
    services: ServicesHere,
    dataset_id: DatasetIdInQuery = None,
    act: ActInQuery = None,
    actor: ActorInQuery = None,
) -> Response:
    """Who made, changed or ended keys, datasets, grants, rounds, jobs, records, in order; each with the hash of the
    one before. What was refused is not there, nor what changed nothing. Events are kept for ever, those of deleted
    datasets too.

    Needs the scope `admin` and a key that is not bound to one dataset.
    """
    with services.database.reading() as session:
        if dataset_id is not None:
            datasets.get(session, caller, dataset_id, deleted=True)
        rows = audit.page(
            session,
            caller.tenant_id,
            after_seq=page.after_seq,
            limit=page.limit + 1,
            dataset_id=dataset_id,
            act=act,
            actor=actor,
        )
        rows, next_cursor = page.cut(rows, lambda row: str(row.seq))
        return respond(AuditPage(items=[views.audit_event(row) for row in rows], next_cursor=next_cursor))
