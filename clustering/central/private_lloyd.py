"""Lloyd's steps on noisy sums of clipped residuals: few numbers a step, each clipped to what a cluster needs.

What is released in a step, for each cluster: the sum of its records' residuals from its centre,
clipped to a radius; how many records there are; and the sum of those residuals' norms, which sets
the next radius. Everything else is made of these. Norms are L1 where a curator adds Laplace
noise, Euclidean in a concentrated block.
"""

from collections.abc import Sequence
from math import pi, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustering.central.cells import NearestCells, from_places, to_places
from clustering.concentrated_block import ConcentratedBlock
from clustering.curator import Curator, Shares
from clustering.phase_search import PublicWords
from sfumato.specs import LATTICE

RADIUS_GROWTH = 1.2  # at most, from step to step
RADIUS_RANGE = (0.2, 3.0)  # of a cluster's mean norm, in those of all records
RADIUS_PRIOR = 0.5  # how far mean norms of clusters are taken to differ, in the same

LEAST_OF_FORMER = 0.2  # a cluster's count is taken to fall to no less of what it was
DEAD = (4.0, 0.03)  # a centre is dead below so many deviations of its count, or so much of a mean cluster
REVIVED_AT = 0.5  # of a root mean square distance to either side of the widest cluster's centre
DRAWN_TOGETHER = 0.8  # share of the noise left by which centres are drawn to their mean

_TINY = 1e-12

Asked = Curator | ConcentratedBlock  # of whom sums are asked; costs are nano-epsilon of the one, pico-rho of the other


class Norm(NamedTuple):
    """How long residuals are and may be, in some number of features."""

    first: float  # the first radius, in root mean square distances
    later: float  # later ones, in mean norms
    mean: float  # mean norm of normal residuals, in root mean square distances
    longest: float  # norm of any residual in the box


def absolute(n_features: int) -> Norm:
    """L1: norms of normal residuals lie about .8 sqrt(d) root mean squares, .6 apart."""
    root = sqrt(n_features)
    return Norm(0.8 * root + 1.2, 0.8 + 1.2 / root, root * sqrt(2 / pi), n_features)


def euclidean(n_features: int) -> Norm:
    """L2: norms lie about one root mean square."""
    return Norm(1.4, 1.3, 1.0, sqrt(n_features))


class Start(NamedTuple):
    """Where steps begin."""

    centres: NDArray[np.float64]  # (k, d), in [0, 1]
    spreads: NDArray[np.float64]  # (k,), root mean square distance of a cluster's records
    masses: NDArray[np.float64]  # (k,), records


class Stepped(NamedTuple):
    """Where they ended."""

    centres: NDArray[np.float64]  # (k, d), in [0, 1]
    centre_variances: NDArray[np.float64]  # (k,), of a coordinate's noise
    counts: NDArray[np.float64]  # (k,), noisy, as answered
    count_variance: float
    spreads: NDArray[np.float64]  # (k,), root mean square distances, by mean norms as if normal


def private_lloyd(asked: Asked, start: Start, parts: Sequence[Shares], words: PublicWords) -> Stepped:
    """Step as often as there are parts.

    Parameters
    ----------
    asked : Curator or ConcentratedBlock
    start : Start
    parts : sequence of Shares
        What each step costs; at least one.
    words : PublicWords
        Where dead centres go.

    Returns
    -------
    Stepped
    """
    d = start.centres.shape[1]
    norm = euclidean(d) if isinstance(asked, ConcentratedBlock) else absolute(d)
    radii = np.minimum(norm.first * start.spreads, norm.longest)
    state = _State(start.centres, radii, np.maximum(start.masses, 1.0))
    for t, shares in enumerate(parts):
        state, step = _step(asked, norm, state, shares)
        if t < len(parts) - 1:
            state = _revived(state, asked.deviation(shares.counts), 1 / norm.first, words)
    centres = _drawn_together(state.centres, state.masses, d * step.centre_variances)
    return step._replace(centres=centres)


class _State(NamedTuple):
    """Between two steps."""

    centres: NDArray[np.float64]
    radii: NDArray[np.float64]  # (k,), in feature ranges
    masses: NDArray[np.float64]  # (k,), none negative


def _step(asked: Asked, norm: Norm, state: _State, shares: Shares) -> tuple[_State, Stepped]:
    """Ask once, and move."""
    places = to_places(state.centres)
    radii = np.clip(np.rint(state.radii * LATTICE).astype(np.int64), 1, int(norm.longest * LATTICE))
    answer = asked.sums(NearestCells(places), places, radii, shares)
    limits = radii / LATTICE
    counts = answer.counts.astype(np.float64)
    held = np.maximum(counts, np.maximum(LEAST_OF_FORMER * state.masses, 1.0))
    moves = answer.residuals / LATTICE / held[:, None]
    noise = asked.deviation(shares.residuals) * limits / held  # of a coordinate of a move
    trust = _trust(moves, noise, held)
    centres = np.clip(from_places(places) + moves * trust[:, None], 0.0, 1.0)

    norms = np.zeros(len(counts)) if answer.sizes is None else answer.sizes / LATTICE
    norm_noise = asked.deviation(max(shares.sizes, 1)) * limits / held
    mean_norms = _steered(norms / held, norm_noise, max(float(norms.sum()), 0.0) / float(held.sum()))
    grown = np.minimum(limits * RADIUS_GROWTH, mean_norms * norm.later)
    next_state = _State(centres, np.where(mean_norms > 0, grown, limits), np.maximum(counts, 0.0))
    spreads = mean_norms / norm.mean
    return next_state, Stepped(centres, trust * noise**2, counts, asked.deviation(shares.counts) ** 2, spreads)


def _trust(moves: NDArray[np.float64], noise: NDArray[np.float64], held: NDArray[np.float64]) -> NDArray[np.float64]:
    """How much of each move is taken: half as James and Stein have it by its length, half by all lengths."""
    d = moves.shape[1]
    squared = (moves**2).sum(axis=1)
    own = np.maximum(0.0, 1 - max(d - 2, 1) * noise**2 / np.maximum(squared, _TINY))
    pooled = max(float((held * (squared / d - noise**2)).sum() / held.sum()), 0.0)
    return np.asarray((own + pooled / (pooled + noise**2 + _TINY)) / 2, dtype=np.float64)


def _steered(means: NDArray[np.float64], noise: NDArray[np.float64], overall: float) -> NDArray[np.float64]:
    """Mean norms of residuals, drawn to that of all records by how noisy they are."""
    prior = (RADIUS_PRIOR * overall) ** 2 + _TINY
    precision = 1 / (noise**2 + _TINY)
    drawn = (means * precision + overall / prior) / (precision + 1 / prior)
    return np.clip(drawn, RADIUS_RANGE[0] * overall, RADIUS_RANGE[1] * overall)


def _revived(state: _State, count_noise: float, to_spread: float, words: PublicWords) -> _State:
    """Send centres that hold next to nothing to where the noisy cost is largest: that cluster is split in two."""
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


def _drawn_together(
    centres: NDArray[np.float64], masses: NDArray[np.float64], noise: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Centres drawn to their mean by the noise that is left in them, `noise` (k,) a squared distance each."""
    if len(centres) == 1 or not masses.sum() > 0:
        return centres
    shares = masses / masses.sum()
    mean = shares @ centres
    left = DRAWN_TOGETHER * noise
    between = max(float(shares @ (((centres - mean) ** 2).sum(axis=1) - left)), 0.0)
    return np.asarray(mean + (centres - mean) * (between / (between + left + _TINY))[:, None], dtype=np.float64)
