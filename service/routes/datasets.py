"""Datasets: made, changed, listed, deleted."""

from typing import Annotated

from fastapi import APIRouter, Depends, Header, Response
from pydantic.json_schema import SkipJsonSchema
from sqlalchemy.orm import Session

from models import dataset as datasets
from models import quota, removal
from models.dataset import OutOfBounds, Trust
from models.tenant import Caller, Scope
from service import problems, views
from service.auth import require
from service.dependencies import (
    DatasetIdInPath,
    Made,
    PageHere,
    Posting,
    ServicesHere,
    once,
    respond,
    to_json,
)
from service.problems import PreconditionFailed, documented
from service.resources import Dataset, DatasetChange, DatasetPage, NewDataset
from service.spec_schemas import feature_to_domain
from service.validators import etag, is_named
from sfumato.accounting import parse_delta, parse_epsilon

router = APIRouter(prefix="/v1/datasets", tags=["datasets"])

_READERS = (Scope.DATASETS, Scope.RECORDS, Scope.JOBS, Scope.LEDGER)
ReaderHere = Annotated[Caller, Depends(require(*_READERS))]
KeeperHere = Annotated[Caller, Depends(require(Scope.DATASETS))]
PostingHere = Annotated[Posting, Depends(once(Scope.DATASETS, whole_tenant=True))]

_DENIED = (problems.Unauthenticated, problems.Forbidden)


@router.post(
    "",
    operation_id="createDataset",
    summary="Create a dataset",
    status_code=201,
    response_model=Dataset,
    responses=documented(
        *_DENIED, problems.BadRequest, problems.ValidationFailed, problems.IdempotencyKeyReused,
        problems.PayloadTooLarge, problems.UnsupportedMediaType,
    ),
)  # fmt: skip
def create_dataset(body: NewDataset, posting: PostingHere) -> Response:
    """Declares features with public bounds, who sees raw values, and grants the first budget.

    Only a central dataset may be granted a `delta`. Features, bounds, trust and what is declared of users never
    change: reports and records depend on them. Needs the scope `datasets` and a key that is not bound to one dataset.
    """

    def create(session: Session, now: int) -> Made:
        made = datasets.create(
            session,
            posting.caller,
            name=body.name,
            trust=Trust(body.trust),
            features=tuple(feature_to_domain(feature) for feature in body.features),
            epsilon_nano=parse_epsilon(body.epsilon),
            min_reports=body.min_reports,
            keep_reports=body.keep_reports,
            max_datasets=quota.limits(session, posting.caller.tenant_id, posting.services.settings).max_datasets,
            now=now,
            user_feature=body.user_feature,
            max_records_per_user=body.max_records_per_user,
            out_of_bounds=OutOfBounds(body.out_of_bounds),
            delta_atto=parse_delta(body.delta),
        )
        return Made(views.dataset(made), location=f"/v1/datasets/{made.id}")

    return posting.answer(201, create)


@router.get(
    "",
    operation_id="listDatasets",
    summary="List datasets",
    response_model=DatasetPage,
    responses=documented(*_DENIED, problems.ValidationFailed),
)
def list_datasets(caller: ReaderHere, page: PageHere, services: ServicesHere) -> Response:
    """Every dataset the key sees, oldest first. Needs one of the scopes `datasets`, `records`, `jobs`, `ledger`."""
    with services.database.reading() as session:
        rows = datasets.page(session, caller, after=page.after, limit=page.limit + 1)
        rows, next_cursor = page.cut(rows, lambda row: row.id)
        return respond(DatasetPage(items=[views.dataset(row) for row in rows], next_cursor=next_cursor))


@router.get(
    "/{dataset_id}",
    operation_id="getDataset",
    summary="Get a dataset",
    response_model=Dataset,
    responses=documented(*_DENIED, problems.NotFound),
)
def get_dataset(dataset_id: DatasetIdInPath, caller: ReaderHere, services: ServicesHere) -> Response:
    """One dataset, with an `ETag` for a careful change.

    Needs one of the scopes `datasets`, `records`, `jobs`, `ledger`.
    """
    with services.database.reading() as session:
        return _tagged(views.dataset(datasets.get(session, caller, dataset_id)))


@router.patch(
    "/{dataset_id}",
    operation_id="updateDataset",
    summary="Change a dataset",
    response_model=Dataset,
    responses=documented(
        *_DENIED, problems.BadRequest, problems.NotFound, problems.PreconditionFailed, problems.ValidationFailed,
        problems.PayloadTooLarge, problems.UnsupportedMediaType,
    ),
)  # fmt: skip
def update_dataset(
    dataset_id: DatasetIdInPath,
    body: DatasetChange,
    caller: KeeperHere,
    services: ServicesHere,
    if_match: Annotated[
        str | SkipJsonSchema[None], Header(alias="If-Match", description="Change only what still has this `ETag`.")
    ] = None,
) -> Response:
    """Changes the name, the minimum of reports, or the retention; what is left out stays.

    Needs the scope `datasets`.
    """

    def change(session: Session) -> Dataset:
        if if_match is not None:
            current = views.dataset(datasets.get(session, caller, dataset_id, lock=True))
            if not is_named(etag(to_json(current)), if_match):
                raise PreconditionFailed("the dataset has changed since")
        changed = datasets.change(
            session,
            caller,
            dataset_id,
            name=body.name,
            min_reports=body.min_reports,
            keep_reports=body.keep_reports,
            now=services.database.clock(),
        )
        return views.dataset(changed)

    return _tagged(services.database.run("change_dataset", change))


@router.delete(
    "/{dataset_id}",
    operation_id="deleteDataset",
    summary="Delete a dataset",
    status_code=204,
    responses=documented(*_DENIED, problems.NotFound),
)
def delete_dataset(dataset_id: DatasetIdInPath, caller: KeeperHere, services: ServicesHere) -> Response:
    """Cancels its jobs, closes its rounds, scrubs its reports and records; ledger and results stay readable.

    Needs the scope `datasets`.
    """
    canceled = services.database.run(
        "delete_dataset", lambda session: removal.remove(session, caller, dataset_id, now=services.database.clock())
    )
    services.notices.tell(dataset_id, *canceled)
    return Response(status_code=204)


def _tagged(dataset: Dataset) -> Response:
    response = respond(dataset)
    response.headers["etag"] = etag(bytes(response.body))
    return response
