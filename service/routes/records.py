"""Records of central datasets: uploaded, counted, deleted."""

import hmac
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from models import audit, quota, record, record_key, removal, sealing
from models import dataset as datasets
from models.audit import Act
from models.dataset import Dataset, Trust
from models.record import Upload
from models.tenant import Caller, Scope
from service import problems, views
from service.auth import require
from service.dependencies import DatasetIdInPath, IdempotencyKey, Made, Posting, ServicesHere, respond
from service.intake import Intake
from service.problems import UnsupportedMediaType, documented
from service.record_formats import READERS
from service.resources import RecordCounts, RecordUpload
from service.services import Services
from service.uploads import read

UPLOAD = "create_records"  # the transaction that stores one

router = APIRouter(prefix="/v1/datasets", tags=["records"])

RecordKeeperHere = Annotated[Caller, Depends(require(Scope.RECORDS))]

_DENIED = (problems.Unauthenticated, problems.Forbidden)
_BINARY = {"schema": {"type": "string", "format": "binary"}}
_CSV = "longitude,latitude\n2.35,48.86\n-0.58,44.84\n"
_BODY: dict[str, Any] = {
    "required": True,
    "content": {
        "application/json": {"schema": {"$ref": "#/components/schemas/RecordRows"}},
        "text/csv": {"schema": {"type": "string"}, "examples": {"two": {"value": _CSV}}},
        "application/x-npy": _BINARY,
        "application/vnd.apache.arrow.stream": _BINARY,
    },
}


@router.post(
    "/{dataset_id}/records",
    operation_id="uploadRecords",
    summary="Upload records",
    status_code=201,
    response_model=RecordUpload,
    responses=documented(
        *_DENIED, problems.BadRequest, problems.NotFound, problems.Conflict, problems.ValidationFailed,
        problems.IdempotencyKeyReused, problems.PayloadTooLarge, problems.UnsupportedMediaType,
    ),
    openapi_extra={"requestBody": _BODY},
)  # fmt: skip
async def upload_records(
    request: Request,
    dataset_id: DatasetIdInPath,
    caller: RecordKeeperHere,
    services: ServicesHere,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Appends records to a central dataset: all of an upload or, where anything is wrong with it, nothing.

    Columns are the declared features and, where the dataset has one, its `user_feature` (text or whole numbers, at
    most 64 bytes). Stored, encrypted, is what jobs use: values clipped to the bounds and scaled, users as keyed
    pseudonyms. Values that are not finite are refused; those outside of their bounds as the dataset declares.

    - `application/json`: `columns` and `rows`, at most 16 MiB.
    - `text/csv`: UTF-8, a header row, a record a line.
    - `application/x-npy`: float64 or float32 of shape (n, number of features), row by row; the features in order.
    - `application/vnd.apache.arrow.stream`: uncompressed, without nulls, at most 128 MiB.

    With the same `Idempotency-Key` the same body is appended once, however often it is sent within a day; with another
    key, or with none, it is appended again. Keys are kept by dataset, and `DELETE` forgets those that came before: an
    upload that is sent again after it is appended. Needs the scope `records`.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    reader_of = READERS.get(kind.encode("latin-1"))
    await run_in_threadpool(_check, services, caller, dataset_id)
    if reader_of is None:
        raise UnsupportedMediaType(f"this path reads {', '.join(each.decode() for each in READERS)}")
    dataset, key = await run_in_threadpool(_opened, services, caller, dataset_id)
    what = "\n".join(["POST", request.url.path, caller.dataset_id or "", kind, ""])
    digest = hmac.new(key.uploads, what.encode(), "sha256")
    with services.uploads.begin() as held:
        upload = Upload(key, len(dataset.features))
        intake = Intake(dataset, upload, services.settings.max_upload_records, held.take)
        await read(request.stream(), reader_of(intake), digest)
        posting = Posting(services, caller, _kept_key(key, idempotency_key), digest.digest(), UPLOAD)
        return await run_in_threadpool(_store, posting, intake.finish())


def _check(services: Services, caller: Caller, dataset_id: str) -> Dataset:
    with services.database.reading() as session:
        found = datasets.get(session, caller, dataset_id)
    datasets.require_trust(found, Trust.CENTRAL)
    return found


def _opened(services: Services, caller: Caller, dataset_id: str) -> tuple[Dataset, record_key.DataKey]:
    """The dataset and the key that seals its records; before anything of the body is read."""
    keyring = sealing.keyring_of(services.settings)

    def open_(session: Session) -> tuple[Dataset, record_key.DataKey]:
        found = datasets.get(session, caller, dataset_id, lock=True)
        return found, record_key.open_or_make(session, dataset_id, keyring)

    return services.database.run("open_records_key", open_)


def _kept_key(key: record_key.DataKey, given: str | None) -> str | None:
    """What stands for a client's idempotency key: keys are shared by a tenant, and this one may be made of records."""
    return None if given is None else hmac.new(key.uploads, b"key\n" + given.encode(), "sha256").hexdigest()


def _store(posting: Posting, upload: Upload) -> Response:
    dataset_id = upload.key.dataset_id

    def store(session: Session, now: int) -> Made:
        datasets.get(session, posting.caller, dataset_id, lock=True)
        limits = quota.limits(session, posting.caller.tenant_id, posting.services.settings)
        record.append(session, upload, max_records=limits.max_dataset_records)
        audit.record_day(session, posting.caller, Act.RECORDS_UPLOADED, dataset_id, now=now)
        body = RecordUpload(id=upload.id, n_records=upload.n_records, n_clipped=upload.n_clipped)
        return Made(body, location=f"/v1/datasets/{dataset_id}/records")

    return posting.answer(201, store)


@router.get(
    "/{dataset_id}/records",
    operation_id="countRecords",
    summary="Count records",
    response_model=RecordCounts,
    responses=documented(*_DENIED, problems.NotFound, problems.Conflict),
)
def count_records(dataset_id: DatasetIdInPath, caller: RecordKeeperHere, services: ServicesHere) -> Response:
    """How many records there are, exactly. That is private itself, so nobody sees it without the scope `records`."""
    found = _check(services, caller, dataset_id)
    with services.database.reading() as session:
        counts = record.count(session, dataset_id)
        users = None
        if found.user_feature is not None and counts.n_records:
            users = record.count_users(session, found, sealing.keyring_of(services.settings))
    return respond(views.record_counts(counts, users, by_user=found.user_feature is not None))


@router.delete(
    "/{dataset_id}/records",
    operation_id="deleteRecords",
    summary="Delete all records",
    status_code=204,
    responses=documented(*_DENIED, problems.NotFound, problems.Conflict),
)
def delete_records(dataset_id: DatasetIdInPath, caller: RecordKeeperHere, services: ServicesHere) -> Response:
    """Removes every record of the dataset and the key that opens them; dataset, ledger and results stay.

    A job that has read them already goes on with what it read. Needs the scope `records`.
    """
    services.database.run(
        "delete_records",
        lambda session: removal.remove_records(session, caller, dataset_id, now=services.database.clock()),
    )
    return Response(status_code=204)
