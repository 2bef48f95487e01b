"""`phase_sketch`: the round it asks for, the centroids it finds, and what it says of too little or the wrong thing."""

import json

import numpy as np
import pytest

from clustering.errors import TooFewReports, UnfitRound
from clustering.metrics import adjusted_rand_index
from clustering.plan import Collected, Tally, drive
from clustering.plans.phase_sketch import fit, phase_sketch
from clustering.registry import start
from clustering.simulate import SeededEntropy, collect, simulate
from clustering.tally import count
from sfumato.accounting import NANO
from sfumato.bulk import perturb_records
from sfumato.cluster_model import model_from_wire
from sfumato.errors import InvalidSpec
from sfumato.mechanisms import design, epsilon_nano, offset_chances
from sfumato.specs import (
    Draw,
    Feature,
    GridEncoding,
    GrrMechanism,
    PhaseEncoding,
    PhaseSketch,
    RoundSpec,
    WindowMechanism,
    algorithm_from_wire,
    to_wire,
)
from tests import naive
from tests.sfumato.replay import GeneratorEntropy

CENTRES = np.array([[0.25, 0.3, 0.7], [0.75, 0.3, 0.3], [0.5, 0.8, 0.55]])
SHARES = np.array([0.5, 0.3, 0.2])


def features(n):
    return tuple(Feature(f"x{i}", 0, 1) for i in range(n))


def crowds(n, seed=1, centres=CENTRES, shares=SHARES, width=0.06):
    rng = np.random.default_rng(seed)
    labels = rng.choice(len(centres), n, p=shares)
    return (centres[labels] + rng.normal(0, width, (n, centres.shape[1]))).clip(0, 1), labels


def answered_by(points, spec, seed=1):
    entropy = SeededEntropy(seed)
    return collect(spec, points, entropy, entropy.words(len(points)))


def assert_sound(model, n_clusters=None):
    """Every number of the released document is finite, and shares are shares."""
    wire = json.loads(json.dumps(model.to_wire(), allow_nan=False))
    assert model_from_wire(wire).to_wire() == wire
    assert model.type == "centroids"
    assert n_clusters in (None, model.n_clusters)
    assert model.sizes.sum() == pytest.approx(1)
    assert (model.sizes > 0).all()
    assert (np.diff(model.sizes) <= 0).all()
    assert (model.size_errors >= 0).all()
    assert (model.size_errors < 0.3).all()
    span = np.array([feature.upper - feature.lower for feature in model.features])
    assert (model.centroid_errors <= 0.3 * span).all()
    assert all(
        ((model.centroids[:, i] >= feature.lower) & (model.centroids[:, i] <= feature.upper)).all()
        for i, feature in enumerate(model.features)
    )
    assert len(model.diagnostics["widths"]) == len(model.diagnostics["detectable"]) == model.n_clusters
    assert set(model.privacy) == set(wire)


class TestParameters:
    def test_go_to_the_wire_and_back(self):
        given = PhaseSketch(epsilon=0.5, clusters=64, slots=1024, seed=2**32 - 1)
        assert algorithm_from_wire(json.loads(json.dumps(to_wire(given)))) == given

    @pytest.mark.parametrize(
        "wrong",
        [
            {"clusters": 0},
            {"clusters": 65},
            {"clusters": 2.0},
            {"slots": 31},
            {"slots": 1025},
            {"seed": -1},
            {"seed": 2**32},
            {"seed": True},
            {"epsilon": 33},
        ],
    )
    def test_that_cannot_be_are_refused(self, wrong):
        with pytest.raises(InvalidSpec):
            PhaseSketch(**{"epsilon": 1.0, **wrong})


class TestRound:
    def test_is_one_at_the_full_epsilon_for_every_draw(self):
        spec = next(phase_sketch(PhaseSketch(epsilon=2, clusters=3, slots=100, seed=5), features(3), 1000))
        assert isinstance(spec.encoding, PhaseEncoding)
        assert (spec.encoding.n_slots, spec.encoding.n_features, spec.encoding.phases) == (100, 3, 16)
        assert spec.draw == Draw()
        assert spec.mechanism == design("window", 16, 2 * NANO)
        assert 2 * NANO - 10 <= epsilon_nano(spec.mechanism) <= 2 * NANO

    def test_is_made_of_what_is_public_alone(self):
        asked = [next(phase_sketch(PhaseSketch(epsilon=1, seed=7), features(4), n)) for n in (1, 10**6)]
        assert asked[0] == asked[1]
        assert next(phase_sketch(PhaseSketch(epsilon=1, seed=8), features(4), 1)) != asked[0]

    def test_reports_are_counted_as_their_twin_counts_them(self):
        spec = next(phase_sketch(PhaseSketch(epsilon=2, slots=40), features(3), 1000))
        reports = perturb_records(spec, crowds(3000)[0], GeneratorEntropy(2))
        slots = reports.slots.astype(np.int64)
        tally = count(spec, slots, reports.values)
        counts, n_reports = naive.count(spec.mechanism, 40, slots, reports.values)
        assert tally.counts.tolist() == counts
        assert tally.reports.tolist() == n_reports


class TestCentroids:
    def test_sizes_and_widths_are_those_of_the_people(self):
        points, labels = crowds(60_000)
        model = simulate(PhaseSketch(epsilon=2, clusters=3), points, seed=1)
        assert_sound(model, 3)
        true = np.array([points[labels == c].mean(axis=0) for c in range(3)])
        assert (np.abs(model.centroids - true) < 4.5 * model.centroid_errors).all()
        assert model.centroid_errors.max() < 0.02
        assert (np.abs(model.sizes - SHARES) < 4.5 * model.size_errors).all()
        assert model.size_errors.max() < 0.02
        widths, errors = (np.array(model.diagnostics[name]) for name in ("widths", "width_errors"))
        assert (np.abs(widths - 0.06) < 4.5 * errors).all()
        assert adjusted_rand_index(model.assign(points), labels) > 0.99
        assert model.diagnostics["detectable"] == [True] * 3
        assert model.diagnostics["converged"] is True
        assert model.diagnostics["bic"] is None
        assert model.warnings == ()

    def test_are_in_the_features_own_units(self):
        points, _ = crowds(20_000)
        named = (Feature("a", -10, 10, "m"), Feature("b", 0, 1), Feature("c", 100, 300))
        plain = simulate(PhaseSketch(epsilon=4, clusters=3), points, seed=2)
        scaled = simulate(PhaseSketch(epsilon=4, clusters=3), points, seed=2, features=named)
        assert scaled.centroids == pytest.approx(plain.centroids * [20, 1, 200] + [-10, 0, 100])
        assert scaled.centroid_errors == pytest.approx(plain.centroid_errors * [20, 1, 200])

    def test_are_counted_when_their_number_is_left_open(self):
        points, labels = crowds(60_000)
        model = simulate(PhaseSketch(epsilon=2), points, seed=3)
        assert_sound(model, 3)
        assert adjusted_rand_index(model.assign(points), labels) > 0.99
        assert int(np.argmin(model.diagnostics["bic"])) == 2

    @pytest.mark.parametrize(("d", "n", "epsilon"), [(1, 20_000, 4), (2, 40_000, 1), (8, 40_000, 4), (20, 40_000, 4)])
    def test_are_found_in_any_number_of_features(self, d, n, epsilon):
        corners = 0.25 + 0.5 * np.random.default_rng(4).permuted(np.tile([[0], [1]], (1, d)), axis=0)
        points, labels = crowds(n, centres=corners, shares=[0.6, 0.4])
        model = simulate(PhaseSketch(epsilon=epsilon, clusters=2), points, seed=4)
        assert_sound(model, 2)
        assert adjusted_rand_index(model.assign(points), labels) > 0.98

    def test_many_phases_are_read_where_epsilon_allows(self):
        points, _ = crowds(30_000)
        fine = simulate(PhaseSketch(epsilon=8, clusters=3), points, seed=5)
        coarse = simulate(PhaseSketch(epsilon=2, clusters=3), points, seed=5)
        assert fine.diagnostics["cramer_rao_error"] < 0.5 * coarse.diagnostics["cramer_rao_error"]
        assert np.abs(fine.centroids - CENTRES).max() < 0.01

    def test_unperturbed_reports_are_fitted_as_they_are(self):
        points, _ = crowds(30_000)
        model = simulate(PhaseSketch(epsilon=0.1, clusters=3), points, seed=6, perturb=False)
        assert_sound(model, 3)
        assert np.abs(model.centroids - CENTRES).max() < 0.01
        assert model.diagnostics["n_eff"] == 30_000


class TestPublishedRound:
    def test_is_gone_on_from_whatever_was_asked(self):
        """The waves, the number of phases and the window are those the devices answered."""
        rng = np.random.default_rng(7)
        weights = rng.integers(-3000, 3000, (90, 3))
        encoding = PhaseEncoding(tuple(tuple(row) for row in weights.tolist()), 12)
        mechanism = WindowMechanism(12, 5, 15 * 2**60)
        spec = RoundSpec(features(3), encoding, mechanism, Draw.between(0.25, 1))
        points, labels = crowds(60_000)
        answered = answered_by(points, spec)
        models = [
            drive(phase_sketch(PhaseSketch(epsilon=epsilon, clusters=3), features(3), n), lambda _: answered)
            for epsilon, n in ((0.1, 10), (8, 10**6))
        ]
        assert models[0].to_wire() == models[1].to_wire()
        assert 44_000 < models[0].diagnostics["n_reports"] < 46_000
        assert adjusted_rand_index(models[0].assign(points), labels) > 0.98
        near, far = max(offset_chances(mechanism)), min(offset_chances(mechanism))
        contrast = float((near - far) / (near + far))
        assert models[0].diagnostics["n_eff"] == pytest.approx(models[0].diagnostics["n_reports"] * contrast**2)

    def test_through_randomised_response_is_read_too(self):
        spec = next(phase_sketch(PhaseSketch(epsilon=4), features(3), 10))
        spec = RoundSpec(spec.features, spec.encoding, design("grr", 16, 4 * NANO))
        points, labels = crowds(40_000)
        model = fit(PhaseSketch(epsilon=4, clusters=3), answered_by(points, spec))
        assert adjusted_rand_index(model.assign(points), labels) > 0.98

    def test_with_waves_nobody_answered_is_fitted_by_the_others(self):
        spec = next(phase_sketch(PhaseSketch(epsilon=2), features(3), 10))
        points, labels = crowds(60_000)
        tally = answered_by(points, spec).tally
        tally.counts[100:300] = 0
        tally.reports[100:300] = 0
        model = fit(PhaseSketch(epsilon=2, clusters=3), Collected(spec, tally))
        assert model.diagnostics["waves_answered"] == 312
        assert adjusted_rand_index(model.assign(points), labels) > 0.98

    def test_driven_again_on_stored_tallies_gives_the_same_bytes(self):
        points, _ = crowds(5000)
        stored = {}

        def first(spec):
            answered = answered_by(points, spec)
            stored[spec] = answered.tally.to_bytes()
            return answered

        def again(spec):
            return Collected(spec, Tally.from_bytes(stored[spec]))

        wires = [
            json.dumps(drive(start(PhaseSketch(epsilon=2, clusters=4, slots=64), features(3), 5000), source).to_wire())
            for source in (first, again, again)
        ]
        assert wires[0] == wires[1] == wires[2]

    def test_of_another_encoding_is_refused(self):
        spec = RoundSpec(features(2), GridEncoding((4, 4)), design("grr", 16, NANO))
        with pytest.raises(UnfitRound, match="goes on from"):
            fit(PhaseSketch(epsilon=1), Collected(spec, Tally.empty(spec)))

    @pytest.mark.parametrize(
        "mechanism", [GrrMechanism(16, 2**60), design("oue", 16, NANO), WindowMechanism(16, 4, 2**62)]
    )
    def test_whose_reports_tell_nothing_is_refused(self, mechanism):
        spec = RoundSpec(features(1), PhaseEncoding(((1024,), (2048,)), 16), mechanism)
        tally = Tally.empty(spec)
        tally.reports[:] = 5
        with pytest.raises(UnfitRound):
            fit(PhaseSketch(epsilon=1), Collected(spec, tally))


class TestTooLittle:
    def test_none_is_too_few(self):
        with pytest.raises(TooFewReports) as caught:
            simulate(PhaseSketch(epsilon=1), np.empty((0, 3)), seed=1)
        assert (caught.value.n_reports, caught.value.n_needed) == (0, 1)

    @pytest.mark.parametrize("n", [1, 2, 40])
    @pytest.mark.parametrize("clusters", [None, 1, 3])
    @pytest.mark.parametrize("perturb", [True, False])
    def test_few_make_a_flagged_model(self, n, clusters, perturb):
        points = np.random.default_rng(n).random((n, 2))
        model = simulate(PhaseSketch(epsilon=1, clusters=clusters), points, seed=1, perturb=perturb)
        assert_sound(model, clusters)
        assert model.diagnostics["low_confidence"] is True
        assert f"about {model.diagnostics['reports_needed']} would do" in model.warnings[0]

    @pytest.mark.parametrize(("d", "clusters", "effective"), [(2, 4, 1000), (4, 4, 1000), (8, 4, 2000), (4, 8, 8000)])
    def test_how_many_would_do_is_said(self, d, clusters, effective):
        points = np.random.default_rng(2).random((300, d))
        model = simulate(PhaseSketch(epsilon=1, clusters=clusters, slots=64), points, seed=2)
        assert model.diagnostics["reports_needed"] == pytest.approx(effective / np.tanh(0.5) ** 2, abs=1)
        assert model.diagnostics["n_eff"] == pytest.approx(300 * np.tanh(0.5) ** 2)

    def test_as_many_as_it_says_do(self):
        centres = np.array([[0.2, 0.3, 0.4, 0.7], [0.8, 0.3, 0.6, 0.3], [0.4, 0.8, 0.2, 0.2], [0.6, 0.7, 0.8, 0.8]])
        points, labels = crowds(4700, centres=centres, shares=[0.25] * 4)
        model = simulate(PhaseSketch(epsilon=1, clusters=4), points, seed=3)
        assert model.diagnostics["low_confidence"] is False
        assert model.diagnostics["reports_needed"] < 4700
        assert adjusted_rand_index(model.assign(points), labels) > 0.95

    @pytest.mark.parametrize("epsilon", [1e-6, 32])
    @pytest.mark.parametrize("clusters", [None, 5])
    def test_extreme_epsilon_makes_a_sound_model(self, epsilon, clusters):
        model = simulate(PhaseSketch(epsilon=epsilon, clusters=clusters), crowds(2000)[0], seed=4)
        assert_sound(model, clusters)
        assert model.diagnostics["low_confidence"] is (epsilon < 1)


class TestOddPeople:
    @pytest.mark.parametrize("place", [0.0, 0.41, 1.0])
    @pytest.mark.parametrize("clusters", [None, 1, 3])
    def test_all_in_one_place_make_a_model(self, place, clusters):
        model = simulate(PhaseSketch(epsilon=2, clusters=clusters), np.full((20_000, 2), place), seed=5)
        assert_sound(model, clusters)
        assert np.abs(np.average(model.centroids, axis=0, weights=model.sizes) - place).max() < 0.03
        assert min(model.diagnostics["widths"]) < 0.01

    def test_spread_evenly_are_one_cluster(self):
        points = np.random.default_rng(6).random((60_000, 4))
        model = simulate(PhaseSketch(epsilon=1), points, seed=6)
        assert_sound(model, 1)

    def test_constant_and_repeated_features_do_no_harm(self):
        points, labels = crowds(40_000)
        odd = np.column_stack([points, np.full(40_000, 0.3), points[:, 0], 1 - points[:, 0]])
        model = simulate(PhaseSketch(epsilon=4, clusters=3), odd, seed=7)
        assert_sound(model, 3)
        assert model.centroids[:, 3] == pytest.approx([0.3] * 3, abs=0.03)
        assert adjusted_rand_index(model.assign(odd), labels) > 0.98

    def test_more_clusters_than_there_are_is_said(self):
        points, _ = crowds(20_000)
        model = simulate(PhaseSketch(epsilon=1, clusters=12, slots=128), points, seed=8)
        assert_sound(model, 12)
        assert not all(model.diagnostics["detectable"])
        assert any("12 were asked for" in warning for warning in model.warnings)

    def test_a_cluster_at_the_floor_is_not_called_clear(self):
        points, _ = crowds(40_000, centres=CENTRES[:1], shares=[1.0])
        model = simulate(PhaseSketch(epsilon=8, clusters=4), points, seed=9)
        assert_sound(model, 4)
        floors = model.sizes < 0.0202
        assert [not clear for clear in model.diagnostics["detectable"]] >= floors.tolist()
        assert np.abs(np.average(model.centroids, axis=0, weights=model.sizes) - CENTRES[0]).max() < 0.03
