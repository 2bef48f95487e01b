"""Test simulated devices."""

import json

import numpy as np
import pytest
from sklearn.datasets import make_moons

from clustering.metrics import adjusted_rand_index
from clustering.rounds.tally import Tally
from clustering.simulate import SeededEntropy, collect, simulate
from sfumato.errors import InvalidPoint
from sfumato.mechanisms import design
from sfumato.privacy.accounting import DRAW_SPAN
from sfumato.specs import (
    Feature,
    GridEncoding,
    GridKmeans,
    GrrMechanism,
    LdpKmeans,
    NoisyFcm,
    Participation,
    PhaseSketch,
    RoundSpec,
    ShiftedGrid,
    ShiftedGridEncoding,
    UniformGrid,
)

XY = (Feature("x", 0, 1), Feature("y", 0, 1))


def moons(n, seed=0):
    points, labels = make_moons(n, noise=0.05, random_state=seed)
    return np.clip((points - [-1.2, -0.7]) / [3.4, 1.9], 0, 1), labels


def a_round(encoding, participation=None, kind="auto"):
    return RoundSpec(XY, encoding, design(kind, encoding.n_symbols, 10**9), participation or Participation())


class TestSeededEntropy:
    def test_equal_seeds_give_equal_words(self):
        assert SeededEntropy(1).words(5).tolist() == SeededEntropy(1).words(5).tolist()
        assert SeededEntropy(1).words(5).tolist() != SeededEntropy(2).words(5).tolist()

    def test_words_use_all_64_bits(self):
        words = SeededEntropy(3).words(4096)
        assert words.dtype == np.uint64
        for bit in range(64):
            assert 1800 < int((words >> np.uint64(bit) & np.uint64(1)).sum()) < 2300

    def test_works_for_a_device(self):
        assert design("ss", 9, 10**9).perturb(4, SeededEntropy(4)) == design("ss", 9, 10**9).perturb(
            4, SeededEntropy(4)
        )


class TestCollect:
    def test_only_participating_devices_report(self):
        points, _ = moons(1000)
        draws = SeededEntropy(1).words(1000)
        halves = [Participation(0, DRAW_SPAN // 2), Participation(DRAW_SPAN // 2, DRAW_SPAN)]
        counts = [
            collect(a_round(GridEncoding((3, 3)), half), points, SeededEntropy(2), draws).tally.n_reports
            for half in halves
        ]
        assert sum(counts) == 1000
        assert counts[0] == int((draws < np.uint64(DRAW_SPAN // 2)).sum())
        assert 400 < counts[0] < 600

    def test_slots_are_uniform_and_independent_of_points(self):
        encoding = ShiftedGridEncoding(2, 3, 2)
        points = np.full((8000, 2), 0.1)
        spec = RoundSpec(XY, encoding, GrrMechanism(16, DRAW_SPAN))
        tally = collect(spec, points, SeededEntropy(3), SeededEntropy(4).words(8000)).tally
        assert (np.abs(tally.reports - 2000) < 200).all()
        assert tally.counts[:, 0].tolist() == tally.reports.tolist()

    def test_supports_several_chunks(self, monkeypatch):
        points, _ = moons(1000)
        monkeypatch.setattr("clustering.simulate._CHUNK_POINTS", 64)
        spec = RoundSpec(XY, GridEncoding((4, 4)), GrrMechanism(16, DRAW_SPAN))
        tally = collect(spec, points, SeededEntropy(1), SeededEntropy(2).words(1000)).tally
        cells = (points * 4).astype(int).clip(0, 3)
        assert tally.counts[0].tolist() == np.bincount(cells[:, 0] * 4 + cells[:, 1], minlength=16).tolist()

    def test_no_devices_give_an_empty_tally(self):
        spec = a_round(GridEncoding((3, 3)))
        assert collect(spec, np.empty((0, 2)), SeededEntropy(1), SeededEntropy(1).words(0)).tally == Tally.empty(spec)


class TestSimulate:
    def test_equal_seeds_give_equal_models(self):
        points, _ = moons(3000)
        wires = [
            json.dumps(simulate(ShiftedGrid(epsilon=1, clusters=2), points, seed=seed).to_wire()) for seed in (5, 5, 6)
        ]
        assert wires[0] == wires[1] != wires[2]

    def test_finds_the_moons(self):
        points, labels = moons(15_000)
        model = simulate(ShiftedGrid(epsilon=4, clusters=2), points, seed=1)
        assert adjusted_rand_index(model.assign(points), labels) >= 0.99

    def test_unperturbed_keeps_the_grid_without_noise(self):
        points, labels = moons(15_000)
        params = ShiftedGrid(epsilon=0.25, clusters=2)
        noisy, exact = (simulate(params, points, seed=1, perturb=perturb) for perturb in (True, False))
        assert exact.label_map.shape == noisy.label_map.shape
        assert adjusted_rand_index(exact.assign(points), labels) >= 0.99
        assert adjusted_rand_index(noisy.assign(points), labels) < 0.9
        assert exact.diagnostics["n_eff"] is None

    @pytest.mark.parametrize(
        "params",
        [
            ShiftedGrid(4, 2),
            UniformGrid(4, 2),
            NoisyFcm(24, 2),
            GridKmeans(2, 2),
            LdpKmeans(4, 2),
            PhaseSketch(4, 2, slots=64, refine="none"),
            PhaseSketch(4, 2, slots=64, refine="lloyd"),
        ],
        ids=repr,
    )
    def test_results_are_in_the_units_of_the_features(self, params):
        points, _ = moons(3000)
        units = (Feature("lon", -10, 10, "deg"), Feature("lat", 100, 300, "deg"))
        plain, scaled = simulate(params, points, seed=1), simulate(params, points, seed=1, features=units)
        assert scaled.features == units
        assert scaled.centroids == pytest.approx(plain.centroids * [20, 200] + [-10, 100])
        assert scaled.centroid_errors == pytest.approx(plain.centroid_errors * [20, 200])
        assert plain.features[1].name == "x2"

    @pytest.mark.parametrize(
        "points",
        [[[0.5, 1.1]], [[0.5, -0.1]], [[0.5, float("nan")]], [[0.5, float("inf")]], [0.5, 0.5], [[], []], [[0.5]]],
    )
    def test_rejects_points_outside_the_box_or_of_other_width(self, points):
        with pytest.raises(InvalidPoint):
            simulate(ShiftedGrid(epsilon=1), points, seed=1, features=XY)
