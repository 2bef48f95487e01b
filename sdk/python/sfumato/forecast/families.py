"""Expected excess of `private_kmeans` over k-means without noise, for families of data, from a simulated table.

`python -m benchmarks.central_forecast_table` measures the table (`families.json`): it runs the algorithm over drawn
sets of each family and stores quantiles. Quantiles are interpolated between places in log information. Below the table
the first place applies, and beyond it the excess decreases as 1 / information.
"""

import json
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from math import log10
from pathlib import Path
from typing import Literal, NamedTuple, get_args

Family = Literal["compact", "elongated", "curved", "many_small"]
RouteName = Literal["grid", "steps", "block"]
Key = tuple[RouteName, Family]

FAMILIES: tuple[Family, ...] = get_args(Family)
# Information of a route, from N epsilon, the number of features and the number of clusters.
ROUTES: dict[RouteName, Callable[[float, int, int], float]] = {
    "grid": lambda n_epsilon, d, k: n_epsilon / k / d**2,
    "steps": lambda n_epsilon, d, k: n_epsilon / d / k,
    "block": lambda n_epsilon, d, k: n_epsilon / k**1.25 / d**0.25,
}

TABLE_FILE = Path(__file__).with_name("families.json")


class Excess(NamedTuple):
    """Quantiles of the excess at each amount of information, 10 %, 50 % and 90 %."""

    n_runs: int  # smallest number of runs of a place that runs reached
    lower: tuple[float, ...]
    median: tuple[float, ...]
    upper: tuple[float, ...]


MANY = 16  # number of clusters from which there may be many small ones


def _read_table() -> tuple[tuple[float, ...], dict[Key, Excess]]:
    """Return the logarithms (base 10) of the information, and the rows."""
    document = json.loads(TABLE_FILE.read_text())
    rows = {
        (route, family): Excess(n_runs, tuple(lower), tuple(median), tuple(upper))
        for route, family, n_runs, lower, median, upper in document["rows"]
    }
    return tuple(document["log_information"]), rows


PLACES, TABLE = _read_table()


@dataclass(frozen=True, slots=True)
class FamilyForecast:
    """The expected accuracy for one family of data.

    Attributes
    ----------
    family : {"compact", "elongated", "curved", "many_small"}
    ratio : float
        Median of the mean squared distance to the nearest centre, divided by that of k-means without noise.
    lower, upper : float
        Four of five simulated runs were between them.
    """

    family: Family
    ratio: float
    lower: float
    upper: float


def forecast_families(
    route: RouteName, n_epsilon: float, n_features: int, clusters: int, family: Family | None = None
) -> tuple[FamilyForecast, ...]:
    """Return the expected accuracy for each family that has so many clusters, or for the given one.

    Parameters
    ----------
    route : {"grid", "steps", "block"}
    n_epsilon : float
        Number of records times epsilon, positive.
    n_features : int
    clusters : int
    family : {"compact", "elongated", "curved", "many_small"}, optional
    """
    place = log10(ROUTES[route](n_epsilon, n_features, clusters))
    return tuple(
        FamilyForecast(each, *(1 + _interpolate(column, place) for column in (row.median, row.lower, row.upper)))
        for each in (FAMILIES if family is None else (family,))
        if family is not None or clusters >= MANY or each != "many_small"
        for row in (TABLE[route, each],)
    )


def _interpolate(column: tuple[float, ...], place: float) -> float:
    if place >= PLACES[-1]:
        return column[-1] * 10 ** (PLACES[-1] - place)
    place = max(place, PLACES[0])
    above = bisect_right(PLACES, place)
    weight = (place - PLACES[above - 1]) / (PLACES[above] - PLACES[above - 1])
    return column[above - 1] + weight * (column[above] - column[above - 1])
