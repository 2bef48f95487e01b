"""Route of sources: what was spent on the same people, in all datasets."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Response
from pydantic.json_schema import SkipJsonSchema

from models.datasets import SOURCE_PATTERN
from models.errors import NotFound
from models.identity import tenants
from models.identity.caller import Caller
from models.ledger import sources
from models.tables.identity import Scope
from service.api.bodies import DocumentRoute
from service.api.dependencies import NOT_FOUND, Services, respond
from service.http import problems
from service.http.auth import require
from service.schemas import serializers
from service.schemas.base import Name
from service.schemas.sources import Source

router = APIRouter(prefix="/v1/sources", tags=["sources"], route_class=DocumentRoute)

UNLABELLED = "-"
MAX_DATASETS = 200  # listed datasets

OfficerCaller = Annotated[Caller, Depends(require(Scope.LEDGER, Scope.GRANTS, whole_tenant=True))]
SourceInPath = Annotated[
    str,
    Path(
        description="Label of the people in the data; `-` for the datasets without a label.",
        pattern=f"^(-|{SOURCE_PATTERN[1:-1]})$",
        openapi_examples={"source": {"value": "ward-1"}},
    ),
]


@router.get("/{source}", summary="Get a source", response_model=Source, responses=NOT_FOUND)
def get_source(
    source: SourceInPath,
    caller: OfficerCaller,
    services: Services,
    name: Annotated[Name | SkipJsonSchema[None], Query(description="Only datasets with exactly this name.")] = None,
) -> Response:
    """Add up what all datasets over the same people spent and may spend, deleted ones included.

    Without a label, datasets of one name are taken as datasets over the same people: give `-` and their `name`.

    Needs one of the scopes `ledger`, `grants`, and a key that is not bound to one dataset.
    """
    label = None if source == UNLABELLED else source
    if label is not None and name is not None:
        raise problems.ValidationFailed(
            errors=[
                {
                    "pointer": "",
                    "parameter": "name",
                    "message": "name must be left out unless the source is `-`: remove it",
                }
            ]
        )
    with services.database.reading() as session:
        people = sources.of_source(caller.tenant_id, label, name)
        found = sources.total(session, people)
        if not found.n_datasets:
            raise NotFound("source")
        ceiling = tenants.limits(session, caller.tenant_id, services.settings).source_ceiling
        limited = (
            found if ceiling.is_largest_grant else sources.total(session, sources.of_source(caller.tenant_id, label))
        )
        if ceiling.is_largest_grant:
            ceiling = found.largest if label is not None or name is not None else sources.UNLIMITED
            rule = "grants"
        else:
            rule = "amounts"
        listed = sources.list_datasets(session, people, limit=MAX_DATASETS)
        limit = serializers.source_limit(rule if ceiling != sources.UNLIMITED else "none", ceiling, limited)
        return respond(serializers.source(label, name, found, limit, ceiling.delta_atto or 0, listed))
