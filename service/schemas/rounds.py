"""Schemas of rounds and reports."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema
from typing_extensions import TypeAliasType

from service.schemas.base import (
    EXAMPLE_ULID,
    Double,
    Epsilon,
    Wire,
    example,
    integer,
)
from service.schemas.fields import (
    MAX_COLLECT_SECONDS,
    WEEK_SECONDS,
    Amount,
    Count,
    Cursor,
    DatasetId,
    HonestShare,
    JobId,
    MinBatch,
    PublicKey,
    ReleaseDelta,
    RoundId,
    Time,
)
from service.schemas.specs import Encoding, Participation, RoundSpec
from sfumato.mechanisms import MECHANISMS

_BASE64 = {
    "contentEncoding": "base64",
    "pattern": "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
}
RoundState = TypeAliasType(
    "RoundState",
    Annotated[
        Literal["open", "closed", "tallied", "failed"],
        Field(description="State of a round. `failed`: all attempts to aggregate it failed; its reports are kept."),
    ],
)
if TYPE_CHECKING:
    MechanismChoice = str
else:
    MechanismChoice = TypeAliasType(
        "MechanismChoice",
        Annotated[
            Literal["auto", *MECHANISMS],
            Field(description="Mechanism that perturbs symbols; `auto` selects the one with the least noise."),
        ],
    )
_MIN_BATCH = "Shuffled only, required: minimal number of reports in a release."
_HONEST_SHARE = (
    "Shuffled only, required: share of the reports of a release that come from honest devices. The cost of the release "
    "follows from n = min_batch * honest_share. A release with fewer valid reports gives no result."
)
_RELEASE_DELTA = "Shuffled only: delta of each release towards the service. Default: 1e-6."


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
    target_reports: Count = Field(description="Number of distinct reports that closes the round.")
    min_reports: Count
    n_received: Count = Field(
        description=(
            "Number of acknowledged reports, including repeats; 0 until a shuffler releases the round. It exceeds "
            "`target_reports` while repeats keep the round open, because the target counts distinct reports."
        )
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
    """Rounds, newest first."""

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
