"""Test the expected error: the disagreement of maps, the repetitions, and its calibration for grid plans."""

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from clustering.density.expected_error import MAX_THROWS, disagreement, expected_error, rerun
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
from tests.clustering.local_plans import mixture

EVEN = np.full((4, 4), 1 / 16)


class TestDisagreement:
    def test_is_zero_for_permuted_labels(self):
        labels = np.arange(16).reshape(4, 4) // 6
        assert disagreement(labels, np.array([2, 0, 1])[labels], EVEN) == pytest.approx(0)

    def test_is_the_mass_of_changed_cells(self):
        one = np.repeat([[0], [0], [1], [1]], 4, axis=1)
        other = np.repeat([[0], [0], [0], [1]], 4, axis=1)
        assert disagreement(one, other, EVEN) == pytest.approx(0.25)
        heavy = np.array([0.1, 0.1, 0.7, 0.1])[:, None] / np.full((1, 4), 4.0)
        assert disagreement(one, other, heavy) == pytest.approx(0.3)  # the matching of labels follows the mass

    def test_a_cluster_without_match_differs(self):
        halves = np.repeat([[0], [0], [1], [1]], 4, axis=1)
        assert disagreement(np.zeros((4, 4), dtype=np.int64), halves, EVEN) == pytest.approx(0.5)

    def test_maps_of_other_shapes_are_sampled_at_cell_centres(self):
        assert disagreement(np.array([[0], [1]]), np.repeat([[0], [0], [1], [1]], 4, axis=1), EVEN) == 0


class TestRepetitions:
    SPEC = RoundSpec((Feature("x", 0, 1), Feature("y", 0, 1)), GridEncoding((4, 4)), design("grr", 16, 10**9))

    def test_are_compared_with_unperturbed_reports(self):
        perturbed = []

        def relabel(collect):
            perturbed.append(collect(self.SPEC, 0).spec.mechanism == self.SPEC.mechanism)
            n_labels = 2 if perturbed[-1] else 1
            return np.arange(16).reshape(4, 4) % n_labels

        assert expected_error(relabel, EVEN, (1000,)) == pytest.approx(0.5)
        assert perturbed == [False] + [True] * MAX_THROWS

    def test_large_maps_have_fewer(self):
        collected = []

        def relabel(collect):
            collected.append(collect(self.SPEC, 0))
            return np.zeros((128, 128), dtype=np.int64)

        assert expected_error(relabel, np.full((128, 128), 1 / 128**2), 1000) == 0
        assert len(collected) == 3

    def test_a_rerun_returns_the_result_of_all_rounds(self):
        def rounds():
            first = yield "a"
            second = yield "b"
            return first + second

        assert rerun(rounds(), lambda spec, index: spec + str(index)) == "a0b1"


def three(n, seed):
    return mixture(n, [[0.25, 0.3], [0.7, 0.25], [0.55, 0.75]], [0.5, 0.3, 0.2], width=0.07, seed=seed)[0]


def close(n, seed):
    return mixture(n, [[0.35, 0.4], [0.6, 0.55]], width=0.09, seed=seed)[0]


def share_of_changed_labels(one, other):
    """Return the share of people with different labels under the best one-to-one matching."""
    table = np.zeros((one.max() + 1, other.max() + 1))
    np.add.at(table, (one, other), 1 / len(one))
    rows, columns = linear_sum_assignment(table, maximize=True)
    return 1 - table[rows, columns].sum()


PLANS = [ShiftedGrid, UniformGrid, AdaptiveGridIterative, AdaptiveGridTree]


@pytest.mark.parametrize("algorithm", PLANS)
class TestCalibration:
    """Points and noise have different seeds, because one generator would correlate them."""

    def test_centres_and_sizes_deviate_by_about_their_errors(self, algorithm):
        centre, size = [], []
        for seed in range(3):
            points = three(20_000, seed)
            model = simulate(algorithm(epsilon=2, clusters=3), points, seed=500 + seed)
            labels = model.assign(points)
            for cluster in range(model.n_clusters):
                own = points[labels == cluster]
                centre.append((model.centroids[cluster] - own.mean(axis=0)) / model.centroid_errors[cluster])
                size.append((model.sizes[cluster] - len(own) / len(points)) / model.size_errors[cluster])
        centre_rms, size_rms = np.sqrt(np.mean(np.square(centre))), np.sqrt(np.mean(np.square(size)))
        assert 0.25 < centre_rms < 1.4  # errors of a third or four times the size fail
        assert 0.25 < size_rms < 1.4
        assert np.abs(centre).max() < 4

    @pytest.mark.slow
    def test_clear_clusters_have_a_small_expected_error(self, algorithm):
        expected, seen = np.mean([errors_of(algorithm, three, 3.0, 3, seed) for seed in range(2)], axis=0)
        assert seen < expected + 0.01
        assert expected < 0.08


def errors_of(algorithm, make, epsilon, clusters, seed):
    """Return the expected and the observed share of labels that differ from those of unperturbed reports."""
    points, params = make(20_000, seed), algorithm(epsilon=epsilon, clusters=clusters)
    model = simulate(params, points, seed=600 + seed)
    unperturbed = simulate(params, points, seed=600 + seed, perturb=False)
    return model.diagnostics["expected_error"], share_of_changed_labels(
        model.assign(points), unperturbed.assign(points)
    )


@pytest.mark.slow
def test_close_clusters_have_the_expected_error_on_average():
    """Each run has nearly all labels right or nearly all wrong, so the mean needs many runs."""
    runs = [errors_of(algorithm, close, 1.0, 2, seed) for algorithm in PLANS for seed in range(4)]
    expected, seen = np.mean(runs, axis=0)
    assert seen > 0.05
    assert 0.6 < expected / seen < 1.7


@pytest.mark.parametrize("variant", ["sound", "paper"])
@pytest.mark.parametrize("algorithm", PLANS[1:])
def test_every_variant_reports_its_errors(algorithm, variant):
    model = simulate(algorithm(epsilon=2, clusters=3, variant=variant), three(20_000, 1), seed=700)
    assert 0 <= model.diagnostics["expected_error"] <= 1
    assert model.diagnostics["n_eff"] == pytest.approx(20_000 * np.sinh(1) ** 2, rel=1 if variant == "paper" else 1e-3)
    assert model.centroid_errors.shape == model.centroids.shape
    assert (model.centroid_errors > 0).all()


def test_unperturbed_reports_have_zero_expected_error():
    model = simulate(UniformGrid(epsilon=2, clusters=3), three(20_000, 1), seed=701, perturb=False)
    assert model.diagnostics["expected_error"] == 0
    assert model.diagnostics["n_eff"] is None
