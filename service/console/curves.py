"""Curves of a forecast, as shapes of a picture: accuracy against the number of people and against ε.

The curves use the same forecasts as the API. They read no data and cost no budget.
"""

import math
from collections.abc import Collection, Sequence

from service.console.forms import Json
from sfumato.errors import InvalidSpec
from sfumato.forecast.families import Family
from sfumato.forecast.sweeps import RATIO, SweepPoint, sweep
from sfumato.specs import to_algorithm
from sfumato.specs.attributes import Categorical

FACTORS = (0.1, 0.18, 0.32, 0.56, 1.0, 1.8, 3.2, 5.6, 10.0)  # multiples of the present choice, evenly on a log scale
MARKED = (FACTORS[0], 1.0, FACTORS[-1])  # multiples with a label on the horizontal axis
LEFT, RIGHT, TOP, BOTTOM = 34, 300, 12, 140  # edges of the plane of a curve, in units of the picture
# Bottom, top and labelled values of the vertical axis. A ratio is best at the bottom, and larger ratios are cut off.
AGREEMENT_AXIS = (0.0, 1.0, (0.0, 0.5, 0.8, 1.0))
RATIO_AXIS = (1.0, 3.0, (1.0, 1.3, 2.0, 3.0))

Point = tuple[float, SweepPoint]  # multiple of the present choice, and the accuracy there


def curves_of(
    algorithm: Json,
    *,
    n_features: int,
    size: int,
    max_records_per_user: int,
    noun: str,
    family: Family | None = None,
    attributes: tuple[Categorical, ...] = (),
    most_epsilon: float = math.inf,
    states_size: bool = False,
) -> Json:
    """Return the two curves of an algorithm, and the smallest choices with the best verdict.

    Parameters
    ----------
    algorithm : dict
        Algorithm of the API.
    n_features : int
    size : int
        Present choice of the number of reports or records.
    max_records_per_user : int
    noun : str
        Noun for what `size` counts.
    family : {"compact", "elongated", "curved", "many_small"}, optional
    attributes : tuple of Categorical
        Attributes by which a job over reports clusters.
    most_epsilon : float
        Largest epsilon that the advice names: what is left of the budget.
    states_size : bool
        Whether the forecast states a sufficient number itself. The advice then names no second one.
    """
    base = to_algorithm(algorithm)

    def found(factor: float, epsilon: float, number: int) -> list[Point]:
        try:
            swept = sweep(
                base,
                epsilons=[epsilon],
                sizes=[number],
                n_features=n_features,
                max_records_per_user=max_records_per_user,
                family=family,
                attributes=attributes,
            )
        except InvalidSpec:  # the algorithm does not support this choice
            return []
        return [(factor, swept.points[0])]

    sizes = {factor: size if factor == 1 else max(1, round(_round(size * factor))) for factor in FACTORS}
    epsilons = {factor: base.epsilon if factor == 1 else _round(base.epsilon * factor) for factor in FACTORS}
    by_size = [point for factor in FACTORS for point in found(factor, base.epsilon, sizes[factor])]
    by_epsilon = [point for factor in FACTORS for point in found(factor, epsilons[factor], size)]
    is_ratio = sweep(base, sizes=[size], n_features=n_features).measure == RATIO
    drawn = [
        _picture(
            by_size, f"the number of {noun}", {factor: f"{number:,}" for factor, number in sizes.items()}, is_ratio
        ),
        _picture(by_epsilon, "ε", {factor: f"{epsilon:g}" for factor, epsilon in epsilons.items()}, is_ratio),
    ]
    pictures = [picture for picture in drawn if picture is not None]
    return {
        "measure": "Squared distance, relative to no noise" if is_ratio else "Agreement with the true clusters",
        "pictures": pictures,
        "improvement": _improvement(
            [] if states_size else by_size, [point for point in by_epsilon if point[1].epsilon <= most_epsilon], noun
        )
        if pictures
        else None,
    }


def _round(value: float) -> float:
    """Return a value with two significant digits."""
    return float(f"{value:.2g}")


def _improvement(by_size: Sequence[Point], by_epsilon: Sequence[Point], noun: str) -> Json | None:
    """Return the best verdict that a change can reach, and the smallest number and ε for it, each alone.

    The smallest multiple is first. Return None if no change reaches more than `doubtful`.
    """
    for verdict, enough in (("reliable", ("reliable",)), ("uncertain", ("reliable", "uncertain"))):
        options = []
        for points, is_size in ((by_size, True), (by_epsilon, False)):
            found = _smallest(points, enough)
            if found is not None and found[0] != 1:
                factor, point = found
                options.append((factor, f"{point.size:,} {noun}" if is_size else f"ε {point.epsilon:g}"))
        if options or any(factor == 1 and point.verdict in enough for factor, point in by_epsilon):
            return {"verdict": verdict, "options": [text for _, text in sorted(options)]}
    return None


def _smallest(points: Sequence[Point], enough: Collection[str]) -> Point | None:
    """Return the smallest multiple from which on all points have one of the verdicts."""
    smallest = None
    for each in reversed(points):
        if each[1].verdict not in enough:
            break
        smallest = each
    return smallest


def _picture(points: Sequence[Point], label: str, values: dict[float, str], is_ratio: bool) -> Json | None:
    """Return the shapes of one curve, or None if fewer than two of its points are known."""
    known = [(factor, point) for factor, point in points if math.isfinite(point.accuracy)]
    if len(known) < 2:
        return None
    low, high, marks = RATIO_AXIS if is_ratio else AGREEMENT_AXIS
    first, last = math.log(FACTORS[0]), math.log(FACTORS[-1])

    def x(factor: float) -> float:
        return round(LEFT + (math.log(factor) - first) / (last - first) * (RIGHT - LEFT), 1)

    def y(value: float) -> float:
        return round(BOTTOM - (min(max(value, low), high) - low) / (high - low) * (BOTTOM - TOP), 1)

    edge = [(x(factor), y(point.upper)) for factor, point in known]
    edge += [(x(factor), y(point.lower)) for factor, point in reversed(known)]
    return {
        "label": label,
        "band": " ".join(f"{across},{up}" for across, up in edge),
        "line": " ".join(f"{x(factor)},{y(point.accuracy)}" for factor, point in known),
        "chosen": next(((x(factor), y(point.accuracy)) for factor, point in known if factor == 1), None),
        "across": [(x(factor), values[factor]) for factor in MARKED],
        "up": [(y(mark), f"{mark:g}") for mark in marks],
        "points": [(values[factor], point.lower, point.accuracy, point.upper) for factor, point in known],
    }
