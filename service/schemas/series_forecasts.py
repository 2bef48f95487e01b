"""Schemas of forecasts of series."""

from typing import Annotated

from pydantic import Field, model_validator
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError

from service.schemas.base import Double, Wire, example, integer
from service.schemas.fields import Amount, Count, DatasetId, HonestShare, MinBatch, ReleaseDelta
from service.schemas.series import MAX_WINDOWS, LeastChange, PinnedAlgorithm, ReleaseCosts, Share, WindowLength
from sfumato.forecast.series import CLUSTER_WIDTH, CLUSTER_WIDTHS
from sfumato.limits import MAX_RECORDS_PER_USER
from sfumato.sizing.grids import MAX_SHIFTED_FEATURES
from sfumato.specs import CENTRAL_ALGORITHMS


class NewSeriesForecast(Wire):
    """A series to forecast: of a dataset, or of a number of features. With terms of releases it is shuffled."""

    model_config = example(
        n_features=2,
        algorithm={"type": "shifted_grid", "epsilon": 1.0},
        every="week",
        cycle=13,
        target_reports=1_300_000,
    )

    dataset_id: DatasetId | SkipJsonSchema[None] = Field(
        None, description="Dataset, which gives the number of features."
    )
    n_features: Annotated[int, integer(1, MAX_SHIFTED_FEATURES)] | SkipJsonSchema[None] = Field(
        None, description="Number of features, without `dataset_id`."
    )
    algorithm: PinnedAlgorithm = Field(description="The algorithm of all windows.")
    every: WindowLength = Field("week", description="Length of each window.")
    cycle: Annotated[int, integer(1, MAX_WINDOWS)] = Field(description="Windows of a cycle.")
    target_reports: Annotated[int, integer(1, 2**53 - 1)] = Field(
        description="Number of devices expected to take part in a cycle; over records, of records in all windows."
    )
    max_records_per_user: Annotated[int, integer(1, MAX_RECORDS_PER_USER)] | SkipJsonSchema[None] = Field(
        None, description="Over records, without `dataset_id`: largest number of records of a user. Default: 1."
    )
    least_change: LeastChange = Field(0.01, description="Least change of a share that raises an alarm, from 0 to 0.5.")
    cluster_width: Annotated[Double, Field(ge=CLUSTER_WIDTHS[0], le=CLUSTER_WIDTHS[1])] = Field(
        CLUSTER_WIDTH,
        description="Standard deviation of the cluster that changes, as a share of a feature's range, from "
        f"{CLUSTER_WIDTHS[0]:g} to {CLUSTER_WIDTHS[1]:g}. Changes of a wide cluster are found later.",
    )
    min_batch: MinBatch | SkipJsonSchema[None] = Field(
        None, description="Shuffled only, required: minimal number of reports in the release of a window."
    )
    honest_share: HonestShare | SkipJsonSchema[None] = Field(
        None, description="Shuffled only, required: share of the reports from honest devices."
    )
    shuffled_delta: ReleaseDelta | SkipJsonSchema[None] = Field(
        None, description="Shuffled only: delta of each release towards the service. Default: 1e-6."
    )

    @model_validator(mode="after")
    def _one_place(self) -> "NewSeriesForecast":
        if (self.dataset_id is None) == (self.n_features is None):
            raise PydanticCustomError("features", "exactly one of n_features and dataset_id must be sent")
        over_records = self.algorithm.type in CENTRAL_ALGORITHMS
        if self.max_records_per_user is not None and (self.dataset_id is not None or not over_records):
            raise PydanticCustomError(
                "records_per_user", "max_records_per_user is valid with n_features and over records only"
            )
        return self


class SmallestChange(Wire):
    """The smallest gain of a share that a number of windows finds."""

    windows: Count = Field(description="Number of windows after the change.")
    share: Share | None = Field(description="Gain of the share of all people; null if no gain is found.")


class ChangeDelay(Wire):
    """The time until a gain of a share is found."""

    share: Share = Field(description="Gain of the share of all people.")
    windows: Count | None = Field(description="Typical number of windows until the alarm; null if it is never found.")
    earliest: Count | None = Field(
        description="80 % of the alarms come after so many windows at the earliest; null if it is never found."
    )
    latest: Count | None = Field(
        description="80 % of the alarms come after so many windows at the latest; null if it may never be found."
    )


class SeriesForecast(Wire):
    """The cost of a series for one person, and the changes that it finds after 26 windows without a change."""

    epsilon_per_window: Amount = Field(description="Cost of a report in a window.")
    epsilon_per_cycle: Amount = Field(description="Cost of a cycle for all values: a person answers once.")
    epsilon_per_year: Amount = Field(description="Cost of a year, in which a person may answer once in each cycle.")
    reports_per_window: Count = Field(description="Expected number of reports of a window.")
    n_eff: Amount = Field(description="Effective number of reports of a window.")
    n_eff_pooled: Amount = Field(description="Effective number of reports of a pool of many windows.")
    smallest_changes: list[SmallestChange] = Field(description="Smallest gains that 1, 4 and 13 windows find.")
    delays: list[ChangeDelay] = Field(description="Windows until gains of 5, 10 and 20 points are found.")
    releases: ReleaseCosts | None = Field(
        description="Cost of the releases towards the service, in addition to epsilon; null if not shuffled."
    )
    warnings: list[str] = Field(description="Limitations, as sentences.")
