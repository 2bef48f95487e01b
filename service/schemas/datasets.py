"""Schemas of datasets, the ledger, rounds, reports, records and health."""

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError
from typing_extensions import TypeAliasType

from models.datasets import MAX_RECORDS_PER_USER, SOURCE_PATTERN
from service.schemas.base import (
    EXAMPLE_ULID,
    Delta,
    Double,
    Epsilon,
    GrantedEpsilon,
    Name,
    Wire,
    decimal_number,
    domain_validator,
    example,
    examples,
    from_timestamp,
    integer,
)
from service.schemas.specs import Encoding, Features, Participation, RoundSpec
from sfumato.privacy.accounting import parse_delta, parse_epsilon
from sfumato.privacy.shuffling import MAX_HONEST, Pair

ULID = "[0-9a-hjkmnp-tv-z]{26}"
MAX_INT32 = 2**31 - 1
MAX_COLLECT_SECONDS = 366 * 86_400
WEEK_SECONDS = 604_800
DEFAULT_RELEASE_DELTA = 1e-6

_BASE64 = {
    "contentEncoding": "base64",
    "pattern": "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
}
_DATE_TIME = {"format": "date-time"}

Time = Annotated[str, Field(json_schema_extra=_DATE_TIME)]  # RFC 3339, UTC, six decimals
Amount = Annotated[Double, Field(ge=0)]  # an epsilon or a delta in the ledger
Nano = Annotated[int, integer()]  # epsilon in units of 1e-9
Atto = Annotated[int, integer()]  # delta in units of 1e-18
Count = Annotated[int, integer()]
UserFeature = Annotated[Name, Field(max_length=64)]
Source = Annotated[
    str,
    Field(
        pattern=SOURCE_PATTERN,
        description="Label of the people in the data. Charges to all datasets of one source add up.",
    ),
]
Cursor = Annotated[str | None, Field(description="Cursor of the next page; null on the last page.")]


def id_field(prefix: str) -> Any:
    """Return the pattern and example of an id."""
    return Field(pattern=f"^{prefix}_{ULID}$", examples=[f"{prefix}_{EXAMPLE_ULID}"])


DatasetId = Annotated[str, id_field("ds")]
RoundId = Annotated[str, id_field("rnd")]
JobId = Annotated[str, id_field("job")]
KeyId = Annotated[str, id_field("key")]
EntryId = Annotated[str, id_field("led")]


def check_time(value: str) -> str:
    """Return the time unchanged if it has the format of RFC 3339; otherwise raise a validation error."""
    try:
        from_timestamp(value)
    except ValueError:
        raise PydanticCustomError("time", "the time must have the format of RFC 3339, with a time zone") from None
    return value


# Every enum has a name, because code generators otherwise invent one for each place where it is used.
Scope = TypeAliasType(
    "Scope",
    Annotated[
        Literal["admin", "datasets", "grants", "records", "jobs", "device", "ledger"],
        Field(description="Scope of a key: a group of operations."),
    ],
)
TrustModel = TypeAliasType(
    "TrustModel",
    Annotated[
        Literal["local", "shuffled", "central"],
        Field(
            description="`local`: devices perturb their records, and the service never sees them. `shuffled`: as "
            "`local`, and a shuffler releases the reports of a round together, sealed, permuted and without senders. "
            "`central`: the service stores records and releases noisy results."
        ),
    ],
)
OutOfBounds = TypeAliasType(
    "OutOfBounds",
    Annotated[
        Literal["clip", "refuse"],
        Field(
            description="`clip` moves a value outside the bounds to the bound and counts the record; `refuse` rejects "
            "the upload."
        ),
    ],
)
EntryKind = TypeAliasType(
    "EntryKind",
    Annotated[Literal["grant", "reserve", "charge", "release"], Field(description="Kind of a ledger entry.")],
)
RoundState = TypeAliasType(
    "RoundState",
    Annotated[
        Literal["open", "closed", "tallied", "failed"],
        Field(description="State of a round. `failed`: all attempts to aggregate it failed; its reports are kept."),
    ],
)
MechanismChoice = TypeAliasType(
    "MechanismChoice",
    Annotated[
        Literal["auto", "grr", "ss", "oue", "olh", "hr", "discrete_laplace", "window"],
        Field(description="Mechanism that perturbs symbols; `auto` selects the one with the least noise."),
    ],
)


# ---- datasets ----

HonestShare = Annotated[float, decimal_number(1e-9, 1e-9, 1, 9)]
ReleaseDelta = Annotated[float, decimal_number(1e-15, 1e-15, 1e-3, 18), domain_validator(parse_delta)]
PublicKey = Annotated[
    str,
    Field(
        pattern="^[A-Za-z0-9+/]{43}=$",
        json_schema_extra={"contentEncoding": "base64"},
        examples=["11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo="],
    ),
]
MinBatch = Annotated[int, integer(1, MAX_HONEST)]

_MIN_BATCH = "Shuffled only, required: minimal number of reports in a release."
_HONEST_SHARE = (
    "Shuffled only, required: share of the reports of a release that come from honest devices. The cost of the release "
    "follows from n = min_batch * honest_share. A release with fewer valid reports gives no result."
)


_RELEASE_DELTA = "Shuffled only: delta of each release towards the service. Default: 1e-6."


class ShuffledGrant(Wire):
    """A budget towards an observer of the releases, if the shuffler and the operator do not work together."""

    epsilon: Epsilon
    delta: ReleaseDelta = Field(description="Delta, 1e-15 to 1e-3.", examples=[1e-6])


def shuffled_grant(body: ShuffledGrant | None) -> Pair:
    """Return the amounts of a shuffled grant in nano-epsilon and atto-delta."""
    return (0, 0) if body is None else (parse_epsilon(body.epsilon), parse_delta(body.delta))


class Shuffler(Wire):
    """The shuffler of a dataset. Devices send it sealed reports, and it signs each release."""

    name: Name = Field(description="Name of the organisation that runs the shuffler.")
    url: Annotated[str, StringConstraints(max_length=2000, pattern="^https?://[!-~]+$")] = Field(
        description="Address to which devices send sealed reports.", examples=["https://shuffler.example"]
    )
    public_key: PublicKey = Field(
        description="Ed25519 public key of the shuffler, base64.",
    )


class NewDataset(Wire):
    """A dataset to create: its features, trust model and first grant."""

    model_config = examples(
        {
            "name": "commuters",
            "trust": "local",
            "features": [
                {"name": "longitude", "lower": -180.0, "upper": 180.0, "unit": "degrees"},
                {"name": "latitude", "lower": -90.0, "upper": 90.0, "unit": "degrees"},
            ],
            "epsilon": 8.0,
        },
        {
            "name": "articles",
            "trust": "central",
            "features": {"dimensions": 768, "norm": 1.0},
            "epsilon": 4.0,
            "delta": 1e-6,
        },
        {
            "name": "commuters",
            "trust": "shuffled",
            "features": [{"name": "distance", "lower": 0.0, "upper": 100.0, "unit": "km"}],
            "epsilon": 8.0,
            "shuffled": {"epsilon": 1.0, "delta": 1e-6},
            "shuffler": {
                "name": "Example Foundation",
                "url": "https://shuffler.example",
                "public_key": "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=",
            },
        },
    )

    name: Name = Field(description="Display name.")
    trust: TrustModel
    features: Features
    epsilon: Epsilon = Field(description="Epsilon of the first grant.")
    delta: Delta = Field(
        0.0,
        description=(
            "Central only: delta of the first grant, 0 or 1e-15 to 1e-3. With 0, jobs have pure guarantees only."
        ),
    )
    min_reports: Annotated[int, integer(1, MAX_INT32)] = Field(
        100, description="Minimal number of reports of a round; a round with fewer is not used."
    )
    keep_reports: bool = Field(
        False, description="Whether reports are kept after their tally, for rounds that open from now on."
    )
    user_feature: UserFeature | SkipJsonSchema[None] = Field(
        None,
        description="Central only: the column of an upload that has the user id; not one of the features. If absent, "
        "each record counts as one person.",
    )
    fold_user_case: bool = Field(
        False, description="Central only: whether user ids that differ only in upper and lower case are one user."
    )
    max_records_per_user: Annotated[int, integer(1, MAX_RECORDS_PER_USER)] = Field(
        1, description="Maximal number of records of one user that a job uses: those of the earliest uploads. Public."
    )
    out_of_bounds: OutOfBounds = Field(
        "clip", description="Central only: treatment of a record with a value outside its bounds."
    )
    source: Source | SkipJsonSchema[None] = Field(
        None,
        description="Label of the people in the data; needs the scope `grants`. Datasets without a label share one "
        "source.",
    )
    shuffled: ShuffledGrant | SkipJsonSchema[None] = Field(
        None, description="Shuffled only, required: first grant towards an observer of the releases."
    )
    shuffler: Shuffler | SkipJsonSchema[None] = Field(
        None, description="Shuffled only, required: the shuffler. It cannot be changed later, because devices pin it."
    )

    @model_validator(mode="after")
    def _names_differ(self) -> "NewDataset":
        if isinstance(self.features, list) and len({each.name for each in self.features}) < len(self.features):
            raise PydanticCustomError("names", "feature names must be unique", {"names": ["features"]})
        return self


class DatasetChange(Wire):
    """Changes of a dataset; absent members stay unchanged."""

    model_config = example(min_reports=500)

    name: Name | SkipJsonSchema[None] = Field(None, description="Display name.")
    min_reports: Annotated[int, integer(1, MAX_INT32)] | SkipJsonSchema[None] = Field(
        None, description="Minimal number of reports of rounds that open from now on."
    )
    keep_reports: bool | SkipJsonSchema[None] = Field(
        None, description="Whether reports are kept after their tally, for rounds that open from now on."
    )
    source: Source | SkipJsonSchema[None] = Field(
        None, description="Label of the people in the data; needs the scope `grants`."
    )


class Dataset(Wire):
    """Records of one population: features with public bounds, trust model and privacy budget."""

    id: DatasetId
    name: Name
    trust: TrustModel
    features: Features
    min_reports: Count
    keep_reports: bool
    user_feature: str | None = Field(description="Column with the user id; null if there is none.")
    fold_user_case: bool
    max_records_per_user: Count
    out_of_bounds: OutOfBounds
    source: Source | None = Field(description="Label of the people in the data; null for the source without a label.")
    shuffler: Shuffler | None = Field(description="The shuffler; null if the dataset is not shuffled.")
    created_at: Time


class DatasetPage(Wire):
    """Datasets, oldest first."""

    items: list[Dataset]
    next_cursor: Cursor


# ---- ledger ----


class NewGrant(Wire):
    """An additional grant for a dataset."""

    model_config = examples({"epsilon": 2.0}, {"epsilon": 2.0, "delta": 1e-6})

    epsilon: GrantedEpsilon = Field(description="Additional epsilon; may be 0 if another amount is positive.")
    delta: Delta = Field(
        0.0,
        description="Central only: additional delta, 0 or 1e-15 to 1e-3. The total of a dataset is at most 1e-3.",
    )
    shuffled: ShuffledGrant | SkipJsonSchema[None] = Field(
        None, description="Shuffled only: additional budget towards an observer of the releases."
    )

    @model_validator(mode="after")
    def _of_something(self) -> "NewGrant":
        if self.epsilon == 0 and self.delta == 0 and self.shuffled is None:
            raise PydanticCustomError(
                "grant", "epsilon must lie in [0.000001, 32]; it may be 0 if another amount is positive"
            )
        return self


class Budget(Wire):
    """Granted, reserved, charged and remaining budget of a dataset, in epsilon and in delta."""

    dataset_id: DatasetId
    granted: Amount
    reserved: Amount = Field(description="Reserved by unfinished jobs.")
    charged: Amount = Field(description="Spent by rounds and queries.")
    remaining: Amount = Field(description="granted - reserved - charged.")
    granted_nano: Nano
    reserved_nano: Nano
    charged_nano: Nano
    remaining_nano: Nano
    delta_granted: Amount
    delta_reserved: Amount
    delta_charged: Amount
    delta_remaining: Amount
    granted_delta_atto: Atto
    reserved_delta_atto: Atto
    charged_delta_atto: Atto
    remaining_delta_atto: Atto
    granted_shuffled_nano: Nano = Field(description="Granted towards an observer of releases; 0 if not shuffled.")
    charged_shuffled_nano: Nano = Field(description="Charged towards an observer of releases.")
    remaining_shuffled_nano: Nano = Field(description="Granted minus charged.")
    granted_shuffled_delta_atto: Atto = Field(description="Granted towards an observer of releases.")
    charged_shuffled_delta_atto: Atto = Field(description="Charged towards an observer of releases.")
    remaining_shuffled_delta_atto: Atto = Field(description="Granted minus charged.")
    ledger_seq: Count = Field(description="Sequence number of the last entry.")
    ledger_hash: str = Field(
        description="Hash of the last entry. Store it to detect a truncated or rewritten ledger later."
    )


class LedgerEntry(Wire):
    """One entry of the ledger; it is never changed or removed.

    `hash` is the SHA-256 of the entry's canonical JSON (sorted keys, no spaces, UTF-8) of all members
    but `epsilon`, `delta` and `hash`, with `at` in integer microseconds since 1970.
    """

    id: EntryId
    dataset_id: DatasetId
    seq: Count = Field(description="Sequence number: 1, 2, 3, ... without gaps.")
    kind: EntryKind
    epsilon: Amount
    epsilon_nano: Nano
    delta: Amount
    delta_atto: Atto
    reference: str = Field(
        description="Object of the entry: a grant, job or round, or a query of a central job such as `job_…#0`."
    )
    reservation: str | None = Field(description="Job whose reservation the entry uses; null if none.")
    actor: str = Field(description="Key that caused the entry.")
    at: Time
    granted_nano: Nano = Field(description="Balance after this entry.")
    reserved_nano: Nano = Field(description="Balance after this entry.")
    charged_nano: Nano = Field(description="Balance after this entry.")
    granted_delta_atto: Atto = Field(description="Balance after this entry.")
    reserved_delta_atto: Atto = Field(description="Balance after this entry.")
    charged_delta_atto: Atto = Field(description="Balance after this entry.")
    shuffled_nano: Nano = Field(description="Amount of the shuffled budget; 0 if the dataset is not shuffled.")
    shuffled_delta_atto: Atto = Field(description="Amount of the shuffled budget.")
    granted_shuffled_nano: Nano = Field(description="Balance after this entry.")
    charged_shuffled_nano: Nano = Field(description="Balance after this entry.")
    granted_shuffled_delta_atto: Atto = Field(description="Balance after this entry.")
    charged_shuffled_delta_atto: Atto = Field(description="Balance after this entry.")
    prev_hash: str = Field(description="Hash of the previous entry; zeros for the first.")
    hash: str


class LedgerPage(Wire):
    """Ledger entries by sequence number."""

    items: list[LedgerEntry]
    next_cursor: Cursor


# ---- rounds and reports ----


class NewRound(Wire):
    """A standalone round for later jobs. Its cost is charged when it opens."""

    model_config = example(encoding={"type": "grid", "cells": [16, 16]}, epsilon=2.0, target_reports=10_000)

    encoding: Encoding
    mechanism: MechanismChoice = "auto"
    epsilon: Epsilon = Field(
        description="Maximal cost of a report. The thresholds of the mechanism realise the largest cost not above it."
    )
    target_reports: Annotated[int, integer(ge=1)] = Field(
        description="The round closes when it has received this number of reports and its minimum is reached."
    )
    min_reports: Count = Field(0, description="Minimal number of reports; the minimum of the dataset applies as well.")
    collect_seconds: Annotated[int, integer(1, MAX_COLLECT_SECONDS)] = Field(
        WEEK_SECONDS, description="The round closes after this time."
    )
    participation: Participation | SkipJsonSchema[None] = Field(
        None, description="Participation draws that answer the round; all if absent."
    )
    min_batch: MinBatch | SkipJsonSchema[None] = Field(None, description=_MIN_BATCH)
    honest_share: HonestShare | SkipJsonSchema[None] = Field(None, description=_HONEST_SHARE)
    shuffled_delta: ReleaseDelta | SkipJsonSchema[None] = Field(None, description=_RELEASE_DELTA)


class Round(Wire):
    """One collection of reports: its specification, state and counts."""

    id: RoundId
    dataset_id: DatasetId
    job_id: JobId | None = Field(description="Job that opened the round; null for a standalone round.")
    collection_id: str = Field(
        description="Id of the job or standalone round. A device uses one participation draw per collection."
    )
    index: Count = Field(description="Index of the round in its collection, from 0.")
    state: RoundState
    epsilon: Amount = Field(description="Cost of a report: the exact cost of the thresholds, rounded up.")
    spec: RoundSpec
    target_reports: Count
    min_reports: Count
    n_received: Count = Field(
        description="Number of acknowledged reports, including repeats; 0 until a shuffler releases the round."
    )
    n_reports: Count | None = Field(description="Number of distinct reports in the tally; null before the tally.")
    keep_reports: bool = Field(description="Whether reports are kept after their tally; fixed when the round opens.")
    opened_at: Time
    closes_at: Time = Field(description="Time at which the round closes at the latest.")
    closed_at: Time | None
    tallied_at: Time | None
    min_batch: Count | None = Field(description="Minimal number of reports in a release; null if not shuffled.")
    honest_share: Double | None = Field(description="Share of honest reports that the cost assumes.")
    hpke_public_key: PublicKey | None = Field(description="X25519 key that seals reports, base64.")
    shuffled_epsilon: Amount | None = Field(description="Cost of the release towards the service.")
    shuffled_delta: Amount | None = Field(description="Cost of the release towards the service.")


class RoundPage(Wire):
    """Rounds, oldest first."""

    items: list[Round]
    next_cursor: Cursor


class DeviceRound(Wire):
    """A round as devices see it; the same bytes for every device."""

    id: RoundId
    collection_id: str = Field(description="Id of the collection; a device uses one participation draw per collection.")
    index: Count
    epsilon: Amount = Field(description="Cost of a report.")
    keep_reports: bool = Field(description="Whether the service keeps the report after its tally; never changed.")
    closes_at: Time
    spec: RoundSpec
    target_reports: Count | SkipJsonSchema[None] = Field(
        None, description="Shuffled only: number of reports at which the shuffler releases the round."
    )
    min_batch: Count | SkipJsonSchema[None] = Field(None, description="Shuffled only: minimal size of a release.")
    honest_share: Double | SkipJsonSchema[None] = Field(
        None, description="Shuffled only: share of honest reports that the cost of the release assumes."
    )
    hpke_public_key: PublicKey | SkipJsonSchema[None] = Field(
        None, description="Shuffled only: X25519 key that seals reports, base64."
    )
    shuffled_epsilon: Amount | SkipJsonSchema[None] = Field(
        None, description="Shuffled only: cost of the release towards the service."
    )
    shuffled_delta: Amount | SkipJsonSchema[None] = Field(
        None, description="Shuffled only: cost of the release towards the service."
    )


class DeviceRounds(Wire):
    """Open rounds, oldest first; may be empty."""

    rounds: list[DeviceRound]


class Report(Wire):
    """One perturbed report. It has no time and no device id; its own id is random."""

    report_id: str = Field(pattern="^[0-9a-f]{32}$", description="16 random bytes from the device, in hexadecimal.")
    slot: Annotated[int, integer(0, 2**32 - 1)] = Field(
        description="Public part of the report: below the number of slots of the encoding."
    )
    value: Annotated[str, Field(json_schema_extra=_BASE64)] = Field(
        description="Fixed-width bytes of the mechanism, base64."
    )


class ReportColumns(Wire):
    """Many reports as one list per member; the lists have equal length."""

    report_ids: list[Annotated[str, Field(pattern="^[0-9a-f]{32}$")]] = Field(min_length=1)
    slots: list[Annotated[int, integer(0, 2**32 - 1)]] = Field(min_length=1)
    values: list[Annotated[str, Field(json_schema_extra=_BASE64)]] = Field(min_length=1)


class Receipt(Wire):
    """Confirmation that reports are stored. It is sent after the commit."""

    model_config = example(round_id=f"rnd_{EXAMPLE_ULID}", accepted=1)

    round_id: RoundId
    accepted: Annotated[int, integer(ge=1)]


# ---- records ----


class RecordRows(Wire):
    """Records as rows of values."""

    model_config = example(columns=["longitude", "latitude"], rows=[[2.35, 48.86], [-0.58, 44.84]])

    columns: list[Name] = Field(min_length=1, description="Declared columns in any order, each once.")
    rows: list[list[Double | str]] = Field(
        min_length=1,
        description="Values in the order of `columns`: numbers; a user id is text or an integer. Variants of a user id "
        "(Unicode forms, surrounding spaces) are one user; control and invisible characters are refused.",
    )


class RecordUpload(Wire):
    """Confirmation that all records of an upload are stored."""

    id: Annotated[str, id_field("upl")]
    n_records: Count
    n_clipped: Count = Field(description="Number of records with a value that was moved to a bound.")
    n_zeros: Count = Field(description="Embeddings: number of zero vectors, which suggest missing data; otherwise 0.")
    n_constant: Count = Field(
        description="Number of features with one value in all records of the upload, after clipping; 0 for one record."
    )
    n_lacking: Count | None = Field(
        description="Number of records that the dataset lacks for a job over two clusters at its whole granted ε. With "
        "fewer records every result is mostly noise. 0 if there are enough, null for a part that is not the last one."
    )


class RecordCounts(Wire):
    """Number of records of a dataset. It is private and shown nowhere else."""

    n_records: Count
    n_uploads: Count
    n_clipped: Count = Field(description="Number of records with a value that was moved to a bound.")
    n_users: Count | None = Field(description="Number of users; null if the dataset has no `user_feature`.")
    n_used: Count = Field(description="Number of records that a job uses: at most `max_records_per_user` of each user.")


# ---- health ----


class Health(Wire):
    """The gateway is running."""

    status: Literal["ok"]
