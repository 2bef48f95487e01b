"""Test that the check finds features that divide people where nothing separates them, and its cost."""

import numpy as np
import pytest

from clustering.central.feature_check import find_gapless_shares, judge_features, score_peaks
from clustering.random import PublicWords
from clustering.simulate import simulate_central
from sfumato.errors import InvalidSpec
from sfumato.forecast import forecast_central
from sfumato.model.cluster_model import ClusterModel, model_from_wire
from sfumato.model.precision import Verdict
from sfumato.privacy.accountant import most_mu2
from sfumato.privacy.accounting import NANO
from sfumato.sizing.feature_checks import plan_check
from sfumato.sizing.job_costs import job_cost
from sfumato.specs import Feature, PrivateKmeans

CHECKED = PrivateKmeans(epsilon=1, clusters=3, delta=1e-6, check_features=True)


def three_groups(n_even: int, n: int = 20_000, seed: int = 0) -> np.ndarray:
    """Return three clear groups in three features, and further even features without groups."""
    chance = np.random.default_rng(seed)
    centres = np.array([[0.35, 0.4, 0.6], [0.65, 0.4, 0.4], [0.5, 0.65, 0.6]])
    points = centres[chance.integers(0, 3, n)] + chance.normal(0, 0.03, (n, 3))
    return np.hstack([points, chance.random((n, n_even))]).clip(0, 1)


class TestCheck:
    @pytest.mark.parametrize("n_even", [1, 2])
    def test_names_even_features_and_no_others(self, n_even: int) -> None:
        model = simulate_central(CHECKED, three_groups(n_even), seed=1)
        even = tuple(f"x{place + 4}" for place in range(n_even))
        assert model.feature_check.irrelevant == even
        assert model.verdict is not Verdict.RELIABLE
        assert any("where nothing separates them. Compare the result with" in each for each in model.warnings)
        assert model_from_wire(model.to_wire()).feature_check.to_wire() == model.feature_check.to_wire()

    def test_names_nothing_where_all_features_separate(self) -> None:
        model = simulate_central(CHECKED, three_groups(0), seed=1)
        assert (model.feature_check.irrelevant, model.feature_check.is_conclusive) == ((), True)
        assert model.verdict is Verdict.RELIABLE
        assert not model.warnings

    @pytest.mark.parametrize(("n_even", "delta"), [(0, 0.0), (2, 1e-6)])
    def test_costs_eight_per_cent(self, n_even: int, delta: float) -> None:
        params = PrivateKmeans(epsilon=1, clusters=3, delta=delta, check_features=True)
        odometer = simulate_central(params, three_groups(n_even), seed=1).diagnostics["odometer"]
        assert [(each["description"], each["epsilon_nano"]) for each in odometer[-2:]] == [
            ("counts", 3 * NANO // 100),
            ("histograms", 5 * NANO // 100),
        ]
        assert sum(each["epsilon_nano"] for each in odometer) == NANO

    def test_works_in_private_bounds(self) -> None:
        params = PrivateKmeans(epsilon=2, clusters=3, delta=1e-6, bounds="private", check_features=True)
        points = three_groups(2)
        points[:, :3] = 0.45 + 0.1 * points[:, :3]
        points[:, 3:] = 0.45 + 0.1 * points[:, 3:]
        model = simulate_central(params, points, seed=3)
        assert model.feature_check.irrelevant == ("x4", "x5")
        assert model.diagnostics["spent_nano"] <= 2 * NANO

    def test_states_that_few_records_decide_nothing(self) -> None:
        model = simulate_central(CHECKED, three_groups(2, n=2_000), seed=1)
        assert (model.feature_check.irrelevant, model.feature_check.is_conclusive) == ((), False)
        assert any("are few for a check of 5 features" in each for each in model.warnings)

    def test_one_cluster_has_nothing_to_check(self) -> None:
        model = simulate_central(PrivateKmeans(1, 1, check_features=True), three_groups(0), seed=1)
        assert model.feature_check is None
        assert model.diagnostics["spent_nano"] < NANO


class TestWithoutCheck:
    def test_names_a_feature_that_has_all_of_the_separation(self) -> None:
        params = PrivateKmeans(epsilon=1, clusters=2, delta=1e-6)
        model = simulate_central(params, three_groups(1), seed=1)
        assert model.feature_shares.argmax() == 3
        (sentence,) = [each for each in model.warnings if "of the separation of the clusters" in each]
        assert sentence.startswith("'x4' has")
        assert "Such a job has an expected loss of about 1." in sentence
        assert not any("separation" in each for each in simulate_central(params, three_groups(0), seed=1).warnings)

    def test_label_maps_are_unchanged(self) -> None:
        features = (Feature("x", 0, 1),)
        model = ClusterModel("label_map", features, np.ones(1), np.zeros(1), label_map=np.zeros(4, dtype=np.int64))
        assert judge_features(CHECKED, model, None, 1) is model


class TestParts:
    def test_pairs_without_a_gap_share_their_separation(self) -> None:
        centres = np.array([[0.2, 0.5], [0.4, 0.5], [0.2, 0.9]])
        gap, none, empty = [0, 50, 400, 400, 400, 900], [400, 400, 400, 400, 400, 900], [3, 0, 2, 0, 1, 0]
        shares = find_gapless_shares(centres, np.array([none, gap, empty], dtype=float), 2.0)
        assert shares == pytest.approx([2900 / (2900 + 2150), 0.0])

    @pytest.mark.parametrize(("n_peaks", "is_above"), [(1, False), (2, True)])
    def test_score_tells_two_peaks_from_one(self, n_peaks: int, is_above: bool) -> None:
        chance = np.random.default_rng(5)
        scores = []
        for _ in range(20):
            peaks = np.array([0.35, 0.65])[chance.integers(0, n_peaks, 20_000)]
            places = (peaks + chance.normal(0, 0.08, 20_000)).clip(0, 0.999)
            histogram = np.bincount((places * 32).astype(int), minlength=32) + chance.laplace(0, 60, 32)
            scores.append(score_peaks(histogram, 60.0, PublicWords(1)))
        assert [score > 3 for score in scores].count(is_above) >= 19


class TestCost:
    def test_parts_add_up(self) -> None:
        plan = plan_check(1_234_567_891)
        assert plan.rest + plan.gaps + plan.histograms == 1_234_567_891
        with pytest.raises(InvalidSpec, match="too small for check_features"):
            plan_check(1000)

    def test_forecast_spends_the_rest_and_warns(self) -> None:
        without = forecast_central(PrivateKmeans(epsilon=0.92, clusters=3, delta=1e-6), 5, 20_000)
        assert forecast_central(CHECKED, 5, 20_000).families == without.families
        assert any("few for a check" in each for each in forecast_central(CHECKED, 5, 5_000).warnings)

    def test_block_and_check_count_together(self) -> None:
        cost = job_cost(CHECKED, 5)
        rest = job_cost(PrivateKmeans(epsilon=0.92, clusters=3, delta=1e-6), 5)
        assert (cost.epsilon_nano, cost.delta_atto) == (NANO, CHECKED.delta_atto)
        assert rest.mu2_pico < cost.mu2_pico < most_mu2(NANO, CHECKED.delta_atto)

    def test_mu_is_refused(self) -> None:
        with pytest.raises(InvalidSpec, match="check_features cannot be combined with mu"):
            PrivateKmeans(mu=0.2, clusters=3, check_features=True)
