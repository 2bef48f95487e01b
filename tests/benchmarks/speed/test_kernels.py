"""Kernels: comparisons with peers, and results that must agree before they are timed."""

import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks.peers import peer_functions
from benchmarks.speed import fold
from benchmarks.speed.harness.measurement import Disagreement, Setting, agree, near
from benchmarks.speed.kernels import algorithms, decoding, k_means
from benchmarks.speed.kernels.decoding import People
from benchmarks.speed.kernels.k_means import Case
from clustering.density.deconvolution import deconvolve
from clustering.simulate import simulate
from sfumato.specs import ShiftedGrid, UniformGrid

pytestmark = pytest.mark.release

SETTING = Setting(quick=True, turns=1, progress=lambda _: None)
SMALL = Case(400, 3, 4, 0.05)


class TestAgreement:
    @pytest.mark.parametrize(
        ("ours", "theirs", "within"),
        [([1.0, 2.0], [1.0, 2.0], 0.0), ([1.0, 2.0], [1.0, 2.0 + 1e-9], 1e-9), ([], [], 0.0)],
    )
    def test_near_results_agree(self, ours, theirs, within):
        agree("numbers", ours, theirs, within)  # does not raise
        with pytest.raises(Disagreement):
            agree("numbers", ours, [*theirs, 1.0], within)

    @pytest.mark.parametrize(
        ("ours", "theirs", "within"),
        [([1.0], [1.0 + 1e-12], 0.0), ([1.0, 2.0], [1.0], 1.0), ([np.nan], [1.0], 1.0), ([1.1], [1.0], 0.05)],
    )
    def test_other_results_raise_an_error(self, ours, theirs, within):
        with pytest.raises(Disagreement, match="numbers"):
            agree("numbers", ours, theirs, within)

    def test_shares_are_compared_with_the_truth_by_their_noise(self):
        near("shares", [0.1, 0.9], [0.11, 0.89], 0.01)
        with pytest.raises(Disagreement, match=r"off by 0\.1"):
            near("shares", [0.1, 0.9], [0.2, 0.8], 0.01)
        with pytest.raises(Disagreement):
            near("shares", [np.nan], [0.0], 1.0)


class TestKMeansRows:
    @pytest.mark.release
    def test_each_case_is_compared_with_both_algorithms_of_the_peer(self):
        rows = list(k_means._k_means(SETTING, SMALL))
        assert [row.reference.split(" ")[0] for row in rows] == ["scikit-learn"] * 3
        assert all(row.bar == 1.0 and row.ratio > 0 for row in rows)
        assert "TWO THREADS" in k_means._two_threads(SETTING, SMALL).name

    def test_the_inertia_of_mini_batches_is_reached(self):
        row = k_means._mini_batch(SETTING, SMALL)
        assert "MiniBatchKMeans" in row.reference
        assert row.ours > 0


class TestPeers:
    def test_every_called_function_exists(self):
        text = "".join(Path(module.__file__).read_text() for module in (k_means, algorithms, decoding, fold))
        called = set(re.findall(r'(?:peer\.call|partial\(peer\.call),? ?\(?"(\w+)"', text))
        assert {"k_means", "density_clusters", "store_reports", "count_reports"} <= called
        assert [name for name in called if not callable(getattr(peer_functions, name, None))] == []


class TestAlgorithms:
    def test_the_servers_part_equals_the_simulation_except_for_noise(self):
        (shape,) = (shape for shape in algorithms.SHAPES if shape.name == "rings")
        points, truth = shape.sample(20_000, seed=1)
        for params in (UniformGrid(epsilon=4.0, clusters=4), ShiftedGrid(epsilon=4.0, clusters=4, cells=16)):
            model = algorithms.server(params, algorithms.reports_of(params, points))
            whole = simulate(params, points, seed=1)
            assert model.diagnostics["n_reports"] == whole.diagnostics["n_reports"] == 20_000
            algorithms._check("ours", model.assign(points), truth)

    def test_other_clusters_raise_an_error(self):
        truth = np.arange(100) % 4
        with pytest.raises(Disagreement, match="finds other clusters"):
            algorithms._check("a peer", np.random.default_rng(1).integers(0, 4, 100), truth)


class TestDecoding:
    @pytest.mark.parametrize("kind", ["grr", "ss", "olh", "hr"])
    def test_shares_are_near_the_truth(self, kind):
        people = People.sample(kind, (6, 6), 2.0, 5_000)
        people.check("shares", people.shares(people.reports()))
        assert len(people.reports(3)) == 15_000

    @pytest.mark.parametrize(("cells", "n_features"), [(16, 2), (8, 3)])
    def test_the_plain_fit_of_the_field_has_the_same_loss(self, cells, n_features):
        seen, precision = decoding._seen(cells, n_features, 3)
        given = {"shifts": 3, "precision": precision, "length_scale": 0.1, "amplitude": 2.0}
        ours = deconvolve(seen, **given, steps=300).loss
        assert ours == pytest.approx(decoding.plain_fit(seen, **given, steps=300), rel=2e-3)
