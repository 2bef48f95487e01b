"""Minimisation by truncated Gauss-Newton steps with conjugate gradients.

A step costs tens of products with the curvature, each about as much as a gradient. Few steps suffice, because the
curvature has the whole range of scales of a density, which gradients alone explore slowly.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, cg

Floats = NDArray[np.float64]

NEAR = 0.02  # λ of a minimum: its distance in standard deviations of the posterior
MAX_STEPS = 100
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
        Whether λ is at most `NEAR`.
    """

    place: Floats
    value: float
    steps: int
    converged: bool


def minimise(
    objective: Callable[[Floats], tuple[float, Floats]],
    curvature: Callable[[Floats], Callable[[Floats], Floats]],
    start: Floats,
) -> Minimum:
    """Minimise a negative log posterior with a standard normal prior.

    Each step solves H x = g by conjugate gradients, with a tolerance, and moves by -x. It is halved until the
    objective decreases enough (Nocedal and Wright 2006, "Numerical Optimization", sections 3.1, 7.1 and 10.3).

    The end is where λ <= `NEAR`, with λ² = gᵀ H⁻¹ g. The next step would move any linear function by at most λ
    standard deviations of the posterior (Cauchy-Schwarz). The residual r of x gives λ² = gᵀ x + rᵀ H⁻¹ r, because x
    and r are orthogonal. This is at most gᵀ x + |r|², because H >= 1.

    Parameters
    ----------
    objective : callable
        Returns the value and the gradient g at a place.
    curvature : callable
        Returns the product with the matrix H at a place, with H >= 1: the identity and the Fisher information.
    start : ndarray of shape (n,)
    """
    place = start
    value, slope = objective(place)
    for step in range(MAX_STEPS):
        hessian = LinearOperator((place.size, place.size), matvec=curvature(place), dtype=np.float64)
        change, _ = cg(hessian, slope, rtol=_SOLVE_TOLERANCE, atol=NEAR / 2, maxiter=_SOLVE_STEPS)
        residual, decrease = slope - hessian @ change, float(slope @ change)
        if decrease + residual @ residual <= NEAR**2:
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
    return Minimum(place, value, MAX_STEPS, False)
