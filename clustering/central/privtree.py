"""Trees of boxes that are halved along one feature at a time, and PrivTree, which decides the splits privately.

PrivTree is Zhang, Xiao and Xie 2016, "PrivTree: a differentially private algorithm for hierarchical
decompositions", algorithm 2, with two children per split (beta = 2), threshold theta = 0 and integer
arithmetic. Only the decisions are published; the number of records in a node is not.

A node v at depth h(v) with c(v) records is split if b(v) + Z > 0, with

    b(v) = max(-D, c(v) - D h(v)),   P(Z = z) proportional to r^|z|,   r = e^(-1/s),

D an integer and r^D <= 1/2. One record, present or absent, costs 3/s of pure epsilon. The proof is
their theorem 3.1; its tail argument for Laplace noise also holds for the geometric tail:

- Without the record, c(v) is less by 1 on the nodes of one path from the root, and equal elsewhere.
  All decisions off the path have equal probabilities. So have those on the path once both b(v) are
  at the floor -D. Let rho(x) = ln P(x + Z > 0) - ln P(x - 1 + Z > 0). A split on the path
  contributes at most rho(b(v)) >= 0. The leaf at its end contributes between -1/s and 0. In one
  direction the loss is therefore at most 1/s; in the other it is at most the sum of rho over the
  splits of the path.
- A shift of Z by 1 changes no probability by more than e^(1/s), hence rho(x) <= 1/s for all x.
- For x >= 1, P(x + Z > 0) = 1 - a r^x with a = 1/(1 + r). With -ln(1 - y) = sum over i of y^i/i,
  rho(x) = sum of (a^i/i) (r^(i(x-1)) - r^(ix)) = sum of r^(i(x-1)) (a^i/i) (1 - r^i)
  <= r^(x-1) rho(1) <= r^(x-1)/s.
- Let x(v) = c(v) - D h(v). It decreases by at least D from node to node of the path. x(v) is an
  integer, so the last node with x(v) > -D has x(v) >= 1 - D, the one before has at least 1, and the
  i-th before that has at least 1 + i D. The last contributes at most 1/s, the others at most
  r^(i D)/s <= 2^-i/s. The sum is below (1 + 1 + 1/2 + 1/4 + ...)/s = 3/s. Deeper nodes are at the
  floor with and without the record.

The last step needs D and the noise to be whole numbers of records. With finer values a node could lie
less than one record above the floor. A limit on depth or nodes is a function of earlier decisions, so
the nodes it excludes contribute nothing. For a user with up to B records, s = 3 B / epsilon: the loss
is B times that of one record.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustering.central.noise import discrete_laplace, representable
from clustering.kernels.cells import descend, descend_boxes
from sfumato.privacy.entropy import Entropy
from sfumato.specs import LATTICE


class BoxTree(NamedTuple):
    """Boxes by index. Box 0 is the whole box, and a box precedes its halves."""

    lows: NDArray[np.int64]  # (m, d), first lattice place along each feature
    highs: NDArray[np.int64]  # (m, d), first lattice place beyond the box
    features: NDArray[np.int64]  # (m,), feature along which the box is halved; -1 for a leaf
    first: NDArray[np.int64]  # (m,), index of the lower half; the upper half follows; -1 for a leaf
    levels: NDArray[np.int64]  # (m,), number of halvings from the whole box

    @property
    def leaves(self) -> NDArray[np.int64]:
        """Return the indices of the leaves."""
        return np.flatnonzero(self.first < 0)

    def middles(self, nodes: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the middles of boxes, in [0, 1]: (n, d)."""
        return np.asarray((self.lows[nodes] + self.highs[nodes]) / (2 * LATTICE), dtype=np.float64)

    def sides(self, nodes: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the side lengths of boxes as shares of each feature's range: (n, d)."""
        return np.asarray((self.highs[nodes] - self.lows[nodes]) / LATTICE, dtype=np.float64)

    def cells(self, leaves: NDArray[np.int64]) -> "BoxCells":
        """Return these leaves as cells."""
        along = np.maximum(self.features, 0)[:, None]
        middles = np.take_along_axis((self.lows + self.highs) // 2, along, axis=1)[:, 0]
        return BoxCells(self.features, middles, self.first, leaves)


@dataclass(frozen=True, eq=False)
class BoxCells:
    """Leaves of a tree of halved boxes as cells. A record beyond box 0 lies in a leaf at its border.

    Parameters
    ----------
    features : ndarray of shape (m,), int64
        Feature along which a box is halved; -1 for a leaf.
    middles : ndarray of shape (m,), int64
        First lattice place of the upper half.
    first : ndarray of shape (m,), int64
        Index of the lower half; the upper half follows. -1 for a leaf.
    leaves : ndarray of shape (n_cells,), int64
        The leaves that are cells, in this order. Records of other leaves lie in no cell.
    """

    features: NDArray[np.int64]
    middles: NDArray[np.int64]
    first: NDArray[np.int64]
    leaves: NDArray[np.int64]

    @property
    def n_cells(self) -> int:
        """Return the number of cells."""
        return len(self.leaves)

    def index(self, points: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return the cell of each record, or -1."""
        numbers = np.full(len(self.first), -1, dtype=np.int64)
        numbers[self.leaves] = np.arange(len(self.leaves))
        cells = np.empty(len(points), dtype=np.int64)
        descend_boxes(points, self.features, self.middles, self.first, numbers, cells)
        return cells


def whole_box(n_features: int) -> BoxTree:
    """Return the tree of one box, the whole one."""
    return BoxTree(
        lows=np.zeros((1, n_features), dtype=np.int64),
        highs=np.full((1, n_features), LATTICE, dtype=np.int64),
        features=np.array([-1], dtype=np.int64),
        first=np.array([-1], dtype=np.int64),
        levels=np.zeros(1, dtype=np.int64),
    )


def halve(tree: BoxTree, leaves: NDArray[np.int64], feature: int) -> BoxTree:
    """Return the tree with these leaves halved along a feature. Leaves shorter than two lattice places stay."""
    leaves = leaves[tree.highs[leaves, feature] - tree.lows[leaves, feature] >= 2]
    features, first = tree.features.copy(), tree.first.copy()
    features[leaves] = feature
    first[leaves] = len(first) + 2 * np.arange(len(leaves))
    lows, highs = np.repeat(tree.lows[leaves], 2, axis=0), np.repeat(tree.highs[leaves], 2, axis=0)
    middles = (tree.lows[leaves, feature] + tree.highs[leaves, feature]) // 2
    highs[0::2, feature] = middles
    lows[1::2, feature] = middles
    none = np.full(len(lows), -1, dtype=np.int64)
    return BoxTree(
        lows=np.concatenate([tree.lows, lows]),
        highs=np.concatenate([tree.highs, highs]),
        features=np.concatenate([features, none]),
        first=np.concatenate([first, none]),
        levels=np.concatenate([tree.levels, np.repeat(tree.levels[leaves] + 1, 2)]),
    )


def fit_counts(
    tree: BoxTree, counts: NDArray[np.float64], variances: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the least-squares fit of noisy counts in which the halves of each box add up to the box.

    Weighted tree averaging (Hay et al. 2010, "Boosting the accuracy of differentially private
    histograms through consistency", section 4, with unequal variances). From the leaves up, a box's
    own count and the sum of its halves are averaged by inverse variance. From the top down, the
    difference between a box and its halves is distributed over the halves by their variances.

    Parameters
    ----------
    tree : BoxTree
    counts : ndarray of shape (m,)
    variances : ndarray of shape (m,)
        Noise variances of the counts; infinite for a box without a count. Every leaf needs a count.

    Returns
    -------
    ndarray of shape (m,)
        Fitted counts.
    ndarray of shape (m,)
        Variance of each box's estimate from its own count and those below it. For a leaf this is an
        upper bound of the variance of the fitted count.
    """
    fitted, spread = counts.copy(), variances.copy()
    depth = int(tree.levels.max())
    split = [np.flatnonzero((tree.levels == level) & (tree.first >= 0)) for level in range(depth + 1)]
    for nodes in reversed(split):
        low, high = tree.first[nodes], tree.first[nodes] + 1
        below, noise = fitted[low] + fitted[high], spread[low] + spread[high]
        trust = noise / (noise + variances[nodes])  # weight of the box's own count; 0 if it has none
        own = np.where(np.isfinite(variances[nodes]), counts[nodes], 0.0)
        fitted[nodes] = trust * own + (1 - trust) * below
        spread[nodes] = (1 - trust) * noise
    for nodes in split:
        low, high = tree.first[nodes], tree.first[nodes] + 1
        short = fitted[nodes] - fitted[low] - fitted[high]
        to_low = spread[low] / (spread[low] + spread[high])
        fitted[low] += short * to_low
        fitted[high] += short * (1 - to_low)
    return fitted, spread


MAX_DEPTH = 60  # halvings from the whole box to a leaf, unless the lattice allows fewer
MAX_NODES = (1 << 16) - 1

LN_2 = Fraction(6_931_471_806, 10**10)  # rounded up

_BITS = LATTICE.bit_length() - 1  # possible halvings along one feature


def build_tree(is_split: NDArray[np.int64], n_features: int) -> BoxTree:
    """Build the tree of boxes from split decisions.

    Parameters
    ----------
    is_split : ndarray of shape (n_nodes,), int64
        1 for a node that is split, else 0, in breadth-first order; see `decide_splits`.
    n_features : int
    """
    tree = whole_box(n_features)
    start, end, depth = 0, 1, 0
    while start < end:
        parents = start + np.flatnonzero(is_split[start:end])
        tree = halve(tree, parents, depth % n_features)
        start, end, depth = end, end + 2 * len(parents), depth + 1
    return tree


def compute_decay(scale: Fraction) -> int:
    """Return D, the least integer with r^D <= 1/2 for noise of this scale, or the next integer."""
    t, s = representable(scale)
    return ceil(Fraction(t, s) * LN_2)


def decide_splits(points: NDArray[np.int32], scale: Fraction, entropy: Entropy) -> NDArray[np.int64]:
    """Decide which nodes are split. Only the curator calls this, after the charge.

    Parameters
    ----------
    points : ndarray of shape (n, d), int32
        Lattice places.
    scale : Fraction
        s = 3 B / epsilon; see the module docstring.
    entropy : Entropy

    Returns
    -------
    ndarray of shape (n_nodes,), int64
        1 for a node that is split, else 0. The root comes first, then level by level the halves of
        each parent in the order of their parents.
    """
    n, d = points.shape
    decay = compute_decay(scale)
    nodes = np.zeros(n, dtype=np.int32)
    counts = np.zeros(MAX_NODES, dtype=np.int64)
    counts[0] = n
    first_child = np.full(MAX_NODES, -1, dtype=np.int64)
    is_split = np.zeros(MAX_NODES, dtype=np.bool_)
    start, end = 0, 1  # nodes of the current level
    for depth in range(min(MAX_DEPTH, d * _BITS)):
        biased = np.maximum(-decay, counts[start:end] - decay * depth)
        splits = biased + discrete_laplace(scale, end - start, entropy) > 0
        splits &= np.cumsum(splits) <= (MAX_NODES - end) // 2
        is_split[start:end] = splits
        n_children = 2 * int(splits.sum())
        first_child[start:end][splits] = end + np.arange(0, n_children, 2)
        if n_children == 0:
            break
        descend(points, nodes, first_child, depth % d, _BITS - 1 - depth // d, counts)
        start, end = end, end + n_children
    return is_split[:end].astype(np.int64)
