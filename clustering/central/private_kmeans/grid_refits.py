"""Refits of the clusters of a grid to counts that are drawn again. They depend on query answers only."""

import numpy as np
from numpy.typing import NDArray

from clustering.central.private_kmeans.cell_gaps import count_in_cells
from clustering.central.private_kmeans.cell_weights import weigh_cells
from clustering.central.private_kmeans.gated_grid import (
    GridFit,
    ProblemSize,
    WeighedCells,
    keep_heavy,
)
from clustering.central.private_kmeans.two_level_grid import GridCounts
from clustering.centroids.partition_agreement import (
    NOISE,
    REFITS,
    PartitionAgreement,
    Population,
    compare_partitions,
    draw_laplace,
    draw_normal,
    refit,
)
from clustering.random import PublicWords


def agreement_of_grid(
    counts: GridCounts,
    size: ProblemSize,
    fit: GridFit,
    own: NDArray[np.float64],
    words: PublicWords,
    *,
    is_counted: bool = False,
    noise: float = 1.0,
) -> PartitionAgreement:
    """Return the agreement of the partitions of refits to counts with new noise.

    Parameters
    ----------
    counts : GridCounts
    size : ProblemSize
        As for the fit.
    fit : GridFit
        Its centres are the pieces if the clusters were counted.
    own : ndarray of shape (k, d)
        The released centres.
    words : PublicWords
    is_counted : bool
        Whether the clusters were counted. Refits count them again.
    noise : float
        Scale of the noise, relative to that of the counts.
    """
    heavy = keep_heavy(fit.cells.weights)
    population = Population(fit.cells.middles[heavy], fit.cells.weights[heavy])
    start = fit.centres if is_counted else own
    refits = []
    for _ in range(REFITS):
        drawn = redraw(counts, fit.cells.weights, words, noise)
        weights = weigh_cells(drawn, size.n_records, size.n_clusters, size.q)
        kept = keep_heavy(weights)
        centres = refit(Population(counts.middles[kept], weights[kept]), start, words)
        if is_counted:
            cells = WeighedCells(*(part[kept] for part in fit.cells._replace(weights=weights)))
            _, centres = count_in_cells(cells, centres)
        refits.append(centres)
    return compare_partitions("cells", population, own, refits)


def redraw(counts: GridCounts, weights: NDArray[np.float64], words: PublicWords, noise: float = 1.0) -> GridCounts:
    """Return counts of both levels around given weights, with new noise and sampling of records.

    Parameters
    ----------
    counts : GridCounts
    weights : ndarray of shape (n,)
        Expected counts.
    words : PublicWords
    noise : float
        Scale of the noise, relative to that of the counts.
    """
    parents, n_parts = counts.parents, counts.n_parts
    n_coarse = len(n_parts)
    scales, total_scales = NOISE * noise * counts.scales, NOISE * noise * counts.total_scales
    of_totals = total_scales * draw_laplace(words, n_coarse)
    parts = n_parts[parents]
    # the noise of a cell is a share of its total's noise, and a deviation from the mean of its coarse cell
    fine = np.maximum(scales**2 - (total_scales[parents] / parts) ** 2, 0.0) / np.maximum(1 - 1 / parts, 0.5)
    of_cells = np.sqrt(fine) * draw_laplace(words, len(parents))
    of_cells -= (np.bincount(parents, of_cells, n_coarse) / n_parts)[parents]
    people = weights + np.sqrt(weights) * draw_normal(words, len(weights))
    totals = np.bincount(parents, people, n_coarse) + of_totals
    cells = people + of_cells + (of_totals / n_parts)[parents]
    return counts._replace(counts=cells, totals=totals, scales=scales, total_scales=total_scales)
