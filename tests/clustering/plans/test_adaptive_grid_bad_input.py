"""What the adaptive grids, and the printed forms, do with too little, too much or the wrong thing."""

import json

import numpy as np
import pytest

from clustering.errors import TooFewReports, UnfitRound
from clustering.plan import Collected, Tally, drive
from clustering.registry import start
from clustering.simulate import SeededEntropy, collect, simulate
from sfumato.cluster_model import model_from_wire
from sfumato.errors import InvalidSpec
from sfumato.mechanisms import design
from sfumato.specs import (
    AdaptiveGridIterative,
    AdaptiveGridTree,
    Feature,
    RoundSpec,
    ShiftedGridEncoding,
    UniformGrid,
)

ADAPTIVE = [AdaptiveGridIterative, AdaptiveGridTree]
FORMS = [(algorithm, variant) for algorithm in ADAPTIVE for variant in ("sound", "paper")] + [(UniformGrid, "paper")]


def features(n):
    return tuple(Feature(f"x{i}", 0, 1) for i in range(n))


def assert_sound(model):
    json.dumps(model.to_wire(), allow_nan=False)
    assert model_from_wire(model.to_wire()).n_clusters == model.n_clusters
    assert model.sizes.sum() == pytest.approx(1)
    assert (model.sizes >= 0).all()
    assert (model.size_errors >= 0).all()
    assert model.centroid_errors.shape == model.centroids.shape
    assert ((model.centroid_errors >= 0) & (model.centroid_errors <= 1)).all()
    assert 0 <= model.diagnostics["expected_error"] <= 1
    assert model.density.sum() == pytest.approx(1)
    assert (model.density >= 0).all()
    assert np.unique(model.label_map).tolist() == list(range(model.n_clusters))


@pytest.mark.parametrize(("algorithm", "variant"), FORMS)
class TestEveryForm:
    def test_no_reports_are_too_few(self, algorithm, variant):
        with pytest.raises(TooFewReports):
            simulate(algorithm(epsilon=1, variant=variant), np.empty((0, 2)), seed=1)

    @pytest.mark.parametrize("n", [1, 2, 30])
    @pytest.mark.parametrize("perturb", [True, False])
    def test_few_make_a_model(self, algorithm, variant, n, perturb):
        points = np.random.default_rng(1).random((n, 2))
        assert_sound(simulate(algorithm(epsilon=1, variant=variant), points, seed=1, perturb=perturb))

    @pytest.mark.parametrize("place", [0.0, 0.41, 1.0])
    @pytest.mark.parametrize("clusters", [None, 1, 3])
    def test_all_in_one_cell_make_a_model(self, algorithm, variant, place, clusters):
        points = np.full((20_000, 2), place)
        model = simulate(algorithm(epsilon=2, clusters=clusters, variant=variant), points, seed=2)
        assert_sound(model)
        if variant == "sound":
            assert model.sizes[model.assign(points[:1])[0]] > 0.8

    def test_a_constant_feature_makes_a_model(self, algorithm, variant):
        points = np.stack([np.random.default_rng(3).random(20_000), np.full(20_000, 0.5)], axis=1)
        assert_sound(simulate(algorithm(epsilon=1, clusters=2, variant=variant), points, seed=3))

    @pytest.mark.parametrize("epsilon", [2e-5, 32])
    @pytest.mark.parametrize("clusters", [None, 2, 256])
    def test_extreme_epsilon_makes_a_model(self, algorithm, variant, epsilon, clusters):
        points = np.random.default_rng(4).normal(0.5, 0.1, (2000, 2)).clip(0, 1)
        assert_sound(simulate(algorithm(epsilon=epsilon, clusters=clusters, variant=variant), points, seed=4))

    @pytest.mark.parametrize("d", [1, 2, 3, 8])
    def test_one_to_eight_features_are_taken(self, algorithm, variant, d):
        rng = np.random.default_rng(5)
        points = (0.25 + 0.5 * rng.integers(0, 2, 20_000)[:, None] + rng.normal(0, 0.06, (20_000, d))).clip(0, 1)
        model = simulate(algorithm(epsilon=2, clusters=2, variant=variant), points, seed=5)
        assert_sound(model)
        assert model.label_map.ndim == d
        assert max(model.label_map.shape) <= (512 if algorithm is not UniformGrid else 65536)

    def test_more_features_are_refused(self, algorithm, variant):
        with pytest.raises(InvalidSpec, match="features"):
            next(start(algorithm(epsilon=1, variant=variant), features(9), 1000))

    def test_more_clusters_than_there_are_is_said(self, algorithm, variant):
        points = np.full((20_000, 2), 0.3)
        model = simulate(algorithm(epsilon=8, clusters=250, variant=variant), points, seed=6, perturb=False)
        assert "250 clusters were asked for" in " ".join(model.warnings)

    def test_rounds_of_another_encoding_are_refused(self, algorithm, variant):
        encoding = ShiftedGridEncoding(2, 3, 2)
        other = RoundSpec(features(2), encoding, design("auto", encoding.n_symbols, 10**9))
        tally = Tally.empty(other)
        tally.reports[:] = 1
        with pytest.raises(UnfitRound):
            drive(start(algorithm(epsilon=1, variant=variant), features(2), 1000), lambda _: Collected(other, tally))

    def test_driven_again_on_stored_tallies_gives_the_same_bytes(self, algorithm, variant):
        points = np.random.default_rng(7).random((20_000, 2)) ** 2
        stored = []

        def first(spec):
            stored.append(collect(spec, points, SeededEntropy(len(stored)), SeededEntropy(9).words(len(points))))
            return stored[-1]

        def run(answer):
            plan = start(algorithm(epsilon=2, clusters=3, variant=variant), features(2), 20_000)
            return json.dumps(drive(plan, answer).to_wire())

        before = run(first)
        again = iter(stored)
        assert run(lambda _: Collected((kept := next(again)).spec, Tally.from_bytes(kept.tally.to_bytes()))) == before


@pytest.mark.parametrize("algorithm", ADAPTIVE)
class TestTheSoundForm:
    def test_says_when_reports_are_few_and_how_many_would_do(self, algorithm):
        points = np.random.default_rng(8).random((2000, 2))
        model = simulate(algorithm(epsilon=1), points, seed=8)
        assert model.n_clusters == 1
        assert model.diagnostics["low_confidence"] is True
        assert f"about {model.diagnostics['reports_needed']} would do" in model.warnings[0]

    def test_calls_people_spread_evenly_one_cluster_or_two(self, algorithm):
        points = np.random.default_rng(9).random((100_000, 2))
        assert simulate(algorithm(epsilon=2), points, seed=9).n_clusters <= 2

    def test_says_which_clusters_noise_could_have_made(self, algorithm):
        points = np.random.default_rng(10).random((50_000, 2))
        model = simulate(algorithm(epsilon=1, clusters=4), points, seed=10)
        assert not all(model.diagnostics["detectable"])
        assert "noise could have made" in model.warnings[-1]
