"""Test each entry of docs/errata.md on Zhang et al. 2025: the printed form fails, and its replacement holds."""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from clustering.centroids.fuzzy_cmeans import Rule, fuzzy_c_means
from clustering.kernels.fuzzy import MIXED, fuzzy_step


def mixed(length, n_features, sigma=1.0):
    """Return f(l) of the implemented distance, with negligible rounding."""
    point, centre = np.zeros((1, n_features)), np.zeros((1, n_features))
    point[0, 0] = length
    sums = np.empty_like(centre)
    return fuzzy_step(point, centre, MIXED, 2.0, sigma, 1e-12, sums, sums.copy(), np.empty(1))


def printed_distance(length, n_features):
    """Return the distance of eq. (12)."""
    return length**2 + 2 / np.sqrt(n_features) * length + 2 * np.log(length**2)


def printed_centre(points, centre, pulls):
    """Return the centre of eq. (22), with a case for each coordinate."""
    root = np.sqrt(points.shape[1]) / points.shape[1]
    sign = np.where(points > centre, root, -2 * root)
    return (pulls @ (points + 2 / points + sign)) / (pulls @ (1 - 2 / points**2))


def of_eq_5(length, spread, n_features):
    """Return a report's term in eq. (5), without the constants."""
    k = n_features
    return k * np.log(spread) + length**2 / (2 * spread**2) + k * np.log(2 * spread) + length / spread


class TestDensity:
    @pytest.mark.parametrize("n_features", [1, 3])
    def test_equation_5_is_not_the_likelihood_of_equation_4(self, n_features):
        """The two differ by more than a constant."""
        k, half = n_features, 0.5

        def of_eq_4(length, spread):
            normal = (2 * np.pi) ** (-k / 2) * spread**-k * np.exp(-(length**2) / (2 * spread**2))
            laplace = (2 * spread) ** -k * np.exp(-length / spread)
            return -np.log(half * normal + half * laplace)

        gaps = [of_eq_5(length, spread, k) - of_eq_4(length, spread) for length in (0.1, 3.0) for spread in (0.5, 4.0)]
        assert max(gaps) - min(gaps) > 1

    @pytest.mark.parametrize(("n_features", "holds"), [(1, True), (2, False), (4, False), (16, False)])
    def test_lemma_1_holds_for_one_feature_only(self, n_features, holds):
        length = 2.0
        best = minimize_scalar(
            lambda s: of_eq_5(length, s, n_features), bounds=(1e-3, 20), method="bounded", options={"xatol": 1e-10}
        ).x
        assert bool(best == pytest.approx(length / np.sqrt(n_features), rel=1e-5)) is holds

    @pytest.mark.parametrize("n_features", [1, 2, 4, 16])
    def test_the_spread_taken_here_is_the_best_one(self, n_features):
        """The density is sigma^-K exp(-l^2/2 sigma^2 - l/sigma)."""
        k, length = n_features, 7.0
        kappa = (1 + np.sqrt(1 + 4 * k)) / (2 * k)
        best = minimize_scalar(
            lambda s: k * np.log(s) + length**2 / (2 * s**2) + length / s,
            bounds=(1e-3, 50),
            method="bounded",
            options={"xatol": 1e-10},
        ).x
        assert best == pytest.approx(kappa * length, rel=1e-5)


class TestDistance:
    @pytest.mark.parametrize("n_features", [1, 4, 9])
    def test_equation_10_jumps_where_its_cases_meet(self, n_features):
        inside = 1 + 2 * np.sqrt(n_features) / n_features
        outside = 2 * np.log(1.0)
        assert inside - outside > 1

    def test_equation_12_is_negative_near_a_centre_and_without_bound(self):
        assert printed_distance(0.5, 4) < 0
        assert printed_distance(1e-6, 4) < -50

    @pytest.mark.parametrize("n_features", [1, 4, 9])
    def test_the_distance_here_is_nought_at_a_centre_rises_and_has_no_corner(self, n_features):
        lengths = np.linspace(1e-4, 30, 60_001)
        values = np.array([mixed(length, n_features) for length in lengths])
        slopes = np.diff(values) / np.diff(lengths)
        assert mixed(1e-9, n_features) == pytest.approx(0, abs=1e-6)
        assert (slopes > 0).all()
        assert np.abs(np.diff(slopes)).max() < 2e-3  # a corner shows for any step

    def test_memberships_of_equation_12_can_be_negative(self):
        distances = printed_distance(np.array([0.5, 3.0]), 4)
        shares = distances**-1 / (distances**-1).sum()
        assert shares.min() < 0


class TestCentre:
    def test_equation_22_sends_centres_to_nought(self):
        """Reports near zero dominate with weights 2/x^2."""
        generator = np.random.default_rng(0)
        points = 5 + generator.laplace(0, 2, (20_000, 2))
        centre = printed_centre(points, np.array([5.0, 5.0]), np.full(20_000, 0.25))
        assert np.abs(centre).max() < 1
        assert np.abs(points.mean(axis=0) - 5).max() < 0.1

    def test_equation_22_raises_its_own_objective(self):
        generator = np.random.default_rng(1)
        points = generator.normal(0.5, 0.5, (500, 2))
        centres = np.array([[0.2, 0.2], [0.8, 0.8]])
        objectives = []
        for _ in range(6):
            lengths = np.sqrt(((points[:, None] - centres) ** 2).sum(axis=2))
            distances = printed_distance(lengths, 2)
            shares = distances**-1 / (distances**-1).sum(axis=1, keepdims=True)
            objectives.append((shares**2 * distances).sum())
            pulls = shares.T**2
            centres = np.stack([printed_centre(points, *each) for each in zip(centres, pulls, strict=True)])
        assert (np.diff(objectives) > 0).any()

    def test_the_reweighted_mean_lowers_the_objective(self):
        points = np.random.default_rng(1).normal(0.5, 0.5, (500, 2))
        start = np.array([[0.2, 0.2], [0.8, 0.8]])
        js = fuzzy_c_means(points, start, Rule("mixed", 2.0, 0.5), max_iterations=50, tolerance=0.0).objectives
        assert (np.diff(js) <= 1e-12).all()
        assert js[-1] < js[0]

    def test_theorem_6_has_a_counterexample(self):
        """The centre of the mixed distance can be farther from the exact one than that of the Laplace distance."""
        generator = np.random.default_rng(2)
        worse = 0
        for _ in range(40):
            held = generator.random((400, 2))
            sent = held + generator.laplace(0, 0.5, held.shape)
            exact = fuzzy_c_means(held, np.array([[0.4, 0.4]]), Rule("euclidean"), max_iterations=200, tolerance=1e-9)
            off = [
                np.linalg.norm(
                    fuzzy_c_means(
                        sent, np.array([[0.4, 0.4]]), Rule(kind, 2.0, 0.5), max_iterations=500, tolerance=1e-9
                    ).centres
                    - exact.centres
                )
                for kind in ("mixed", "laplace")
            ]
            worse += off[0] > off[1]
        assert worse > 0
