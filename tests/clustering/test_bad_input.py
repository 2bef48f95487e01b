"""Test local plans with few, odd or unusable reports. Each plan raises a clear error or returns a sound model."""

import json
from functools import partial

import numpy as np
import pytest

from clustering.errors import TooFewReports, UnfitRound
from clustering.registry import start
from clustering.rounds.plan import Collected, drive
from clustering.rounds.tally import Tally, read_aggregate
from clustering.simulate import simulate
from sfumato.errors import InvalidSpec
from sfumato.mechanisms import design
from sfumato.model.precision import Verdict
from sfumato.privacy.accounting import DRAW_SPAN, NANO
from sfumato.specs import (
    AdaptiveGridIterative,
    AdaptiveGridTree,
    GridEncoding,
    GridKmeans,
    GrrMechanism,
    LdpKmeans,
    NearestCentroidEncoding,
    NoisyFcm,
    PhaseSketch,
    RoundSpec,
    ShiftedGrid,
    ShiftedGridEncoding,
    UniformGrid,
)
from tests.clustering.local_plans import assert_sound, features, mixture, run

GRIDS = {
    "shifted_grid": ShiftedGrid,
    "uniform_grid": UniformGrid,
    "iterative": AdaptiveGridIterative,
    "tree": AdaptiveGridTree,
}
PRINTED = {f"{name}_paper": partial(GRIDS[name], variant="paper") for name in ("uniform_grid", "iterative", "tree")}
KMEANS = {"grid_kmeans": GridKmeans, "ldp_kmeans": LdpKmeans}
SKETCHES = {f"sketch_{refine}": partial(PhaseSketch, slots=64, refine=refine) for refine in ("auto", "lloyd", "sign")}
SKETCHES["sketch_none"] = partial(PhaseSketch, slots=64, refine="none")
ALL = {**GRIDS, **PRINTED, **KMEANS, **SKETCHES}
COUNTING = [*GRIDS, *PRINTED, "sketch_none"]  # these also choose the number of clusters

every_plan = pytest.mark.parametrize("name", ALL)


def most_clusters(name):
    return 5 if name in SKETCHES else 256


def n_features(name):
    """Return a number of features in which the plan takes all its steps."""
    return 4 if name in SKETCHES else 2


class TestFewReports:
    @pytest.mark.parametrize("name", [*ALL, "noisy_fcm"])
    def test_refuses_no_reports(self, name):
        params = {**ALL, "noisy_fcm": NoisyFcm}[name](epsilon=1, clusters=2)
        with pytest.raises(TooFewReports) as caught:
            simulate(params, np.empty((0, n_features(name))), seed=1)
        assert caught.value.code == "too_few_reports"
        assert caught.value.n_reports == 0
        assert caught.value.n_needed == (2 if name == "noisy_fcm" else 1)

    @pytest.mark.parametrize(
        ("name", "n", "clusters", "perturb"),
        [
            *(
                (name, n, clusters, perturb)
                for name in ALL
                for n, clusters, perturb in ((25 if name in SKETCHES else 1, 3, True), (40, 2, False))
            ),
            *((name, n, None, True) for name in COUNTING for n in (2, 30)),
        ],
    )
    def test_flags_a_model_of_few_reports(self, name, n, clusters, perturb):
        points = np.random.default_rng(n).random((n, n_features(name)))
        seed = 4  # devices report in the first round
        model = simulate(ALL[name](epsilon=1, clusters=clusters), points, seed=seed, perturb=perturb)
        assert_sound(model)
        if perturb and name not in PRINTED:
            assert model.diagnostics["low_confidence"] is True
            assert f"about {model.diagnostics['reports_needed']} " in model.warnings[0]


class TestOddPoints:
    @pytest.mark.parametrize(
        ("name", "place", "clusters", "perturb"),
        [
            *(
                (name, place, clusters, perturb)
                for name in ALL
                for place, clusters, perturb in ((0.0, 1, True), (0.41, 3, True), (1.0, 2, False))
            ),
            *((name, 0.41, None, True) for name in COUNTING),
        ],
    )
    def test_finds_the_only_place(self, name, place, clusters, perturb):
        points = np.full((20_000, n_features(name)), place)
        model = simulate(ALL[name](epsilon=2, clusters=clusters), points, seed=2, perturb=perturb)
        assert_sound(model, clusters if name in (*SKETCHES, "ldp_kmeans") else None)
        nearest = model.assign(points[:1])[0]
        if name in GRIDS:
            assert model.sizes[nearest] > 0.8
        elif name in SKETCHES:
            assert np.abs(model.sizes @ model.centroids - place).max() < 0.05
            assert name != "sketch_none" or min(model.diagnostics["widths"]) < 0.02
        elif name in KMEANS:
            assert np.abs(model.centroids[nearest] - place).max() < 0.2

    @every_plan
    def test_accepts_a_constant_and_a_repeated_feature(self, name):
        points, _ = mixture(20_000, [[0.25, 0.25, 0.6], [0.75, 0.75, 0.6]], width=[0.05, 0, 0])
        points[:, 1] = points[:, 0]
        model = simulate(ALL[name](epsilon=4, clusters=2), points, seed=103)
        assert_sound(model)
        if name in KMEANS or name in SKETCHES:
            found = model.centroids[np.argsort(model.centroids[:, 0])]
            assert found[:, 0] == pytest.approx([0.25, 0.75], abs=0.08)
            assert found[:, 1] == pytest.approx(found[:, 0], abs=0.05)
            assert found[:, 2] == pytest.approx([0.6, 0.6], abs=0.1)

    @pytest.mark.slow
    @pytest.mark.parametrize("refine", ["auto", "lloyd", "sign"])
    def test_a_sketch_accepts_repeated_features_in_every_refinement(self, refine):
        points, labels = mixture(10_000, [[0.25, 0.3, 0.7], [0.75, 0.3, 0.3], [0.5, 0.8, 0.55]])
        odd = np.column_stack([points, np.full(10_000, 0.3), points[:, 0], 1 - points[:, 0]])
        model = simulate(PhaseSketch(4, clusters=3, refine=refine), odd, seed=7)
        assert_sound(model, 3)
        means = np.array([odd[labels == c].mean(axis=0) for c in range(3)])
        distances = np.linalg.norm(model.centroids[:, None] - means, axis=2)
        assert sorted(distances.argmin(axis=1)) == [0, 1, 2]
        assert distances.min(axis=1).max() < 0.08

    @pytest.mark.parametrize("name", ["iterative", "tree", "shifted_grid"])
    def test_doubts_more_than_two_clusters_in_an_even_density(self, name):
        points = np.random.default_rng(9).random((60_000, 2))
        model = simulate(GRIDS[name](epsilon=2), points, seed=9)
        assert_sound(model)
        assert model.n_clusters <= 2 or model.verdict is Verdict.DOUBTFUL

    @pytest.mark.parametrize("name", ["iterative", "tree", "shifted_grid"])
    def test_warns_about_clusters_that_may_be_noise(self, name):
        points = np.random.default_rng(10).random((50_000, 2))
        model = simulate(GRIDS[name](epsilon=1, clusters=4), points, seed=10)
        assert_sound(model)
        assert not all(model.diagnostics["detectable"])
        assert "may be noise" in model.warnings[-1]


class TestParameters:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("name", "epsilon", "clusters"),
        [
            *((name, epsilon, most_clusters(name)) for name in ALL for epsilon in (1e-6, 32)),
            *((name, epsilon, None) for name in (*GRIDS, "sketch_none") for epsilon in (1e-6, 32)),
        ],
    )
    def test_accepts_extreme_epsilon(self, name, epsilon, clusters):
        if name in PRINTED:
            epsilon = max(epsilon, 2e-5)  # these divide epsilon between rounds
        points = np.random.default_rng(4).normal(0.5, 0.1, (2000, n_features(name))).clip(0, 1)
        model = simulate(ALL[name](epsilon=epsilon, clusters=clusters), points, seed=4)
        assert_sound(model)
        if epsilon < 1 and name not in PRINTED:
            assert model.diagnostics["low_confidence"] is True

    @pytest.mark.parametrize("name", [*GRIDS, *PRINTED])
    def test_warns_if_a_grid_has_fewer_clusters_than_requested(self, name):
        points = np.full((2000, 2), 0.3)
        model = simulate(ALL[name](epsilon=2, clusters=250), points, seed=6, perturb=False)
        assert_sound(model)
        assert model.n_clusters < 250
        assert "250 clusters were requested" in " ".join(model.warnings)

    @pytest.mark.parametrize("name", [*KMEANS, *SKETCHES])
    def test_flags_centroids_beyond_the_clusters_that_exist(self, name):
        points, _ = mixture(2000, [[0.5] * n_features(name)], width=0.05)
        clusters = 8 if name in SKETCHES else 200
        model = simulate(ALL[name](epsilon=1, clusters=clusters), points, seed=105)
        assert_sound(model)
        if name in KMEANS:
            assert model.diagnostics["low_confidence"] is True
            assert len(model.warnings) >= 2
        else:
            assert not all(model.diagnostics["detectable"])
            assert model.n_clusters == 8
        if name == "sketch_none":
            assert any("Of 8 requested" in warning for warning in model.warnings)

    @pytest.mark.parametrize("name", ["shifted_grid", "uniform_grid"])
    def test_accepts_more_clusters_than_cells(self, name):
        points = np.random.default_rng(6).random((1000, 2))
        assert_sound(simulate(GRIDS[name](epsilon=4, clusters=256, cells=2), points, seed=6))

    def test_grid_kmeans_returns_at_most_one_cluster_per_cell(self):
        points = np.random.default_rng(6).random((20_000, 2))
        model = simulate(GridKmeans(epsilon=4, clusters=9, cells=2), points, seed=106)
        assert_sound(model, 4)
        assert "so there are 4 clusters" in " ".join(model.warnings)

    @pytest.mark.parametrize(("name", "d"), [*((name, d) for name in (*GRIDS, *KMEANS) for d in (1, 3)), ("tree", 8)])
    def test_finds_two_clusters_in_any_number_of_features(self, name, d):
        points, labels = mixture(40_000, [[0.25] * d, [0.75] * d])
        model = simulate(ALL[name](epsilon=4, clusters=2), points, seed=107)
        assert_sound(model, 2)
        # one feature has an empty middle, where noise places the boundary
        assert (model.assign(points) == labels).mean() in (pytest.approx(0, abs=0.07), pytest.approx(1, abs=0.07))

    @pytest.mark.parametrize(("name", "d"), [*((name, 1) for name in PRINTED), ("tree_paper", 8)])
    def test_printed_grids_stay_within_their_bounds(self, name, d):
        points, _ = mixture(1000, [[0.25] * d, [0.75] * d])
        model = simulate(PRINTED[name](epsilon=2, clusters=2), points, seed=5)
        assert_sound(model)
        assert model.label_map.ndim == d
        assert max(model.label_map.shape) <= (65536 if name == "uniform_grid_paper" else 512)

    def test_ldp_kmeans_accepts_64_features(self):
        points = np.random.default_rng(8).random((2000, 64))
        assert_sound(simulate(LdpKmeans(epsilon=2, clusters=2, rounds=3), points, seed=108))

    @pytest.mark.parametrize("name", ["uniform_grid", "iterative", *PRINTED])
    def test_grids_accept_eight_features(self, name):
        assert next(start(ALL[name](epsilon=1), features(8), 1000)).features == features(8)

    @pytest.mark.parametrize(
        ("params", "d"),
        [
            *((form(epsilon=1), 9) for form in (*GRIDS.values(), *PRINTED.values())),
            (ShiftedGrid(1, cells=64), 3),
            (UniformGrid(1, cells=1024), 3),
            (GridKmeans(1, 2), 5),
            (GridKmeans(1, 2), 64),
            (GridKmeans(1, 2, cells=257), 2),
            (GridKmeans(1, 2, cells=17), 4),
            (LdpKmeans(1, 2), 65),
            (PhaseSketch(1), 65),
        ],
    )
    def test_refuses_too_many_features_or_cells(self, params, d):
        with pytest.raises(InvalidSpec):
            next(start(params, features(d), 1000))


class TestPublishedRound:
    def drive_with(self, params, encoding, mechanism=None):
        mechanism = mechanism or design("auto", encoding.n_symbols, NANO)
        spec = RoundSpec(features(encoding.n_features), encoding, mechanism)
        tally = Tally.empty(spec)
        tally.reports[:] = 5
        return drive(start(params, features(2), 1000), lambda _: Collected(spec, tally))

    @every_plan
    def test_refuses_another_encoding(self, name):
        encoding = GridEncoding((4, 4)) if name in ("shifted_grid", *SKETCHES) else ShiftedGridEncoding(2, 3, 2)
        with pytest.raises(UnfitRound):
            self.drive_with(ALL[name](epsilon=1, clusters=2), encoding)

    @pytest.mark.parametrize(
        ("params", "encoding"),
        [
            (ShiftedGrid(1), ShiftedGridEncoding(2, 100, 8)),
            (GridKmeans(1, 2), GridEncoding((2,) * 5)),
            (GridKmeans(1, 2), GridEncoding((300, 300))),
            (LdpKmeans(1, 2), NearestCentroidEncoding(((1, 1), (2, 2), (3, 3)))),
        ],
    )
    def test_refuses_another_size(self, params, encoding):
        with pytest.raises(UnfitRound):
            self.drive_with(params, encoding)

    @pytest.mark.parametrize(
        ("params", "encoding"),
        [
            (ShiftedGrid(1), ShiftedGridEncoding(2, 3, 2)),
            (UniformGrid(1), GridEncoding((4, 4))),
            (GridKmeans(1, 2), GridEncoding((2, 2))),
            (LdpKmeans(1, 2), NearestCentroidEncoding(((1, 1), (2, 2)))),
        ],
    )
    def test_refuses_reports_without_information(self, params, encoding):
        uniform = GrrMechanism(encoding.n_symbols, DRAW_SPAN // encoding.n_symbols)
        with pytest.raises(UnfitRound, match="carry no information"):
            self.drive_with(params, encoding, uniform)

    @pytest.mark.parametrize("name", [*ALL, "noisy_fcm"])
    def test_repeats_bit_for_bit_on_stored_rounds(self, name):
        params = {**ALL, "noisy_fcm": NoisyFcm}[name](epsilon=2, clusters=3)
        points = np.random.default_rng(7).random((1500, n_features(name))) ** 2
        model, devices = run(params, points)
        stored = iter([(collected.spec, collected.aggregate.to_bytes()) for collected in devices.rounds])

        def replay(spec):
            published, data = next(stored)
            assert spec == published
            return Collected(spec, read_aggregate(spec, data))

        again = drive(start(params, features(points.shape[1]), len(points)), replay)
        assert json.dumps(again.to_wire()) == json.dumps(model.to_wire())
        assert next(stored, None) is None
