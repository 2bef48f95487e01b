"""Samplers, exactly and by draws: the sound ones hold, the planted ones are caught."""

from fractions import Fraction

import numpy as np
import pytest

from audit import sampler_draws, sampler_laws
from audit.check import Check, Effort, Leak, Setting
from audit.planted.samplers import LEAKS, quiet_answers
from audit.sampler_draws import gaussian_law, laplace_law, look_at_answers, look_at_draws, lowest_bit
from audit.sampler_laws import look_at_choices, look_at_coins
from sfumato.entropy import below
from sfumato.exact_coins import bernoulli_exp

QUICK = Setting(Effort.QUICK, 1)
CHECKS = (*sampler_laws.CHECKS, *sampler_draws.CHECKS)


class TestSound:
    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.subject)
    def test_all_hold(self, check: Check) -> None:
        (found,) = check.run(QUICK)
        assert found.why == ""
        assert found.holds
        assert found.trials > 30

    def test_the_same_setting_finds_the_same(self) -> None:
        check = sampler_draws.CHECKS[-1]
        assert check.run(QUICK) == check.run(QUICK)
        assert check.run(QUICK) != check.run(Setting(Effort.QUICK, 2))


class TestLeaks:
    @pytest.mark.parametrize("leak", LEAKS, ids=lambda leak: leak.name)
    def test_each_is_caught(self, leak: Leak) -> None:
        found = leak.run(QUICK)
        assert any(not finding.holds and finding.why for finding in found)
        assert {finding.subject for finding in found} <= {check.subject for check in CHECKS} | {"randomness"}

    @pytest.mark.parametrize("factor", [Fraction(7, 10), Fraction(13, 10)])
    def test_a_scale_that_is_30_percent_off_is_beyond_doubt(self, factor: Fraction) -> None:
        law = laplace_law(Fraction(7, 2) * factor, 14)
        (found,) = look_at_draws(sampler_draws.laplace_draws, law, "x", QUICK)
        assert not found.holds
        law = gaussian_law(Fraction(21, 2) * factor**2, 9)
        (found,) = look_at_draws(sampler_draws.gaussian_draws, law, "x", QUICK)
        assert not found.holds

    def test_answers_at_70_percent_are_told_apart_at_every_seed(self) -> None:
        for seed in range(5):
            (found,) = look_at_answers(quiet_answers, "answers", Setting(Effort.QUICK, seed))
            assert not found.holds
            assert found.measured > 1.2


class TestExactly:
    def test_a_bound_that_is_off_by_one_is_found(self) -> None:
        (found,) = look_at_choices(lambda entropy, bound: below(entropy, bound + 1) % bound, "x")
        assert not found.holds

    def test_a_coin_of_another_chance_is_found(self) -> None:
        (found,) = look_at_coins(lambda a, b, way: bernoulli_exp(a * 2**20, b * 2**20 + 1, way), "x")
        assert "comes with chance" in found.why


class TestLowestBit:
    def test_is_that_of_the_number(self) -> None:
        numbers = np.array([0.0, 1.0, -2.0, 0.75, 3.0 + 2.0**-50, 96.0])
        assert lowest_bit(numbers).tolist() == [64.0, 0.0, 1.0, -2.0, -50.0, 5.0]
