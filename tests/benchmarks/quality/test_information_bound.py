"""The information bound against known cases, and against random channels."""

from math import erfc, exp, inf, pi, sqrt, tanh

import numpy as np
import pytest

from benchmarks.quality.centroids.information_bound import least_rmse, report_information


def test_without_privacy_it_is_the_error_of_a_mean() -> None:
    assert least_rmse(10_000, 3, 4, 0.06, inf) == pytest.approx(0.06 * sqrt(4 / 10_000))
    assert least_rmse(10_000, 3, 4, 0.06, 30.0) == pytest.approx(0.06 * sqrt(4 / 10_000))


@pytest.mark.parametrize("d", [1, 5])
def test_a_sign_is_optimal_for_one_cluster_at_a_small_epsilon(d: int) -> None:
    # One bit of randomised response on the sign of x - mu has the information (2/pi) tanh^2(eps/2) / s^2.
    epsilon, s = 0.02, 0.1
    sign = 2 / pi * tanh(epsilon / 2) ** 2 / s**2
    assert report_information(d, 1, s, epsilon) == pytest.approx(sign, rel=0.01)
    assert least_rmse(50, d, 1, s, epsilon) == pytest.approx(sqrt(d / (50 * sign)), rel=0.01)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_a_sign_never_exceeds_the_bound(epsilon: float) -> None:
    sign = 2 / pi * tanh(epsilon / 2) ** 2 / 0.06**2
    # One cluster; then four clusters, each with a quarter of the people and a sign of its own.
    assert report_information(4, 1, 0.06, epsilon) >= sign
    assert report_information(4, 4, 0.06, epsilon) >= sign / 4


@pytest.mark.parametrize("clusters", [2, 4])
def test_one_threshold_for_all_clusters_does_not_exceed_the_bound(clusters: int) -> None:
    e = exp(2.0) - 1
    alike = [
        (e * exp(-tau * tau / 2) / sqrt(2 * pi) / (1 + e * erfc(tau / sqrt(2)) / 2)) ** 2 / clusters
        for tau in np.linspace(-1, 4, 501)
    ]
    bound = report_information(9, clusters, 1.0, 2.0)
    assert max(alike) <= bound * (1 + 1e-9)
    # A threshold in one cluster alone is part of the search.
    lone = max(
        (e * exp(-tau * tau / 2) / sqrt(2 * pi) / clusters / (1 + e * erfc(tau / sqrt(2)) / 2 / clusters)) ** 2
        for tau in np.linspace(-1, 4, 501)
    )
    assert lone <= bound * (1 + 1e-9)


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 2.5])
def test_no_random_channel_exceeds_the_bound(epsilon: float) -> None:
    """Compare channels with columns 1 or e^eps over two overlapping clusters on a line, computed exactly."""
    s, means = 0.1, np.array([0.35, 0.65])
    grid = np.linspace(-0.3, 1.3, 801)
    density = np.exp(-(((grid - means[:, None]) / s) ** 2) / 2) / (s * sqrt(2 * pi)) / 2 * (grid[1] - grid[0])
    slopes = density * (grid - means[:, None]) / s**2  # derivative of a point's probability by each mean
    rng = np.random.default_rng(7)
    bound = report_information(1, 2, s, epsilon)
    most = 0.0
    for _ in range(300):
        edges = np.sort(rng.random(rng.integers(1, 4))) * 1.2 - 0.1
        inside = np.searchsorted(edges, grid) % 2
        channel = np.where(np.stack([inside, 1 - inside]) == 1, exp(epsilon), 1.0) / (1 + exp(epsilon))
        chances = channel @ density.sum(axis=0)
        most = max(most, float((((channel @ slopes.T) ** 2).sum(axis=1) / chances).sum()))
    assert 0.4 * bound < most <= bound


def test_it_falls_with_reports_and_epsilon_and_rises_with_features() -> None:
    by_epsilon = [least_rmse(1000, 4, 4, 0.06, epsilon) for epsilon in (0.25, 0.5, 1, 2, 4, 8)]
    assert by_epsilon == sorted(by_epsilon, reverse=True)
    assert least_rmse(4000, 4, 4, 0.06, 1.0) == pytest.approx(by_epsilon[2] / 2)
    assert least_rmse(1000, 8, 4, 0.06, 1.0) == pytest.approx(by_epsilon[2] * sqrt(2))
