"""Agreement of the centroids of two halves of the waves, for the agreement with another run.

A sample from the fitted mixture repeats what noise has put into the fit. Halves of the waves have reports of different
devices, so their noise is independent. Like two runs with seeds of their own, they also have different waves: the waves
alone can decide how people without clusters are divided.
"""

import numpy as np
from numpy.typing import NDArray

from clustering.centroids.partition_agreement import PartitionAgreement, Population, compare_partitions
from clustering.circles import Circles
from clustering.phases.initialisation import search
from clustering.phases.mixture_fit import Limits, Sketch
from clustering.phases.model_selection import APART, separation, state_of_overlap
from clustering.random import PublicWords

SEED = 20261127  # public
# Halves of up to four centroids can agree by chance. If they agree to this index, other halves are compared, too.
CLEAR, FEW = 0.85, 4


def agreement_of_halves(
    sketch: Sketch, population: Population, centres: NDArray[np.float64], limits: Limits
) -> PartitionAgreement:
    """Return the agreement of the fits of two halves with each other and with the released centroids.

    The halves are parts of the published round, so they cost no privacy budget. The least agreement counts.
    """
    found = _compare(sketch, population, centres, limits, division=0)
    if found.index < CLEAR or len(centres) > FEW:
        return found
    return min(found, _compare(sketch, population, centres, limits, division=1), key=lambda each: each.index)


def _compare(
    sketch: Sketch, population: Population, centres: NDArray[np.float64], limits: Limits, division: int
) -> PartitionAgreement:
    halves = halve(len(sketch.omegas), division)
    fits = [_fit(sketch.select(half), len(centres), limits) for half in halves]
    return compare_partitions("sketch", population, centres, fits, with_own=True)


def halve(n_waves: int, division: int = 0) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which waves are in each half; each `division` has other halves.

    Waves are in the order of their frequencies. Of two neighbours, one is in each half.
    """
    chosen = np.random.default_rng([SEED, division]).integers(0, 2, (n_waves + 1) // 2)
    half = np.column_stack([chosen, 1 - chosen]).ravel()[:n_waves] == 1
    return half, ~half


def _fit(sketch: Sketch, n_clusters: int, limits: Limits) -> NDArray[np.float64]:
    """Return centroids of a fit to the waves of a half, as points on circles for periodic features."""
    if not sketch.counts.any():
        n_coordinates = Circles(sketch.n_features, limits.circles).n_features
        return np.full((n_clusters, n_coordinates), 0.5)  # no report, and no division
    mixture = search(sketch, n_clusters, limits, PublicWords(SEED)).mixture
    if separation(mixture, limits.circles) >= APART:
        return Circles(sketch.n_features, limits.circles).to_points(np.clip(mixture.centres, 0.0, 1.0))
    return state_of_overlap(sketch, mixture, SEED, limits.circles).centres
