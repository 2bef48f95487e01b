"""`dp_kmeans`: private k-means by Lloyd steps on noisy sums and counts.

It covers DPk-means, DPk-means++ and IDPk-means of Ma and Wu and of Zhang and Cheng 2021, with corrected privacy
accounting.
"""

from math import floor, log2
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustering.central.cells import Cells, GridCells, HashedCells, NearestCells, from_places, to_places
from clustering.central.curator import Curator
from clustering.central.model import NoisyCount, build_centroid_model, build_warnings, is_clear
from clustering.central.queries import Shares, split
from clustering.central.synopsis import build_grid_synopsis, fit_centres
from clustering.centroids.centroid_statistics import spread_places
from clustering.centroids.piece_population import agreement_of_errors
from clustering.random import PublicWords
from sfumato.model.cluster_model import ClusterModel
from sfumato.specs import LATTICE, Feature
from sfumato.specs.central import DpKmeans

SEEDS, STEPS = 1, 4  # weights of epsilon for the start and for the steps, if the start uses queries
CELLS_PER_CLUSTER = 16  # minimum cells per cluster in the grid for k-means++ seeds
MAX_CELLS = 1 << 12


class NoisyMeans(NamedTuple):
    """Noisy means of disjoint cells, in [0, 1]^d."""

    places: NDArray[np.float64]  # (k, d), means, clipped to the box
    counts: NDArray[np.float64]  # (k,), noisy, possibly negative
    count_variances: NDArray[np.float64]  # (k,)
    errors: NDArray[np.float64]  # (k, d), standard errors of the means from the noise of sums and counts


def dp_kmeans(params: DpKmeans, features: tuple[Feature, ...], curator: Curator) -> ClusterModel:
    """Run a fixed number of k-means steps, each on the noisy sum and count of every cluster.

    Blum, Dwork, McSherry and Nissim 2005, as compared by Ma and Wu and by Zhang and Cheng 2021. The number of steps is
    a parameter, because a test of convergence would read records. `params.init` selects the start:

    - `random`: public, spread-out places, at no cost.
    - `plusplus`: greedy k-means++ and Lloyd steps on the noisy counts of a regular grid, for a fifth
      of epsilon.
    - `subsets`: noisy means of k disjoint pseudo-random subsets, for a fifth of epsilon. A public hash
      of a record selects its subset, so no record affects the subset of another.

    Privacy: epsilon in total, pure. Sums are of residuals from the middle of the box, so one record
    changes a sum by at most d/2 in L1 (d if the box is [-1, 1]^d). The clusters of one step are disjoint
    and compose in parallel. Steps compose in sequence; the last step gets the remainder.

    Parameters
    ----------
    params : DpKmeans
    features : tuple of Feature
    curator : Curator

    Returns
    -------
    ClusterModel

    Raises
    ------
    InvalidSpec
        Epsilon is too small for the number of steps. No noise was drawn.
    """
    epsilon_nano = params.epsilon_nano
    n_features = len(features)
    for_seeds, for_steps = (0, epsilon_nano) if params.init == "random" else split(epsilon_nano, SEEDS, STEPS)
    divide = split_halving if params.budget == "halving" else split_evenly
    parts = divide(for_steps, params.iterations)
    split_step(min(parts), n_features)  # reject a too small epsilon before the first query
    centres = choose_start(params, n_features, curator, for_seeds)
    middle = np.full_like(centres, 0.5)
    for part in parts:
        means = release_means(curator, NearestCells(to_places(centres)), middle, part)
        centres = means.places
    count = NoisyCount(float(means.counts.sum()), float(means.count_variances.sum()))
    per_record = epsilon_nano // curator.max_per_user
    is_low = not is_clear(count, per_record, params.clusters)
    return build_centroid_model(
        features,
        centres,
        means.counts,
        means.count_variances,
        centre_errors=means.errors,
        agreement=agreement_of_errors(
            centres, np.maximum(means.counts, 1.0), np.minimum(means.errors, 1.0), PublicWords(params.seed)
        ),
        diagnostics={
            "noisy_count": count.value,
            "low_confidence": is_low or bool((means.errors > 0.5).all(axis=1).any()),
            "iterations": params.iterations,
            "init": params.init,
        },
        warnings=build_warnings(count, per_record, params.clusters, params.clusters),
    )


def release_means(curator: Curator, cells: Cells, anchors: NDArray[np.float64], epsilon_nano: int) -> NoisyMeans:
    """Return the noisy mean of each cell: its anchor plus the noisy sum of residuals over the noisy count.

    Parameters
    ----------
    curator : Curator
    cells : Cells
        k disjoint cells.
    anchors : ndarray of shape (k, d)
        In [0, 1]^d. A residual longer than d/2 in L1, the distance of a corner from the middle of the
        box, is scaled down to d/2.
    epsilon_nano : int
        Cost of the step.

    Notes
    -----
    The sensitivity of a sum is d/2 in L1 (d if the box is [-1, 1]^d), wherever the anchors are. If all
    anchors are the middle of the box, no residual is scaled down and the sums are those of the papers.
    Counts below 1 are replaced by 1, and means are clipped to the box.
    """
    k, d = anchors.shape
    shares = split_step(epsilon_nano, d)
    places = np.clip(np.floor(anchors * LATTICE), 0, LATTICE - 1).astype(np.int64)
    radius = d * LATTICE // 2
    sums = curator.sums(cells, places, np.full(k, radius, dtype=np.int64), shares)
    sizes = np.maximum(sums.counts, 1)[:, None]
    steps = sums.residuals / sizes
    means = np.clip((places + 0.5 + steps) / LATTICE, 0.0, 1.0)
    sum_variance = curator.variance(radius, shares.residuals) / LATTICE**2
    count_variance = curator.variance(1, shares.counts)
    errors = np.sqrt(sum_variance + (steps / LATTICE) ** 2 * count_variance) / sizes
    return NoisyMeans(means, sums.counts.astype(np.float64), np.full(k, count_variance), errors)


def split_step(epsilon_nano: int, n_features: int) -> Shares:
    """Split the cost of a step: weight d for the sums, 3/4 for the counts.

    Su et al. 2016, section 4.1, give the counts the weight (4 d rho^2)^(1/3) with rho = .225, which is
    .74 at d = 2 and .93 at d = 4. Raise InvalidSpec if a part would be less than one nano-epsilon.
    """
    return Shares(*split(epsilon_nano, 4 * n_features, 3))


def split_evenly(epsilon_nano: int, steps: int) -> tuple[int, ...]:
    """Split epsilon into equal parts, to the nano-epsilon. Raise InvalidSpec if a part would be 0."""
    return split(epsilon_nano, *[1] * steps)


def split_halving(epsilon_nano: int, steps: int) -> tuple[int, ...]:
    """Give each step half of what remains, and the last step all of it. Raise InvalidSpec if a part would be 0.

    In Zhang and Cheng 2021 (after Blum et al. 2005) the last step also takes only half, so a part of epsilon is
    never used.
    """
    return split(epsilon_nano, *(1 << (steps - 2 - t) for t in range(steps - 1)), 1)


def choose_start(params: DpKmeans, n_features: int, curator: Curator, epsilon_nano: int) -> NDArray[np.float64]:
    """Return the initial centres, ndarray of shape (clusters, d) in [0, 1]. See `dp_kmeans`."""
    public = from_places(spread_places(params.clusters, n_features, params.seed))
    if params.init == "random":
        return public
    if params.init == "subsets":
        middle = np.full((params.clusters, n_features), 0.5)
        return release_means(curator, HashedCells(params.clusters, params.seed), middle, epsilon_nano).places
    grid = GridCells(choose_seed_grid(params.clusters, n_features))
    counts = curator.counts(grid, epsilon_nano)
    synopsis = build_grid_synopsis(grid, counts, curator.variance(1, epsilon_nano))
    found = fit_centres(synopsis, params.clusters, params.seed)
    return np.concatenate([found, public[: params.clusters - len(found)]])


def choose_seed_grid(clusters: int, n_features: int) -> tuple[int, ...]:
    """Return the cells per feature, after halving one feature after the other until there are enough cells."""
    halvings = floor(log2(min(CELLS_PER_CLUSTER * clusters, MAX_CELLS)))
    return tuple(1 << (halvings // n_features + (j < halvings % n_features)) for j in range(n_features))
