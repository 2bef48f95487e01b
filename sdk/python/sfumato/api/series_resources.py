"""Series, their windows, clusters and events, as the service returns them."""

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.api.parsers import parser
from sfumato.api.resources import Wire
from sfumato.model.cluster_model import ClusterModel
from sfumato.model.tables import new_frame
from sfumato.plotting.series import plot_shares

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame  # type: ignore[import-not-found,import-untyped,unused-ignore]

Every = Literal["day", "week", "month"]


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """When the windows of a series begin: at midnight of a time zone."""

    every: Every
    time_zone: str
    first: str  # day on which the first window begins, ISO 8601
    count: int


@dataclass(frozen=True, slots=True)
class SeriesReleases:
    """Releases of the windows of a shuffled series: their terms, and their cost for one person towards the service."""

    min_batch: int  # minimum number of reports in a release
    honest_share: float
    epsilon_per_cycle: float  # the same as of one window
    delta_per_cycle: float
    epsilon_per_year: float | None  # None above 32; cycles add up by the accounting of the dataset
    delta_per_year: float
    epsilon_total: float | None
    delta_total: float


@dataclass(frozen=True, slots=True)
class Series:
    """A series: a job in each window, with a budget for each cycle. Amounts are for one person."""

    id: str
    dataset_id: str
    name: str
    algorithm: Wire  # type and parameters of all windows
    windows: WindowPlan
    cycle: int  # windows of a cycle; a device answers in one of them
    target_reports: int
    min_reports: int
    state: Literal["active", "paused", "ended"]
    season: int  # windows of a season; 1 for none
    least_change: float  # least change of a share that raises an alarm
    false_alarms: float  # bound on the probability of a false event in 52 windows
    revision: int  # number of the revision with these terms; 0 at first
    epsilon_per_window: float
    epsilon_per_cycle: float
    epsilon_per_year: float  # a person answers once in each cycle
    epsilon_total: float
    epsilon_charged: float
    epsilon_pending: float  # reserved for grants of later cycles
    releases: SeriesReleases | None  # None if the dataset is not shuffled
    next_window_at: datetime | None
    created_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class SeriesRevision:
    """Terms of a series from a window on."""

    number: int  # 0 for the terms of the creation
    first_window: int
    algorithm: Wire
    target_reports: int
    min_reports: int
    season: int
    least_change: float
    epsilon_per_cycle: float
    min_batch: int | None  # None if the dataset is not shuffled, like the next three
    honest_share: float | None
    shuffled_epsilon_per_cycle: float | None
    shuffled_delta_per_cycle: float | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class ClusterShare:
    """The share of a cluster in one window: of this window alone, and of the pooled windows up to it."""

    cluster_id: str
    share: float
    error: float  # standard error
    pooled_share: float
    pooled_error: float


@dataclass(frozen=True, slots=True)
class Window:
    """A window of a series."""

    index: int
    cycle: int
    revision: int  # revision of the series with the terms of the window
    state: Literal["planned", "open", "closed", "done", "empty", "missed", "failed"]
    opens_at: datetime
    closes_at: datetime
    job_id: str | None  # job with the result
    n_reports: int | None
    reason: str | None  # why it is missed, empty or failed, or has not opened yet
    clusters: tuple[ClusterShare, ...] | None  # None until the window is done


@dataclass(frozen=True, slots=True)
class SeriesCluster:
    """A cluster of a series. Its id persists over windows."""

    id: str
    name: str
    born_in: int  # first window with the cluster
    born_at: datetime
    gone_in: int | None  # first window without it
    gone_at: datetime | None
    parents: tuple[str, ...]  # clusters of which it was a part


@dataclass(frozen=True, slots=True)
class ChangeKind:
    """One kind of change of one cluster."""

    kind: Literal["grown", "shrunk", "gone", "born", "split", "moved", "merged"]
    cluster_id: str
    others: tuple[str, ...]  # other parts of a split, or clusters that were merged into this one
    size: float  # change of the share of all people, or the share that is concerned
    error: float


@dataclass(frozen=True, slots=True)
class SeriesEvent:
    """A change that raised an alarm."""

    id: str
    window: int  # number of the window with the alarm
    change: int  # most probable first window after the change
    change_first: int
    change_last: int
    evidence: float
    false_alarms: float
    kinds: tuple[ChangeKind, ...] | None  # None until two windows after the alarm
    described_in: int | None


@dataclass(frozen=True, slots=True)
class WindowWeight:
    """Weight of a window in a map."""

    window: int
    weight: float


@dataclass(frozen=True, slots=True)
class SeriesMap:
    """The map of a window: pooled, or of the window alone."""

    window: int
    pooled: bool
    model: ClusterModel
    cluster_ids: tuple[str | None, ...]  # ids in the order of the model; None for a cluster without an id
    weights: tuple[WindowWeight, ...]
    is_provisional: bool  # whether the windows are too few for lasting ids

    def assign(self, points: ArrayLike) -> NDArray[np.object_]:
        """Return the id of the cluster of each point, as `ClusterModel.assign` returns its number."""
        return np.array(self.cluster_ids, dtype=object)[self.model.assign(points)]


@dataclass(frozen=True, slots=True)
class SeriesHistory:
    """The windows, clusters and events of a series, oldest first."""

    name: str
    windows: tuple[Window, ...]
    clusters: tuple[SeriesCluster, ...]
    events: tuple[SeriesEvent, ...]

    def frame(self) -> "DataFrame":
        """Return the shares of the clusters as a DataFrame with one row per window and cluster. Needs pandas.

        The index is the window and the id of the cluster. The columns are `opens_at`, `name`, `share`, `error`,
        `pooled_share` and `pooled_error`.
        """
        rows = self._rows()
        columns: dict[str, Any] = {
            "window": [window.index for window, _ in rows],
            "cluster_id": [each.cluster_id for _, each in rows],
            "opens_at": [window.opens_at for window, _ in rows],
            "name": [self._names[each.cluster_id] for _, each in rows],
        }
        for name in ("share", "error", "pooled_share", "pooled_error"):
            columns[name] = np.array([getattr(each, name) for _, each in rows], dtype=np.float64)
        return new_frame(columns).set_index(["window", "cluster_id"])

    def plot(self, *, pooled: bool = False, ax: "Axes | None" = None) -> "Figure":
        """Plot the share of each cluster over the windows, with bands of two standard errors and the events.

        `pooled` shows the pooled shares, in which earlier windows count as well. Needs matplotlib.
        """
        curves: dict[str, tuple[list[int], list[float], list[float]]] = {}
        for window, each in self._rows():
            title = self._names[each.cluster_id] or each.cluster_id
            places, shares, errors = curves.setdefault(title, ([], [], []))
            places.append(window.index)
            shares.append(each.pooled_share if pooled else each.share)
            errors.append(each.pooled_error if pooled else each.error)
        events = [(event.window, event.change_first, event.change_last) for event in self.events]
        return plot_shares(curves, events, title=self.name, ax=ax)

    @property
    def _names(self) -> dict[str, str]:
        return {each.id: each.name for each in self.clusters}

    def _rows(self) -> list[tuple[Window, ClusterShare]]:
        return [(window, each) for window in self.windows for each in window.clusters or ()]


parse_series = parser(Series)
parse_revision = parser(SeriesRevision)
parse_window = parser(Window)
parse_cluster = parser(SeriesCluster)
parse_event = parser(SeriesEvent)
parse_map = parser(SeriesMap)
