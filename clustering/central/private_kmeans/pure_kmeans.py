"""The routes of `private_kmeans` with pure epsilon: k-means on noisy cells, or Lloyd steps above four features."""

from collections.abc import Sequence
from fractions import Fraction
from math import sqrt
from typing import NamedTuple

import numpy as np

from clustering.central.curator import Curator
from clustering.central.noise import laplace_variance
from clustering.central.private_kmeans.cell_errors import find_cell_errors
from clustering.central.private_kmeans.cell_gaps import count_in_cells
from clustering.central.private_kmeans.cluster_count import (
    ClusterCount,
    NoisyClusters,
    count_clusters,
    merge_pieces,
)
from clustering.central.private_kmeans.gated_grid import (
    FoundClusters,
    ProblemSize,
    WeighedCells,
    count_grid,
    fit_grid,
    summarise_clusters,
)
from clustering.central.private_kmeans.grid_refits import agreement_of_grid
from clustering.central.private_kmeans.private_lloyd import LloydFit, LloydStart, private_lloyd
from clustering.central.private_kmeans.two_level_grid import GridCounts
from clustering.central.privtree import build_tree
from clustering.central.queries import Shares, split
from clustering.centroids.piece_population import agreement_of_spreads
from clustering.centroids.weighted_kmeans import weighted_kmeans
from clustering.random import PublicWords
from sfumato.model.precision import Verdict
from sfumato.privacy.accounting import NANO
from sfumato.sizing.required_reports import ONE_MEAN_BELOW

TREE = (3, 2)  # weights of epsilon for the tree's splits and for the counts of its leaves
STEP = (17, 2, 1)  # weights of a step's cost for sums, counts and sizes

# u = N epsilon / d
U_PER_STEP = 10.0  # u per cluster for which one more step pays
U_PER_PIECE = 20.0  # u per piece if the clusters are counted
PIECES = (2, 1)  # weights of epsilon for the pieces and for the clusters of merged pieces
STEPS_SHARE = {1: 65, 2: 75, 3: 75, 4: 70, 5: 70}  # percent of epsilon for that number of steps

# from four steps on
WIDE_FROM, WIDE_STEPS = 4, 3  # number of steps from which the first ones have more centres, and their number
WIDER = 1.5  # centres of these steps over clusters
GROWTH = (100, 115, 132, 152, 175)  # weights of the steps' costs
EARLY_STEP = (14, 5, 1)  # replaces STEP before the last step
COUNT_PRIOR = 0.5  # prior deviation of the counts of their clusters, in mean clusters


class StepPlan(NamedTuple):
    """The division of epsilon between seeds and steps."""

    to_tree: int  # nano-epsilon; 0 for one centre, which needs no seeds
    parts: Sequence[Shares]  # cost of each step
    n_wide: int = 0  # number of first steps with more centres than clusters

    @property
    def route(self) -> str:
        """Return the plan in words, for the model's diagnostics."""
        if self.to_tree == 0:
            return "one mean"
        return f"tree and {len(self.parts)} step{'s' * (len(self.parts) > 1)}"


def find_by_grid(
    curator: Curator, size: ProblemSize, epsilon_nano: int, words: PublicWords, *, is_counted: bool = False
) -> FoundClusters:
    """Find clusters in up to four features, by k-means on the cells of a grid.

    If `is_counted`, the size has the number of pieces from which the clusters are counted.

    Privacy: `epsilon_nano`, pure.
    """
    return find_in_cells(count_grid(curator, size, epsilon_nano), size, words, is_counted=is_counted)


def find_in_cells(
    counts: GridCounts, size: ProblemSize, words: PublicWords, *, is_counted: bool = False
) -> FoundClusters:
    """Find clusters by k-means on counted cells. It depends on the counts only."""
    fit = fit_grid(counts, size, words)
    (centres, cells), count = fit, None
    if is_counted:
        count, centres = count_in_cells(cells, centres)
    found = summarise_clusters(cells, centres)
    agreement = agreement_of_grid(counts, size, fit, centres, words, is_counted=is_counted)
    # Records lie along the features, so that no noise moves a centre towards the middle of a circle.
    variances = found.centre_variances * (centres.shape[1] / len(counts.coarse_shape))
    errors = find_cell_errors(counts, cells, centres, variances, size.q)
    return FoundClusters(
        centres, variances, found.masses, found.mass_variances, found.spreads, "grid", agreement, count, errors
    )


def find_by_steps(curator: Curator, size: ProblemSize, epsilon_nano: int, words: PublicWords) -> FoundClusters:
    """Find clusters in more than four features, by noisy Lloyd steps.

    Privacy: `epsilon_nano`, pure.
    """
    plan = plan_steps(size, epsilon_nano, curator.n_features)
    return _describe(_run_plan(curator, size, plan, words), plan.route, words, None)


def count_by_steps(curator: Curator, size: ProblemSize, epsilon_nano: int, words: PublicWords) -> FoundClusters:
    """Find clusters in more than four features, and their number.

    Noisy Lloyd steps find more pieces than there are clusters. Steps from the merged pieces follow. Noise
    of so many features hides directions, so a piece counts as equally wide in all of them, and the number
    is uncertain at best.

    Parameters
    ----------
    curator : Curator
    size : ProblemSize
        Its number of clusters is the maximum number of pieces.
    epsilon_nano : int
        Total cost, pure.
    words : PublicWords
    """
    d = curator.n_features
    n_pieces = int(min(max(size.n_records * size.epsilon / d / U_PER_PIECE, 1), size.n_clusters))
    to_pieces, to_steps = split(epsilon_nano, *PIECES)
    size = size._replace(n_clusters=n_pieces)
    plan = plan_steps(size, to_pieces, d)
    fit = _run_plan(curator, size, plan, words)
    variances = np.full(len(fit.counts), fit.count_variance)
    widths = (fit.spreads**2 / d)[:, None, None] * np.eye(d)
    count = count_clusters(NoisyClusters(fit.centres, d * fit.centre_variances, fit.counts, variances, widths))
    merged = merge_pieces(count, fit.centres, np.maximum(fit.counts, 1.0), fit.spreads)
    more = plan_steps(size._replace(n_clusters=count.n_clusters), to_steps, d)
    parts = _split_steps(to_steps, len(more.parts))
    fit = private_lloyd(curator, LloydStart(merged.centres, merged.spreads, merged.masses), parts, words)
    return _describe(fit, f"{plan.route}, merged, {len(parts)} more", words, count._replace(best=Verdict.UNCERTAIN))


def _run_plan(curator: Curator, size: ProblemSize, plan: StepPlan, words: PublicWords) -> LloydFit:
    n_starts = round(WIDER * size.n_clusters) if plan.n_wide else size.n_clusters
    start = _start_at_middle(curator, size) if plan.to_tree == 0 else _start_at_tree(curator, n_starts, plan, words)
    if plan.n_wide:
        wide = private_lloyd(curator, start, plan.parts[: plan.n_wide], words)
        start = merge_clusters(wide, size.n_clusters, words)
    return private_lloyd(curator, start, plan.parts[plan.n_wide :], words)


def _describe(fit: LloydFit, route: str, words: PublicWords, count: ClusterCount | None) -> FoundClusters:
    variances = np.full(len(fit.counts), fit.count_variance)
    masses = np.maximum(fit.counts, 1.0)
    agreement = agreement_of_spreads(fit.centres, masses, fit.spreads, fit.centre_variances, words)
    return FoundClusters(fit.centres, fit.centre_variances, fit.counts, variances, fit.spreads, route, agreement, count)


def plan_steps(size: ProblemSize, epsilon_nano: int, n_features: int) -> StepPlan:
    """Divide epsilon between seeds and steps; the number of records decides how many steps.

    Raises
    ------
    InvalidSpec
        Epsilon is too small to be divided.
    """
    u = size.n_records * size.epsilon / n_features
    n_steps = min(max(round(u / size.n_clusters / U_PER_STEP), 1), max(STEPS_SHARE))
    if size.n_clusters == 1:
        return StepPlan(0, _split_steps(epsilon_nano, 1 if u < ONE_MEAN_BELOW else n_steps))
    to_tree, to_steps = split(epsilon_nano, 100 - STEPS_SHARE[n_steps], STEPS_SHARE[n_steps])
    return StepPlan(to_tree, _split_steps(to_steps, n_steps), WIDE_STEPS if n_steps >= WIDE_FROM else 0)


def _split_steps(cost: int, n_steps: int) -> Sequence[Shares]:
    shares = [STEP] * n_steps if n_steps < WIDE_FROM else [EARLY_STEP] * (n_steps - 1) + [STEP]
    growth = GROWTH[:n_steps] if n_steps >= WIDE_FROM else (1,) * n_steps
    parts = split(cost, *(weight * share for weight, step in zip(growth, shares, strict=True) for share in step))
    return [Shares(*parts[3 * t : 3 * t + 3]) for t in range(n_steps)]


def merge_clusters(fit: LloydFit, n_clusters: int, words: PublicWords) -> LloydStart:
    """Merge clusters into fewer by k-means on their centres, with counts shrunk to their mean by their noise.

    Parameters
    ----------
    fit : LloydFit
    n_clusters : int
    words : PublicWords
    """
    mean = max(float(fit.counts.mean()), 1.0)
    trust = (COUNT_PRIOR * mean) ** 2 / ((COUNT_PRIOR * mean) ** 2 + fit.count_variance)
    weights = np.maximum(mean + (fit.counts - mean) * trust, 1.0)
    merged = weighted_kmeans(fit.centres, weights, n_clusters, words)
    apart = ((fit.centres - merged.centres[merged.labels]) ** 2).sum(axis=1)
    squares = np.bincount(merged.labels, weights * (fit.spreads**2 + apart), len(merged.centres))
    return LloydStart(merged.centres, np.sqrt(squares / merged.masses), merged.masses)


def _start_at_middle(curator: Curator, size: ProblemSize) -> LloydStart:
    """Start one centre at the middle of the box. The steps move it to the mean of all records."""
    d = curator.n_features
    spread = min(sqrt(d / 12), curator.domain.radius)
    return LloydStart(np.full((1, d), 0.5), np.array([spread]), np.array([size.n_records]))


def _start_at_tree(curator: Curator, n_starts: int, plan: StepPlan, words: PublicWords) -> LloydStart:
    """Start centres by k-means on the leaves of a PrivTree."""
    cells = _count_leaves(curator, plan.to_tree)
    fit = weighted_kmeans(cells.middles, cells.weights, n_starts, words)
    clusters = summarise_clusters(cells, fit.centres)
    spreads = np.minimum(clusters.spreads, curator.domain.radius)
    return LloydStart(curator.domain.confine(fit.centres), spreads, clusters.masses)


def _count_leaves(curator: Curator, epsilon_nano: int) -> WeighedCells:
    """Return the leaves of a PrivTree with their positive noisy counts."""
    to_tree, to_counts = split(epsilon_nano, *TREE)
    tree = build_tree(curator.halving_tree(to_tree), curator.n_features)
    leaves = tree.leaves
    counts = curator.counts(tree.cells(leaves), to_counts).astype(np.float64)
    scale = Fraction(curator.max_per_user * NANO, to_counts)
    kept = counts > 0
    if not kept.any():  # no positive count: use all leaves with equal weights
        kept[:], counts[:] = True, 1.0
    noise = np.full(int(kept.sum()), laplace_variance(scale))
    variances = (tree.sides(leaves[kept]) ** 2).sum(axis=1) / 12
    return WeighedCells(tree.middles(leaves[kept]), variances, counts[kept], noise)
