"""What every grid plan does with too little, too much or the wrong thing: a clear error or a flagged model."""

import json

import numpy as np
import pytest

from clustering.errors import TooFewReports, UnfitRound
from clustering.plan import Collected, Tally, drive
from clustering.registry import start
from clustering.simulate import SeededEntropy, collect, simulate
from sfumato.accounting import DRAW_SPAN
from sfumato.errors import InvalidSpec
from sfumato.mechanisms import design
from sfumato.specs import (
    Feature,
    GridEncoding,
    GrrMechanism,
    RoundSpec,
    ShiftedGrid,
    ShiftedGridEncoding,
    UniformGrid,
)

ALGORITHMS = [ShiftedGrid, UniformGrid]


def features(n):
    return tuple(Feature(f"x{i}", 0, 1) for i in range(n))


def published(encoding, mechanism=None):
    return RoundSpec(features(encoding.n_features), encoding, mechanism or design("auto", encoding.n_symbols, 10**9))


def assert_sound(model):
    """Every number of the released document is finite, and shares are shares."""
    json.dumps(model.to_wire(), allow_nan=False)
    assert model.sizes.sum() == pytest.approx(1)
    assert (model.sizes >= 0).all()
    assert (model.size_errors >= 0).all()
    assert model.density.sum() == pytest.approx(1)
    assert (model.density >= 0).all()
    assert np.unique(model.label_map).tolist() == list(range(model.n_clusters))
    assert len(model.centroids) == model.n_clusters
    assert model.centroid_errors.shape == model.centroids.shape
    assert (model.centroid_errors >= 0).all()
    assert (model.centroid_errors <= 1).all()  # of the range; more is not to be said
    assert 0 <= model.diagnostics["expected_error"] <= 1
    assert set(model.privacy) == set(model.to_wire())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
class TestReports:
    def test_none_is_too_few(self, algorithm):
        with pytest.raises(TooFewReports) as caught:
            simulate(algorithm(epsilon=1), np.empty((0, 2)), seed=1)
        assert (caught.value.n_reports, caught.value.n_needed) == (0, 1)
        assert caught.value.code == "too_few_reports"

    @pytest.mark.parametrize("perturb", [True, False])
    @pytest.mark.parametrize("n", [1, 2, 30])
    @pytest.mark.parametrize("clusters", [None, 3])
    def test_few_make_a_flagged_model(self, algorithm, n, clusters, perturb):
        points = np.random.default_rng(1).random((n, 2))
        model = simulate(algorithm(epsilon=1, clusters=clusters), points, seed=1, perturb=perturb)
        assert_sound(model)
        if perturb:
            assert model.diagnostics["low_confidence"] is True
            assert f"about {model.diagnostics['reports_needed']} would" in model.warnings[0]

    @pytest.mark.parametrize("clusters", [None, 1, 2])
    @pytest.mark.parametrize("perturb", [True, False])
    @pytest.mark.parametrize("place", [0.0, 0.41, 1.0])
    def test_all_in_one_cell_make_a_model(self, algorithm, clusters, perturb, place):
        points = np.full((50_000, 2), place)
        model = simulate(algorithm(epsilon=2, clusters=clusters), points, seed=2, perturb=perturb)
        assert_sound(model)
        assert model.sizes[model.assign(points[:1])[0]] > 0.9

    @pytest.mark.parametrize("clusters", [None, 2])
    def test_that_are_alike_in_one_feature_make_a_model(self, algorithm, clusters):
        points = np.stack([np.random.default_rng(10).random(20_000), np.full(20_000, 0.5)], axis=1)
        assert_sound(simulate(algorithm(epsilon=1, clusters=clusters), points, seed=10))

    def test_spread_evenly_make_a_model(self, algorithm):
        points = np.random.default_rng(3).random((100_000, 2))
        assert_sound(simulate(algorithm(epsilon=1), points, seed=3))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
class TestParameters:
    @pytest.mark.parametrize("epsilon", [1e-6, 32])
    @pytest.mark.parametrize("clusters", [None, 2, 256])
    def test_extreme_epsilon_makes_a_sound_model(self, algorithm, epsilon, clusters):
        points = np.random.default_rng(4).normal(0.5, 0.1, (2000, 2)).clip(0, 1)
        assert_sound(simulate(algorithm(epsilon=epsilon, clusters=clusters), points, seed=4))

    def test_more_clusters_than_there_are_is_said(self, algorithm):
        points = np.random.default_rng(5).normal(0.5, 0.05, (100_000, 2)).clip(0, 1)
        model = simulate(algorithm(epsilon=4, clusters=200), points, seed=5)
        assert_sound(model)
        assert model.n_clusters < 200
        assert "200 clusters were asked for" in " ".join(model.warnings)

    def test_more_clusters_than_cells_is_no_trouble(self, algorithm):
        points = np.random.default_rng(6).random((1000, 2))
        assert_sound(simulate(algorithm(epsilon=4, clusters=256, cells=2), points, seed=6))

    @pytest.mark.parametrize("d", [1, 2, 3])
    def test_one_to_three_features_are_taken(self, algorithm, d):
        rng = np.random.default_rng(7)
        labels = rng.integers(0, 2, 60_000)
        points = (0.25 + 0.5 * labels[:, None] + rng.normal(0, 0.06, (60_000, d))).clip(0, 1)
        # a seed of its own: the points are of PCG64(7) too
        model = simulate(algorithm(epsilon=2, clusters=2), points, seed=107)
        assert_sound(model)
        assert model.label_map.ndim == d
        # one feature in 192 cells is cut anywhere in the empty middle: .955 to .999 right over 16 seeds
        assert (model.assign(points) == labels).mean() in (pytest.approx(0, abs=0.07), pytest.approx(1, abs=0.07))

    def test_too_many_features_are_refused(self, algorithm):
        with pytest.raises(InvalidSpec, match="features"):
            next(start(algorithm(epsilon=1), features(9), 1000))

    def test_too_many_cells_are_refused(self, algorithm):
        with pytest.raises(InvalidSpec):
            next(start(algorithm(epsilon=1, cells=64 if algorithm is ShiftedGrid else 1024), features(3), 1000))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
class TestPublishedRound:
    def drive_with(self, algorithm, spec, tally=None):
        return drive(
            start(algorithm(epsilon=1), spec.features, 1000), lambda _: Collected(spec, tally or Tally.empty(spec))
        )

    def test_of_another_encoding_is_refused(self, algorithm):
        other = GridEncoding((4, 4)) if algorithm is ShiftedGrid else ShiftedGridEncoding(2, 4, 2)
        with pytest.raises(UnfitRound, match="goes on from"):
            self.drive_with(algorithm, published(other))

    def test_whose_reports_say_nothing_is_refused(self, algorithm):
        encoding = ShiftedGridEncoding(2, 3, 2) if algorithm is ShiftedGrid else GridEncoding((4, 4))
        spec = published(encoding, GrrMechanism(16, DRAW_SPAN // 16))
        tally = Tally.empty(spec)
        tally.reports[:] = 5
        with pytest.raises(UnfitRound, match="say nothing"):
            self.drive_with(algorithm, spec, tally)

    def test_too_large_to_fit_is_refused(self, algorithm):
        if algorithm is ShiftedGrid:
            encoding = ShiftedGridEncoding(2, 100, 8)
            with pytest.raises(UnfitRound, match="fine cells"):
                self.drive_with(algorithm, published(encoding))
        else:
            with pytest.raises(InvalidSpec):
                GridEncoding((1024, 1025))

    def test_with_other_cells_than_asked_is_gone_on_from(self, algorithm):
        encoding = ShiftedGridEncoding(2, 6, 3) if algorithm is ShiftedGrid else GridEncoding((7, 9))
        spec = published(encoding, design("grr", encoding.n_symbols, 3 * 10**9))
        rng = np.random.default_rng(8)
        labels = rng.integers(0, 2, 40_000)
        points = (0.25 + 0.5 * labels[:, None] + rng.normal(0, 0.06, (40_000, 2))).clip(0, 1)
        entropy = SeededEntropy(8)
        answered = collect(spec, points, entropy, entropy.words(len(points)))
        model = drive(start(algorithm(epsilon=0.5, clusters=2), features(2), 10), lambda _: answered)
        assert model.label_map.shape == ((18, 18) if algorithm is ShiftedGrid else (7, 9))
        assert (model.assign(points) == labels).mean() in (pytest.approx(0, abs=0.02), pytest.approx(1, abs=0.02))

    def test_driven_again_on_stored_tallies_gives_the_same_bytes(self, algorithm):
        points = np.random.default_rng(9).random((5000, 2)) ** 2
        stored = {}

        def first(spec):
            entropy = SeededEntropy(9)
            answered = collect(spec, points, entropy, entropy.words(len(points)))
            stored[spec] = answered.tally.to_bytes()
            return answered

        def again(spec):
            return Collected(spec, Tally.from_bytes(stored[spec]))

        wires = [
            json.dumps(drive(start(algorithm(epsilon=2), features(2), 5000), source).to_wire())
            for source in (first, again, again)
        ]
        assert wires[0] == wires[1] == wires[2]
