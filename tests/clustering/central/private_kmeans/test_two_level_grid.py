"""Test the two-level grid: cells of records, consistent counts and cell weights."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustering.central.posterior_counts import EMPTY, estimate_counts
from clustering.central.private_kmeans.cell_weights import hard_weights, posterior_weights, weigh_cells
from clustering.central.private_kmeans.two_level_grid import GridCounts, TwoLevelGrid, make_consistent
from clustering.kernels.cells import two_level_cells
from clustering.kernels.mixtures import posterior_means
from sfumato.specs import LATTICE
from tests import naive


def grid_of(d: int, n_coarse: int, seed: int = 0) -> TwoLevelGrid:
    return TwoLevelGrid(d, n_coarse, np.random.default_rng(seed).integers(1, 5, n_coarse**d))


class TestCells:
    @settings(deadline=None, max_examples=50)
    @given(st.data(), st.integers(1, 3), st.integers(1, 4), st.integers(2, 30))
    def test_cell_equals_the_plain_twin(self, data: st.DataObject, d: int, n_coarse: int, lattice: int) -> None:
        splits = data.draw(st.lists(st.integers(1, 4), min_size=n_coarse**d, max_size=n_coarse**d))
        places = st.lists(st.integers(0, lattice - 1), min_size=d, max_size=d)
        points = data.draw(st.lists(places, min_size=1, max_size=10))
        starts = [sum(m**d for m in splits[:i]) for i in range(n_coarse**d)]
        labels = np.empty(len(points), dtype=np.int64)
        two_level_cells(np.array(points, dtype=np.int32), lattice, n_coarse, np.array(splits), np.array(starts), labels)
        assert labels.tolist() == [naive.two_level_cell(point, lattice, n_coarse, splits) for point in points]

    @pytest.mark.parametrize("d", [1, 2, 3, 4])
    def test_middle_and_side_contain_the_records(self, d: int) -> None:
        grid = grid_of(d, 5 - d + 1)
        points = np.random.default_rng(1).integers(0, LATTICE, (2000, d)).astype(np.int32)
        labels = grid.index(points)
        assert labels.min() >= 0
        assert labels.max() < grid.n_cells
        middles, sides = grid.cells()
        off = np.abs((points + 0.5) / LATTICE - middles[labels]).max(axis=1)
        assert (off <= sides[labels] / 2 + 1 / LATTICE).all()
        assert (sides**d).sum() == pytest.approx(1)

    def test_last_place_is_in_the_last_cell(self) -> None:
        grid = grid_of(2, 3)
        corners = np.array([[0, 0], [LATTICE - 1, LATTICE - 1]], dtype=np.int32)
        assert grid.index(corners).tolist() == [0, grid.n_cells - 1]


def cells_of(seed: int = 3, records: float = 50.0) -> tuple[GridCounts, np.ndarray, np.ndarray]:
    """Return noisy and exact counts of a grid with records in a quarter of its coarse cells."""
    rng = np.random.default_rng(seed)
    grid = grid_of(2, 6, seed)
    truth = np.where(rng.random(36) < 0.25, records, 0.0)[grid.parents] * rng.random(grid.n_cells)
    fine = np.rint(truth + rng.laplace(0, 4, grid.n_cells)).astype(np.int64)
    summed = np.bincount(grid.parents, truth, 36)
    coarse = np.rint(summed + rng.laplace(0, 9, 36)).astype(np.int64)
    return make_consistent(grid, coarse, 2 * 81.0, fine, 2 * 16.0), truth, summed


class TestConsistency:
    def test_parts_add_up_to_their_coarse_cell(self) -> None:
        cells, _, _ = cells_of()
        assert np.bincount(cells.parents, cells.counts) == pytest.approx(cells.totals)

    def test_totals_have_least_variance(self) -> None:
        grid = TwoLevelGrid(1, 2, np.array([1, 3]))
        cells = make_consistent(grid, np.array([10, 30]), 4.0, np.array([20, 10, 10, 22]), 1.0)
        # 10 and 20 of variances 4 and 1; 30 and 42 of variances 4 and 3
        assert cells.totals == pytest.approx([18, (30 / 4 + 42 / 3) / (1 / 4 + 1 / 3)])
        assert 2 * cells.total_scales**2 == pytest.approx([4 / 5, 12 / 7])
        assert np.diff(cells.counts[1:]) == pytest.approx([0, 12])  # the difference is shared evenly

    def test_variances_match_repeated_noise(self) -> None:
        rng = np.random.default_rng(4)
        grid = TwoLevelGrid(1, 3, np.array([1, 2, 5]))
        runs = [
            make_consistent(
                grid,
                np.rint(rng.laplace(0, 300, 3)).astype(np.int64),
                2 * 300.0**2,
                np.rint(rng.laplace(0, 200, 8)).astype(np.int64),
                2 * 200.0**2,
            )
            for _ in range(4000)
        ]
        seen = np.std([run.counts for run in runs], axis=0)
        assert seen == pytest.approx(np.sqrt(2) * runs[0].scales, rel=0.1)


class TestWeights:
    def test_isolated_coarse_cell_needs_a_higher_count(self) -> None:
        grid = TwoLevelGrid(2, 10, np.ones(100, dtype=np.int64))
        fine = np.zeros(100, dtype=np.int64)
        fine[[11, 12, 21, 22]] = 1000
        fine[[88, 33]] = 6  # both above ln 100 of their scale; 33 touches 22, 88 touches none
        fine[55] = 11
        cells = make_consistent(grid, fine, 2.0, fine, 2.0)
        cells = cells._replace(totals=cells.counts, total_scales=np.ones(100))
        weights = hard_weights(cells, 2)
        assert np.flatnonzero(weights).tolist() == [11, 12, 21, 22, 33, 55]

    def test_gate_is_lifted_with_too_few_cells(self) -> None:
        cells, _, _ = cells_of(records=8.0)
        assert (hard_weights(cells, 2) > 0).sum() >= 4
        gated = (hard_weights(cells, 1) > 0).sum()
        assert (hard_weights(cells, int(gated)) > 0).sum() > gated

    @pytest.mark.parametrize("q", [1.0, 50.0, 99.0, 100.0, 1e4])
    def test_weights_are_non_negative_and_sum_to_all_records(self, q: float) -> None:
        cells, _, summed = cells_of()
        weights = weigh_cells(cells, float(summed.sum()), 3, q)
        assert (weights >= 0).all()
        assert weights.sum() == pytest.approx(summed.sum())

    def test_weights_are_equal_without_counts_and_noise(self) -> None:
        """The posterior weights underflow here, and a division by their sum would give NaN."""
        grid = TwoLevelGrid(2, 2, np.ones(4, dtype=np.int64))
        for epsilon in (1.0, 8.0, 16.0, 32.0):
            variance = 0.5 / np.sinh(epsilon / 2) ** 2
            coarse, fine = np.array([0, -1, 0, 0]), np.zeros(4, dtype=np.int64)
            weights = weigh_cells(make_consistent(grid, coarse, variance, fine, variance), 7.0, 2, q=54.0)
            assert weights.sum() == pytest.approx(7.0)
        assert weights.tolist() == [1.75] * 4

    def test_low_q_mixes_hard_and_posterior_weights(self) -> None:
        cells, _, summed = cells_of()
        n = float(summed.sum())
        hard, likely = hard_weights(cells, 3), posterior_weights(cells, n)
        expected = n * (0.4 * hard / hard.sum() + 0.6 * likely / likely.sum())
        assert weigh_cells(cells, n, 3, 50.0) == pytest.approx(expected)

    def test_posterior_weights_beat_positive_counts(self) -> None:
        errors = []
        for seed in range(20):
            cells, truth, summed = cells_of(seed)
            likely = posterior_weights(cells, float(summed.sum()))
            errors.append([np.abs(w - truth).sum() for w in (likely, np.maximum(cells.counts, 0))])
        mine, plain = np.mean(errors, axis=0)
        assert mine < 0.8 * plain


class TestPosterior:
    @settings(deadline=None, max_examples=40)
    @given(
        st.lists(st.tuples(st.floats(-50, 200), st.floats(1, 20), st.floats(0.1, 50)), min_size=1, max_size=8),
        st.sampled_from(EMPTY),
    )
    def test_equals_the_plain_twin(self, cells: list[tuple[float, float, float]], empty: float) -> None:
        counts, scales, expected = (np.array(column) for column in zip(*cells, strict=True))
        places, chances = np.array([0.1, 0.5, 1.0, 4.0]), np.array([0.3, 0.3, 0.2, 0.2])
        means = np.empty(len(counts))
        likelihood = posterior_means(counts, scales, expected, empty, places, chances, means)
        plain = [naive.posterior_mean(*cell, empty, places.tolist(), chances.tolist()) for cell in cells]
        assert means == pytest.approx([mean for mean, _ in plain], rel=1e-9, abs=1e-12)
        assert likelihood == pytest.approx(sum(part for _, part in plain), rel=1e-9, abs=1e-9)

    def test_keeps_clear_counts_and_shrinks_noise(self) -> None:
        rng = np.random.default_rng(9)
        counts = np.concatenate([rng.laplace(0, 10, 300), [5000.0, 40_000.0]])
        likely = estimate_counts(counts, np.full(302, 10.0), np.full(302, 45_000 / 302))
        assert likely[-2:].tolist() == [5000, 40_000]
        assert (likely >= 0).all()
        assert likely[:300].sum() < 0.2 * np.maximum(counts[:300], 0).sum()

    def test_is_finite_with_tiny_noise_and_expectation(self) -> None:
        likely = estimate_counts(np.array([0.0, 3.0, 1e6]), np.zeros(3), np.zeros(3))
        assert np.isfinite(likely).all()
        assert likely == pytest.approx([0, 3, 1e6], abs=1e-3)
