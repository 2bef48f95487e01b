"""Test `ldp_kmeans`: its rounds, steps and model."""

from itertools import pairwise

import numpy as np
import pytest

from clustering.centroids.centroid_statistics import estimate_statistics, spread_places, to_lattice
from clustering.centroids.ldp_kmeans import revive, step_lengths
from clustering.random import PublicWords
from clustering.registry import start
from clustering.rounds.plan import Collected, drive
from clustering.rounds.tally import Tally
from clustering.simulate import simulate
from sfumato.mechanisms import design
from sfumato.privacy.accounting import DRAW_SPAN
from sfumato.sizing.centroids import first_places
from sfumato.specs import LdpKmeans, NearestCentroidEncoding, RoundSpec
from tests.clustering.local_plans import Devices, features, mixture, price, run

CENTRES = np.full((4, 6), 0.3)
CENTRES[[0, 1, 1, 2, 3], [0, 0, 1, 1, 5]] = 0.7
SHARES = [0.4, 0.3, 0.2, 0.1]


def blobs(n):
    return mixture(n, CENTRES, SHARES, width=0.05, seed=0)


class TestRounds:
    def test_partition_the_devices_and_use_the_full_epsilon(self):
        _, devices = run(LdpKmeans(epsilon=1, clusters=4, rounds=5), blobs(500)[0])
        parts = devices.participations
        assert len(parts) == 5
        assert (parts[0].lo, parts[-1].hi) == (0, DRAW_SPAN)
        assert all(before.hi == after.lo for before, after in pairwise(parts))
        assert parts[0].hi == pytest.approx(DRAW_SPAN / 5, rel=1e-9)
        assert 0.999e9 < price(devices.specs) <= 10**9

    @pytest.mark.parametrize("points", [blobs(500)[0], np.zeros((50, 6))], ids=["blobs", "zeros"])
    def test_first_places_are_public(self, points):
        _, devices = run(LdpKmeans(epsilon=1, clusters=4, seed=3), points, expected_reports=10)
        shown = tuple(map(tuple, spread_places(32, 6, seed=3).tolist()))
        assert devices.specs[0].encoding == NearestCentroidEncoding(shown)
        assert all(len(spec.encoding.centroids) == 4 for spec in devices.specs[1:])

    def test_use_the_published_centroids(self):
        """Another machine may round differently, so the published values count."""
        devices, other = Devices(blobs(2000)[0]), to_lattice(np.full((4, 6), 0.9))
        published = []

        def collect(spec):
            published.append(spec)
            if len(published) != 3:
                return devices(spec)
            spec = RoundSpec(spec.features, NearestCentroidEncoding(other), spec.mechanism)
            return Collected(spec, Tally.empty(spec))

        drive(start(LdpKmeans(epsilon=1, clusters=4), features(6), 10), collect)
        assert published[3].encoding.centroids == other  # no reports, so no move


class TestFirstPlaces:
    def test_first_places_grow_with_reports_up_to_a_limit(self):
        assert first_places(4, 100_000, 10**9) == 32
        assert first_places(4, 100_000, 4 * 10**9) == 64
        assert first_places(4, 10**6, 10**9) == 64
        assert first_places(256, 10**9, 4 * 10**9) == 256


class TestSteps:
    @pytest.mark.parametrize(("clusters", "d", "n"), [(1, 1, 2), (4, 4, 7), (256, 1, 5), (256, 64, 31)])
    def test_steps_decrease_geometrically(self, clusters, d, n):
        lengths = step_lengths(clusters, d, n)
        assert len(lengths) == n
        assert lengths[0] == pytest.approx(max(0.25 * clusters ** (-1 / d), 0.04))
        assert lengths[-1] == pytest.approx(0.04)
        ratios = [after / before for before, after in pairwise(lengths)]
        assert ratios == pytest.approx([ratios[0]] * (n - 1))
        assert ratios[0] <= 1


class TestRevived:
    def statistics(self, masses):
        encoding = NearestCentroidEncoding(to_lattice(np.array([[0.2, 0.2], [0.8, 0.8], [0.5, 0.1]])))
        spec = RoundSpec(features(2), encoding, design("grr", 6, 10**9))
        return estimate_statistics(Collected(spec, Tally.empty(spec)))._replace(masses=np.array(masses))

    def test_dead_centroid_moves_next_to_the_heaviest(self):
        statistics = self.statistics([0.3, 0.7, 0.01])
        after = revive(statistics, statistics.places, 0.1, PublicWords(0))
        assert np.array_equal(after[:2], statistics.places[:2])
        assert np.abs(after[2] - statistics.places[1]) == pytest.approx([0.05, 0.05])

    def test_other_centroids_do_not_move(self):
        statistics = self.statistics([0.3, 0.6, 0.1])
        assert np.array_equal(revive(statistics, statistics.places, 0.1, PublicWords(0)), statistics.places)

    def test_nothing_moves_if_all_are_dead(self):
        statistics = self.statistics([0.0, -0.1, 0.01])
        assert np.array_equal(revive(statistics, statistics.places, 0.1, PublicWords(0)), statistics.places)


class TestModel:
    def test_four_blobs_in_six_features_are_found_with_their_sizes_and_errors(self):
        points, labels = blobs(60_000)
        model = simulate(LdpKmeans(epsilon=4, clusters=4), points, seed=1)
        assert (model.assign(points) == labels).mean() > 0.99  # both have descending sizes
        assert np.abs(model.centroids - CENTRES).max() < 0.03
        assert (np.abs(model.centroids - CENTRES) < 5 * model.centroid_errors).all()
        assert (model.centroid_errors < 0.03).all()
        assert (np.abs(model.sizes - SHARES) < 5 * model.size_errors).all()
        assert (model.size_errors < 0.02).all()
        assert model.warnings == ()
        facts = model.diagnostics
        assert facts["low_confidence"] is False
        assert facts["first_places"] == 64
        assert sum(facts["reports_by_round"]) == facts["n_reports"] == 60_000
        assert facts["detectable"] == facts["settled"] == [True] * 4

    def test_converges_to_medians_without_noise(self):
        points, labels = blobs(60_000)
        model = simulate(LdpKmeans(epsilon=4, clusters=4), points, seed=1, perturb=False)
        medians = np.stack([np.median(points[labels == c], axis=0) for c in range(4)])
        assert np.abs(model.centroids - medians).max() < 0.01
        assert model.diagnostics["n_eff"] is None

    def test_reports_a_moving_centroid(self):
        points = np.full((50_000, 1), 0.0)
        model = simulate(LdpKmeans(epsilon=8, clusters=1, rounds=3), points, seed=1)
        assert model.diagnostics["settled"] == [False]
        assert "still moved" in " ".join(model.warnings)

    def test_seed_selects_the_first_places(self):
        points, _ = blobs(5000)
        one, same, other = (simulate(LdpKmeans(1, 4, seed=s), points, seed=1).centroids for s in (1, 1, 2))
        assert np.array_equal(one, same)
        assert not np.array_equal(one, other)
