"""Which clusters of a tree of bisections to keep, and bisecting over noisy cells: post-processing, at no cost."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustering.broadcast_centroids import spread_out
from clustering.central.cells import from_places
from clustering.central.synopsis import Synopsis
from clustering.phase_search import PublicWords
from clustering.weighted_kmeans import WeightedFit, weighted_kmeans
from sfumato.specs.central import Split


class Bisections(NamedTuple):
    """A tree whose every node was split in two, down to its leaves. Node 0 is everybody."""

    first: NDArray[np.int64]  # (m,), the first of a node's pair, which the second follows; -1 for a leaf
    squares: NDArray[np.float64]  # (m,), sum of squared distances from a node's centre; of node 0 not looked at


def choose_leaves(tree: Bisections, clusters: int, rule: Split) -> NDArray[np.int64]:
    """Nodes that are left when clusters are split one after the other until there are so many, by rising number.

    `largest_sse` splits the cluster of the largest sum of squares; `total_sse` that whose split
    leaves the least in all. One that has no pair is not split.
    """
    chosen = [0]
    while len(chosen) < clusters:
        can = [node for node in chosen if tree.first[node] >= 0]
        if not can:
            break
        node = max(can, key=lambda node: _worth(tree, node, rule))
        chosen.remove(node)
        chosen += [int(tree.first[node]), int(tree.first[node]) + 1]
    return np.array(sorted(chosen), dtype=np.int64)


def _worth(tree: Bisections, node: int, rule: Split) -> float:
    if node == 0:
        return np.inf
    pair = tree.squares[tree.first[node] : tree.first[node] + 2].sum() if rule == "total_sse" else 0.0
    return float(tree.squares[node] - pair)


def bisect_cells(synopsis: Synopsis, clusters: int, rule: Split, seed: int) -> NDArray[np.float64]:
    """Centres by bisecting the cells of positive count, each split by weighted 2-means; (k, d) in [0, 1].

    A trial of `total_sse` is made once for each cluster, and kept until it is wanted. Fewer
    centres than asked for where fewer cells are left; public, spread-out places where none is.
    """
    kept = synopsis.kept()
    if len(kept.counts) == 0:
        return from_places(spread_out(clusters, synopsis.middles.shape[1], seed))
    words = PublicWords(seed)

    def part(cells: NDArray[np.int64]) -> _Part:
        fit = weighted_kmeans(kept.middles[cells], kept.counts[cells], 1, words, restarts=1)
        return _Part(cells, fit, halves(cells) if rule == "total_sse" and len(cells) > 1 else None)

    def halves(cells: NDArray[np.int64]) -> WeightedFit:
        return weighted_kmeans(kept.middles[cells], kept.counts[cells], 2, words)

    parts = [part(np.arange(len(kept.counts)))]
    while len(parts) < clusters:
        can = [i for i, one in enumerate(parts) if len(one.cells) > 1]
        if not can:
            break
        i = max(can, key=lambda i: parts[i].worth)
        cells = parts[i].cells
        split = parts[i].halves or halves(cells)
        parts[i : i + 1] = [part(cells[split.labels == side]) for side in range(2)]
    return np.concatenate([one.whole.centres for one in parts])


class _Part(NamedTuple):
    cells: NDArray[np.int64]
    whole: WeightedFit  # its mean
    halves: WeightedFit | None  # the trial, where the rule needs one

    @property
    def worth(self) -> float:
        return self.whole.inertia - (self.halves.inertia if self.halves is not None else 0.0)
