"""Schemas of forecasts."""

from typing import Annotated, Literal

from pydantic import Field, model_validator
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError
from typing_extensions import TypeAliasType

from service.schemas.algorithms import Algorithm, ProfileParameters
from service.schemas.base import EXAMPLE_ULID, Double, Wire, exactly_one_of, examples, integer
from service.schemas.features import Features
from service.schemas.fields import Amount, Atto, Count, DatasetId, FeatureNames, Mu2, Nano
from service.schemas.specs import Participation
from sfumato.limits import MAX_RECORDS_PER_USER
from sfumato.specs import CENTRAL_ALGORITHMS, LOCAL_ALGORITHMS, MAX_FEATURES, MAX_RECORD_FEATURES

Share = Annotated[Double, Field(ge=0, le=1)]
Goal = Annotated[Double, Field(ge=1e-6, le=1)]


Family = TypeAliasType(
    "Family",
    Annotated[
        Literal["compact", "elongated", "curved", "many_small"],
        Field(
            description="compact: round clusters; elongated: long clusters; curved: rings and moons; "
            "many_small: many tight clusters of very different sizes."
        ),
    ],
)


class ForecastTarget(Wire):
    """An accuracy to reach; exactly one of the members."""

    model_config = examples({"quality": 0.9}, constraints={"minProperties": 1, "maxProperties": 1})

    quality: Goal | SkipJsonSchema[None] = Field(
        None, description="Median adjusted Rand index over the reference sets of the least favourable family."
    )
    size_error: Goal | SkipJsonSchema[None] = Field(None, description="Standard error of the share of a cluster.")
    detectable_mass: Goal | SkipJsonSchema[None] = Field(
        None, description="Smallest share of people of a cluster that must be detectable."
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> "ForecastTarget":
        if [self.quality, self.size_error, self.detectable_mass].count(None) != 2:
            raise PydanticCustomError("target", "exactly one of quality, size_error and detectable_mass must be sent")
        return self


class NewForecast(Wire):
    """A forecast to compute.

    Of `n_features`, `features` and `dataset_id` exactly one is needed. An algorithm over reports needs
    `expected_reports`, one over records needs `expected_records`.
    """

    model_config = examples(
        {
            "algorithm": {"type": "auto", "epsilon": 1.0, "clusters": 3},
            "n_features": 2,
            "expected_reports": 100_000,
            "target": {"quality": 0.9},
        },
        {
            "algorithm": {"type": "uniform_grid", "epsilon": 2.0},
            "dataset_id": f"ds_{EXAMPLE_ULID}",
            "expected_reports": 100_000,
        },
        constraints={
            "allOf": [
                exactly_one_of("n_features", "features", "dataset_id"),
                exactly_one_of("expected_reports", "expected_records"),
            ]
        },
    )

    algorithm: Algorithm
    n_features: Annotated[int, integer(1, MAX_RECORD_FEATURES)] | SkipJsonSchema[None] = Field(
        None,
        description="Number of features, at most 64 for reports; their bounds do not matter. Each category of a "
        "clustering attribute counts as one.",
    )
    features: Features | SkipJsonSchema[None] = Field(None, description="Features, as for a new dataset.")
    dataset_id: DatasetId | SkipJsonSchema[None] = Field(None, description="Dataset that has the features.")
    job_features: FeatureNames | SkipJsonSchema[None] = Field(
        None,
        description="With `dataset_id`: names of the columns that the job uses, as `features` of a job.",
    )
    expected_reports: Annotated[int, integer(ge=1)] | SkipJsonSchema[None] = Field(
        None, description="Local only: expected number of devices."
    )
    expected_records: Annotated[int, integer(ge=1)] | SkipJsonSchema[None] = Field(
        None, description="Central only: assumed number of records. A forecast does not count the records of a dataset."
    )
    max_records_per_user: Annotated[int, integer(1, MAX_RECORDS_PER_USER)] | SkipJsonSchema[None] = Field(
        None, description="Central only, without `dataset_id`: maximal number of records per user; 1 if absent."
    )
    family: Family | SkipJsonSchema[None] = Field(
        None, description="Family of the data, if it is known. Otherwise the verdict is for the least favourable one."
    )
    occupied_share: Annotated[Double, Field(gt=0, le=1)] | SkipJsonSchema[None] = Field(
        None,
        description="Central only: part of the bounds that the data occupy along their widest feature, if it is known. "
        "The loss is not known for a fifth or less, unless the job finds private bounds.",
    )
    target: ForecastTarget | SkipJsonSchema[None] = Field(
        None, description="Local only: accuracy for which the forecast returns the number of reports."
    )

    @model_validator(mode="after")
    def _of_something(self) -> "NewForecast":
        if [self.n_features, self.features, self.dataset_id].count(None) != 2:
            raise PydanticCustomError("features", "exactly one of n_features, features and dataset_id must be sent")
        return self

    def count_features(self) -> int:
        """Return the number of features, or 0 if the dataset has them."""
        if self.features is None:
            return self.n_features or 0
        return len(self.features) if isinstance(self.features, list) else self.features.dimensions

    @model_validator(mode="after")
    def _of_reports_or_of_records(self) -> "NewForecast":
        if (self.expected_reports is None) == (self.expected_records is None):
            raise PydanticCustomError("expected", "exactly one of expected_reports and expected_records must be sent")
        fit = LOCAL_ALGORITHMS if self.expected_records is None else CENTRAL_ALGORITHMS
        if self.algorithm.type not in fit:
            over = (
                "reports: give expected_records" if self.expected_records is None else "records: give expected_reports"
            )
            raise PydanticCustomError("expected", "{message}", {"message": f"this algorithm does not work on {over}"})
        is_embedding = self.features is not None and not isinstance(self.features, list)
        if self.expected_records is None and (is_embedding or self.count_features() > MAX_FEATURES):
            message = f"with expected_reports, list at most {MAX_FEATURES} features"
            raise PydanticCustomError("features", "{message}", {"message": message})
        if self.expected_records is not None and self.target is not None:
            raise PydanticCustomError("target", "target must be sent with expected_reports: add it, or remove target")
        if self.max_records_per_user is not None and (self.expected_records is None or self.dataset_id is not None):
            raise PydanticCustomError(
                "users", "max_records_per_user must be sent with expected_records and without dataset_id"
            )
        if self.occupied_share is not None and self.expected_records is None:
            raise PydanticCustomError("bounds", "occupied_share must be sent with expected_records")
        if self.job_features is not None and self.dataset_id is None:
            raise PydanticCustomError("features", "job_features must be sent with dataset_id")
        return self


class RoundForecast(Wire):
    """Forecast of one round."""

    participation: Participation
    share: Share = Field(description="Share of devices that answer the round.")
    expected_reports: Count = Field(description="Expected number of reports in the round.")
    epsilon: Amount = Field(description="Cost of a report; an upper bound if the round adapts.")
    epsilon_nano: Nano
    mechanism: str = Field(description="Mechanism; `auto` if it depends on earlier rounds.")
    n_symbols: Count | None = Field(
        description="Number k of symbols; an upper bound if the round adapts; null for vectors."
    )
    report_bytes: Count = Field(description="Size of a packed report; an upper bound if the round adapts.")
    adapts: bool = Field(description="Whether the round depends on the tallies of earlier rounds.")


class QualityBand(Wire):
    """Measured quartiles of the adjusted Rand index over reference sets with the same amount of information."""

    lower: Share = Field(description="Three quarters of the reference runs reached this value.")
    median: Share = Field(description="Half of the reference runs reached this value.")
    upper: Share = Field(description="A quarter of the reference runs reached this value.")
    n_runs: Count = Field(description="Number of runs in each row of the table.")


class FamilyBand(QualityBand):
    """Measured quartiles of the adjusted Rand index over the reference sets of one family."""

    family: Family


class Insufficient(Wire):
    """Reason why the expected number of reports is insufficient."""

    reports_needed: Count | None = Field(description="Sufficient number of reports; null if no number is sufficient.")
    reason: str = Field(description="Reason, as a sentence.")


class Needed(Wire):
    """Number of reports that the target needs."""

    n_reports: Count | None = Field(
        description="Smallest sufficient number of reports; null if no number is sufficient."
    )
    reason: str = Field(description="Reason, as a sentence.")


Verdict = TypeAliasType(
    "Verdict",
    Annotated[
        Literal["reliable", "uncertain", "doubtful"],
        Field(
            description="Quality of a result or a forecast. `doubtful`: it may be no better than a trivial one, or "
            "its quality was not measured. The figures behind it are next to it."
        ),
    ],
)


class Forecast(Wire):
    """Cost and accuracy of an algorithm over reports, from public facts."""

    trust: Literal["local"]
    algorithm: Algorithm = Field(description="Algorithm that would run; for `auto`, the selected one.")
    reason: str | None = Field(description="Reason for the selection by `auto`; null otherwise.")
    n_features: Count
    expected_reports: Count
    epsilon: Amount = Field(description="Cost of the collection for a device.")
    epsilon_nano: Nano
    rounds: list[RoundForecast] = Field(
        description="Rounds in order. A plan may stop early and never opens more rounds."
    )
    n_eff: Amount = Field(description="Effective number of reports N (e^ε - 1)² / (4 e^ε).")
    detectable_mass: Share | None = Field(
        description="Smallest share of people of a detectable cluster; null if no rule is known."
    )
    gap_mass: Share = Field(description="Smallest share of people in a gap that separates two clusters; a heuristic.")
    size_error: Share | None = Field(
        description="Standard error of the share of one of K equal clusters; null if it cannot be derived."
    )
    centre_error: Amount | None = Field(
        description="Standard error of a coordinate of the centre of such a cluster for a fixed outline, as a "
        "share of the range; null if it cannot be derived."
    )
    family: Family | None = Field(description="Family of the data in the request; null otherwise.")
    quality: QualityBand | None = Field(
        description="Measured quality for the family in the request, or for the least favourable one; null if it was "
        "not measured for such parameters."
    )
    families: list[FamilyBand] = Field(description="Measured quality by family; empty if it was not measured.")
    verdict: Verdict = Field(
        description="reliable: three quarters of the reference runs reached .8; uncertain: half of them reached .5; "
        "doubtful: worse, not measured, or insufficient. Without a family in the request it is that of the least "
        "favourable one."
    )
    warnings: list[str]
    insufficient: Insufficient | None
    needed: Needed | None = Field(description="Number of reports that `target` needs; null without `target`.")


class FamilyForecast(Wire):
    """Expected accuracy for one family of data, from simulated runs."""

    family: Family
    ratio: Amount = Field(description="Median of the ratio over the runs of the family.")
    lower: Amount = Field(description="Four of five runs lie between this value and `upper`.")
    upper: Amount


class CentralForecast(Wire):
    """Cost and accuracy of an algorithm over records, for an assumed number of records."""

    trust: Literal["central"]
    algorithm: Algorithm = Field(description="Algorithm that would run; for `auto`, the selected one.")
    reason: str | None = Field(description="Reason for the selection by `auto`; null otherwise.")
    n_features: Count
    expected_records: Count
    max_records_per_user: Count
    epsilon: Amount = Field(description="Maximal cost, which the job reserves.")
    epsilon_nano: Nano
    delta: Amount = Field(description="Maximal delta, which the job reserves; 0 for a pure guarantee.")
    delta_atto: Atto
    mu2_pico: Mu2 = Field(description="Most mu^2, in units of 1e-12, that the job counts under Gaussian accounting.")
    jobs_granted: Count | None = Field(
        description="Number of equal jobs that the grants of the dataset allow; null without `dataset_id`, or if the "
        "key may not read the budget."
    )
    jobs_remaining: Count | None = Field(
        description="Number of equal jobs that the budget still allows; null likewise."
    )
    least_records: Count = Field(
        description="Number of records below which a result is mostly noise: 50 × max_records_per_user / ε. A job over "
        "fewer is accepted, and spends its ε, because the number of records is private."
    )
    clusters: Count | None = Field(
        description="Number of clusters that the algorithm computes: fewer than requested if noise would hide them; "
        "null if it estimates the number."
    )
    ratio: Amount | None = Field(
        description="Mean squared distance to the nearest centre, relative to k-means without noise, for the least "
        "favourable family; null if it was not simulated."
    )
    lower: Amount | None = Field(description="Lowest end of the bands of all families; `upper` is the highest one.")
    upper: Amount | None
    verdict: Verdict = Field(
        description="reliable: `upper` is at most 1.3; uncertain: `ratio` is at most 2; doubtful: worse, not known, or "
        "with warnings."
    )
    warnings: list[str] = Field(description="Limitations, as sentences.")
    families: list[FamilyForecast] = Field(description="Accuracy by family of data; empty if it was not simulated.")


class NewProfileForecast(Wire):
    """A profile to forecast, for an assumed number of records or reports."""

    model_config = examples(
        {
            "algorithm": {
                "type": "profile",
                "of": f"job_{EXAMPLE_ULID}",
                "attributes": ["plan", "age"],
                "epsilon": 0.3,
            },
            "expected_records": 20_000,
        }
    )

    algorithm: ProfileParameters
    expected_records: Annotated[int, integer(ge=1)] | SkipJsonSchema[None] = Field(
        None,
        description="Assumed number of records, required if the dataset is central. A forecast does not count the "
        "records of a dataset.",
    )
    expected_reports: Annotated[int, integer(ge=1)] | SkipJsonSchema[None] = Field(
        None, description="Assumed number of reports, required if the dataset is local or shuffled."
    )


class ProfileForecast(Wire):
    """Cost and errors of a profile, for an assumed number of records or reports."""

    epsilon_nano: Nano
    delta_atto: Atto = Field(description="Delta that would be spent; 0 if Gaussian noise would not be less.")
    n_described: Count = Field(description="Number of attributes that are expected to be described.")
    first_pass: Share = Field(description="Share of epsilon that releases the association of each attribute.")
    noise_per_count: Amount = Field(description="Standard deviation of the noise of a count, in people.")
    share_errors: list[Share] = Field(
        description="Largest standard error of a share in each cluster; over reports, the error of a share of 5 %."
    )
    too_small: list[Count] = Field(description="Clusters with too few records to describe.")
    warnings: list[str] = Field(description="Limitations, as sentences.")
    reports_needed: list[Count] = Field(
        description="Over reports: number of reports with which a share of 5 % has an error of 2 points in each "
        "cluster. Empty over records."
    )


AnyForecast = TypeAliasType(
    "AnyForecast",
    Annotated[
        Forecast | CentralForecast,
        Field(discriminator="trust", description="Forecast for the trust model of the algorithm."),
    ],
)
