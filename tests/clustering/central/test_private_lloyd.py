"""Steps on noisy sums: where they lead, what they ask, and what becomes of centres that hold nothing."""

from math import sqrt

import numpy as np
import pytest

from clustering.central.cell_clusters import WeighedCells, cell_clusters
from clustering.central.private_lloyd import Start, private_lloyd
from clustering.curator import Curator, MemoryJournal, Records, Shares
from clustering.phase_search import PublicWords
from clustering.seeded_entropy import SeededEntropy
from sfumato.accounting import ATTO, NANO
from sfumato.specs import LATTICE

LOUD, QUIET = NANO // 4, 10_000 * NANO  # nano-epsilon of a step


def records_of(centres: np.ndarray, n: int, spread: float = 0.02, seed: int = 0) -> Records:
    rng = np.random.default_rng(seed)
    points = centres[np.arange(n) % len(centres)] + rng.normal(0, spread, (n, centres.shape[1]))
    return Records(np.clip(np.floor(points * LATTICE), 0, LATTICE - 1).astype(np.int32))


def shares_of(step: int) -> Shares:
    return Shares(step * 17 // 20, step // 10, step // 20)


def stepped(records: Records, start: Start, n_steps: int, step: int, seed: int = 1):
    curator = Curator(records, n_steps * step, MemoryJournal(), SeededEntropy(seed))
    return private_lloyd(curator, start, [shares_of(step)] * n_steps, PublicWords(0)), curator


def start_of(centres: np.ndarray, n: int, spread: float = 0.05) -> Start:
    k = len(centres)
    return Start(centres, np.full(k, spread), np.full(k, n / k))


TRUE = np.array([[0.2, 0.3, 0.3, 0.5, 0.5, 0.2], [0.7, 0.6, 0.4, 0.5, 0.8, 0.5], [0.3, 0.8, 0.8, 0.2, 0.4, 0.7]])


class TestSteps:
    def test_without_noise_centres_go_to_the_means(self) -> None:
        records = records_of(TRUE, 3000)
        found, _ = stepped(records, start_of(TRUE + 0.03, 3000), 4, QUIET)
        means = [(records.points[c::3] + 0.5).mean(axis=0) / LATTICE for c in range(3)]
        assert found.centres == pytest.approx(np.array(means), abs=1e-3)
        assert found.counts.tolist() == [1000, 1000, 1000]
        assert found.spreads == pytest.approx(np.full(3, 0.02 * sqrt(6)), rel=0.1)

    def test_with_much_noise_they_move_less_than_noise_would_move_them(self) -> None:
        records = records_of(TRUE, 600)
        moves, sizes = [], []
        for seed in range(20):
            found, _ = stepped(records, start_of(TRUE, 600), 1, LOUD, seed)
            moves.append(np.abs(found.centres - TRUE).mean())
            sizes.append(sqrt(2) * (0.8 * sqrt(6) + 1.2) * 0.05 / (0.85 * LOUD / NANO * 200))
        assert np.mean(moves) < 0.4 * np.mean(sizes)

    def test_said_noise_is_what_centres_scatter_by(self) -> None:
        records = records_of(TRUE, 30_000)
        runs = [stepped(records, start_of(TRUE, 30_000), 2, NANO // 10, seed)[0] for seed in range(30)]
        seen = np.std([run.centres for run in runs], axis=0).mean()
        said = sqrt(np.mean([run.centre_variances for run in runs]))
        assert 0.5 * said < seen < 1.5 * said
        assert np.std([run.counts for run in runs]) == pytest.approx(sqrt(runs[0].count_variance), rel=0.3)

    def test_every_step_asks_three_questions_at_its_price(self) -> None:
        _, curator = stepped(records_of(TRUE, 300), start_of(TRUE, 300), 3, NANO)
        assert [question.what for question in curator.odometer] == ["sums", "counts", "sizes"] * 3
        assert curator.spent_nano == 3 * NANO

    def test_a_dead_centre_goes_to_the_widest_cluster(self) -> None:
        wide = records_of(np.vstack([TRUE[:1] - 0.1, TRUE[:1] + 0.1, TRUE[1:2], TRUE[1:2]]), 4000)
        start = np.vstack([TRUE[0], TRUE[1], np.full(6, 0.99)])
        found, _ = stepped(wide, start_of(start, 4000, 0.2), 5, QUIET)
        expected = np.vstack([TRUE[0] - 0.1, TRUE[0] + 0.1, TRUE[1]])
        nearest = ((expected[:, None] - found.centres) ** 2).sum(axis=2).min(axis=1)
        assert np.sqrt(nearest).max() < 0.02

    def test_no_records_leave_centres_in_the_box(self) -> None:
        for seed in range(10):
            found, _ = stepped(Records(np.zeros((0, 6), dtype=np.int32)), start_of(TRUE, 0), 3, LOUD, seed)
            assert ((found.centres >= 0) & (found.centres <= 1)).all()
            assert np.isfinite(found.spreads).all()


class TestConcentratedSteps:
    """The same in a concentrated block, by Euclidean norms."""

    def stepped(self, records: Records, start: Start, n_steps: int, epsilon_nano: int, seed: int = 1):
        curator = Curator(records, epsilon_nano, MemoryJournal(), SeededEntropy(seed), ATTO // 1000)
        block = curator.concentrated(epsilon_nano, ATTO // 1000)
        parts = [shares_of(block.left_pico // n_steps)] * n_steps
        return private_lloyd(block, start, parts, PublicWords(0)), curator

    def test_with_little_noise_centres_go_to_the_means(self) -> None:
        records = records_of(TRUE, 30_000)
        found, _ = self.stepped(records, start_of(TRUE + 0.03, 30_000), 4, 32 * NANO)
        means = [(records.points[c::3] + 0.5).mean(axis=0) / LATTICE for c in range(3)]
        assert found.centres == pytest.approx(np.array(means), abs=1e-3)
        assert found.counts == pytest.approx(np.full(3, 10_000), abs=20)
        assert found.spreads == pytest.approx(np.full(3, 0.02 * sqrt(6)), rel=0.1)

    def test_said_noise_is_what_centres_scatter_by(self) -> None:
        records = records_of(TRUE, 30_000)
        runs = [self.stepped(records, start_of(TRUE, 30_000), 2, NANO // 10, seed)[0] for seed in range(30)]
        seen = np.std([run.centres for run in runs], axis=0).mean()
        said = sqrt(np.mean([run.centre_variances for run in runs]))
        assert 0.5 * said < seen < 1.5 * said
        assert np.std([run.counts for run in runs]) == pytest.approx(sqrt(runs[0].count_variance), rel=0.3)

    def test_every_step_takes_its_share_of_the_block(self) -> None:
        _, curator = self.stepped(records_of(TRUE, 300), start_of(TRUE, 300), 3, NANO)
        asked = curator.odometer
        assert [question.what for question in asked] == ["concentrated block", *["sums", "counts", "sizes"] * 3]
        assert [question.epsilon_nano for question in asked] == [NANO] + [0] * 9
        assert len({question.rho_pico for question in asked[1::3]}) == 1


class TestCellClusters:
    def test_adds_up_what_each_centre_holds(self) -> None:
        cells = WeighedCells(
            middles=np.array([[0.1], [0.3], [0.8]]),
            variances=np.array([0.001, 0.001, 0.0]),
            weights=np.array([10.0, 30.0, 40.0]),
            noise=np.array([4.0, 4.0, 9.0]),
        )
        found = cell_clusters(cells, np.array([[0.25], [0.8]]))
        assert found.masses.tolist() == [40, 40]
        assert found.mass_variances.tolist() == [8, 9]
        inertia = 10 * (0.15**2 + 0.001) + 30 * (0.05**2 + 0.001)
        assert found.spreads[0] ** 2 == pytest.approx((inertia + 20 * inertia / 80) / 60)
        assert found.centre_variances == pytest.approx([4 * (0.15**2 + 0.05**2) / 1600, 0])

    def test_noise_of_cells_without_weight_is_not_counted(self) -> None:
        cells = WeighedCells(np.array([[0.1], [0.2]]), np.zeros(2), np.array([5.0, 0.0]), np.array([4.0, 4.0]))
        assert cell_clusters(cells, np.array([[0.1]])).mass_variances.tolist() == [4]
