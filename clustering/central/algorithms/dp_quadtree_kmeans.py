"""`dp_quadtree_kmeans`: k-means on the leaves of a noisy tree of boxes.

This is DPQTk-means of Zhang and Cheng 2021, with corrected privacy accounting and for any number of features.
"""

from math import ceil, log2
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustering.central.curator import Curator
from clustering.central.model import NoisyCount
from clustering.central.privtree import BoxTree, fit_counts, halve, whole_box
from clustering.central.queries import split
from clustering.central.synopsis import THETA, Synopsis, build_synopsis_model, fit_centres
from sfumato.model.cluster_model import ClusterModel
from sfumato.privacy.accounting import NANO
from sfumato.specs import Feature
from sfumato.specs.central import MAX_HEIGHT, DpQuadtreeKmeans

COUNTING, TREE, LEAVES = 20, 294, 686  # thousandths of epsilon; the tree gets gamma = .3 of what the count leaves
PER_BOX = 1000  # T = N / 1000 in the paper
STANDS_OUT = 0.5  # minimum of T in noise scales; at 2 dense boxes stay whole, at 0 empty ones are split
BOXES_PER_CLUSTER = 16  # minimum capacity of the tree per cluster
MAX_BOXES = 1 << 17


class CountedTree(NamedTuple):
    """The noisy counts of a tree of boxes."""

    synopsis: Synopsis  # the leaves
    records: NoisyCount
    height: int  # maxH, maximum number of counted levels
    levels: int  # halvings from the whole box to the deepest leaf


def dp_quadtree_kmeans(params: DpQuadtreeKmeans, features: tuple[Feature, ...], curator: Curator) -> ClusterModel:
    """Run weighted k-means on the leaves of positive count of `count_tree`.

    Privacy: epsilon in total, pure, all of it for the tree; k-means is post-processing. The bounds are
    public. As printed, the paper reads the raw minimum and maximum, starts from k-means on raw records
    and uses the raw N.

    Parameters
    ----------
    params : DpQuadtreeKmeans
    features : tuple of Feature
    curator : Curator

    Returns
    -------
    ClusterModel

    Raises
    ------
    InvalidSpec
        Epsilon is too small to be divided. No noise was drawn.
    """
    epsilon_nano = params.epsilon_nano
    tree = count_tree(curator, len(features), params.clusters, epsilon_nano, params.height)
    centres = fit_centres(tree.synopsis, params.clusters, params.seed)
    return build_synopsis_model(
        features,
        tree.synopsis,
        centres,
        params.clusters,
        epsilon_nano // curator.max_per_user,
        tree.records,
        {"height": tree.height, "levels": tree.levels},
    )


def count_tree(
    curator: Curator, n_features: int, clusters: int, epsilon_nano: int, height: int | None = None
) -> CountedTree:
    """Split boxes with many records and count the leaves.

    Algorithms 1 to 3 of Zhang and Cheng 2021, for any number of features. A box with a noisy count above T is
    split into four by two features at once if d = 2, else into two by one feature in turn. The boxes
    of each level are counted at epsilon_1 / maxH, over maxH levels. All leaves are counted once more
    with epsilon_2. Least squares makes the counts of the tree and of the leaves consistent.

    Privacy: boxes of one level are disjoint and compose in parallel. A record is counted at most once
    per level and once in a leaf. T and maxH follow from a noisy count that costs a fiftieth of epsilon.
    The leaves get what the levels leave, so that epsilon is spent exactly.

    Parameters
    ----------
    curator : Curator
    n_features : int
    clusters : int
    epsilon_nano : int
        Total cost.
    height : int, optional
        maxH. Default: see `choose_height`.

    Returns
    -------
    CountedTree

    Raises
    ------
    InvalidSpec
        Epsilon is too small to be divided. No noise was drawn.
    """
    for_count, for_tree, _ = split(epsilon_nano, COUNTING, TREE, LEAVES)
    split(for_tree, *[1] * MAX_HEIGHT)  # reject a too small epsilon before the first query
    spent_before = curator.spent_nano
    noisy_count = float(curator.count(for_count))
    if height is None:
        records_epsilon = noisy_count * (epsilon_nano - for_count) / (NANO * curator.max_per_user)
        height = choose_height(records_epsilon, n_features, clusters)
    threshold = noisy_count / PER_BOX
    tree, counts, variances = _grow(curator, n_features, split(for_tree, *[1] * height), threshold)
    leaves, for_leaves = tree.leaves, epsilon_nano - (curator.spent_nano - spent_before)
    counted = curator.counts(tree.cells(leaves), for_leaves)
    noise = curator.variance(1, for_leaves)
    is_known = np.isfinite(variances[leaves])
    trust = np.ones(len(leaves))  # weight of the second count of each leaf
    trust[is_known] = variances[leaves][is_known] / (variances[leaves][is_known] + noise)
    counts[leaves] = trust * counted + (1 - trust) * counts[leaves]
    variances[leaves] = trust * noise
    fitted, spread = fit_counts(tree, counts, variances)
    synopsis = Synopsis(tree.middles(leaves), tree.sides(leaves), fitted[leaves], spread[leaves])
    records = NoisyCount(noisy_count, curator.variance(1, for_count))
    return CountedTree(synopsis, records, height, int(tree.levels.max()))


def choose_height(records_epsilon: float, n_features: int, clusters: int) -> int:
    """Return maxH, at which the tree has room for the cells of Su's grid and for 16 boxes per cluster.

    The paper's (ln N) / d ignores epsilon and gives one level in eight features.

    Parameters
    ----------
    records_epsilon : float
        N epsilon, from a noisy count.
    n_features : int
    clusters : int
    """
    d = n_features
    boxes = max(max(records_epsilon / THETA, 0.0) ** (2 * d / (2 + d)), BOXES_PER_CLUSTER * clusters)
    return min(ceil(log2(boxes) / _halvings_per_level(d)), MAX_HEIGHT)


def _halvings_per_level(n_features: int) -> int:
    return 2 if n_features == 2 else 1  # a quadtree in two features


def _grow(
    curator: Curator, n_features: int, parts: tuple[int, ...], threshold: float
) -> tuple[BoxTree, NDArray[np.float64], NDArray[np.float64]]:
    """Count the boxes level by level and split those above the threshold.

    Returns
    -------
    BoxTree
    ndarray of shape (m,)
        Noisy counts; 0 for a box without a count.
    ndarray of shape (m,)
        Noise variances; infinite for a box without a count.
    """
    tree = whole_box(n_features)
    counts, variances = np.zeros(1), np.full(1, np.inf)
    frontier = np.zeros(1, dtype=np.int64)
    at_once = _halvings_per_level(n_features)
    for level, part in enumerate(parts):
        if len(frontier) == 0:  # the leaves get the remaining budget
            break
        answers = curator.counts(tree.cells(frontier), part)
        variance = curator.variance(1, part)
        counts[frontier], variances[frontier] = answers, variance
        dense = frontier[answers > max(threshold, STANDS_OUT * np.sqrt(variance / 2))]
        frontier = dense[: max(0, (MAX_BOXES - len(counts)) // 4)]
        for step in range(at_once):
            before = len(tree.first)
            tree = halve(tree, frontier, (level * at_once + step) % n_features)
            frontier = np.arange(before, len(tree.first))
        counts = np.concatenate([counts, np.zeros(len(tree.first) - len(counts))])
        variances = np.concatenate([variances, np.full(len(tree.first) - len(variances), np.inf)])
    return tree, counts, variances
