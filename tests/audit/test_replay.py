"""Replays of central algorithms: sound runs pass, and each fault is detected by the claim it breaks."""

from dataclasses import replace
from fractions import Fraction
from itertools import product
from math import exp, log

import numpy as np
import pytest

from audit.central.privacy_loss import compute_gaussian_rho, compute_laplace_epsilon, epsilon_from_rho, sum_noise_excess
from audit.central.recordings import ODOMETER_FIELDS, DivergenceError, Method, RecordedAnswers, Recorder, run_method
from audit.central.replay import (
    CHARGE_ORDER,
    MAX_DEVIATIONS,
    NOISE_SCALE,
    PAYMENT,
    PRIVACY_LOSS,
    SAME_QUERIES,
    ReplayResults,
)
from audit.central.trees import check_paths, compute_tree_loss, find_largest_loss, log_probabilities
from audit.checks.check import Effort, Setting
from audit.checks.neighbours import make_pairs
from audit.planted.curator import NarrowGaussian
from clustering.central import privtree
from clustering.central.curator import Curator
from clustering.central.model import build_centroid_model
from clustering.central.noise import GaussianNoise, LaplaceNoise
from clustering.central.privtree import compute_decay
from clustering.central.queries import MemoryJournal, Query
from clustering.central.run import run
from clustering.centroids.partition_agreement import PartitionAgreement
from clustering.random import SeededEntropy
from sfumato.privacy.accounting import ATTO, NANO
from sfumato.privacy.gaussian_privacy import PICO, rho_of
from sfumato.specs import LATTICE, DpKmeans, PrivateKmeans

SETTING = Setting(Effort.QUICK, 5)
PARAMS = DpKmeans(1.0, 2, iterations=2)
SOUND = (PARAMS, PrivateKmeans(4.0, 2), PrivateKmeans(16.0, 2, delta=1e-3))


def one_count(params, features, curator):
    """Run the smallest algorithm: a count."""
    count = float(curator.count(NANO))
    odometer = [{name: getattr(query, name) for name in ODOMETER_FIELDS} for query in curator.odometer]
    middle = np.full((1, len(features)), 0.5)
    return build_centroid_model(
        features,
        middle,
        np.array([count]),
        np.ones(1),
        centre_errors=0 * middle,
        agreement=PartitionAgreement("centres", 1.0, 0.0),
        diagnostics={"odometer": odometer},
    )


def replay_all(run_central=one_count, curator=Curator, params=PARAMS, d=1):
    results = ReplayResults(Method("a method", params, run_central, curator))
    for i, pair in enumerate(make_pairs(d)):
        results.replay(pair, SETTING.entropy(str(i)))
    return results


class TestSound:
    @pytest.mark.release
    @pytest.mark.parametrize("params", SOUND, ids=repr)
    def test_a_sound_method_passes(self, params: object) -> None:
        findings = replay_all(run, params=params, d=5).findings()
        claims = [SAME_QUERIES, PRIVACY_LOSS, CHARGE_ORDER, PAYMENT, NOISE_SCALE]
        assert [finding.claim for finding in findings] == claims
        assert all(finding.holds and not finding.why for finding in findings)
        assert findings[0].trials == 2 * len(make_pairs(5))

    def test_the_loss_of_a_count_equals_its_charge(self) -> None:
        answers = next(finding for finding in replay_all().findings() if finding.claim == PRIVACY_LOSS)
        assert answers.charged == answers.measured == 1.0


class TestBroken:
    """Faults without a planted leak."""

    def find_faults(self, **broken):
        return replay_all(**broken).faults

    def test_an_additional_query_is_detected(self) -> None:
        def send_extra_query(params, features, curator):
            for _ in range(1 + len(curator._records.points) % 2):
                curator.counts(make_halves(len(features)), NANO // 4)
            return one_count(replace(params, epsilon=0.5), features, HalfPriceCurator(curator))

        faults = self.find_faults(run_central=send_extra_query)
        assert any(text in faults[SAME_QUERIES] for text in ("an additional query", "queries", "differs"))

    def test_an_exception_that_depends_on_records_is_detected(self) -> None:
        def raise_for_one_record(params, features, curator):
            if len(curator._records.points) == 1:
                curator.count(1)
                raise ZeroDivisionError("one record")
            return one_count(params, features, curator)

        results = ReplayResults(Method("a method", PARAMS, raise_for_one_record))
        pair = make_pairs(1)[0]
        first = results.run_and_check(pair, pair.less, Recorder(MemoryJournal(), SETTING.entropy("x")))
        assert first is not None
        answers = RecordedAnswers(first.recorder.charges, first.recorder.answers)
        results.replay_run(pair, first, pair.more, Recorder(answers, answers))
        assert "differs" in results.faults[SAME_QUERIES]

    def test_a_model_that_depends_on_records_is_detected(self) -> None:
        def publish_count(params, features, curator):
            model = one_count(params, features, curator)
            return replace(model, diagnostics={**model.diagnostics, "n": len(curator._records.points)})

        assert "diagnostics.n" in self.find_faults(run_central=publish_count)[SAME_QUERIES]

    def test_an_odometer_without_a_query_is_detected(self) -> None:
        def hide_query(params, features, curator):
            curator.counts(make_halves(len(features)), NANO // 2)
            model = one_count(params, features, HalfPriceCurator(curator))
            return replace(model, diagnostics={"odometer": model.diagnostics["odometer"][1:]})

        assert "odometer" in self.find_faults(run_central=hide_query)[PAYMENT]

    @pytest.mark.release
    @pytest.mark.parametrize("name", ["delta_atto", "rho_pico"])
    def test_an_odometer_without_an_amount_is_detected(self, name: str) -> None:
        def hide_query(params, features, curator):
            model = run(params, features, curator)
            odometer = [{**query, name: 0} for query in model.diagnostics["odometer"]]
            return replace(model, diagnostics={**model.diagnostics, "odometer": odometer})

        assert "odometer" in self.find_faults(run_central=hide_query, params=SOUND[2], d=5)[PAYMENT]

    def test_an_answer_without_noise_is_detected(self) -> None:
        class Noiseless(Curator):
            def _release(self, question, exact, noise):
                answers = self._charge(question)
                return self._store(exact()) if answers is None else answers

        faults = self.find_faults(curator=Noiseless)
        assert "not made by its noise" in faults[PRIVACY_LOSS]
        assert "drew no noise" in faults[CHARGE_ORDER]

    def test_queries_above_the_declared_budget_are_detected(self) -> None:
        def overspend(params, features, curator):
            curator.count(NANO)
            return one_count(params, features, curator)

        assert "exceed the declared budget" in self.find_faults(run_central=overspend)[PAYMENT]


def make_halves(d):
    from clustering.central.cells import GridCells

    return GridCells((2,) + (1,) * (d - 1))


class HalfPriceCurator:
    """A curator that charges half of each query."""

    def __init__(self, curator):
        self._curator = curator

    def count(self, epsilon_nano):
        return self._curator.count(epsilon_nano // 2)

    @property
    def odometer(self):
        return self._curator.odometer


class TestRecordedAnswers:
    QUERY = Query("count", 5, 1, "digest")

    def test_only_an_equal_query_gets_the_stored_answer(self) -> None:
        answers = RecordedAnswers([self.QUERY], [np.array([4])])
        assert answers.charge(0, self.QUERY).tolist() == [4]
        for other in (replace(self.QUERY, digest="another"), replace(self.QUERY, epsilon_nano=6)):
            with pytest.raises(DivergenceError, match="differs"):
                answers.charge(0, other)
        with pytest.raises(DivergenceError, match="additional query"):
            answers.charge(1, self.QUERY)

    def test_new_noise_and_new_answers_are_rejected(self) -> None:
        answers = RecordedAnswers([self.QUERY], [])
        with pytest.raises(DivergenceError, match="no answer"):
            answers.charge(0, self.QUERY)
        with pytest.raises(DivergenceError, match="drew new noise"):
            answers.keep(0, np.zeros(1))
        with pytest.raises(DivergenceError, match="words of noise"):
            answers.words(3)

    def test_a_recorder_lists_events_in_order(self) -> None:
        pair = make_pairs(2)[0]
        recorder = Recorder(MemoryJournal(), SETTING.entropy("tape"))
        finished = run_method(Method("a method", PARAMS, one_count), pair.more, recorder)
        kinds = [what for what, _ in recorder.events]
        assert kinds[:2] == ["charge", "read"]
        assert set(kinds[2:-1]) == {"draw"}
        assert kinds[-1] == "keep"
        (recorded,) = finished.curator.recorded.values()
        assert recorded.exact.tolist() == [1]
        assert recorder.answers[0].tolist() == recorded.answer.tolist()


class TestLosses:
    def test_laplace_noise_loses_change_over_scale(self) -> None:
        noise = LaplaceNoise(Fraction(3), np.array([1, 1, 10]))
        answers = compute_laplace_epsilon(noise, np.array([5, 5, 100]), np.array([6, 5, 80]))
        assert answers == Fraction(1, 3) + Fraction(20, 30)

    def test_gaussian_noise_loses_squared_change_over_variance(self) -> None:
        noise, exact, other = GaussianNoise(Fraction(1, 2), np.array([1, 3])), np.array([4, 4]), np.array([5, 1])
        assert compute_gaussian_rho(noise, exact, other) == 1 + Fraction(9, 9)
        narrow = NarrowGaussian(Fraction(1, 2), np.array([1, 3]))
        assert compute_gaussian_rho(narrow, exact, other) > 10**6
        assert compute_gaussian_rho(narrow, exact, exact) == 0

    @pytest.mark.parametrize(("epsilon", "delta"), [(0.01, 1e-6), (1.0, 1e-6), (1.0, 1e-12), (16.0, 1e-3)])
    def test_epsilon_of_a_rho_equals_the_charge(self, epsilon: float, delta: float) -> None:
        rho = rho_of(round(epsilon * NANO), round(delta * ATTO)) / PICO
        assert epsilon_from_rho(rho, delta) == pytest.approx(epsilon, rel=1e-6)
        assert epsilon_from_rho(rho, delta) <= epsilon + 1e-9
        assert epsilon_from_rho(1.05 * rho, delta) > 1.01 * epsilon
        assert epsilon_from_rho(0.0, delta) == 0
        assert epsilon_from_rho(rho, 0.0) == np.inf


class TestNoiseScale:
    NOISES = (
        LaplaceNoise(Fraction(3), np.repeat([1, 50], 2000)),
        LaplaceNoise(Fraction(1), np.ones(4000, np.int64)),
        GaussianNoise(Fraction(9), np.repeat([1, 50], 2000)),
    )

    @pytest.mark.parametrize("noise", NOISES, ids=["laplace", "narrow laplace", "gaussian"])
    def test_sound_noise_passes_and_noise_at_70_percent_fails(self, noise) -> None:
        all_counted = np.ones(4000, dtype=np.bool_)
        share = Fraction(7, 10) if isinstance(noise, LaplaceNoise) else Fraction(49, 100)
        samples = noise.draw(SeededEntropy(1))
        narrow = replace(noise, unit=noise.unit * share).draw(SeededEntropy(1))
        deviations = [sum_noise_excess(noise, values, all_counted)[1] / 4000**0.5 for values in (samples, narrow)]
        assert abs(deviations[0]) < MAX_DEVIATIONS / 2
        assert deviations[1] < -MAX_DEVIATIONS

    def test_uncounted_values_and_narrow_noise_are_skipped(self) -> None:
        noise = LaplaceNoise(Fraction(1), np.ones(3, np.int64))
        assert sum_noise_excess(noise, np.zeros(3, np.int64), np.array([True, False, False]))[0] == 1
        narrow = replace(noise, unit=Fraction(1, 9))
        assert sum_noise_excess(narrow, np.zeros(3, np.int64), np.ones(3, np.bool_)) == (0, 0.0)


class TestTree:
    @pytest.mark.parametrize("scale", [Fraction(3, 4), Fraction(3), Fraction(30)])
    def test_probabilities_equal_those_of_the_series(self, scale: Fraction) -> None:
        ratio = exp(-1 / scale)
        weights = {z: ratio ** abs(z) for z in range(-3000, 3001)}
        total = sum(weights.values())
        for biased in (-7, -1, 0, 1, 2, 9):
            above = sum(weight for z, weight in weights.items() if biased + z > 0) / total
            assert log_probabilities(biased, scale) == pytest.approx((log(above), log(1 - above)), rel=1e-9)

    def test_the_loss_is_the_log_ratio_of_the_probabilities(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Compare over all trees with two levels in one feature. Their probabilities must add up to 1."""
        monkeypatch.setattr(privtree, "MAX_DEPTH", 2)
        scale, decay = Fraction(3), compute_decay(Fraction(3))
        points, other = (np.array(places, dtype=np.int32)[:, None] for places in ([5, 5, 5, LATTICE - 1], [5, 5, 5]))

        def compute_probability(records, splits):
            logs = 0.0
            for node, is_split in enumerate(splits):
                count = [len(records), (records < LATTICE // 2).sum(), (records >= LATTICE // 2).sum()][node]
                logs += log_probabilities(max(-decay, int(count) - (decay if node else 0)), scale)[0 if is_split else 1]
            return exp(logs)

        total = 0.0
        for left, right in product((0, 1), repeat=2):
            splits = np.array([1, left, right, *[0] * (2 * (left + right))])
            probabilities = [compute_probability(records, splits[:3]) for records in (points, other)]
            assert compute_tree_loss(splits, points, other, scale) == pytest.approx(
                log(probabilities[0] / probabilities[1])
            )
            total += probabilities[0]
        leaf = np.zeros(1, dtype=np.int64)
        probabilities = [compute_probability(records, leaf) for records in (points, other)]
        assert compute_tree_loss(leaf, points, other, scale) == pytest.approx(log(probabilities[0] / probabilities[1]))
        assert total + probabilities[0] == pytest.approx(1)

    def test_nodes_of_a_full_level_have_no_loss(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(privtree, "MAX_NODES", 5)  # allows one split below the root
        points, other = np.array([[5], [LATTICE - 1]], dtype=np.int32), np.array([[5]], dtype=np.int32)
        first = compute_tree_loss(np.array([1, 1, 0, 0, 0]), points, other, Fraction(3))
        second = compute_tree_loss(np.array([1, 0, 1, 0, 0]), points, other, Fraction(3))
        assert first == pytest.approx(decision_loss(2, 1, 0, 0))  # the split of the upper half has no noise
        assert second == pytest.approx(decision_loss(2, 1, 0, 0) + decision_loss(1, 0, 1, 0))

    def test_splits_lose_at_most_the_charge_unless_the_decay_is_too_small(self) -> None:
        assert check_paths().holds
        assert not check_paths(lambda scale: max(1, compute_decay(scale) // 3)).holds

    def test_the_largest_loss_is_close_to_the_charge(self) -> None:
        scale = Fraction(300)
        answers = find_largest_loss(scale, compute_decay(scale), 6 * compute_decay(scale) + 3)
        assert 0.8 * 3 / 300 < answers <= 3 / 300


def decision_loss(count: int, other: int, depth: int, outcome: int) -> float:
    scale = Fraction(3)
    decay = compute_decay(scale)
    own, neighbour = (
        log_probabilities(max(-decay, records - decay * depth), scale)[outcome] for records in (count, other)
    )
    return own - neighbour
