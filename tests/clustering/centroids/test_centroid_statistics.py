"""Test estimates about broadcast centroids, their start and their steps."""

import numpy as np
import pytest

from clustering.centroids.centroid_statistics import (
    MARGIN,
    N_CANDIDATES,
    choose_initial_centroids,
    estimate_statistics,
    spread_places,
    step_direction,
    to_lattice,
    update_centroids,
)
from clustering.errors import UnfitRound
from clustering.random import PublicWords
from clustering.rounds.plan import Collected
from clustering.rounds.tally import Tally
from sfumato.mechanisms import design
from sfumato.privacy.accounting import DRAW_SPAN
from sfumato.specs import LATTICE, GridEncoding, GrrMechanism, NearestCentroidEncoding, RoundSpec
from tests import naive
from tests.clustering.local_plans import Devices, features

XY = features(2)
SHOWN = np.array([[0.25, 0.25], [0.75, 0.75], [0.1, 0.9]])


def collect_statistics(points, places=SHOWN, mechanism=None, seed=1):
    encoding = NearestCentroidEncoding(to_lattice(places))
    spec = RoundSpec(XY, encoding, mechanism or GrrMechanism(encoding.n_symbols, DRAW_SPAN))
    return estimate_statistics(Devices(points, seed)(spec))


def two_blobs(n=20_000, spread=0.05):
    """Return points: three quarters around (.3, .25), the others around (.75, .7), none at the third place."""
    rng = np.random.default_rng(3)
    centres = np.repeat([[0.3, 0.25], [0.75, 0.7]], [3 * n // 4, n // 4], axis=0)
    return (centres + spread * rng.standard_normal((n, 2))).clip(0, 1)


class TestEstimates:
    def test_counts_masses_and_sides_without_noise(self):
        points = two_blobs()
        statistics = collect_statistics(points)
        assert statistics.masses == pytest.approx([0.75, 0.25, 0], abs=0.001)
        assert statistics.mass_errors == pytest.approx(np.sqrt([0.75 * 0.25 / 20_000] * 2 + [0]), abs=1e-4)
        above = (points[:15_000, 0] > 0.25).mean()
        assert statistics.imbalances[0, 0] == pytest.approx(0.75 * (2 * above - 1), abs=0.02)
        assert statistics.imbalances[1, 1] == pytest.approx(
            0.25 * (2 * (points[15_000:, 1] > 0.75).mean() - 1), abs=0.02
        )
        assert statistics.imbalances[2].tolist() == [0, 0]
        assert statistics.places == pytest.approx(SHOWN, abs=1e-6)

    def test_uses_published_places_and_mechanism(self):
        points = two_blobs()
        exact, noisy = collect_statistics(points), collect_statistics(points, mechanism=design("grr", 6, 4 * 10**9))
        assert (np.abs(noisy.masses - exact.masses) < 5 * noisy.mass_errors).all()
        assert (
            np.abs(noisy.imbalances - exact.imbalances) < 5 * (noisy.imbalance_errors + exact.imbalance_errors) + 1e-9
        ).all()
        assert (noisy.imbalance_errors > exact.imbalance_errors).all()

    def test_rejects_another_encoding(self):
        spec = RoundSpec(XY, GridEncoding((2, 2)), design("grr", 4, 10**9))
        with pytest.raises(UnfitRound, match="nearest centroids"):
            estimate_statistics(Collected(spec, Tally.empty(spec)))

    def test_round_without_reports_moves_nothing(self):
        statistics = collect_statistics(np.empty((0, 2)))
        assert statistics.n_reports == 0
        assert np.isinf(statistics.imbalance_errors).all()
        assert update_centroids(statistics, 0.1) == pytest.approx(SHOWN, abs=1e-6)
        assert all(np.isfinite(part).all() for part in step_direction(statistics))


class TestUpdate:
    def test_step_of_the_spread_almost_arrives(self):
        statistics = collect_statistics(two_blobs(200_000))
        after = update_centroids(statistics, 0.05)
        assert np.abs(after[:2] - [[0.3, 0.25], [0.75, 0.7]]).max() < 0.02  # from a distance of .05
        assert after[2] == pytest.approx(SHOWN[2], abs=1e-6)  # no reports there

    def test_iteration_converges_within_the_box(self):
        points, places = two_blobs(50_000), SHOWN
        for seed in range(6):
            places = update_centroids(collect_statistics(points, places, seed=seed), 0.05)
        assert np.abs(places[:2] - [[0.3, 0.25], [0.75, 0.7]]).max() < 0.004
        edge = update_centroids(collect_statistics(np.ones((1000, 2)), np.full((1, 2), 0.999)), 0.25)
        assert (edge <= 1).all()

    def test_noisy_imbalance_moves_little(self):
        statistics = collect_statistics(two_blobs())
        drowned = statistics._replace(imbalance_errors=np.full((3, 2), 100.0), imbalances=np.full((3, 2), 100.0))
        assert np.abs(update_centroids(drowned, 0.1) - statistics.places).max() < 0.001


class TestSpreadPlaces:
    def test_is_farthest_first_in_integers(self):
        chosen = spread_places(12, 3, seed=5)
        pool = spread_places(N_CANDIDATES, 3, seed=5)  # all of them
        assert len({tuple(row) for row in pool.tolist()}) == N_CANDIDATES
        assert chosen.tolist() == naive.farthest_first(pool.tolist(), 12)
        assert chosen.dtype == np.int64

    @pytest.mark.parametrize("d", [1, 2, 8, 64])
    def test_places_are_inside_the_margin_and_far_apart(self, d):
        places = spread_places(64, d, seed=0) / LATTICE
        assert (places >= MARGIN - 1e-6).all()
        assert (places <= 1 - MARGIN).all()
        gaps = np.sqrt(((places[:, None] - places[None]) ** 2).sum(axis=2)) + 9 * np.eye(64)
        assert gaps.min() > 0.5 * 0.8 * 64 ** (-1 / d)

    def test_seed_changes_the_places(self):
        assert not np.array_equal(spread_places(8, 2, 0), spread_places(8, 2, 1))
        assert np.array_equal(spread_places(8, 2, 1), spread_places(8, 2, 1))


class TestInitialCentroids:
    PLACES = spread_places(16, 2, seed=0) / LATTICE

    def test_starts_near_the_clusters(self):
        statistics = collect_statistics(two_blobs(), self.PLACES)
        begun = choose_initial_centroids(statistics, 2, PublicWords(0))
        gaps = np.abs(begun[:, None] - np.array([[0.3, 0.25], [0.75, 0.7]])[None]).max(axis=2)
        assert gaps.min(axis=0).max() < 0.1
        assert set(gaps.argmin(axis=0)) == {0, 1}

    def test_completes_the_number_with_places_of_the_round(self):
        statistics = collect_statistics(np.full((100, 2), 0.5), self.PLACES)
        begun = choose_initial_centroids(statistics, 6, PublicWords(0))
        assert begun.shape == (6, 2)
        assert sum(any(np.allclose(row, place) for place in statistics.places) for row in begun) >= 5

    def test_lattice_clips_to_the_last_place(self):
        assert to_lattice(np.array([[0.0, 1.0], [0.5, 1 - 1e-12]])) == (
            (0, LATTICE - 1),
            (LATTICE // 2, LATTICE - 1),
        )


def test_rejects_uninformative_mechanism():
    spec = RoundSpec(XY, NearestCentroidEncoding(((1, 1), (2, 2))), GrrMechanism(4, DRAW_SPAN // 4))
    with pytest.raises(UnfitRound, match="carry no information"):
        estimate_statistics(Collected(spec, Tally.empty(spec)))
