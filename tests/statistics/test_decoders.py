"""Test that estimates from sampled reports are unbiased with the published variance.

A correct mechanism fails a check once in a million seeds. Reports at 1.3 or .7 of epsilon are
detected. Entropy is seeded, because few reports leave no room for a bound that holds in every run.
"""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from clustering.rounds.counting import count
from clustering.rounds.decoders import decoder
from clustering.simulate import SeededEntropy
from sfumato import mechanisms
from sfumato.privacy.accounting import NANO
from sfumato.specs import Feature, GridEncoding, Mechanism, OlhMechanism, RoundSpec, SsMechanism

pytestmark = pytest.mark.release

KINDS = ["grr", "ss", "oue", "olh", "hr"]
K = 169
HELD = {3: 0.6, 100: 0.4}  # symbols of the devices
N_REPORTS, N_ROUNDS = 2000, 60
P_LEAST = 1e-6
TOLERANCE = 0.1  # limits of a mean of 10,020 squares, which has a standard error of .014


def estimates(sending: Mechanism, reading: Mechanism) -> NDArray[np.float64]:
    """Return estimates by `reading` of rounds with devices that run `sending`: shape (N_ROUNDS, K)."""
    spec = RoundSpec((Feature("x", 0, 1),), GridEncoding((K,)), reading)
    own = np.repeat(list(HELD), [round(N_REPORTS * share) for share in HELD.values()])
    slots, entropy = np.zeros(N_REPORTS, dtype=np.int64), SeededEntropy(1)
    rows = [
        decoder(reading).frequencies(count(spec, slots, sending.perturb_many(own, entropy)))[0] for _ in range(N_ROUNDS)
    ]
    return np.array(rows)


def z_of_own(found: NDArray[np.float64], mechanism: Mechanism) -> float:
    """Return the largest deviation of mean estimates of true symbols from the truth, in standard errors."""
    reading = decoder(mechanism)
    return max(
        abs(found[:, symbol].mean() - share) / np.sqrt(reading.variance(share, N_REPORTS) / N_ROUNDS)
        for symbol, share in HELD.items()
    )


def squares_of_others(found: NDArray[np.float64], mechanism: Mechanism) -> float:
    """Return the mean square of estimates of absent symbols, divided by its expectation."""
    others = np.delete(found, list(HELD), axis=1)
    return float((others**2).mean() / decoder(mechanism).variance(0.0, N_REPORTS))


def of_another_epsilon(right: Mechanism, factor: float) -> Mechanism:
    """Return the mechanism with another threshold."""
    wrong = mechanisms.design(right.type, K, round(NANO * factor))
    if isinstance(right, OlhMechanism):
        e = np.exp(factor)
        return replace(right, keep_threshold=int(e / (e + right.hash_range - 1) * 2**64))
    if isinstance(right, SsMechanism):
        weight = right.subset_size * np.exp(factor)
        return replace(right, hold_threshold=int(weight / (weight + K - right.subset_size) * 2**64))
    return wrong


@pytest.mark.parametrize("kind", KINDS)
class TestEstimates:
    def test_are_unbiased_with_the_published_variance(self, kind: str) -> None:
        mechanism = mechanisms.design(kind, K, NANO)
        found = estimates(mechanism, mechanism)
        assert found.sum(axis=1) == pytest.approx(np.ones(N_ROUNDS))
        assert z_of_own(found, mechanism) < stats.norm.isf(P_LEAST / 4)
        assert squares_of_others(found, mechanism) == pytest.approx(1, abs=TOLERANCE)

    @pytest.mark.parametrize("factor", [0.7, 1.3])
    def test_detects_another_epsilon(self, kind: str, factor: float) -> None:
        right = mechanisms.design(kind, K, NANO)
        found = estimates(of_another_epsilon(right, factor), right)
        assert z_of_own(found, right) > stats.norm.isf(P_LEAST / 4)

    @pytest.mark.parametrize("factor", [0.7, 1.3])
    def test_detects_another_variance(self, kind: str, factor: float) -> None:
        mechanism = mechanisms.design(kind, K, NANO)
        found = estimates(mechanism, mechanism) * np.sqrt(factor)
        assert squares_of_others(found, mechanism) != pytest.approx(1, abs=TOLERANCE)


class TestHashing:
    def test_seeds_are_uniform_and_the_response_is_the_channel(self) -> None:
        mechanism = mechanisms.design("olh", K, NANO)
        assert isinstance(mechanism, OlhMechanism)
        n = 200_000
        values = mechanism.perturb_many(np.full(n, 3), SeededEntropy(1))
        seeds = np.ascontiguousarray(values[:, :12]).view("<u4").astype(np.int64)
        for part in seeds.T:
            assert stats.chisquare(np.bincount(part >> 25, minlength=64)).pvalue > P_LEAST
        a, b, c = seeds.T
        prime = (1 << 31) - 1
        hashed = ((a * 3 + b) % prime * 3 + c) % prime * mechanism.hash_range >> 31
        seen = np.bincount((values[:, 12] - hashed) % mechanism.hash_range, minlength=mechanism.hash_range)
        for factor, passes in [(1, True), (0.7, False), (1.3, False)]:
            p = float(of_another_epsilon(mechanism, factor).support()[0])
            expected = [n * p] + [n * (1 - p) / (mechanism.hash_range - 1)] * (mechanism.hash_range - 1)
            assert bool(stats.chisquare(seen, expected).pvalue > P_LEAST) is passes
