"""Kernels: rows that compare like with like, and answers that must agree before they are timed."""

import ast
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from benchmarks.speed import before, kernels, kernels_decoding, kernels_ends, kernels_peers
from benchmarks.speed.agreement import Disagreement, agree, near
from benchmarks.speed.kernels import Case
from benchmarks.speed.kernels_decoding import People
from benchmarks.speed.row import Setting
from clustering.deconvolution import deconvolve
from clustering.fuzzy import KINDS, ROUNDING
from clustering.kernels.fuzzy import fuzzy_step
from clustering.kernels.weighted_lloyd import weighted_lloyd_step
from clustering.phase_search import PublicWords
from clustering.simulate import simulate
from clustering.weighted_kmeans import TRIALS, seeds
from sfumato.specs import Distance, ShiftedGrid, UniformGrid

SETTING = Setting(quick=True, turns=1, progress=lambda _: None)
SMALL = Case(400, 3, 4, 0.05)


class TestAgreement:
    @pytest.mark.parametrize(
        ("ours", "theirs", "within"),
        [([1.0, 2.0], [1.0, 2.0], 0.0), ([1.0, 2.0], [1.0, 2.0 + 1e-9], 1e-9), ([], [], 0.0)],
    )
    def test_lets_what_is_near_enough_pass(self, ours, theirs, within):
        agree("numbers", ours, theirs, within)

    @pytest.mark.parametrize(
        ("ours", "theirs", "within"),
        [([1.0], [1.0 + 1e-12], 0.0), ([1.0, 2.0], [1.0], 1.0), ([np.nan], [1.0], 1.0), ([1.1], [1.0], 0.05)],
    )
    def test_stops_what_is_not(self, ours, theirs, within):
        with pytest.raises(Disagreement, match="numbers"):
            agree("numbers", ours, theirs, within)

    def test_shares_are_held_to_the_truth_by_their_own_noise(self):
        near("shares", [0.1, 0.9], [0.11, 0.89], 0.01)
        with pytest.raises(Disagreement, match=r"off by 0\.1"):
            near("shares", [0.1, 0.9], [0.2, 0.8], 0.01)
        with pytest.raises(Disagreement):
            near("shares", [np.nan], [0.0], 1.0)


class TestBefore:
    @pytest.mark.parametrize("case", [SMALL, Case(300, 9, 5, 0.1), Case(130, 1, 2, 0.1)])
    def test_the_kernels_of_before_say_the_same_to_the_last_bit(self, case):
        points, weights, start = case.made()
        found = [kernels._step(points, weights, start, k) for k in (before.weighted_lloyd_step, weighted_lloyd_step)]
        assert found[0][0].tolist() == found[1][0].tolist()
        assert found[0][1] == found[1][1]
        old = before.seeds(points, weights, case.n_clusters, PublicWords(5), TRIALS)
        assert seeds(points, weights, case.n_clusters, PublicWords(5)).tolist() == old.tolist()

    @pytest.mark.parametrize("distance", get_args(Distance))
    @pytest.mark.parametrize("m", [1.5, 2.0])
    @pytest.mark.parametrize(("n", "d", "c"), [(1, 1, 1), (127, 2, 5), (128, 8, 16), (129, 3, 2), (300, 7, 3)])
    def test_fuzzy_steps_of_before_say_the_same_but_for_the_order_of_their_sums(self, distance, m, n, d, c):
        rng = np.random.default_rng([n, d])
        points, centres, sigma = rng.normal(size=(n, d)), rng.normal(size=(c, d)), 0.3
        found = [np.empty((c, d)), np.empty((c, d)), np.empty(c)]
        expected = [np.empty((c, d)), np.empty((c, d)), np.empty(c)]
        kind, rounding = KINDS[distance], ROUNDING * sigma
        objective = fuzzy_step(points, centres, kind, m, sigma, rounding, *found)
        assert objective == pytest.approx(before.fuzzy_step(points, centres, kind, m, sigma, rounding, *expected))
        sums, masses, shares = found
        # sums are of terms of both signs: the largest there can be is what their rounding is a share of
        assert sums == pytest.approx(expected[0], rel=1e-10, abs=1e-13 * (np.abs(points).max() * masses).max())
        assert masses == pytest.approx(expected[1], rel=1e-11)
        assert shares == pytest.approx(expected[2], rel=1e-11)
        assert shares.sum() == pytest.approx(n, rel=1e-14)


class TestKMeansRows:
    @pytest.mark.slow
    @pytest.mark.ci
    def test_each_case_is_held_to_both_ways_of_the_peer_and_to_itself_before(self):
        rows = list(kernels._k_means(SETTING, SMALL))
        assert [row.reference.split(" ")[0] for row in rows] == ["scikit-learn"] * 2 + [
            "before:",
            "scikit-learn",
            "before:",
        ]
        assert all(row.group == "kernels" and row.bar == 1.0 and row.ratio > 0 for row in rows)

    def test_the_inertia_of_mini_batches_is_reached(self):
        row = kernels._mini_batch(SETTING, SMALL)
        assert "MiniBatchKMeans" in row.reference
        assert row.ours > 0

    def test_the_row_of_two_threads_says_so(self):
        assert "TWO THREADS" in kernels._two_threads(SETTING, SMALL).name


class TestPeers:
    def test_every_function_that_is_called_is_there(self):
        called = set()
        for module in (kernels, kernels_ends, kernels_decoding):
            for node in ast.walk(ast.parse(Path(module.__file__).read_text())):
                if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "call":
                    called |= {node.args[0].value} if isinstance(node.args[0], ast.Constant) else set()
        called |= {"pure_response", "multi_response", "pure_hashed", "multi_hashed", "pure_signs"}
        assert len(called) > 10
        assert [name for name in called if not callable(getattr(kernels_peers, name, None))] == []

    def test_reports_of_signs_are_those_of_a_client_that_hardly_lies(self):
        symbols = np.random.default_rng(1).integers(0, 6, 5_000)
        kernels_peers.report_signs(symbols, epsilon=30.0, cells=6, seed=1)
        reports = np.array(kernels_peers.held.pop("reports"))
        assert (np.bitwise_count(reports & (symbols + 1)) % 2 == 0).all()
        assert set(reports) <= set(range(8))


class TestEnds:
    def test_the_servers_part_is_the_simulations_but_for_the_coins(self):
        (shape,) = (shape for shape in kernels_ends.SHAPES if shape.name == "rings")
        points, truth = shape.sample(20_000, seed=1)
        for params in (UniformGrid(epsilon=4.0, clusters=4), ShiftedGrid(epsilon=4.0, clusters=4, cells=16)):
            model = kernels_ends.server(params, kernels_ends.reports_of(params, points))
            whole = simulate(params, points, seed=1)
            assert model.diagnostics["n_reports"] == whole.diagnostics["n_reports"] == 20_000
            kernels_ends._check("ours", model.assign(points), truth)

    def test_what_finds_other_clusters_is_no_row(self):
        truth = np.arange(100) % 4
        with pytest.raises(Disagreement, match="finds other clusters"):
            kernels_ends._check("a peer", np.random.default_rng(1).integers(0, 4, 100), truth)


class TestDecoding:
    @pytest.mark.parametrize("kind", ["grr", "ss", "olh", "hr"])
    def test_shares_are_near_the_truth(self, kind):
        people = People.drawn(kind, (6, 6), 2.0, 5_000)
        near("shares", people.shares(people.reports()), people.truth, people.deviation)
        assert len(people.reports(3)) == 15_000

    @pytest.mark.parametrize(("cells", "n_features"), [(16, 2), (8, 3)])
    def test_the_plain_fit_of_the_field_ends_where_ours_does(self, cells, n_features):
        seen, precision = kernels_decoding._seen(cells, n_features, 3)
        given = {"shifts": 3, "precision": precision, "length_scale": 0.1, "amplitude": 2.0}
        ours = deconvolve(seen, **given, steps=300).loss
        assert ours == pytest.approx(kernels_decoding.plain_fit(seen, **given, steps=300), rel=2e-3)
