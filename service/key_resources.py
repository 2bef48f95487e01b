"""The wire's resources of keys, and of the audit trail that names them."""

from typing import Annotated, Any

from pydantic import AfterValidator, Field, JsonValue
from pydantic.json_schema import SkipJsonSchema

from models.audit import Act
from service.resources import Count, Cursor, DatasetId, KeyId, Scope, Time, check_time, id_field
from service.schemas import EXAMPLE_ULID, Name, Wire, example, integer

DAY_SECONDS = 86_400
MAX_OVERLAP_SECONDS = 30 * DAY_SECONDS

_ACTS: dict[str, Any] = {"examples": [Act.KEY_ROTATED.value], "x-extensible-enum": [act.value for act in Act]}

EventId = Annotated[str, id_field("aud")]
ComingTime = Annotated[Time, AfterValidator(check_time)]


class NewKey(Wire):
    """A key to be made."""

    model_config = example(name="app 4.2", scopes=["device"], dataset_id=f"ds_{EXAMPLE_ULID}")

    name: Annotated[Name, Field(max_length=100)] = Field(description="For people.")
    scopes: list[Scope] = Field(min_length=1, max_length=6, description="What it may do.")
    dataset_id: DatasetId | SkipJsonSchema[None] = Field(None, description="The only dataset it sees; left out, all.")
    expires_at: ComingTime | SkipJsonSchema[None] = Field(None, description="No use from then on.")


class KeyRotation(Wire):
    """How a key is replaced."""

    model_config = example(overlap_seconds=3600)

    overlap_seconds: Annotated[int, integer(0, MAX_OVERLAP_SECONDS)] = Field(
        DAY_SECONDS, description="How long the old key works beside the new one; 0 ends it at once."
    )
    expires_at: ComingTime | SkipJsonSchema[None] = Field(
        None, description="When the new key ends; left out, when the old one would have."
    )


class Key(Wire):
    """A bearer key; its secret is shown once and not kept."""

    id: KeyId
    name: Name
    scopes: list[Scope]
    dataset_id: DatasetId | None
    created_at: Time
    expires_at: Time | None
    revoked_at: Time | None
    replaces: KeyId | None = Field(description="The key it was made in place of.")
    replaced_by: KeyId | None = Field(description="The key that was made in its place; this one ends at `expires_at`.")


class NewKeySecret(Key):
    """A key as it was made."""

    secret: str | None = Field(
        description="`sfk_...`; shown this once. Null where a repeated request is answered again."
    )


class KeyPage(Wire):
    """Keys, oldest first."""

    items: list[Key]
    next_cursor: Cursor


class AuditEvent(Wire):
    """One act of administration; never changed, never removed.

    `hash` is the SHA-256 of the event's canonical JSON (sorted keys, no spaces, UTF-8) of all members but `hash`,
    with `at` in integer microseconds since 1970.
    """

    id: EventId
    tenant_id: str = Field(description="Whose trail it is in.")
    seq: Count = Field(description="1, 2, 3, ... of the tenant, without a gap.")
    at: Time = Field(description="When; of uploads of records, the beginning of the day.")
    actor: str = Field(description="The key that asked for it; `operator` where none did, but the command line.")
    act: str = Field(description="What was done; more may come.", json_schema_extra=_ACTS)
    subject_id: str = Field(description="What it was done to.")
    dataset_id: DatasetId | None = Field(description="The dataset it was within, where there is one.")
    request_id: str | None = Field(description="The request, as the service's log names it.")
    details: dict[str, JsonValue] = Field(description="Names of what was changed and the like; nothing private.")
    prev_hash: str = Field(description="Hash of the event before; zeros for the first.")
    hash: str


class AuditPage(Wire):
    """Acts of administration, in order."""

    items: list[AuditEvent]
    next_cursor: Cursor
