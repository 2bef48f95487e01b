"""How many people noise labels differently: the measure, the throws, and the plans' promises kept in simulation."""

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from clustering.expected_error import MAX_THROWS, disagreement, expected_error, rerun
from clustering.simulate import simulate
from sfumato.mechanisms import design
from sfumato.specs import (
    AdaptiveGridIterative,
    AdaptiveGridTree,
    Feature,
    GridEncoding,
    RoundSpec,
    ShiftedGrid,
    UniformGrid,
)

EVEN = np.full((4, 4), 1 / 16)


class TestDisagreement:
    def test_is_nil_for_the_same_map_under_other_names(self):
        labels = np.arange(16).reshape(4, 4) // 6
        assert disagreement(labels, np.array([2, 0, 1])[labels], EVEN) == pytest.approx(0)

    def test_is_the_mass_that_changed(self):
        one = np.repeat([[0], [0], [1], [1]], 4, axis=1)
        other = np.repeat([[0], [0], [0], [1]], 4, axis=1)
        assert disagreement(one, other, EVEN) == pytest.approx(0.25)
        heavy = np.array([0.1, 0.1, 0.7, 0.1])[:, None] / np.full((1, 4), 4.0)
        assert disagreement(one, other, heavy) == pytest.approx(0.3)  # the naming follows the mass

    def test_a_cluster_of_one_map_alone_counts_as_different(self):
        halves = np.repeat([[0], [0], [1], [1]], 4, axis=1)
        assert disagreement(np.zeros((4, 4), dtype=np.int64), halves, EVEN) == pytest.approx(0.5)

    def test_maps_of_other_shapes_are_read_at_the_middles(self):
        assert disagreement(np.array([[0], [1]]), np.repeat([[0], [0], [1], [1]], 4, axis=1), EVEN) == 0


class TestThrows:
    SPEC = RoundSpec((Feature("x", 0, 1), Feature("y", 0, 1)), GridEncoding((4, 4)), design("grr", 16, 10**9))

    def test_are_held_against_unperturbed_reports(self):
        met = []

        def relabel(answer):
            answered = answer(self.SPEC, 0)
            met.append(answered.spec.mechanism == self.SPEC.mechanism)
            n_labels = 2 if met[-1] else 1
            return np.arange(16).reshape(4, 4) % n_labels

        assert expected_error(relabel, EVEN, (1000,)) == pytest.approx(0.5)
        assert met == [False] + [True] * MAX_THROWS

    def test_of_a_large_map_are_fewer(self):
        met = []

        def relabel(answer):
            met.append(answer(self.SPEC, 0))
            return np.zeros((128, 128), dtype=np.int64)

        assert expected_error(relabel, np.full((128, 128), 1 / 128**2), 1000) == 0
        assert len(met) == 3

    def test_rounds_are_driven_to_what_they_return(self):
        def rounds():
            first = yield "a"
            second = yield "b"
            return first + second

        assert rerun(rounds(), lambda spec, index: spec + str(index)) == "a0b1"


def three(n, seed):
    rng = np.random.default_rng(seed)
    centres = np.array([[0.25, 0.3], [0.7, 0.25], [0.55, 0.75]])
    return (centres[rng.choice(3, n, p=[0.5, 0.3, 0.2])] + rng.normal(0, 0.07, (n, 2))).clip(0, 1)


def close(n, seed):
    rng = np.random.default_rng(seed)
    centres = np.array([[0.35, 0.4], [0.6, 0.55]])
    return (centres[rng.choice(2, n)] + rng.normal(0, 0.09, (n, 2))).clip(0, 1)


def differing(one, other):
    """The share of people whose labels differ under the best one-to-one naming."""
    table = np.zeros((one.max() + 1, other.max() + 1))
    np.add.at(table, (one, other), 1 / len(one))
    rows, columns = linear_sum_assignment(table, maximize=True)
    return 1 - table[rows, columns].sum()


PLANS = [ShiftedGrid, UniformGrid, AdaptiveGridIterative, AdaptiveGridTree]


@pytest.mark.parametrize("algorithm", PLANS)
class TestCalibration:
    """Points and coins have seeds of their own: of one generator they would go together."""

    def test_centres_and_sizes_are_off_by_about_their_errors(self, algorithm):
        centre, size = [], []
        for seed in range(4):
            points = three(20_000, seed)
            model = simulate(algorithm(epsilon=2, clusters=3), points, seed=500 + seed)
            labels = model.assign(points)
            for cluster in range(model.n_clusters):
                own = points[labels == cluster]
                centre.append((model.centroids[cluster] - own.mean(axis=0)) / model.centroid_errors[cluster])
                size.append((model.sizes[cluster] - len(own) / len(points)) / model.size_errors[cluster])
        centre_rms, size_rms = np.sqrt(np.mean(np.square(centre))), np.sqrt(np.mean(np.square(size)))
        assert 0.25 < centre_rms < 1.4  # errors a third as large, or four times, would not pass
        assert 0.25 < size_rms < 1.4
        assert np.abs(centre).max() < 4

    def test_little_error_is_expected_where_clusters_are_clear(self, algorithm):
        expected, seen = np.mean([labels_off(algorithm, three, 3.0, 3, seed) for seed in range(2)], axis=0)
        assert seen < expected + 0.01
        assert expected < 0.08


def labels_off(algorithm, make, epsilon, clusters, seed):
    """Expected, and seen: the share of people whose labels differ from those of unperturbed reports."""
    points, params = make(20_000, seed), algorithm(epsilon=epsilon, clusters=clusters)
    model = simulate(params, points, seed=600 + seed)
    unperturbed = simulate(params, points, seed=600 + seed, perturb=False)
    return model.diagnostics["expected_error"], differing(model.assign(points), unperturbed.assign(points))


def test_as_many_labels_differ_as_was_expected_where_clusters_touch():
    """One case has nearly all labels right or nearly all wrong, so that it takes many to see a mean."""
    runs = [labels_off(algorithm, close, 1.0, 2, seed) for algorithm in PLANS for seed in range(6)]
    expected, seen = np.mean(runs, axis=0)
    assert seen > 0.05
    assert 0.6 < expected / seen < 1.7


@pytest.mark.parametrize("variant", ["sound", "paper"])
@pytest.mark.parametrize("algorithm", PLANS[1:])
def test_every_form_says_how_sure_it_is(algorithm, variant):
    model = simulate(algorithm(epsilon=2, clusters=3, variant=variant), three(20_000, 1), seed=700)
    assert 0 <= model.diagnostics["expected_error"] <= 1
    assert model.diagnostics["n_eff"] == pytest.approx(20_000 * np.sinh(1) ** 2, rel=1 if variant == "paper" else 1e-3)
    assert model.centroid_errors.shape == model.centroids.shape
    assert (model.centroid_errors > 0).all()


def test_unperturbed_reports_have_no_expected_error():
    model = simulate(UniformGrid(epsilon=2, clusters=3), three(20_000, 1), seed=701, perturb=False)
    assert model.diagnostics["expected_error"] == 0
    assert model.diagnostics["n_eff"] is None
