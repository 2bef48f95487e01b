"""A synopsis by a noisy tree of boxes: parted where many records are, its counts made to fit one another."""

from math import ceil, log2
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustering.central.box_tree import BoxCells, BoxTree, fit_counts, halve, whole_box
from clustering.central.budget import split
from clustering.central.model import NoisyCount
from clustering.central.synopsis import THETA, Synopsis
from clustering.curator import Curator
from sfumato.accounting import NANO
from sfumato.specs.central import MAX_HEIGHT

COUNTING, TREE, LEAVES = 20, 294, 686  # thousandths of epsilon; of what the count leaves, gamma = .3 is the tree's
PER_BOX = 1000  # T = N / 1000, of the paper
STANDS_OUT = 0.5  # of a count's noise scales, that T is at least; at 2 dense boxes stay whole, at 0 empty ones do not
BOXES_PER_CLUSTER = 16  # that the tree has room for, at least
MAX_BOXES = 1 << 17


class NoisyTree(NamedTuple):
    """What was counted."""

    synopsis: Synopsis  # of the leaves
    records: NoisyCount
    height: int  # maxH
    levels: int  # that were counted


def noisy_tree(
    curator: Curator, n_features: int, clusters: int, epsilon_nano: int, height: int | None = None
) -> NoisyTree:
    """Part boxes where many records are and count the leaves.

    Algorithms 1 to 3 of paper 003 for any number of features: a box with more than T records,
    noisily, is parted in four by two features at once where there are two, in two by one
    feature in turn where there are more. What may be parted is counted at epsilon_1 / maxH a
    level, over maxH levels; all leaves once more with epsilon_2, and least squares makes the
    tree's counts and the leaves' fit one another.

    Privacy: boxes of one level are disjoint, so a level costs what one of its counts does; a
    record is counted once in each of maxH levels at most and once in a leaf. T and maxH go by a
    noisy count, which costs a fiftieth of epsilon. The leaves get what the levels leave, so that
    epsilon is spent to the last nano.

    Raises
    ------
    InvalidSpec
        An epsilon too small to be divided; nothing was drawn.
    """
    for_count, for_tree, _ = split(epsilon_nano, COUNTING, TREE, LEAVES)
    split(for_tree, *[1] * MAX_HEIGHT)  # refused now, where it must be
    spent_before = curator.spent_nano
    noisy_count = float(curator.count(for_count))
    if height is None:
        records_epsilon = noisy_count * (epsilon_nano - for_count) / (NANO * curator.max_per_user)
        height = height_for(records_epsilon, n_features, clusters)
    threshold = noisy_count / PER_BOX
    tree, counts, variances = _grow(curator, n_features, split(for_tree, *[1] * height), threshold)
    leaves, for_leaves = tree.leaves, epsilon_nano - (curator.spent_nano - spent_before)
    counted = curator.counts(BoxCells(tree, leaves), for_leaves)
    noise = curator.variance(1, for_leaves)
    is_known = np.isfinite(variances[leaves])
    trust = np.ones(len(leaves))  # in the leaves' own count
    trust[is_known] = variances[leaves][is_known] / (variances[leaves][is_known] + noise)
    counts[leaves] = trust * counted + (1 - trust) * counts[leaves]
    variances[leaves] = trust * noise
    fitted, spread = fit_counts(tree, counts, variances)
    synopsis = Synopsis(tree.middles(leaves), tree.sides(leaves), fitted[leaves], spread[leaves])
    records = NoisyCount(noisy_count, curator.variance(1, for_count))
    return NoisyTree(synopsis, records, height, int(tree.levels.max()))


def height_for(records_epsilon: float, n_features: int, clusters: int) -> int:
    """maxH, at which the tree has room for as many boxes as Su's grid has cells, and 16 for each cluster.

    (The paper's (ln N) / d knows no epsilon, and is one level in eight features.)

    Parameters
    ----------
    records_epsilon : float
        N epsilon, by a noisy count.
    n_features : int
    clusters : int
    """
    d = n_features
    boxes = max(max(records_epsilon / THETA, 0.0) ** (2 * d / (2 + d)), BOXES_PER_CLUSTER * clusters)
    return min(ceil(log2(boxes) / halvings(d)), MAX_HEIGHT)


def halvings(n_features: int) -> int:
    """How often a box is halved from one counted level to the next: a quadtree in two features."""
    return 2 if n_features == 2 else 1


def _grow(
    curator: Curator, n_features: int, parts: tuple[int, ...], threshold: float
) -> tuple[BoxTree, NDArray[np.float64], NDArray[np.float64]]:
    """Count the boxes of one level after the other, and part those that hold more than the threshold.

    Returns
    -------
    BoxTree
    ndarray of shape (m,)
        Noisy counts; 0 where a box was not counted.
    ndarray of shape (m,)
        Variances of their noise; infinite where a box was not counted.
    """
    tree = whole_box(n_features)
    counts, variances = np.zeros(1), np.full(1, np.inf)
    frontier = np.zeros(1, dtype=np.int64)
    at_once = halvings(n_features)
    for level, part in enumerate(parts):
        if len(frontier) == 0:  # what is left is the leaves'
            break
        answers = curator.counts(BoxCells(tree, frontier), part)
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
