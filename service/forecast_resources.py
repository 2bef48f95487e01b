"""The wire's forecasts: what is asked about, and what it will cost and bring."""

from typing import Annotated, Literal

from pydantic import Field, model_validator
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError
from typing_extensions import TypeAliasType

from models.dataset import MAX_RECORDS_PER_USER
from service.algorithm_schemas import Algorithm
from service.resources import Amount, Atto, Count, DatasetId, Nano
from service.schemas import EXAMPLE_ULID, Double, Wire, example, examples, integer
from service.spec_schemas import Draw, Feature
from sfumato.specs import CENTRAL_ALGORITHMS, LOCAL_ALGORITHMS, MAX_FEATURES

Share = Annotated[Double, Field(ge=0, le=1)]
Wish = Annotated[Double, Field(ge=1e-6, le=1)]


class Wanted(Wire):
    """A wish: exactly one of its members."""

    model_config = example(quality=0.9)

    quality: Wish | SkipJsonSchema[None] = Field(
        None, description="Half of the reference sets are to come to so high an adjusted Rand index."
    )
    size_error: Wish | SkipJsonSchema[None] = Field(None, description="Standard error of a cluster's size.")
    detectable_mass: Wish | SkipJsonSchema[None] = Field(
        None, description="The least share of people that is to make a cluster stand out."
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> "Wanted":
        if [self.quality, self.size_error, self.detectable_mass].count(None) != 2:
            raise PydanticCustomError("wanted", "exactly one of quality, size_error and detectable_mass is needed")
        return self


class NewForecast(Wire):
    """What is to be forecast. Of `n_features`, `features` and `dataset_id` exactly one is needed, and one of
    `expected_reports` and `expected_records`."""

    model_config = examples(
        {
            "algorithm": {"type": "auto", "epsilon": 1.0, "clusters": 3},
            "n_features": 2,
            "expected_reports": 100_000,
            "wanted": {"quality": 0.9},
        },
        {
            "algorithm": {"type": "uniform_grid", "epsilon": 2.0},
            "dataset_id": f"ds_{EXAMPLE_ULID}",
            "expected_reports": 100_000,
        },
    )

    algorithm: Algorithm
    n_features: Annotated[int, integer(1, MAX_FEATURES)] | SkipJsonSchema[None] = Field(
        None, description="How many features; their bounds do not matter."
    )
    features: Annotated[list[Feature], Field(min_length=1, max_length=MAX_FEATURES)] | SkipJsonSchema[None] = Field(
        None, description="The features, as of a dataset to be made."
    )
    dataset_id: DatasetId | SkipJsonSchema[None] = Field(None, description="A dataset whose features are meant.")
    expected_reports: Annotated[int, integer(ge=1)] | SkipJsonSchema[None] = Field(
        None, description="Local: devices expected to take part."
    )
    expected_records: Annotated[int, integer(ge=1)] | SkipJsonSchema[None] = Field(
        None, description="Central: so many records, by your own guess; nobody counts them for a forecast."
    )
    max_records_per_user: Annotated[int, integer(1, MAX_RECORDS_PER_USER)] | SkipJsonSchema[None] = Field(
        None, description="Central, without `dataset_id`: records one user may have; left out, 1."
    )
    wanted: Wanted | SkipJsonSchema[None] = Field(None, description="Local: how many reports would do for this?")

    @model_validator(mode="after")
    def _of_something(self) -> "NewForecast":
        if [self.n_features, self.features, self.dataset_id].count(None) != 2:
            raise PydanticCustomError("features", "exactly one of n_features, features and dataset_id is needed")
        return self

    @model_validator(mode="after")
    def _of_reports_or_of_records(self) -> "NewForecast":
        if (self.expected_reports is None) == (self.expected_records is None):
            raise PydanticCustomError("expected", "exactly one of expected_reports and expected_records is needed")
        fit = LOCAL_ALGORITHMS if self.expected_records is None else CENTRAL_ALGORITHMS
        if self.algorithm.type not in fit:
            over = (
                "reports: give expected_records" if self.expected_records is None else "records: give expected_reports"
            )
            raise PydanticCustomError("expected", "{message}", {"message": f"this algorithm does not work on {over}"})
        if self.expected_records is not None and self.wanted is not None:
            raise PydanticCustomError("wanted", "wanted asks for reports: over records there is no such answer")
        if self.max_records_per_user is not None and (self.expected_records is None or self.dataset_id is not None):
            raise PydanticCustomError("users", "max_records_per_user goes with expected_records, without dataset_id")
        return self


class RoundForecast(Wire):
    """One round that devices will be asked to answer."""

    draw: Draw
    share: Share = Field(description="Of all devices: the draw's width.")
    expected_reports: Count = Field(description="So many of those expected.")
    epsilon: Amount = Field(description="What an answer costs; at most, where the round adapts.")
    epsilon_nano: Nano
    mechanism: str = Field(description="How symbols are perturbed; `auto` where that follows from earlier rounds.")
    n_symbols: Count | None = Field(description="k; at most, where the round adapts; null for vectors.")
    report_bytes: Count = Field(description="What a device sends, packed; at most, where the round adapts.")
    adapts: bool = Field(description="What it asks follows from what earlier rounds tell.")


class QualityBand(Wire):
    """Quartiles of the adjusted Rand index over reference sets with as much information: measured, not derived."""

    lower: Share = Field(description="Three quarters of the reference runs came to this or more.")
    median: Share = Field(description="Half of them did.")
    upper: Share = Field(description="A quarter of them did.")
    n_runs: Count = Field(description="Runs behind each row of the table.")


class Insufficient(Wire):
    """So few reports cannot carry what is asked."""

    reports_needed: Count | None = Field(description="What would do; null where no number would.")
    reason: str = Field(description="For people.")


class Needed(Wire):
    """How many reports the wish needs."""

    n_reports: Count | None = Field(description="From so many on it is met; null where no number is enough.")
    reason: str = Field(description="For people.")


class Forecast(Wire):
    """What an algorithm will cost and how well it will do, from public facts alone."""

    trust: Literal["local"]
    algorithm: Algorithm = Field(description="What would run; of `auto`, what it stands for.")
    reason: str | None = Field(description="Why, where `auto` chose.")
    n_features: Count
    expected_reports: Count
    epsilon: Amount = Field(description="What the collection costs a device.")
    epsilon_nano: Nano
    rounds: list[RoundForecast] = Field(description="In order; a plan may stop early and never asks more.")
    n_eff: Amount = Field(description="N (e^ε - 1)² / (4 e^ε), the effective number of reports.")
    detectable_mass: Share | None = Field(
        description="The least share of people that makes a cluster stand out from noise; null where no rule is known."
    )
    gap_mass: Share = Field(description="The least share of people whose lack parts two clusters; a heuristic.")
    size_error: Share | None = Field(
        description="Standard error of the size of one of K equal clusters; null where it does not follow."
    )
    centre_error: Amount | None = Field(
        description="Standard error of a coordinate of such a cluster's centre of mass, its outline held fixed, as a "
        "share of the range; null where it does not follow."
    )
    quality: QualityBand | None = Field(description="Null where it was not measured for such parameters.")
    confidence: Literal["high", "fair", "low", "none"] = Field(
        description="high: three quarters of the reference runs came to .8; fair: half to .5; none: insufficient."
    )
    warnings: list[str]
    insufficient: Insufficient | None
    needed: Needed | None = Field(description="The answer to `wanted`.")


class CentralForecast(Wire):
    """What an algorithm over records may cost and how near it will come, by a number of records somebody guessed."""

    trust: Literal["central"]
    algorithm: Algorithm = Field(description="What would run; of `auto`, what it stands for.")
    reason: str | None = Field(description="Why, where `auto` chose.")
    n_features: Count
    expected_records: Count
    max_records_per_user: Count
    epsilon: Amount = Field(description="The most it spends, and what its job reserves.")
    epsilon_nano: Nano
    delta: Amount = Field(description="The same of delta; 0 for a pure guarantee.")
    delta_atto: Atto
    clusters: Count = Field(description="How many it will look for: fewer than asked for where noise would hide them.")
    ratio: Amount | None = Field(
        description="Mean squared distance to the nearest centre, over that of k-means without noise; null where it "
        "was not fitted."
    )
    lower: Amount | None = Field(
        description="Of five reference runs four came to more than this, and less than `upper`."
    )
    upper: Amount | None
    warnings: list[str] = Field(description="What to know before anything is spent.")


AnyForecast = TypeAliasType(
    "AnyForecast", Annotated[Forecast | CentralForecast, Field(discriminator="trust", description="Of either model.")]
)
