"""Expected quality: what reference sets came to at as much information, by a table that simulation made.

The table (`sfumato.forecast.table`) is measured, not derived: `python -m benchmarks.forecast_table`
runs algorithms over shapes it draws itself and keeps the quartiles of the adjusted Rand
index. Between its rows the quartiles are interpolated in log information,
N / (1/signal + .02); outside of them the nearest row holds.
"""

from bisect import bisect_right
from dataclasses import dataclass, fields
from math import log10

from sfumato.accounting import parse_epsilon
from sfumato.forecast.limits import information, puts_all_in_one
from sfumato.forecast.table import PLACES, TABLE
from sfumato.sizing import MAX_JSON_INT
from sfumato.specs import Algorithm, Auto


@dataclass(frozen=True, slots=True)
class Band:
    """Quartiles of the adjusted Rand index against the true clusters, over the reference sets.

    Half of the reference runs lay between lower and upper; a quarter did worse than lower.

    Attributes
    ----------
    lower, median, upper : float
        In [0, 1], 1 where every point is with its own.
    n_runs : int
        Behind each row of the table.
    """

    lower: float
    median: float
    upper: float
    n_runs: int


def feature_class(n_features: int) -> str:
    """Which reference sets speak for so many features."""
    return str(n_features) if n_features <= 3 else "4-8" if n_features <= 8 else "9-64"


def cluster_class(clusters: int | None) -> str:
    """Which reference sets speak for so many clusters."""
    if clusters is None:
        return "counted"
    return "2-3" if clusters <= 3 else "4-9" if clusters <= 9 else "10-"


def quality_of(params: Algorithm, n_features: int, n_reports: int) -> Band | None:
    """The quartiles the reference sets came to; None where there are none for such parameters.

    All 0 where clusters should be counted and everybody will be put in one. None for one
    cluster, which holds everybody; for parameters other than the defaults, and for methods as
    printed, which were not measured.
    """
    if isinstance(params, Auto) or params.clusters == 1 or not has_defaults(params):
        return None
    measured = TABLE.get((params.type, feature_class(n_features), cluster_class(params.clusters)))
    if measured is None:
        return None
    n_runs, *quartiles = measured
    if puts_all_in_one(params, n_reports):
        return Band(0.0, 0.0, 0.0, n_runs)
    place = min(max(log10(information(n_reports, parse_epsilon(params.epsilon))), PLACES[0]), PLACES[-1])
    above = min(bisect_right(PLACES, place), len(PLACES) - 1)
    weight = (place - PLACES[above - 1]) / (PLACES[above] - PLACES[above - 1])
    lower, median, upper = (q[above - 1] + weight * (q[above] - q[above - 1]) for q in quartiles)
    return Band(lower, median, upper, n_runs)


def ceiling_of(params: Algorithm, n_features: int) -> Band | None:
    """The quartiles that no number of reports exceeds at this epsilon."""
    return quality_of(params, n_features, MAX_JSON_INT)


def has_defaults(params: Algorithm) -> bool:
    """Whether all but epsilon and the number of clusters is left as it comes."""
    free = ("epsilon", "clusters")
    return all(getattr(params, field.name) == field.default for field in fields(params) if field.name not in free)
