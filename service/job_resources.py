"""The wire's jobs and results: what is asked for, and what is answered."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError

from service.resources import MAX_COLLECT_SECONDS, WEEK_SECONDS, Amount, Count, Cursor, DatasetId, JobId, RoundId, Time
from service.schemas import EXAMPLE_ULID, Algorithm, Double, Feature, Wire, example, integer

JobState = Literal["queued", "running", "collecting", "succeeded", "failed", "canceled", "expired"]


class NewJob(Wire):
    """Clusters to be found. Without `round_ids` its epsilon is reserved, and its rounds open by themselves."""

    model_config = example(
        dataset_id=f"ds_{EXAMPLE_ULID}",
        algorithm={"type": "shifted_grid", "epsilon": 2.0, "clusters": 6},
        target_reports=100_000,
    )

    dataset_id: DatasetId
    algorithm: Algorithm
    target_reports: Annotated[int, integer(ge=1)] | SkipJsonSchema[None] = Field(
        None, description="Reports each round waits for; needed without `round_ids`."
    )
    min_reports: Count = Field(
        0, description="A round with fewer ends the job; the dataset's own minimum holds beside it."
    )
    collect_seconds: Annotated[int, integer(1, MAX_COLLECT_SECONDS)] = Field(
        WEEK_SECONDS, description="How long each round stays open."
    )
    round_ids: list[RoundId] = Field(
        [],
        max_length=64,
        description="Earlier rounds to work on, in the plan's order; then nothing is collected or spent.",
    )

    @model_validator(mode="after")
    def _from_somewhere(self) -> "NewJob":
        if not self.round_ids and self.target_reports is None:
            raise PydanticCustomError("target", "target_reports is needed where round_ids names no rounds")
        if len(set(self.round_ids)) < len(self.round_ids):
            raise PydanticCustomError("round_ids", "round_ids names a round twice")
        return self


class Progress(Wire):
    """How far a job's collection has come."""

    rounds_opened: Count
    open_round_id: RoundId | None
    n_received: Count = Field(description="Reports its newest round has received.")
    target_reports: Count | None = Field(description="Reports each round waits for.")


class JobError(Wire):
    """Why a job ended without a result."""

    code: str = Field(description="What programs go by.", examples=["too_few_reports"])
    detail: str = Field(description="For people.")


class Job(Wire):
    """One request for clusters."""

    id: JobId
    dataset_id: DatasetId
    algorithm: Algorithm
    round_ids: list[RoundId]
    state: JobState
    epsilon: Amount = Field(description="Reserved at submission.")
    target_reports: Count | None
    min_reports: Count
    collect_seconds: Count
    progress: Progress
    attempts: Count = Field(description="Claims by a worker since it last got on.")
    error: JobError | None
    created_at: Time
    started_at: Time | None
    finished_at: Time | None


class JobPage(Wire):
    """Jobs, oldest first."""

    items: list[Job]
    next_cursor: Cursor


# ---- results ----


class ClusterModel(Wire):
    """Clusters as released. Holds nothing of one person: everything in it comes from tallies."""

    type: Literal["label_map", "centroids"] = Field(
        description="A label for every cell of a grid, or nearest centroid."
    )
    features: list[Feature]
    n_clusters: Count
    sizes: list[Double] = Field(description="Estimated share of people in each cluster; sums to one.")
    size_errors: list[Double] = Field(description="Standard error of each share.")
    centroids: list[list[Double]] | None = Field(description="In the features' units, one for each cluster.")
    grid_shape: list[Count] | None = Field(description="Cells of each feature.")
    labels: list[Count] | None = Field(description="Cluster of each cell, row-major.")
    density: list[Double] | None = Field(description="Estimated share of people in each cell, row-major.")
    diagnostics: dict[str, Any] = Field(description="How the fit went.")
    warnings: list[str] = Field(description="What this result cannot tell.")
    privacy: dict[str, Literal["dp", "post_processed", "public"]] = Field(description="What each field is.")


class UsedRound(Wire):
    """A round a result was computed from."""

    id: RoundId
    index: Count
    n_reports: Count
    epsilon: Amount


class Result(Wire):
    """What a job released."""

    job_id: JobId
    dataset_id: DatasetId
    algorithm: Algorithm
    epsilon: Amount = Field(description="What the collection cost a device.")
    rounds: list[UsedRound]
    model: ClusterModel
    software_version: str
    created_at: Time


class Labels(Wire):
    """The label map alone."""

    grid_shape: list[Count] = Field(description="Cells of each feature.")
    labels: list[Count] = Field(description="Cluster of each cell, row-major.")


class Points(Wire):
    """Points to label; they are used for the answer and not stored."""

    model_config = example(points=[[2.35, 48.86], [-0.13, 51.51]])

    points: list[list[Double]] = Field(max_length=1_000_000, description="One list a point, in the features' units.")


class PointLabels(Wire):
    """The cluster of each point asked about."""

    labels: list[Count]
