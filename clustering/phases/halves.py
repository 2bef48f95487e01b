"""Agreement of the centroids of two halves of the reports of phases, for the agreement with another run.

A sample from the fitted mixture repeats what noise has put into the fit. Halves of the reports have independent noise,
so they agree only about clusters that are in the population.
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

    The halves follow from the counts alone, so they cost no privacy budget. The least agreement counts.
    """
    found = _compare(sketch, population, centres, limits, division=0)
    if found.index < CLEAR or len(centres) > FEW:
        return found
    return min(found, _compare(sketch, population, centres, limits, division=1), key=lambda each: each.index)


def _compare(
    sketch: Sketch, population: Population, centres: NDArray[np.float64], limits: Limits, division: int
) -> PartitionAgreement:
    fits = [_fit(half, len(centres), limits) for half in halve(sketch, division)]
    return compare_partitions("sketch", population, centres, fits, with_own=True)


def halve(sketch: Sketch, division: int = 0) -> tuple[Sketch, Sketch]:
    """Return the counts of two halves of the reports of each wave; each `division` has other halves."""
    chance = np.random.default_rng([SEED, division])
    counts = sketch.counts.astype(np.int64)
    sizes = (counts.sum(axis=1) + np.arange(len(counts)) % 2) // 2  # rounded up in every second wave
    parts = zip(counts, sizes, strict=True)
    half = np.array([chance.multivariate_hypergeometric(row, size, method="marginals") for row, size in parts])
    return sketch._replace(counts=half.astype(np.float64)), sketch._replace(counts=sketch.counts - half)


def _fit(sketch: Sketch, n_clusters: int, limits: Limits) -> NDArray[np.float64]:
    """Return centroids of a whole round, as points on circles for periodic features."""
    if not sketch.counts.any():
        n_coordinates = Circles(sketch.n_features, limits.circles).n_features
        return np.full((n_clusters, n_coordinates), 0.5)  # no report, and no division
    mixture = search(sketch, n_clusters, limits, PublicWords(SEED)).mixture
    if separation(mixture, limits.circles) >= APART:
        return Circles(sketch.n_features, limits.circles).to_points(np.clip(mixture.centres, 0.0, 1.0))
    return state_of_overlap(sketch, mixture, SEED, limits.circles).centres
