"""Fuzzy c-means under five distances, by reweighted means that never increase the objective.

Each distance is a function f of l = |x - p| that is concave in l^2 (for the absolute distance, in the
square of each coordinate). The parabola that touches f therefore lies above it, and the weighted mean
that minimises the parabolas decreases J. Source: Zhang et al. 2025, with corrected distances and steps.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from clustering.kernels.fuzzy import ABSOLUTE, EUCLIDEAN, GAUSSIAN, LAPLACE, MIXED, fuzzy_step
from sfumato.specs import Distance

KINDS: dict[Distance, int] = {
    "mixed": MIXED,
    "euclidean": EUCLIDEAN,
    "absolute": ABSOLUTE,
    "laplace": LAPLACE,
    "gaussian": GAUSSIAN,
}
assert set(KINDS) == set(get_args(Distance))  # noqa: S101 - every distance needs a kernel

ROUNDING = 1e-6  # δ as a share of sigma; |.| is a parabola below it


BLOCK_POINTS = 1 << 15  # points per block of `block_sums`


@dataclass(frozen=True, slots=True)
class Rule:
    """Parameters of the fuzzy c-means objective.

    Attributes
    ----------
    distance : {'mixed', 'euclidean', 'absolute', 'laplace', 'gaussian'}
    m : float
        Fuzziness, above 1.
    sigma : float
        σ0, the least spread of a point about its centre per feature, in the points' unit.
    """

    distance: Distance
    m: float = 2.0
    sigma: float = 1.0


@dataclass(frozen=True, eq=False)
class FuzzyFit:
    """The result of the iteration.

    Attributes
    ----------
    centres : ndarray of shape (c, d)
    shares : ndarray of shape (c,)
        Mean membership of the points before the last step.
    objectives : tuple of float
        J before each step, never increasing.
    converged : bool
        Whether the last step moved no coordinate by more than the tolerance.
    """

    centres: NDArray[np.float64]
    shares: NDArray[np.float64]
    objectives: tuple[float, ...]
    converged: bool


def fuzzy_c_means(
    points: NDArray[np.float64],
    centres: NDArray[np.float64],
    rule: Rule,
    *,
    max_iterations: int,
    tolerance: float,
    stretch: float = 1.0,
    passes: Callable[[NDArray[np.float64], Rule], NDArray[np.float64]] | None = None,
) -> FuzzyFit:
    """Run fuzzy c-means from given centres.

    Parameters
    ----------
    points : ndarray of shape (n, d)
        n at least 1.
    centres : ndarray of shape (c, d)
        Initial centres. The array is not changed.
    rule : Rule
    max_iterations : int
        At least 1.
    tolerance : float
        In the points' unit.
    stretch : float
        Step length as a multiple of the way to the weighted mean, in (0, 2). J decreases for all these
        values, because the majorising parabola is as high at twice the way as at the start. Values
        above 1 accelerate slow centres; the classical step is 1.
    passes : callable, optional
        Replaces `block_sums` over these points, for example by a distributed computation.

    Returns
    -------
    FuzzyFit
    """
    points = np.ascontiguousarray(points, dtype=np.float64)
    places = np.array(centres, dtype=np.float64)
    c, d = places.shape
    shares = np.zeros(c)
    objectives: list[float] = []
    converged = False
    while len(objectives) < max_iterations and not converged:
        blocks = block_sums(points, places, rule) if passes is None else passes(places, rule)
        total = np.zeros(blocks.shape[1])
        for block in blocks:  # in order, so that the sum does not depend on where the blocks were computed
            total += block
        objectives.append(float(total[0]))
        shares, sums, masses = total[1 : c + 1], total[c + 1 :][: c * d].reshape(c, d), total[-c * d :].reshape(c, d)
        # a centre far from all points, with weights that all underflow, does not move
        means = np.divide(sums, masses, out=places.copy(), where=masses > 0)
        converged = bool(np.abs(means - places).max() <= tolerance)
        places = means if converged else places + stretch * (means - places)
    return FuzzyFit(places, shares / len(points), tuple(objectives), converged)


def block_sums(points: NDArray[np.float64], centres: NDArray[np.float64], rule: Rule) -> NDArray[np.float64]:
    """Run one pass over points, block by block, which fixes the order of floating-point sums.

    Parameters
    ----------
    points : ndarray of shape (n, d), row-major
    centres : ndarray of shape (c, d)
    rule : Rule

    Returns
    -------
    ndarray of shape (ceil(n / BLOCK_POINTS), 1 + c + 2 c d)
        For each block: J, the memberships of each centre, and the sums and masses that give the next
        centres.
    """
    c, d = centres.shape
    totals = np.empty((-(-len(points) // BLOCK_POINTS), 1 + c + 2 * c * d))
    for row, begin in zip(totals, range(0, len(points), BLOCK_POINTS), strict=True):
        shares, sums, masses = row[1 : c + 1], row[c + 1 :][: c * d].reshape(c, d), row[-c * d :].reshape(c, d)
        row[0] = fuzzy_step(
            points[begin : begin + BLOCK_POINTS],
            centres,
            KINDS[rule.distance],
            rule.m,
            rule.sigma,
            ROUNDING * rule.sigma,
            sums,
            masses,
            shares,
        )
    return totals
