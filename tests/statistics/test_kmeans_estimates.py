"""Test the standard errors of k-means plans: correct scales pass, scales 30 % off fail.

Seeds are fixed. A pass is a p-value above 1e-6, a failure one below 1e-20. People and devices have
different seeds, because equal words would correlate a device's draw with its place.
"""

from math import sqrt

import numpy as np
import pytest

from clustering.centroids.centroid_statistics import estimate_statistics, to_lattice
from clustering.centroids.grid_kmeans import noise_errors, select_cells
from clustering.centroids.weighted_kmeans import weighted_kmeans
from clustering.random import PublicWords
from clustering.rounds.decoders import decoder
from clustering.simulate import SeededEntropy, collect, simulate
from sfumato.mechanisms import design
from sfumato.specs import GridEncoding, GridKmeans, LdpKmeans, NearestCentroidEncoding, RoundSpec
from tests.statistics.test_plans_estimates import FAILS, PASSES, XY, mean_p_value, variance_p_value

CENTRES = np.array([[0.25, 0.3], [0.7, 0.75], [0.75, 0.2]])
SHARES = np.array([0.5, 0.3, 0.2])


def sample(rng, n, spread=0.05):
    """Return a fresh sample of people, none closer to another cluster."""
    return (CENTRES[rng.choice(3, n, p=SHARES)] + rng.normal(0, spread, (n, 2))).clip(0, 1)


@pytest.mark.parametrize("kind", ["grr", "ss", "oue", "hr"])
class TestCentroidStatistics:
    REPEATS, N = 500, 2000

    def collect_rounds(self, kind):
        """Return rounds with centroids at the clusters' centres, so that all imbalances are zero."""
        encoding = NearestCentroidEncoding(to_lattice(CENTRES))
        spec = RoundSpec(XY, encoding, design(kind, encoding.n_symbols, 10**9))
        rng, entropy = np.random.default_rng(1), SeededEntropy(1)
        draws = entropy.words(self.N)
        return [estimate_statistics(collect(spec, sample(rng, self.N), entropy, draws)) for _ in range(self.REPEATS)]

    def test_masses_and_imbalances_are_unbiased_with_the_reported_errors(self, kind):
        rounds = self.collect_rounds(kind)
        masses = np.array([one.masses for one in rounds]) - SHARES
        imbalance_values = np.array([one.imbalances for one in rounds])
        for errors, claimed in (
            (masses, np.mean([one.mass_errors**2 for one in rounds], axis=0)),
            (imbalance_values, np.mean([one.imbalance_errors**2 for one in rounds], axis=0)),
        ):
            normalised = (errors / np.sqrt(claimed)).ravel()
            assert mean_p_value(normalised, 1.0) > PASSES
            assert mean_p_value(normalised + 1 / 3, 1.0) < FAILS
            assert variance_p_value(normalised, 1.0) > PASSES
            assert variance_p_value(1.3 * normalised, 1.0) < FAILS
            assert variance_p_value(0.7 * normalised, 1.0) < FAILS


class TestNoiseOfCentroids:
    """The delta method for the cells' noise, with selected cells and clusters fixed."""

    N, REPEATS = 20_000, 300

    @pytest.mark.parametrize(("kind", "epsilon"), [("ss", 1), ("oue", 2), ("hr", 3)])
    @pytest.mark.release
    def test_centroids_have_the_reported_errors(self, kind, epsilon):
        encoding = GridEncoding((8, 8))
        spec = RoundSpec(XY, encoding, design(kind, 64, epsilon * 10**9))
        reading = decoder(spec.mechanism)
        rng, entropy = np.random.default_rng(2), SeededEntropy(2)
        draws = entropy.words(self.N)
        exact = np.bincount((sample(rng, 400_000) * 8).astype(int) @ [8, 1], minlength=64) / 400_000
        selected = select_cells(encoding, exact, 1e-3, 3)
        fixed = weighted_kmeans(selected.points, selected.estimates, 3, PublicWords(0))
        normalised = []
        for _ in range(self.REPEATS):
            estimates = reading.frequencies(collect(spec, sample(rng, self.N), entropy, draws).tally)[0][
                selected.places
            ]
            masses = np.bincount(fixed.labels, weights=estimates)
            centres = np.stack(
                [np.bincount(fixed.labels, weights=estimates * x) / masses for x in selected.points.T], axis=1
            )
            found = fixed._replace(centres=centres, masses=masses)
            errors = noise_errors(selected._replace(estimates=estimates), found, reading, self.N)
            normalised.append((centres - fixed.centres) / errors)
        z = np.concatenate(normalised).ravel()
        assert abs(z.mean()) < 0.1
        assert variance_p_value(z, 1.0) > PASSES
        assert variance_p_value(1.3 * z, 1.0) < FAILS
        assert variance_p_value(0.7 * z, 1.0) < FAILS


@pytest.mark.parametrize(("algorithm", "low", "high"), [(GridKmeans, 0.4, 1.3), (LdpKmeans, 0.25, 1.2)])
def test_published_errors_match_the_truth(algorithm, low, high):
    """Compare with the truth over seeds, for the whole plan."""
    rng = np.random.default_rng(4)
    points = sample(rng, 30_000, 0.06)
    nearest = ((points[:, None] - CENTRES[None]) ** 2).sum(axis=2).argmin(axis=1)
    means = np.stack([points[nearest == c].mean(axis=0) for c in range(3)])
    shares = np.bincount(nearest) / len(points)
    of_sizes, of_centres = [], []
    for seed in range(12):
        model = simulate(algorithm(epsilon=2, clusters=3), points, seed=seed + 100)
        gaps = ((model.centroids[:, None] - means[None]) ** 2).sum(axis=2)
        own = gaps.argmin(axis=1)
        assert sorted(own.tolist()) == [0, 1, 2]
        of_sizes += list((model.sizes - shares[own]) / model.size_errors)
        of_centres += list(((model.centroids - means[own]) / model.centroid_errors).ravel())
    assert 0.3 < np.sqrt(np.mean(np.square(of_sizes))) < 1.3
    assert low < np.sqrt(np.mean(np.square(of_centres))) < high
    assert np.mean(np.abs(of_centres) > 3) < 0.03


class TestQuality:
    """RMSE of matched centroids and ARI for four clear blobs, as measured."""

    @staticmethod
    def scores(params, d, n, seeds):
        """Return the median RMSE and the median share of people in the cluster of their blob, over seeds."""
        out = []
        for seed in seeds:
            rng = np.random.default_rng(seed)
            centres = np.full((4, d), 0.3)
            centres[[0, 1, 1, 2], [0, 0, 1, 1]] = 0.7
            centres[3, 2:] = 0.7
            labels = rng.integers(0, 4, n)
            points = (centres[labels] + rng.normal(0, 0.05, (n, d))).clip(0, 1)
            model = simulate(params, points, seed=seed + 100)
            own = ((model.centroids[:, None] - centres[None]) ** 2).sum(axis=2).argmin(axis=1)
            out.append(
                (sqrt(((model.centroids - centres[own]) ** 2).mean()), (own[model.assign(points)] == labels).mean())
            )
        return np.median(out, axis=0)

    @pytest.mark.parametrize(
        ("params", "d", "rmse"),
        [(GridKmeans(4, 4), 2, 0.006), (LdpKmeans(4, 4), 4, 0.012), (LdpKmeans(4, 4), 8, 0.015)],
        ids=["grid_2", "ldp_4", "ldp_8"],
    )
    def test_blobs_are_found_at_high_epsilon(self, params, d, rmse):
        typical, right = self.scores(params, d, 30_000, [0])
        assert typical < rmse
        assert right > 0.99

    @pytest.mark.release
    @pytest.mark.parametrize(
        ("params", "d", "rmse"),
        [
            (GridKmeans(0.5, 4), 2, 0.05),
            (GridKmeans(1, 4), 2, 0.025),
            (GridKmeans(1, 4), 4, 0.06),
            (GridKmeans(4, 4), 4, 0.012),
            (LdpKmeans(0.5, 4), 4, 0.045),
            (LdpKmeans(1, 4), 4, 0.016),
            (LdpKmeans(1, 4), 8, 0.03),
            (LdpKmeans(4, 4), 8, 0.008),
        ],
    )
    def test_blobs_are_found_as_measured(self, params, d, rmse):
        typical, right = self.scores(params, d, 100_000, range(5))
        assert typical < rmse
        assert right > 0.98
