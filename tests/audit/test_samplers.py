"""Checks of samplers by enumeration and by samples detect a wrong scale."""

from fractions import Fraction

import numpy as np
import pytest

from audit.checks.check import Effort, Setting
from audit.mechanisms import sampler_distributions, sampler_draws
from audit.mechanisms.sampler_distributions import check_choices, check_coins
from audit.mechanisms.sampler_draws import (
    check_noisy_counts,
    check_samples,
    gaussian_probabilities,
    laplace_probabilities,
    lowest_bit,
)
from audit.planted.samplers import add_noise_at_70
from sfumato.privacy.entropy import below, bernoulli_exp

QUICK = Setting(Effort.QUICK, 1)


@pytest.fixture(autouse=True)
def reduce_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce the samples to a number that detects 30 %, and follow fewer improbable paths."""
    monkeypatch.setattr(sampler_draws, "_N_SAMPLES", 15_000)
    monkeypatch.setattr(sampler_distributions, "_MIN_PROBABILITY", Fraction(1, 1 << 30))
    monkeypatch.setattr(sampler_distributions, "_MIN_PROBABILITY_IN_ARRAYS", Fraction(1, 1 << 20))


class TestFindings:
    def test_equal_settings_give_equal_findings(self) -> None:
        check = sampler_draws.CHECKS[-1]
        assert check.run(QUICK) == check.run(QUICK)
        assert check.run(QUICK) != check.run(Setting(Effort.QUICK, 2))


class TestLeaks:
    @pytest.mark.parametrize("factor", [Fraction(7, 10), Fraction(13, 10)])
    def test_a_scale_wrong_by_30_percent_fails(self, factor: Fraction) -> None:
        probabilities = laplace_probabilities(Fraction(7, 2) * factor, 14)
        (finding,) = check_samples(sampler_draws.laplace_draws, probabilities, "x", QUICK)
        assert not finding.holds
        probabilities = gaussian_probabilities(Fraction(21, 2) * factor**2, 9)
        (finding,) = check_samples(sampler_draws.gaussian_draws, probabilities, "x", QUICK)
        assert not finding.holds

    def test_counts_at_70_percent_of_their_noise_fail_with_every_seed(self) -> None:
        for seed in range(2):
            (finding,) = check_noisy_counts(add_noise_at_70, "answers", Setting(Effort.QUICK, seed))
            assert not finding.holds
            assert finding.measured > 1.2


class TestDistributions:
    def test_a_bound_wrong_by_one_is_detected(self) -> None:
        (finding,) = check_choices(lambda entropy, bound: below(entropy, bound + 1) % bound, "x")
        assert not finding.holds

    def test_a_coin_with_a_wrong_probability_is_detected(self) -> None:
        (finding,) = check_coins(lambda a, b, path: bernoulli_exp(a * 2**20, b * 2**20 + 1, path), "x")
        assert "has probability" in finding.why


class TestLowestBit:
    def test_lowest_bits(self) -> None:
        numbers = np.array([0.0, 1.0, -2.0, 0.75, 3.0 + 2.0**-50, 96.0, 2.0**-60])
        assert lowest_bit(numbers).tolist() == [64, 0, 1, -2, -50, 5, -60]
        assert lowest_bit(np.array([6, 7, -8], dtype=np.int64)).tolist() == [1, 0, 3]
