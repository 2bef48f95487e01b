"""Test the label map over records: shapes, trust figures, noise, degenerate input and refusals."""

import json
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from clustering.central.algorithms.density_map import count_map, density_map
from clustering.central.noise import laplace_variance
from clustering.central.run import run
from clustering.density.count_fit import draw_counts, halve_counts, noise_variance
from clustering.metrics import adjusted_rand_index
from clustering.simulate import simulate, simulate_central
from sfumato.errors import InvalidSpec
from sfumato.model.cluster_model import ClusterModel, model_from_wire
from sfumato.privacy.accounting import NANO
from sfumato.sizing.grids import MAP_INFORMATION, choose_map_grid
from sfumato.specs import LATTICE, DensityMap, Feature
from tests.clustering.central.journals import KeepingJournal, NoEntropy, curator_of


def rings(n: int = 20_000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return a disc inside a ring, and the part of each point."""
    rng = np.random.default_rng(seed)
    part = rng.integers(0, 2, n)
    angle, radius = rng.uniform(0, 2 * np.pi, n), np.where(part == 0, rng.normal(0, 0.04, n), rng.normal(0.35, 0.02, n))
    return (0.5 + radius[:, None] * np.c_[np.cos(angle), np.sin(angle)]).clip(0, 1), part


def agreement(model: ClusterModel, points: np.ndarray, part: np.ndarray) -> float:
    return adjusted_rand_index(part, model.assign(points))


class TestShapes:
    def test_finds_a_ring_around_a_disc_where_centroids_cannot(self) -> None:
        points, part = rings()
        model = simulate_central(DensityMap(0.5, 2, cells=32), points, seed=1)
        assert agreement(model, points, part) > 0.99
        assert model.sizes == pytest.approx([0.5, 0.5], abs=0.03)
        assert model.diagnostics["detectable"] == [True, True]
        assert not model.diagnostics["low_confidence"]
        assert model.warnings == ()
        assert model.diagnostics["noisy_count"] == pytest.approx(20_000, rel=0.05)
        assert [query["description"] for query in model.diagnostics["odometer"]] == ["count", "counts"]

    @pytest.mark.parametrize("d", [1, 2, 3])
    @pytest.mark.parametrize("clusters", [3, None])
    def test_finds_three_blobs_in_one_to_three_features(self, d: int, clusters: int | None) -> None:
        rng = np.random.default_rng(d)
        part = rng.integers(0, 3, 20_000)
        points = (np.array([0.2, 0.5, 0.85])[part][:, None] + rng.normal(0, 0.04, (20_000, d))).clip(0, 1)
        model = simulate_central(DensityMap(1.0, clusters, cells={1: 64, 2: 24, 3: 12}[d]), points, seed=1)
        assert agreement(model, points, part) > 0.97
        assert np.sort(model.centroids, axis=0) == pytest.approx(np.array([[0.2] * d, [0.5] * d, [0.85] * d]), abs=0.02)

    def test_counts_one_cluster_in_one_bump(self) -> None:
        points = np.random.default_rng(2).normal(0.5, 0.12, (20_000, 2)).clip(0, 1)
        assert simulate_central(DensityMap(1.0, cells=24), points, seed=1).n_clusters == 1

    def test_the_grid_becomes_finer_with_records_times_epsilon(self) -> None:
        sides = [choose_map_grid(2, information)[0] for information in (-5.0, 700, 3000, 1e5)]
        assert sides == sorted(set(sides))
        assert all(choose_map_grid(d, 10.0)[0] < choose_map_grid(d, 1e6)[0] for d in (1, 3))
        model = simulate_central(DensityMap(1.0, 2, cells=10, length_scale=0.1), rings()[0], seed=1)
        assert (model.label_map.shape, model.diagnostics["length_scale"]) == ((10, 10), 0.1)


class TestTrust:
    def test_sizes_are_within_their_errors(self) -> None:
        points, _ = rings(5_000)
        for seed in range(3):
            model = simulate_central(DensityMap(0.3, 2, cells=24), points, seed=seed)
            true_shares = np.bincount(model.assign(points), minlength=2) / len(points)
            assert (np.abs(model.sizes - true_shares) < 3 * model.size_errors).all()
            assert (model.size_errors < 0.2).all()

    def test_errors_of_sizes_cover_the_sampling_of_people(self) -> None:
        normalised = []
        for seed in range(24):
            model = simulate_central(DensityMap(4.0, 2, cells=16), rings(1_000, seed)[0], seed=seed)
            normalised.append((model.sizes[0] - 0.5) / model.size_errors[0])
        assert 0.6 < np.sqrt(np.mean(np.square(normalised))) < 1.5

    def test_the_expected_error_rises_as_noise_rises(self) -> None:
        points, _ = rings(4_000)
        clear, noisy = (simulate_central(DensityMap(e, 2, cells=16), points, seed=3).diagnostics for e in (4.0, 0.02))
        assert clear["expected_error"] < 0.02
        assert noisy["expected_error"] > 0.1
        assert (clear["low_confidence"], noisy["low_confidence"]) == (False, True)

    def test_records_needed_are_enough(self) -> None:
        needed = simulate_central(DensityMap(0.1, 2, cells=8), rings(1_000)[0], seed=1).diagnostics["records_needed"]
        assert needed == MAP_INFORMATION / 0.1
        assert not simulate_central(DensityMap(0.1, 2, cells=8), rings(2 * needed)[0], seed=1).diagnostics[
            "low_confidence"
        ]


class TestAnswers:
    @pytest.mark.parametrize("clusters", [2, None])
    def test_the_answers_alone_make_the_model(self, clusters: int | None) -> None:
        params, features = DensityMap(1.0, clusters, cells=16), (Feature("x", -3.0, 5.0), Feature("y", 0.0, 1.0))
        journal = KeepingJournal()
        made = run(params, features, curator_of((rings(5_000)[0] * LATTICE), journal=journal)).to_wire()
        replayed = KeepingJournal(journal.answers)
        again = run(params, features, curator_of(np.zeros((0, 2)), journal=replayed, entropy=NoEntropy()))
        assert again.to_wire() == made
        assert (replayed.charges, replayed.n_kept) == (journal.charges, 0)
        assert sum(query.epsilon_nano for query in journal.charges) == NANO
        assert made["privacy"]["diagnostics"] == "dp"
        other = run(params, features, curator_of(np.zeros((0, 2))))
        assert other.density.tolist() != made["density"]


class TestNoise:
    @staticmethod
    def deviation(max_per_user: int, scale: Fraction) -> float:
        """Return the relative excess of the mean noise of 4,096 counts over that of this scale."""
        points = (rings(20_000)[0] * LATTICE).astype(np.int32)
        curator = curator_of(points, NANO, max_per_user=max_per_user, seed=5)
        noisy = count_map(DensityMap(1.0, 2, cells=64), 2, curator)
        assert noisy.scale == pytest.approx(100 * max_per_user / 98)
        exact = np.histogramdd(points, bins=64, range=[(0, LATTICE)] * 2)[0]
        expected = 1 / np.sinh(1 / float(scale))  # E|z| of discrete Laplace noise
        return float(np.abs(noisy.counts - exact).mean() / expected - 1)

    @pytest.mark.parametrize("max_per_user", [1, 4])
    def test_has_the_scale_of_98_percent_of_epsilon_and_grows_with_records_per_user(self, max_per_user: int) -> None:
        scale = Fraction(max_per_user * 100, 98)
        assert abs(self.deviation(max_per_user, scale)) < 0.08  # five standard errors
        assert self.deviation(max_per_user, scale * Fraction(7, 10)) > 0.3
        assert self.deviation(max_per_user, scale * Fraction(13, 10)) < -0.2

    @pytest.mark.parametrize("scale", [0.03, 0.5, 4.0, 200.0])
    def test_synthetic_counts_have_the_noise_of_the_curator(self, scale: float) -> None:
        exact = draw_counts(np.full(40_000, 1 / 40_000), 1e5, scale, 2, None)
        noisy = draw_counts(np.full(40_000, 1 / 40_000), 1e5, scale, 2, 0)
        assert exact.sum() == 100_000
        assert noise_variance(scale) == pytest.approx(laplace_variance(Fraction(scale)))
        assert (noisy - exact).var() == pytest.approx(noise_variance(scale), rel=0.06, abs=1e-4)

    def test_halves_of_counts_are_independent_and_add_up(self) -> None:
        counts = draw_counts(np.full(40_000, 1 / 40_000), 1e6, 4.0, 2, 0)
        variances = np.full(40_000, 25 + noise_variance(4.0))
        one, other = halve_counts(counts, variances)
        assert (one + other == counts).all()
        assert [one.var(), other.var()] == pytest.approx([variances[0] / 2] * 2, rel=0.06)
        assert np.corrcoef(one, other)[0, 1] == pytest.approx(0, abs=0.03)


class TestBadInput:
    @pytest.mark.parametrize(
        ("n", "d", "epsilon", "clusters"),
        [(0, 1, 0.0001, 5), (0, 2, 1.0, None), (3, 3, 1.0, 20), (6000, 2, 1e-6, 3), (1, 2, 32.0, None)],
    )
    def test_few_records_or_little_epsilon_give_a_flagged_map(
        self, n: int, d: int, epsilon: float, clusters: int | None
    ) -> None:
        model = simulate_central(DensityMap(epsilon, clusters), np.full((n, d), 0.3), seed=2)
        read = model_from_wire(json.loads(json.dumps(model.to_wire(), allow_nan=False)))
        assert 1 <= read.n_clusters <= (clusters or 256)
        assert set(np.unique(read.label_map)) == set(range(read.n_clusters))
        assert model.diagnostics["low_confidence"]
        assert "are few for a label map" in model.warnings[0]

    def test_all_records_in_one_cell_are_one_cluster(self) -> None:
        model = simulate_central(DensityMap(1.0, cells=24), np.full((20_000, 2), 0.3), seed=3)
        assert model.n_clusters == 1
        assert model.centroids[0] == pytest.approx([0.3, 0.3], abs=0.05)

    def test_more_clusters_than_bumps_are_not_invented(self) -> None:
        model = simulate_central(DensityMap(1.0, 256, cells=4), rings()[0], seed=3)
        assert model.n_clusters < 16
        assert f"256 clusters were requested, but only {model.n_clusters} bumps were found." in model.warnings

    @pytest.mark.parametrize(
        ("params", "d", "text"),
        [
            (DensityMap(1.0, 2), 0, "1 to 3 features"),
            (DensityMap(1.0, 2), 4, "1 to 3 features"),
            (DensityMap(1.0, 2, cells=41), 3, "65536 cells"),
            (DensityMap(1.0, 2, cells=257), 2, "65536 cells"),
        ],
    )
    def test_impossible_maps_are_rejected_before_any_charge(self, params: DensityMap, d: int, text: str) -> None:
        curator = curator_of(np.zeros((5, d)), entropy=NoEntropy())
        with pytest.raises(InvalidSpec, match=text):
            density_map(params, tuple(Feature(f"x{i}", 0.0, 1.0) for i in range(d)), curator)
        assert curator.odometer == ()

    @pytest.mark.parametrize(
        "wrong", [{"clusters": 0}, {"cells": 1}, {"length_scale": 0.0}, {"amplitude": float("nan")}, {"epsilon": 0}]
    )
    def test_parameters_out_of_range_are_rejected(self, wrong: dict[str, float]) -> None:
        with pytest.raises(InvalidSpec):
            replace(DensityMap(1.0, 2), **wrong)


class TestCircle:
    HOUR = (Feature("hour", 0, 24, "h", periodic=True),)

    def test_two_peaks_about_midnight(self) -> None:
        rng = np.random.default_rng(4)
        part = rng.integers(0, 2, 20_000)
        hours = (np.where(part == 0, -1.6, 1.6) + rng.normal(0, 0.7, len(part))) % 24
        model = simulate_central(DensityMap(1.0, 2), hours[:, None] / 24, seed=1, features=self.HOUR)
        assert model.centroids is not None
        assert np.sort(model.centroids.ravel()) == pytest.approx([1.6, 22.4], abs=0.3)
        assert agreement(model, hours[:, None], part) > 0.9
        assert not [text for text in model.warnings if "bounds" in text]

    def test_a_turn_of_the_circle_turns_the_result(self) -> None:
        points = np.random.default_rng(5).normal([0.5, 0.4], 0.05, (20_000, 2)).clip(0, 1)
        features = (*self.HOUR, Feature("x", 0, 1))
        turned = np.column_stack([(points[:, 0] + 0.5) % 1, points[:, 1]])
        params = DensityMap(32.0, 1, cells=32)
        own, other = (simulate_central(params, each, seed=1, features=features) for each in (points, turned))
        assert own.density is not None
        assert other.density is not None
        assert own.centroids is not None
        assert other.centroids is not None
        assert own.centroid_errors is not None
        assert np.roll(own.density, 16, axis=0) == pytest.approx(other.density, abs=5e-4)
        assert (own.centroids[0, 0] + 12) % 24 == pytest.approx(other.centroids[0, 0], abs=0.05)
        assert own.centroid_errors == pytest.approx(other.centroid_errors, rel=0.05)

    def test_a_record_beyond_the_bounds_is_moved_by_whole_periods(self) -> None:
        hours = np.random.default_rng(6).normal(2.0, 0.5, (5000, 1))
        params = DensityMap(32.0, 1, cells=32)
        maps = [
            simulate(params, each / 24, seed=1, features=self.HOUR, out_of_bounds="clip")
            for each in (hours, hours - 24)
        ]
        assert maps[0].density is not None
        assert maps[1].density is not None
        assert maps[0].density.tolist() == maps[1].density.tolist()
