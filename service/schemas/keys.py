"""Schemas of keys, the audit trail and the limits of a tenant."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field
from pydantic.json_schema import SkipJsonSchema
from typing_extensions import TypeAliasType

from models.tables.identity import Act
from service.schemas.base import EXAMPLE_ULID, Name, Wire, example, integer
from service.schemas.fields import Amount, Count, Cursor, DatasetId, KeyId, LimitRule, Scope, Time, check_time, id_field

DAY_SECONDS = 86_400
MAX_OVERLAP_SECONDS = 30 * DAY_SECONDS

_ACTS: dict[str, Any] = {"examples": [Act.KEY_ROTATED.value], "x-extensible-enum": [act.value for act in Act]}

EventId = Annotated[str, id_field("aud")]
ComingTime = Annotated[Time, AfterValidator(check_time)]


class NewKey(Wire):
    """A key to create."""

    model_config = example(name="app 4.2", scopes=["device"], dataset_id=f"ds_{EXAMPLE_ULID}")

    name: Annotated[Name, Field(max_length=100)] = Field(description="Display name.")
    scopes: list[Scope] = Field(min_length=1, max_length=7, description="Scopes of the key.")
    dataset_id: DatasetId | SkipJsonSchema[None] = Field(
        None, description="The only dataset that the key can access; all if absent."
    )
    expires_at: ComingTime | SkipJsonSchema[None] = Field(None, description="Time from which the key is rejected.")


class KeyRotation(Wire):
    """Rotation of a key."""

    model_config = example(overlap_seconds=3600)

    overlap_seconds: Annotated[int, integer(0, MAX_OVERLAP_SECONDS)] = Field(
        DAY_SECONDS, description="Time that the old key stays valid, in seconds; 0 revokes it immediately."
    )
    expires_at: ComingTime | SkipJsonSchema[None] = Field(
        None, description="Expiry of the new key; if absent, that of the old key."
    )


class Key(Wire):
    """A bearer key. Its secret is shown once and not stored."""

    id: KeyId
    name: Name
    scopes: list[Scope]
    dataset_id: DatasetId | None
    created_at: Time
    expires_at: Time | None
    revoked_at: Time | None
    replaces: KeyId | None = Field(description="Key that this key replaces.")
    replaced_by: KeyId | None = Field(description="Key that replaces this one, which ends at `expires_at`.")


class NewKeySecret(Key):
    """A new key with its secret."""

    secret: str | None = Field(description="`sfk_...`; shown once. Null in the response to a repeated request.")


class KeyPage(Wire):
    """Keys, newest first."""

    items: list[Key]
    next_cursor: Cursor


if TYPE_CHECKING:
    AuditAct = str
else:
    AuditAct = TypeAliasType(
        "AuditAct", Annotated[Literal[tuple(act.value for act in Act)], Field(description="Kind of an audit event.")]
    )
AuditDetails = TypeAliasType(
    "AuditDetails",
    Annotated[dict[str, Any], Field(description="Details such as the names of changed members; nothing private.")],
)


class AuditEvent(Wire):
    """One act of administration. An event is never changed or removed.

    `hash` is the SHA-256 of the event's canonical JSON (sorted keys, no spaces, UTF-8) of all members but `hash`,
    with `at` in integer microseconds since 1970.
    """

    id: EventId
    tenant_id: str = Field(description="Tenant of the audit trail.")
    seq: Count = Field(description="Sequence number within the tenant: 1, 2, 3, ... without gaps.")
    at: Time = Field(
        description=(
            "Time of the event. For `records.uploaded`, the start of the day (UTC): such an event stands for one or "
            "more uploads of its key to the dataset on that day, and their number and times are private."
        )
    )
    actor: str = Field(description="Key that caused the event; `operator` for the command line.")
    act: str = Field(description="Kind of the act; more kinds may be added.", json_schema_extra=_ACTS)
    subject_id: str = Field(description="Id of the object of the act.")
    dataset_id: DatasetId | None = Field(description="Dataset of the object; null if none.")
    request_id: str | None = Field(description="Id of the request in the log of the service.")
    details: AuditDetails
    prev_hash: str = Field(description="Hash of the previous event; zeros for the first.")
    hash: str


class AuditPage(Wire):
    """Events of the audit trail, newest first."""

    items: list[AuditEvent]
    next_cursor: Cursor


class Used(Wire):
    """A limit and its present use."""

    limit: Count = Field(description="Upper limit.")
    used: Count | None = Field(description="Present number; null if the key lacks the scope to see it.")


class Limits(Wire):
    """Limits of a tenant."""

    model_config = example(
        datasets={"limit": 10_000, "used": 3},
        active_jobs={"limit": 1000, "used": 12},
        max_running_jobs=8,
        max_open_rounds=16,
        max_dataset_records=50_000_000,
        max_dataset_epsilon=8.0,
        max_dataset_delta=1e-6,
        max_source_epsilon=16.0,
        max_source_delta=1e-6,
        source_limit="amounts",
    )

    datasets: Used = Field(description="Datasets, without deleted ones.")
    active_jobs: Used = Field(description="Unfinished jobs. The number is shown to keys with the scope `jobs`.")
    max_running_jobs: Count | None = Field(
        description=(
            "Maximal number of jobs that run at the same time; null for no limit other than the number of workers."
        )
    )
    max_open_rounds: Count = Field(description="Maximal number of open rounds of a dataset.")
    max_dataset_records: Count = Field(description="Maximal number of records of a dataset.")
    max_dataset_epsilon: Amount | None = Field(description="Maximal epsilon granted to a dataset; null for no limit.")
    max_dataset_delta: Amount | None = Field(description="Maximal delta granted to a dataset; null for no limit.")
    max_source_epsilon: Amount | None = Field(
        description="Maximal epsilon reserved and charged by the datasets of a source; null for no limit."
    )
    max_source_delta: Amount | None = Field(
        description="Maximal delta reserved and charged by the datasets of a source; null for no limit."
    )
    source_limit: LimitRule
