"""Replay: sound runs hold every claim; each way to break one is seen, and by the claim it breaks."""

from dataclasses import replace
from fractions import Fraction
from itertools import product
from math import exp, log

import numpy as np
import pytest

from audit.check import Effort, Setting
from audit.curator_loss import (
    epsilon_of,
    gaussian_distance,
    laplace_distance,
    surprise,
)
from audit.curator_tree import chance_logs, dearest_path, enumerated, tree_loss
from audit.neighbours import pairs
from audit.replay import (
    ORDER,
    PAID,
    SAME,
    SHOWN,
    SPREADS,
    TELLS,
    WIDTH,
    Diverged,
    Method,
    Replays,
    Retelling,
    Tape,
    run_on,
)
from clustering import halving_tree
from clustering.central.model import centroid_model
from clustering.central.run import run
from clustering.curator import Curator, MemoryJournal, Question
from clustering.halving_tree import decay_of
from clustering.noise import GaussianNoise, LaplaceNoise
from clustering.seeded_entropy import SeededEntropy
from sfumato.accounting import ATTO, NANO
from sfumato.concentrated import PICO, rho_of
from sfumato.specs import LATTICE, DpKmeans, GatedGridKmeans

SETTING = Setting(Effort.QUICK, 5)
PARAMS = DpKmeans(1.0, 2, iterations=2)
SOUND = (PARAMS, GatedGridKmeans(4.0, 2), GatedGridKmeans(16.0, 2, delta=1e-3))


def one_count(params, features, curator):
    """The smallest algorithm there is: a count."""
    count = float(curator.count(NANO))
    shown = [{name: getattr(asked, name) for name in SHOWN} for asked in curator.odometer]
    d = len(features)
    return centroid_model(
        features, np.full((1, d), 0.5), np.array([count]), np.ones(1), diagnostics={"odometer": shown}
    )


def replays_of(run_central=one_count, curator=Curator, params=PARAMS, d=1):
    replays = Replays(Method("a method", params, run_central, curator))
    for i, pair in enumerate(pairs(d)):
        replays.replay(pair, SETTING.entropy(str(i)))
    return replays


class TestSound:
    @pytest.mark.parametrize("params", SOUND, ids=repr)
    def test_holds_every_claim(self, params: object) -> None:
        found = replays_of(run, params=params, d=5).findings()
        assert [finding.claim for finding in found] == [SAME, TELLS, ORDER, PAID, WIDTH]
        assert all(finding.holds and not finding.why for finding in found)
        assert found[0].trials == 2 * len(pairs(5))

    def test_measures_all_that_a_count_spends(self) -> None:
        told = next(finding for finding in replays_of().findings() if finding.claim == TELLS)
        assert told.charged == told.measured == 1.0


class TestBroken:
    """Ways that no planted leak goes."""

    def faults(self, **broken):
        return replays_of(**broken).faults

    def test_a_question_more(self) -> None:
        def curious(params, features, curator):
            for _ in range(1 + len(curator._records.points) % 2):
                curator.counts(halves(len(features)), NANO // 4)
            return one_count(replace(params, epsilon=0.5), features, Halved(curator))

        faults = self.faults(run_central=curious)
        assert "a question more" in faults[SAME] or "questions" in faults[SAME] or "another one" in faults[SAME]

    def test_an_error_that_records_decide(self) -> None:
        def stumbling(params, features, curator):
            if len(curator._records.points) == 1:
                curator.count(1)
                raise ZeroDivisionError("nobody")
            return one_count(params, features, curator)

        replays = Replays(Method("a method", PARAMS, stumbling))
        pair = pairs(1)[0]
        first = replays.run_first(pair, pair.less, Tape(MemoryJournal(), SETTING.entropy("x")))
        assert first is not None
        told = Retelling(first.tape.charges, first.tape.answers)
        replays.retell(pair, first, pair.more, Tape(told, told))
        assert "another one" in replays.faults[SAME]

    def test_a_model_that_records_decide(self) -> None:
        def talkative(params, features, curator):
            model = one_count(params, features, curator)
            return replace(model, diagnostics={**model.diagnostics, "n": len(curator._records.points)})

        assert "diagnostics.n" in self.faults(run_central=talkative)[SAME]

    def test_an_odometer_that_hides_a_question(self) -> None:
        def modest(params, features, curator):
            curator.counts(halves(len(features)), NANO // 2)
            model = one_count(params, features, Halved(curator))
            return replace(model, diagnostics={"odometer": model.diagnostics["odometer"][1:]})

        assert "odometer" in self.faults(run_central=modest)[PAID]

    @pytest.mark.parametrize("name", ["delta_atto", "rho_pico"])
    def test_an_odometer_that_hides_an_amount(self, name: str) -> None:
        def modest(params, features, curator):
            model = run(params, features, curator)
            shown = [{**asked, name: 0} for asked in model.diagnostics["odometer"]]
            return replace(model, diagnostics={**model.diagnostics, "odometer": shown})

        assert "odometer" in self.faults(run_central=modest, params=SOUND[2], d=5)[PAID]

    def test_an_answer_past_the_noise(self) -> None:
        class Bare(Curator):
            def _release(self, question, exact, noise):
                told = self._charged(question)
                return self._kept(exact()) if told is None else told

        faults = self.faults(curator=Bare)
        assert "another way than by its noise" in faults[TELLS]
        assert "no noise drawn" in faults[ORDER]

    def test_more_than_was_declared(self) -> None:
        def greedy(params, features, curator):
            curator.count(NANO)
            return one_count(params, features, curator)

        assert "more was asked than was declared" in self.faults(run_central=greedy)[PAID]


def halves(d):
    from clustering.central.cells import GridCells

    return GridCells((2,) + (1,) * (d - 1))


class Halved:
    """A curator that is asked at half price."""

    def __init__(self, curator):
        self._curator = curator

    def count(self, epsilon_nano):
        return self._curator.count(epsilon_nano // 2)

    @property
    def odometer(self):
        return self._curator.odometer


class TestRetelling:
    ASKED = Question("count", 5, 1, "digest")

    def test_tells_the_old_answer_to_the_old_question_alone(self) -> None:
        told = Retelling([self.ASKED], [np.array([4])])
        assert told.charge(0, self.ASKED).tolist() == [4]
        for other in (replace(self.ASKED, digest="another"), replace(self.ASKED, epsilon_nano=6)):
            with pytest.raises(Diverged, match="another one"):
                told.charge(0, other)
        with pytest.raises(Diverged, match="a question more"):
            told.charge(1, self.ASKED)

    def test_draws_and_keeps_nothing(self) -> None:
        told = Retelling([self.ASKED], [])
        with pytest.raises(Diverged, match="no answer"):
            told.charge(0, self.ASKED)
        with pytest.raises(Diverged, match="anew"):
            told.keep(0, np.zeros(1))
        with pytest.raises(Diverged, match="noise"):
            told.words(3)

    def test_a_tape_writes_what_happens_in_order(self) -> None:
        pair = pairs(2)[0]
        tape = Tape(MemoryJournal(), SETTING.entropy("tape"))
        seen = run_on(Method("a method", PARAMS, one_count), pair.more, tape)
        happened = [what for what, _ in tape.events]
        assert happened[:2] == ["charge", "look"]
        assert set(happened[2:-1]) == {"draw"}
        assert happened[-1] == "keep"
        (answered,) = seen.curator.seen.values()
        assert answered.exact.tolist() == [1]
        assert tape.answers[0].tolist() == answered.answer.tolist()


class TestDistances:
    def test_of_laplace_noise_are_changes_over_scales(self) -> None:
        noise = LaplaceNoise(Fraction(3), np.array([1, 1, 10]))
        told = laplace_distance(noise, np.array([5, 5, 100]), np.array([6, 5, 80]))
        assert told == Fraction(1, 3) + Fraction(20, 30)

    def test_of_gaussian_noise_are_squares_over_variances(self) -> None:
        noise = GaussianNoise(Fraction(1, 2), np.array([1, 3]))
        assert gaussian_distance(noise, np.array([4, 4]), np.array([5, 1])) == 1 + Fraction(9, 9)

    @pytest.mark.parametrize(("epsilon", "delta"), [(0.01, 1e-6), (1.0, 1e-6), (1.0, 1e-12), (16.0, 1e-3)])
    def test_what_a_rho_is_worth_is_what_was_paid_for_it(self, epsilon: float, delta: float) -> None:
        rho = rho_of(round(epsilon * NANO), round(delta * ATTO)) / PICO
        assert epsilon_of(rho, delta) == pytest.approx(epsilon, rel=1e-6)
        assert epsilon_of(rho, delta) <= epsilon + 1e-9
        assert epsilon_of(1.05 * rho, delta) > 1.01 * epsilon
        assert epsilon_of(0.0, delta) == 0
        assert epsilon_of(rho, 0.0) == np.inf


class TestWidth:
    NOISES = (
        LaplaceNoise(Fraction(3), np.repeat([1, 50], 2000)),
        LaplaceNoise(Fraction(1), np.ones(4000, np.int64)),
        GaussianNoise(Fraction(9), np.repeat([1, 50], 2000)),
        GaussianNoise(Fraction(1), np.ones(4000, np.int64)),
    )

    @pytest.mark.parametrize("noise", NOISES, ids=["laplace", "narrow laplace", "gaussian", "narrow gaussian"])
    def test_of_sound_noise_is_nothing_strange_and_of_seven_tenths_it_is(self, noise) -> None:
        everywhere = np.ones(4000, dtype=np.bool_)
        share = Fraction(7, 10) if isinstance(noise, LaplaceNoise) else Fraction(49, 100)
        drawn = noise.draw(SeededEntropy(1))
        narrow = replace(noise, unit=noise.unit * share).draw(SeededEntropy(1))
        off = [surprise(noise, values, everywhere)[1] / 4000**0.5 for values in (drawn, narrow)]
        assert abs(off[0]) < SPREADS / 2
        assert off[1] < -SPREADS

    def test_what_is_not_counted_and_what_is_nearly_always_zero_is_left_out(self) -> None:
        noise = LaplaceNoise(Fraction(1), np.ones(3, np.int64))
        assert surprise(noise, np.zeros(3, np.int64), np.array([True, False, False]))[0] == 1
        assert surprise(replace(noise, unit=Fraction(1, 9)), np.zeros(3, np.int64), np.ones(3, np.bool_)) == (0, 0.0)


class TestTree:
    @pytest.mark.parametrize("scale", [Fraction(3, 4), Fraction(3), Fraction(30)])
    def test_chances_are_those_of_the_series(self, scale: Fraction) -> None:
        ratio = exp(-1 / scale)
        weights = {z: ratio ** abs(z) for z in range(-3000, 3001)}
        total = sum(weights.values())
        for biased in (-7, -1, 0, 1, 2, 9):
            above = sum(weight for z, weight in weights.items() if biased + z > 0) / total
            assert chance_logs(biased, scale) == pytest.approx((log(above), log(1 - above)), rel=1e-9)

    def test_the_loss_is_the_ratio_of_the_chances_of_its_decisions(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Over all trees two levels deep in one feature, whose chances sum to one."""
        monkeypatch.setattr(halving_tree, "MAX_DEPTH", 2)
        scale, decay = Fraction(3), decay_of(Fraction(3))
        points, other = (np.array(places, dtype=np.int32)[:, None] for places in ([5, 5, 5, LATTICE - 1], [5, 5, 5]))

        def chance(held, splits):
            logs = 0.0
            for node, is_split in enumerate(splits):
                count = [len(held), (held < LATTICE // 2).sum(), (held >= LATTICE // 2).sum()][node]
                logs += chance_logs(max(-decay, int(count) - (decay if node else 0)), scale)[0 if is_split else 1]
            return exp(logs)

        total = 0.0
        for left, right in product((0, 1), repeat=2):
            splits = np.array([1, left, right, *[0] * (2 * (left + right))])
            chances = [chance(held, splits[:3]) for held in (points, other)]
            assert tree_loss(splits, points, other, scale) == pytest.approx(log(chances[0] / chances[1]))
            total += chances[0]
        leaf = np.zeros(1, dtype=np.int64)
        chances = [chance(held, leaf) for held in (points, other)]
        assert tree_loss(leaf, points, other, scale) == pytest.approx(log(chances[0] / chances[1]))
        assert total + chances[0] == pytest.approx(1)

    def test_nodes_without_room_weigh_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(halving_tree, "MAX_NODES", 5)  # room for one split below the root
        points, other = np.array([[5], [LATTICE - 1]], dtype=np.int32), np.array([[5]], dtype=np.int32)
        first = tree_loss(np.array([1, 1, 0, 0, 0]), points, other, Fraction(3))
        second = tree_loss(np.array([1, 0, 1, 0, 0]), points, other, Fraction(3))
        assert first == pytest.approx(_told(2, 1, 0, 0))  # the upper half was not asked: its record tells by the root
        assert second == pytest.approx(_told(2, 1, 0, 0) + _told(1, 0, 1, 0))

    def test_no_decisions_tell_more_than_is_charged_but_without_enough_decay_they_do(self) -> None:
        assert enumerated().holds
        assert not enumerated(lambda scale: max(1, decay_of(scale) // 3)).holds

    def test_the_dearest_path_is_nearly_all_of_the_charge(self) -> None:
        scale = Fraction(300)
        told = dearest_path(scale, decay_of(scale), 6 * decay_of(scale) + 3)
        assert 0.8 * 3 / 300 < told <= 3 / 300


def _told(count: int, other: int, depth: int, outcome: int) -> float:
    scale = Fraction(3)
    decay = decay_of(scale)
    here, there = (chance_logs(max(-decay, held - decay * depth), scale)[outcome] for held in (count, other))
    return here - there
