"""Series and windows, and the calls for them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Literal

from sfumato.api.parsers import parser
from sfumato.api.resources import Wire
from sfumato.errors import InvalidSpec
from sfumato.specs import ShiftedGrid, to_algorithm, to_wire
from sfumato.transport.exchange import Listing, Steps, drop_none, get, in_order, patch, post
from sfumato.transport.operations import call, listing

Every = Literal["day", "week", "month"]


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """When the windows of a series begin: at midnight of a time zone."""

    every: Every
    time_zone: str
    first: str  # day on which the first window begins, ISO 8601
    count: int


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
    epsilon_per_window: float
    epsilon_per_cycle: float
    epsilon_per_year: float  # a person answers once in each cycle
    epsilon_total: float
    epsilon_charged: float
    epsilon_pending: float  # reserved for grants of later cycles
    next_window_at: datetime | None
    created_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class Window:
    """A window of a series."""

    index: int
    cycle: int
    state: Literal["planned", "open", "closed", "done", "empty", "missed", "failed"]
    opens_at: datetime
    closes_at: datetime
    job_id: str | None  # job with the result
    n_reports: int | None
    reason: str | None  # why it is missed, empty or failed, or has not opened yet


parse_series = parser(Series)
parse_window = parser(Window)


class SeriesCalls:
    """The calls for series."""

    @call
    def create_series(
        self,
        dataset_id: str,
        name: str,
        algorithm: ShiftedGrid | Mapping[str, Any],
        *,
        every: Every = "week",
        count: int,
        cycle: int,
        target_reports: int,
        time_zone: str = "UTC",
        first: date | str | None = None,
        min_reports: int = 0,
        epsilon_total: float | None = None,
        allow_insufficient: bool = False,
        idempotency_key: str | None = None,
    ) -> Steps[Series]:
        """Create a series: one job over a local dataset in each window. Needs the scopes `jobs` and `grants`.

        A device answers in one secret window of each cycle, so that a cycle costs the ε of one window. Each cycle has a
        grant of its own. What it does not spend expires.

        Parameters
        ----------
        algorithm : ShiftedGrid or mapping
            The algorithm of all windows. Without `cells`, the reports of one window decide on the grid.
        every : {'day', 'week', 'month'}
            Length of a window. Windows begin at midnight of the time zone.
        count : int
            Number of windows, 1 to 1,000.
        cycle : int
            Windows of a cycle, 1 to `count`. A person loses at most ε in each cycle.
        target_reports : int
            Number of devices expected to take part in a cycle. A window gets its share.
        time_zone : str
            Name in the IANA database.
        first : date or str, optional
            Day on which the first window begins. Default: the next day, Monday, or first day of a month.
        min_reports : int
            Minimum number of reports of a window; with fewer, the window is empty.
        epsilon_total : float, optional
            Most that all cycles may cost one person, at most 32. Default: the cost of all cycles.
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
        pinned = to_algorithm(algorithm)
        if not isinstance(pinned, ShiftedGrid):
            raise InvalidSpec("a series needs the algorithm shifted_grid, whose windows share one grid")
        body: dict[str, Any] = {
            "dataset_id": dataset_id,
            "name": name,
            "algorithm": drop_none(to_wire(pinned)),
            "windows": drop_none({"every": every, "time_zone": time_zone, "first": day, "count": count}),
            "cycle": cycle,
            "target_reports": target_reports,
            "min_reports": min_reports,
        }
        body |= drop_none({"epsilon_total": epsilon_total, "allow_insufficient": allow_insufficient or None})
        return (yield post("series", body, idempotency_key)).read(parse_series)

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

    @listing
    def windows(self, series_id: str, *, oldest_first: bool = False) -> Listing[Window]:
        """Iterate over the windows of a series up to the next one, newest first."""
        return Listing(f"series/{series_id}/windows", parse_window, in_order(oldest_first))
