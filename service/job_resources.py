"""The wire's jobs and results: what is asked for, and what is answered."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError

from service.algorithm_schemas import Algorithm
from service.forecast_resources import Share
from service.resources import (
    MAX_COLLECT_SECONDS,
    WEEK_SECONDS,
    Amount,
    Atto,
    Count,
    Cursor,
    DatasetId,
    JobId,
    Nano,
    RoundId,
    Time,
)
from service.schemas import EXAMPLE_ULID, Double, Wire, example, integer
from service.spec_schemas import Encoding, Feature
from sfumato.specs import CENTRAL_ALGORITHMS

JobState = Literal["queued", "running", "collecting", "succeeded", "failed", "canceled", "expired"]


class NewJob(Wire):
    """Clusters to be found. Without `round_ids` its epsilon is reserved, and its delta where it has one.

    On a local dataset its rounds open by themselves. On a central one it works on the records, and what is said here
    of reports, rounds and collecting is left out.
    """

    model_config = example(
        dataset_id=f"ds_{EXAMPLE_ULID}",
        algorithm={"type": "shifted_grid", "epsilon": 2.0, "clusters": 6},
        target_reports=100_000,
    )

    dataset_id: DatasetId
    algorithm: Algorithm
    target_reports: Annotated[int, integer(ge=1)] | SkipJsonSchema[None] = Field(
        None,
        description="Devices expected to take part; needed on a local dataset without `round_ids`. A round that asks "
        "only some of them, by their draws, waits for its share, less three standard deviations of what chance makes "
        "of it.",
    )
    min_reports: Count = Field(
        0,
        description="Devices the collection needs: a round with fewer than its share of them ends the job. "
        "The dataset's own minimum holds beside it, for each round in full.",
    )
    collect_seconds: Annotated[int, integer(1, MAX_COLLECT_SECONDS)] = Field(
        WEEK_SECONDS, description="How long each round stays open."
    )
    allow_insufficient: bool = Field(
        False,
        description="Take the job even where `target_reports` is less than a tenth of what the forecast says it needs; "
        "without it that is refused as `insufficient_reports`.",
    )
    round_ids: list[RoundId] = Field(
        [],
        max_length=64,
        description="Earlier rounds to work on, in the plan's order; then nothing is collected or spent.",
    )

    @model_validator(mode="after")
    def _from_somewhere(self) -> "NewJob":
        local_alone = self.algorithm.type not in CENTRAL_ALGORITHMS  # of the others the dataset has to say
        if local_alone and not self.round_ids and self.target_reports is None:
            raise PydanticCustomError("target", "target_reports is needed where round_ids names no rounds")
        if len(set(self.round_ids)) < len(self.round_ids):
            raise PydanticCustomError("round_ids", "round_ids names a round twice")
        return self


class Progress(Wire):
    """How far a job's collection has come."""

    rounds_opened: Count
    open_round_id: RoundId | None
    n_received: Count = Field(description="Reports its newest round has received.")
    target_reports: Count | None = Field(
        description="Reports its newest round waits for; before the first, devices expected in all. Null over records."
    )


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
    delta: Amount = Field(description="Reserved at submission; 0 for a pure guarantee.")
    target_reports: Count | None = Field(
        description="Devices expected to take part; null over earlier rounds and over records."
    )
    min_reports: Count = Field(description="Devices the collection needs; 0 over records.")
    collect_seconds: Count = Field(description="How long each round stays open; 0 over records.")
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


class FuzzyMemberships(Wire):
    """u_c ~ D_c^(-1/(m-1)), with D the distance of a scaled point from centroid c."""

    type: Literal["fuzzy"]
    distance: Literal["mixed", "euclidean", "absolute", "laplace", "gaussian"]
    m: Double = Field(description="Fuzziness, above 1.")
    sigma0: Double = Field(description="Least spread of a report about a centroid, as a share of a feature's range.")


class GaussianMixtureMemberships(Wire):
    """u_c ~ size_c N(x; centroid_c, width_c^2), of a scaled point x."""

    type: Literal["gaussian_mixture"]
    widths: list[Double] = Field(
        description="Standard deviation of each cluster in every direction, as a share of a feature's range."
    )


Memberships = Annotated[
    FuzzyMemberships | GaussianMixtureMemberships,
    Field(discriminator="type", description="How much of a point belongs to each cluster."),
]


class ClusterModel(Wire):
    """Clusters as released. Holds nothing of one person: everything in it comes from tallies, or from noisy answers."""

    type: Literal["label_map", "centroids", "codes"] = Field(
        description="A label for every cell of a grid, nearest centroid, or a label for every symbol of an encoding."
    )
    features: list[Feature]
    n_clusters: Count
    sizes: list[Double] = Field(description="Estimated share of people in each cluster; sums to one.")
    size_errors: list[Double] = Field(description="Standard error of each share.")
    centroids: list[list[Double]] | None = Field(description="In the features' units, one for each cluster.")
    centroid_errors: list[list[Double]] | None = Field(description="Standard error of each of their coordinates.")
    grid_shape: list[Count] | None = Field(description="Cells of each feature; `codes`: how many symbols.")
    encoding: Encoding | None = Field(description="`codes`: how a point becomes a symbol, under slot 0.")
    labels: list[Count] | None = Field(description="Cluster of each cell, row-major; `codes`: of each symbol.")
    density: list[Double] | None = Field(description="Estimated share of people in each cell or symbol, as `labels`.")
    memberships: Memberships | None = Field(
        description="Of centroids: the rule of soft memberships, where there is one."
    )
    diagnostics: dict[str, Any] = Field(description="How the fit went.")
    warnings: list[str] = Field(description="What this result cannot tell.")
    privacy: dict[str, Literal["dp", "post_processed", "public"]] = Field(description="What each field is.")


class UsedRound(Wire):
    """A round a result was computed from."""

    id: RoundId
    index: Count
    n_reports: Count
    epsilon: Amount


class Charge(Wire):
    """One question a central job asked its curator, and what it cost: one entry of the odometer."""

    what: str = Field(description="What was asked.", examples=["counts"])
    n_values: Count = Field(description="Numbers in the answer.")
    epsilon: Amount
    epsilon_nano: Nano
    delta: Amount
    delta_atto: Atto
    rho_pico: Annotated[int, integer()] = Field(
        description="Of the concentrated block before it, which was charged for it: its share, in 1e-12; else 0."
    )
    reference: str = Field(
        description="Of the ledger's posting: the job and the number of the question.",
        examples=[f"job_{EXAMPLE_ULID}#0"],
    )


class Result(Wire):
    """What a job released."""

    job_id: JobId
    dataset_id: DatasetId
    algorithm: Algorithm
    epsilon: Amount = Field(description="What the collection cost a device; over records, the odometer's sum.")
    delta: Amount = Field(description="Over records: the odometer's sum; 0 for a pure guarantee.")
    rounds: list[UsedRound]
    odometer: list[Charge] = Field(
        description="Over records: every question in order, and its cost; each has its posting in the ledger."
    )
    model: ClusterModel
    software_version: str
    created_at: Time


class Labels(Wire):
    """The label map alone."""

    type: Literal["cells"]
    grid_shape: list[Count] = Field(description="Cells of each feature; `codes`: how many symbols.")
    labels: list[Count] = Field(description="Cluster of each cell, row-major; `codes`: of each symbol.")


class ReportLabel(Wire):
    """The likeliest cluster of one report: by the published model and the report alone."""

    report_id: str = Field(description="As the device sent it, 32 lower-case hexadecimal digits.")
    round_id: RoundId
    cluster: Count
    confidence: Share = Field(description="Its posterior probability, if the model is right.")


class ReportLabelPage(Wire):
    """Labels of reports, in the order they arrived within each round, and how little they are worth."""

    type: Literal["reports"]
    items: list[ReportLabel]
    next_cursor: Cursor
    expected_accuracy: Share = Field(
        description="Mean confidence over the job's reports, of each round the first 10,000: so many are named right."
    )
    baseline: Share = Field(description="Share of the largest cluster: what always naming it would reach.")
    caution: str = Field(description="Both, in words, and what to do instead.")


LabelsAnswer = Annotated[
    Labels | ReportLabelPage, Field(discriminator="type", description="The label map, or labels of reports.")
]


class Points(Wire):
    """Points to label; they are used for the answer and not stored."""

    model_config = example(points=[[2.35, 48.86], [-0.13, 51.51]])

    points: list[list[Double]] = Field(max_length=1_000_000, description="One list a point, in the features' units.")


class PointLabels(Wire):
    """The cluster of each point asked about."""

    labels: list[Count]
