"""Test `shifted_grid`: its round, the clusters it finds and counts, and published rounds."""

import numpy as np
import pytest
from sklearn.datasets import make_circles, make_moons

from clustering.grids.shifted_grid import fit, shifted_grid
from clustering.metrics import adjusted_rand_index
from clustering.rounds.plan import Collected
from clustering.simulate import simulate
from sfumato.model.precision import Verdict
from sfumato.records.encodings import scale_many, unscale_many
from sfumato.sizing.grids import shifted_grid_cells, shifted_grid_length_scale
from sfumato.specs import Feature, Participation, Place, RoundSpec, ShiftedGrid, ShiftedGridEncoding
from tests.clustering.local_plans import Devices, features, mixture

XY = features(2)


def unit(points):
    lower, upper = points.min(axis=0), points.max(axis=0)
    return (points - lower) / (upper - lower) * 0.96 + 0.02


def blobs(n, share=0.5):
    return mixture(n, [[0.3, 0.3], [0.7, 0.7]], [share, 1 - share], width=0.07)


class TestCircle:
    def test_a_turn_of_the_circle_turns_the_result(self):
        clock = Feature("hour", 0, 24, "h", periodic=True), Feature("x", 0, 1)
        points, _ = mixture(20_000, [[0.5, 0.3], [0.75, 0.7]], width=0.05)
        turned = np.column_stack([(points[:, 0] + 0.5) % 1, points[:, 1]])
        params = ShiftedGrid(epsilon=2, clusters=2, cells=8)
        own, other = (simulate(params, each, seed=1, perturb=False, features=clock) for each in (points, turned))
        half = own.label_map.shape[0] // 2
        assert np.roll(own.density, half, axis=0) == pytest.approx(other.density, abs=5e-4)
        assert (own.centroids[:, 0] + 12) % 24 == pytest.approx(other.centroids[:, 0], abs=0.02)
        # The labels of nearly empty cells depend on the last bits of the density, and so do the errors.
        assert own.centroid_errors == pytest.approx(other.centroid_errors, rel=0.25)
        assert own.size_errors == pytest.approx(other.size_errors, rel=0.25)
        labels, places = own.assign(points * [24, 1]), turned * [24, 1]
        assert adjusted_rand_index(labels, other.assign(places)) > 0.999
        assert other.assign(places + np.array([48, 0])).tolist() == other.assign(places).tolist()

    def test_two_peaks_about_midnight(self):
        rng, (hour,) = np.random.default_rng(3), (Feature("hour", 0, 24, "h", periodic=True),)
        hours = np.concatenate([rng.normal(22.8, 0.7, 20_000), rng.normal(1.7, 0.7, 20_000)]) % 24
        model = simulate(ShiftedGrid(epsilon=2, clusters=2), hours[:, None] / 24, seed=1, features=(hour,))
        assert np.sort(model.centroids.ravel()) == pytest.approx([1.7, 22.8], abs=0.3)
        assert model.sizes == pytest.approx([0.5, 0.5], abs=0.05)
        away = np.abs((23.9 - model.centroids.T + 12) % 24 - 12) / 24
        assert model.distances([[23.9]]) == pytest.approx(away, abs=1e-9)
        assert not any("bounds" in warning for warning in model.warnings)


class TestPlace:
    def test_a_cluster_over_the_antimeridian_is_one_of_the_same_size_elsewhere(self):
        points, _ = mixture(20_000, [[0.3, 0.5], [0.75, 0.6]], width=0.05)
        params = ShiftedGrid(epsilon=2, clusters=2, cells=8)
        models = []
        for west, east in ((-10.0, 10.0), (170.0, -170.0)):
            features = Place(60.0, west, 72.0, east).features
            records = unscale_many(features, points)
            records[:, 1] = (records[:, 1] + 180) % 360 - 180  # devices measure them between -180 and 180
            models.append(simulate(params, scale_many(features, records), seed=1, features=features))
        own, other = models
        assert np.array_equal(own.label_map, other.label_map)
        assert own.centroids + np.array([0, 180]) == pytest.approx(other.centroids)
        truth = unscale_many(other.features, [[0.3, 0.5], [0.75, 0.6]])
        found = other.centroids[np.argsort(other.centroids[:, 0])]
        assert found == pytest.approx(truth, abs=0.3)
        assert other.assign([[truth[0, 0], -180.0]]) == other.assign([[truth[0, 0], 180.0]])


class TestRound:
    def test_uses_the_full_epsilon_for_all_devices(self):
        spec = next(shifted_grid(ShiftedGrid(epsilon=2, cells=7, shifts=3), XY, 1000))
        assert spec.encoding == ShiftedGridEncoding(2, 7, 3)
        assert spec.participation == Participation()
        assert spec.mechanism.type == "ss"
        assert 2e9 - 10 <= spec.mechanism.epsilon_nano() <= 2e9

    @pytest.mark.parametrize(
        ("n_features", "n_reports", "epsilon", "cells", "length_scale"),
        [
            (1, 15_000, 1, 16, 0.06),
            (2, 15_000, 1, 8, 0.06),
            (2, 100_000, 1, 16, 0.06),
            (2, 100_000, 2, 16, 0.04),
            (2, 100_000, 4, 20, 0.04),
            (2, 100_000, 7, 24, 0.03),
            (2, 1, 32, 24, 0.03),
            (3, 15_000, 1, 5, 0.06),
            (3, 10**7, 1, 8, 0.06),
        ],
    )
    def test_the_grid_grows_with_the_effective_reports(self, n_features, n_reports, epsilon, cells, length_scale):
        assert shifted_grid_cells(n_features, n_reports, int(epsilon * 1e9), None) == cells
        assert shifted_grid_length_scale(n_features, n_reports * np.sinh(epsilon / 2) ** 2) == length_scale

    @pytest.mark.parametrize(("clusters", "n_reports", "cells"), [(4, 100_000, 12), (5, 100_000, 16), (2, 400_000, 16)])
    def test_few_clusters_have_few_cells_while_noise_rules(self, clusters, n_reports, cells):
        assert shifted_grid_cells(2, n_reports, 10**9, clusters) == cells

    def test_unperturbed_reports_have_the_finest_prior(self):
        assert shifted_grid_length_scale(2, np.inf) == 0.03


class TestClusters:
    @pytest.mark.parametrize(("make", "n", "epsilon"), [(make_moons, 15_000, 2), (make_circles, 15_000, 4)])
    def test_of_curved_shapes_are_found(self, make, n, epsilon):
        shape = {"factor": 0.5} if make is make_circles else {}
        points, labels = make(n, noise=0.05, random_state=1, **shape)
        points = unit(points)
        model = simulate(ShiftedGrid(epsilon=epsilon, clusters=2), points, seed=1)
        assert adjusted_rand_index(model.assign(points), labels) >= 0.99

    def test_of_few_people_are_found_if_their_number_is_given(self):
        centres = [(0.1, 0.2), (0.12, 0.8), (0.3, 0.5), (0.7, 0.3), (0.7, 0.7), (0.85, 0.2), (0.85, 0.5), (0.9, 0.85)]
        rng = np.random.default_rng(3)
        labels = rng.choice(8, 200_000, p=[0.31] * 3 + [0.014] * 5)
        width = np.where(labels < 3, 0.01, 0.03)[:, None]
        points = (np.array(centres)[labels] + width * rng.standard_normal((200_000, 2))).clip(0, 1)
        model = simulate(ShiftedGrid(epsilon=4, clusters=8), points, seed=3)
        assert model.n_clusters == 8
        assert adjusted_rand_index(model.assign(points), labels) > 0.99

    def test_have_the_sizes_and_centres_of_the_people(self):
        points, _ = blobs(200_000, share=0.7)
        model = simulate(ShiftedGrid(epsilon=1, clusters=2), points, seed=2)
        assert (np.abs(model.sizes - [0.7, 0.3]) < 3 * model.size_errors).all()
        assert (model.size_errors < 0.04).all()
        assert model.centroids == pytest.approx(np.array([[0.3, 0.3], [0.7, 0.7]]), abs=0.03)

    def test_are_counted_if_their_number_is_open(self):
        points, labels = blobs(100_000)
        model = simulate(ShiftedGrid(epsilon=2), points, seed=3)
        assert model.n_clusters == 2
        assert model.diagnostics["detectable"] == [True, True]
        assert model.warnings == ()
        assert model.verdict is Verdict.RELIABLE
        assert model.expected_agreement.lower > 0.8
        assert model.diagnostics["cluster_interval"][0] == 2
        assert adjusted_rand_index(model.assign(points), labels) > 0.98

    def test_of_the_required_reports_are_not_flagged(self):
        points, labels = blobs(20_000)
        model = simulate(ShiftedGrid(epsilon=1), points, seed=4)
        assert model.diagnostics["low_confidence"] is True
        assert adjusted_rand_index(model.assign(points), labels) > 0.9
        needed = model.diagnostics["reports_needed"]
        assert needed == pytest.approx(1e4 / np.sinh(0.5) ** 2, rel=1e-3)
        assert f"about {needed} reports" in model.warnings[0]
        enough = simulate(ShiftedGrid(epsilon=1, clusters=2), blobs(needed + 100)[0], seed=4)
        assert enough.diagnostics["low_confidence"] is False
        assert enough.warnings == ()

    @pytest.mark.slow
    def test_are_seldom_found_in_an_even_density(self):
        models = []
        for seed in range(5):
            points = np.random.default_rng(seed).random((50_000, 2))
            models.append(simulate(ShiftedGrid(epsilon=1), points, seed=100 + seed))
        assert sum(model.n_clusters > 1 for model in models) <= 2
        assert all(model.verdict is Verdict.DOUBTFUL for model in models)


class TestPublishedRound:
    def test_alone_determines_the_grid_and_the_noise(self):
        points, _ = blobs(60_000)
        collected = Devices(points)(next(shifted_grid(ShiftedGrid(epsilon=3, cells=5, shifts=5), XY, 10)))
        one = fit(ShiftedGrid(epsilon=3, clusters=2), collected)
        other = fit(ShiftedGrid(epsilon=0.01, clusters=2, cells=16, shifts=2), collected)
        assert one.to_wire() == other.to_wire()
        assert one.label_map.shape == (25, 25)

    def test_may_be_for_half_of_the_devices(self):
        points, labels = blobs(60_000)
        planned = next(shifted_grid(ShiftedGrid(epsilon=3), XY, len(points)))
        half = RoundSpec(XY, planned.encoding, planned.mechanism, Participation.between(0.5, 1))
        model = fit(ShiftedGrid(epsilon=3, clusters=2), Devices(points)(half))
        assert 29_000 < model.diagnostics["n_reports"] < 31_000
        assert adjusted_rand_index(model.assign(points), labels) > 0.98

    def test_may_have_a_slot_without_reports(self):
        points, labels = blobs(60_000)
        spec = next(shifted_grid(ShiftedGrid(epsilon=4), XY, len(points)))
        tally = Devices(points)(spec).tally
        tally.counts[3] = 0
        tally.reports[3] = 0
        model = fit(ShiftedGrid(epsilon=4, clusters=2), Collected(spec, tally))
        assert adjusted_rand_index(model.assign(points), labels) > 0.98
