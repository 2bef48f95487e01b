"""Lloyd steps on noisy sums of clipped residuals.

Each step releases three values per cluster: the sum of its records' residuals from the centre, clipped
to a radius in L1; the number of records; and the sum of the residuals' norms, which sets the next radius.
All else is post-processing.
"""

from collections.abc import Sequence
from math import pi, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustering.central.cells import Domain, NearestCells, from_places, to_places
from clustering.central.curator import Curator
from clustering.central.queries import Shares
from clustering.random import PublicWords
from sfumato.specs import LATTICE

RADIUS_GROWTH = 1.2  # maximum factor from step to step
RADIUS_RANGE = (0.2, 3.0)  # limits of a cluster's mean norm, in mean norms of all records
RADIUS_PRIOR = 0.5  # prior standard deviation of clusters' mean norms, in mean norms of all records

LEAST_OF_FORMER = 0.2  # lower bound of a cluster's count, as a share of its previous count
DEAD = (4.0, 0.03)  # a centre is dead below this many deviations of its count, or this share of a mean cluster
REVIVED_AT = 0.5  # distance of both halves of a split cluster from its centre, in root mean square distances
SHRINKAGE = 0.8  # share of the remaining noise variance by which centres shrink to their mean

_TINY = 1e-12


class NormScale(NamedTuple):
    """Typical and maximum norms of residuals in d features."""

    first: float  # first radius in root mean square distances
    later: float  # later radii in mean norms
    mean: float  # mean norm of normal residuals in root mean square distances
    longest: float  # maximum norm of a residual in the domain


def l1_scale(domain: Domain) -> NormScale:
    """Return the L1 scales. Norms of normal residuals are about .8 sqrt(d) +- .6 root mean square distances."""
    root = sqrt(domain.n_features)
    return NormScale(0.8 * root + 1.2, 0.8 + 1.2 / root, root * sqrt(2 / pi), root * 2 * domain.radius)


class LloydStart(NamedTuple):
    """The start of the steps."""

    centres: NDArray[np.float64]  # (k, d), in [0, 1]
    spreads: NDArray[np.float64]  # (k,), root mean square distance of a cluster's records
    masses: NDArray[np.float64]  # (k,), number of records


class LloydFit(NamedTuple):
    """The result of the steps."""

    centres: NDArray[np.float64]  # (k, d), in [0, 1]
    centre_variances: NDArray[np.float64]  # (k,), noise variance per coordinate
    counts: NDArray[np.float64]  # (k,), noisy, possibly negative
    count_variance: float
    spreads: NDArray[np.float64]  # (k,), root mean square distances, from mean norms of a normal distribution


def private_lloyd(curator: Curator, start: LloydStart, parts: Sequence[Shares], words: PublicWords) -> LloydFit:
    """Run one private Lloyd step for each part.

    Privacy: the clusters of a step are disjoint, so a step costs the sum of its shares (parallel
    composition). Steps compose in sequence. Cells, centres and radii follow from earlier answers.

    Parameters
    ----------
    curator : Curator
    start : LloydStart
    parts : sequence of Shares
        Cost of each step; at least one.
    words : PublicWords
        Source of the directions in which dead centres restart.

    Returns
    -------
    LloydFit
    """
    d = start.centres.shape[1]
    norm = l1_scale(curator.domain)
    radii = np.minimum(norm.first * start.spreads, norm.longest)
    state = _State(start.centres, radii, np.maximum(start.masses, 1.0))
    for t, shares in enumerate(parts):
        state, step = _step(curator, norm, state, shares)
        if t < len(parts) - 1:
            state = _revive(state, curator.deviation(shares.counts), 1 / norm.first, words)
    centres = _shrink_to_mean(state.centres, state.masses, d * step.centre_variances)
    return step._replace(centres=centres)


class _State(NamedTuple):
    """The state between two steps."""

    centres: NDArray[np.float64]
    radii: NDArray[np.float64]  # (k,), in feature ranges
    masses: NDArray[np.float64]  # (k,), non-negative


def _step(curator: Curator, norm: NormScale, state: _State, shares: Shares) -> tuple[_State, LloydFit]:
    """Query the sums once and update the centres and radii."""
    places = to_places(state.centres)
    radii = np.clip(np.rint(state.radii * LATTICE).astype(np.int64), 1, round(norm.longest * LATTICE))
    answer = curator.sums(NearestCells(places), places, radii, shares)
    limits = radii / LATTICE
    counts = answer.counts.astype(np.float64)
    sizes = np.maximum(counts, np.maximum(LEAST_OF_FORMER * state.masses, 1.0))
    moves = answer.residuals / LATTICE / sizes[:, None]
    noise = curator.deviation(shares.residuals) * limits / sizes  # standard deviation per coordinate of a move
    trust = trust_moves(moves, noise, sizes)
    centres = curator.domain.confine(from_places(places) + moves * trust[:, None])

    norms = np.zeros(len(counts)) if answer.sizes is None else answer.sizes / LATTICE
    norm_noise = curator.deviation(max(shares.sizes, 1)) * limits / sizes
    mean_norms = _shrink_norms(norms / sizes, norm_noise, max(float(norms.sum()), 0.0) / float(sizes.sum()))
    grown = np.minimum(limits * RADIUS_GROWTH, mean_norms * norm.later)
    next_state = _State(centres, np.where(mean_norms > 0, grown, limits), np.maximum(counts, 0.0))
    spreads = mean_norms / norm.mean
    return next_state, LloydFit(centres, trust * noise**2, counts, curator.deviation(shares.counts) ** 2, spreads)


def trust_moves(
    moves: NDArray[np.float64], noise: NDArray[np.float64], sizes: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the share of each move to apply: the mean of its James-Stein factor and of a factor from all moves.

    Parameters
    ----------
    moves : ndarray of shape (k, d)
    noise : ndarray of shape (k,)
        Standard deviation per coordinate.
    sizes : ndarray of shape (k,)
        Number of records of each cluster.
    """
    d = moves.shape[1]
    squared = (moves**2).sum(axis=1)
    own = np.maximum(0.0, 1 - max(d - 2, 1) * noise**2 / np.maximum(squared, _TINY))
    pooled = max(float((sizes * (squared / d - noise**2)).sum() / sizes.sum()), 0.0)
    return np.asarray((own + pooled / (pooled + noise**2 + _TINY)) / 2, dtype=np.float64)


def _shrink_norms(means: NDArray[np.float64], noise: NDArray[np.float64], overall: float) -> NDArray[np.float64]:
    """Shrink the clusters' mean norms to that of all records, by their noise."""
    prior = (RADIUS_PRIOR * overall) ** 2 + _TINY
    precision = 1 / (noise**2 + _TINY)
    shrunk = (means * precision + overall / prior) / (precision + 1 / prior)
    return np.clip(shrunk, RADIUS_RANGE[0] * overall, RADIUS_RANGE[1] * overall)


def _revive(state: _State, count_noise: float, to_spread: float, words: PublicWords) -> _State:
    """Move each dead centre next to the cluster with the largest noisy cost, which is thereby split in two."""
    centres, radii, masses = (array.copy() for array in state)
    k, d = centres.shape
    least = max(DEAD[0] * count_noise, DEAD[1] * masses.sum() / k)
    costs = masses * radii**2
    (dead,) = np.nonzero(masses < least)
    costs[dead] = -1.0
    for j in dead:
        widest = int(np.argmax(costs))
        if costs[widest] <= 0 or masses[widest] < 4 * least:
            break
        direction = words.uniform(d) - 0.5
        aside = direction * (REVIVED_AT * radii[widest] * to_spread / max(float(np.sqrt(direction @ direction)), _TINY))
        centres[j] = np.clip(centres[widest] + aside, 0.0, 1.0)
        centres[widest] = np.clip(centres[widest] - aside, 0.0, 1.0)
        radii[j] = radii[widest]
        masses[j] = masses[widest] = masses[widest] / 2
        costs[j] = costs[widest] = costs[widest] / 3
    return _State(centres, radii, masses)


def _shrink_to_mean(
    centres: NDArray[np.float64], masses: NDArray[np.float64], noise: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Shrink centres to their mean by their remaining noise. `noise` has shape (k,), a squared distance each."""
    if len(centres) == 1 or not masses.sum() > 0:
        return centres
    shares = masses / masses.sum()
    mean = shares @ centres
    left = SHRINKAGE * noise
    between = max(float(shares @ (((centres - mean) ** 2).sum(axis=1) - left)), 0.0)
    return np.asarray(mean + (centres - mean) * (between / (between + left + _TINY))[:, None], dtype=np.float64)
