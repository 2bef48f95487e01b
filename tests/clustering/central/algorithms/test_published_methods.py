"""Test the published methods: clear clusters, degenerate input and reported noise."""

import json
from dataclasses import replace

import numpy as np
import pytest

from clustering.central.algorithms.dp_bisecting_kmeans import Bisections, bisect_cells, choose_leaves, max_depth
from clustering.central.algorithms.dp_density_peaks import find_peaks
from clustering.central.algorithms.dp_kmeans import choose_seed_grid, release_means
from clustering.central.algorithms.dp_uniform_grid_kmeans import compute_cells_per_feature
from clustering.central.cells import GridCells
from clustering.central.run import run
from clustering.central.synopsis import Synopsis, build_grid_synopsis, choose_grid_shape, estimate_clusters
from clustering.simulate import simulate_central
from sfumato.errors import InvalidSpec
from sfumato.model.cluster_model import model_from_wire
from sfumato.privacy.accounting import NANO, parse_epsilon
from sfumato.specs import Feature
from sfumato.specs.central import (
    DpBisectingKmeans,
    DpDensityPeaks,
    DpKmeans,
    DpQuadtreeKmeans,
    DpUniformGridKmeans,
)
from tests.clustering.central.journals import NoEntropy, curator_of

MIDDLES = np.array([[0.2, 0.2], [0.8, 0.3], [0.5, 0.8]])
METHODS = [
    *(DpKmeans(1.0, 3, init=init) for init in ("random", "plusplus", "subsets")),
    DpKmeans(1.0, 3, budget="halving"),
    *(
        DpBisectingKmeans(1.0, 3, split=split, synopsis=s)
        for split in ("largest_sse", "total_sse")
        for s in (False, True)
    ),
    DpUniformGridKmeans(1.0, 3),
    DpQuadtreeKmeans(1.0, 3),
    DpDensityPeaks(1.0, 3),
]


def points(n=6000, seed=0):
    random = np.random.default_rng(seed)
    return np.clip(MIDDLES[random.integers(0, 3, n)] + random.normal(0, 0.04, (n, 2)), 0, 1)


def distance_of_middles(centroids):
    """Return the sum of the distances of the true centres from the nearest centroids."""
    return np.linalg.norm(MIDDLES[:, None] - centroids, axis=2).min(axis=1).sum()


@pytest.mark.parametrize("params", METHODS, ids=repr)
class TestEach:
    def test_finds_three_clear_clusters_with_sizes(self, params: object) -> None:
        # some public starts end with two centres in one cluster, so take the best of several
        random = isinstance(params, DpKmeans) and params.init == "random"
        variants = [replace(params, seed=s) for s in range(4)] if random else [params]  # type: ignore[type-var]
        models = [simulate_central(variant, points(), seed=1) for variant in variants]  # type: ignore[arg-type]
        model = min(
            models, key=lambda model: np.linalg.norm(MIDDLES[:, None] - model.centroids, axis=2).min(axis=1).sum()
        )
        order = model.centroids[:, 0].argsort()
        assert model.centroids[order] == pytest.approx(MIDDLES[[0, 2, 1]], abs=0.04)
        assert model.sizes == pytest.approx(1 / 3, abs=0.05)
        assert not model.diagnostics["low_confidence"]
        assert model.diagnostics["noisy_count"] == pytest.approx(6000, rel=0.05)
        assert model.warnings == ()

    @pytest.mark.parametrize(
        ("n", "d", "epsilon", "clusters"), [(0, 1, 0.0001, 5), (40, 1, 1.0, 20), (0, 64, 1.0, 3), (6000, 2, 1e-6, 3)]
    )
    def test_is_finite_and_flagged_with_few_records_or_little_epsilon(
        self, params: object, n: int, d: int, epsilon: float, clusters: int
    ) -> None:
        variant = replace(params, epsilon=epsilon, clusters=clusters)  # type: ignore[type-var]
        model = simulate_central(variant, np.full((n, d), 0.3), seed=2)
        read = model_from_wire(json.loads(json.dumps(model.to_wire(), allow_nan=False)))
        assert 1 <= read.n_clusters <= clusters
        assert ((read.centroids >= 0) & (read.centroids <= 1)).all()
        assert model.diagnostics["low_confidence"]
        assert model.warnings
        assert model.diagnostics["spent_nano"] == parse_epsilon(epsilon)

    def test_equal_records_give_one_place(self, params: object) -> None:
        model = simulate_central(params, np.full((20_000, 2), 0.3), seed=3)  # type: ignore[arg-type]
        near = np.abs(model.centroids - 0.3).max(axis=1) < 0.08
        assert model.sizes[near].sum() > 0.8
        assert np.isfinite(model.to_wire()["size_errors"]).all()

    def test_single_cluster_is_the_mean(self, params: object) -> None:
        model = simulate_central(replace(params, clusters=1), points(), seed=5)  # type: ignore[type-var]
        assert model.n_clusters == 1
        assert model.centroids[0] == pytest.approx(points().mean(axis=0), abs=0.03)

    def test_noise_grows_with_records_per_user(self, params: object) -> None:
        one, many = (simulate_central(params, points(), seed=8, max_per_user=m) for m in (1, 50))  # type: ignore[arg-type]
        assert many.size_errors.mean() > 5 * one.size_errors.mean()
        assert many.diagnostics["low_confidence"] or many.diagnostics["noisy_count"] > 4500  # 30 * 3 * 50

    def test_equal_seeds_give_equal_models(self, params: object) -> None:
        first, again = (simulate_central(params, points(), seed=6).to_wire() for _ in range(2))  # type: ignore[arg-type]
        assert first == again
        assert simulate_central(params, points(), seed=7).to_wire() != first  # type: ignore[arg-type]


def test_rejects_indivisible_epsilon_before_drawing() -> None:
    curator = curator_of(np.zeros((5, 2)), 1000, entropy=NoEntropy())
    for params in (
        DpKmeans(1e-6, 3, budget="halving", iterations=32),
        DpKmeans(1e-6, 3, init="subsets", budget="halving", iterations=20),
    ):
        with pytest.raises(InvalidSpec, match="too small"):
            run(params, (Feature("x", 0.0, 1.0), Feature("y", 0.0, 1.0)), curator)
    assert curator.odometer == ()


class TestNoisyMeans:
    def test_errors_match_repeated_noise(self) -> None:
        places = (points(900) * 2**20).astype(np.int32)
        anchor = np.full((1, 2), 0.5)
        means_list = [
            release_means(curator_of(places, seed=s), GridCells((1, 1)), anchor, NANO // 4) for s in range(400)
        ]
        seen = np.std([means.places[0] for means in means_list], axis=0)
        assert np.mean([means.errors[0] for means in means_list], axis=0) == pytest.approx(
            seen, rel=0.15
        )  # 400 runs give 3.5 %
        assert np.mean([means.places[0] for means in means_list], axis=0) == pytest.approx(
            points(900).mean(axis=0), abs=0.002
        )

    def test_empty_cluster_is_divided_by_one_and_stays_in_the_box(self) -> None:
        for seed in range(20):
            means_list = release_means(
                curator_of(np.zeros((0, 3)), seed=seed), GridCells((2, 1, 1)), np.full((2, 3), 0.5), 1000
            )
            assert ((means_list.places >= 0) & (means_list.places <= 1)).all()
            assert np.isfinite(means_list.errors).all()


class TestBisections:
    # the root, its children, and their children
    FIRST = np.array([1, 3, 5, -1, -1, -1, -1])
    SQUARES = np.array([np.nan, 10.0, 8.0, 9.0, 0.5, 1.0, 1.0])

    def test_splits_by_the_selected_rule(self) -> None:
        tree = Bisections(self.FIRST, self.SQUARES)
        assert choose_leaves(tree, 3, "largest_sse").tolist() == [2, 3, 4]
        assert choose_leaves(tree, 3, "total_sse").tolist() == [1, 5, 6]
        assert choose_leaves(tree, 1, "total_sse").tolist() == [0]
        assert choose_leaves(tree, 9, "largest_sse").tolist() == [3, 4, 5, 6]

    @pytest.mark.parametrize(
        ("k", "depth"), [(1, 0), (2, 1), (3, 2), (4, 3), (5, 4), (15, 5), (16, 5), (17, 6), (256, 9)]
    )
    def test_depth_is_limited(self, k: int, depth: int) -> None:
        assert max_depth(k) == depth
        assert 1 << depth >= k

    def test_bisects_cells_into_their_clusters(self) -> None:
        middles = np.array([[0.1], [0.12], [0.5], [0.52], [0.9], [0.95]])
        synopsis = Synopsis(middles, np.full((6, 1), 0.02), np.array([5.0, 5, 3, 3, 4, -4]), np.ones(6))
        for rule in ("largest_sse", "total_sse"):
            centres = bisect_cells(synopsis, 3, rule, 0)
            assert sorted(centres[:, 0]) == pytest.approx([0.11, 0.51, 0.9])
            assert len(bisect_cells(synopsis, 9, rule, 0)) == 5
        no_cells = synopsis._replace(counts=-np.ones(6))
        assert bisect_cells(no_cells, 3, "total_sse", 0).shape == (3, 1)


class TestCells:
    def test_grid_size_follows_records_times_epsilon(self) -> None:
        assert compute_cells_per_feature(10_000.0, 2) == 32  # M = 1000
        assert compute_cells_per_feature(-50.0, 2) == 2

    @pytest.mark.parametrize(
        ("d", "cells", "most", "shape"), [(2, 5, 100, (5, 5)), (2, 50, 100, (10, 10)), (9, 7, 256, (2,) * 8 + (1,))]
    )
    def test_grid_stays_below_its_limit(self, d: int, cells: int, most: int, shape: tuple[int, ...]) -> None:
        assert choose_grid_shape(d, cells, most) == shape

    @pytest.mark.parametrize(("k", "d"), [(1, 1), (15, 2), (3, 13), (256, 64)])
    def test_seed_grid_is_bounded(self, k: int, d: int) -> None:
        shape = choose_seed_grid(k, d)
        assert min(8 * k, 2048) <= np.prod(shape) <= 4096
        assert max(shape) <= 2 * min(shape)

    @pytest.mark.parametrize("params", [DpUniformGridKmeans(1.0, 3, cells=1000), DpDensityPeaks(1.0, 3, cells=100)])
    def test_rejects_too_many_cells(self, params: object) -> None:
        with pytest.raises(InvalidSpec, match="at most"):
            simulate_central(params, points(10), seed=0)  # type: ignore[arg-type]

    def test_noise_of_empty_cells_attracts_no_centre(self) -> None:
        rng = np.random.default_rng(0)
        large, small = (
            [(0.1, 0.3), (0.15, 0.7), (0.3, 0.5)],
            [(0.8, 0.2), (0.8, 0.4), (0.8, 0.6), (0.8, 0.8), (0.9, 0.9)],
        )
        true = np.array(large + small)
        points = np.repeat(true, [2000] * 3 + [100] * 5, axis=0) + rng.normal(0.0, 0.01, (6500, 2))
        for seed in range(3):
            model = simulate_central(DpUniformGridKmeans(1.0, 8), points, seed=seed)
            assert model.centroids is not None
            apart = np.linalg.norm(true[:, None] - model.centroids, axis=2)
            assert apart.min(axis=1).max() < 0.05

    def test_centre_errors_match_repeated_noise(self) -> None:
        random = np.random.default_rng(0)
        exact = np.bincount(GridCells((8, 8)).index((points(40_000) * 2**20).astype(np.int32)), minlength=64)
        centres = MIDDLES.copy()
        found = []
        for _ in range(300):
            noisy = build_grid_synopsis(
                GridCells((8, 8)), np.rint(exact + random.normal(0, 20, 64)).astype(np.int64), 400.0
            )
            kept = noisy._replace(counts=np.where(exact > 100, noisy.counts, -1.0)).positive_cells()
            labels = ((kept.middles[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
            found.append(
                [np.average(kept.middles[labels == c], axis=0, weights=kept.counts[labels == c]) for c in range(3)]
            )
        plain = build_grid_synopsis(GridCells((8, 8)), exact, 400.0)
        estimated = estimate_clusters(
            plain._replace(sides=plain.sides * 0, counts=np.where(exact > 100, exact, -1.0)), centres
        )
        assert estimated.centre_errors == pytest.approx(np.std(found, axis=0), rel=0.25)


class TestDensityPeaks:
    def test_peak_is_dense_and_far_from_denser_cells(self) -> None:
        middles = np.array([[0.1], [0.2], [0.3], [0.7], [0.8], [0.9]])
        synopsis = Synopsis(middles, np.full((6, 1), 0.05), np.array([5.0, 9, 5, 3, 4, 3]), np.ones(6))
        assert sorted(find_peaks(synopsis, 2)[:, 0]) == pytest.approx([0.2, 0.8])
        assert len(find_peaks(synopsis, 10)) == 6
        assert find_peaks(synopsis._replace(counts=-np.ones(6)), 4).shape == (4, 1)
