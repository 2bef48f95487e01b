"""Forecast of a series: what it costs a person, and which changes it finds, before it exists.

A round cluster gains a share Δ of all people. The others are spread evenly. The test reads public functions. The
nearest one changes by a Δ. The factor a follows from the widths of the bump and of the cluster, and from their mean
distance. Let σ be the standard error of a window. Then the change has s = (a Δ - least change) / σ standard errors. It
is found n windows after it began, if t0 windows were quiet before:

    s² = z² (1/n + 1/t0).

It is never found if (s/z)² <= 1/t0. z follows from the threshold and from the number of functions. At that time the
statistic has the standard error 1, and the places of clusters vary s by 13 %. So 80 % of the alarms come between the n
of z - q and that of z + q, where q = 1.28 sqrt(1 + (.13 z)²).

Over records, a window has noisy counts that are divided by their noisy sum. Its functions vary about their mean.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from math import ceil, exp, inf, log, prod, sinh, sqrt
from typing import Any, NamedTuple

from sfumato.errors import InvalidSpec
from sfumato.forecast.releases import ForecastTerms, forecast_release_mu2, forecast_releases
from sfumato.model.precision import precision
from sfumato.privacy.accountant import Accounting, Cost, cost_of_releases
from sfumato.privacy.accounting import ATTO, NANO
from sfumato.sizing import planned_rounds
from sfumato.sizing.grids import series_cells
from sfumato.specs import DensityMap, Feature, SeriesAlgorithm, ShiftedGrid, ShiftedGridEncoding
from sfumato.validation import require_at_least, show

PER_YEAR = {"day": 365, "week": 52, "month": 12}
WITHIN = (1, 4, 13)  # windows after a change, for the smallest change that they find
CHANGES = (0.05, 0.1, 0.2)  # gains of a share, for the windows until they are found
QUIET = 26  # windows without a change before
POOLED = 19.0  # windows' worth of a pool with weights 0.9^t
MOST_WINDOWS = 52  # a change that takes longer is never found: the test then starts again
LEAST_EFFECTIVE = 5_000  # effective reports of a window below which a change of 10 points takes half a year or more

CLUSTER_WIDTH = 0.045  # standard deviation of a typical cluster, in shares of a feature's range
CLUSTER_WIDTHS = (0.01, 0.3)  # the least and the greatest that a forecast takes

_BUMPS = ((0.05, 16), (0.10, 8))  # the lattices of `clustering.series.channels`
_SPREAD = 0.02  # variance of a function over the people
_MEAN = 0.1  # mean of a function over the people
_CELLS_PERCENT = 98  # percent of epsilon for the counts of cells over records, as in `density_map`
_Z = 5.0  # standard errors of an alarm with 320 functions
_QUANTILE = 1.28  # quantile of the normal distribution: .8 of the alarms come within the interval of a delay
_PLACES = 0.13  # standard deviation of the signal over the places of a cluster, relative to its mean


@dataclass(frozen=True, slots=True)
class SmallestChange:
    """The smallest gain of a share that some windows find; None if even a whole gain is not found."""

    windows: int
    share: float | None


@dataclass(frozen=True, slots=True)
class Delay:
    """The windows after which a gain of a share is found.

    Attributes
    ----------
    share : float
    windows : int or None
        A typical number; None if the gain is never found.
    earliest, latest : int or None
        80 % of the alarms come within. None is never.
    """

    share: float
    windows: int | None
    earliest: int | None
    latest: int | None


@dataclass(frozen=True, slots=True)
class SeriesRelease:
    """Terms of the release of each window of a shuffled series."""

    min_batch: int
    honest_share: Fraction  # share of the reports, in (0, 1]
    delta_atto: int  # delta of each release
    is_gaussian: bool = False  # whether the dataset has Gaussian accounting


@dataclass(frozen=True, slots=True)
class ReleaseCosts:
    """Cost of the releases of a series for one person, towards the service. It counts in addition to epsilon.

    Attributes
    ----------
    epsilon_per_cycle, delta_per_cycle : float
        The same as of one window, because a person is in one release of a cycle.
    epsilon_per_year, delta_per_year : float
        All cycles that begin in a year, by the accounting of the dataset. No epsilon if it is above 32.
    """

    epsilon_per_cycle: float
    delta_per_cycle: float
    epsilon_per_year: float | None
    delta_per_year: float


def release_costs(accounting: Accounting, release: Cost, every: str, cycle: int) -> ReleaseCosts:
    """Return the costs of a series from that of the release of a window."""
    n_cycles = -(-PER_YEAR[every] // cycle)
    nano, atto = cost_of_releases(accounting, release, n_cycles)
    return ReleaseCosts(
        release.epsilon_nano / NANO, release.delta_atto / ATTO, None if nano is None else nano / NANO, atto / ATTO
    )


@dataclass(frozen=True, slots=True)
class SeriesForecast:
    """The forecast of a series. Amounts are for one person.

    Attributes
    ----------
    epsilon_per_window, epsilon_per_cycle, epsilon_per_year : float
    reports_per_window : int
    n_eff : float
        Effective number of reports of a window.
    n_eff_pooled : float
        The same of a pool of many windows.
    smallest_changes : tuple of SmallestChange
        After `QUIET` windows without a change.
    delays : tuple of Delay
    releases : ReleaseCosts or None
        None if the series is not shuffled.
    warnings : tuple of str
    """

    epsilon_per_window: float
    epsilon_per_cycle: float
    epsilon_per_year: float
    reports_per_window: int
    n_eff: float
    n_eff_pooled: float
    smallest_changes: tuple[SmallestChange, ...]
    delays: tuple[Delay, ...]
    releases: ReleaseCosts | None
    warnings: tuple[str, ...]


def forecast_series(
    algorithm: SeriesAlgorithm,
    *,
    n_features: int,
    target_reports: int,
    cycle: int,
    every: str = "week",
    least_change: float = 0.01,
    cluster_width: float = CLUSTER_WIDTH,
    max_records_per_user: int = 1,
    release: SeriesRelease | None = None,
    circles: tuple[int, ...] = (),
) -> SeriesForecast:
    """Return the forecast of a series. It reads no data and costs no privacy budget.

    Parameters
    ----------
    algorithm : ShiftedGrid or DensityMap
        Over reports, or over records.
    n_features : int
        One to three.
    target_reports : int
        Number of devices expected to take part in a cycle; over records, of records in all windows.
    cycle : int
        Windows of a cycle; over records, all windows.
    every : {'day', 'week', 'month'}
    least_change : float
        Least change that raises an alarm, in [0, 0.5].
    cluster_width : float
        Standard deviation of the cluster that changes, in shares of a feature's range, in [0.01, 0.3].
    max_records_per_user : int
        Over records: largest number of records of a user in all windows.
    release : SeriesRelease, optional
        Terms of the release of each window of a shuffled series.
    circles : tuple of int
        Indices of the periodic features. A shift has one cell less along each of them.

    Raises
    ------
    InvalidSpec
        A value is out of range, the algorithm does not support the features, or a release has no known cost.

    Examples
    --------
    >>> from sfumato import ShiftedGrid
    >>> from sfumato.forecast import forecast_series
    >>> made = forecast_series(ShiftedGrid(epsilon=1), n_features=2, target_reports=1_300_000, cycle=13)
    >>> made.epsilon_per_year, [each.windows for each in made.delays]
    (4.0, [20, 2, 1])
    """
    if not CLUSTER_WIDTHS[0] <= cluster_width <= CLUSTER_WIDTHS[1]:
        raise InvalidSpec(
            f"cluster_width must be from {CLUSTER_WIDTHS[0]:g} to {CLUSTER_WIDTHS[1]:g}, in shares of a feature's "
            f"range: {cluster_width:g} is not"
        )
    if every not in PER_YEAR:
        raise InvalidSpec(f"every must be one of {', '.join(PER_YEAR)}, not {every!r}")
    if not 0 <= least_change <= 0.5:
        raise InvalidSpec(f"least_change must be from 0 to 0.5, not {show(least_change)}")
    require_at_least(cycle, 1, "cycle")
    require_at_least(target_reports, 1, "target_reports")
    require_at_least(max_records_per_user, 1, "max_records_per_user")
    n = max(1, target_reports // cycle)
    costs = None
    if isinstance(algorithm, DensityMap):
        if release is not None:
            raise InvalidSpec("a series over records has no releases of a shuffler: remove the terms of a release")
        observed = _count_records(algorithm, n_features, n, max_records_per_user)
    else:
        observed = _collect_reports(algorithm, n_features, n, circles)
        costs = None if release is None else _release_costs(algorithm, n_features, n, release, every, cycle, circles)
    bumps = _BUMPS if n_features < 3 else _BUMPS[1:]
    threshold = sqrt(_Z**2 + 2 * log(sum(number**n_features for _, number in bumps) / 320))
    signals = []  # standard errors for a gain of 1, and the gain that is no change
    for bump in bumps:
        gain, noise = _gain_and_noise(observed, *bump, cluster_width)
        error = sqrt((observed.variance * noise + _SPREAD) / n)
        signals.append((gain / error, least_change / gain))
    epsilon = float(algorithm.epsilon)
    n_eff = observed.n_eff
    smallest = tuple(SmallestChange(windows, _smallest(signals, threshold, windows)) for windows in WITHIN)
    delays = tuple(_forecast_delay(signals, threshold, share) for share in CHANGES)
    return SeriesForecast(
        epsilon_per_window=epsilon,
        epsilon_per_cycle=epsilon,
        epsilon_per_year=epsilon * PER_YEAR[every] / cycle,
        reports_per_window=n,
        n_eff=n_eff,
        n_eff_pooled=POOLED * n_eff,
        smallest_changes=smallest,
        delays=delays,
        releases=costs,
        warnings=_warnings(n_eff, delays, n, release),
    )


class _Observed(NamedTuple):
    """Cells of a feature, their shifts, and the noise of a window."""

    cells: int
    shifts: int
    along: tuple[int, ...]  # coarse cells of one shift along each feature
    variance: float  # variance of a frequency, times the number of reports
    n_eff: float
    is_divided: bool  # whether counts are divided by their noisy sum


def _collect_reports(algorithm: ShiftedGrid, n_features: int, n: int, circles: tuple[int, ...]) -> _Observed:
    (only,) = planned_rounds(algorithm, n_features, n, circles)
    spec = only.spec(tuple(Feature(f"x{place}", 0.0, 1.0, periodic=place in circles) for place in range(n_features)))
    encoding, found = spec.encoding, precision(spec.mechanism)
    assert isinstance(encoding, ShiftedGridEncoding)  # noqa: S101 - for the type checker: a shifted grid has one round
    shape = encoding.cells, encoding.shifts, encoding.symbols_along
    return _Observed(*shape, found.spread_variance, n * found.signal, is_divided=False)


def _count_records(algorithm: DensityMap, n_features: int, n: int, max_per_user: int) -> _Observed:
    algorithm.require_features(n_features)
    cells = series_cells(algorithm, n_features, n, max_per_user)
    scale = max_per_user / (_CELLS_PERCENT / 100 * algorithm.epsilon)
    variance = 0.5 / sinh(min(0.5 / scale, 350.0)) ** 2  # variance of discrete Laplace noise
    return _Observed(cells, 1, (cells,) * n_features, variance / n, n * n / variance, is_divided=True)


def _release_costs(
    algorithm: ShiftedGrid,
    n_features: int,
    n: int,
    release: SeriesRelease,
    every: str,
    cycle: int,
    circles: tuple[int, ...],
) -> ReleaseCosts:
    terms = ForecastTerms(
        n_features=n_features,
        circles=circles,
        expected_reports=n,
        min_batch=release.min_batch,
        honest_share=release.honest_share,
        delta_atto=release.delta_atto,
    )
    nano, atto = forecast_releases(algorithm, **terms)
    mu2 = forecast_release_mu2(algorithm, **terms) if release.is_gaussian else 0
    return release_costs("gaussian" if release.is_gaussian else "additive", Cost(nano, atto, mu2), every, cycle)


def _gain_and_noise(observed: _Observed, width: float, n_bumps: int, cluster_width: float) -> tuple[float, float]:
    """Return the value of a bump for a cluster near it, less that for people spread evenly, and its noise.

    The cluster is as far from the bump, along each feature, as the root mean square of all places. The noise is the sum
    of the squared weights of the symbols about their mean, over the cells or over the people. All are means over the
    shifts.
    """
    fine = observed.cells * observed.shifts
    places = [((place + 0.5) / fine - 0.5) for place in range(fine)]
    weights = [exp(-0.5 * (place / width) ** 2) for place in places]
    offset = 1 / (sqrt(12) * n_bumps)
    people = [exp(-0.5 * ((place - offset) / cluster_width) ** 2) for place in places]
    gain = square = total = 1.0
    for n_coarse in observed.along:
        sums = [0.0, 0.0, 0.0]
        for shift in range(observed.shifts):
            cells: dict[int, list[int]] = {}
            for place in range(fine):
                cells.setdefault((place + shift) // observed.shifts % n_coarse, []).append(place)
            for inside in cells.values():
                mean = sum(weights[place] for place in inside) / len(inside)
                here = mean * sum(people[place] for place in inside) / sum(people)
                sums = [one + other for one, other in zip(sums, (here, mean**2, mean), strict=True)]
        means = [each / observed.shifts for each in sums]
        gain, square, total = gain * means[0], square * means[1], total * means[2]
    k = prod(observed.along)
    noise = square - total**2 / k
    return gain - (sum(weights) / fine) ** len(observed.along), noise + k * (
        _MEAN - total / k
    ) ** 2 if observed.is_divided else noise


def _smallest(signals: list[tuple[float, float]], threshold: float, windows: int) -> float | None:
    needed = threshold * sqrt(1 / windows + 1 / QUIET)
    share = min(needed / signal + hidden for signal, hidden in signals)
    return share if share <= 1 else None


def _forecast_delay(signals: list[tuple[float, float]], threshold: float, share: float) -> Delay:
    best = max(max(share - hidden, 0.0) * signal for signal, hidden in signals)
    spread = _QUANTILE * sqrt(1 + (_PLACES * threshold) ** 2)
    return Delay(share, *(_find_windows(best, threshold + each) for each in (0.0, -spread, spread)))


def _find_windows(signal: float, errors: float) -> int | None:
    """Return the windows until a signal per window reaches so many standard errors; None for never."""
    rate = (signal / errors) ** 2 - 1 / QUIET
    windows = inf if rate <= 0 else 1 / rate
    return ceil(windows) if windows <= MOST_WINDOWS else None


def _warnings(n_eff: float, delays: tuple[Delay, ...], n: int, release: SeriesRelease | None) -> tuple[str, ...]:
    never = [f"{100 * each.share:g}" for each in delays if each.windows is None]
    messages = []
    if never:
        messages.append(
            f"Gains of {' and '.join(never)} points of all people are usually never found. Plan more devices, a larger "
            "epsilon, or longer windows."
        )
    if n_eff < LEAST_EFFECTIVE:
        messages.append(
            f"A window has {n_eff:,.0f} effective reports. Below {LEAST_EFFECTIVE:,}, most changes take half a year or "
            "are not found."
        )
    if release is not None and release.min_batch > n - 3 * sqrt(n):
        messages.append(
            f"Windows expect {n:,} reports, with a standard deviation of {sqrt(n):,.0f}. Some have fewer than the "
            f"{release.min_batch:,} of a release, and are empty. Lower min_batch, or plan more devices."
        )
    return tuple(messages)


def series_forecast_to_wire(forecast: SeriesForecast) -> dict[str, Any]:
    """Return a forecast as JSON values."""
    found = asdict(forecast)
    return found | {name: list(found[name]) for name in ("smallest_changes", "delays", "warnings")}


def series_forecast_from_wire(wire: Mapping[str, Any]) -> SeriesForecast:
    """Return the forecast that `series_forecast_to_wire` wrote. Raise InvalidSpec for another document."""
    try:
        values = {name: wire[name] for name in SeriesForecast.__slots__}
        return SeriesForecast(
            **values
            | {
                "smallest_changes": tuple(SmallestChange(**each) for each in values["smallest_changes"]),
                "delays": tuple(Delay(**each) for each in values["delays"]),
                "releases": None if values["releases"] is None else ReleaseCosts(**values["releases"]),
                "warnings": tuple(values["warnings"]),
            }
        )
    except (KeyError, TypeError) as error:
        raise InvalidSpec("this is not a forecast of a series") from error
