"""Test the parts of the concentrated route: count tree, repair rounds, steps in all features, shrinkage."""

from math import sqrt

import numpy as np
import pytest

from clustering.central.curator import Curator
from clustering.central.gaussian_block import ConcentratedBlock, Rho
from clustering.central.private_kmeans import concentrated_kmeans
from clustering.central.private_kmeans.concentrated_kmeans import choose_repair_rho, find_ball
from clustering.central.private_kmeans.count_tree import choose_rho, count_tree
from clustering.central.private_kmeans.full_steps import full_steps, shrink_to_mean
from clustering.central.private_kmeans.repair import Clusters, choose_radii, repair_round
from clustering.central.privtree import BoxCells
from clustering.central.projection import make_projection
from clustering.central.queries import MemoryJournal, Records
from clustering.random import SeededEntropy
from sfumato.privacy.accounting import ATTO, NANO
from sfumato.privacy.gaussian_privacy import PICO
from sfumato.specs import LATTICE

QUIET = PICO // 10  # rho of a query with a noise of about two records


def block_of(points: np.ndarray, seed: int = 1, max_per_user: int = 1) -> ConcentratedBlock:
    places = np.clip(np.floor(points * LATTICE), 0, LATTICE - 1).astype(np.int32)
    curator = Curator(Records(places, max_per_user), 32 * NANO, MemoryJournal(), SeededEntropy(seed), ATTO // 1000)
    return curator.open_block(32 * NANO, ATTO // 1000)


def blobs(centres: np.ndarray, n: int, spread: float = 0.02) -> np.ndarray:
    """Return n records around each centre."""
    rng = np.random.default_rng(0)
    return np.concatenate([centre + rng.normal(0, spread, (n, centres.shape[1])) for centre in centres])


def clusters_of(centres: np.ndarray, mass: float, radius: float = 0.2, spread: float = 0.1) -> Clusters:
    k = len(centres)
    return Clusters(np.array(centres, dtype=float), np.full(k, radius), np.full(k, mass), np.full(k, spread))


def nearest(centres: np.ndarray, true: np.ndarray) -> np.ndarray:
    """Return the distance of each true centre to the nearest found one."""
    return np.sqrt(((true[:, None] - centres[None]) ** 2).sum(axis=2)).min(axis=1)


TRUE = np.array([[0.2, 0.2, 0.5], [0.8, 0.25, 0.5], [0.3, 0.8, 0.4], [0.75, 0.8, 0.6]])


class TestTree:
    def middle_block(self, points: np.ndarray, **parts: int) -> ConcentratedBlock:
        d = points.shape[1]
        return block_of(points, **parts).project(make_projection(np.full(d, LATTICE // 2), np.eye(d)))

    def test_leaves_hold_the_records_where_they_lie(self) -> None:
        block = self.middle_block(blobs(TRUE, 2000))
        before = block.left_pico
        cells = count_tree(block, np.full(3, 0.5), 8000.0, 4, PICO)
        assert 0 < before - block.left_pico <= PICO
        assert cells.weights.sum() == pytest.approx(8000, rel=0.03)
        distances = np.sqrt(((TRUE[:, None] - 0.5 - cells.middles[None]) ** 2).sum(axis=2)).min(axis=0)
        assert cells.weights @ distances / cells.weights.sum() < 0.08
        volumes = 12 * cells.variances
        assert volumes.min() < 0.1 * 3  # dense boxes are halved

    def test_boxes_partition_the_root(self) -> None:
        root = BoxCells(np.array([0, -1, -1]), np.array([5, 0, 0]), np.array([1, -1, -1]), np.array([2, 1]))
        assert root.index(np.array([[4], [5], [-(10**7)], [10**7]], dtype=np.int32)).tolist() == [1, 0, 1, 0]

    def test_no_records_give_the_root(self) -> None:
        cells = count_tree(self.middle_block(np.zeros((0, 3))), np.full(3, 0.5), 1.0, 4, PICO // 1000)
        assert len(cells.weights) >= 1
        assert (cells.weights > 0).all()

    def test_unspent_levels_cost_nothing(self) -> None:
        block = self.middle_block(np.full((30, 3), 0.5))
        before = block.left_pico
        count_tree(block, np.full(3, 0.5), 30.0, 4, PICO // 10**6)  # noise of 1,200 records hides all boxes
        assert before - block.left_pico == PICO // 10**6 // 3

    def test_rho_is_a_tenth_to_three_tenths(self) -> None:
        assert choose_rho(1000, 1e9) == 100
        assert choose_rho(1000, 1e-9) == 300
        assert choose_rho(PICO, 20.0) == int(PICO * 3.5 * 0.04)


class TestRepair:
    def rounds(self, points: np.ndarray, start: Clusters, wanted: int, n: int = 3, rho: int = QUIET) -> Clusters:
        block = block_of(points)
        for number in range(n):
            start = repair_round(block, start, Rho(rho, rho, rho), wanted, swap=number < n - 1).clusters
        return start

    def test_moves_a_centre_from_a_shared_cluster_to_a_missed_one(self) -> None:
        points = blobs(TRUE, 1500)
        start = np.array([TRUE[0], TRUE[1] + 0.01, TRUE[1] - 0.01, (TRUE[2] + TRUE[3]) / 2])
        assert (
            nearest(self.rounds(points, clusters_of(start, 1500, 0.5), 4, rho=PICO // 1000).centres, TRUE).max() < 0.02
        )
        stuck = repair_round(block_of(points), clusters_of(start, 1500, 0.5), Rho(QUIET, QUIET, QUIET), 4, swap=False)
        assert nearest(stuck.clusters.centres, TRUE).max() > 0.1

    def test_fills_missing_centres(self) -> None:
        found = self.rounds(blobs(TRUE, 1500), clusters_of(TRUE.mean(axis=0)[None], 6000, 0.9), 4, n=4)
        assert nearest(found.centres, TRUE).max() < 0.02
        assert found.masses == pytest.approx(np.full(4, 1500), abs=20)

    def test_leaves_correct_clusters_alone(self) -> None:
        found = self.rounds(blobs(TRUE, 1500), clusters_of(TRUE, 1500), 4)
        assert np.sqrt(((found.centres - TRUE) ** 2).sum(axis=1)).max() < 0.01
        assert found.spreads == pytest.approx(np.full(4, 0.02 * sqrt(3)), rel=0.1)

    def test_noise_alone_causes_no_swap(self) -> None:
        """Four overlapping centres of equal clusters stay, because noise explains all long directions."""
        start, n_changed = clusters_of(TRUE, 20, 0.3), 0
        for seed in range(20):
            rho = Rho(PICO // 100, PICO // 100, PICO // 100)
            step = repair_round(block_of(blobs(TRUE, 20), seed), start, rho, 4, swap=True)
            n_changed += np.sqrt(((step.clusters.centres - TRUE) ** 2).sum(axis=1)).max() > 0.3
        assert n_changed <= 2

    def test_no_records_give_finite_clusters(self) -> None:
        for seed in range(5):
            step = repair_round(block_of(np.zeros((0, 3)), seed), clusters_of(TRUE, 5), Rho(9, 9, 9), 6, swap=True)
            assert all(np.isfinite(part).all() for part in step.clusters)
            assert len(step.clusters.centres) <= 6

    def test_tight_clusters_do_not_lose_their_radii(self) -> None:
        """Noise can make all traces negative. Radii of zero would fix all centres for good."""
        points, start = blobs(TRUE, 300, 0.002), clusters_of(TRUE + 0.03, 300, 0.6, 0.4)
        for seed in range(12):
            found, block = start, block_of(points, seed)
            for _ in range(5):
                found = repair_round(block, found, Rho(PICO // 50, PICO // 50, PICO // 300), 4, swap=False).clusters
            assert nearest(found.centres, TRUE).max() < 0.02
            assert found.radii.min() > 1e-4

    def test_radii_are_wide_with_little_noise(self) -> None:
        spreads, masses = np.array([0.1, 0.1, 0.1]), np.array([1.0, 200.0, 1e6])
        assert choose_radii(spreads, 3.0, masses, 1.3) == pytest.approx([0.13, 0.2, 0.3])


class TestRhoOfRepair:
    def test_large_clusters_leave_more_to_the_steps_in_all_features(self) -> None:
        assert choose_repair_rho(PICO, 100.0) == PICO * 60 // 1000
        assert choose_repair_rho(PICO // 100, 500.0) == PICO * 24 // 10_000
        assert choose_repair_rho(PICO // 100, 300.0) == PICO // 100 * 290 // 1000

    def test_no_number_of_records_gives_the_largest_share(self) -> None:
        assert choose_repair_rho(1000, 0.0) == 290


class TestFullSteps:
    @pytest.mark.parametrize("max_per_user", [1, 5])
    def test_reported_noise_matches_scatter(self, max_per_user: int) -> None:
        points, costs = blobs(TRUE, 1500), [Rho(PICO // 200, PICO // 200, PICO // 200)] * 2
        steps = [full_steps(block_of(points, seed, max_per_user), clusters_of(TRUE, 1500), costs) for seed in range(25)]
        seen = np.std([step.clusters.centres for step in steps], axis=0).mean()
        reported = sqrt(np.mean([step.centre_variances for step in steps]))
        assert 0.4 * reported < seen < 1.5 * reported  # the start has no noise, which a step does not know
        assert np.std([step.counts for step in steps]) == pytest.approx(sqrt(steps[0].count_variance), rel=0.3)
        assert np.mean([step.clusters.spreads for step in steps]) == pytest.approx(0.02 * sqrt(3), rel=0.2)

    def test_converges_to_means(self) -> None:
        points = blobs(TRUE, 1500)
        step = full_steps(block_of(points), clusters_of(TRUE + 0.05, 1500), [Rho(QUIET, QUIET, QUIET)] * 3)
        means = points.reshape(4, 1500, 3).mean(axis=1)
        assert step.clusters.centres == pytest.approx(means, abs=2e-3)

    def test_noise_of_many_features_follows_the_norm_of_residuals(self) -> None:
        """A radius far above the nearly equal norms would add noise and keep nothing."""
        points = np.random.default_rng(2).normal(0.5, 0.02, (400, 256))
        start = Clusters(np.full((1, 256), 0.5), np.ones(1), np.array([400.0]), np.array([0.02 * sqrt(256)]))
        rho = Rho(PICO // 2000, PICO // 2000, PICO // 2000)
        block = block_of(points)
        found = full_steps(block, start, [rho]).clusters
        assert found.radii[0] == pytest.approx(0.02 * sqrt(256), rel=0.06)
        assert found.spreads[0] == pytest.approx(0.02 * sqrt(256), rel=0.3)

    def test_one_noisy_cluster_does_not_collapse_the_others(self) -> None:
        centres = np.vstack([TRUE, [[0.5, 0.5, 9.0]]])
        noise = np.array([1e-4, 1e-4, 1e-4, 1e-4, 80.0])
        shrunk = shrink_to_mean(centres, np.array([500.0, 500, 500, 500, 1]), noise)
        assert np.abs(shrunk - centres)[:4].max() < 0.02
        assert np.abs(shrunk[4] - shrunk.mean(axis=0)).max() < 1
        assert shrink_to_mean(TRUE[:1], np.ones(1), np.ones(1)).tolist() == TRUE[:1].tolist()

    def test_noise_is_not_subtracted_from_shrunk_centres(self) -> None:
        """The moves were shrunk before, so centres no further apart than their noise keep most of their distance."""
        centres, noise = np.array([[-1.0, 0.0], [1.0, 0.0]]), np.ones(2)
        assert shrink_to_mean(centres, np.ones(2), noise) == pytest.approx(centres / 1.4)
        assert shrink_to_mean(np.zeros((2, 2)), np.ones(2), np.zeros(2)).tolist() == np.zeros((2, 2)).tolist()


class TestBall:
    def test_contains_most_records(self) -> None:
        points = 0.3 + np.random.default_rng(0).normal(0, 0.02, (5000, 12))
        ball = find_ball(block_of(points))
        centre = (ball.place[0] + 0.5) / LATTICE
        assert centre == pytest.approx(np.full(12, 0.3), abs=0.01)
        assert ball.n_records == pytest.approx(5000, abs=100)
        assert (np.linalg.norm(points - centre, axis=1) < ball.radius).mean() > 0.95

    def test_no_records_give_the_box(self) -> None:
        ball = find_ball(block_of(np.zeros((0, 12))))
        assert 0 < ball.radius <= sqrt(12)
        assert ball.n_records >= 1

    def test_main_directions_are_found(self) -> None:
        rng = np.random.default_rng(0)
        points = 0.5 + rng.normal(0, 0.01, (20_000, 40))
        points[:, 3] += rng.normal(0, 0.1, 20_000)
        block = block_of(points)
        subspace = concentrated_kmeans._find_subspace(block, find_ball(block), block.left_pico)
        assert subspace.projection.n_features == 16
        assert abs(subspace.projection.basis[3, 0]) > 0.99 * (1 << 16)
        assert subspace.variances[0] == pytest.approx(0.0101, rel=0.1)
        assert subspace.outside < 0.01


class TestSquaresAlong:
    """Sums of squares along eigenvectors of a matrix with noise."""

    @pytest.mark.parametrize("spikes", [(), (9.0,), (9.0, 6.0, 3.0), (0.5,)])
    def test_are_those_of_the_matrix_without_noise(self, spikes: tuple[float, ...]) -> None:
        """Noise of .05 has eigenvalues up to 2: those of 9, 6 and 3 stand out, one of .5 does not."""
        d, noise, rng = 400, 0.05, np.random.default_rng(7)
        squares = np.full(d, 1.0)
        squares[: len(spikes)] += spikes
        upper = np.triu(rng.normal(0.0, noise, (d, d)), 1)
        noisy = np.diag(squares + rng.normal(0.0, noise * sqrt(2), d)) + upper + upper.T
        values, vectors = np.linalg.eigh(noisy)
        along = np.sum(vectors[:, -16:] ** 2 * squares[:, None], axis=0)[::-1]
        found = concentrated_kmeans.estimate_squares_along(values[:-17:-1], float(np.trace(noisy)), d, noise)
        assert found == pytest.approx(along, rel=0.06)

    def test_are_the_eigenvalues_without_noise(self) -> None:
        values = np.array([5.0, 3.0, 2.0, 2.0])
        assert concentrated_kmeans.estimate_squares_along(values, 14.0, 5, 0.0) == pytest.approx(values)

    def test_are_not_negative_where_noise_exceeds_the_trace(self) -> None:
        assert np.all(concentrated_kmeans.estimate_squares_along(np.array([9.0, 1.0]), 1e-12, 4, 0.1) >= 0.0)
