"""Checks of local plans: sound plans pass, planted leaks are detected."""

from dataclasses import replace
from math import log

import numpy as np
import pytest

from audit.checks.bounds import distinguish
from audit.checks.check import Effort, Setting
from audit.plans import plan_checks
from audit.plans.cases import (
    CASES,
    RoundReports,
    find_border_pair,
    is_inside,
    make_point_pairs,
    make_points,
    respond_as_devices,
    to_records,
)
from audit.plans.plan_checks import (
    check_transcripts,
    cost_of_draw,
    interval_costs,
    run_plan,
)
from audit.plans.transcripts import Transcripts, log_odds, sample_transcripts, score_transcripts
from audit.planted.plans import REPEATED, draw_per_round
from clustering.random import SeededEntropy
from sfumato import mechanisms
from sfumato.privacy.accounting import DRAW_SPAN, NANO, cost
from sfumato.records.described import Described
from sfumato.specs import (
    LOCAL_ALGORITHMS,
    DiscreteLaplaceMechanism,
    Feature,
    GridEncoding,
    LatticeEncoding,
    Participation,
    Refine,
    RoundSpec,
    Variant,
    design_for,
)

SETTING = Setting(Effort.QUICK, 20)
N_TRANSCRIPTS = 40_000  # transcripts per point


@pytest.fixture
def reduce_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce the trials so that a quick audit takes a second."""
    monkeypatch.setattr(plan_checks, "TRANSCRIPTS", N_TRANSCRIPTS)
    monkeypatch.setattr(plan_checks, "N_SEEDS", 1)
    monkeypatch.setattr(plan_checks, "SMALL_SIZES", (3,))
    monkeypatch.setattr(plan_checks, "POPULATIONS", ("two clusters", "single point"))


class TestCases:
    def test_every_local_algorithm_and_variant_is_checked(self) -> None:
        params = [case.params for case in CASES]
        assert {params.type for params in params} == set(LOCAL_ALGORITHMS)
        variants = {(p.type, p.variant) for p in params if hasattr(p, "variant")}
        with_variants = {tag for tag, kind in LOCAL_ALGORITHMS.items() if "variant" in kind.__dataclass_fields__}
        assert variants == {(tag, variant) for tag in with_variants for variant in Variant.__args__}
        assert {p.refine for p in params if hasattr(p, "refine")} == set(Refine.__args__)
        assert len({case.name for case in CASES}) == len(CASES)

    def test_plans_run_their_later_rounds(self) -> None:
        required = {
            "phase_sketch, 4 features, sign": 2,
            "phase_sketch, 4 features, lloyd": 5,
            "phase_sketch, 4 features, auto": 5,
            "adaptive_grid_iterative, 1 feature, paper": 5,
        }
        n_rounds = {}
        for case in CASES:
            if case.name in required:
                points = make_points("two clusters", case.n_devices, case.n_columns, 0)
                n_rounds[case.name] = len(run_plan(case, points, SeededEntropy(0)))
        assert n_rounds == required


class TestSoundPlans:
    @pytest.mark.usefixtures("reduce_trials")
    @pytest.mark.parametrize("index", [0, 3, 5, 7, 13, 17, 18], ids=lambda index: CASES[index].name)
    def test_the_measured_epsilon_is_below_the_charge_and_close(self, index: int) -> None:
        findings = list(check_transcripts(CASES[index], SETTING))
        assert [finding.holds for finding in findings] == [True] * 3
        assert findings[0].measured > 0.75 * findings[0].charged
        assert findings[0].trials == 2 * N_TRANSCRIPTS


class TestPlantedLeaks:
    def test_an_excess_of_30_percent_is_detected(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(plan_checks, "TRANSCRIPTS", 4 * N_TRANSCRIPTS)
        for case in (CASES[0], CASES[7], CASES[13]):
            under = replace(case, charge=lambda rounds: cost(rounds) * 10 // 13)
            assert not next(check_transcripts(under, SETTING)).holds


class TestCategories:
    def test_a_column_after_the_features_is_the_place_of_a_category(self) -> None:
        case = CASES[17]
        points = np.array([[0.0, 0.0], [0.5, 0.49], [1.0, 0.5], [1.0, 1.0]])
        (spec,) = (each.spec for each in run_plan(case, points, SeededEntropy(0)))
        records = to_records(spec, points)
        assert isinstance(records, Described)
        assert records.points.tolist() == [[0.0], [0.5], [1.0], [1.0]]
        assert records.codes.tolist() == [[0], [0], [1], [1]]

    def test_the_odds_compare_categories(self) -> None:
        case = CASES[17]
        points = make_points("two clusters", 500, case.n_columns, 0)
        (spec,) = (each.spec for each in run_plan(case, points, SeededEntropy(0)))
        equal, other = np.array([0.2, 0.1]), np.array([0.2, 0.9])
        reports = respond_as_devices(spec, points, SeededEntropy(1), SeededEntropy(2).words(500))
        assert (log_odds(spec, reports, (equal, equal)) == 0).all()
        assert log_odds(spec, reports, (equal, other)).max() == pytest.approx(case.params.epsilon, rel=1e-3)


class TestTranscripts:
    @pytest.mark.parametrize("kind", ["grr", "ss", "oue", "olh", "hr", "window"])
    def test_the_odds_are_those_of_the_exact_channel(self, kind: str) -> None:
        mechanism = mechanisms.design(kind, 5, NANO)
        encoding = GridEncoding((5,))
        spec = RoundSpec((Feature("x", 0, 1),), encoding, mechanism)
        rows = mechanism.channel()
        values = np.array([list(value) for value in rows], dtype=np.uint8)
        reports = RoundReports(np.arange(len(values)), np.zeros(len(values), dtype=np.int64), values)
        for own, other in ((0, 4), (2, 3), (1, 1)):
            pair = np.array([own / 5 + 0.1]), np.array([other / 5 + 0.1])
            exact = [log(row[own] / row[other]) for row in rows.values()]
            assert log_odds(spec, reports, pair) == pytest.approx(exact, abs=1e-12)

    def test_the_odds_of_vectors_are_those_of_the_noise(self) -> None:
        mechanism = design_for(LatticeEncoding(2, 10), "auto", 2 * NANO)
        assert isinstance(mechanism, DiscreteLaplaceMechanism)
        spec = RoundSpec((Feature("x", 0, 1), Feature("y", 0, 1)), LatticeEncoding(2, 10), mechanism)
        points = np.tile([0.0, 0.0], (200, 1))
        reports = respond_as_devices(spec, points, SeededEntropy(1), SeededEntropy(2).words(200))
        odds = log_odds(spec, reports, (np.zeros(2), np.ones(2)))
        assert odds.max() == pytest.approx(2.0)
        assert odds.min() == pytest.approx(-2.0, abs=0.5)

    @pytest.mark.parametrize("kind", ["grr", "ss", "oue", "olh", "hr", "window"])
    def test_the_support_of_one_symbol_equals_that_of_all(self, kind: str) -> None:
        mechanism, own = mechanisms.design(kind, 7, NANO), np.arange(700) % 7
        values = mechanism.perturb_many(own, SeededEntropy(3))
        every = mechanism.supports(values, np.arange(mechanism.n_symbols))
        for symbol in range(7):
            one = mechanism.supports(values, np.full((700, 1), symbol))
            assert (one[:, 0] == every[:, symbol]).all()

    def test_a_device_participates_if_its_draw_is_inside_the_interval(self) -> None:
        draws = np.array([0, 1, (1 << 63) - 1, 1 << 63, DRAW_SPAN - 1], dtype=np.uint64)
        assert is_inside(Participation(), draws).all()
        assert is_inside(Participation(1, 1 << 63), draws).tolist() == [False, True, True, False, False]
        assert is_inside(Participation(1 << 63), draws).tolist() == [False, False, False, True, True]

    def test_the_ratio_of_slots_is_learned_from_the_first_half(self) -> None:
        n = 2000
        slots = np.ones((n, 1), dtype=np.int64)
        slots[: n // 4] = 2
        one, other = Transcripts(np.zeros(n), slots), Transcripts(np.zeros(n), np.ones((n, 1), dtype=np.int64))
        total, _ = score_transcripts(one, other)
        assert total[0] == total[n // 4 - 1] > 3 > 0 > total[n // 2] == total[-1]
        unlike = Transcripts(np.zeros(n), slots[::-1])
        assert (score_transcripts(unlike, other)[0] == 0).all()  # the first half is equal: nothing is learned

    def test_a_draw_per_round_lets_a_device_report_to_several_rounds(self) -> None:
        points = make_points("two clusters", 2000, 2, 0)
        specs = [each.spec for each in run_plan(REPEATED, points, SeededEntropy(0))]
        pair = make_point_pairs(2)["opposite corners"]
        kept, redrawn = (
            sample_transcripts(specs, pair, 0, 3000, SeededEntropy(1), respond)
            for respond in (respond_as_devices, draw_per_round)
        )
        assert (kept.slots > 0).sum(axis=1).max() == (kept.slots > 0).sum(axis=1).min() == 1
        assert (redrawn.slots > 0).sum(axis=1).max() == 3

    def test_the_border_pair_is_close_and_separated(self) -> None:
        spec = RoundSpec((Feature("x", 0, 1),), GridEncoding((3,)), mechanisms.design("grr", 3, NANO))
        low, high = find_border_pair([spec])
        assert low[0] < 1 / 3 <= high[0] or low[0] < 2 / 3 <= high[0]
        assert high[0] - low[0] < 0.01


class TestCostOfDraw:
    def test_it_is_the_sum_over_rounds_with_the_draw(self) -> None:
        rounds = [((0, 10), 1), ((5, 20), 2), ((10, 20), 4)]
        assert [cost_of_draw(rounds, draw) for draw in (0, 5, 9, 10, 19, 20)] == [1, 3, 3, 6, 6, 0]

    def test_intervals_and_costs_of_specs(self) -> None:
        spec = RoundSpec(
            (Feature("x", 0, 1),), GridEncoding((3,)), mechanisms.design("grr", 3, NANO), Participation.between(0, 0.5)
        )
        assert interval_costs([spec]) == [((0, 1 << 63), spec.mechanism.epsilon_nano())]


def test_equal_points_give_zero() -> None:
    """Compare transcripts of one point with transcripts of the same point, for cases with different mechanisms."""
    for case in (CASES[0], CASES[7], CASES[13]):
        points = make_points("two clusters", case.n_devices, case.n_columns, 0)
        specs = [each.spec for each in run_plan(case, points, SeededEntropy(0))]
        point = np.full(case.n_features, 0.3)
        entropy = SeededEntropy(5)
        sides = [
            sample_transcripts(specs, (point, 1 - point), 0, 20_000, entropy, respond_as_devices) for _ in range(2)
        ]
        assert distinguish(*score_transcripts(*sides)).epsilon == 0
