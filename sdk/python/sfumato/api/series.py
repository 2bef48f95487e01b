"""Series and windows, and the calls for them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.api.datasets import release_terms
from sfumato.api.parsers import parser
from sfumato.api.resources import Wire
from sfumato.forecast import SeriesForecast, series_forecast_from_wire
from sfumato.model.cluster_model import ClusterModel
from sfumato.model.tables import new_frame
from sfumato.plotting.series import plot_shares
from sfumato.specs import SeriesAlgorithm, to_series_algorithm, to_wire
from sfumato.transport.exchange import Listing, Steps, drop_none, get, in_order, patch, post, query
from sfumato.transport.operations import call, listing

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


class SeriesCalls:
    """The calls for series."""

    @call
    def create_series(
        self,
        dataset_id: str,
        name: str,
        algorithm: SeriesAlgorithm | Mapping[str, Any],
        *,
        every: Every = "week",
        count: int,
        cycle: int | None = None,
        target_reports: int,
        time_zone: str = "UTC",
        first: date | str | None = None,
        min_reports: int = 0,
        epsilon_total: float | None = None,
        season: int = 1,
        least_change: float | None = None,
        min_batch: int | None = None,
        honest_share: float | None = None,
        shuffled_delta: float | None = None,
        allow_insufficient: bool = False,
        idempotency_key: str | None = None,
    ) -> Steps[Series]:
        """Create a series: one job over a dataset in each window.

        Needs the scopes `jobs` and `grants`.

        A device answers in one secret window of each cycle, so that a cycle costs the ε of one window. Each cycle has a
        grant of its own. What it does not spend expires.

        Over records, a window has the records that were uploaded in it, and its job begins a minute after its end. A
        user has at most `max_records_per_user` records in all windows, so that they cost the ε of one together.

        Parameters
        ----------
        algorithm : ShiftedGrid, DensityMap or mapping
            The algorithm of all windows, `DensityMap` over records. Without `cells`, the reports or records of one
            window decide on the grid.
        every : {'day', 'week', 'month'}
            Length of a window. Windows begin at midnight of the time zone.
        count : int
            Number of windows, 1 to 1,000.
        cycle : int, optional
            Windows of a cycle, 1 to `count`. A person loses at most ε in each cycle. Default: all windows, which is the
            only choice over records.
        target_reports : int
            Number of devices expected to take part in a cycle. A window gets its share. Over records: number of records
            expected in all windows.
        time_zone : str
            Name in the IANA database.
        first : date or str, optional
            Day on which the first window begins. Default: the next day, Monday, or first day of a month.
        min_reports : int
            Minimum number of reports of a window; with fewer, the window is empty. Over records 0.
        epsilon_total : float, optional
            Most that all cycles may cost one person, at most 32. Default: the cost of all cycles.
        season : int
            Windows of a season, 1 to 26, such as 7 for days with a weekly pattern. Windows are compared with those at
            the same place of earlier seasons.
        least_change : float, optional
            Least change of a share of all people that raises an alarm, 0 to 0.5. Default: 0.01.
        min_batch : int, optional
            Minimum number of reports in the release of a window. Required for a shuffled dataset. Its budget towards
            the service must cover the releases of all cycles.
        honest_share : float, optional
            Share of the reports from honest devices, as for `submit_job`. Required for a shuffled dataset.
        shuffled_delta : float, optional
            δ of each release towards the service. Default: 1e-6.
        allow_insufficient : bool
            Whether to accept windows with too few reports for a result.
        idempotency_key : str, optional
            Key to find the same series again after a crash of the caller. The default is random.

        Examples
        --------
        >>> from sfumato import Client, Feature, ShiftedGrid
        >>> with Client(url, key) as client:
        ...     dataset = client.create_dataset("Lunch", [Feature("east", 0, 10)], epsilon=1)
        ...     algorithm = ShiftedGrid(epsilon=1)
        ...     series = client.create_series(
        ...         dataset.id, "Weekly", algorithm, every="week", count=52, cycle=13, target_reports=500_000
        ...     )
        >>> series.epsilon_per_window, series.epsilon_per_year, series.epsilon_total
        (1.0, 4.0, 4.0)
        """
        day = first.isoformat() if isinstance(first, date) else first
        body: dict[str, Any] = {
            "dataset_id": dataset_id,
            "name": name,
            "algorithm": drop_none(to_wire(to_series_algorithm(algorithm))),
            "windows": drop_none({"every": every, "time_zone": time_zone, "first": day, "count": count}),
            "cycle": count if cycle is None else cycle,
            "target_reports": target_reports,
            "min_reports": min_reports,
        }
        body |= drop_none(
            {
                "epsilon_total": epsilon_total,
                "season": season if season != 1 else None,
                "least_change": least_change,
                "allow_insufficient": allow_insufficient or None,
            }
        )
        body |= release_terms(min_batch, honest_share, shuffled_delta)
        return (yield post("series", body, idempotency_key)).read(parse_series)

    @call
    def forecast_series(
        self,
        algorithm: SeriesAlgorithm | Mapping[str, Any],
        *,
        n_features: int | None = None,
        dataset_id: str | None = None,
        target_reports: int,
        cycle: int,
        every: Every = "week",
        least_change: float | None = None,
        max_records_per_user: int | None = None,
        min_batch: int | None = None,
        honest_share: float | None = None,
        shuffled_delta: float | None = None,
    ) -> Steps[SeriesForecast]:
        """Forecast what a series costs one person, and which changes it finds, before it exists. It costs nothing.

        Give `n_features`, or the id of a dataset. A shuffled series needs `min_batch` and `honest_share`. Over records,
        `cycle` is the number of all windows, and `max_records_per_user` belongs to `n_features`.
        `sfumato.forecast.forecast_series` computes the same locally.
        """
        body = {
            "algorithm": drop_none(to_wire(to_series_algorithm(algorithm))),
            "every": every,
            "cycle": cycle,
            "target_reports": target_reports,
            **drop_none({"n_features": n_features, "dataset_id": dataset_id, "least_change": least_change}),
            **drop_none({"max_records_per_user": max_records_per_user}),
            **release_terms(min_batch, honest_share, shuffled_delta),
        }
        return (yield query("forecasts/series", body)).read(series_forecast_from_wire)

    @listing
    def series(self, dataset_id: str | None = None, *, oldest_first: bool = False) -> Listing[Series]:
        """Iterate over the series that the key can see, newest first; of one dataset, if one is given."""
        return Listing("series", parse_series, drop_none({"dataset_id": dataset_id}) | in_order(oldest_first))

    @call
    def get_series(self, series_id: str) -> Steps[Series]:
        """Return a series with its state and its cost."""
        return (yield get(f"series/{series_id}")).read(parse_series)

    @call
    def update_series(
        self, series_id: str, *, name: str | None = None, state: Literal["active", "paused", "ended"] | None = None
    ) -> Steps[Series]:
        """Rename, pause, continue or end a series. None leaves a member unchanged.

        An open window is completed. The windows of a pause are missed, and `ended` is final.
        """
        return (yield patch(f"series/{series_id}", drop_none({"name": name, "state": state}))).read(parse_series)

    @call
    def revise_series(
        self,
        series_id: str,
        algorithm: SeriesAlgorithm | Mapping[str, Any] | None = None,
        *,
        target_reports: int | None = None,
        min_reports: int | None = None,
        season: int | None = None,
        least_change: float | None = None,
        min_batch: int | None = None,
        honest_share: float | None = None,
        shuffled_delta: float | None = None,
        allow_insufficient: bool = False,
        idempotency_key: str | None = None,
    ) -> Steps[SeriesRevision]:
        """Change terms of a series from its next cycle on. None leaves a term unchanged.

        A revision that has not begun is replaced. Clusters keep their ids, and the test of changes starts again. With
        another grid, ε or mechanism, earlier windows leave the pool. The parameters are those of `create_series`.
        """
        body: dict[str, Any] = (
            {} if algorithm is None else {"algorithm": drop_none(to_wire(to_series_algorithm(algorithm)))}
        )
        body |= drop_none(
            {
                "target_reports": target_reports,
                "min_reports": min_reports,
                "season": season,
                "least_change": least_change,
                "allow_insufficient": allow_insufficient or None,
            }
        )
        body |= release_terms(min_batch, honest_share, shuffled_delta)
        return (yield post(f"series/{series_id}/revisions", body, idempotency_key)).read(parse_revision)

    @listing
    def series_revisions(self, series_id: str, *, oldest_first: bool = False) -> Listing[SeriesRevision]:
        """Iterate over the terms that a series has had, and those that begin later, newest first."""
        return Listing(f"series/{series_id}/revisions", parse_revision, in_order(oldest_first))

    @listing
    def windows(self, series_id: str, *, oldest_first: bool = False) -> Listing[Window]:
        """Iterate over the windows of a series up to the next one, newest first."""
        return Listing(f"series/{series_id}/windows", parse_window, in_order(oldest_first))

    @call
    def series_map(self, series_id: str, window: int | None = None, *, pooled: bool = True) -> Steps[SeriesMap]:
        """Return the map of a window, the last one by default. Its clusters have ids that persist over windows.

        In a pooled map each earlier window counts 0.9 times as much as the next one.
        """
        of = {"pooled": str(pooled).lower()} | ({} if window is None else {"window": str(window)})
        return (yield get(f"series/{series_id}/map", **of)).read(parse_map)

    @listing
    def series_clusters(self, series_id: str, *, oldest_first: bool = False) -> Listing[SeriesCluster]:
        """Iterate over all clusters that a series has had, newest first."""
        return Listing(f"series/{series_id}/clusters", parse_cluster, in_order(oldest_first))

    @call
    def get_series_cluster(self, series_id: str, cluster_id: str) -> Steps[SeriesCluster]:
        """Return one cluster of a series."""
        return (yield get(f"series/{series_id}/clusters/{cluster_id}")).read(parse_cluster)

    @call
    def name_series_cluster(self, series_id: str, cluster_id: str, name: str) -> Steps[SeriesCluster]:
        """Name a cluster of a series. The name stays with its id; an empty one removes it."""
        return (yield patch(f"series/{series_id}/clusters/{cluster_id}", {"name": name})).read(parse_cluster)

    @listing
    def series_events(self, series_id: str, *, oldest_first: bool = False) -> Listing[SeriesEvent]:
        """Iterate over the changes of a series that raised an alarm, newest first.

        Without a change, the probability of an event in 52 windows is at most `SeriesEvent.false_alarms`.
        """
        return Listing(f"series/{series_id}/events", parse_event, in_order(oldest_first))

    @call
    def series_history(self, series_id: str) -> Steps[SeriesHistory]:
        """Return all windows, clusters and events of a series, with `frame` and `plot` of the shares."""
        name = (yield get(f"series/{series_id}")).read(parse_series).name
        windows: list[Window] = []
        clusters: list[SeriesCluster] = []
        events: list[SeriesEvent] = []
        oldest = in_order(oldest_first=True)
        yield from Listing(f"series/{series_id}/windows", parse_window, oldest).steps(windows.append)
        yield from Listing(f"series/{series_id}/clusters", parse_cluster, oldest).steps(clusters.append)
        yield from Listing(f"series/{series_id}/events", parse_event, oldest).steps(events.append)
        return SeriesHistory(name, tuple(windows), tuple(clusters), tuple(events))
