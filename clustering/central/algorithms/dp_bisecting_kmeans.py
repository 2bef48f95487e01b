"""`dp_bisecting_kmeans`: clusters are split in two until there are enough.

This is DP Bi-k-means of Ma and Wu, with corrected privacy accounting.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustering.central.algorithms.dp_kmeans import NoisyMeans, release_means, split_step
from clustering.central.algorithms.dp_quadtree_kmeans import count_tree
from clustering.central.cells import PairCells, from_places, to_places
from clustering.central.curator import SQUARE_BITS, Curator
from clustering.central.model import NoisyCount, build_centroid_model, build_warnings, is_clear
from clustering.central.queries import split
from clustering.central.synopsis import Synopsis, build_synopsis_model
from clustering.centroids.centroid_statistics import spread_places
from clustering.centroids.piece_population import agreement_of_errors
from clustering.centroids.weighted_kmeans import WeightedFit, weighted_kmeans
from clustering.random import PublicWords
from sfumato.model.cluster_model import ClusterModel
from sfumato.specs import LATTICE, Feature
from sfumato.specs.central import DpBisectingKmeans, Split

SQUARE_UNIT = 2.0**SQUARE_BITS / LATTICE**2  # unit of `Curator.squares`, in squared ranges
STEP = 0.2  # prior distance of a child's mean from its start, per feature
APART = 0.5  # distance of the children's starts from the parent's centre, in root mean square distances
LEAST_SPREAD, MOST_SPREAD = 0.02, 0.3  # limits of that distance per feature, against noise


def dp_bisecting_kmeans(params: DpBisectingKmeans, features: tuple[Feature, ...], curator: Curator) -> ClusterModel:
    """Split all records in two, then split one cluster after another until there are k.

    Direct (`synopsis` false): each split takes T noisy steps of 2-means. Noisy sums of squares decide
    which cluster is split next. Clusters of one depth are disjoint, so all clusters of a depth are
    split at the cost of one split. The selection of splits is post-processing, and the result equals
    that of splitting one by one. No cluster is deeper than D = min(ceil(log2 k) + 1, k - 1) splits. Each
    depth costs epsilon/D, of which a tenth goes to the sums of squares if a decision needs them. Steps
    are shrunk by the share of noise in them, at no cost, so that an empty cluster does not jump to a
    corner.

    Synopsis (`synopsis` true): all of epsilon goes to `count_tree`, and its leaves are bisected as
    post-processing.

    Privacy: epsilon in total, pure. Queries of one depth compose in parallel, depths in sequence. As
    printed, the paper selects splits by raw sums of squares and spends up to (k-1) T epsilon/k.

    Parameters
    ----------
    params : DpBisectingKmeans
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
    run = _bisect_synopsis if params.synopsis else _bisect_records
    return run(params, features, curator)


class Trial(NamedTuple):
    """The tree of all computed splits. Node 0 contains all records; a node precedes its children."""

    centres: NDArray[np.float64]  # (m, d), in [0, 1]
    first: NDArray[np.int64]  # (m,), index of the first child; -1 for a leaf
    counts: NDArray[np.float64]  # (m,), noisy
    count_variances: NDArray[np.float64]  # (m,)
    errors: NDArray[np.float64]  # (m, d), standard errors of the centres
    squares: NDArray[np.float64]  # (m,), noisy sums of squares in squared ranges; NaN without a query


def max_depth(clusters: int) -> int:
    """Return D, the maximum depth of a cluster: one more than a balanced tree needs, at most k - 1."""
    return min((clusters - 1).bit_length() + 1, clusters - 1)


def split_by_level(epsilon_nano: int, params: DpBisectingKmeans) -> list[tuple[int, tuple[int, ...]]]:
    """Return the cost of the sums of squares (0 for none) and of each step, for each depth. Raise InvalidSpec."""
    depth, steps = max_depth(params.clusters), params.iterations
    parts = []
    for level, part in enumerate(split(epsilon_nano, *[1] * depth), start=1):
        # at the last depth, only `total_sse` needs sums of squares, to rate the split that made the clusters
        has_squares = depth > 1 and (level < depth or params.split == "total_sse")
        if has_squares:
            for_squares, *for_steps = split(part, steps, *[9] * steps)
        else:
            for_squares, for_steps = 0, list(split(part, *[1] * steps))
        parts.append((for_squares, tuple(for_steps)))
    return parts


def _bisect_records(params: DpBisectingKmeans, features: tuple[Feature, ...], curator: Curator) -> ClusterModel:
    epsilon_nano = params.epsilon_nano
    trial = _try_splits(params, len(features), curator, epsilon_nano)
    found = Bisections(trial.first, trial.squares)
    leaves = choose_leaves(found, params.clusters, params.split)
    per_record = epsilon_nano // curator.max_per_user
    total = slice(0, 3)  # node 0 if it is the only node, else its two children (its own count is 0)
    count = NoisyCount(float(trial.counts[total].sum()), float(trial.count_variances[total].sum()))
    counts = trial.counts[leaves]
    with np.errstate(invalid="ignore"):
        spreads = np.sqrt(np.maximum(trial.squares[leaves], 0.0) / np.maximum(counts, 1.0))
    is_low = not is_clear(count, per_record, params.clusters)
    return build_centroid_model(
        features,
        trial.centres[leaves],
        counts,
        trial.count_variances[leaves],
        centre_errors=trial.errors[leaves],
        agreement=agreement_of_errors(
            trial.centres[leaves],
            np.maximum(counts, 1.0),
            np.minimum(trial.errors[leaves], 1.0),
            PublicWords(params.seed),
        ),
        spreads=spreads,
        diagnostics={
            "noisy_count": count.value,
            "low_confidence": is_low or bool((trial.errors[leaves] > 0.5).all(axis=1).any()),
            "iterations": params.iterations,
            "depth": max_depth(params.clusters),
        },
        warnings=build_warnings(count, per_record, params.clusters, len(leaves)),
    )


def _try_splits(params: DpBisectingKmeans, n_features: int, curator: Curator, epsilon_nano: int) -> Trial:
    """Compute all splits down to the maximum depth, depth by depth."""
    root = np.full((1, n_features), 0.5)
    alone = np.array([-1], dtype=np.int64)
    if params.clusters == 1:
        split_step(epsilon_nano, n_features)
        cells = PairCells(to_places(root), alone, np.zeros(1, dtype=np.int64))
        means = release_means(curator, cells, root, epsilon_nano)
        return Trial(means.places, alone, means.counts, means.count_variances, means.errors, np.full(1, np.nan))
    parts = split_by_level(epsilon_nano, params)
    for _, for_steps in parts:
        split_step(min(for_steps), n_features)  # reject a too small epsilon before the first query
    words = PublicWords(params.seed)
    # node 0 has no count of its own: the counts of its children add up to all records
    zero = np.zeros(1)
    trial = Trial(root, alone, zero, zero, np.zeros((1, n_features)), np.full(1, np.nan))
    for level, (for_squares, for_steps) in enumerate(parts):
        parents = np.arange((1 << level) - 1, (1 << (level + 1)) - 1)
        pairs = _start_pairs(trial, parents, words) if level else from_places(spread_places(2, n_features, params.seed))
        first = np.concatenate([trial.first, np.full(len(pairs), -1, dtype=np.int64)])
        first[parents] = len(trial.first) + 2 * np.arange(len(parents))
        children = np.arange(len(trial.first), len(first))

        def cells_with(
            children: NDArray[np.float64], trial: Trial = trial, first: NDArray[np.int64] = first
        ) -> PairCells:
            return PairCells(to_places(np.concatenate([trial.centres, children])), first, np.flatnonzero(first < 0))

        for part in for_steps:
            means = _damp(release_means(curator, cells_with(pairs), pairs, part), pairs)
            pairs = means.places
        squares = np.full(len(children), np.nan)
        if for_squares:
            squares = curator.squares(cells_with(pairs), to_places(pairs), for_squares) * SQUARE_UNIT
        trial = _append(trial, first, means, squares)
    return trial


def _damp(means: NoisyMeans, anchors: NDArray[np.float64]) -> NoisyMeans:
    """Shrink each step towards its anchor: the posterior mean under a normal prior of deviation STEP."""
    trust = STEP**2 / (STEP**2 + means.errors**2)
    return means._replace(places=anchors + trust * (means.places - anchors), errors=trust * means.errors)


def _start_pairs(trial: Trial, parents: NDArray[np.int64], words: PublicWords) -> NDArray[np.float64]:
    """Place two children on either side of each parent's centre, in a public direction, at a noisy distance."""
    d = trial.centres.shape[1]
    spreads = np.sqrt(np.maximum(trial.squares[parents], 0.0) / np.maximum(trial.counts[parents], 1.0))
    reach = APART * np.clip(spreads, LEAST_SPREAD * np.sqrt(d), MOST_SPREAD * np.sqrt(d))
    directions = words.uniform(len(parents), d) - 0.5
    directions /= np.maximum(np.sqrt((directions**2).sum(axis=1, keepdims=True)), 1e-9)
    offsets = reach[:, None] * directions
    both = np.stack([trial.centres[parents] - offsets, trial.centres[parents] + offsets], axis=1)
    return np.clip(both.reshape(-1, d), 0.0, 1.0)


def _append(trial: Trial, first: NDArray[np.int64], means: NoisyMeans, squares: NDArray[np.float64]) -> Trial:
    return Trial(
        np.concatenate([trial.centres, means.places]),
        first,
        np.concatenate([trial.counts, means.counts]),
        np.concatenate([trial.count_variances, means.count_variances]),
        np.concatenate([trial.errors, means.errors]),
        np.concatenate([trial.squares, squares]),
    )


def _bisect_synopsis(params: DpBisectingKmeans, features: tuple[Feature, ...], curator: Curator) -> ClusterModel:
    epsilon_nano = params.epsilon_nano
    tree = count_tree(curator, len(features), params.clusters, epsilon_nano)
    centres = bisect_cells(tree.synopsis, params.clusters, params.split, params.seed)
    per_record = epsilon_nano // curator.max_per_user
    diagnostics = {"height": tree.height, "levels": tree.levels}
    return build_synopsis_model(
        features, tree.synopsis, centres, params.clusters, per_record, tree.records, diagnostics
    )


class Bisections(NamedTuple):
    """A binary tree of clusters. Node 0 contains all records."""

    first: NDArray[np.int64]  # (m,), index of the first child; the second child follows; -1 for a leaf
    squares: NDArray[np.float64]  # (m,), sum of squared distances from each node's centre; unused for node 0


def choose_leaves(tree: Bisections, clusters: int, rule: Split) -> NDArray[np.int64]:
    """Split one cluster after another until there are `clusters`, and return their nodes in ascending order.

    `largest_sse` splits the cluster with the largest sum of squares. `total_sse` makes the split
    that leaves the least total. Nodes without children are not split.
    """
    chosen = [0]
    while len(chosen) < clusters:
        candidates = [node for node in chosen if tree.first[node] >= 0]
        if not candidates:
            break
        node = max(candidates, key=lambda node: _rate(tree, node, rule))
        chosen.remove(node)
        chosen += [int(tree.first[node]), int(tree.first[node]) + 1]
    return np.array(sorted(chosen), dtype=np.int64)


def _rate(tree: Bisections, node: int, rule: Split) -> float:
    if node == 0:
        return np.inf
    pair = tree.squares[tree.first[node] : tree.first[node] + 2].sum() if rule == "total_sse" else 0.0
    return float(tree.squares[node] - pair)


def bisect_cells(synopsis: Synopsis, clusters: int, rule: Split, seed: int) -> NDArray[np.float64]:
    """Bisect the cells with positive counts by weighted 2-means and return the centres, (k, d) in [0, 1].

    `total_sse` computes the trial split of each cluster once and reuses it. There are fewer centres
    than `clusters` if there are fewer such cells. If there is none, the centres are public, spread-out
    places.
    """
    kept = synopsis.positive_cells()
    if len(kept.counts) == 0:
        return from_places(spread_places(clusters, synopsis.middles.shape[1], seed))
    words = PublicWords(seed)

    def part(cells: NDArray[np.int64]) -> _Part:
        fit = weighted_kmeans(kept.middles[cells], kept.counts[cells], 1, words, restarts=1)
        return _Part(cells, fit, halves(cells) if rule == "total_sse" and len(cells) > 1 else None)

    def halves(cells: NDArray[np.int64]) -> WeightedFit:
        return weighted_kmeans(kept.middles[cells], kept.counts[cells], 2, words)

    parts = [part(np.arange(len(kept.counts)))]
    while len(parts) < clusters:
        candidates = [i for i, one in enumerate(parts) if len(one.cells) > 1]
        if not candidates:
            break
        i = max(candidates, key=lambda i: parts[i].rating)
        cells = parts[i].cells
        split = parts[i].halves or halves(cells)
        parts[i : i + 1] = [part(cells[split.labels == side]) for side in range(2)]
    return np.concatenate([one.whole.centres for one in parts])


class _Part(NamedTuple):
    cells: NDArray[np.int64]
    whole: WeightedFit  # fit of one centre, the mean
    halves: WeightedFit | None  # trial split, if the rule needs one

    @property
    def rating(self) -> float:
        return self.whole.inertia - (self.halves.inertia if self.halves is not None else 0.0)
