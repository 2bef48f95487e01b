"""Test `phase_sketch` with rounds about centroids: planned rounds, published encodings, centroids and empty rounds."""

from itertools import pairwise

import numpy as np
import pytest

from clustering.errors import UnfitRound
from clustering.metrics import adjusted_rand_index
from clustering.phases.phase_sketch import fit, phase_sketch
from clustering.registry import start
from clustering.rounds.plan import Collected, drive
from clustering.rounds.tally import Tally
from clustering.simulate import simulate
from sfumato.forecast import forecast
from sfumato.mechanisms import design
from sfumato.privacy.accounting import DRAW_SPAN, NANO
from sfumato.sizing import planned_rounds
from sfumato.specs import (
    CentroidSignEncoding,
    GridEncoding,
    NearestCentroidEncoding,
    PhaseEncoding,
    PhaseSketch,
    RoundSpec,
    WindowMechanism,
)
from tests.clustering.local_plans import Devices, assert_sound, features, mixture, price, run

CENTRES = np.array([[0.25, 0.3, 0.7, 0.4], [0.75, 0.3, 0.3, 0.6], [0.5, 0.8, 0.55, 0.5]])
SHARES = [0.5, 0.3, 0.2]
FEATURES = features(4)
REFINEMENTS = ("auto", "lloyd", "sign", "none")


def people(n, seed=1, width=0.06, centres=CENTRES):
    return mixture(n, centres, SHARES, width, seed)


def encodings(devices):
    return [type(spec.encoding) for spec in devices.specs]


class TestPlannedRounds:
    @pytest.mark.parametrize("refine", REFINEMENTS)
    @pytest.mark.parametrize("epsilon", [1.0, 9.0])
    def test_are_the_rounds_that_open(self, refine, epsilon):
        params = PhaseSketch(epsilon=epsilon, clusters=3, slots=64, refine=refine)
        _, devices = run(params, people(3000)[0])
        planned = planned_rounds(params, 4, 3000)
        assert devices.participations == [each.participation for each in planned]
        assert all(a.hi == b.lo for a, b in pairwise(devices.participations))
        assert (devices.participations[0].lo, devices.participations[-1].hi) == (0, DRAW_SPAN)
        assert isinstance(devices.specs[0].mechanism, WindowMechanism)
        for spec, each in zip(devices.specs, planned, strict=True):
            assert spec.encoding.n_symbols <= each.n_symbols
            assert spec.mechanism.epsilon_nano() <= each.epsilon_nano
        forecasted = forecast(params, n_features=4, expected_reports=3000)
        assert price(devices.specs) <= forecasted.epsilon_nano <= epsilon * NANO
        assert [each.participation for each in forecasted.rounds] == devices.participations

    @pytest.mark.parametrize(
        ("n", "d", "clusters", "epsilon", "share", "rounds"),
        [
            (100_000, 8, 10, 1.0, 0.3, 5),  # too few devices for phases
            (100_000, 8, 10, 2.0, 0.55, 4),  # phases need more than half of the devices
            (100_000, 4, 4, 1.0, 0.3, 5),  # phases need some of the devices
            (5000, 4, 4, 1.0, 1.0, 1),  # phases need all devices
            (2000, 4, 4, 1.0, 0.3, 5),
        ],
    )
    def test_the_first_round_has_the_devices_that_phases_need(self, n, d, clusters, epsilon, share, rounds):
        planned = planned_rounds(PhaseSketch(epsilon=epsilon, clusters=clusters), d, n)
        assert planned[0].participation.hi / DRAW_SPAN == pytest.approx(share)
        assert len(planned) == rounds

    @pytest.mark.parametrize(
        ("params", "d"),
        [
            (PhaseSketch(1), 8),
            (PhaseSketch(1, clusters=1), 8),
            (PhaseSketch(1, clusters=4), 3),
            (PhaseSketch(1, clusters=4, refine="none"), 8),
        ],
    )
    def test_one_round_without_refinement(self, params, d):
        (only,) = planned_rounds(params, d, 10**6)
        assert (only.participation.lo, only.participation.hi, only.kind, only.adapts) == (0, DRAW_SPAN, "window", False)

    @pytest.mark.parametrize(("d", "shares"), [(2, [0.7, 0.15, 0.15]), (3, [0.3, 0.175, 0.175, 0.175, 0.175])])
    def test_lloyd_has_other_shares_with_few_features(self, d, shares):
        planned = planned_rounds(PhaseSketch(1, clusters=4, refine="lloyd"), d, 10**6)
        found = [(each.participation.hi - each.participation.lo) / DRAW_SPAN for each in planned]
        assert found == pytest.approx(shares)

    @pytest.mark.parametrize(("epsilon", "encoding"), [(1, CentroidSignEncoding), (4, NearestCentroidEncoding)])
    def test_the_encoding_follows_epsilon(self, epsilon, encoding):
        _, devices = run(PhaseSketch(epsilon, clusters=3, slots=64, refine="lloyd"), people(2000)[0])
        assert encodings(devices)[1:] == [encoding] * 4


class TestPublishedEncodings:
    def test_centroids_follow_from_earlier_rounds(self):
        points, _ = people(20_000)
        params = PhaseSketch(2, clusters=3, slots=128, refine="lloyd")
        model, devices = run(params, points)
        shown = [np.array(spec.encoding.centroids) / 2**20 for spec in devices.specs[1:]]
        assert all((a != b).any() for a, b in pairwise(shown))
        order = np.argsort(((shown[-1][:, None] - model.centroids) ** 2).sum(axis=2).argmin(axis=1))
        assert np.abs(shown[-1][order] - model.centroids).max() < 0.02
        _, others = run(params, people(20_000, centres=1 - CENTRES)[0])
        assert others.specs[0] == devices.specs[0]
        assert others.specs[1].encoding != devices.specs[1].encoding

    def test_phases_are_repeated_if_centroids_are_uncertain(self):
        params = PhaseSketch(0.5, clusters=3, slots=64, refine="sign")
        model, devices = run(params, np.random.default_rng(1).random((600, 4)))
        assert encodings(devices) == [PhaseEncoding] * 2
        assert devices.specs[0].encoding == devices.specs[1].encoding
        assert model.diagnostics["refined"] == "phases"
        assert model.diagnostics["n_reports"] == 600
        tally = devices.rounds[0].tally + devices.rounds[1].tally
        alone = fit(PhaseSketch(0.5, clusters=3, slots=64), Collected(devices.specs[0], tally))
        assert model.centroids.tolist() == alone.centroids.tolist()

    def test_phases_that_barely_suffice_are_repeated(self):
        model, devices = run(PhaseSketch(1, clusters=3), people(6000, width=0.01)[0], seed=2)
        assert encodings(devices)[:2] == [PhaseEncoding] * 2
        assert_sound(model, 3)

    def test_signs_follow_clear_centroids(self):
        model, devices = run(PhaseSketch(1, clusters=3, slots=128, refine="sign"), people(40_000)[0])
        assert encodings(devices) == [PhaseEncoding, CentroidSignEncoding]
        assert model.diagnostics["refined"] == "clear"


class TestParticles:
    """Runs of `auto` that use particles in place of clear clusters."""

    def test_overlapping_clusters_use_particles(self):
        model, _ = run(PhaseSketch(1, clusters=3), people(60_000, width=0.16)[0])
        assert model.diagnostics["refined"] == "particles"
        assert model.diagnostics["atoms"] >= 1

    def test_few_reports_use_particles(self):
        model, devices = run(PhaseSketch(1, clusters=3), people(3000)[0])
        assert model.diagnostics["refined"] == "particles"
        assert len(devices.specs) == 5

    def test_contradicting_reports_switch_to_particles(self):
        """The rounds about centroids have other people than the round of phases."""
        phases, others = Devices(people(60_000)[0]), Devices(people(60_000, centres=CENTRES + 0.08)[0])

        def collect(spec):
            return (phases if isinstance(spec.encoding, PhaseEncoding) else others)(spec)

        model = drive(start(PhaseSketch(2, clusters=3), FEATURES, 60_000), collect)
        assert model.diagnostics["refined"] == "particles"
        assert len(others.specs) == 4


class TestCentroids:
    @pytest.mark.parametrize("refine", ["auto", "lloyd", "sign"])
    def test_equal_those_of_the_people_within_their_errors(self, refine):
        points, labels = people(60_000)
        model, _ = run(PhaseSketch(1, clusters=3, refine=refine), points)
        assert_sound(model, 3)
        true = np.array([points[labels == c].mean(axis=0) for c in range(3)])
        assert (np.abs(model.centroids - true) < 5 * model.centroid_errors + 0.004).all()
        assert model.centroid_errors.max() < 0.025
        assert (np.abs(model.sizes - SHARES) < 4.5 * model.size_errors).all()
        assert model.size_errors.max() < 0.04
        assert adjusted_rand_index(model.assign(points), labels) > 0.99
        assert model.warnings == ()
        assert model.diagnostics["refined"] == ("particles" if refine == "lloyd" else "clear")
        assert (model.diagnostics["family"] is None) == (refine != "lloyd")

    @pytest.mark.slow
    def test_signs_reduce_the_error(self):
        errors = {"none": [], "sign": []}
        for refine, found in errors.items():
            for seed in range(3):
                points, labels = people(40_000, seed)
                model = simulate(PhaseSketch(1, clusters=3, refine=refine), points, seed=seed)
                true = np.array([points[labels == c].mean(axis=0) for c in range(3)])
                found.append(((model.centroids - true) ** 2).mean())
        assert np.mean(errors["sign"]) < 0.7 * np.mean(errors["none"])

    @pytest.mark.slow
    def test_lloyd_rounds_reduce_the_inertia_of_one_normal_cluster(self):
        """Six centroids of one long normal cluster in five features lie along its axis."""
        rng = np.random.default_rng(5)
        axes = np.linalg.qr(rng.normal(size=(5, 5)))[0] * [0.16, 0.1, 0.05, 0.04, 0.03]
        points = (0.5 + rng.normal(size=(60_000, 5)) @ axes.T).clip(0, 1)
        inertia = {}
        for refine in ("none", "lloyd"):
            model, _ = run(PhaseSketch(1, clusters=6, refine=refine), points)
            inertia[refine] = ((points[:, None] - model.centroids) ** 2).sum(axis=2).min(axis=1).mean()
        assert inertia["lloyd"] < 0.9 * inertia["none"]
        assert model.diagnostics["refined"] == "particles"

    @pytest.mark.parametrize("refine", ["sign", "lloyd"])
    def test_are_found_without_noise(self, refine):
        points, labels = people(20_000)
        model = simulate(PhaseSketch(0.1, clusters=3, refine=refine), points, seed=6, perturb=False)
        assert_sound(model, 3)
        assert np.abs(model.centroids - CENTRES).max() < 0.02  # one bit per device carries little information
        assert adjusted_rand_index(model.assign(points), labels) > 0.99

    def test_stay_if_later_rounds_have_no_reports(self):
        devices = Devices(people(20_000)[0])
        specs = []

        def only_first(spec):
            specs.append(spec)
            return devices(spec) if len(specs) == 1 else Collected(spec, Tally.empty(spec))

        params = PhaseSketch(2, clusters=3, slots=128, refine="lloyd")
        model = drive(phase_sketch(params, FEATURES, 20_000), only_first)
        assert_sound(model, 3)
        shown = [sorted(spec.encoding.centroids) for spec in specs[1:]]
        assert shown[0] == shown[1] == shown[2] == shown[3]
        assert model.diagnostics["reports_by_round"][1:] == [0, 0, 0, 0]


def fewer_centroids(spec):
    return CentroidSignEncoding(spec.encoding.centroids[:2])


def no_centroids(spec):
    return GridEncoding((2, 2, 2, 2))


def other_waves(spec):
    return PhaseEncoding(spec.encoding.weights[::-1], spec.encoding.phases)


class TestPublishedRounds:
    def drive_changed(self, params, points, change):
        """Return the model if the second round has a changed encoding."""
        devices = Devices(points)

        def collect(spec):
            if len(devices.rounds) == 1:
                encoding = change(spec)
                grid = isinstance(encoding, GridEncoding)
                mechanism = design("auto", 16, NANO) if grid else spec.mechanism
                spec = RoundSpec(spec.features, encoding, mechanism, spec.participation)
            return devices(spec)

        return drive(phase_sketch(params, FEATURES, 3000), collect)

    @pytest.mark.parametrize(
        ("epsilon", "refine", "change", "message"),
        [
            (1, "lloyd", fewer_centroids, "number of centroids"),
            (1, "lloyd", no_centroids, "nearest centroids"),
            (0.5, "sign", other_waves, "different waves"),
        ],
    )
    def test_are_refused_if_they_do_not_fit_the_first(self, epsilon, refine, change, message):
        points = people(3000)[0] if refine == "lloyd" else np.random.default_rng(1).random((3000, 4))
        with pytest.raises(UnfitRound, match=message):
            self.drive_changed(PhaseSketch(epsilon, clusters=3, slots=64, refine=refine), points, change)

    def test_replace_the_planned_centroids(self):
        """Signs are about the published centroids, which another version may have computed."""

        def shift(spec):
            rows = tuple(tuple(min(x + 8000, 2**20 - 1) for x in row) for row in spec.encoding.centroids)
            return type(spec.encoding)(rows)

        params = PhaseSketch(2, clusters=3, slots=128, refine="sign")
        model = self.drive_changed(params, people(60_000)[0], shift)
        assert np.abs(model.centroids - CENTRES).max() < 0.015
