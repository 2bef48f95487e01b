"""Routes of records of central datasets."""

import hmac
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic.json_schema import SkipJsonSchema
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from models import datasets, encryption, maintenance
from models.identity import audit_trail
from models.identity.caller import Caller
from models.ledger.ledger import balance
from models.records import record_keys, records, user_counts
from models.records.clipped_records import find_clipped
from models.records.known_records import Comparison, compare
from models.records.records import MAX_PARTS, Part, Upload
from models.tables.datasets import Dataset, Trust
from models.tables.identity import Act, Scope
from service.api.bodies import DocumentRoute
from service.api.dependencies import (
    POST_BODY,
    Created,
    DatasetIdInPath,
    IdempotencyKey,
    IdempotentRequest,
    Services,
    fingerprinted,
    rejections,
    respond,
)
from service.context import GatewayContext
from service.http import problems
from service.http.auth import require
from service.http.headers import media_type
from service.http.problems import UnsupportedMediaType, ValidationFailed
from service.ingestion.record_formats import READERS
from service.ingestion.record_validation import InvalidUserId, RecordValidator, normalise_user_id
from service.ingestion.upload_memory import MemoryReservation, read_upload
from service.schemas import serializers
from service.schemas.datasets import RecordCounts, RecordUpload
from sfumato.privacy.accounting import EPSILON_MAX_NANO
from sfumato.sizing.required_reports import least_records

PART_MICROSECONDS = 24 * 3600 * 10**6  # time for the rest of an upload in parts
MAX_USER_TEXT = 1000  # characters; a normalised id has at most 64 bytes
UPLOAD = "create_records"  # name of the transaction that stores an upload

router = APIRouter(prefix="/v1/datasets", tags=["records"], route_class=DocumentRoute)

RecordKeeperCaller = Annotated[Caller, Depends(require(Scope.RECORDS))]

_BINARY = {"schema": {"type": "string", "format": "binary"}}
_CSV = "longitude,latitude\n2.35,48.86\n-0.58,44.84\n"
_BODY: dict[str, Any] = {
    "required": True,
    "content": {
        "application/json": {"schema": {"$ref": "#/components/schemas/RecordRows"}},
        "text/csv": _BINARY | {"examples": {"two": {"value": _CSV}}},
        "application/x-npy": _BINARY,
        "application/vnd.apache.arrow.stream": _BINARY,
        "application/vnd.apache.arrow.file": _BINARY,
    },
}


@router.post(
    "/{dataset_id}/records",
    summary="Upload records",
    status_code=201,
    response_model=RecordUpload,
    responses=rejections(
        problems.NotFound, problems.DuplicateContent, problems.MostlyClipped, problems.Conflict, *POST_BODY
    ),
    openapi_extra={"requestBody": _BODY},
)
async def upload_records(
    request: Request,
    dataset_id: DatasetIdInPath,
    caller: RecordKeeperCaller,
    services: Services,
    allow_duplicates: Annotated[
        bool, Query(description="Store the records even if the dataset has an upload of the same records.")
    ] = False,
    accept_clipping: Annotated[
        bool, Query(description="Store the records even if more than half of them are clipped to the bounds.")
    ] = False,
    upload: Annotated[
        str | None,
        Query(pattern="^[A-Za-z0-9_-]{1,64}$", description="The client's name of an upload in parts; with `part`."),
    ] = None,
    part: Annotated[
        int | None, Query(ge=1, le=MAX_PARTS, description="Number of the part, from 1; with `upload`.")
    ] = None,
    last: Annotated[bool, Query(description="Whether this is the last part: with it, the upload counts.")] = False,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Append records to a central dataset. An upload is stored completely or not at all.

    Columns are the features, the attributes, and the `user_feature` if the dataset has one: text or whole numbers, at
    most 64 bytes. A missing user, `nan`, and a decimal spelling such as `7.0` are rejected. The service stores
    encrypted what jobs use:
    values clipped to the bounds and scaled, and users as keyed pseudonyms.
    Values that are not finite are rejected. Values outside the bounds are treated as the dataset declares. A vector of
    an embedding that is longer than the norm is outside; clipping scales it down to the norm. The response counts
    zero vectors and features that are constant, which suggest missing data. It also states how many more records the
    smallest useful job needs.

    A categorical attribute is text, or a whole number as its text; a numeric one is a number. Values that are not
    declared are refused or counted, as the attribute declares; only this response states their number. The texts for a
    missing value mean one unless they are in the vocabulary.

    - `application/json`: `columns` and `rows`, at most 16 MiB.
    - `text/csv`: UTF-8, a header row, one record per line.
    - `application/x-npy`: float64 or float32 of shape (n, number of features), row-major, features in order. It has no
      attributes.
    - `application/vnd.apache.arrow.stream` or `application/vnd.apache.arrow.file`: uncompressed, at most 128 MiB.
      Only attributes may have nulls. Either type accepts both formats. Features are integers, floats or decimals, also
      in a dictionary. An embedding may be one column of lists, under any name.

    If more than 1 % of the records of an upload were clipped, `warnings` states how many, and in which features. If
    more than 50 % were, it is rejected with `mostly_clipped`, unless `accept_clipping` is true. All parts of an upload
    count together.

    The body ends with the format; an upload with more after its end is rejected. A value beyond a bound by at most one
    unit in the last place of its floating-point type is the bound.

    An upload of the same records in the same order is rejected with `duplicate_content`, unless `allow_duplicates` is
    true. So is an upload of 20 or more records if the dataset has 95 % of them, in any order and format. From 50 % on,
    `n_repeated` states how many the dataset had. Records are the same if the service stores the same for them and their
    users. Within a day, a request
    with the same body and the same `Idempotency-Key` gets the response of the first request and appends nothing.

    A client can send an upload in parts: with its own name of the `upload`, and the number of the `part`. Each part has
    the format of a whole upload. No record counts before the `last` part is stored, after all others. A part can be
    sent again, and an incomplete upload is deleted a day after its newest part.

    `DELETE` removes the stored hashes of records and keys: an upload that is repeated after it is appended. Needs the
    scope `records`.
    """
    kind = media_type(request.scope)
    reader_of = READERS.get(kind)
    await run_in_threadpool(_check, services, caller, dataset_id)
    if reader_of is None:
        accepted = ", ".join(each.decode() for each in READERS)
        raise UnsupportedMediaType(f"the content type is not supported: send one of {accepted}")
    if (upload is None) != (part is None) or (last and part is None):
        raise ValidationFailed(
            "upload and part must be sent together, and last only with a part: add the missing one, or remove last"
        )
    dataset, key = await run_in_threadpool(_opened, services, caller, dataset_id)
    what = b"\n".join([fingerprinted(request, caller), kind, b""])
    digest = hmac.new(key.uploads, what, "sha256")
    with MemoryReservation(services.upload_memory) as reservation:
        named = None
        if upload is not None and part is not None:
            name_hash = hmac.digest(key.uploads, b"name\n" + upload.encode(), "sha256")
            named = Part(name_hash, part, last, services.database.clock() + PART_MICROSECONDS)
        opened = await run_in_threadpool(_begin, services, dataset, key, named)
        validator = RecordValidator(dataset, opened, services.settings.max_upload_records, reservation.grow)
        await read_upload(request.stream(), reader_of(validator), digest)
        post = IdempotentRequest(services, caller, _kept_key(key, idempotency_key), digest.digest(), UPLOAD)
        return await run_in_threadpool(_store, post, validator, allow_duplicates, accept_clipping)


def _check(services: GatewayContext, caller: Caller, dataset_id: str) -> Dataset:
    with services.database.reading() as session:
        found = datasets.get(session, caller, dataset_id)
    datasets.require_trust(found, Trust.CENTRAL)
    return found


def _opened(services: GatewayContext, caller: Caller, dataset_id: str) -> tuple[Dataset, record_keys.DataKey]:
    """Return the dataset and the key that encrypts its records, before the body is read."""
    keyring = encryption.load_keyring(services.settings)

    def open_(session: Session) -> tuple[Dataset, record_keys.DataKey]:
        found = datasets.get(session, caller, dataset_id, lock=True)
        return found, record_keys.open_or_create(session, dataset_id, keyring)

    return services.database.run("open_records_key", open_)


def _begin(services: GatewayContext, dataset: Dataset, key: record_keys.DataKey, part: Part | None) -> Upload:
    """Return a new upload, or the upload that earlier parts belong to."""
    if part is None:
        return Upload(key, dataset.n_columns)
    with services.database.reading() as session:
        earlier = records.find_upload(session, dataset.id, part.name_hash)
    return Upload(key, dataset.n_columns, part=part, upload_id=earlier)


def _kept_key(key: record_keys.DataKey, given: str | None) -> str | None:
    """Return the stored form of an idempotency key, because a client may derive a key from records."""
    return None if given is None else hmac.new(key.uploads, b"key\n" + given.encode(), "sha256").hexdigest()


def _store(
    request: IdempotentRequest, validator: RecordValidator, allow_duplicates: bool, accept_clipping: bool
) -> Response:
    upload = validator.finish()
    dataset_id = upload.key.dataset_id
    is_whole = upload.part is None or upload.part.is_last
    earlier = _compare(request, upload) if is_whole and not allow_duplicates else None

    def store(session: Session, now: int) -> Created:
        dataset = datasets.get(session, request.caller, dataset_id, lock=True)
        compared = earlier
        clipping = find_clipped(session, dataset, upload)
        if compared is not None and records.digest(session, dataset_id) != compared.digest:
            compared = compare(session, dataset, upload)  # another upload was stored since
        limits = request.limits(session)
        most = limits.max_dataset_records
        if records.append(session, upload, max_records=most, allow_duplicates=allow_duplicates, now=now):
            if compared is not None:
                compared.check()
            if not accept_clipping:
                clipping.check()
            audit_trail.record_day(session, request.caller, Act.RECORDS_UPLOADED, dataset_id, now=now)
        n_lacking, warnings = None, [clipping.warning] if is_whole and clipping.warning else []
        if is_whole:
            least = least_records(_known_epsilon(session, request.caller, dataset_id), dataset.max_records_per_user)
            n_lacking = max(least - records.count(session, dataset_id).n_records, 0)
        body = {
            "id": upload.id,
            "n_records": upload.n_records,
            "n_clipped": upload.n_clipped,
            "n_zeros": validator.n_zeros,
            "n_constant": validator.n_constant,
            "n_lacking": n_lacking,
            "n_repeated": 0 if compared is None else compared.n_repeated,
            "warnings": warnings,
            "attributes": [asdict(each) for each in validator.attribute_counts],
        }
        return Created(body, location=f"/v1/datasets/{dataset_id}/records")

    return request.respond(201, store)


def _compare(request: IdempotentRequest, upload: Upload) -> Comparison:
    """Compare the upload with the stored records, before the transaction that locks the dataset."""
    with request.services.database.reading() as session:
        return compare(session, datasets.get(session, request.caller, upload.key.dataset_id), upload)


def _known_epsilon(session: Session, caller: Caller, dataset_id: str) -> int:
    """Return the granted ε in nano, or the largest possible one for a key that may not read the budget."""
    may_read = caller.may(Scope.LEDGER) or caller.may(Scope.GRANTS)
    return balance(session, dataset_id).granted_nano if may_read else EPSILON_MAX_NANO


@router.get(
    "/{dataset_id}/records",
    summary="Count records",
    response_model=RecordCounts,
    responses=rejections(problems.NotFound, problems.Conflict),
)
def count_records(dataset_id: DatasetIdInPath, caller: RecordKeeperCaller, services: Services) -> Response:
    """Return the exact number of records. The number is private and shown only with the scope `records`."""
    found = _check(services, caller, dataset_id)
    with MemoryReservation(services.upload_memory) as reservation, services.database.reading() as session:
        counts = records.count(session, dataset_id)
        users = None
        if found.user_feature is not None and counts.n_records:
            reservation.grow(min(user_counts.COUNT_BYTES, user_counts.BYTES_PER_COUNTED * counts.n_records))
            users = user_counts.count_users(session, found, encryption.load_keyring(services.settings))
    return respond(serializers.record_counts(counts, users, by_user=found.user_feature is not None))


@router.delete(
    "/{dataset_id}/records",
    summary="Delete records",
    status_code=204,
    responses=rejections(problems.NotFound, problems.Conflict),
)
def delete_records(
    dataset_id: DatasetIdInPath,
    caller: RecordKeeperCaller,
    services: Services,
    user: Annotated[
        str | SkipJsonSchema[None],
        Query(
            min_length=1,
            max_length=MAX_USER_TEXT,
            description="Delete the records of this user, of a dataset with a `user_feature`. The id is normalised as "
            "in an upload.",
        ),
    ] = None,
    all_records: Annotated[
        bool, Query(alias="all", description="Delete the records of all users, and their encryption key.")
    ] = False,
) -> Response:
    """Delete the records of one user, or with `all=true` all records. Dataset, ledger and results stay.

    The response is the same whether or not the user had records. The audit trail does not name the user. Deleting costs
    no budget. A released result cannot forget: it stays as it is, and its guarantee covers the user. A job that has
    already read the records continues with them, and an upload that ends later is stored.

    Needs the scope `records`.
    """
    if (user is None) != all_records:
        message = "send either the user whose records to delete, or all=true to delete the records of everybody"
        raise ValidationFailed(errors=[{"pointer": "", "parameter": "user", "message": message}])
    database = services.database
    if user is None:
        database.run(
            "delete_records",
            lambda session: maintenance.delete_records(session, caller, dataset_id, now=database.clock()),
        )
        return Response(status_code=204)
    found = _check(services, caller, dataset_id)
    try:
        person = normalise_user_id(user, fold_case=found.fold_user_case)
    except InvalidUserId as error:
        raise ValidationFailed(errors=[{"pointer": "", "parameter": "user", "message": str(error)}]) from None
    keyring = encryption.load_keyring(services.settings)
    database.run(
        "delete_person",
        lambda session: maintenance.delete_person(session, caller, dataset_id, person, keyring, now=database.clock()),
    )
    return Response(status_code=204)
