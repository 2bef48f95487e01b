"""Variance of a plan, made to decrease with the number of reports and with epsilon.

With more information a plan may select a finer grid with less precise sizes. So the variance of the plan rises at
some numbers of reports. A forecast therefore states the largest variance of this and of all larger choices: on a
lattice of numbers and epsilons it takes the maximum over all places above, and between the places it interpolates.
"""

from dataclasses import replace
from functools import lru_cache
from math import exp2, floor, log2

from sfumato.errors import InvalidSpec
from sfumato.forecast.noise import plan_variance
from sfumato.privacy.accounting import EPSILON_MAX_NANO, EPSILON_MIN_NANO, NANO
from sfumato.sizing import planned_rounds
from sfumato.sizing.rounds import MAX_JSON_INT
from sfumato.specs import Algorithm

_STEP = 2.0  # doublings of the number of reports between two places; epsilon doubles
_LAST_NUMBER = floor(log2(MAX_JSON_INT) / _STEP)
_LAST_EPSILON = floor(log2(EPSILON_MAX_NANO / NANO))


def largest_variance(params: Algorithm, n_features: int, n_reports: int) -> float | None:
    """Return the largest `plan_variance` of this and of every larger choice, or None if it is not known.

    Parameters
    ----------
    params : Algorithm
    n_features : int
    n_reports : int
        1..2**53-1.
    """
    own = plan_variance(params, planned_rounds(params, n_features, n_reports), n_reports)
    if own is None or getattr(params, "cells", None) is not None or getattr(params, "height", None) is not None:
        return own  # the plan has the same cells at every choice, so its variance never rises
    across, up = log2(n_reports) / _STEP, log2(params.epsilon)
    column, row = floor(across), floor(up)
    base = replace(params, epsilon=1.0)

    def at(right: int, above: int) -> float:
        return _largest(base, n_features, min(column + right, _LAST_NUMBER), min(row + above, _LAST_EPSILON))

    x, y = across - column, up - row
    bottom, top = ((1 - x) * at(0, above) + x * at(1, above) for above in (0, 1))
    return exp2((1 - y) * bottom + y * top)


@lru_cache(maxsize=1 << 14)
def _largest(base: Algorithm, n_features: int, column: int, row: int) -> float:
    """Return the logarithm (base 2) of the largest variance at a place of the lattice and at all places above."""
    epsilon = min(max(exp2(row), EPSILON_MIN_NANO / NANO), EPSILON_MAX_NANO / NANO)
    n_reports = min(round(exp2(_STEP * column)), MAX_JSON_INT)
    params = replace(base, epsilon=round(epsilon, 9))
    larger = []
    try:
        found = plan_variance(params, planned_rounds(params, n_features, n_reports), n_reports)
    except InvalidSpec:  # the plan has no round for so small an epsilon
        found = None
    if found is not None:
        larger.append(log2(found))
    if column < _LAST_NUMBER:
        larger.append(_largest(base, n_features, column + 1, row))
    if row < _LAST_EPSILON:
        larger.append(_largest(base, n_features, column, row + 1))
    return max(larger)
