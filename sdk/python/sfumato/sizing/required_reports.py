"""Required reports and records of methods that estimate centroids, from public facts.

Forecasts and results share these rules.
"""

from math import ceil

from sfumato.model.precision import contrast_of
from sfumato.privacy.accounting import NANO, exp_epsilon
from sfumato.privacy.gaussian_privacy import rho_of
from sfumato.sizing.centroids import (
    FIRST_WEIGHT,
    centroid_shares,
    grid_kmeans_rounds,
    ldp_kmeans_rounds,
    sketched_reports,
)
from sfumato.sizing.rounds import precision_of, requires
from sfumato.specs import GridKmeans, LdpKmeans, NoisyFcm, PhaseSketch

SKETCHED_CLUSTERS = 4  # assumed number if a phase sketch estimates it
NOISY_SPREAD = 0.06  # spread s of a cluster of noisy vectors, as a share of a feature's range
STEADY_CELLS = 10  # reports per cell and cluster, in units of the mechanism's variance

# private_kmeans, over records
GRID_FEATURES = 4  # maximum number of features for a grid; with more, steps on records
MU_NEEDS_FEATURES = f"mu needs more than {GRID_FEATURES} features, where the job is one block: give epsilon"
COUNTING = (3, 97)  # parts of epsilon for the number of records and for the clusters

# u = N epsilon / d, the number of records in units of the noise of one coordinate of their sum
ONE_MEAN_BELOW = 20.0  # u below which one centre at the mean is better than several
CLUSTERS_BY_U = 0.15  # maximum number of distinguishable clusters, as a multiple of u

LEAST_RHO = 1_000_000  # pico-rho of the smallest block of queries with Gaussian noise
CLEAR_BLOCK = 25.0  # N epsilon / k below which clusters of such a block are mostly noise


def planned_features(n_features: int, n_categories: int) -> int:
    """Return the number of features by which a job over records is planned: each category counts as one.

    With categories it is at least five, because a grid of up to four features has no cells for categories.
    """
    return max(n_features + n_categories, GRID_FEATURES + 1) if n_categories else n_features


@requires(PhaseSketch)
def for_phase_sketch(params: PhaseSketch, n_features: int, expected_reports: int) -> float:  # noqa: ARG001 - a rule
    """Return the required reports of `phase_sketch`."""
    contrast = contrast_of(exp_epsilon(params.epsilon_nano))
    return sketched_reports(n_features, params.clusters or SKETCHED_CLUSTERS) / contrast**2


@requires(LdpKmeans)
def for_ldp_kmeans(params: LdpKmeans, n_features: int, expected_reports: int) -> float:
    """Return the required reports of `ldp_kmeans`."""
    last = ldp_kmeans_rounds(params, n_features, expected_reports)[-1]
    variance = precision_of(last.kind, last.n_symbols, params.epsilon_nano).spread_variance
    return ldp_kmeans_reports(variance, params.rounds, n_features, params.clusters)


@requires(GridKmeans)
def for_grid_kmeans(params: GridKmeans, n_features: int, expected_reports: int) -> float:
    """Return the required reports of `grid_kmeans`, for the grid of the expected reports."""
    (only,) = grid_kmeans_rounds(params, n_features, expected_reports)
    variance = precision_of(only.kind, only.n_symbols, params.epsilon_nano).zero_variance
    return grid_kmeans_reports(variance, only.n_symbols, params.clusters)


@requires(NoisyFcm)
def for_noisy_fcm(params: NoisyFcm, n_features: int, expected_reports: int) -> float:  # noqa: ARG001 - a rule
    """Return the required reports of `noisy_fcm`. The Laplace noise has the scale d/eps of a range, with d features."""
    return noisy_fcm_reports(2 * (n_features * NANO / params.epsilon_nano) ** 2, params.clusters)


def ldp_kmeans_reports(spread_variance: float, rounds: int, n_features: int, clusters: int) -> float:
    """Return the required reports of `ldp_kmeans`: n = 8 v d K^2 per round.

    Then the imbalance of a cluster of share 1/K, in one round and feature, has the standard error 1/2.
    """
    parts = sum(centroid_shares(rounds)) / FIRST_WEIGHT
    return 8 * spread_variance * parts * n_features * clusters**2


def grid_kmeans_reports(zero_variance: float, n_cells: int, clusters: int) -> float:
    """Return the required reports of `grid_kmeans`, N = 10 v k K: a centroid's error is 1/3 of its cluster's width."""
    return STEADY_CELLS * zero_variance * n_cells * clusters


def noisy_fcm_reports(noise_variance: float, clusters: int) -> float:
    """Return a lower bound of the required reports of `noisy_fcm`: K (v + s^2) / s^2.

    v is the noise variance of a feature and s = .06 a cluster's spread, both relative to the range.
    With fewer reports the centroids' errors would exceed a cluster's spread even if the cluster of
    every report were known. More reports can be insufficient too.
    """
    return clusters * (1 + noise_variance / NOISY_SPREAD**2)


def least_records(epsilon_nano: int, max_per_user: int = 1) -> int:
    """Return the number of records below which a job over two clusters is mostly noise, even at this whole budget."""
    return ceil(2 * CLEAR_BLOCK * max_per_user * NANO / epsilon_nano)


def usable_epsilon(epsilon_nano: int, max_per_user: int = 1) -> float:
    """Return the epsilon for clusters per record of a user. The noise grows with the records of one user."""
    return epsilon_nano * COUNTING[1] / sum(COUNTING) / NANO / max_per_user


def affords_block(epsilon_nano: int, delta_atto: int, max_per_user: int = 1) -> bool:
    """Return whether (epsilon, delta) covers a block of queries with Gaussian noise for `private_kmeans`.

    A smaller block would have parts of no whole pico-rho, or noise beyond the range of an answer.
    """
    return delta_atto > 0 and rho_of(epsilon_nano, delta_atto) >= max(LEAST_RHO, max_per_user**2)


def detectable_clusters(n_records: float, epsilon: float, n_features: int, clusters: int) -> int:
    """Return the number of clusters that `private_kmeans` without a delta searches for.

    Parameters
    ----------
    n_records : float
    epsilon : float
        `usable_epsilon`.
    n_features : int
    clusters : int
        Requested number.

    Returns
    -------
    int
        1..clusters. It is below `clusters` only above four features, if noise would hide the others.
    """
    if n_features <= GRID_FEATURES:
        return clusters
    u = n_records * epsilon / n_features
    return 1 if u < ONE_MEAN_BELOW else min(max(round(CLUSTERS_BY_U * u), 1), clusters)
