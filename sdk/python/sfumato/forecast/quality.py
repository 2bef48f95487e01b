"""Expected quality of a result, from a table of simulated reference sets.

`python -m benchmarks.forecast_table` measures the table (`quality.json`): it runs the algorithms over random
shapes and stores the quartiles of the adjusted Rand index. Quartiles are
interpolated between rows in log information, N / (1/signal + .02). Outside the table the nearest row
applies.
"""

import json
from bisect import bisect_right
from dataclasses import dataclass, fields
from math import log10
from pathlib import Path

from sfumato.forecast.families import FAMILIES, Family
from sfumato.forecast.noise import information, puts_all_in_one
from sfumato.sizing.rounds import MAX_JSON_INT
from sfumato.specs import Algorithm

Key = tuple[str, str, str, str]  # algorithm, class of features, class of clusters, and family or "all"
Quartile = tuple[float, ...]  # a value per amount of information
Row = tuple[int, Quartile, Quartile, Quartile]  # runs per amount of information, and the quartiles

TABLE_FILE = Path(__file__).with_name("quality.json")


def _read_table() -> tuple[tuple[float, ...], dict[Key, Row]]:
    """Return the logarithms (base 10) of the information, and the rows."""
    document = json.loads(TABLE_FILE.read_text())
    rows = {
        (kind, features, clusters, family): (n_runs, tuple(lower), tuple(median), tuple(upper))
        for kind, features, clusters, family, n_runs, lower, median, upper in document["rows"]
    }
    return tuple(document["log_information"]), rows


PLACES, TABLE = _read_table()


@dataclass(frozen=True, slots=True)
class Band:
    """Quartiles of the adjusted Rand index against the true clusters, over the reference sets.

    Half of the reference runs are between lower and upper, and a quarter below lower.

    Attributes
    ----------
    lower, median, upper : float
        In [0, 1]. 1 means that all labels are correct.
    n_runs : int
        Number of runs for each row of the table.
    """

    lower: float
    median: float
    upper: float
    n_runs: int


@dataclass(frozen=True, slots=True)
class FamilyBand:
    """Quartiles of the adjusted Rand index over the reference sets of one family.

    Attributes
    ----------
    family : {"compact", "elongated", "curved", "many_small"}
    lower, median, upper : float
        In [0, 1].
    n_runs : int
        Number of runs for each row of the table.
    """

    family: Family
    lower: float
    median: float
    upper: float
    n_runs: int


def feature_class(n_features: int) -> str:
    """Return the class of reference sets for a number of features."""
    return str(n_features) if n_features <= 3 else "4-8" if n_features <= 8 else "9-64"


def cluster_class(clusters: int | None) -> str:
    """Return the class of reference sets for a number of clusters."""
    if clusters is None:
        return "counted"
    return "2-3" if clusters <= 3 else "4-9" if clusters <= 9 else "10-"


def quality_of(params: Algorithm, n_features: int, n_reports: int, family: Family | None = None) -> Band | None:
    """Return the expected quartiles over all shapes or those of a family. Return None if they were not measured.

    They are 0 if the algorithm would put all people in one cluster instead of estimating the number
    of clusters. They are None for one cluster, which contains all people, for other parameters than
    the defaults, and for methods as printed.
    """
    if params.clusters == 1 or not has_defaults(params):
        return None
    measured = TABLE.get((params.type, feature_class(n_features), cluster_class(params.clusters), family or "all"))
    if measured is None:
        return None
    n_runs, *quartiles = measured
    if puts_all_in_one(params, n_reports):
        return Band(0.0, 0.0, 0.0, n_runs)
    place = min(max(log10(information(n_reports, params.epsilon_nano)), PLACES[0]), PLACES[-1])
    above = min(bisect_right(PLACES, place), len(PLACES) - 1)
    weight = (place - PLACES[above - 1]) / (PLACES[above] - PLACES[above - 1])
    lower, median, upper = (q[above - 1] + weight * (q[above] - q[above - 1]) for q in quartiles)
    return Band(lower, median, upper, n_runs)


def least_favourable(params: Algorithm, n_features: int, n_reports: int) -> Band | None:
    """Return the expected quartiles of the family with the lowest ones. Return None if none was measured.

    Each quartile is the lowest of the families. So it increases with the reports and with epsilon, as theirs do.
    """
    bands = qualities_by_family(params, n_features, n_reports)
    if not bands:
        return quality_of(params, n_features, n_reports)
    return Band(
        min(each.lower for each in bands),
        min(each.median for each in bands),
        min(each.upper for each in bands),
        min(each.n_runs for each in bands),
    )


def qualities_by_family(params: Algorithm, n_features: int, n_reports: int) -> tuple[FamilyBand, ...]:
    """Return the expected quartiles of each family that was measured for the parameters."""
    bands = ((family, quality_of(params, n_features, n_reports, family)) for family in FAMILIES)
    return tuple(
        FamilyBand(family, band.lower, band.median, band.upper, band.n_runs)
        for family, band in bands
        if band is not None
    )


def ceiling_of(params: Algorithm, n_features: int) -> Band | None:
    """Return the quartiles for an unlimited number of reports at this epsilon, for the least favourable family."""
    return least_favourable(params, n_features, MAX_JSON_INT)


def has_defaults(params: Algorithm) -> bool:
    """Return whether all parameters except epsilon and the number of clusters have their defaults."""
    free = ("epsilon", "clusters")
    return all(getattr(params, field.name) == field.default for field in fields(params) if field.name not in free)
