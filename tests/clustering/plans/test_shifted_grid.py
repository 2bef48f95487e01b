"""`shifted_grid`: the round it asks for, and what it counts as a cluster."""

import numpy as np
import pytest
from sklearn.datasets import make_circles, make_moons

from clustering.metrics import adjusted_rand_index
from clustering.plan import Collected, drive
from clustering.plans.shifted_grid import fit, shifted_grid
from clustering.simulate import SeededEntropy, collect, simulate
from sfumato.mechanisms import epsilon_nano
from sfumato.sizing import shifted_grid_cells
from sfumato.specs import Draw, Feature, RoundSpec, ShiftedGrid, ShiftedGridEncoding

XY = (Feature("x", 0, 1), Feature("y", 0, 1))


def unit(points):
    lower, upper = points.min(axis=0), points.max(axis=0)
    return (points - lower) / (upper - lower) * 0.96 + 0.02


def blobs(n, seed=1, share=0.5):
    rng = np.random.default_rng(seed)
    labels = (rng.random(n) >= share).astype(int)
    centres = np.array([[0.3, 0.3], [0.7, 0.7]])
    return (centres[labels] + rng.normal(0, 0.07, (n, 2))).clip(0, 1), labels


class TestRound:
    def test_is_one_at_the_full_epsilon_for_every_draw(self):
        spec = next(shifted_grid(ShiftedGrid(epsilon=2, cells=7, shifts=3), XY, 1000))
        assert spec.encoding == ShiftedGridEncoding(2, 7, 3)
        assert spec.draw == Draw()
        assert spec.mechanism.type == "ss"
        assert 2e9 - 10 <= epsilon_nano(spec.mechanism) <= 2e9

    @pytest.mark.parametrize(
        ("n_features", "n_reports", "epsilon", "cells"),
        [
            (2, 15_000, 1, 8),
            (2, 400_000, 1, 12),
            (2, 10**7, 1, 16),
            (1, 15_000, 1, 16),
            (3, 15_000, 1, 5),
            (3, 400_000, 1, 6),
            (3, 10**7, 1, 8),
            (2, 10**7, 0.1, 8),
            (2, 1, 32, 16),
        ],
    )
    def test_grid_grows_with_the_effective_reports(self, n_features, n_reports, epsilon, cells):
        assert shifted_grid_cells(n_features, n_reports, int(epsilon * 1e9)) == cells


class TestShapes:
    @pytest.mark.parametrize(
        ("make", "n", "epsilon", "least"),
        [
            (make_moons, 15_000, 2, 0.99),
            (make_moons, 150_000, 1, 0.99),
            (make_circles, 15_000, 4, 0.99),
            (make_circles, 150_000, 2, 0.99),
        ],
    )
    def test_are_found(self, make, n, epsilon, least):
        shape = {"factor": 0.5} if make is make_circles else {}
        points, labels = make(n, noise=0.05, random_state=1, **shape)
        points = unit(points)
        model = simulate(ShiftedGrid(epsilon=epsilon, clusters=2), points, seed=1)
        assert adjusted_rand_index(model.assign(points), labels) >= least

    def test_a_few_people_beside_many_are_found_when_they_are_known_to_be_there(self):
        heavy = [(0.1, 0.2), (0.12, 0.8), (0.3, 0.5)]
        light = [(0.7, 0.3), (0.7, 0.7), (0.85, 0.2), (0.85, 0.5), (0.9, 0.85)]
        rng = np.random.default_rng(3)
        labels = rng.choice(8, 200_000, p=[0.31] * 3 + [0.014] * 5)
        width = np.where(labels < 3, 0.01, 0.03)[:, None]
        points = (np.array(heavy + light)[labels] + width * rng.standard_normal((200_000, 2))).clip(0, 1)
        model = simulate(ShiftedGrid(epsilon=4, clusters=8), points, seed=3)
        assert model.n_clusters == 8
        assert adjusted_rand_index(model.assign(points), labels) > 0.99

    def test_sizes_and_centres_are_those_of_the_people(self):
        points, _ = blobs(200_000, share=0.7)
        model = simulate(ShiftedGrid(epsilon=1, clusters=2), points, seed=2)
        assert (np.abs(model.sizes - [0.7, 0.3]) < 3 * model.size_errors).all()
        assert (model.size_errors < 0.03).all()
        assert model.centroids == pytest.approx(np.array([[0.3, 0.3], [0.7, 0.7]]), abs=0.03)


class TestCounting:
    def test_counts_the_clusters_when_not_told(self):
        points, labels = blobs(100_000)
        model = simulate(ShiftedGrid(epsilon=2), points, seed=3)
        assert model.n_clusters == 2
        assert model.diagnostics["detectable"] == [True, True]
        assert model.warnings == ()
        assert adjusted_rand_index(model.assign(points), labels) > 0.98

    def test_counts_from_few_reports_only_what_is_clear_and_says_how_many_would_do(self):
        points, labels = blobs(20_000)
        model = simulate(ShiftedGrid(epsilon=1), points, seed=4)
        assert model.diagnostics["low_confidence"] is True
        assert adjusted_rand_index(model.assign(points), labels) > 0.9
        needed = model.diagnostics["reports_needed"]
        assert needed == pytest.approx(1e4 / np.sinh(0.5) ** 2, rel=1e-3)
        assert f"about {needed} would do" in model.warnings[0]
        enough = simulate(ShiftedGrid(epsilon=1), blobs(needed + 100)[0], seed=4)
        assert enough.diagnostics["low_confidence"] is False
        assert enough.warnings == ()

    def test_tells_noise_from_clusters(self):
        points = np.random.default_rng(5).random((100_000, 2))
        counted = simulate(ShiftedGrid(epsilon=4), points, seed=5)
        assert counted.n_clusters == 1
        told = simulate(ShiftedGrid(epsilon=1, clusters=4), points, seed=5)
        assert not all(told.diagnostics["detectable"])
        assert "noise could have made" in told.warnings[-1]

    @pytest.mark.parametrize("epsilon", [1, 2])
    def test_people_spread_evenly_are_seldom_called_clusters(self, epsilon):
        counts = [
            simulate(
                ShiftedGrid(epsilon=epsilon), np.random.default_rng(seed).random((50_000, 2)), seed=100 + seed
            ).n_clusters
            for seed in range(5)
        ]
        assert sum(count > 1 for count in counts) <= 1
        assert max(counts) <= 3


class TestFit:
    def test_takes_v_and_the_grid_from_the_published_round(self):
        points, _ = blobs(60_000)
        asked = next(shifted_grid(ShiftedGrid(epsilon=3, cells=5, shifts=5), XY, 10))
        answered = collect(asked, points, SeededEntropy(6), SeededEntropy(7).words(len(points)))
        one = fit(ShiftedGrid(epsilon=3, clusters=2), answered)
        other = fit(ShiftedGrid(epsilon=0.01, clusters=2, cells=16, shifts=2), answered)
        assert one.to_wire() == other.to_wire()
        assert one.label_map.shape == (25, 25)

    def test_a_round_for_half_the_draws_has_half_the_reports(self):
        points, labels = blobs(60_000)
        asked = next(shifted_grid(ShiftedGrid(epsilon=3), XY, len(points)))
        half = RoundSpec(XY, asked.encoding, asked.mechanism, Draw.between(0.5, 1))

        def answer(_):
            return collect(half, points, SeededEntropy(8), SeededEntropy(9).words(len(points)))

        model = drive(shifted_grid(ShiftedGrid(epsilon=3, clusters=2), XY, len(points)), answer)
        assert 29_000 < model.diagnostics["n_reports"] < 31_000
        assert adjusted_rand_index(model.assign(points), labels) > 0.98

    def test_a_slot_nobody_drew_is_left_out(self):
        points, labels = blobs(60_000)
        spec = next(shifted_grid(ShiftedGrid(epsilon=4), XY, len(points)))
        tally = collect(spec, points, SeededEntropy(10), SeededEntropy(11).words(len(points))).tally
        tally.counts[3] = 0
        tally.reports[3] = 0
        model = fit(ShiftedGrid(epsilon=4, clusters=2), Collected(spec, tally))
        assert adjusted_rand_index(model.assign(points), labels) > 0.98
