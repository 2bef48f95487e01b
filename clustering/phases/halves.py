"""Centroids of two halves of the reports of phases, for the agreement of a partition with that of another run.

A sample from the fitted mixture repeats what noise has put into the fit. Halves of the reports have independent noise,
so they agree only about clusters that are in the population.
"""

import numpy as np
from numpy.typing import NDArray

from clustering.phases.initialisation import search
from clustering.phases.mixture_fit import Limits, Sketch
from clustering.phases.model_selection import APART, separation, state_of_overlap
from clustering.random import PublicWords

SEED = 20261127  # public


def halve(sketch: Sketch) -> tuple[Sketch, Sketch]:
    """Return the counts of two halves of the reports of each wave, drawn from the counts alone.

    The division is post-processing of the tally and costs no privacy budget.
    """
    chance = np.random.default_rng(SEED)
    counts = sketch.counts.astype(np.int64)
    sizes = (counts.sum(axis=1) + np.arange(len(counts)) % 2) // 2  # rounded up in every second wave
    half = np.array(
        [
            chance.multivariate_hypergeometric(row, size, method="marginals")
            for row, size in zip(counts, sizes, strict=True)
        ]
    ).astype(np.float64)
    return sketch._replace(counts=half), sketch._replace(counts=sketch.counts - half)


def fit_halves(sketch: Sketch, n_clusters: int, limits: Limits) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the centroids of both halves, each fitted as a whole round is: shape (n_clusters, d)."""
    one, other = (_centroids(half, n_clusters, limits) for half in halve(sketch))
    return one, other


def _centroids(sketch: Sketch, n_clusters: int, limits: Limits) -> NDArray[np.float64]:
    if not sketch.counts.any():
        return np.full((n_clusters, sketch.n_features), 0.5)  # no report, and no division
    mixture = search(sketch, n_clusters, limits, PublicWords(SEED)).mixture
    if separation(mixture) >= APART:
        return np.clip(mixture.centres, 0.0, 1.0)
    return state_of_overlap(sketch, mixture, SEED).centres
