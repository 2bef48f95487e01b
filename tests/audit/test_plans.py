"""Plans as the audit looks at them: sound ones pass, and what is planted in them is caught."""

from dataclasses import replace
from math import log

import numpy as np
import pytest

from audit import plans
from audit.bounds import distinguish
from audit.check import Effort, Setting
from audit.plans import charged, declared, replayed, run, spent, sweep, transcripts
from audit.plans_cases import SUBJECTS, Answers, across_a_border, answers, crowd, holds, point_pairs
from audit.plans_transcripts import Transcripts, drawn, log_odds, scores, supports
from audit.planted.plans import LEAKS, PASSES, fresh_draws
from clustering.seeded_entropy import SeededEntropy
from sfumato import mechanisms
from sfumato.accounting import DRAW_SPAN, NANO, cost
from sfumato.channels import supported
from sfumato.specs import (
    LOCAL_ALGORITHMS,
    DiscreteLaplaceMechanism,
    Draw,
    Feature,
    GridEncoding,
    LatticeEncoding,
    Refine,
    RoundSpec,
    Variant,
)

SETTING = Setting(Effort.QUICK, 20)
FEW = 60_000  # transcripts of each point: enough for what these tests ask


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quick audit that is over in a second."""
    monkeypatch.setattr(plans, "TRANSCRIPTS", FEW)
    monkeypatch.setattr(plans, "SEEDS", 1)
    monkeypatch.setattr(plans, "FEW", (3,))
    monkeypatch.setattr(plans, "CROWDS", ("two clusters", "one place"))


class TestSubjects:
    def test_every_local_algorithm_is_looked_at_in_every_variant(self) -> None:
        looked_at = [subject.params for subject in SUBJECTS]
        assert {params.type for params in looked_at} == set(LOCAL_ALGORITHMS)
        variants = {(p.type, p.variant) for p in looked_at if hasattr(p, "variant")}
        with_variants = {tag for tag, kind in LOCAL_ALGORITHMS.items() if "variant" in kind.__dataclass_fields__}
        assert variants == {(tag, variant) for tag in with_variants for variant in Variant.__args__}
        assert {p.refine for p in looked_at if hasattr(p, "refine")} == set(Refine.__args__)
        assert len({subject.name for subject in SUBJECTS}) == len(SUBJECTS)

    def test_those_with_later_rounds_ask_them(self) -> None:
        n_rounds = {}
        for subject in SUBJECTS:
            points = crowd("two clusters", subject.n_others, subject.n_features, 0)
            n_rounds[subject.name] = len(run(subject, points, SeededEntropy(0)))
        assert n_rounds["valley_hashing, 2 features"] == 2
        assert n_rounds["phase_sketch, 4 features, sign"] == 2
        assert n_rounds["phase_sketch, 4 features, lloyd"] == n_rounds["phase_sketch, 4 features, auto"] == 5
        assert n_rounds["adaptive_grid_iterative, 1 feature, paper"] == 5
        assert sum(n_rounds.values()) > 35


class TestSoundPlans:
    @pytest.mark.usefixtures("few")
    @pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
    def test_keep_to_what_they_declared_and_owe_nothing_to_points(self, subject) -> None:
        ran = sweep(subject, SETTING)
        for finding in (declared(subject, ran), replayed(subject, ran)):
            assert finding.holds, finding.why
        assert declared(subject, ran).measured <= declared(subject, ran).charged

    @pytest.mark.usefixtures("few")
    @pytest.mark.parametrize("place", [0, 3, 5, 7, 8, 14], ids=lambda place: SUBJECTS[place].name)
    def test_tell_what_was_posted_and_nearly_all_of_it_is_seen(self, place: int) -> None:
        found = transcripts(SUBJECTS[place], SETTING)
        assert [finding.holds for finding in found] == [True] * 3
        assert found[0].measured > 0.75 * found[0].charged
        assert found[0].trials == 2 * FEW


class TestPlantedLeaks:
    @pytest.mark.usefixtures("few")
    @pytest.mark.parametrize("leak", LEAKS, ids=lambda leak: leak.name)
    def test_are_caught(self, leak) -> None:
        faults = [finding for finding in leak.run(SETTING) if not finding.holds]
        assert faults
        assert all(finding.why for finding in faults)

    def test_an_excess_of_thirty_percent_is_seen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(plans, "TRANSCRIPTS", 4 * FEW)
        for subject in (SUBJECTS[0], SUBJECTS[8], SUBJECTS[14]):
            under = replace(subject, charge=lambda rounds: cost(rounds) * 10 // 13)
            assert not transcripts(under, SETTING)[0].holds


class TestTranscripts:
    @pytest.mark.parametrize("kind", ["grr", "ss", "oue", "olh", "hr", "window"])
    def test_the_odds_are_those_of_the_exact_channel(self, kind: str) -> None:
        mechanism = mechanisms.design(kind, 5, NANO)
        encoding = GridEncoding((5,))
        spec = RoundSpec((Feature("x", 0, 1),), encoding, mechanism)
        rows = mechanisms.channel(mechanism)
        values = np.array([list(value) for value in rows], dtype=np.uint8)
        answered = Answers(np.arange(len(values)), np.zeros(len(values), dtype=np.int64), values)
        for own, other in ((0, 4), (2, 3), (1, 1)):
            pair = np.array([own / 5 + 0.1]), np.array([other / 5 + 0.1])
            exact = [log(row[own] / row[other]) for row in rows.values()]
            assert log_odds(spec, answered, pair) == pytest.approx(exact, abs=1e-12)

    def test_the_odds_of_vectors_are_those_of_the_noise(self) -> None:
        mechanism = mechanisms.design_for(LatticeEncoding(2, 10), "auto", 2 * NANO)
        assert isinstance(mechanism, DiscreteLaplaceMechanism)
        spec = RoundSpec((Feature("x", 0, 1), Feature("y", 0, 1)), LatticeEncoding(2, 10), mechanism)
        points = np.tile([0.0, 0.0], (200, 1))
        answered = answers(spec, points, SeededEntropy(1), SeededEntropy(2).words(200))
        odds = log_odds(spec, answered, (np.zeros(2), np.ones(2)))
        assert odds.max() == pytest.approx(2.0)
        assert odds.min() == pytest.approx(-2.0, abs=0.5)

    @pytest.mark.parametrize("kind", ["grr", "ss", "oue", "olh", "hr", "window"])
    def test_support_of_one_symbol_is_that_of_all(self, kind: str) -> None:
        mechanism, held = mechanisms.design(kind, 7, NANO), np.arange(700) % 7
        values = mechanisms.perturb_many(mechanism, held, SeededEntropy(3))
        every = supported(mechanism, values)
        for symbol in range(7):
            assert (supports(mechanism, values, np.full(700, symbol)) == every[:, symbol]).all()

    def test_a_device_answers_the_rounds_that_hold_its_draw(self) -> None:
        draws = np.array([0, 1, (1 << 63) - 1, 1 << 63, DRAW_SPAN - 1], dtype=np.uint64)
        assert holds(Draw(), draws).all()
        assert holds(Draw(1, 1 << 63), draws).tolist() == [False, True, True, False, False]
        assert holds(Draw(1 << 63), draws).tolist() == [False, False, False, True, True]

    def test_what_is_learned_of_slots_is_learned_from_the_first_half(self) -> None:
        n = 2000
        slots = np.ones((n, 1), dtype=np.int64)
        slots[: n // 4] = 2
        one, other = Transcripts(np.zeros(n), slots), Transcripts(np.zeros(n), np.ones((n, 1), dtype=np.int64))
        total, _ = scores(one, other)
        assert total[0] == total[n // 4 - 1] > 3 > 0 > total[n // 2] == total[-1]
        unlike = Transcripts(np.zeros(n), slots[::-1])
        assert (scores(unlike, other)[0] == 0).all()  # the second half alone differs: nothing is learned

    def test_fresh_draws_let_a_device_answer_several_rounds(self) -> None:
        points = crowd("two clusters", 2000, 2, 0)
        specs = [each.spec for each in run(PASSES, points, SeededEntropy(0))]
        pair = point_pairs(2)["opposite corners"]
        kept, anew = (drawn(specs, pair, 0, 3000, SeededEntropy(1), ask) for ask in (answers, fresh_draws))
        assert (kept.slots > 0).sum(axis=1).max() == (kept.slots > 0).sum(axis=1).min() == 1
        assert (anew.slots > 0).sum(axis=1).max() == 3

    def test_the_border_pair_is_near_and_told_apart(self) -> None:
        spec = RoundSpec((Feature("x", 0, 1),), GridEncoding((3,)), mechanisms.design("grr", 3, NANO))
        low, high = across_a_border([spec])
        assert low[0] < 1 / 3 <= high[0] or low[0] < 2 / 3 <= high[0]
        assert high[0] - low[0] < 0.01


class TestSpent:
    def test_is_the_sum_over_rounds_that_hold_the_draw(self) -> None:
        rounds = [((0, 10), 1), ((5, 20), 2), ((10, 20), 4)]
        assert [spent(rounds, draw) for draw in (0, 5, 9, 10, 19, 20)] == [1, 3, 3, 6, 6, 0]

    def test_is_read_off_specs(self) -> None:
        spec = RoundSpec(
            (Feature("x", 0, 1),), GridEncoding((3,)), mechanisms.design("grr", 3, NANO), Draw.between(0, 0.5)
        )
        assert charged([spec]) == [((0, 1 << 63), mechanisms.epsilon_nano(spec.mechanism))]


def test_nothing_is_seen_where_nothing_is_told() -> None:
    """Transcripts of one point against itself, over all subjects that differ in mechanism."""
    for subject in (SUBJECTS[0], SUBJECTS[8], SUBJECTS[14]):
        points = crowd("two clusters", subject.n_others, subject.n_features, 0)
        specs = [each.spec for each in run(subject, points, SeededEntropy(0))]
        point = np.full(subject.n_features, 0.3)
        entropy = SeededEntropy(5)
        sides = [drawn(specs, (point, 1 - point), 0, 20_000, entropy, answers) for _ in range(2)]
        assert distinguish(*scores(*sides)).epsilon == 0
