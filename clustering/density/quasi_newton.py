"""Minimisation by L-BFGS, for a gradient that costs about as much as tens of products of vectors."""

from collections.abc import Callable
from math import inf

import numpy as np

from clustering.density.newton import Floats, Minimum
from clustering.kernels.descent import descent_direction

_PAIRS = 10  # former steps that the curvature is estimated from
_DECREASE = 1e-3  # least decrease of the objective, as a share of the linear one
_FLATTER = 0.9  # most slope along a step at its end, as a share of that at its start
_SMALL_STEPS = 2  # one step may reduce the objective by little far from the minimum
_TRIES = 20  # most evaluations of a step


def descend(
    objective: Callable[[Floats], tuple[float, Floats]], start: Floats, max_steps: int, tolerance: float
) -> Minimum:
    """Minimise an objective by L-BFGS steps. The end is where the last two each reduced it by less than the tolerance.

    A step is shortened until the objective decreases enough (Nocedal and Wright 2006, "Numerical Optimization",
    sections 3.5 and 7.2).

    Parameters
    ----------
    objective : callable
        Returns the value and the gradient at a place.
    start : ndarray of shape (n,)
    max_steps : int
    tolerance : float
        Reduction of the objective by each of the last steps, relative to its size or to 1.
    """
    place = start
    value, slope = objective(place)
    steps, changes, products = np.empty((_PAIRS, start.size)), np.empty((_PAIRS, start.size)), np.ones(_PAIRS)
    n_pairs, n_small, direction = 0, 0, np.empty(start.size)
    for step in range(max_steps):
        descent_direction(slope, steps, changes, products, n_pairs, direction)
        decrease = float(slope @ direction)
        share = 1.0 if n_pairs else min(1.0, 1 / max(decrease**0.5, 1e-300))
        shortest, longest = 0.0, inf
        for _ in range(_TRIES):
            next_place = place - share * direction
            next_value, next_slope = objective(next_place)
            if not next_value <= value - _DECREASE * share * decrease:
                longest = share
            elif next_slope @ direction > _FLATTER * decrease:
                shortest = share
            else:
                break
            if shortest:
                share = (shortest + longest) / 2 if longest < inf else 4 * share
            else:  # the minimum of the parabola through both values and the slope, from a tenth to a half of the step
                parabola = share * decrease / (2 * (next_value - value + share * decrease))
                share *= min(max(parabola, 0.1), 0.5)
        if not next_value < value:  # rounding hides the decrease
            return Minimum(place, value, step, False)
        moved, change = next_place - place, next_slope - slope
        product = float(moved @ change)
        if product > 0:
            at = n_pairs % _PAIRS
            steps[at], changes[at], products[at] = moved, change, product
            n_pairs += 1
        is_small = value - next_value <= tolerance * max(abs(value), abs(next_value), 1.0)
        place, value, slope = next_place, next_value, next_slope
        n_small = n_small + 1 if is_small else 0
        if n_small == _SMALL_STEPS:
            return Minimum(place, value, step + 1, True)
    return Minimum(place, value, max_steps, False)
