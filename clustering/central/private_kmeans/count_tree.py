"""Noisy counts of boxes that are halved where many records lie, as seeds of `private_kmeans`."""

from math import log2
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustering.central.gaussian_block import ConcentratedBlock
from clustering.central.private_kmeans.gated_grid import WeighedCells
from clustering.central.privtree import BoxCells
from sfumato.privacy.gaussian_privacy import PICO
from sfumato.specs import LATTICE

# A level's counts shall have a noise of 1 / RECORDS of a mean cluster.
RECORDS = 4.0
LEVELS = (3, 9)  # smallest and largest number of levels
RHO_LEVELS = 3.5  # rho of the tree, in units of the rho that gives one level that noise
# Halvings of each level after the first, by the number of these levels.
HALVINGS: dict[int, tuple[int, ...]] = {
    2: (2, 2),
    3: (2, 2, 2),
    4: (2, 2, 2, 1),
    5: (2, 2, 1, 1, 1),
    6: (2, 1, 1, 1, 1, 1),
    7: (2, 1, 1, 1, 1, 1, 1),
    8: (1,) * 8,
}
SPLIT = 2.5  # standard deviations of a count above which a box is split
FINEST = 6  # a box is split if it has more than this part of a mean cluster
KEPT = 1.0  # standard deviations of a count above which a leaf is used


class Boxes(NamedTuple):
    """Boxes of one level."""

    nodes: NDArray[np.int64]  # (n,), indices in the tree
    lows: NDArray[np.float64]  # (n, d), in feature ranges
    highs: NDArray[np.float64]  # (n, d)


def halve(tree: BoxCells, boxes: Boxes) -> tuple[BoxCells, Boxes]:
    """Halve each box along its longest side. Return the new tree, with the halves as cells, and the halves."""
    n, m = len(boxes.nodes), len(tree.first)
    axes = (boxes.highs - boxes.lows).argmax(axis=1)
    each = np.arange(n)
    middles = np.floor((boxes.lows[each, axes] + boxes.highs[each, axes]) / 2 * LATTICE)
    features, places, first = tree.features.copy(), tree.middles.copy(), tree.first.copy()
    features[boxes.nodes], places[boxes.nodes], first[boxes.nodes] = axes, middles, m + 2 * each
    lows, highs = np.repeat(boxes.lows, 2, axis=0), np.repeat(boxes.highs, 2, axis=0)
    lows[2 * each + 1, axes] = highs[2 * each, axes] = middles / LATTICE
    nodes = m + np.arange(2 * n)
    grown = BoxCells(
        np.concatenate([features, np.full(2 * n, -1)]),
        np.concatenate([places, np.zeros(2 * n, dtype=np.int64)]),
        np.concatenate([first, np.full(2 * n, -1)]),
        nodes,
    )
    return grown, Boxes(nodes, lows, highs)


def choose_rho(rho_pico: int, records: float) -> int:
    """Return the pico-rho of the tree: 10 to 30 % of the block, more if clusters are small.

    Parameters
    ----------
    rho_pico : int
        Rho of the block.
    records : float
        Noisy number of records of a mean cluster, divided by the maximum number of records per user.
    """
    needed = RHO_LEVELS * (RECORDS / records) ** 2
    return max(rho_pico // 10, min(int(min(needed, 1e6) * PICO), 3 * rho_pico // 10))


def count_tree(
    block: ConcentratedBlock, half_sides: NDArray[np.float64], n_records: float, clusters: int, rho_pico: int
) -> WeighedCells:
    """Count records in boxes level by level, halving the boxes with many records.

    The first level halves the root about log2(clusters) - 1 times. A level's counts are made consistent
    with the counts of their parents. Levels that nothing reaches cost nothing.

    Parameters
    ----------
    block : ConcentratedBlock
    half_sides : ndarray of shape (d,)
        The root is the box of these half sides around the origin, in feature ranges.
    n_records : float
        Noisy number of records.
    clusters : int
    rho_pico : int
        Maximum cost.

    Returns
    -------
    WeighedCells
        Leaves with counts above the noise; the root if there is none.
    """
    least, most = LEVELS
    needed = 2 * rho_pico / PICO * (n_records / clusters / block.max_per_user / RECORDS) ** 2
    n_levels = int(min(max(needed, least), most))
    halvings = (max(1, round(log2(clusters)) - 1), *HALVINGS[n_levels - 1])
    rho_level = rho_pico // n_levels
    variance = block.deviation(rho_level) ** 2
    threshold = max(SPLIT * variance**0.5, n_records / (FINEST * clusters))

    minus, zero = np.array([-1]), np.zeros(1, dtype=np.int64)
    tree, boxes = BoxCells(minus, zero, minus, zero), Boxes(zero, -half_sides[None], half_sides[None])
    parents, parent_variance = np.array([n_records]), variance
    found: list[tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]] = []
    for level, times in enumerate(halvings):
        for _ in range(times):
            tree, boxes = halve(tree, boxes)
        counts = block.counts(tree, rho_level).astype(np.float64).reshape(-1, 1 << times)
        parts = counts.shape[1]
        weight = parts * variance / (parts * variance + parent_variance)
        counts = (counts + ((parents - counts.sum(axis=1)) / parts * weight)[:, None]).ravel()
        parent_variance = variance * (1 - weight / parts)
        split = (counts > threshold) & (level < n_levels - 1)
        kept = ~split & (counts > KEPT * variance**0.5)
        found.append((boxes.lows[kept], boxes.highs[kept], counts[kept]))
        parents, boxes = counts[split], Boxes(*(part[split] for part in boxes))
        if not split.any():
            break
    lows, highs, weights = (np.concatenate(parts) for parts in zip(*found, strict=True))
    if not len(weights):
        lows, highs, weights = -half_sides[None], half_sides[None], np.array([max(n_records, 1.0)])
    return WeighedCells(
        (lows + highs) / 2, ((highs - lows) ** 2).sum(axis=1) / 12, weights, np.full(len(weights), variance)
    )
