"""`dp_bisecting_kmeans`: clusters split in two until there are enough: DP Bi-k-means of paper 001, made sound."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustering.broadcast_centroids import spread_out
from clustering.central.bisections import Bisections, bisect_cells, choose_leaves
from clustering.central.budget import split
from clustering.central.cells import PairCells, from_places, to_places
from clustering.central.model import NoisyCount, cautions, centroid_model, is_clear
from clustering.central.noisy_means import Means, noisy_means, shares_of
from clustering.central.noisy_tree import noisy_tree
from clustering.central.synopsis import synopsis_model
from clustering.curator import SQUARE_BITS, Curator
from clustering.phase_search import PublicWords
from sfumato.accounting import parse_epsilon
from sfumato.cluster_model import ClusterModel
from sfumato.specs import LATTICE, Feature
from sfumato.specs.central import DpBisectingKmeans

SQUARE_UNIT = 2.0**SQUARE_BITS / LATTICE**2  # of `Curator.squares`, in squared ranges
STEP = 0.2  # how far the mean of a pair's cluster lies from where the pair starts, roughly
APART = 0.5  # of a cluster's root mean square distance, that a pair starts from its centre on either side
LEAST_SPREAD, MOST_SPREAD = 0.02, 0.3  # of that distance in one feature: noise may say anything


def dp_bisecting_kmeans(params: DpBisectingKmeans, features: tuple[Feature, ...], curator: Curator) -> ClusterModel:
    """Split everybody in two, and a cluster in two again, until there are k.

    Direct: T noisy steps of 2-means for each split, and noisy sums of squares to say which
    cluster is split next. Clusters of one depth are disjoint, so all of a depth are split at
    once for what one split costs, whether they will be wanted or not; which are taken is then
    post-processing, and equal to having split them one by one. No cluster is deeper than
    D = min(ceil(log2 k) + 1, k - 1) splits: epsilon/D each, of which a tenth goes to the sums of
    squares where they decide anything. A step is shrunk by what of it is noise, which is free and
    keeps a cluster that nobody is in from jumping to a corner.

    Synopsis: the whole of epsilon goes to the leaves of `noisy_tree`; they are bisected for free.

    Privacy: see above; a question of one depth costs a record no more than its own cluster does.

    Raises
    ------
    InvalidSpec
        An epsilon too small to be divided over so many steps.
    """
    return _of_synopsis(params, features, curator) if params.synopsis else _of_records(params, features, curator)


class Trial(NamedTuple):
    """The tree of all splits that were tried. Node 0 is everybody; a node comes before its pair."""

    centres: NDArray[np.float64]  # (m, d), in [0, 1]
    first: NDArray[np.int64]  # (m,), the first of a pair; -1 for a leaf
    counts: NDArray[np.float64]  # (m,), noisy
    count_variances: NDArray[np.float64]  # (m,)
    errors: NDArray[np.float64]  # (m, d), of centres
    squares: NDArray[np.float64]  # (m,), noisy, in squared ranges; not a number where nobody asked


def depth_of(clusters: int) -> int:
    """D, how many splits deep a cluster may lie: one more than a balanced tree needs, where that can be of use."""
    return min((clusters - 1).bit_length() + 1, clusters - 1)


def level_parts(epsilon_nano: int, params: DpBisectingKmeans) -> list[tuple[int, tuple[int, ...]]]:
    """For each depth from 1 on: what sums of squares cost, 0 where nobody asks, and each step. Raises InvalidSpec."""
    depth, steps = depth_of(params.clusters), params.iterations
    parts = []
    for level, part in enumerate(split(epsilon_nano, *[1] * depth), start=1):
        # of the deepest ones, sums of squares tell only what their own split was worth
        is_asked = depth > 1 and (level < depth or params.split == "total_sse")
        if is_asked:
            for_squares, *for_steps = split(part, steps, *[9] * steps)
        else:
            for_squares, for_steps = 0, list(split(part, *[1] * steps))
        parts.append((for_squares, tuple(for_steps)))
    return parts


def _of_records(params: DpBisectingKmeans, features: tuple[Feature, ...], curator: Curator) -> ClusterModel:
    epsilon_nano = parse_epsilon(params.epsilon)
    trial = _grown(params, len(features), curator, epsilon_nano)
    found = Bisections(trial.first, trial.squares)
    leaves = choose_leaves(found, params.clusters, params.split)
    per_record = epsilon_nano // curator.max_per_user
    everybody = slice(0, 3)  # node 0, where it is the only one; else the first pair
    count = NoisyCount(float(trial.counts[everybody].sum()), float(trial.count_variances[everybody].sum()))
    counts = trial.counts[leaves]
    with np.errstate(invalid="ignore"):
        spreads = np.sqrt(np.maximum(trial.squares[leaves], 0.0) / np.maximum(counts, 1.0))
    is_low = not is_clear(count, per_record, params.clusters)
    return centroid_model(
        features,
        trial.centres[leaves],
        counts,
        trial.count_variances[leaves],
        centre_errors=trial.errors[leaves],
        spreads=spreads,
        diagnostics={
            "noisy_count": count.value,
            "low_confidence": is_low or bool((trial.errors[leaves] > 0.5).all(axis=1).any()),
            "iterations": params.iterations,
            "depth": depth_of(params.clusters),
        },
        warnings=cautions(count, per_record, params.clusters, len(leaves)),
    )


def _grown(params: DpBisectingKmeans, n_features: int, curator: Curator, epsilon_nano: int) -> Trial:
    """Every split down to the depth cap, one depth after the other."""
    root = np.full((1, n_features), 0.5)
    alone = np.array([-1], dtype=np.int64)
    if params.clusters == 1:
        shares_of(epsilon_nano, n_features)
        told = noisy_means(curator, PairCells(to_places(root), alone, np.zeros(1, dtype=np.int64)), root, epsilon_nano)
        return Trial(told.places, alone, told.counts, told.count_variances, told.errors, np.full(1, np.nan))
    parts = level_parts(epsilon_nano, params)
    for _, for_steps in parts:
        shares_of(min(for_steps), n_features)  # refused now, where it must be, before anything is drawn
    words = PublicWords(params.seed)
    # what node 0 has of its own is nothing: the first pair's counts are everybody's
    nothing = np.zeros(1)
    trial = Trial(root, alone, nothing, nothing, np.zeros((1, n_features)), np.full(1, np.nan))
    for level, (for_squares, for_steps) in enumerate(parts):
        parents = np.arange((1 << level) - 1, (1 << (level + 1)) - 1)
        pairs = _pairs(trial, parents, words) if level else from_places(spread_out(2, n_features, params.seed))
        first = np.concatenate([trial.first, np.full(len(pairs), -1, dtype=np.int64)])
        first[parents] = len(trial.first) + 2 * np.arange(len(parents))
        children = np.arange(len(trial.first), len(first))

        def cells(of: NDArray[np.float64], trial: Trial = trial, first: NDArray[np.int64] = first) -> PairCells:
            return PairCells(to_places(np.concatenate([trial.centres, of])), first, np.flatnonzero(first < 0))

        for part in for_steps:
            told = _damped(noisy_means(curator, cells(pairs), pairs, part), pairs)
            pairs = told.places
        squares = np.full(len(children), np.nan)
        if for_squares:
            squares = curator.squares(cells(pairs), to_places(pairs), for_squares) * SQUARE_UNIT
        trial = _added(trial, first, told, squares)
    return trial


def _damped(told: Means, anchors: NDArray[np.float64]) -> Means:
    """Steps shrunk by what of their size noise explains, where a mean was STEP away before anything was known."""
    trust = STEP**2 / (STEP**2 + told.errors**2)
    return told._replace(places=anchors + trust * (told.places - anchors), errors=trust * told.errors)


def _pairs(trial: Trial, parents: NDArray[np.int64], words: PublicWords) -> NDArray[np.float64]:
    """Where the pairs of a depth start: on either side of a cluster's centre, in a public direction, by its spread."""
    d = trial.centres.shape[1]
    spreads = np.sqrt(np.maximum(trial.squares[parents], 0.0) / np.maximum(trial.counts[parents], 1.0))
    reach = APART * np.clip(spreads, LEAST_SPREAD * np.sqrt(d), MOST_SPREAD * np.sqrt(d))
    directions = words.uniform(len(parents), d) - 0.5
    directions /= np.maximum(np.sqrt((directions**2).sum(axis=1, keepdims=True)), 1e-9)
    offsets = reach[:, None] * directions
    both = np.stack([trial.centres[parents] - offsets, trial.centres[parents] + offsets], axis=1)
    return np.clip(both.reshape(-1, d), 0.0, 1.0)


def _added(trial: Trial, first: NDArray[np.int64], told: Means, squares: NDArray[np.float64]) -> Trial:
    return Trial(
        np.concatenate([trial.centres, told.places]),
        first,
        np.concatenate([trial.counts, told.counts]),
        np.concatenate([trial.count_variances, told.count_variances]),
        np.concatenate([trial.errors, told.errors]),
        np.concatenate([trial.squares, squares]),
    )


def _of_synopsis(params: DpBisectingKmeans, features: tuple[Feature, ...], curator: Curator) -> ClusterModel:
    epsilon_nano = parse_epsilon(params.epsilon)
    tree = noisy_tree(curator, len(features), params.clusters, epsilon_nano)
    centres = bisect_cells(tree.synopsis, params.clusters, params.split, params.seed)
    per_record = epsilon_nano // curator.max_per_user
    diagnostics = {"height": tree.height, "levels": tree.levels}
    return synopsis_model(features, tree.synopsis, centres, params.clusters, per_record, tree.records, diagnostics)
