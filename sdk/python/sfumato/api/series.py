"""Calls for series."""

from collections.abc import Mapping
from datetime import date
from typing import Any, Literal

from sfumato.api.datasets import release_terms
from sfumato.api.series_resources import (
    Every,
    Series,
    SeriesCluster,
    SeriesEvent,
    SeriesHistory,
    SeriesMap,
    SeriesRevision,
    Window,
    parse_cluster,
    parse_event,
    parse_map,
    parse_revision,
    parse_series,
    parse_window,
)
from sfumato.forecast import SeriesForecast, series_forecast_from_wire
from sfumato.specs import SeriesAlgorithm, to_series_algorithm, to_wire
from sfumato.transport.exchange import Listing, Steps, drop_none, get, in_order, patch, post, query
from sfumato.transport.operations import call, listing


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
        cluster_width: float | None = None,
        max_records_per_user: int | None = None,
        min_batch: int | None = None,
        honest_share: float | None = None,
        shuffled_delta: float | None = None,
    ) -> Steps[SeriesForecast]:
        """Forecast what a series costs one person, and which changes it finds, before it exists. It costs nothing.

        Give `n_features`, or the id of a dataset. A shuffled series needs `min_batch` and `honest_share`. Over records,
        `cycle` is the number of all windows, and `max_records_per_user` belongs to `n_features`. `cluster_width` is the
        standard deviation of the cluster that changes, as a share of a feature's range: 0.045 by default.
        `sfumato.forecast.forecast_series` computes the same locally.
        """
        body = {
            "algorithm": drop_none(to_wire(to_series_algorithm(algorithm))),
            "every": every,
            "cycle": cycle,
            "target_reports": target_reports,
            **drop_none({"n_features": n_features, "dataset_id": dataset_id, "least_change": least_change}),
            **drop_none({"cluster_width": cluster_width, "max_records_per_user": max_records_per_user}),
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
