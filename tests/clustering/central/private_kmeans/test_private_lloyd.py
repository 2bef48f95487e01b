"""Test private Lloyd steps: convergence, queries, noise and dead centres."""

from math import sqrt

import numpy as np
import pytest

from clustering.central.curator import Curator
from clustering.central.private_kmeans.gated_grid import WeighedCells, summarise_clusters
from clustering.central.private_kmeans.private_lloyd import LloydStart, private_lloyd
from clustering.central.queries import MemoryJournal, Records, Shares
from clustering.random import PublicWords, SeededEntropy
from sfumato.privacy.accounting import NANO
from sfumato.specs import LATTICE

LOUD, QUIET = NANO // 4, 10_000 * NANO  # nano-epsilon of a step


def records_of(centres: np.ndarray, n: int, spread: float = 0.02, seed: int = 0) -> Records:
    rng = np.random.default_rng(seed)
    points = centres[np.arange(n) % len(centres)] + rng.normal(0, spread, (n, centres.shape[1]))
    return Records(np.clip(np.floor(points * LATTICE), 0, LATTICE - 1).astype(np.int32))


def split_step(step: int) -> Shares:
    return Shares(step * 17 // 20, step // 10, step // 20)


def run_steps(records: Records, start: LloydStart, n_steps: int, step: int, seed: int = 1):
    curator = Curator(records, n_steps * step, MemoryJournal(), SeededEntropy(seed))
    return private_lloyd(curator, start, [split_step(step)] * n_steps, PublicWords(0)), curator


def make_start(centres: np.ndarray, n: int, spread: float = 0.05) -> LloydStart:
    k = len(centres)
    return LloydStart(centres, np.full(k, spread), np.full(k, n / k))


TRUE = np.array([[0.2, 0.3, 0.3, 0.5, 0.5, 0.2], [0.7, 0.6, 0.4, 0.5, 0.8, 0.5], [0.3, 0.8, 0.8, 0.2, 0.4, 0.7]])


class TestSteps:
    def test_converges_to_means_with_little_noise(self) -> None:
        n = 3000
        records = records_of(TRUE, n)
        found, _ = run_steps(records, make_start(TRUE + 0.03, n), 4, QUIET)
        means = [(records.points[c::3] + 0.5).mean(axis=0) / LATTICE for c in range(3)]
        assert found.centres == pytest.approx(np.array(means), abs=1e-3)
        assert found.counts == pytest.approx(np.full(3, n / 3))
        assert found.spreads == pytest.approx(np.full(3, 0.02 * sqrt(6)), rel=0.1)

    def test_shrinks_moves_under_heavy_noise(self) -> None:
        records = records_of(TRUE, 600)
        moves, sizes = [], []
        for seed in range(20):
            found, _ = run_steps(records, make_start(TRUE, 600), 1, LOUD, seed)
            moves.append(np.abs(found.centres - TRUE).mean())
            sizes.append(sqrt(2) * (0.8 * sqrt(6) + 1.2) * 0.05 / (0.85 * LOUD / NANO * 200))
        assert np.mean(moves) < 0.4 * np.mean(sizes)

    def test_reported_noise_matches_scatter(self) -> None:
        records = records_of(TRUE, 30_000)
        runs = [run_steps(records, make_start(TRUE, 30_000), 2, NANO // 10, seed)[0] for seed in range(30)]
        seen = np.std([run.centres for run in runs], axis=0).mean()
        reported = sqrt(np.mean([run.centre_variances for run in runs]))
        assert 0.5 * reported < seen < 1.5 * reported
        assert np.std([run.counts for run in runs]) == pytest.approx(sqrt(runs[0].count_variance), rel=0.3)

    def test_each_step_runs_three_queries_at_its_cost(self) -> None:
        _, curator = run_steps(records_of(TRUE, 300), make_start(TRUE, 300), 3, NANO)
        assert [query.description for query in curator.odometer] == ["sums", "counts", "sizes"] * 3
        assert curator.spent_nano == 3 * NANO

    def test_dead_centre_moves_to_the_widest_cluster(self) -> None:
        wide = records_of(np.vstack([TRUE[:1] - 0.1, TRUE[:1] + 0.1, TRUE[1:2], TRUE[1:2]]), 4000)
        start = np.vstack([TRUE[0], TRUE[1], np.full(6, 0.99)])
        found, _ = run_steps(wide, make_start(start, 4000, 0.2), 5, QUIET)
        expected = np.vstack([TRUE[0] - 0.1, TRUE[0] + 0.1, TRUE[1]])
        nearest = ((expected[:, None] - found.centres) ** 2).sum(axis=2).min(axis=1)
        assert np.sqrt(nearest).max() < 0.02

    def test_centres_stay_in_the_box_without_records(self) -> None:
        for seed in range(10):
            found, _ = run_steps(Records(np.zeros((0, 6), dtype=np.int32)), make_start(TRUE, 0), 3, LOUD, seed)
            assert ((found.centres >= 0) & (found.centres <= 1)).all()
            assert np.isfinite(found.spreads).all()


class TestCellClusters:
    def test_sums_the_cells_of_each_centre(self) -> None:
        cells = WeighedCells(
            middles=np.array([[0.1], [0.3], [0.8]]),
            variances=np.array([0.001, 0.001, 0.0]),
            weights=np.array([10.0, 30.0, 40.0]),
            noise=np.array([4.0, 4.0, 9.0]),
        )
        found = summarise_clusters(cells, np.array([[0.25], [0.8]]))
        assert found.masses.tolist() == [40, 40]
        assert found.mass_variances.tolist() == [8, 9]
        inertia = 10 * (0.15**2 + 0.001) + 30 * (0.05**2 + 0.001)
        assert found.spreads[0] ** 2 == pytest.approx((inertia + 20 * inertia / 80) / 60)
        assert found.centre_variances == pytest.approx([4 * (0.15**2 + 0.05**2) / 1600, 0])

    def test_ignores_noise_of_cells_without_weight(self) -> None:
        cells = WeighedCells(np.array([[0.1], [0.2]]), np.zeros(2), np.array([5.0, 0.0]), np.array([4.0, 4.0]))
        assert summarise_clusters(cells, np.array([[0.1]])).mass_variances.tolist() == [4]
