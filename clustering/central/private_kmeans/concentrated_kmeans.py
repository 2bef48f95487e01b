"""The routes of `private_kmeans` with Gaussian noise: projection, seeds, repair, then steps in all features."""

from collections.abc import Sequence
from math import inf, log, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from clustering.central.cells import NearestCells, ShellCells, WholeBox, from_places, to_places
from clustering.central.curator import Curator
from clustering.central.gaussian_block import ConcentratedBlock, Rho
from clustering.central.private_kmeans.count_tree import choose_rho, count_tree
from clustering.central.private_kmeans.counted_pieces import agreement_of_counts, merge_step, shrink_covariances
from clustering.central.private_kmeans.full_steps import full_steps
from clustering.central.private_kmeans.gated_grid import (
    LEVELS,
    CoarseCounts,
    FoundClusters,
    ProblemSize,
    count_coarse,
    count_fine,
    fit_grid,
    summarise_clusters,
)
from clustering.central.private_kmeans.grid_refits import agreement_of_grid
from clustering.central.private_kmeans.pure_kmeans import find_in_cells
from clustering.central.private_kmeans.repair import RADIUS, Clusters, Step, choose_radii, repair_round
from clustering.central.projection import ProjectedCells, Projection, make_projection
from clustering.central.queries import split
from clustering.centroids.partition_agreement import PartitionAgreement
from clustering.centroids.piece_population import Pieces, agreement_of_pieces, as_round
from clustering.centroids.weighted_kmeans import weighted_kmeans
from clustering.random import PublicWords
from sfumato.privacy.gaussian_privacy import PICO
from sfumato.sizing.required_reports import affords_block
from sfumato.specs import LATTICE

COUNT, NORMS, MEAN = 5, 10, 20  # per mille of the block's rho
COVARIANCE, COVARIANCE_UNPROJECTED = 62, 15  # per mille of the rest
REPAIR = (60, 290)  # least and largest share of the repair rounds, per mille of the rest
CLEAR_REPAIR = 600.0  # rho of repair rounds in a projection, times the squared records of a cluster, that suffices

PROJECTED_ABOVE = 10  # number of features above which clusters are sought in a projection
PROJECTED = 16  # coordinates of the projection

N_SHELLS, SHELL_GROWTH = 31, 1.15  # shells of the histogram of norms
SHELL_CLEAR = 2.0  # deviations above which a shell is counted
QUANTILE = 0.98  # share of records inside the radius of the mean
UNCLEAR_MEAN = 1.5  # squared norm of the mean, in expected squares of its noise, below which it is shrunk
WIDER, WIDER_UNPROJECTED = 1.15, 1.1  # radius of the products over that of the mean; see `find_ball`
ISOTROPIC = 0.3  # least variance along a direction, in mean variances
OUTSIDE = 0.02  # least variance outside the projection, as a share of the variance
BOX_SIDE, BOX_LIMIT = 1.75, 1.05  # half side of the tree's root in deviations, and its limit in radii

ROUNDS = 6
ROUND = (37, 26, 37)  # weights of a repair round's cost for sums, counts and products
STEPS = (2, 3, 5)  # weights of the steps in all features
STEP = (86, 10, 4)  # weights of a step's cost for sums, counts and squares
RESTARTS = 4
LONG = 2.5  # least variance along the longest axis of a cluster that may be two, in mean variances of the others
CLEAR_AXIS = 2.5  # least excess of a long axis, in standard deviations of an element times sqrt(m)

# up to four features
GRID_ONLY = 8  # largest number of clusters for which the grid alone is as good
REFINED_FROM = 110.0  # least q for which rounds may pay
ROUNDS_PAY = (  # each row suffices for rounds after a grid; see `hides_clusters`
    (1, 0.4, 0.7, 0.0),
    (1, 1.0, 0.8, 0.0),
    (1, 2.0, 0.65, 400.0),
    (4, inf, 0.5, 150.0),
)
AFTER_COARSE = (25, 55)  # weights of epsilon for the fine cells and for the block, after the coarse cells
GRID_ROUNDS = 5
LAST_ROUND = (85, 10, 5)  # weights of the last round's cost, which has no swap

_TINY = 1e-12


class Budget(NamedTuple):
    """The cost of a route."""

    epsilon_nano: int
    delta_atto: int


class Ball(NamedTuple):
    """A ball that contains most records, in feature ranges."""

    place: NDArray[np.int64]  # (1, d), lattice place of the centre
    radius: float
    n_records: float  # noisy number of all records, at least 1


class Subspace(NamedTuple):
    """The main directions of the records, in feature ranges."""

    projection: Projection
    variances: NDArray[np.float64]  # (m,), along each direction
    outside: float  # variance outside the directions


def may_refine(size: ProblemSize, budget: Budget, max_per_user: int) -> bool:
    """Return whether repair rounds after a grid may pay: with many clusters and a sufficient budget."""
    epsilon_nano = budget.epsilon_nano * LEVELS[1] // sum(LEVELS) * AFTER_COARSE[1] // sum(AFTER_COARSE)
    return (
        size.n_clusters > GRID_ONLY
        and size.q >= REFINED_FROM
        and affords_block(epsilon_nano, budget.delta_atto, max_per_user)
    )


def hides_clusters(coarse: CoarseCounts, size: ProblemSize, n_features: int) -> bool:
    """Return whether the cells of a grid would hide clusters that rounds find.

    They do if the records are in few coarse cells, and in four features, where cells are wide. Rounds share one noise
    scale, so clusters of very unequal size are worse in rounds. Then the coarse cells are unequal too. So the effective
    number of occupied coarse cells, which is the exponential of their entropy, must be near their number.

    A row of `ROUNDS_PAY` has the least number of features, a limit of the occupied coarse cells per cluster, the least
    effective number as a share of them, and the least q.

    Parameters
    ----------
    coarse : CoarseCounts
    size : ProblemSize
    n_features : int
    """
    counts = coarse.counts[coarse.counts > log(len(coarse.counts)) * sqrt(coarse.variance / 2)]
    if len(counts) == 0:
        return False
    shares = counts / counts.sum()
    even = float(np.exp(-(shares * np.log(shares)).sum())) / len(counts)
    per_cluster = len(counts) / size.n_clusters
    return any(
        n_features >= least_features and per_cluster < most and even >= least_even and size.q >= least_q
        for least_features, most, least_even, least_q in ROUNDS_PAY
    )


def find_by_grid_or_rounds(curator: Curator, size: ProblemSize, budget: Budget, words: PublicWords) -> FoundClusters:
    """Find clusters in up to four features by a grid, then by repair rounds where its cells would hide clusters.

    Privacy: epsilon, and delta with the rounds. The noisy coarse counts decide.
    """
    to_coarse, rest = split(budget.epsilon_nano, *LEVELS)
    coarse = count_coarse(curator, size, to_coarse)
    if not hides_clusters(coarse, size, curator.circles.n_along):
        return find_in_cells(count_fine(curator, size, coarse, rest), size, words)
    to_fine, to_block = split(rest, *AFTER_COARSE)
    share = (to_coarse + to_fine) / budget.epsilon_nano
    grid_size = size._replace(epsilon=size.epsilon * share)
    counts = count_fine(curator, grid_size, coarse, to_fine)
    fit = fit_grid(counts, grid_size, words)
    found = summarise_clusters(fit.cells, fit.centres)
    block = curator.open_block(to_block, budget.delta_atto)
    parts = split(block.left_pico, *[1] * GRID_ROUNDS)
    costs = [*(split_rho(part, ROUND) for part in parts[:-1]), split_rho(parts[-1], LAST_ROUND)]
    masses, spreads = np.maximum(found.masses, 1.0), np.maximum(found.spreads, 1 / LATTICE)
    d = block.n_features
    radii = choose_radii(spreads, block.moment_deviation(costs[0].sums) * sqrt(d), masses, RADIUS[0])
    start = Clusters(fit.centres, np.minimum(radii, 2 * block.domain.radius), masses, spreads)
    step = _repair(block, start, costs, size.n_clusters)
    agreement = agreement_of_grid(counts, grid_size, fit, step.clusters.centres, words, noise=share)
    return _describe(step, f"grid and {GRID_ROUNDS} concentrated rounds", agreement)


def find_in_projection(
    block: ConcentratedBlock, ball: Ball, clusters: int, words: PublicWords, *, is_counted: bool = False
) -> FoundClusters:
    """Find clusters in more than four features.

    Clusters are sought in a projection on the main directions of the records. Then their centres are
    estimated in all features. Where noise hides the main directions, the projection is nearly random.

    Privacy: all that is left of the block.

    Parameters
    ----------
    block : ConcentratedBlock
    ball : Ball
        See `find_ball`.
    clusters : int
        Number of clusters, or of the pieces from which they are counted.
    words : PublicWords
    is_counted : bool
        Whether to merge pieces before the steps in all features.
    """
    total = block.left_pico
    if clusters == 1:
        start = Clusters(from_places(ball.place), np.ones(1), np.array([ball.n_records]), np.array([ball.radius]))
        step = full_steps(block, start, _split_steps(block))
        return _describe(step, "concentrated one mean", PartitionAgreement("moments", 1.0, 0.0))
    subspace = _find_subspace(block, ball, total)
    projection = subspace.projection
    projected = block.project(projection)
    is_partial = projection.n_features < block.n_features
    to_tree = choose_rho(total, ball.n_records / clusters / block.max_per_user)
    records = ball.n_records / clusters / block.max_per_user if is_partial and not is_counted else 0.0
    end_of_repair = block.left_pico - to_tree - choose_repair_rho(total, records)  # repair gets what the tree leaves
    half_sides = np.minimum(BOX_SIDE * np.sqrt(subspace.variances), BOX_LIMIT * ball.radius)
    cells = count_tree(projected, half_sides, ball.n_records, clusters, to_tree)
    seeds = weighted_kmeans(cells.middles, cells.weights, clusters, words, RESTARTS).centres
    found = summarise_clusters(cells, seeds)
    if not is_partial:  # all directions: projected records have the same distances
        projected, seeds = block, projection.undo(seeds)
    start = Clusters(seeds, RADIUS[0] * found.spreads, np.maximum(found.masses, 1.0), found.spreads)
    costs = [split_rho(part, ROUND) for part in split(block.left_pico - end_of_repair, *[1] * ROUNDS)]
    repaired = _repair(projected, start, costs, clusters)
    pieces = shrink_covariances(repaired) if is_counted else repaired
    after, count = merge_step(pieces) if is_counted else (repaired.clusters, None)
    spreads = np.sqrt(after.spreads**2 + subspace.outside)
    start, first = after._replace(spreads=spreads), None
    if is_partial:
        start = start._replace(centres=projection.undo(after.centres))
        first = ProjectedCells(projection, NearestCells(projected.to_places(after.centres)))
    step = full_steps(block, start, _split_steps(block), first)
    if is_counted:
        agreement = agreement_of_counts(pieces, after.centres, words)
    else:
        cases = _describe_pieces(repaired, float(np.mean(step.centre_variances)))
        refits = [agreement_of_pieces("moments", each, after.centres, words) for each in cases]
        even = as_round(after.centres, after.masses, after.spreads, cases[0].centre_variances)
        refits.append(agreement_of_pieces("moments", even, even.centres, words))
        agreement = min(refits, key=lambda each: each.index)
    route = f"tree, {ROUNDS} rounds and {len(STEPS)} concentrated steps"
    return _describe(step, route, agreement)._replace(counted=count)


def choose_repair_rho(rho_pico: int, records: float) -> int:
    """Return the pico-rho of the repair rounds: less if clusters are large, so that more is left for all features.

    Parameters
    ----------
    rho_pico : int
        Rho of the block after its ball.
    records : float
        Noisy number of records of a mean cluster, divided by the maximum number of records per user. 0 for the
        largest share: if the clusters are counted, which needs the precision of the last round, or if there is no
        projection, so that the rounds move the centres in all features as well.
    """
    least, most = (rho_pico * share // 1000 for share in REPAIR)
    needed = CLEAR_REPAIR / max(records, _TINY) ** 2
    return max(least, min(int(min(needed, 1e6) * PICO), most))


def _describe_pieces(step: Step, centre_variance: float) -> list[Pieces]:
    """Return the moments of clusters after a round. A second case has two clusters in place of each long one.

    Noise would stretch the clusters in some direction, and k-means would divide them there each time. So the noisy
    covariances are used along the differences of the centres, and in other directions as far as they exceed the noise.
    """
    centres, covariances = step.clusters.centres, step.covariances
    k, m = centres.shape
    lengths, directions = np.linalg.eigh(covariances)
    others = lengths[:, :-1].mean(axis=1) if m > 1 else lengths[:, 0]
    noise = CLEAR_AXIS * sqrt(m) * step.covariance_noise
    doubled = np.flatnonzero((lengths[:, -1] > others + noise) & (lengths[:, -1] > LONG * others))
    if k <= m:
        away = centres - step.clusters.masses @ centres / step.clusters.masses.sum()
        axes = np.linalg.svd(away, full_matrices=False)[2][: k - 1]
        along, rest = axes.T @ axes, np.eye(m) - axes.T @ axes
        values, vectors = np.linalg.eigh(rest @ covariances @ rest)
        mean = values.sum(axis=1, keepdims=True) / (m - k + 1)
        is_long = values > mean + noise[:, None]
        left = np.where(is_long, 0.0, values).sum(axis=1, keepdims=True) / np.maximum(
            m - k + 1 - is_long.sum(axis=1, keepdims=True), 1
        )
        longer = np.where(is_long, values - left, 0.0)
        covariances = along @ covariances @ along + np.maximum(left, 0.0)[:, :, None] * rest
        covariances += (vectors * longer[:, None, :]) @ vectors.transpose(0, 2, 1)
    masses = step.clusters.masses
    one = Pieces(centres, masses, covariances, np.full(k, centre_variance))
    if len(doubled) == 0:
        return [one]
    axes = directions[doubled, :, -1]
    excess = lengths[doubled, -1] - others[doubled]
    aside, narrower = np.sqrt(excess)[:, None] * axes, covariances.copy()
    narrower[doubled] -= excess[:, None, None] * axes[:, :, None] * axes[:, None, :]
    halved = masses.copy()
    halved[doubled] /= 2
    nearer = centres.copy()
    nearer[doubled] -= aside
    two = Pieces(
        np.concatenate([nearer, centres[doubled] + aside]),
        np.concatenate([halved, halved[doubled]]),
        np.concatenate([narrower, narrower[doubled]]),
        np.full(k + len(doubled), centre_variance),
    )
    return [one, two]


def find_ball(block: ConcentratedBlock) -> Ball:
    """Find a ball that contains most records: from a histogram of norms, then from a mean of clipped records.

    Privacy: `COUNT`, `NORMS` and `MEAN` per mille of the block.
    """
    d = block.n_features
    to_count, to_norms, to_mean = (block.left_pico * share // 1000 for share in (COUNT, NORMS, MEAN))
    longest = block.domain.radius
    radii = longest * SHELL_GROWTH ** np.arange(1 - N_SHELLS, 1)
    middle = np.full(d, LATTICE // 2)
    shells = ShellCells(middle, np.rint(radii[:-1] * LATTICE).astype(np.int64))
    counts = block.counts(shells, to_norms).astype(np.float64)
    n_records = max(float(block.counts(WholeBox(), to_count)[0]), 1.0)  # shells add up to a noisier number
    clear = np.where(counts > SHELL_CLEAR * block.deviation(to_norms), counts, 0.0)
    inside = np.cumsum(clear) >= QUANTILE * clear.sum()
    radius = float(radii[np.argmax(inside)]) if clear.any() else longest
    answer = block.moments(middle[None], np.array([radius]), Rho(sums=to_mean), cells=WholeBox())
    mean = answer.sums[0] / n_records
    noise = d * (block.moment_deviation(to_mean) * radius / n_records) ** 2
    if (square := float(mean @ mean)) < UNCLEAR_MEAN * noise:
        mean *= max(0.0, 1 - noise / max(square, _TINY))
    further = radius * WIDER if d > PROJECTED_ABOVE else WIDER_UNPROJECTED * radius + float(np.linalg.norm(mean))
    return Ball(to_places(block.domain.confine(0.5 + mean[None])), min(further, 2 * longest), n_records)


def _find_subspace(block: ConcentratedBlock, ball: Ball, total: int) -> Subspace:
    """Find the main directions from the noisy products of residuals from the mean."""
    d = block.n_features
    is_partial = d > PROJECTED_ABOVE
    cost = total * COVARIANCE // 1000 if is_partial else total * COVARIANCE_UNPROJECTED // 1000
    radii = np.array([ball.radius])
    (products,) = block.moments(ball.place, radii, Rho(seconds=cost), "products", WholeBox()).seconds
    m = min(PROJECTED, d) if is_partial else d
    values, vectors = eigh(products, subset_by_index=[d - m, d - 1])
    total_square = max(float(np.trace(products)), _TINY)
    variance = total_square / ball.n_records
    squares = values[::-1]
    if is_partial:
        noise = block.moment_deviation(cost) * ball.radius**2 / sqrt(2)  # standard deviation of an off-diagonal element
        squares = estimate_squares_along(squares, total_square, d, noise)
    variances = np.maximum(squares / ball.n_records, max(ISOTROPIC * variance / d, _TINY))
    outside = max(variance - float(variances.sum()), OUTSIDE * variance) if is_partial else 0.0
    return Subspace(make_projection(ball.place[0], vectors[:, ::-1]), variances, outside)


def estimate_squares_along(
    eigenvalues: NDArray[np.float64], trace: float, n_features: int, noise: float
) -> NDArray[np.float64]:
    """Return the sums of squares along the first eigenvectors of a noisy matrix.

    Noise adds to the largest eigenvalues and turns their vectors away. Let theta be the excess of a direction's sum of
    squares over the mean of the others, n the number of features, and s the noise of an element. The eigenvalue then
    has an excess of theta + n s^2 / theta. Along its vector, the excess is (1 - n s^2 / theta^2) theta
    (Benaych-Georges and Nadakuditi 2011, section 3.1). An eigenvalue with an excess of at most 2 sqrt(n) s shows no
    direction. From there on, the mean of what is left is returned.

    Parameters
    ----------
    eigenvalues : ndarray of shape (m,)
        The largest ones, in descending order.
    trace : float
        Positive.
    n_features : int
        At least m.
    noise : float
        Standard deviation of an element off the diagonal.

    Returns
    -------
    ndarray of shape (m,)
        Not negative.
    """
    squares, left = np.empty(len(eigenvalues)), trace
    edge = 2 * sqrt(n_features) * noise
    for place, value in enumerate(eigenvalues):
        mean = left / (n_features - place)
        excess = float(value) - mean
        if excess <= edge:
            squares[place:] = mean
            break
        theta = (excess + sqrt(excess**2 - edge**2)) / 2
        squares[place] = mean + theta - n_features * noise**2 / theta
        left = max(left - float(squares[place]), 0.0)
    return squares


def _repair(block: ConcentratedBlock, start: Clusters, costs: Sequence[Rho], n_clusters: int) -> Step:
    """Run one repair round for each cost. The last one has no swap."""
    step = repair_round(block, start, costs[0], n_clusters, swap=len(costs) > 1)
    for number, rho in enumerate(costs[1:], start=2):
        step = repair_round(block, step.clusters, rho, n_clusters, swap=number < len(costs))
    return step


def split_rho(rho_pico: int, weights: tuple[int, int, int]) -> Rho:
    """Split the cost of a step between sums, counts and second moments."""
    return Rho(*split(rho_pico, *weights))


def _split_steps(block: ConcentratedBlock) -> list[Rho]:
    """Split what is left of a block over the steps in all features."""
    return [split_rho(part, STEP) for part in split(block.left_pico, *STEPS)]


def _describe(step: Step, route: str, agreement: PartitionAgreement) -> FoundClusters:
    found = step.clusters
    variances = np.full(len(step.counts), step.count_variance)
    centres = np.clip(found.centres, 0.0, 1.0)
    return FoundClusters(centres, step.centre_variances, step.counts, variances, found.spreads, route, agreement)
