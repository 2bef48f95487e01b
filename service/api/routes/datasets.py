"""Routes of datasets."""

from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Response
from pydantic.json_schema import SkipJsonSchema
from sqlalchemy.orm import Session

from models import datasets, maintenance
from models.identity.caller import Caller
from models.ledger import ledger, sources
from models.ledger.amounts import Amounts
from models.tables.datasets import Trust
from models.tables.identity import Scope
from service.api.bodies import DocumentRoute
from service.api.dependencies import (
    JSON_BODY,
    NOT_FOUND,
    POST_BODY,
    Created,
    DatasetIdInPath,
    IdempotentRequest,
    Json,
    RequestedPage,
    Services,
    idempotent_post,
    rejections,
    respond,
)
from service.http import problems
from service.http.auth import check, require
from service.http.headers import etag, etag_matches
from service.http.problems import PreconditionFailed
from service.schemas import serializers
from service.schemas.base import Name
from service.schemas.datasets import CreatedDataset, Dataset, DatasetChange, DatasetPage, NewDataset, Source, TrustModel
from service.schemas.features import features_to_domain
from service.schemas.ledger import shuffled_grant
from sfumato.privacy.accountant import Accounting, limit_mu2
from sfumato.privacy.accounting import parse_delta, parse_epsilon
from sfumato.sizing.required_reports import GRID_FEATURES
from sfumato.specs import Embedding

router = APIRouter(prefix="/v1/datasets", tags=["datasets"], route_class=DocumentRoute)

_READERS = (Scope.DATASETS, Scope.GRANTS, Scope.RECORDS, Scope.JOBS, Scope.LEDGER)
ReaderCaller = Annotated[Caller, Depends(require(*_READERS))]
KeeperCaller = Annotated[Caller, Depends(require(Scope.DATASETS))]
ChangerCaller = Annotated[Caller, Depends(require(Scope.DATASETS, Scope.GRANTS))]
IdempotentPost = Annotated[IdempotentRequest, Depends(idempotent_post(Scope.DATASETS, whole_tenant=True))]


@router.post(
    "",
    summary="Create a dataset",
    status_code=201,
    response_model=CreatedDataset,
    responses=rejections(problems.BudgetExhausted, *POST_BODY),
)
def create_dataset(body: NewDataset, request: IdempotentPost) -> Response:
    """Create a dataset with public bounds, a trust model and a first grant.

    Only a central dataset can have a `delta`. Only a shuffled dataset has a shuffler and a shuffled grant. Features,
    bounds, attributes, trust model, shuffler and user settings cannot be changed later, because reports and records
    depend on them. The operator may limit the grant. `warnings` states whether other datasets are over the same people.

    Needs the scope `datasets` and a key that is not bound to one dataset; `source` needs the scope `grants` as well.
    """
    if body.source is not None:
        check(request.caller, Scope.GRANTS)

    def create(session: Session, now: int) -> Created:
        limits = request.limits(session)
        created = datasets.create(
            session,
            request.caller,
            name=body.name,
            trust=Trust(body.trust),
            features=features_to_domain(body.features),
            epsilon_nano=parse_epsilon(body.epsilon),
            max_datasets=limits.max_datasets,
            now=now,
            delta_atto=parse_delta(body.delta),
            source=body.source,
            accounting=_accounting(body),
            shuffled=shuffled_grant(body.shuffled),
            ceiling=limits.dataset_ceiling,
            **body.options(),
        )
        n_others = sources.count_same_people(session, created)
        return Created(serializers.created_dataset(created, n_others), location=f"/v1/datasets/{created.id}")

    return request.respond(201, create)


@router.get("", summary="List datasets", response_model=DatasetPage, responses=rejections())
def list_datasets(
    caller: ReaderCaller,
    page: RequestedPage,
    services: Services,
    name: Annotated[Name | SkipJsonSchema[None], Query(description="Only datasets with exactly this name.")] = None,
    source: Annotated[Source | SkipJsonSchema[None], Query(description="Only datasets of this source.")] = None,
    trust: Annotated[
        TrustModel | SkipJsonSchema[None], Query(description="Only datasets with this trust model.")
    ] = None,
) -> Response:
    """List the datasets that the key can access, newest first.

    Needs one of the scopes `datasets`, `grants`, `records`, `jobs`, `ledger`.
    """
    with services.database.reading() as session:
        rows = datasets.page(session, caller, name=name, source=source, trust=trust, **page.bounds)
        return page.respond(rows, serializers.dataset)


@router.get("/{dataset_id}", summary="Get a dataset", response_model=Dataset, responses=NOT_FOUND)
def get_dataset(dataset_id: DatasetIdInPath, caller: ReaderCaller, services: Services) -> Response:
    """Return one dataset, with an `ETag` for conditional changes.

    Needs one of the scopes `datasets`, `grants`, `records`, `jobs`, `ledger`.
    """
    with services.database.reading() as session:
        return _tagged(serializers.dataset(datasets.get(session, caller, dataset_id)))


@router.patch(
    "/{dataset_id}",
    summary="Change a dataset",
    response_model=Dataset,
    responses=rejections(problems.NotFound, problems.PreconditionFailed, *JSON_BODY),
)
def update_dataset(
    dataset_id: DatasetIdInPath,
    body: DatasetChange,
    caller: ChangerCaller,
    services: Services,
    if_match: Annotated[
        str | SkipJsonSchema[None],
        Header(alias="If-Match", description="Change the dataset only if it has this `ETag`."),
    ] = None,
) -> Response:
    """Change the name, the minimal number of reports, the retention of reports, the source or the accounting.

    Absent members stay unchanged. Needs the scope `datasets`, and for source and accounting the scope `grants`.
    """
    if body.source is not None or body.accounting is not None:
        check(caller, Scope.GRANTS)
    if not body.model_fields_set or body.model_fields_set - {"source", "accounting"}:
        check(caller, Scope.DATASETS)

    def change(session: Session) -> Json:
        if if_match is not None:
            current = _tagged(serializers.dataset(datasets.get(session, caller, dataset_id, lock=True)))
            if not etag_matches(current.headers["etag"], if_match):
                raise PreconditionFailed("the dataset has another ETag now; read it again and repeat the change")
        now = services.database.clock()
        return serializers.dataset(
            maintenance.change_dataset(session, caller, dataset_id, **body.model_dump(), now=now)
        )

    return _tagged(services.database.run("change_dataset", change))


@router.delete("/{dataset_id}", summary="Delete a dataset", status_code=204, responses=NOT_FOUND)
def delete_dataset(dataset_id: DatasetIdInPath, caller: KeeperCaller, services: Services) -> Response:
    """Cancel the jobs of the dataset, closes its rounds, and scrubs its reports and records.

    Ledger and results stay readable.

    Needs the scope `datasets`.
    """
    canceled = services.database.run(
        "delete_dataset",
        lambda session: maintenance.delete_dataset(session, caller, dataset_id, now=services.database.clock()),
    )
    services.change_feed.publish(dataset_id, *canceled)
    return Response(status_code=204)


def _accounting(body: NewDataset) -> Accounting:
    """Return the accounting of a new dataset: Gaussian where its jobs are blocks and its grant covers mu^2."""
    if body.accounting is not None:
        if body.accounting == "gaussian":
            with problems.pointing_at("/accounting"):
                amounts = parse_epsilon(body.epsilon), parse_delta(body.delta)
                ledger.require_gaussian(Amounts(*amounts, *shuffled_grant(body.shuffled)))
        return body.accounting
    features = features_to_domain(body.features)
    n_features = features.dimensions if isinstance(features, Embedding) else len(features)
    is_wide = body.trust == "central" and n_features > GRID_FEATURES
    covers = is_wide and limit_mu2(parse_epsilon(body.epsilon), parse_delta(body.delta)) > 0
    return "gaussian" if covers else "additive"


def _tagged(dataset: Json) -> Response:
    response = respond(dataset)
    response.headers["etag"] = etag(bytes(response.body))
    return response
