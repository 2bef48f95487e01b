"""Test `phase_sketch` with one round: its round, centroids, published rounds and required reports."""

import json

import numpy as np
import pytest

import clustering.phases.phase_sketch as algorithm
from clustering.errors import UnfitRound
from clustering.metrics import adjusted_rand_index
from clustering.phases.initialisation import search
from clustering.phases.phase_sketch import fit, phase_sketch
from clustering.rounds.counting import count
from clustering.rounds.plan import Collected, drive
from clustering.rounds.tally import Tally
from clustering.simulate import simulate
from sfumato.device.bulk import perturb_records
from sfumato.errors import InvalidSpec
from sfumato.mechanisms import design
from sfumato.privacy.accounting import NANO
from sfumato.specs import (
    GrrMechanism,
    Participation,
    PhaseEncoding,
    PhaseSketch,
    RoundSpec,
    WindowMechanism,
    job_from_wire,
    to_wire,
)
from tests import naive
from tests.clustering.local_plans import Devices, assert_sound, features, mixture
from tests.sfumato.replay import GeneratorEntropy

CENTRES = np.array([[0.25, 0.3, 0.7], [0.75, 0.3, 0.3], [0.5, 0.8, 0.55]])
SHARES = np.array([0.5, 0.3, 0.2])


def people(n):
    return mixture(n, CENTRES, SHARES)


class TestParameters:
    @pytest.mark.parametrize("refine", ["auto", "lloyd", "sign", "none"])
    def test_go_to_the_wire_and_back(self, refine):
        given = PhaseSketch(epsilon=0.5, clusters=64, slots=1024, seed=2**32 - 1, refine=refine)
        assert job_from_wire(json.loads(json.dumps(to_wire(given)))) == given

    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            ({"clusters": 0}, "clusters"),
            ({"clusters": 65}, "clusters"),
            ({"clusters": 2.0}, "clusters"),
            ({"slots": 31}, "slots"),
            ({"slots": 1025}, "slots"),
            ({"seed": -1}, "seed"),
            ({"seed": 2**32}, "seed"),
            ({"seed": True}, "seed"),
            ({"epsilon": 33}, "epsilon"),
            *(
                ({"clusters": 2, "refine": refine}, "refine must be one of auto, none, sign, lloyd")
                for refine in ("", "Lloyd", None, 1, ["sign"])
            ),
            ({"refine": "sign"}, "needs the number of clusters"),
            ({"refine": "lloyd"}, "needs the number of clusters"),
        ],
    )
    def test_refuses_impossible_values(self, wrong, message):
        with pytest.raises(InvalidSpec, match=message):
            PhaseSketch(**{"epsilon": 1.0, **wrong})


class TestRound:
    def test_uses_the_full_epsilon_for_all_devices(self):
        spec = next(phase_sketch(PhaseSketch(epsilon=2, clusters=3, slots=100, seed=5), features(3), 1000))
        assert isinstance(spec.encoding, PhaseEncoding)
        assert (spec.encoding.n_slots, spec.encoding.n_features, spec.encoding.phases) == (100, 3, 16)
        assert spec.participation == Participation()
        assert spec.mechanism == design("window", 16, 2 * NANO)
        assert 2 * NANO - 10 <= spec.mechanism.epsilon_nano() <= 2 * NANO

    def test_depends_on_parameters_and_features_only(self):
        specs = [next(phase_sketch(PhaseSketch(epsilon=1, seed=7), features(4), n)) for n in (1, 10**6)]
        assert specs[0] == specs[1]
        assert next(phase_sketch(PhaseSketch(epsilon=1, seed=8), features(4), 1)) != specs[0]

    def test_counts_equal_those_of_the_twin(self):
        spec = next(phase_sketch(PhaseSketch(epsilon=2, slots=40), features(3), 1000))
        reports = perturb_records(spec, people(3000)[0], GeneratorEntropy(2))
        slots = reports.slots.astype(np.int64)
        tally = count(spec, slots, reports.values)
        counts, n_reports = naive.count(spec.mechanism, 40, slots, reports.values)
        assert tally.counts.tolist() == counts
        assert tally.reports.tolist() == n_reports


class TestCentroids:
    def test_equal_those_of_the_people_within_their_errors(self):
        points, labels = people(60_000)
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

    def test_are_counted_if_the_number_of_clusters_is_open(self):
        points, labels = people(60_000)
        model = simulate(PhaseSketch(epsilon=2), points, seed=3)
        assert_sound(model, 3)
        assert adjusted_rand_index(model.assign(points), labels) > 0.99
        criteria = model.diagnostics["bic"]
        assert min(value for value in criteria if value is not None) == criteria[2]
        assert model.diagnostics["cluster_interval"] == [3, 3]
        assert model.diagnostics["supported_clusters"] == 13
        assert model.warnings == ()

    def test_an_even_density_is_one_doubtful_cluster(self):
        points = np.random.default_rng(6).random((60_000, 4))
        model = simulate(PhaseSketch(epsilon=1), points, seed=6)
        assert_sound(model, 1)
        assert model.verdict == "doubtful"
        assert model.diagnostics["cluster_interval"] == [1, None]
        assert "support a count of at most 9" in model.warnings[0]

    def test_too_many_clusters_to_count_are_one_doubtful_cluster(self):
        rng = np.random.default_rng(7)
        points = (rng.random((20, 16))[rng.integers(0, 20, 3000)] + rng.normal(0, 0.05, (3000, 16))).clip(0, 1)
        model = simulate(PhaseSketch(epsilon=1, slots=64), points, seed=7)
        assert_sound(model, 1)
        assert model.verdict == "doubtful"
        assert (model.diagnostics["cluster_interval"], model.diagnostics["supported_clusters"]) == ([1, None], 1)
        assert any("too few to count clusters. Collect about 149" in warning for warning in model.warnings)

    def test_of_overlapping_clusters_are_those_of_k_means(self):
        """The means of fitted components are elsewhere, because half of the components lie within others."""
        rng = np.random.default_rng(8)
        points = np.concatenate([rng.normal(0.5, 0.04, (20_000, 2)), rng.normal(0.5, 0.17, (20_000, 2))]).clip(0, 1)
        model = simulate(PhaseSketch(epsilon=4, clusters=4), points, seed=8)
        assert_sound(model, 4)
        nearest = ((points[:, None] - model.centroids) ** 2).sum(axis=2)
        means = np.array([points[nearest.argmin(axis=1) == c].mean(axis=0) for c in range(4)])
        assert np.abs(means - model.centroids).max() < 0.03
        assert model.soft is None
        assert (model.size_errors > 0).all()

    @pytest.mark.parametrize(("width", "is_clear"), [(0.06, True), (0.16, False)])
    def test_have_a_warning_if_the_fit_did_not_converge(self, monkeypatch, width, is_clear):
        monkeypatch.setattr(algorithm, "search", lambda *given: search(*given)._replace(converged=False))
        model = simulate(
            PhaseSketch(epsilon=4, clusters=3, slots=64), mixture(20_000, CENTRES, SHARES, width)[0], seed=1
        )
        assert (model.soft is not None) is is_clear
        assert model.diagnostics["converged"] is False
        assert "before it converged" in model.warnings[-1]

    @pytest.mark.parametrize(("d", "n"), [(1, 20_000), (20, 40_000)])
    def test_are_found_in_any_number_of_features(self, d, n):
        corners = 0.25 + 0.5 * np.random.default_rng(4).permuted(np.tile([[0], [1]], (1, d)), axis=0)
        points, labels = mixture(n, corners, [0.6, 0.4])
        model = simulate(PhaseSketch(epsilon=4, clusters=2), points, seed=4)
        assert_sound(model, 2)
        assert adjusted_rand_index(model.assign(points), labels) > 0.98

    def test_many_phases_are_used_at_high_epsilon(self):
        points, _ = people(20_000)
        fine, coarse = (simulate(PhaseSketch(epsilon, clusters=3), points, seed=5) for epsilon in (8, 2))
        assert fine.diagnostics["cramer_rao_error"] < 0.5 * coarse.diagnostics["cramer_rao_error"]
        assert np.abs(fine.centroids - CENTRES).max() < 0.01

    def test_are_found_without_noise(self):
        points, _ = people(20_000)
        model = simulate(PhaseSketch(epsilon=0.1, clusters=3), points, seed=6, perturb=False)
        assert_sound(model, 3)
        assert np.abs(model.centroids - CENTRES).max() < 0.01
        assert model.diagnostics["n_eff"] == 20_000

    def test_a_cluster_at_the_least_share_is_not_detectable(self):
        points, _ = mixture(20_000, CENTRES[:1])
        model = simulate(PhaseSketch(epsilon=8, clusters=4), points, seed=9)
        assert_sound(model, 4)
        least = model.sizes < 0.0202
        assert [not clear for clear in model.diagnostics["detectable"]] >= least.tolist()
        assert np.abs(model.sizes @ model.centroids - CENTRES[0]).max() < 0.03


class TestPublishedRound:
    def test_replaces_the_planned_round(self):
        """The fit uses the published waves, number of phases, window and participation."""
        weights = np.random.default_rng(7).integers(-3000, 3000, (90, 3))
        encoding = PhaseEncoding(tuple(tuple(row) for row in weights.tolist()), 12)
        mechanism = WindowMechanism(12, 5, 15 * 2**60)
        spec = RoundSpec(features(3), encoding, mechanism, Participation.between(0.25, 1))
        points, labels = people(60_000)
        collected = Devices(points)(spec)
        models = [
            drive(phase_sketch(PhaseSketch(epsilon=epsilon, clusters=3), features(3), n), lambda _: collected)
            for epsilon, n in ((0.1, 10), (8, 10**6))
        ]
        assert models[0].to_wire() == models[1].to_wire()
        assert 44_000 < models[0].diagnostics["n_reports"] < 46_000
        assert adjusted_rand_index(models[0].assign(points), labels) > 0.98
        near, far = max(mechanism.offset_chances()), min(mechanism.offset_chances())
        contrast = float((near - far) / (near + far))
        assert models[0].diagnostics["n_eff"] == pytest.approx(models[0].diagnostics["n_reports"] * contrast**2)

    def test_may_use_randomised_response(self):
        spec = next(phase_sketch(PhaseSketch(epsilon=4), features(3), 10))
        spec = RoundSpec(spec.features, spec.encoding, design("grr", 16, 4 * NANO))
        points, labels = people(40_000)
        model = fit(PhaseSketch(epsilon=4, clusters=3), Devices(points)(spec))
        assert adjusted_rand_index(model.assign(points), labels) > 0.98

    def test_may_have_waves_without_reports(self):
        spec = next(phase_sketch(PhaseSketch(epsilon=2), features(3), 10))
        points, labels = people(60_000)
        tally = Devices(points)(spec).tally
        tally.counts[100:300] = 0
        tally.reports[100:300] = 0
        model = fit(PhaseSketch(epsilon=2, clusters=3), Collected(spec, tally))
        assert model.diagnostics["waves_answered"] == 312
        assert adjusted_rand_index(model.assign(points), labels) > 0.98

    @pytest.mark.parametrize(
        "mechanism", [GrrMechanism(16, 2**60), design("oue", 16, NANO), WindowMechanism(16, 4, 2**62)]
    )
    def test_is_refused_if_its_reports_carry_no_information(self, mechanism):
        spec = RoundSpec(features(1), PhaseEncoding(((1024,), (2048,)), 16), mechanism)
        tally = Tally.empty(spec)
        tally.reports[:] = 5
        with pytest.raises(UnfitRound):
            fit(PhaseSketch(epsilon=1), Collected(spec, tally))


class TestRequiredReports:
    @pytest.mark.parametrize(("d", "clusters", "effective"), [(2, 4, 1000), (8, 4, 2000), (4, 8, 8000)])
    def test_are_in_the_diagnostics(self, d, clusters, effective):
        points = np.random.default_rng(2).random((300, d))
        model = simulate(PhaseSketch(epsilon=1, clusters=clusters, slots=64), points, seed=2)
        assert model.diagnostics["reports_needed"] == pytest.approx(effective / np.tanh(0.5) ** 2, abs=1)
        assert model.diagnostics["n_eff"] == pytest.approx(300 * np.tanh(0.5) ** 2)

    def test_are_enough(self):
        centres = np.array([[0.2, 0.3, 0.4, 0.7], [0.8, 0.3, 0.6, 0.3], [0.4, 0.8, 0.2, 0.2], [0.6, 0.7, 0.8, 0.8]])
        points, labels = mixture(4700, centres)
        model = simulate(PhaseSketch(epsilon=1, clusters=4), points, seed=3)
        assert model.diagnostics["low_confidence"] is False
        assert model.diagnostics["reports_needed"] < 4700
        assert adjusted_rand_index(model.assign(points), labels) > 0.95
