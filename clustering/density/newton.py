"""Minimisation by truncated Newton steps with conjugate gradients.

A step costs tens of products with the curvature, each about as much as a gradient. Few steps suffice, because the
curvature has the whole range of scales of a density, which gradients alone explore slowly. Far from the minimum, the
curvature is the Fisher information, as in Gauss-Newton steps. Near it, they converge linearly. Steps of the second
derivatives converge quadratically.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Product = Callable[[Floats], Floats]

NEAR = 0.02  # λ of a minimum: its distance in standard deviations of the posterior
MAX_STEPS = 100
_EXACT = 10.0  # λ of a step after which the next one takes the second derivatives
_SOLVE_TOLERANCE = 0.1  # residual of a linear solve, relative to the gradient
_SOLVE_STEPS = 300
_DECREASE = 0.1  # least decrease of the objective, as a share of the linear one
_LEAST_SHARE = 1e-6  # shortest share of a step


class Minimum(NamedTuple):
    """The end of a minimisation.

    Attributes
    ----------
    place : ndarray
    value : float
    steps : int
    converged : bool
        Whether the method's own condition for its end is met.
    """

    place: Floats
    value: float
    steps: int
    converged: bool


class Solution(NamedTuple):
    """The end of conjugate gradients.

    Attributes
    ----------
    place : ndarray
    residual : ndarray
        b - H x.
    is_convex : bool
        Whether no direction of negative curvature was met.
    """

    place: Floats
    residual: Floats
    is_convex: bool


def minimise(
    objective: Callable[[Floats], tuple[float, Floats]],
    curvature: Callable[[Floats, bool], Product],
    start: Floats,
) -> Minimum:
    """Minimise a negative log posterior with a standard normal prior.

    Each step solves H x = g by conjugate gradients, with a tolerance, and moves by -x. It is halved until the
    objective decreases enough (Nocedal and Wright 2006, "Numerical Optimization", sections 3.1, 7.1 and 10.3).

    The end is where λ <= `NEAR`, with λ² = gᵀ H⁻¹ g. The next step would move any linear function by at most λ
    standard deviations of the posterior (Cauchy-Schwarz). The residual r of x gives λ² = gᵀ x + rᵀ H⁻¹ r, because x
    and r are orthogonal. This is at most gᵀ x + |r|² if H >= 1.

    Parameters
    ----------
    objective : callable
        Returns the value and the gradient g at a place.
    curvature : callable
        Returns the product with a matrix H at a place. It is the identity and the Fisher information, or, if the second
        argument is true, the second derivatives.
    start : ndarray of shape (n,)
    """
    place, is_near = start, False
    value, slope = objective(place)
    for step in range(MAX_STEPS):
        change, residual, is_convex = solve(curvature(place, is_near), slope, _SOLVE_TOLERANCE, _SOLVE_STEPS, NEAR / 2)
        decrease = float(slope @ change)
        if is_convex and decrease + residual @ residual <= NEAR**2:
            return Minimum(place, value, step, True)
        share = 1.0
        while share >= _LEAST_SHARE:
            next_value, next_slope = objective(place - share * change)
            if next_value <= value - _DECREASE * share * decrease:
                break
            share /= 2
        else:  # rounding hides the decrease
            return Minimum(place, value, step, False)
        place, value, slope = place - share * change, next_value, next_slope
        is_near = is_convex and decrease < _EXACT**2
    return Minimum(place, value, MAX_STEPS, False)


def solve(product: Product, target: Floats, tolerance: float, steps: int, least: float = 0.0) -> Solution:
    """Return about the solution of H x = b by conjugate gradients.

    A direction of negative curvature ends the search before it is followed, so that x is always a direction of descent
    for the gradient b.

    Parameters
    ----------
    product : callable
        Returns the product with H.
    target : ndarray of shape (n,)
        b.
    tolerance : float
        Norm of the residual at the end, relative to that of b.
    steps : int
        Most steps.
    least : float
        Norm of the residual that is always small enough.
    """
    place, residual, direction = np.zeros(target.size), target, target
    squares = float(residual @ residual)
    enough = max(tolerance**2 * squares, least**2)
    for step in range(steps):
        if squares <= enough:
            break
        image = product(direction)
        curvature = float(direction @ image)
        if curvature <= 0:
            return Solution(place if step else target, residual, False)
        share = squares / curvature
        place, residual = place + share * direction, residual - share * image
        former, squares = squares, float(residual @ residual)
        direction = residual + (squares / former) * direction
    return Solution(place, residual, True)
