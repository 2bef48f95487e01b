"""Test that sampled reports follow the channel and that a channel 30 % off is detected.

A correct channel must pass at p > 1e-11, so a correct build fails each test once in 1e11 runs. A wrong
one must be rejected at p < 1e-11. Words come from the operating system, as on a device.
"""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from sfumato import mechanisms
from sfumato.device.bulk import perturb_records
from sfumato.privacy.accounting import NANO
from sfumato.privacy.entropy import SystemEntropy
from sfumato.specs import DiscreteLaplaceMechanism, Feature, Mechanism, RoundSpec, ShiftedGridEncoding

pytestmark = pytest.mark.slow

N_REPORTS = 200_000
P_LEAST = 1e-11
EPSILON_NANO = NANO
SIZES = {"grr": 10, "ss": 8, "oue": 5, "hr": 10, "window": 16}  # 10, 28, 32, 32 and 16 different values
OWN = 3


def sampled(mechanism: Mechanism, n_reports: int = N_REPORTS) -> NDArray[np.uint8]:
    return mechanism.perturb_many(np.full(n_reports, OWN), SystemEntropy())


def p_value(values: NDArray[np.uint8], mechanism: Mechanism) -> float:
    """Return the chi-square p-value of observed values under the mechanism's exact channel."""
    rows = mechanism.channel()
    width = mechanism.value_bytes
    assert width == 1
    seen = np.bincount(values[:, 0], minlength=256)
    assert seen.sum() == sum(seen[value[0]] for value in rows)
    expected = [float(row[OWN]) * len(values) for row in rows.values()]
    return float(stats.chisquare([seen[value[0]] for value in rows], expected).pvalue)


@pytest.mark.parametrize("kind", list(SIZES))
class TestTheChannel:
    def test_an_array_of_devices_follows_it(self, kind: str) -> None:
        mechanism = mechanisms.design(kind, SIZES[kind], EPSILON_NANO)
        assert p_value(sampled(mechanism), mechanism) > P_LEAST

    def test_single_devices_follow_it(self, kind: str) -> None:
        mechanism = mechanisms.design(kind, SIZES[kind], EPSILON_NANO)
        entropy = SystemEntropy()
        values = [mechanism.perturb(OWN, entropy) for _ in range(N_REPORTS // 4)]
        assert p_value(np.frombuffer(b"".join(values), np.uint8)[:, None], mechanism) > P_LEAST

    @pytest.mark.parametrize("factor", [0.7, 1.3])
    def test_detects_another_epsilon(self, kind: str, factor: float) -> None:
        right = mechanisms.design(kind, SIZES[kind], EPSILON_NANO)
        wrong = mechanisms.design(kind, SIZES[kind], round(EPSILON_NANO * factor))
        if kind == "ss":  # the same subset size, so that only the threshold differs
            wrong = type(right)(right.n_symbols, right.subset_size, _hold(right, factor))  # type: ignore[call-arg]
        assert p_value(sampled(wrong), right) < P_LEAST


def _hold(mechanism: Mechanism, factor: float) -> int:
    k, d = mechanism.n_symbols, mechanism.subset_size  # type: ignore[union-attr]
    weight = np.exp(EPSILON_NANO / NANO * factor)
    return int(d * weight / (d * weight + k - d) * 2**64)


class TestManySymbols:
    """With too many values to count, own and other symbols are counted separately."""

    K = 169

    def _named(self, mechanism: Mechanism) -> NDArray[np.int64]:
        values = sampled(mechanism, 100_000)
        return np.unpackbits(values, axis=1, bitorder="little", count=self.K).sum(axis=0, dtype=np.int64)

    def test_own_symbol_and_others_have_their_frequencies(self) -> None:
        mechanism = mechanisms.design("ss", self.K, EPSILON_NANO)
        p, q = (float(chance) for chance in mechanism.support())
        named = self._named(mechanism)
        assert stats.binomtest(int(named[OWN]), 100_000, p).pvalue > P_LEAST
        others = np.delete(named, OWN)
        spread = ((others - 100_000 * q) ** 2).sum() / (100_000 * q * (1 - q))
        assert P_LEAST < stats.chi2.sf(spread, self.K - 2) < 1 - P_LEAST

    @pytest.mark.parametrize("factor", [0.7, 1.3])
    def test_detects_another_epsilon(self, factor: float) -> None:
        right = mechanisms.design("ss", self.K, EPSILON_NANO)
        wrong = type(right)(right.n_symbols, right.subset_size, _hold(right, factor))  # type: ignore[call-arg]
        p = float(right.support()[0])
        assert stats.binomtest(int(self._named(wrong)[OWN]), 100_000, p).pvalue < P_LEAST


class TestSlots:
    def test_slots_are_uniform_for_any_record(self) -> None:
        encoding = ShiftedGridEncoding(n_features=2, cells=3, shifts=4)
        spec = RoundSpec((Feature("x", 0, 1), Feature("y", 0, 1)), encoding, mechanisms.design("grr", 16, EPSILON_NANO))
        for corner in ([0.0, 0.0], [1.0, 1.0]):
            slots = perturb_records(spec, np.tile(corner, (N_REPORTS, 1))).slots
            seen = np.bincount(slots, minlength=encoding.n_slots)
            assert stats.chisquare(seen).pvalue > P_LEAST
            skewed = np.concatenate([seen[:-1], [round(seen[-1] * 1.3)]])
            assert stats.chisquare(skewed).pvalue < P_LEAST


class TestDiscreteLaplace:
    """The noise of one feature, scalar and vectorised, against its law up to the clamp."""

    SCALE = 4  # lattice units: epsilon 1 over 4 steps of one feature
    MARGIN = 12
    OWN = 2

    def _mechanism(self, factor: float = 1.0) -> DiscreteLaplaceMechanism:
        return DiscreteLaplaceMechanism(1, 4, round(100 * self.SCALE * factor), 100, self.MARGIN)

    def _p_value(self, sent: NDArray[np.int64]) -> float:
        low, high = -self.MARGIN, 4 + self.MARGIN
        decay = np.exp(-1 / self.SCALE)
        law = (1 - decay) / (1 + decay) * decay ** np.abs(np.arange(low, high + 1) - self.OWN)
        law[0], law[-1] = (decay ** abs(end - self.OWN) / (1 + decay) for end in (low, high))
        assert law.sum() == pytest.approx(1, abs=1e-12)
        seen = np.bincount(sent - low, minlength=len(law))
        return float(stats.chisquare(seen, law * len(sent)).pvalue)

    def _together(self, mechanism: DiscreteLaplaceMechanism) -> NDArray[np.int64]:
        values = mechanism.perturb_many(np.full((N_REPORTS, 1), self.OWN), SystemEntropy())
        return mechanism.vectors_of(values)[:, 0].astype(np.int64)

    def test_an_array_of_devices_follows_it(self) -> None:
        assert self._p_value(self._together(self._mechanism())) > P_LEAST

    def test_single_devices_follow_it(self) -> None:
        mechanism, entropy = self._mechanism(), SystemEntropy()
        values = [mechanism.perturb((self.OWN,), entropy) for _ in range(N_REPORTS // 4)]
        sent = mechanism.vectors_of(np.frombuffer(b"".join(values), np.uint8)[:, None])
        assert self._p_value(sent[:, 0].astype(np.int64)) > P_LEAST

    @pytest.mark.parametrize("factor", [0.7, 1.3])
    def test_detects_another_scale(self, factor: float) -> None:
        assert self._p_value(self._together(self._mechanism(factor))) < P_LEAST

    def test_noise_is_independent_per_feature(self) -> None:
        mechanism = DiscreteLaplaceMechanism.design(3, 1000, EPSILON_NANO)
        values = mechanism.perturb_many(np.full((N_REPORTS, 3), 500), SystemEntropy())
        vectors = mechanism.vectors_of(values)
        signs = np.sign(vectors - 500)
        for first, second in ((0, 1), (0, 2), (1, 2)):
            agree = int((signs[:, first] * signs[:, second] > 0).sum())
            n_signed = int((signs[:, first] * signs[:, second] != 0).sum())
            assert stats.binomtest(agree, n_signed, 0.5).pvalue > P_LEAST
