"""`dp_kmeans`: Lloyd's steps, each on noisy sums and counts: DPk-means, DPk-means++ and IDPk-means, made sound."""

from math import floor, log2

import numpy as np
from numpy.typing import NDArray

from clustering.broadcast_centroids import spread_out
from clustering.central.budget import halving, split
from clustering.central.cells import GridCells, HashedCells, NearestCells, from_places, to_places
from clustering.central.model import NoisyCount, cautions, centroid_model, is_clear
from clustering.central.noisy_means import noisy_means, shares_of
from clustering.central.synopsis import grid_synopsis, kmeans_centres
from clustering.curator import Curator
from sfumato.accounting import parse_epsilon
from sfumato.cluster_model import ClusterModel
from sfumato.specs import Feature
from sfumato.specs.central import DpKmeans

SEEDS, STEPS = 1, 4  # parts of epsilon, where centres start from something that is paid for
CELLS_PER_CLUSTER = 16  # of the grid that k-means++ seeds are drawn from, at least
MAX_CELLS = 1 << 12


def dp_kmeans(params: DpKmeans, features: tuple[Feature, ...], curator: Curator) -> ClusterModel:
    """So many steps of k-means, each of which is told the noisy sum and the noisy count of every cluster.

    Blum, Dwork, McSherry and Nissim 2005, as papers 001 and 003 compare with it. Steps are as
    many as was said beforehand; that records stop moving is not looked at. Where centres start:
    at public, spread-out places (`random`); by greedy k-means++ and Lloyd's steps over a plain
    grid's noisy counts, for a fifth of epsilon (`plusplus`); at the noisy means of k disjoint random
    subsets, for a fifth (`subsets`), to which a record's place is assigned by a public hash, so that
    no record decides where another one is.

    Privacy: sums are of residuals from the middle of the box, which one record changes by d/2 at
    most, d where the box is [-1, 1]^d. A step's clusters are disjoint, so that it costs what one
    cluster's sum and count do; steps add up, and the last one takes what is left.

    Raises
    ------
    InvalidSpec
        An epsilon too small to be divided over so many steps.
    """
    epsilon_nano = parse_epsilon(params.epsilon)
    n_features = len(features)
    for_seeds, for_steps = (0, epsilon_nano) if params.init == "random" else split(epsilon_nano, SEEDS, STEPS)
    parts = halving(for_steps, params.iterations) if params.budget == "halving" else even(for_steps, params.iterations)
    shares_of(min(parts), n_features)  # refused now, where it must be, before anything is drawn
    centres = start(params, n_features, curator, for_seeds)
    middle = np.full_like(centres, 0.5)
    for part in parts:
        told = noisy_means(curator, NearestCells(to_places(centres)), middle, part)
        centres = told.places
    count = NoisyCount(float(told.counts.sum()), float(told.count_variances.sum()))
    per_record = epsilon_nano // curator.max_per_user
    is_low = not is_clear(count, per_record, params.clusters)
    return centroid_model(
        features,
        centres,
        told.counts,
        told.count_variances,
        centre_errors=told.errors,
        diagnostics={
            "noisy_count": count.value,
            "low_confidence": is_low or bool((told.errors > 0.5).all(axis=1).any()),
            "iterations": params.iterations,
            "init": params.init,
        },
        warnings=cautions(count, per_record, params.clusters, params.clusters),
    )


def even(epsilon_nano: int, steps: int) -> tuple[int, ...]:
    """The same for each step, to the nano-epsilon. Raises InvalidSpec."""
    return split(epsilon_nano, *[1] * steps)


def start(params: DpKmeans, n_features: int, curator: Curator, epsilon_nano: int) -> NDArray[np.float64]:
    """Where centres start, in [0, 1]^d: as many as clusters."""
    public = from_places(spread_out(params.clusters, n_features, params.seed))
    if params.init == "random":
        return public
    if params.init == "subsets":
        middle = np.full((params.clusters, n_features), 0.5)
        return noisy_means(curator, HashedCells(params.clusters, params.seed), middle, epsilon_nano).places
    grid = GridCells(seed_grid(params.clusters, n_features))
    counts = curator.counts(grid, epsilon_nano)
    synopsis = grid_synopsis(grid, counts, curator.variance(1, epsilon_nano))
    found = kmeans_centres(synopsis, params.clusters, params.seed)
    return np.concatenate([found, public[: params.clusters - len(found)]])


def seed_grid(clusters: int, n_features: int) -> tuple[int, ...]:
    """Cells of each feature, made by halving one feature after the other until there are enough."""
    halvings = floor(log2(min(CELLS_PER_CLUSTER * clusters, MAX_CELLS)))
    return tuple(1 << (halvings // n_features + (j < halvings % n_features)) for j in range(n_features))
