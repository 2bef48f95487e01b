"""What the k-means plans do with too little, too much or the wrong thing: a clear error or a flagged model."""

import json

import numpy as np
import pytest

from clustering.errors import TooFewReports, UnfitRound
from clustering.plan import Collected, Tally, drive
from clustering.registry import start
from clustering.simulate import simulate
from sfumato.accounting import DRAW_SPAN
from sfumato.cluster_model import model_from_wire
from sfumato.errors import InvalidSpec
from sfumato.mechanisms import design
from sfumato.specs import (
    Feature,
    GridEncoding,
    GridKmeans,
    GrrMechanism,
    LdpKmeans,
    NearestCentroidEncoding,
    RoundSpec,
    ShiftedGridEncoding,
)

ALGORITHMS = [GridKmeans, LdpKmeans]


def features(n):
    return tuple(Feature(f"x{i}", 0, 1) for i in range(n))


def assert_sound(model):
    """Every number of the released document is finite, shares are shares, and it can be read back."""
    wire = json.loads(json.dumps(model.to_wire(), allow_nan=False))
    assert model_from_wire(wire).n_clusters == model.n_clusters >= 1
    assert model.sizes.sum() == pytest.approx(1)
    assert (model.sizes >= 0).all()
    assert (np.diff(model.sizes) <= 0).all()
    assert (model.size_errors >= 0).all()
    assert (model.centroid_errors >= 0).all()
    assert ((model.centroids >= 0) & (model.centroids <= 1)).all()
    assert set(model.privacy) == set(model.to_wire())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
class TestReports:
    def test_none_is_too_few(self, algorithm):
        with pytest.raises(TooFewReports) as caught:
            simulate(algorithm(epsilon=1, clusters=2), np.empty((0, 2)), seed=1)
        assert (caught.value.n_reports, caught.value.n_needed) == (0, 1)

    @pytest.mark.parametrize("perturb", [True, False])
    @pytest.mark.parametrize("n", [1, 2, 30])
    @pytest.mark.parametrize("clusters", [1, 3])
    def test_few_make_a_flagged_model(self, algorithm, n, clusters, perturb):
        points = np.random.default_rng(1).random((n, 2))
        model = simulate(algorithm(epsilon=1, clusters=clusters), points, seed=101, perturb=perturb)
        assert_sound(model)
        if perturb:
            assert model.diagnostics["low_confidence"] is True
            assert f"about {model.diagnostics['reports_needed']} would" in model.warnings[0]

    @pytest.mark.parametrize("clusters", [1, 2, 5])
    @pytest.mark.parametrize("perturb", [True, False])
    @pytest.mark.parametrize("place", [0.0, 0.41, 1.0])
    def test_all_in_one_cell_make_a_model(self, algorithm, clusters, perturb, place):
        points = np.full((40_000, 2), place)
        model = simulate(algorithm(epsilon=2, clusters=clusters), points, seed=102, perturb=perturb)
        assert_sound(model)
        assert np.abs(model.centroids[model.assign(points[:1])[0]] - place).max() < 0.2

    def test_a_constant_and_a_duplicate_feature_make_a_model(self, algorithm):
        rng = np.random.default_rng(3)
        labels = rng.integers(0, 2, 60_000)
        x = (0.25 + 0.5 * labels + rng.normal(0, 0.05, 60_000)).clip(0, 1)
        points = np.stack([x, x, np.full(60_000, 0.6)], axis=1)
        model = simulate(algorithm(epsilon=4, clusters=2), points, seed=103)
        assert_sound(model)
        found = model.centroids[np.argsort(model.centroids[:, 0])]
        assert found[:, 0] == pytest.approx([0.25, 0.75], abs=0.08)
        assert found[:, 1] == pytest.approx(found[:, 0], abs=0.05)
        assert found[:, 2] == pytest.approx([0.6, 0.6], abs=0.1)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
class TestParameters:
    @pytest.mark.parametrize("epsilon", [1e-6, 32])
    @pytest.mark.parametrize("clusters", [1, 2, 256])
    def test_extreme_epsilon_makes_a_sound_model(self, algorithm, epsilon, clusters):
        points = np.random.default_rng(4).normal(0.5, 0.1, (2000, 2)).clip(0, 1)
        model = simulate(algorithm(epsilon=epsilon, clusters=clusters), points, seed=104)
        assert_sound(model)
        if epsilon < 1:
            assert model.diagnostics["low_confidence"] is True

    def test_more_clusters_than_anything_shows_is_said(self, algorithm):
        points = np.random.default_rng(5).normal(0.5, 0.05, (20_000, 2)).clip(0, 1)
        model = simulate(algorithm(epsilon=1, clusters=200), points, seed=105)
        assert_sound(model)
        assert model.diagnostics["low_confidence"] is True
        assert len(model.warnings) >= 2

    @pytest.mark.parametrize("d", [1, 3, 4])
    def test_other_numbers_of_features_are_taken(self, algorithm, d):
        rng = np.random.default_rng(7)
        labels = rng.integers(0, 2, 60_000)
        points = (0.25 + 0.5 * labels[:, None] + rng.normal(0, 0.06, (60_000, d))).clip(0, 1)
        model = simulate(algorithm(epsilon=2, clusters=2), points, seed=107)
        assert_sound(model)
        assert (model.assign(points) == labels).mean() in (pytest.approx(0, abs=0.02), pytest.approx(1, abs=0.02))

    def test_whose_reports_say_nothing_is_refused(self, algorithm):
        encoding = GridEncoding((2, 2)) if algorithm is GridKmeans else NearestCentroidEncoding(((1, 1), (2, 2)))
        spec = RoundSpec(features(2), encoding, GrrMechanism(4, DRAW_SPAN // 4))
        tally = Tally.empty(spec)
        tally.reports[:] = 5
        with pytest.raises(UnfitRound, match="say nothing"):
            drive(start(algorithm(epsilon=1, clusters=2), features(2), 10), lambda _: Collected(spec, tally))


class TestGridKmeans:
    def test_more_clusters_than_cells_are_as_many_as_cells(self):
        points = np.random.default_rng(6).random((20_000, 2))
        model = simulate(GridKmeans(epsilon=4, clusters=9, cells=2), points, seed=106)
        assert_sound(model)
        assert model.n_clusters == 4
        assert "so there are 4 clusters" in " ".join(model.warnings)

    @pytest.mark.parametrize(("d", "cells"), [(5, None), (64, None), (2, 257), (4, 17)])
    def test_too_many_features_or_cells_are_refused(self, d, cells):
        with pytest.raises(InvalidSpec, match="grid_kmeans takes"):
            next(start(GridKmeans(epsilon=1, clusters=2, cells=cells), features(d), 1000))

    @pytest.mark.parametrize(
        "encoding", [ShiftedGridEncoding(2, 4, 2), GridEncoding((2,) * 5), GridEncoding((300, 300))]
    )
    def test_a_round_of_another_kind_is_refused(self, encoding):
        spec = RoundSpec(features(encoding.n_features), encoding, design("grr", encoding.n_symbols, 10**9))
        with pytest.raises(UnfitRound):
            drive(start(GridKmeans(1, 2), features(2), 10), lambda _: Collected(spec, Tally.empty(spec)))


class TestLdpKmeans:
    def test_sixty_four_features_are_taken_and_no_more(self):
        points = np.random.default_rng(8).random((2000, 64))
        assert_sound(simulate(LdpKmeans(epsilon=2, clusters=2, rounds=3), points, seed=108))
        with pytest.raises(InvalidSpec, match="features"):
            next(start(LdpKmeans(1, 2), features(65), 10))

    def test_rounds_that_nobody_answers_change_nothing(self):
        points = np.random.default_rng(9).random((3, 2))
        model = simulate(LdpKmeans(epsilon=1, clusters=4, rounds=32), points, seed=109)
        assert_sound(model)
        assert model.diagnostics["reports_by_round"].count(0) >= 29

    def test_two_clusters_asked_of_one_are_there(self):
        points = np.full((30_000, 2), 0.5)
        model = simulate(LdpKmeans(epsilon=4, clusters=2), points, seed=1010)
        assert_sound(model)
        assert model.n_clusters == 2
