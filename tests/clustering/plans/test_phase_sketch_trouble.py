"""`phase_sketch` in rounds where something is amiss: few reports, odd people, rounds that were published otherwise."""

import numpy as np
import pytest

from clustering.errors import TooFewReports, UnfitRound
from clustering.metrics import adjusted_rand_index
from clustering.plan import Collected, Tally, drive
from clustering.plans.phase_sketch import phase_sketch
from sfumato.accounting import NANO
from sfumato.mechanisms import design
from sfumato.specs import (
    CentroidSignEncoding,
    Feature,
    GridEncoding,
    PhaseEncoding,
    PhaseSketch,
    RoundSpec,
)
from tests.clustering.plans.phase_rounds import CENTRES, D4, WAYS, Devices, crowds, run
from tests.clustering.plans.test_phase_sketch import assert_sound


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
