"""How many reports centroids need, by public facts: what a forecast says beforehand and a result says after."""

from sfumato.accounting import NANO, exp_epsilon, parse_epsilon
from sfumato.precision import contrast_of
from sfumato.sizing.centroids import (
    FIRST_WEIGHT,
    centroid_shares,
    of_grid_kmeans,
    of_ldp_kmeans,
    of_noisy_fcm,
    sketched_reports,
)
from sfumato.sizing.rounds import precision_of
from sfumato.specs import GridKmeans, LdpKmeans, NoisyFcm, PhaseSketch

SKETCHED_CLUSTERS = 4  # taken to be there where a sketch counts them
NOISY_SPREAD = 0.06  # s of a cluster among noisy vectors, as a share of a feature's range
STEADY_CELLS = 10  # reports that a cell and cluster take, over the mechanism's variance

Centroids = PhaseSketch | LdpKmeans | GridKmeans | NoisyFcm


def enough_reports(params: Centroids, n_features: int, expected_reports: int) -> float:
    """From how many reports on a result is not flagged `insufficient_reports`.

    `grid_kmeans` takes more cells where it expects more reports, and then needs more: this is
    what the grid for `expected_reports` needs.

    Raises
    ------
    InvalidSpec
        What the algorithm cannot take.
    """
    epsilon_nano = parse_epsilon(params.epsilon)
    if isinstance(params, PhaseSketch):
        contrast = contrast_of(exp_epsilon(epsilon_nano))
        return sketched_reports(n_features, params.clusters or SKETCHED_CLUSTERS) / contrast**2
    if isinstance(params, LdpKmeans):
        last = of_ldp_kmeans(params, n_features, expected_reports)[-1]
        variance = precision_of(last.kind, last.n_symbols, epsilon_nano).spread_variance
        return leaning_reports(variance, params.rounds, n_features, params.clusters)
    if isinstance(params, GridKmeans):
        (only,) = of_grid_kmeans(params, n_features, expected_reports)
        variance = precision_of(only.kind, only.n_symbols, epsilon_nano).zero_variance
        return steady_reports(variance, only.n_symbols, params.clusters)
    of_noisy_fcm(params, n_features, 1)  # refuses what cannot be
    # Laplace noise of K/eps of a range, K being the number of features
    return noisy_reports(2 * (n_features * NANO / epsilon_nano) ** 2, params.clusters)


def leaning_reports(spread_variance: float, rounds: int, n_features: int, clusters: int) -> float:
    """`ldp_kmeans`: the balance of an even share, in one round and feature, has a standard error of a half.

    n = 8 v d K^2 reports a round.
    """
    parts = sum(centroid_shares(rounds)) / FIRST_WEIGHT
    return 8 * spread_variance * parts * n_features * clusters**2


def steady_reports(zero_variance: float, n_cells: int, clusters: int) -> float:
    """`grid_kmeans`: N = 10 v k K, where a centroid's noise is a third of its cluster's width."""
    return STEADY_CELLS * zero_variance * n_cells * clusters


def noisy_reports(noise_variance: float, clusters: int) -> float:
    """`noisy_fcm`: K (v + s^2) / s^2, with v a feature's noise and s = .06 a cluster's spread, both in its range.

    With fewer the centroids would be known to no better than a cluster's own spread even if
    every report came with the name of its cluster, which it does not: more may be too few too.
    """
    return clusters * (1 + noise_variance / NOISY_SPREAD**2)
