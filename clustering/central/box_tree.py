"""A tree of boxes, each halved along one feature: small cells where many records are, in any number of features.

What is halved is decided by answers that were paid for. Where counts of several levels are
known, least squares makes them fit one another.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustering.kernels.partitions import descend_boxes
from sfumato.specs import LATTICE


class BoxTree(NamedTuple):
    """Boxes by number; 0 is the whole box, and a box comes before its halves."""

    lows: NDArray[np.int64]  # (m, d), the first lattice place of each feature
    highs: NDArray[np.int64]  # (m, d), the first beyond
    features: NDArray[np.int64]  # (m,), halved along; -1 for a leaf
    first: NDArray[np.int64]  # (m,), the lower half, which the upper one follows; -1 for a leaf
    levels: NDArray[np.int64]  # (m,), how often halved

    @property
    def leaves(self) -> NDArray[np.int64]:
        return np.flatnonzero(self.first < 0)

    def middles(self, nodes: NDArray[np.int64]) -> NDArray[np.float64]:
        """Middles of boxes, in [0, 1]: (n, d)."""
        return np.asarray((self.lows[nodes] + self.highs[nodes]) / (2 * LATTICE), dtype=np.float64)

    def sides(self, nodes: NDArray[np.int64]) -> NDArray[np.float64]:
        """Lengths of boxes as shares of each feature's range: (n, d)."""
        return np.asarray((self.highs[nodes] - self.lows[nodes]) / LATTICE, dtype=np.float64)


@dataclass(frozen=True, eq=False)
class BoxCells:
    """Leaves of a tree as cells, in the order given; records of other leaves lie in none.

    Parameters
    ----------
    tree : BoxTree
    leaves : ndarray of shape (n_cells,), int64
    """

    tree: BoxTree
    leaves: NDArray[np.int64]

    @property
    def n_cells(self) -> int:
        return len(self.leaves)

    def index(self, points: NDArray[np.int32]) -> NDArray[np.int64]:
        tree = self.tree
        numbers = np.full(len(tree.first), -1, dtype=np.int64)
        numbers[self.leaves] = np.arange(len(self.leaves))
        along = np.maximum(tree.features, 0)[:, None]
        middles = np.take_along_axis((tree.lows + tree.highs) // 2, along, axis=1)[:, 0]
        cells = np.empty(len(points), dtype=np.int64)
        descend_boxes(points, tree.features, middles, tree.first, numbers, cells)
        return cells


def whole_box(n_features: int) -> BoxTree:
    """A tree that nothing has been halved of."""
    return BoxTree(
        lows=np.zeros((1, n_features), dtype=np.int64),
        highs=np.full((1, n_features), LATTICE, dtype=np.int64),
        features=np.array([-1], dtype=np.int64),
        first=np.array([-1], dtype=np.int64),
        levels=np.zeros(1, dtype=np.int64),
    )


def halve(tree: BoxTree, leaves: NDArray[np.int64], feature: int) -> BoxTree:
    """The tree with these leaves halved along a feature, where they are two lattice places long at least."""
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
    """Counts of all boxes that fit one another: the halves of each add up to it. Least squares, exactly.

    Weighted tree averaging (Hay et al. 2010, "Boosting the accuracy of differentially private
    histograms through consistency", section 4, with unequal variances): from the leaves up, a
    box's own count and its halves' sum are averaged by inverse variance; from the top down,
    what a box says differently from its halves is shared among them by their variances.

    Parameters
    ----------
    tree : BoxTree
    counts : ndarray of shape (m,)
    variances : ndarray of shape (m,)
        Of the counts' noise; infinite for a box that was not counted. Leaves are counted.

    Returns
    -------
    ndarray of shape (m,)
        Fitted counts.
    ndarray of shape (m,)
        Variances of a box's estimate from itself and what is below it: for a leaf, an upper
        bound of the fitted one's.
    """
    fitted, spread = counts.copy(), variances.copy()
    depth = int(tree.levels.max())
    split = [np.flatnonzero((tree.levels == level) & (tree.first >= 0)) for level in range(depth + 1)]
    for nodes in reversed(split):
        low, high = tree.first[nodes], tree.first[nodes] + 1
        below, noise = fitted[low] + fitted[high], spread[low] + spread[high]
        trust = noise / (noise + variances[nodes])  # in the box's own count; 0 where it has none
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
