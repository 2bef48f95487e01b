"""`phase_sketch` in rounds: what each asks follows from those before it, all is planned, and nothing breaks it."""

import json
from itertools import pairwise

import numpy as np
import pytest

from clustering.metrics import adjusted_rand_index
from clustering.plan import Collected, Tally, drive
from clustering.plans.phase_sketch import fit
from clustering.registry import start
from clustering.simulate import simulate
from sfumato.accounting import DRAW_SPAN, NANO, cost
from sfumato.errors import InvalidSpec
from sfumato.forecast import forecast
from sfumato.mechanisms import epsilon_nano
from sfumato.sizing import planned_rounds
from sfumato.specs import (
    CentroidSignEncoding,
    Feature,
    NearestCentroidEncoding,
    PhaseEncoding,
    PhaseSketch,
    WindowMechanism,
    algorithm_from_wire,
    to_wire,
)
from tests.clustering.plans.phase_rounds import CENTRES, D4, WAYS, Devices, crowds, run
from tests.clustering.plans.test_phase_sketch import assert_sound


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
