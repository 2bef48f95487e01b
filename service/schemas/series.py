"""Schemas of series and their windows."""

from datetime import date
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Literal, get_args

from pydantic import AfterValidator, Field
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError
from typing_extensions import TypeAliasType

from service.schemas.algorithms import JOB_SCHEMAS, AlgorithmParameters
from service.schemas.base import EXAMPLE_ULID, Double, Epsilon, Name, Wire, example, integer
from service.schemas.fields import (
    Amount,
    ClusterId,
    Count,
    Cursor,
    DatasetId,
    HonestShare,
    JobId,
    MinBatch,
    ReleaseDelta,
    Time,
    id_field,
)
from service.schemas.results import ClusterModel
from sfumato import specs

if TYPE_CHECKING:
    PinnedAlgorithm = AlgorithmParameters
else:
    PinnedAlgorithm = TypeAliasType(
        "PinnedAlgorithm",
        Annotated[
            reduce(or_, (JOB_SCHEMAS[kind.type] for kind in get_args(specs.SeriesAlgorithm))),
            Field(discriminator="type", description="Algorithm of a series: over reports, or over records."),
        ],
    )

MAX_WINDOWS = 1000
MAX_SEASON = 26
SeriesId = Annotated[str, id_field("ser")]
EventId = Annotated[str, id_field("evt")]


def _check_day(value: str) -> str:
    try:
        date.fromisoformat(value)
    except ValueError:
        raise PydanticCustomError("day", "the day must exist in the calendar, such as 2027-01-04") from None
    return value


Day = Annotated[
    str,
    Field(pattern=r"^2[0-9]{3}-[01][0-9]-[0-3][0-9]$", json_schema_extra={"format": "date"}),
    AfterValidator(_check_day),
]
WindowLength = TypeAliasType(
    "WindowLength", Annotated[Literal["day", "week", "month"], Field(description="Length of each window.")]
)
SeriesState = TypeAliasType(
    "SeriesState",
    Annotated[
        Literal["active", "paused", "ended"],
        Field(description="`active`: windows open. `paused`: they are missed. `ended`: no window opens any more."),
    ],
)
WindowState = TypeAliasType(
    "WindowState",
    Annotated[
        Literal["planned", "open", "closed", "done", "empty", "missed", "failed"],
        Field(
            description="`open`: devices report, or records are uploaded. `closed`: its result is computed. `done`: "
            "the result exists. `empty`: too few reports, so that nothing is released. `missed`: nothing was opened or "
            "charged. `failed`: the job failed or was canceled."
        ),
    ],
)


LeastChange = Annotated[Double, Field(ge=0, le=0.5)]
Share = Annotated[Double, Field(ge=0, le=1)]
ShareError = Annotated[Double, Field(ge=0)]
ChangeKindName = TypeAliasType(
    "ChangeKindName",
    Annotated[
        Literal["grown", "shrunk", "gone", "born", "split", "moved", "merged"],
        Field(description="Kind of a change of one cluster."),
    ],
)


class WindowPlan(Wire):
    """When windows begin and end: at midnight of a time zone. A day of 23 or 25 hours is one window."""

    model_config = example(every="week", time_zone="Europe/Berlin", first="2026-03-02", count=52)

    every: WindowLength
    time_zone: Annotated[str, Field(min_length=1, max_length=64, pattern="^[A-Za-z0-9_+/-]+$")] = Field(
        "UTC", description="Name of a time zone in the IANA database.", examples=["Europe/Berlin"]
    )
    first: Day | SkipJsonSchema[None] = Field(
        None,
        description="Day on which the first window begins, within a year. Default: the next day, Monday, or first day "
        "of a month in the time zone. Monthly windows begin on a day up to 28.",
    )
    count: Annotated[int, integer(1, MAX_WINDOWS)] = Field(description="Number of windows.")


class NewSeries(Wire):
    """A series to create: one job in each window, all with one algorithm and one grid."""

    model_config = example(
        dataset_id=f"ds_{EXAMPLE_ULID}",
        name="Lunch, weekly",
        algorithm={"type": "shifted_grid", "epsilon": 1.0, "clusters": 3},
        windows={"every": "week", "time_zone": "Europe/Berlin", "count": 52},
        cycle=13,
        target_reports=500_000,
        epsilon_total=4.0,
    )

    dataset_id: DatasetId
    name: Name = Field(description="Name of the series.")
    algorithm: PinnedAlgorithm = Field(
        description="The algorithm of all windows. Without `cells`, they follow from the reports of one window."
    )
    windows: WindowPlan = Field(description="When the windows begin and end.")
    cycle: Annotated[int, integer(1, MAX_WINDOWS)] = Field(
        description="Windows of a cycle. A device answers in one of them, which its secret draw selects, so that a "
        "cycle costs the epsilon of one window. At most the number of windows. Over records: the number of windows, "
        "because all windows together cost the epsilon of one."
    )
    target_reports: Annotated[int, integer(ge=1)] = Field(
        description="Number of devices expected to take part in a cycle. A window gets its share of them. Over "
        "records: number of records expected in all windows."
    )
    min_reports: Count = Field(
        0,
        description="Minimal number of reports of a window. The minimum of the dataset applies as well. Over records: "
        "0.",
    )
    epsilon_total: Epsilon | SkipJsonSchema[None] = Field(
        None,
        description="Most that all cycles may cost one person. It counts towards the limits of the operator from now "
        "on. At least the cost of all cycles, which is the default.",
    )
    season: Annotated[int, integer(1, MAX_SEASON)] = Field(
        1,
        description="Windows of a season, such as 7 for days with a weekly pattern. Windows are compared with those at "
        "the same place of earlier seasons. 1: no season.",
    )
    least_change: LeastChange = Field(
        0.01, description="Least change of a share of all people that raises an alarm, from 0 to 0.5."
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
    allow_insufficient: bool = Field(
        False,
        description="Accept the series even if the reports of a window are less than a tenth of what the forecast "
        "requires.",
    )


class SeriesChange(Wire):
    """Changes of a series; absent members stay unchanged."""

    model_config = example(state="paused")

    name: Name | SkipJsonSchema[None] = Field(None, description="Name of the series.")
    state: SeriesState | SkipJsonSchema[None] = Field(
        None, description="New state. An open window is completed. `ended` is final."
    )


class NewRevision(Wire):
    """Terms of a series that change with its next cycle. Absent members stay unchanged."""

    model_config = example(algorithm={"type": "shifted_grid", "epsilon": 0.5, "clusters": 4}, season=4)

    algorithm: PinnedAlgorithm | SkipJsonSchema[None] = Field(
        None, description="New algorithm. Without `cells`, they follow from the reports of one window."
    )
    target_reports: Annotated[int, integer(ge=1)] | SkipJsonSchema[None] = Field(
        None, description="Number of devices expected to take part in a cycle."
    )
    min_reports: Count | SkipJsonSchema[None] = Field(None, description="Minimal number of reports of a window.")
    season: Annotated[int, integer(1, MAX_SEASON)] | SkipJsonSchema[None] = Field(
        None, description="Windows of a season; 1 for none."
    )
    least_change: LeastChange | SkipJsonSchema[None] = Field(
        None, description="Least change of a share of all people that raises an alarm, from 0 to 0.5."
    )
    min_batch: MinBatch | SkipJsonSchema[None] = Field(
        None, description="Shuffled only: minimal number of reports in the release of a window."
    )
    honest_share: HonestShare | SkipJsonSchema[None] = Field(
        None, description="Shuffled only: share of the reports from honest devices."
    )
    shuffled_delta: ReleaseDelta | SkipJsonSchema[None] = Field(
        None, description="Shuffled only: delta of each release towards the service."
    )
    allow_insufficient: bool = Field(
        False, description="Accept windows with less than a tenth of the reports that the forecast requires."
    )


class SeriesRevision(Wire):
    """Terms of a series from a window on."""

    number: Count = Field(description="Number of the revision: 0 for the terms of the creation.")
    first_window: Count = Field(description="Number of the first window with these terms. It begins a cycle.")
    algorithm: PinnedAlgorithm = Field(description="The algorithm of these windows, with the grid that they share.")
    target_reports: Count = Field(description="Number of devices expected to take part in a cycle.")
    min_reports: Count = Field(description="Minimal number of reports of a window.")
    season: Count = Field(description="Windows of a season; 1 for none.")
    least_change: LeastChange = Field(description="Least change of a share of all people that raises an alarm.")
    epsilon_per_cycle: Amount = Field(description="Cost of a cycle, and of a report in a window.")
    min_batch: Count | None = Field(description="Minimal number of reports in a release; null if not shuffled.")
    honest_share: Share | None = Field(description="Share of the reports from honest devices; null if not shuffled.")
    shuffled_epsilon_per_cycle: Amount | None = Field(
        description="Cost of a cycle towards the service; null if not shuffled."
    )
    shuffled_delta_per_cycle: Amount | None = Field(
        description="Cost of a cycle towards the service; null if not shuffled."
    )
    created_at: Time


class SeriesRevisionPage(Wire):
    """Revisions of a series, newest first."""

    items: list[SeriesRevision]
    next_cursor: Cursor


class ReleaseCosts(Wire):
    """Cost of the releases of a shuffler for one person, towards the service. Cycles add up by the accounting."""

    epsilon_per_cycle: Amount = Field(description="Epsilon of a window, and of a cycle.")
    delta_per_cycle: Amount = Field(description="Delta of a window, and of a cycle.")
    epsilon_per_year: Amount | None = Field(description="Epsilon of all cycles that begin in a year; null above 32.")
    delta_per_year: Amount = Field(description="Delta of the same cycles.")


class SeriesReleases(ReleaseCosts):
    """Releases of the windows of a shuffled series: their terms, and their cost for one person."""

    min_batch: Count = Field(description="Minimal number of reports in a release.")
    honest_share: Share = Field(description="Share of the reports from honest devices.")
    epsilon_total: Amount | None = Field(description="Epsilon of all cycles with these terms; null above 32.")
    delta_total: Amount = Field(description="Delta of all cycles with these terms.")


class Series(Wire):
    """A series: its plan, its state and its cost. Amounts are for one person."""

    id: SeriesId
    dataset_id: DatasetId
    name: str = Field(description="Name of the series.")
    algorithm: PinnedAlgorithm = Field(description="The algorithm of all windows, with the grid that they share.")
    windows: WindowPlan = Field(description="When the windows begin and end.")
    cycle: Count = Field(description="Windows of a cycle.")
    target_reports: Count = Field(description="Number of devices expected to take part in a cycle.")
    min_reports: Count = Field(description="Minimal number of reports of a window.")
    season: Count = Field(description="Windows of a season; 1 for none.")
    least_change: LeastChange = Field(description="Least change of a share of all people that raises an alarm.")
    false_alarms: Share = Field(description="Bound on the probability of a false event in 52 windows without a change.")
    state: SeriesState
    revision: Count = Field(description="Number of the revision with these terms; 0 for those of the creation.")
    epsilon_per_window: Amount = Field(description="Cost of a report in a window.")
    epsilon_per_cycle: Amount = Field(description="Cost of a cycle for all values: a person answers once.")
    epsilon_per_year: Amount = Field(
        description="Cost of a year, in which a person may answer once in each cycle: 365 days, 52 weeks or 12 months."
    )
    epsilon_total: Amount = Field(description="Most that all cycles may cost.")
    epsilon_charged: Amount = Field(description="Charged so far. It bounds the loss of a person in all cycles.")
    epsilon_pending: Amount = Field(description="Part of the total that later cycles may still be granted.")
    releases: SeriesReleases | None = Field(
        description="Releases and their cost towards the service, in addition to epsilon; null if not shuffled."
    )
    next_window_at: Time | None = Field(
        description="Start of the next window; over records, of the next one with a result. Null after the last one."
    )
    created_at: Time
    ended_at: Time | None = Field(description="Time at which the series ended; null if it has not.")


class SeriesPage(Wire):
    """Series, newest first."""

    items: list[Series]
    next_cursor: Cursor


class ClusterShare(Wire):
    """The share of a cluster in one window: of this window alone, and of the pooled windows up to it."""

    cluster_id: ClusterId = Field(description="Id of the cluster.")
    share: Share = Field(description="Estimated share of the people of this window alone.")
    error: ShareError = Field(description="Standard error of the share.")
    pooled_share: Share = Field(description="Estimated share in the pool, in which earlier windows count less.")
    pooled_error: ShareError = Field(description="Standard error of the pooled share.")


class Window(Wire):
    """A window of a series."""

    index: Count = Field(description="Number of the window: 0, 1, 2, ... within the series.")
    cycle: Count = Field(description="Number of the cycle, from 0.")
    revision: Count = Field(description="Number of the revision with the terms of the window.")
    state: WindowState
    opens_at: Time = Field(description="Start of the window.")
    closes_at: Time = Field(description="End of the window, and start of the next one.")
    job_id: JobId | None = Field(description="Job with the result; null if none was opened.")
    n_reports: Count | None = Field(
        description="Number of reports; those received while the window is open. Null without a round, as over records."
    )
    reason: str | None = Field(
        description="Why the window is missed, empty or failed, or has not opened yet; null otherwise."
    )
    clusters: list["ClusterShare"] | None = Field(
        description="Clusters with their shares; null until the window is done."
    )


class WindowPage(Wire):
    """Windows of a series, newest first."""

    items: list[Window]
    next_cursor: Cursor


class SeriesCluster(Wire):
    """A cluster of a series. Its id persists over windows."""

    id: ClusterId = Field(description="Id of the cluster.")
    name: str = Field(description="Name that an analyst gave; empty for none.")
    born_in: Count = Field(description="Number of the first window with the cluster.")
    born_at: Time = Field(description="Start of that window.")
    gone_in: Count | None = Field(description="Number of the first window without it; null if it persists.")
    gone_at: Time | None = Field(description="Start of that window; null if it persists.")
    parents: list[ClusterId] = Field(
        description="Clusters of which it was a part before. Without an event, it was there before and is resolved now."
    )


class SeriesClusterPage(Wire):
    """Clusters of a series, newest first."""

    items: list[SeriesCluster]
    next_cursor: Cursor


class ClusterChange(Wire):
    """A new name of a cluster."""

    model_config = example(name="Commuters")

    name: Annotated[str, Field(max_length=64)] = Field(
        description="Name with at most 64 bytes, unique in the series. An empty text removes it."
    )


class WindowWeight(Wire):
    """Weight of a window in a pooled map."""

    window: Count = Field(description="Number of the window.")
    weight: Share = Field(description="Its weight: 0.9 for each window that followed.")


class SeriesMap(Wire):
    """The map of a window: pooled, or of the window alone."""

    window: Count = Field(description="Number of the window.")
    pooled: bool = Field(description="Whether earlier windows count as well.")
    model: ClusterModel = Field(description="The clusters of the map.")
    cluster_ids: list[ClusterId | None] = Field(
        description="Id of each cluster of the model, in order. In the map of a window alone, null for a cluster that "
        "overlaps with no cluster of the series."
    )
    weights: list[WindowWeight] = Field(description="Windows of the map with their weights.")
    is_provisional: bool = Field(
        description="Whether the pool is still too small for lasting ids: below 4 windows and 10,000 effective reports."
    )


class ChangeKind(Wire):
    """One kind of change of one cluster."""

    kind: ChangeKindName = Field(description="Kind of the change.")
    cluster_id: ClusterId = Field(description="The cluster; the new one if it was born.")
    others: list[ClusterId] = Field(description="Other parts of a split, or clusters that were merged into this one.")
    size: Double = Field(
        description="Change of the share of all people. For a split, a move or a merger: the share that it concerns."
    )
    error: ShareError = Field(description="Standard error of the size.")


class SeriesEvent(Wire):
    """A change of the reported population that raised an alarm."""

    id: EventId = Field(description="Id of the event.")
    window: Count = Field(description="Number of the window of the alarm.")
    change: Count = Field(description="Most probable first window after the change.")
    change_first: Count = Field(description="Start of the interval of the change, with 90 % of its probability.")
    change_last: Count = Field(description="End of that interval.")
    evidence: Double = Field(description="Bayes factor for a change against none, at least 20.")
    false_alarms: Share = Field(description="Bound on the probability of a false event in 52 windows without a change.")
    kinds: list[ChangeKind] | None = Field(
        description="What changed, the most significant kind first: null until two windows after the alarm, empty if "
        "no kind is significant."
    )
    described_in: Count | None = Field(description="Number of the window of the description; null before.")


class SeriesEventPage(Wire):
    """Events of a series, newest first."""

    items: list[SeriesEvent]
    next_cursor: Cursor
