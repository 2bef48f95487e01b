"""What the tree of halved cells tells of a person, exactly: the chance of its decisions, in closed form.

The law is that of `clustering.halving_tree`; it is written down here a second time, from its
definition, so that neither can be wrong alone.
"""

from collections.abc import Callable
from fractions import Fraction
from math import log1p

import numpy as np
from numpy.typing import NDArray

from audit.check import Check, Finding
from clustering import halving_tree
from clustering.central.box_tree import BoxCells, BoxTree
from sfumato.specs import LATTICE

CLAIM = "no decisions tell of a person more than they are charged"
SCALES = tuple(Fraction(*parts) for parts in ((3, 20), (3, 4), (3, 1), (7, 2), (30, 1), (300, 1)))
DEPTH = 12  # from where a count is at the floor with a record or without
ROUNDING = 1e-9  # of floats

_BITS = LATTICE.bit_length() - 1  # halvings of one feature


def chance_logs(biased: int, scale: Fraction) -> tuple[float, float]:
    """ln P(biased + Z > 0) and ln P(biased + Z <= 0), P(Z = z) proportional to e^(-|z|/scale).

    P(Z >= m) = r^m / (1 + r) for m >= 1, r = e^(-1/scale); the law is even.
    """
    step = float(1 / scale)
    ln_tail = -log1p(np.exp(-step))  # of 1 / (1 + r)
    if biased <= 0:
        above = ln_tail - step * (1 - biased)
        return above, log1p(-np.exp(above))
    below = ln_tail - step * biased
    return log1p(-np.exp(below)), below


def tree_loss(
    is_split: NDArray[np.int64], points: NDArray[np.int32], other: NDArray[np.int32], scale: Fraction
) -> float:
    """ln P(decisions | points) - ln P(decisions | other).

    Parameters
    ----------
    is_split : ndarray of shape (n_nodes,), int64
        An answer of `Curator.halving_tree`.
    points, other : ndarray of shape (n, d), int32
        Lattice places; of different lengths, it may be.
    scale : Fraction
        Of the noise.
    """
    tree = halving_tree.tree_of(is_split, points.shape[1])
    decay = halving_tree.decay_of(scale)
    counts = [_held(tree, places) for places in (points, other)]
    loss = 0.0
    for node in np.flatnonzero(_asked(tree, is_split) & (counts[0] != counts[1])):
        depth, outcome = int(tree.levels[node]), 0 if is_split[node] else 1
        here, there = (chance_logs(max(-decay, int(held[node]) - decay * depth), scale)[outcome] for held in counts)
        loss += here - there
    return loss


def _held(tree: BoxTree, points: NDArray[np.int32]) -> NDArray[np.int64]:
    """How many records each node holds."""
    leaves = tree.leaves
    counts = np.zeros(len(tree.first), dtype=np.int64)
    counts[leaves] = np.bincount(BoxCells(tree, leaves).index(points), minlength=len(leaves))
    for node in np.flatnonzero(tree.first >= 0)[::-1]:
        counts[node] = counts[tree.first[node]] + counts[tree.first[node] + 1]
    return counts


def _asked(tree: BoxTree, is_split: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which nodes noise was drawn for to any effect: none at the last depth, none of a level once its room is full."""
    d = tree.lows.shape[1]
    asked: NDArray[np.bool_] = tree.levels < min(halving_tree.MAX_DEPTH, _BITS * d)
    end = 0
    for level in range(int(tree.levels.max()) + 1):
        (nodes,) = np.nonzero(tree.levels == level)
        end += len(nodes)
        room = (halving_tree.MAX_NODES - end) // 2
        before = np.cumsum(is_split[nodes]) - is_split[nodes]
        asked[nodes] &= before < room
    return asked


def enumerated(decay: Callable[[Fraction], int] = halving_tree.decay_of) -> Finding:
    """What decisions tell of a record at the most, over all numbers of records along its path, against 3 / scale."""
    worst = (1.0, 0.0)
    n_cases = 0
    for scale in SCALES:
        most = 6 * halving_tree.decay_of(scale) + 3
        told, charged = dearest_path(scale, decay(scale), most), float(3 / scale)
        n_cases += most * DEPTH
        if told * worst[0] > worst[1] * charged:
            worst = (charged, told)
    charged, told = worst
    is_over = told > charged + ROUNDING
    why = f"decisions tell epsilon {told:.4g}, and {charged:.4g} is charged" if is_over else ""
    return Finding("curator: halving tree", CLAIM, "exact", n_cases, charged, told, not is_over, why)


def dearest_path(scale: Fraction, decay: int, most: int) -> float:
    """The largest |log likelihood ratio| of decisions along a path, with a record on it and without.

    Of the outcomes of a path one is fixed by how deep it is split. Counts never grow downwards,
    and are `most` at the root at the most; so the best sum from each depth on goes by the count.
    """
    logs = {x: chance_logs(x, scale) for x in range(-decay, most + 1)}

    def told(count: int, depth: int, outcome: int) -> float:
        with_it, without = (logs[max(-decay, held - decay * depth)][outcome] for held in (count, count - 1))
        return with_it - without

    split = [0.0] * (most + 1)  # the most that splits from here on tell: positive each
    ends = 0.0  # the most that a leaf tells: negative
    for depth in reversed(range(DEPTH)):
        best, here = 0.0, [0.0] * (most + 1)
        for count in range(1, most + 1):
            best = max(best, split[count])
            here[count] = told(count, depth, 0) + best
            ends = max(ends, -told(count, depth, 1))
        split = here
    return max(ends, *split)


CHECKS: tuple[Check, ...] = (Check("curator: halving tree, enumerated", lambda _: [enumerated()]),)
