"""Schemas of jobs."""

from typing import Annotated, Literal

from pydantic import Field, model_validator
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError
from typing_extensions import TypeAliasType

from service.schemas.algorithms import Algorithm
from service.schemas.base import EXAMPLE_ULID, Wire, example, integer
from service.schemas.fields import (
    MAX_COLLECT_SECONDS,
    WEEK_SECONDS,
    Amount,
    Count,
    Cursor,
    DatasetId,
    FeatureNames,
    HonestShare,
    JobId,
    MinBatch,
    ReleaseDelta,
    RoundId,
    Time,
)
from service.schemas.forecasts import Verdict

JobState = TypeAliasType(
    "JobState",
    Annotated[
        Literal["queued", "running", "collecting", "succeeded", "failed", "canceled", "expired"],
        Field(description="State of a job."),
    ],
)


class NewJob(Wire):
    """A job to submit. Without `round_ids`, its epsilon and delta are reserved.

    On a local dataset, the job opens its rounds itself. On a central dataset, it uses the records, and members about
    reports, rounds and collection must be absent.
    """

    model_config = example(
        dataset_id=f"ds_{EXAMPLE_ULID}",
        algorithm={"type": "shifted_grid", "epsilon": 2.0, "clusters": 6},
        target_reports=100_000,
    )

    dataset_id: DatasetId
    algorithm: Algorithm
    features: FeatureNames | SkipJsonSchema[None] = Field(
        None,
        description="Names of the features and clustering attributes that the job uses, in any order. Over reports, "
        "all features are required, because devices report them. Default: all of them.",
    )
    target_reports: Annotated[int, integer(ge=1)] | SkipJsonSchema[None] = Field(
        None,
        description=(
            "Expected number of devices; required on a local dataset without `round_ids`. A round with a part of the "
            "participation draws waits for its share, less three standard deviations of that share."
        ),
    )
    min_reports: Count = Field(
        0,
        description=(
            "Minimal number of devices of the collection: a round with fewer than its share ends the job. The "
            "minimum "
            "of the dataset also applies to each round, in full."
        ),
    )
    collect_seconds: Annotated[int, integer(1, MAX_COLLECT_SECONDS)] = Field(
        WEEK_SECONDS, description="Time that each round stays open, in seconds."
    )
    allow_insufficient: bool = Field(
        False,
        description=(
            "Accept the job even if its reports are less than a tenth of the number that the forecast requires. "
            "Otherwise such a job is rejected with `insufficient_reports`."
        ),
    )
    min_batch: MinBatch | SkipJsonSchema[None] = Field(
        None,
        description=(
            "Shuffled only, required without `round_ids`: number of devices with reports in releases. A round with a "
            "part of the participation draws needs its share, less three standard deviations."
        ),
    )
    honest_share: HonestShare | SkipJsonSchema[None] = Field(
        None, description="Shuffled only, required without `round_ids`: share of the reports from honest devices."
    )
    shuffled_delta: ReleaseDelta | SkipJsonSchema[None] = Field(
        None, description="Shuffled only: delta of each release towards the service. Default: 1e-6."
    )
    round_ids: list[RoundId] = Field(
        [],
        max_length=64,
        json_schema_extra={"uniqueItems": True},
        description="Earlier rounds to use, in the order of the plan. The job then collects nothing, costs nothing "
        "and takes no member about collection but `allow_insufficient`. For `shifted_grid`, rounds with one grid are "
        "pooled, and the epsilon of the algorithm is that of one round.",
    )

    @model_validator(mode="after")
    def _from_somewhere(self) -> "NewJob":
        if len(set(self.round_ids)) < len(self.round_ids):
            raise PydanticCustomError("round_ids", "round_ids must not contain a round twice", {"names": ["round_ids"]})
        return self


class JobProgress(Wire):
    """Progress of the collection of a job."""

    rounds_opened: Count
    open_round_id: RoundId | None
    n_received: Count = Field(description="Number of reports in the newest round, including repeats.")
    target_reports: Count | None = Field(
        description=(
            "Number of reports that the newest round waits for; before the first round, the expected number of "
            "devices. Null over records."
        )
    )


class UsedRounds(Wire):
    """The rounds that a job uses: those that it opened, or the earlier ones in `round_ids`."""

    n_rounds: Count = Field(description="Number of rounds.")
    n_reports: Count = Field(description="Number of reports in the rounds.")
    epsilon: Amount = Field(description="Largest cost of the rounds for one device.")


class JobError(Wire):
    """Reason why a job ended without a result."""

    code: str = Field(description="Machine-readable error code.", examples=["too_few_reports"])
    detail: str = Field(description="Cause and remedy.")


class Job(Wire):
    """A clustering job: algorithm, state and progress."""

    id: JobId
    dataset_id: DatasetId
    algorithm: Algorithm
    features: list[str] | None = Field(
        description="Names of the features and clustering attributes that the job uses; null for all."
    )
    round_ids: list[RoundId]
    state: JobState
    epsilon: Amount = Field(description="Epsilon that the submission reserved.")
    delta: Amount = Field(description="Delta that the submission reserved; 0 for a pure guarantee.")
    target_reports: Count | None = Field(
        description="Expected number of devices; null over earlier rounds and over records."
    )
    min_reports: Count = Field(description="Minimal number of devices; 0 over records.")
    collect_seconds: Count = Field(description="Time that each round stays open, in seconds; 0 over records.")
    progress: JobProgress
    used: UsedRounds | None = Field(description="Rounds that the job uses so far; null over records.")
    attempts: Count = Field(description="Number of claims since the last progress.")
    error: JobError | None
    verdict: Verdict | None = Field(description="Verdict of the result; null without a result.")
    created_at: Time
    started_at: Time | None
    finished_at: Time | None


class JobPage(Wire):
    """Jobs, newest first."""

    items: list[Job]
    next_cursor: Cursor
