"""The wire's resources but jobs: what is asked for, and what is answered, a section a noun."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError

from models.dataset import MAX_RECORDS_PER_USER
from service.clock import from_timestamp
from service.schemas import (
    EXAMPLE_ULID,
    Delta,
    Double,
    Epsilon,
    GrantedEpsilon,
    Name,
    Wire,
    example,
    examples,
    integer,
)
from service.spec_schemas import Draw, Encoding, Feature, RoundSpec
from sfumato.specs import MAX_FEATURES

ULID = "[0-9a-hjkmnp-tv-z]{26}"
MAX_INT32 = 2**31 - 1
MAX_COLLECT_SECONDS = 366 * 86_400
WEEK_SECONDS = 604_800

_BASE64 = {"contentEncoding": "base64"}
_DATE_TIME = {"format": "date-time"}

Time = Annotated[str, Field(json_schema_extra=_DATE_TIME)]  # RFC 3339, UTC, six decimals
Amount = Annotated[Double, Field(ge=0)]  # an epsilon or a delta of the ledger: granted, or a sum
Nano = Annotated[int, integer()]  # an epsilon, exactly
Atto = Annotated[int, integer()]  # a delta, exactly
Count = Annotated[int, integer()]
Scope = Literal["admin", "datasets", "records", "jobs", "device", "ledger"]
RoundState = Literal["open", "closed", "tallied", "failed"]
UserFeature = Annotated[Name, Field(max_length=64)]
Cursor = Annotated[str | None, Field(description="Where the next page begins; null on the last one.")]


def id_field(prefix: str) -> Any:
    return Field(pattern=f"^{prefix}_{ULID}$", examples=[f"{prefix}_{EXAMPLE_ULID}"])


DatasetId = Annotated[str, id_field("ds")]
RoundId = Annotated[str, id_field("rnd")]
JobId = Annotated[str, id_field("job")]
KeyId = Annotated[str, id_field("key")]
EntryId = Annotated[str, id_field("led")]


def check_time(value: str) -> str:
    try:
        from_timestamp(value)
    except ValueError:
        raise PydanticCustomError("time", "a time as RFC 3339 has it is needed, with its zone") from None
    return value


# ---- datasets ----


class NewDataset(Wire):
    """A dataset to be made: what is asked about, and with how much budget."""

    model_config = example(
        name="commuters",
        trust="local",
        features=[
            {"name": "longitude", "lower": -180.0, "upper": 180.0, "unit": "degrees"},
            {"name": "latitude", "lower": -90.0, "upper": 90.0, "unit": "degrees"},
        ],
        epsilon=8.0,
    )

    name: Name = Field(description="For people.")
    trust: Literal["local", "central"] = Field(
        description="Who sees raw values: nobody (devices perturb), or the service on behalf of a curator."
    )
    features: list[Feature] = Field(min_length=1, max_length=MAX_FEATURES, description="What a record holds, in order.")
    epsilon: Epsilon = Field(description="The first grant.")
    delta: Delta = Field(
        0.0,
        description="Central: granted with it, 0 or 1e-15 to 1e-3. With none, jobs have pure guarantees alone.",
    )
    min_reports: Annotated[int, integer(1, MAX_INT32)] = Field(100, description="No round is used with fewer.")
    keep_reports: bool = Field(False, description="Whether reports outlive their tally.")
    user_feature: UserFeature | SkipJsonSchema[None] = Field(
        None,
        description="Central: the column of an upload that says whose record it is, none of the features. Left out, "
        "each record is a person of its own.",
    )
    max_records_per_user: Annotated[int, integer(1, MAX_RECORDS_PER_USER)] = Field(
        1, description="Public: so many records of a user are used at most, the first by when their uploads began."
    )
    out_of_bounds: Literal["clip", "refuse"] = Field(
        "clip",
        description="Central: whether a record with a finite value outside of its bounds is clipped and counted, or "
        "has its upload refused.",
    )

    @model_validator(mode="after")
    def _names_differ(self) -> "NewDataset":
        if len({feature.name for feature in self.features}) < len(self.features):
            raise PydanticCustomError("names", "feature names must differ from one another")
        return self


class DatasetChange(Wire):
    """What may change of a dataset; what is left out stays."""

    model_config = example(min_reports=500)

    name: Name | SkipJsonSchema[None] = Field(None, description="For people.")
    min_reports: Annotated[int, integer(1, MAX_INT32)] | SkipJsonSchema[None] = Field(
        None, description="No round that opens from now on is used with fewer."
    )
    keep_reports: bool | SkipJsonSchema[None] = Field(None, description="Whether reports outlive their tally.")


class Dataset(Wire):
    """What is asked about, of whom."""

    id: DatasetId
    name: Name
    trust: Literal["local", "central"]
    features: list[Feature]
    min_reports: Count
    keep_reports: bool
    user_feature: str | None = Field(description="The column that says whose record it is; null, where none does.")
    max_records_per_user: Count
    out_of_bounds: Literal["clip", "refuse"]
    created_at: Time


class DatasetPage(Wire):
    """Datasets, oldest first."""

    items: list[Dataset]
    next_cursor: Cursor


# ---- ledger ----


class NewGrant(Wire):
    """More budget for a dataset."""

    model_config = examples({"epsilon": 2.0}, {"epsilon": 2.0, "delta": 1e-6})

    epsilon: GrantedEpsilon = Field(description="How much more; 0 beside a delta alone.")
    delta: Delta = Field(
        0.0,
        description="Central: how much more delta, 0 or 1e-15 to 1e-3; a dataset has 1e-3 at most in all.",
    )

    @model_validator(mode="after")
    def _of_something(self) -> "NewGrant":
        if self.epsilon == 0 and self.delta == 0:
            raise PydanticCustomError("grant", "epsilon lies in [0.000001, 32]; it may be 0 beside a delta alone")
        return self


class Budget(Wire):
    """What a dataset was granted, what is held, what is spent: epsilon, and delta with names of its own."""

    dataset_id: DatasetId
    granted: Amount
    reserved: Amount = Field(description="Held by jobs that are not over.")
    posted: Amount = Field(description="Spent.")
    remaining: Amount = Field(description="granted - reserved - posted.")
    granted_nano: Nano
    reserved_nano: Nano
    posted_nano: Nano
    remaining_nano: Nano
    delta_granted: Amount
    delta_reserved: Amount
    delta_posted: Amount
    delta_remaining: Amount
    granted_delta_atto: Atto
    reserved_delta_atto: Atto
    posted_delta_atto: Atto
    remaining_delta_atto: Atto
    ledger_seq: Count = Field(description="The last entry.")
    ledger_hash: str = Field(description="Its hash; keep it, and a ledger that was cut off or rewritten shows.")


class LedgerEntry(Wire):
    """One charge or grant; never changed, never removed.

    `hash` is the SHA-256 of the entry's canonical JSON (sorted keys, no spaces, UTF-8) of all members
    but `epsilon`, `delta` and `hash`, with `at` in integer microseconds since 1970; without the four that
    end in `delta_atto` where all of them are 0.
    """

    id: EntryId
    dataset_id: DatasetId
    seq: Count = Field(description="1, 2, 3, ... without a gap.")
    kind: Literal["grant", "reserve", "post", "release"]
    epsilon: Amount
    epsilon_nano: Nano
    delta: Amount
    delta_atto: Atto
    reference: str = Field(
        description="What it is for: a grant, job or round, or a question of a central job as `job_…#0`."
    )
    reservation: str | None = Field(description="The job whose reservation it touches.")
    actor: str = Field(description="The key that asked for it.")
    at: Time
    granted_nano: Nano = Field(description="After this entry.")
    reserved_nano: Nano = Field(description="After this entry.")
    posted_nano: Nano = Field(description="After this entry.")
    granted_delta_atto: Atto = Field(description="After this entry.")
    reserved_delta_atto: Atto = Field(description="After this entry.")
    posted_delta_atto: Atto = Field(description="After this entry.")
    prev_hash: str = Field(description="Hash of the entry before; zeros for the first.")
    hash: str


class LedgerPage(Wire):
    """Ledger entries, in order."""

    items: list[LedgerEntry]
    next_cursor: Cursor


# ---- rounds and reports ----


class NewRound(Wire):
    """A collection of one round, for later jobs. Its cost is posted as it opens."""

    model_config = example(encoding={"type": "grid", "cells": [16, 16]}, epsilon=2.0, target_reports=10_000)

    encoding: Encoding
    mechanism: Literal["auto", "grr", "ss", "oue", "olh", "hr", "discrete_laplace", "window"] = Field(
        "auto", description="How symbols are perturbed; auto has least noise."
    )
    epsilon: Epsilon = Field(
        description="Most that an answer may cost; thresholds are chosen to come close from below."
    )
    target_reports: Annotated[int, integer(ge=1)] = Field(
        description="Closes when so many were received, and not before its minimum is reached."
    )
    min_reports: Count = Field(0, description="Not used with fewer; the dataset's own minimum holds beside it.")
    collect_seconds: Annotated[int, integer(1, MAX_COLLECT_SECONDS)] = Field(
        WEEK_SECONDS, description="Closes after so long."
    )
    draw: Draw | SkipJsonSchema[None] = Field(None, description="Which devices answer; left out, all.")


class Round(Wire):
    """One spec put to the devices, and what came of it."""

    id: RoundId
    dataset_id: DatasetId
    job_id: JobId | None = Field(description="Whose plan asked; null for a collection of its own.")
    collection_id: str = Field(description="Job or round: a device makes one draw for each.")
    index: Count = Field(description="0, 1, ... within the collection.")
    state: RoundState = Field(description="`failed`: every attempt to count it was lost; its reports are kept.")
    epsilon: Amount = Field(description="What an answer costs a device: the thresholds' exact cost, rounded up.")
    spec: RoundSpec
    target_reports: Count
    min_reports: Count
    n_received: Count = Field(description="Reports acknowledged, repeats included.")
    n_reports: Count | None = Field(description="Distinct reports in the tally; null before.")
    opened_at: Time
    closes_at: Time = Field(description="Takes no report from then on.")
    closed_at: Time | None
    tallied_at: Time | None


class RoundPage(Wire):
    """Rounds, oldest first."""

    items: list[Round]
    next_cursor: Cursor


class DeviceRound(Wire):
    """A round as a device sees it; holds nothing that depends on who asks."""

    id: RoundId
    collection_id: str = Field(description="One draw for each.")
    index: Count
    epsilon: Amount = Field(description="What an answer costs.")
    closes_at: Time
    spec: RoundSpec


class DeviceRounds(Wire):
    """What a device may answer now, oldest first; often empty."""

    rounds: list[DeviceRound]


class Report(Wire):
    """One device's blurred answer. No time, no device: its id is random."""

    report_id: str = Field(pattern="^[0-9a-f]{32}$", description="16 random bytes of the device's, hexadecimal.")
    slot: Annotated[int, integer(0, 2**32 - 1)] = Field(description="The public part: below the encoding's slots.")
    value: Annotated[str, Field(json_schema_extra=_BASE64)] = Field(
        description="The mechanism's fixed-width bytes, base64."
    )


class ReportColumns(Wire):
    """Many reports, a list for each member; the lists are equally long."""

    report_ids: list[Annotated[str, Field(pattern="^[0-9a-f]{32}$")]] = Field(min_length=1)
    slots: list[Annotated[int, integer(0, 2**32 - 1)]] = Field(min_length=1)
    values: list[Annotated[str, Field(json_schema_extra=_BASE64)]] = Field(min_length=1)


class Receipt(Wire):
    """Reports that are stored: the answer comes after the commit."""

    model_config = example(round_id=f"rnd_{EXAMPLE_ULID}", accepted=1)

    round_id: RoundId
    accepted: Annotated[int, integer(ge=1)]


# ---- records ----


class RecordRows(Wire):
    """Records, a list of values each."""

    model_config = example(columns=["longitude", "latitude"], rows=[[2.35, 48.86], [-0.58, 44.84]])

    columns: list[Name] = Field(min_length=1, description="The declared columns, each once, in any order.")
    rows: list[list[Double | str]] = Field(
        min_length=1, description="Values in the order of `columns`: numbers; a user is text or a whole number."
    )


class RecordUpload(Wire):
    """Records that are stored, all of an upload."""

    id: Annotated[str, id_field("upl")]
    n_records: Count
    n_clipped: Count = Field(description="Records with a value moved to a bound.")


class RecordCounts(Wire):
    """How many records a dataset has: private, and nowhere else to be seen."""

    n_records: Count
    n_uploads: Count
    n_clipped: Count = Field(description="Records with a value moved to a bound.")
    n_users: Count | None = Field(description="Null where the dataset has no `user_feature`.")
    n_used: Count = Field(description="Records a job may use: of each user the first `max_records_per_user`.")


# ---- health ----


class Health(Wire):
    """The service is there."""

    status: Literal["ok"]
