"""Fuzzy c-means under five distances, by reweighted means that never raise the objective.

Each distance is a function f of l = |x - p| that is concave in l^2 (the absolute one of every
coordinate's square), so the parabola that touches it lies above it, and the weighted mean that
minimises the parabolas lowers J (STATISTICS 4.1; paper 004, made sound).
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
assert set(KINDS) == set(get_args(Distance))  # noqa: S101 - a distance without a kernel would be found out too late

ROUNDING = 1e-6  # δ, as a share of sigma: below it |.| is a parabola


@dataclass(frozen=True, slots=True)
class Rule:
    """What the fuzzy objective is made of.

    Attributes
    ----------
    distance : {'mixed', 'euclidean', 'absolute', 'laplace', 'gaussian'}
    m : float
        Fuzziness, above 1.
    sigma : float
        σ0, least spread of a point about its centre a feature, in the points' unit.
    """

    distance: Distance
    m: float = 2.0
    sigma: float = 1.0


BLOCK_POINTS = 1 << 15  # summed up by themselves: see `block_sums`

# Of centres and a rule, the sums of each block of the points that a fit is over: `block_sums`, wherever the points are.
Passes = Callable[[NDArray[np.float64], Rule], NDArray[np.float64]]


@dataclass(frozen=True, eq=False)
class FuzzyFit:
    """Where the iteration ended.

    Attributes
    ----------
    centres : ndarray of shape (c, d)
    shares : ndarray of shape (c,)
        Mean membership of the points, before the last step.
    objectives : tuple of float
        J before each step: it never rises.
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
    passes: Passes | None = None,
) -> FuzzyFit:
    """Iterate from given centres.

    Parameters
    ----------
    points : ndarray of shape (n, d)
        n at least 1.
    centres : ndarray of shape (c, d)
        Where to start; not changed.
    rule : Rule
    max_iterations : int
        At least 1.
    tolerance : float
        In the points' unit.
    stretch : float
        In (0, 2): how far a centre goes, of the way to the weighted mean. J falls on the whole of
        (0, 2), for the parabola that lies above it is as high at twice the way as at the start.
        Centres that creep arrive sooner above 1; the classical step is 1.
    passes : callable, optional
        Makes the passes over these points somewhere else.
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
        for block in blocks:  # one after the other, so that the sum is the same wherever they were made
            total += block
        objectives.append(float(total[0]))
        shares, sums, masses = total[1 : c + 1], total[c + 1 :][: c * d].reshape(c, d), total[-c * d :].reshape(c, d)
        # a centre that no point pulls at all (it underflows far from all of them) stays
        moved = np.divide(sums, masses, out=places.copy(), where=masses > 0)
        converged = bool(np.abs(moved - places).max() <= tolerance)
        places = moved if converged else places + stretch * (moved - places)
    return FuzzyFit(places, shares / len(points), tuple(objectives), converged)


def block_sums(points: NDArray[np.float64], centres: NDArray[np.float64], rule: Rule) -> NDArray[np.float64]:
    """One pass over points, block by block: sums of doubles depend on their order, and this fixes it.

    Parameters
    ----------
    points : ndarray of shape (n, d), row-major
    centres : ndarray of shape (c, d)
    rule : Rule

    Returns
    -------
    ndarray of shape (ceil(n / BLOCK_POINTS), 1 + c + 2 c d)
        Of each block J, the memberships of each centre, the sums and the masses that make the next centres.
    """
    c, d = centres.shape
    told = np.empty((-(-len(points) // BLOCK_POINTS), 1 + c + 2 * c * d))
    for row, begin in zip(told, range(0, len(points), BLOCK_POINTS), strict=True):
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
    return told
