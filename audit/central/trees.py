"""The exact privacy loss of a tree of halved cells: the probability of its decisions in closed form.

The distribution is that of `clustering.central.privtree`. It is implemented here a second time from its definition, so
that an error in one implementation is detected.
"""

from collections.abc import Callable
from fractions import Fraction
from math import log1p

import numpy as np
from numpy.typing import NDArray

from audit.checks.check import Check, Finding
from clustering.central import privtree
from clustering.central.privtree import BoxTree
from sfumato.specs import LATTICE

CLAIM = "the splits of a tree reveal at most the charged epsilon"
SCALES = tuple(Fraction(*parts) for parts in ((3, 20), (3, 4), (3, 1), (7, 2), (30, 1), (300, 1)))
DEPTH = 12  # at this depth, all biased counts have reached the lower limit
ROUNDING = 1e-9  # error of floats

_HALVINGS = LATTICE.bit_length() - 1  # per feature


def log_probabilities(biased: int, scale: Fraction) -> tuple[float, float]:
    """Return ln P(biased + Z > 0) and ln P(biased + Z <= 0), where P(Z = z) is proportional to e^(-|z|/scale).

    P(Z >= m) = r^m / (1 + r) for m >= 1, with r = e^(-1/scale). The distribution is symmetric.
    """
    step = float(1 / scale)
    ln_tail = -log1p(np.exp(-step))  # ln(1 / (1 + r))
    if biased <= 0:
        above = ln_tail - step * (1 - biased)
        return above, log1p(-np.exp(above))
    below = ln_tail - step * biased
    return log1p(-np.exp(below)), below


def compute_tree_loss(
    is_split: NDArray[np.int64], points: NDArray[np.int32], other: NDArray[np.int32], scale: Fraction
) -> float:
    """Return ln P(decisions | points) - ln P(decisions | other).

    Parameters
    ----------
    is_split : ndarray of shape (n_nodes,), int64
        An answer of `Curator.halving_tree`.
    points, other : ndarray of shape (n, d), int32
        Lattice places. The lengths may differ.
    scale : Fraction
        Scale of the noise.
    """
    tree = privtree.build_tree(is_split, points.shape[1])
    decay = privtree.compute_decay(scale)
    counts = [_count_records(tree, places) for places in (points, other)]
    loss = 0.0
    for node in np.flatnonzero(_find_noisy_nodes(tree, is_split) & (counts[0] != counts[1])):
        depth, outcome = int(tree.levels[node]), 0 if is_split[node] else 1
        here, there = (
            log_probabilities(max(-decay, int(n_records[node]) - decay * depth), scale)[outcome] for n_records in counts
        )
        loss += here - there
    return loss


def _count_records(tree: BoxTree, points: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the number of records in each node."""
    leaves = tree.leaves
    counts = np.zeros(len(tree.first), dtype=np.int64)
    counts[leaves] = np.bincount(tree.cells(leaves).index(points), minlength=len(leaves))
    for node in np.flatnonzero(tree.first >= 0)[::-1]:
        counts[node] = counts[tree.first[node]] + counts[tree.first[node] + 1]
    return counts


def _find_noisy_nodes(tree: BoxTree, is_split: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return the nodes with a split that depends on noise: none at the last depth, none of a level that is full."""
    d = tree.lows.shape[1]
    noisy: NDArray[np.bool_] = tree.levels < min(privtree.MAX_DEPTH, _HALVINGS * d)
    end = 0
    for level in range(int(tree.levels.max()) + 1):
        (nodes,) = np.nonzero(tree.levels == level)
        end += len(nodes)
        room = (privtree.MAX_NODES - end) // 2
        before = np.cumsum(is_split[nodes]) - is_split[nodes]
        noisy[nodes] &= before < room
    return noisy


def check_paths(decay: Callable[[Fraction], int] = privtree.compute_decay) -> Finding:
    """Compare the largest loss over all numbers of records along a record's path with 3 / scale."""
    worst = (1.0, 0.0)
    n_cases = 0
    for scale in SCALES:
        max_count = 6 * privtree.compute_decay(scale) + 3
        loss, charged = find_largest_loss(scale, decay(scale), max_count), float(3 / scale)
        n_cases += max_count * DEPTH
        if loss * worst[0] > worst[1] * charged:
            worst = (charged, loss)
    charged, loss = worst
    is_over = loss > charged + ROUNDING
    why = f"splits reveal epsilon {loss:.4g}, but {charged:.4g} was charged" if is_over else ""
    return Finding("curator: halving tree", CLAIM, "exact", n_cases, charged, loss, not is_over, why)


def find_largest_loss(scale: Fraction, decay: int, max_count: int) -> float:
    """Return the largest |log likelihood ratio| of the decisions along a path, with a record on it and without.

    A path has one outcome per depth at which it ends. Counts never increase downwards and are at most `max_count` at
    the root. Therefore, the best sum from a depth on depends on the count alone.
    """
    logs = {x: log_probabilities(x, scale) for x in range(-decay, max_count + 1)}

    def decision_loss(count: int, depth: int, outcome: int) -> float:
        with_it, without = (logs[max(-decay, n_records - decay * depth)][outcome] for n_records in (count, count - 1))
        return with_it - without

    split = [0.0] * (max_count + 1)  # largest loss of the splits from this depth on; each loss is positive
    ends = 0.0  # largest absolute loss of a leaf; each loss is negative
    for depth in reversed(range(DEPTH)):
        best, here = 0.0, [0.0] * (max_count + 1)
        for count in range(1, max_count + 1):
            best = max(best, split[count])
            here[count] = decision_loss(count, depth, 0) + best
            ends = max(ends, -decision_loss(count, depth, 1))
        split = here
    return max(ends, *split)


CHECKS: tuple[Check, ...] = (Check("curator: halving tree, enumeration", lambda _: [check_paths()]),)
