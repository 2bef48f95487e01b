"""`phase_sketch` in rounds: what each asks follows from those before it, all is planned, and nothing breaks it."""

import json
from itertools import pairwise

import numpy as np
import pytest

from clustering.errors import TooFewReports, UnfitRound
from clustering.metrics import adjusted_rand_index
from clustering.plan import Collected, Tally, drive
from clustering.plans.phase_sketch import fit, phase_sketch
from clustering.registry import start
from clustering.simulate import SeededEntropy, collect, simulate
from sfumato.accounting import DRAW_SPAN, NANO, cost
from sfumato.errors import InvalidSpec
from sfumato.forecast import forecast
from sfumato.mechanisms import design, epsilon_nano
from sfumato.sizing import planned_rounds
from sfumato.specs import (
    CentroidSignEncoding,
    Feature,
    GridEncoding,
    NearestCentroidEncoding,
    PhaseEncoding,
    PhaseSketch,
    RoundSpec,
    WindowMechanism,
    algorithm_from_wire,
    to_wire,
)
from tests.clustering.plans.test_phase_sketch import assert_sound

D4 = tuple(Feature(f"x{i}", 0, 1) for i in range(4))
CENTRES = np.array([[0.25, 0.3, 0.7, 0.4], [0.75, 0.3, 0.3, 0.6], [0.5, 0.8, 0.55, 0.5]])
WAYS = ("auto", "lloyd", "sign", "none")


def crowds(n, seed=1, width=0.06, centres=CENTRES):
    rng = np.random.default_rng(seed)
    labels = rng.choice(len(centres), n, p=[0.5, 0.3, 0.2])
    return (centres[labels] + rng.normal(0, width, (n, centres.shape[1]))).clip(0, 1), labels


class Devices:
    """Answers rounds over points, and keeps what was asked and stored."""

    def __init__(self, points, seed=1):
        self.points, self.entropy = points, SeededEntropy(seed)
        self.draws = self.entropy.words(len(points))
        self.asked, self.stored = [], []

    def __call__(self, spec):
        collected = collect(spec, self.points, self.entropy, self.draws)
        self.asked.append(spec)
        self.stored.append(collected.tally.to_bytes())
        return collected


def run(params, points, seed=1, features=D4):
    devices = Devices(points, seed)
    model = drive(start(params, features, len(points)), devices)
    return model, devices


class TestParameters:
    @pytest.mark.parametrize("refine", WAYS)
    def test_go_to_the_wire_and_back(self, refine):
        given = PhaseSketch(epsilon=0.5, clusters=4, refine=refine)
        assert algorithm_from_wire(json.loads(json.dumps(to_wire(given)))) == given

    @pytest.mark.parametrize("wrong", ["", "Lloyd", None, 1, ["sign"]])
    def test_that_cannot_be_are_refused(self, wrong):
        with pytest.raises(InvalidSpec, match="refine is auto, none, sign, lloyd"):
            PhaseSketch(epsilon=1, clusters=2, refine=wrong)

    @pytest.mark.parametrize("refine", ["sign", "lloyd"])
    def test_without_the_number_of_clusters_there_is_nothing_to_ask_about(self, refine):
        with pytest.raises(InvalidSpec, match="needs the number of clusters"):
            PhaseSketch(epsilon=1, refine=refine)


class TestWhatIsPlanned:
    @pytest.mark.parametrize("refine", WAYS)
    @pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0, 9.0])
    def test_is_what_is_asked(self, refine, epsilon):
        params = PhaseSketch(epsilon=epsilon, clusters=3, slots=64, refine=refine)
        _, devices = run(params, crowds(3000)[0])
        planned = planned_rounds(params, 4, 3000)
        assert [spec.draw for spec in devices.asked] == [each.draw for each in planned]
        assert all(a.hi == b.lo for a, b in pairwise(spec.draw for spec in devices.asked))
        assert (devices.asked[0].draw.lo, devices.asked[-1].draw.hi) == (0, DRAW_SPAN)
        assert isinstance(devices.asked[0].mechanism, WindowMechanism)
        for spec, each in zip(devices.asked, planned, strict=True):
            assert spec.encoding.n_symbols <= each.n_symbols
            assert epsilon_nano(spec.mechanism) <= each.epsilon_nano
        price = cost(((s.draw.lo, s.draw.hi), epsilon_nano(s.mechanism)) for s in devices.asked)
        forecasted = forecast(params, n_features=4, expected_reports=3000)
        assert price <= forecasted.epsilon_nano <= epsilon * NANO
        assert [each.draw for each in forecasted.rounds] == [spec.draw for spec in devices.asked]

    @pytest.mark.parametrize(
        ("n", "d", "clusters", "epsilon", "share", "rounds"),
        [
            (100_000, 8, 10, 1.0, 0.3, 5),  # phases would not do
            (100_000, 8, 10, 2.0, 0.55, 4),  # more than half of the devices do
            (100_000, 4, 4, 1.0, 0.3, 5),  # a part does
            (5000, 4, 4, 1.0, 1.0, 1),  # all do, barely
            (2000, 4, 4, 1.0, 0.3, 5),
        ],
    )
    def test_the_first_round_of_auto_is_as_large_as_phases_need(self, n, d, clusters, epsilon, share, rounds):
        planned = planned_rounds(PhaseSketch(epsilon=epsilon, clusters=clusters), d, n)
        assert planned[0].draw.hi / DRAW_SPAN == pytest.approx(share)
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
    def test_one_round_for_everybody_where_nothing_follows(self, params, d):
        (only,) = planned_rounds(params, d, 10**6)
        assert (only.draw.lo, only.draw.hi, only.kind, only.adapts) == (0, DRAW_SPAN, "window", False)

    @pytest.mark.parametrize(("d", "shares"), [(2, [0.7, 0.15, 0.15]), (3, [0.3, 0.175, 0.175, 0.175, 0.175])])
    def test_lloyd_has_rounds_of_its_own_with_few_features(self, d, shares):
        planned = planned_rounds(PhaseSketch(1, clusters=4, refine="lloyd"), d, 10**6)
        assert [(each.draw.hi - each.draw.lo) / DRAW_SPAN for each in planned] == pytest.approx(shares)

    def test_bits_are_asked_where_they_tell_more_than_centroid_and_side(self):
        _, low = run(PhaseSketch(1, clusters=3, slots=64, refine="lloyd"), crowds(2000)[0])
        _, high = run(PhaseSketch(4, clusters=3, slots=64, refine="lloyd"), crowds(2000)[0])
        assert [type(spec.encoding) for spec in low.asked[1:]] == [CentroidSignEncoding] * 4
        assert [type(spec.encoding) for spec in high.asked[1:]] == [NearestCentroidEncoding] * 4


class TestWhatIsAsked:
    def test_about_centroids_follows_from_what_was_told_before(self):
        points, _ = crowds(20_000)
        params = PhaseSketch(2, clusters=3, slots=128, refine="lloyd")
        model, devices = run(params, points)
        shown = [np.array(spec.encoding.centroids) / 2**20 for spec in devices.asked[1:]]
        assert all((a != b).any() for a, b in pairwise(shown))
        order = np.argsort(((shown[-1][:, None] - model.centroids) ** 2).sum(axis=2).argmin(axis=1))
        assert np.abs(shown[-1][order] - model.centroids).max() < 0.02
        elsewhere, _ = crowds(20_000, centres=1 - CENTRES)
        _, others = run(params, elsewhere)
        assert others.asked[0] == devices.asked[0]
        assert others.asked[1].encoding != devices.asked[1].encoding

    def test_is_phases_once_more_where_signs_would_be_about_centroids_nobody_knows(self):
        points = np.random.default_rng(1).random((600, 4))
        model, devices = run(PhaseSketch(0.5, clusters=3, slots=64, refine="sign"), points)
        assert [type(spec.encoding) for spec in devices.asked] == [PhaseEncoding] * 2
        assert devices.asked[0].encoding == devices.asked[1].encoding
        assert model.diagnostics["refined"] == "phases"
        assert model.diagnostics["n_reports"] == 600
        alone = fit(
            PhaseSketch(0.5, clusters=3, slots=64),
            Collected(
                devices.asked[0],
                Tally.from_bytes(devices.stored[0]) + Tally.from_bytes(devices.stored[1]),
            ),
        )
        assert model.centroids.tolist() == alone.centroids.tolist()

    def test_is_signs_where_centroids_are_known(self):
        model, devices = run(PhaseSketch(1, clusters=3, slots=128, refine="sign"), crowds(40_000)[0])
        assert [type(spec.encoding) for spec in devices.asked] == [PhaseEncoding, CentroidSignEncoding]
        assert model.diagnostics["refined"] == "clear"


class TestClearClusters:
    """Left to `auto`, whose first round has phases enough."""

    def test_go_on_as_clear(self):
        model, _ = run(PhaseSketch(1, clusters=3), crowds(60_000)[0])
        assert model.diagnostics["refined"] == "clear"
        assert model.diagnostics["family"] is None

    def test_that_overlap_go_on_as_particles(self):
        points, _ = crowds(60_000, width=0.16)
        model, _ = run(PhaseSketch(1, clusters=3), points)
        assert model.diagnostics["refined"] == "particles"
        assert model.diagnostics["atoms"] >= 1

    def test_are_not_looked_for_where_phases_do_not_suffice(self):
        model, devices = run(PhaseSketch(1, clusters=3), crowds(3000)[0])
        assert model.diagnostics["refined"] == "particles"
        assert len(devices.asked) == 5

    def test_are_given_up_where_what_devices_say_does_not_fit(self):
        """Other people answer the rounds about centroids than sent the phases."""
        phases, others = Devices(crowds(60_000)[0]), Devices(crowds(60_000, centres=CENTRES + 0.08)[0])
        params = PhaseSketch(2, clusters=3)

        def answer(spec):
            return (phases if isinstance(spec.encoding, PhaseEncoding) else others)(spec)

        model = drive(start(params, D4, 60_000), answer)
        assert model.diagnostics["refined"] == "particles"
        assert len(others.asked) == 4

    def test_that_are_not_settled_are_asked_about_by_phases_once_more(self):
        """Phases that barely suffice: the second round asks for them again, of the same waves."""
        points, _ = crowds(6000)
        asked = []
        for seed in range(6):
            model, devices = run(PhaseSketch(1, clusters=3), points, seed)
            asked.append([type(spec.encoding) for spec in devices.asked])
            assert_sound(model, 3)
        assert any(kinds[:2] == [PhaseEncoding] * 2 for kinds in asked)


class TestCentroids:
    @pytest.mark.parametrize("refine", WAYS)
    def test_of_clear_clusters_are_found_whichever_way(self, refine):
        points, labels = crowds(60_000)
        model, _ = run(PhaseSketch(1, clusters=3, refine=refine), points)
        assert_sound(model, 3)
        true = np.array([points[labels == c].mean(axis=0) for c in range(3)])
        assert (np.abs(model.centroids - true) < 5 * model.centroid_errors + 0.004).all()
        assert model.centroid_errors.max() < 0.025
        assert (np.abs(model.sizes - [0.5, 0.3, 0.2]) < 4.5 * model.size_errors).all()
        assert model.size_errors.max() < 0.04
        assert adjusted_rand_index(model.assign(points), labels) > 0.99
        assert model.warnings == ()

    def test_come_closer_by_signs_than_by_phases_alone(self):
        errors = {}
        for refine in ("none", "sign"):
            found = []
            for seed in range(4):
                points, labels = crowds(60_000, seed)
                model = simulate(PhaseSketch(1, clusters=3, refine=refine), points, seed=seed)
                true = np.array([points[labels == c].mean(axis=0) for c in range(3)])
                found.append(((model.centroids - true) ** 2).mean())
            errors[refine] = np.mean(found)
        assert errors["sign"] < 0.7 * errors["none"]

    def test_of_people_who_form_no_clusters_come_nearer_than_those_of_one_round(self):
        """One long normal crowd in five features, cut in six: the best centroids lie along it."""
        rng = np.random.default_rng(5)
        axes = np.linalg.qr(rng.normal(size=(5, 5)))[0] * [0.16, 0.1, 0.05, 0.04, 0.03]
        points = (0.5 + rng.normal(size=(60_000, 5)) @ axes.T).clip(0, 1)
        features = tuple(Feature(f"x{i}", 0, 1) for i in range(5))
        far = {}
        for refine in ("none", "lloyd"):
            model, _ = run(PhaseSketch(1, clusters=6, refine=refine), points, features=features)
            far[refine] = ((points[:, None] - model.centroids) ** 2).sum(axis=2).min(axis=1).mean()
        assert far["lloyd"] < 0.9 * far["none"]
        assert model.diagnostics["refined"] == "particles"

    def test_without_noise_are_those_of_the_people(self):
        points, labels = crowds(30_000)
        for refine in ("sign", "lloyd"):
            model = simulate(PhaseSketch(0.1, clusters=3, refine=refine), points, seed=6, perturb=False)
            assert_sound(model, 3)
            assert np.abs(model.centroids - CENTRES).max() < 0.02  # a bit of each device is little, even unperturbed
            assert adjusted_rand_index(model.assign(points), labels) > 0.99

    def test_are_in_the_features_own_units(self):
        points, _ = crowds(20_000)
        named = tuple(Feature(f"y{i}", -10, 10 * (i + 1)) for i in range(4))
        plain = simulate(PhaseSketch(2, clusters=3, refine="lloyd"), points, seed=2)
        scaled = simulate(PhaseSketch(2, clusters=3, refine="lloyd"), points, seed=2, features=named)
        span = np.array([20, 30, 40, 50])
        assert scaled.centroids == pytest.approx(plain.centroids * span - 10)
        assert scaled.centroid_errors == pytest.approx(plain.centroid_errors * span)


class TestDrivenAgain:
    @pytest.mark.parametrize("refine", WAYS)
    def test_on_stored_tallies_it_gives_the_same_bytes(self, refine):
        params = PhaseSketch(1, clusters=3, slots=64, refine=refine)
        model, devices = run(params, crowds(4000)[0])
        for _ in range(2):
            stored = iter(zip(devices.asked, devices.stored, strict=True))

            def again(spec, stored=stored):
                asked, tally = next(stored)
                assert asked == spec
                return Collected(asked, Tally.from_bytes(tally))

            wire = drive(start(params, D4, 4000), again).to_wire()
            assert json.dumps(wire) == json.dumps(model.to_wire())

    def test_none_is_one_round_and_its_fit(self):
        params = PhaseSketch(1, clusters=3, slots=64, refine="none")
        model, devices = run(params, crowds(4000)[0])
        (spec,), (tally,) = devices.asked, devices.stored
        assert model.to_wire() == fit(params, Collected(spec, Tally.from_bytes(tally))).to_wire()
        assert "refined" not in model.diagnostics


class TestTooLittle:
    @pytest.mark.parametrize("refine", WAYS)
    @pytest.mark.parametrize("n", [25, 80])
    def test_few_make_a_flagged_model_or_none(self, refine, n):
        points = np.random.default_rng(n).random((n, 4))
        params = PhaseSketch(1, clusters=3, slots=64, refine=refine)
        model, _ = run(params, points, seed=4)  # of which one at least draws the first round
        assert_sound(model, 3)
        assert model.diagnostics["low_confidence"] is True
        assert model.diagnostics["n_reports"] == n

    def test_no_phases_at_all_are_too_few(self):
        def nobody(spec):
            return Collected(spec, Tally.empty(spec))

        for refine in WAYS:
            with pytest.raises(TooFewReports):
                drive(phase_sketch(PhaseSketch(1, clusters=3, refine=refine), D4, 10**5), nobody)

    def test_later_rounds_nobody_answered_leave_the_first_ones_centroids(self):
        devices = Devices(crowds(20_000)[0])
        asked = []

        def only_first(spec):
            asked.append(spec)
            return devices(spec) if len(asked) == 1 else Collected(spec, Tally.empty(spec))

        params = PhaseSketch(2, clusters=3, slots=128, refine="lloyd")
        model = drive(phase_sketch(params, D4, 20_000), only_first)
        assert_sound(model, 3)
        shown = [sorted(spec.encoding.centroids) for spec in asked[1:]]
        assert shown[0] == shown[1] == shown[2] == shown[3]
        assert model.diagnostics["reports_by_round"][1:] == [0, 0, 0, 0]

    @pytest.mark.parametrize("epsilon", [1e-6, 32])
    @pytest.mark.parametrize("refine", ["auto", "lloyd", "sign"])
    def test_extreme_epsilon_makes_a_sound_model(self, epsilon, refine):
        model, _ = run(PhaseSketch(epsilon, clusters=3, slots=64, refine=refine), crowds(2000)[0])
        assert_sound(model, 3)


class TestOddPeople:
    @pytest.mark.parametrize("refine", ["auto", "lloyd", "sign"])
    @pytest.mark.parametrize("place", [0.0, 0.41, 1.0])
    def test_all_in_one_place_make_a_model(self, place, refine):
        model, _ = run(PhaseSketch(2, clusters=3, slots=64, refine=refine), np.full((8000, 4), place))
        assert_sound(model, 3)
        assert np.abs(np.average(model.centroids, axis=0, weights=model.sizes) - place).max() < 0.05

    @pytest.mark.parametrize("refine", ["auto", "lloyd", "sign"])
    def test_constant_and_repeated_features_do_no_harm(self, refine):
        points, labels = crowds(30_000)
        odd = np.column_stack([points, np.full(30_000, 0.3), points[:, 0], 1 - points[:, 0]])
        features = tuple(Feature(f"x{i}", 0, 1) for i in range(7))
        model, _ = run(PhaseSketch(4, clusters=3, refine=refine), odd, features=features)
        assert_sound(model, 3)
        assert adjusted_rand_index(model.assign(odd), labels) > 0.98

    def test_more_clusters_than_there_are_make_a_model(self):
        points, _ = crowds(10_000)
        for refine in ("auto", "lloyd", "sign"):
            model, _ = run(PhaseSketch(1, clusters=12, slots=64, refine=refine), points)
            assert_sound(model, 12)


class TestPublishedRounds:
    def driven(self, params, answers):
        given = iter(answers)
        return drive(phase_sketch(params, D4, 3000), lambda spec: next(given)(spec))

    def test_over_another_number_of_centroids_are_refused(self):
        devices = Devices(crowds(3000)[0])

        def fewer(spec):
            encoding = CentroidSignEncoding(spec.encoding.centroids[:2])
            return devices(RoundSpec(spec.features, encoding, spec.mechanism, spec.draw))

        with pytest.raises(UnfitRound, match="another number of centroids"):
            self.driven(PhaseSketch(1, clusters=3, slots=64, refine="lloyd"), [devices, fewer])

    def test_over_no_centroids_are_refused(self):
        devices = Devices(crowds(3000)[0])

        def grid(spec):
            return devices(RoundSpec(D4, GridEncoding((2, 2, 2, 2)), design("auto", 16, NANO), spec.draw))

        with pytest.raises(UnfitRound, match="nearest centroids"):
            self.driven(PhaseSketch(1, clusters=3, slots=64, refine="lloyd"), [devices, grid])

    def test_of_other_waves_are_refused(self):
        devices = Devices(np.random.default_rng(1).random((3000, 4)))

        def others(spec):
            encoding = PhaseEncoding(spec.encoding.weights[::-1], spec.encoding.phases)
            return devices(RoundSpec(spec.features, encoding, spec.mechanism, spec.draw))

        with pytest.raises(UnfitRound, match="different waves"):
            self.driven(PhaseSketch(0.5, clusters=3, slots=64, refine="sign"), [devices, others])

    def test_centroids_are_taken_as_published(self):
        """Another version may have published others: those are the ones that leans are about."""
        devices = Devices(crowds(60_000)[0])

        def moved_a_little(spec):
            rows = tuple(tuple(min(x + 8000, 2**20 - 1) for x in row) for row in spec.encoding.centroids)
            return devices(RoundSpec(spec.features, type(spec.encoding)(rows), spec.mechanism, spec.draw))

        params = PhaseSketch(2, clusters=3, slots=128, refine="sign")
        model = self.driven(params, [devices, moved_a_little])
        assert np.abs(model.centroids - CENTRES).max() < 0.015
