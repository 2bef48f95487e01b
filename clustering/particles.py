"""A cloud of weighted particles: what is known of where people are, in a form that can be clustered and moved."""

from math import ceil, log2
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats.qmc import Sobol

from clustering.atoms import Atoms, Shape
from clustering.phase_search import PublicWords
from clustering.weighted_kmeans import weighted_kmeans

_INSIDE = 2.0**-40  # quantiles are taken so far from 0 and 1


class Cloud(NamedTuple):
    """Particles in the box."""

    points: NDArray[np.float64]  # (n, d), in [0, 1]
    weights: NDArray[np.float64]  # (n,), of sum one


def spread_evenly(n: int, n_features: int, words: PublicWords) -> NDArray[np.float64]:
    """n points of a Sobol sequence, turned by a public shift modulo one: shape (n, d), in [0, 1).

    Means over them are off by far less than over n random points.
    """
    points = Sobol(n_features, scramble=False).random_base2(ceil(log2(max(n, 2))))[:n]
    return np.asarray((points + words.uniform(n_features)) % 1.0)


def drawn(shape: Shape, atoms: Atoms, n: int, words: PublicWords) -> NDArray[np.float64]:
    """n particles of a mixture of normal atoms, which may lie outside the box: shape (n, d).

    Each atom has its share of them, to the nearest one, and normal deviates that are quantiles
    of a stretch of a Sobol sequence.
    """
    n_features = atoms.centres.shape[1]
    deviates = ndtri(np.clip(spread_evenly(n, n_features, words), _INSIDE, 1 - _INSIDE))
    ends = np.cumsum(atoms.shares)
    owners = np.searchsorted(ends, (np.arange(n) + 0.5) / n * ends[-1], side="right").clip(max=len(ends) - 1)
    points = np.empty((n, n_features))
    for atom, root in enumerate(atoms.roots(shape)):
        own = owners == atom
        points[own] = atoms.centres[atom] + deviates[own] @ root.T
    return points


def centroids_of(cloud: Cloud, n_clusters: int, words: PublicWords) -> NDArray[np.float64]:
    """The centres of weighted k-means of the particles: shape (k, d).

    Where fewer than k particles differ, some centres stand in the same place.
    """
    centres = weighted_kmeans(cloud.points, cloud.weights, n_clusters, words).centres
    return np.asarray(np.resize(centres, (n_clusters, centres.shape[1])))
