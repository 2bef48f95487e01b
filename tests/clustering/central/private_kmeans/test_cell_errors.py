"""Test the errors of centres that the cells of a noisy grid cause."""

from math import sqrt

import numpy as np
import pytest

from clustering.central.private_kmeans.cell_errors import KEPT_NOISE, describe_narrow, find_cell_errors, judge_width
from clustering.central.private_kmeans.cell_weights import HARD_FROM, STANDS_OUT
from clustering.central.private_kmeans.gated_grid import CellErrors, FoundClusters, WeighedCells
from clustering.central.private_kmeans.two_level_grid import GridCounts, TwoLevelGrid, make_consistent
from clustering.centroids.partition_agreement import PartitionAgreement
from clustering.circles import Circles
from clustering.simulate import simulate_central
from sfumato.model.precision import Verdict
from sfumato.specs import LATTICE, PrivateKmeans


def count(
    points: np.ndarray, splits: np.ndarray, n_coarse: int, circles: tuple[int, ...] = (), variance: float = 0.02
) -> GridCounts:
    """Return exact counts of points in [0, 1]^d with this stated variance."""
    d = points.shape[1]
    grid = TwoLevelGrid(d, n_coarse, splits)
    fine = np.bincount(grid.index(np.floor(points * LATTICE).astype(np.int32)), minlength=grid.n_cells)
    coarse = np.bincount(grid.parents, fine, len(splits)).astype(np.int64)
    counts = make_consistent(grid, coarse, variance, fine, variance)
    return counts._replace(middles=Circles(d, circles).to_points(counts.middles), circles=circles)


def errors_of(points: np.ndarray, n_coarse: int = 20, circles: tuple[int, ...] = ()) -> tuple[CellErrors, np.ndarray]:
    """Return the errors of one cluster in an even grid, and its centre from the cells."""
    d = points.shape[1]
    counts = count(points, np.ones(n_coarse**d, dtype=np.int64), n_coarse, circles)
    centre = counts.counts @ counts.middles / counts.counts.sum()
    return errors_in(counts, counts.counts, centre[None]), centre


def errors_in(counts: GridCounts, weights: np.ndarray, centres: np.ndarray, q: float = 1000.0) -> CellErrors:
    cells = WeighedCells(counts.middles, counts.sides**2, weights, 2 * counts.scales**2)
    return find_cell_errors(counts, cells, centres, np.zeros(len(centres)), q)


class TestWidthOfCells:
    @pytest.mark.parametrize("d", [1, 2, 3])
    def test_cluster_in_one_cell_may_be_anywhere_in_it(self, d: int) -> None:
        errors, _ = errors_of(np.full((500, d), 0.31))
        assert np.sqrt(errors.variances[0]) == pytest.approx(np.full(d, 0.05 / sqrt(12)))
        assert errors.narrow.all()

    @pytest.mark.parametrize("d", [1, 2])
    def test_errors_between_cells_of_a_wide_cluster_cancel_out(self, d: int) -> None:
        points = np.random.default_rng(d).normal(0.5, 0.1, (20_000, d)).clip(0, 0.999)
        errors, _ = errors_of(points)
        assert np.sqrt(errors.variances[0]).max() < 0.02 * 0.05
        assert not errors.narrow.any()

    def test_each_feature_counts_alone(self) -> None:
        """A joint sum over cells would hide that all cells have one place along the first feature."""
        rng = np.random.default_rng(1)
        points = np.column_stack([np.full(20_000, 0.31), rng.normal(0.5, 0.1, 20_000).clip(0, 0.999)])
        errors, _ = errors_of(points)
        assert np.sqrt(errors.variances[0, 0]) == pytest.approx(0.05 / sqrt(12))
        assert np.sqrt(errors.variances[0, 1]) < 0.02 * 0.05
        assert errors.narrow.tolist() == [[True, False]]

    def test_large_cell_beside_small_ones_counts_in_full(self) -> None:
        """A tenth of the records lies at the near end of a cell of 1/4. Small cells hold the others."""
        rng = np.random.default_rng(2)
        points = np.concatenate([rng.uniform(0.4, 0.5, 9000), np.full(1000, 0.51)])[:, None]
        splits = np.array([1, 32, 1, 1])
        counts = count(points, splits, 4)
        centre = counts.counts @ counts.middles / counts.counts.sum()
        errors = errors_in(counts, counts.counts, centre[None])
        off = abs(float(centre[0] - points.mean()))
        assert off == pytest.approx(0.0115, abs=0.001)
        assert sqrt(errors.variances[0, 0]) == pytest.approx(0.1 * 0.25 / sqrt(12), rel=0.1)

    def test_seam_of_a_circle_is_no_border(self) -> None:
        places = np.random.default_rng(3).normal(0.0, 0.1, 20_000)
        over_seam, _ = errors_of((places % 1.0)[:, None], circles=(0,))
        assert np.sqrt(over_seam.variances).max() < 0.02 * 0.05
        assert not over_seam.narrow.any()

    def test_cluster_in_one_cell_of_a_circle_has_its_error_across(self) -> None:
        errors, _ = errors_of(np.full((500, 1), 0.31), circles=(0,))
        assert np.sqrt(errors.variances[0]) == pytest.approx(np.full(2, 0.05 / sqrt(12)))


class TestEmptyCells:
    def test_noise_that_passes_the_gate_has_the_stated_mean(self) -> None:
        noise = np.random.default_rng(4).laplace(0, 1, 1_000_000)
        assert np.where(noise > STANDS_OUT * sqrt(2), noise, 0.0).mean() == pytest.approx(KEPT_NOISE, rel=0.02)

    @pytest.mark.parametrize(("q", "part"), [(HARD_FROM, 1.0), (HARD_FROM - 1, 0.4)])
    def test_empty_cells_of_a_gated_cell_pull_the_centre_to_its_middle(self, q: float, part: float) -> None:
        """One of 4 coarse cells has 32 parts, and all records are in the first of them."""
        counts = count(np.full((1000, 1), 0.2501), np.array([1, 32, 1, 1]), 4, variance=1000.0)
        weights = np.where(counts.counts > 100, counts.counts, 0.0)
        centre = weights @ counts.middles / weights.sum()
        errors = errors_in(counts, weights, centre[None], q)
        empty = (counts.parents == 1) & (weights == 0)
        pull = part * KEPT_NOISE * counts.scales[empty] @ (counts.middles[empty] - centre) / 1000
        assert pull[0] > 0.004
        assert errors.variances[0, 0] == pytest.approx((0.25 / 32) ** 2 / 12 + pull[0] ** 2, rel=1e-3)

    def test_cluster_without_cells_has_no_error(self) -> None:
        counts = count(np.full((1000, 1), 0.26), np.ones(4, dtype=np.int64), 4)
        errors = errors_in(counts, counts.counts, np.array([[0.375], [0.99]]))
        assert errors.variances[1].tolist() == [0.0]
        assert not errors.narrow[1].any()


class TestVerdict:
    def found(self, spreads: list[float], narrow: list[bool]) -> tuple[FoundClusters, CellErrors]:
        k = len(spreads)
        nothing, ones = np.zeros(k), np.ones(k)
        agreement = PartitionAgreement("cells", 1.0, 0.0)
        found = FoundClusters(np.zeros((k, 1)), nothing, 100 * ones, nothing, np.array(spreads), "grid", agreement)
        errors = CellErrors(np.where(narrow, 0.01**2, 0.0)[:, None], np.array(narrow)[:, None])
        return found, errors

    def test_loss_of_clusters_in_single_cells_is_unknown(self) -> None:
        assert judge_width(*self.found([0.01, 0.01], [True, True])).verdict is Verdict.UNCERTAIN

    def test_wide_cluster_decides_the_loss(self) -> None:
        assert judge_width(*self.found([0.01, 0.1], [True, False])).verdict is Verdict.RELIABLE

    def test_wide_clusters_have_no_warning(self) -> None:
        found, errors = self.found([0.1, 0.1], [False, False])
        assert describe_narrow(errors.narrow) == []
        assert judge_width(found, errors).verdict is Verdict.RELIABLE

    @pytest.mark.parametrize(
        ("narrow", "start"),
        [([True], "The cluster is"), ([True, False], "1 of 2 clusters is"), ([True, True], "2 of 2 clusters are")],
    )
    def test_warning_has_the_number_of_narrow_clusters(self, narrow: list[bool], start: str) -> None:
        (warning,) = describe_narrow(np.array(narrow)[:, None])
        assert warning.startswith(f"{start} narrower than a cell of the noisy grid.")


class TestCoverage:
    """Errors of released centres, in their stated errors."""

    @pytest.mark.parametrize(("width", "n_runs"), [(0.001, 8), (0.008, 8)])
    def test_stated_errors_cover_groups_beside_cells_of_their_width(self, width: float, n_runs: int) -> None:
        """Cells have sides of about .015 at this epsilon. Without their term, the figure is 20 or 4."""
        ratios = []
        for seed in range(n_runs):
            rng = np.random.default_rng(seed)
            true = rng.uniform([[0.1, 0.1], [0.6, 0.6]], [[0.4, 0.4], [0.9, 0.9]])
            points = true[rng.integers(0, 2, 20_000)] + rng.normal(0, width, (20_000, 2))
            model = simulate_central(PrivateKmeans(0.1, 2), points, seed=seed)
            assert model.centroids is not None
            assert model.centroid_errors is not None
            order = np.argsort(model.centroids[:, 0])
            ratios.append((model.centroids - true[np.argsort(true[:, 0])][np.argsort(order)]) / model.centroid_errors)
        assert 0.2 < np.sqrt(np.mean(np.square(ratios))) < 1.3
