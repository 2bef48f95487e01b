"""Gaussian accounting against numbers of an independent accountant, and its rounding."""

import math
from decimal import Decimal, localcontext
from random import Random
from statistics import NormalDist

import pytest

from sfumato.errors import InvalidSpec
from sfumato.privacy.accountant import (
    Cost,
    certified_epsilon,
    certified_release_epsilon,
    charge_mu2,
    cost_of_releases,
    count_jobs,
    count_releases,
    forecast_budget,
    is_allowed,
    is_counted,
    is_release_allowed,
    limit_mu2,
    limit_release_mu2,
    most_mu2,
    remaining_release_share,
    remaining_share,
)
from sfumato.privacy.accounting import ATTO, EPSILON_MAX_NANO, NANO, parse_delta, parse_epsilon
from sfumato.privacy.gaussian_privacy import PICO, is_covered, mu2_of_pure

MICRO = parse_delta("1e-6")


def cost(epsilon: float, delta: float) -> Cost:
    amounts = parse_epsilon(epsilon), parse_delta(delta)
    return Cost(*amounts, charge_mu2(*amounts))


class TestPureCharge:
    @pytest.mark.parametrize("epsilon", ["0.000001", "0.01", "0.1", "1", "4", "16", "32"])
    def test_is_the_least_integer_whose_trade_off_lies_below_at_the_kink(self, epsilon: str) -> None:
        nano = parse_epsilon(epsilon)
        mu2 = mu2_of_pure(nano)
        with localcontext() as context:
            context.prec = 60
            kink = 1 / (1 + (Decimal(nano) / NANO).exp())

        def tail(value: int) -> float:
            return 0.5 * math.erfc(math.sqrt(value / PICO / 8))

        assert tail(mu2) <= float(kink) * (1 + 1e-12)
        assert mu2 < 1000 or tail(mu2 - mu2 // 10**9 - 1) > float(kink)
        assert mu2 <= 8000 * nano

    def test_counts_more_than_half_of_epsilon_squared_permits(self) -> None:
        """Randomised response is pure, and no Gaussian value of the smaller mu^2 dominates it."""
        for epsilon in (0.01, 0.1, 1.0):
            mu2 = mu2_of_pure(parse_epsilon(epsilon)) / PICO
            assert mu2 > epsilon**2 * 1.5
            kink = 1 / (1 + math.exp(epsilon))
            assert NormalDist().cdf(NormalDist().inv_cdf(1 - kink) - epsilon) > kink

    def test_of_nothing_is_nothing(self) -> None:
        assert mu2_of_pure(0) == 0

    def test_sums_count_at_most_the_whole(self) -> None:
        for one, other in ((1, 1), (3, 10**8), (10**8, 10**9), (10**9, 31 * 10**9)):
            assert mu2_of_pure(one) + mu2_of_pure(other) <= mu2_of_pure(one + other) + 1


class TestRule:
    GRANT = Cost(2 * NANO, MICRO, limit_mu2(2 * NANO, MICRO))

    def test_pure_sums_or_mu2(self) -> None:
        pure, block = Cost(2 * NANO, 0, 10**13), Cost(20 * NANO, 1, self.GRANT.mu2_pico)
        assert is_allowed("gaussian", self.GRANT, pure)
        assert not is_allowed("gaussian", self.GRANT, pure._replace(epsilon_nano=2 * NANO + 1))
        assert not is_allowed("gaussian", self.GRANT, pure._replace(delta_atto=1))
        assert is_allowed("gaussian", self.GRANT, block)
        assert not is_allowed("gaussian", self.GRANT, block._replace(mu2_pico=block.mu2_pico + 1))
        assert not is_allowed("additive", self.GRANT, block)

    def test_a_charge_counts_at_least_its_mu2(self) -> None:
        for charged in (cost(0.2, 1e-8), cost(0.2, 0)):
            assert is_counted(charged)
            assert not is_counted(charged._replace(mu2_pico=charged.mu2_pico - 1))
        assert not is_counted(Cost(0, 1, 10**15))

    def test_a_job_counts_at_most_both_ways(self) -> None:
        assert most_mu2(NANO, MICRO) == charge_mu2(NANO, 0) + charge_mu2(NANO, MICRO)

    def test_counts_jobs(self) -> None:
        job, used = cost(0.2, 1e-8), Cost(0, 0, 0)
        n = count_jobs("gaussian", self.GRANT, used, job)
        assert n == 112
        after = Cost(*(n * part for part in job))
        assert is_allowed("gaussian", self.GRANT, after)
        assert not is_allowed("gaussian", self.GRANT, Cost(*((n + 1) * part for part in job)))
        assert count_jobs("gaussian", self.GRANT, after, job) == 0
        assert count_jobs("additive", self.GRANT, used, job) == 10
        assert count_jobs("gaussian", self.GRANT, used, cost(0.2, 0)) == 10


class TestCertifiedEpsilon:
    @pytest.mark.parametrize(("epsilon", "n", "most"), [(0.1, 100, 0.9138), (0.2, 52, 1.3132)])
    def test_of_weekly_jobs(self, epsilon: float, n: int, most: float) -> None:
        charged = Cost(*(n * part for part in cost(epsilon, 1e-8)))
        found = certified_epsilon("gaussian", charged, MICRO)
        assert found is not None
        assert most - 1e-3 < found / NANO < most
        assert is_covered(charged.mu2_pico, found, MICRO)
        assert not is_covered(charged.mu2_pico, found - 1, MICRO)

    def test_of_pure_charges_is_at_most_their_sum(self) -> None:
        assert certified_epsilon("gaussian", cost(0.2, 0), MICRO) == NANO // 5
        many = Cost(100 * NANO // 100, 0, 100 * mu2_of_pure(NANO // 100))
        assert (certified_epsilon("gaussian", many, MICRO) or 0) < NANO
        assert certified_epsilon("additive", many, MICRO) == NANO

    def test_above_the_range_is_none(self) -> None:
        assert certified_epsilon("gaussian", Cost(NANO, 1, 10**15), MICRO) is None


class TestRemainingShare:
    def test_is_that_of_epsilon_or_of_the_larger_condition(self) -> None:
        granted = Cost(100, 10, 80)
        assert remaining_share("additive", granted, Cost(25, 9, 79)) == 0.75
        assert remaining_share("additive", granted, Cost(101, 0, 0)) == 0
        assert remaining_share("gaussian", granted, Cost(25, 0, 40)) == 0.75
        assert remaining_share("gaussian", granted, Cost(75, 0, 40)) == 0.5
        assert remaining_share("gaussian", granted, Cost(25, 1, 40)) == 0.5  # no longer pure
        assert remaining_share("additive", Cost(0, 0, 0), Cost(0, 0, 0)) == 0


class TestReleases:
    """A budget towards an observer of releases: sums, or half of delta and mu^2."""

    def test_an_additive_budget_limits_epsilon_and_delta(self) -> None:
        granted = Cost(NANO, 100, 7)
        assert is_release_allowed("additive", granted, Cost(NANO, 100, 10**6))
        assert not is_release_allowed("additive", granted, Cost(NANO + 1, 100, 0))
        assert not is_release_allowed("additive", granted, Cost(NANO, 101, 0))

    def test_a_gaussian_budget_limits_mu2_and_half_of_delta(self) -> None:
        granted = Cost(NANO, 101, 7)
        assert is_release_allowed("gaussian", granted, Cost(9 * NANO, 50, 7))
        assert not is_release_allowed("gaussian", granted, Cost(0, 51, 0))
        assert not is_release_allowed("gaussian", granted, Cost(0, 0, 8))

    def test_the_share_of_the_amount_that_is_left_least_remains(self) -> None:
        assert remaining_release_share("additive", Cost(100, 10, 0), Cost(25, 5, 999)) == 0.5
        assert remaining_release_share("additive", Cost(100, 10, 0), Cost(60, 5, 0)) == 0.4
        assert remaining_release_share("gaussian", Cost(0, 100, 8), Cost(999, 10, 2)) == 0.75
        assert remaining_release_share("gaussian", Cost(0, 100, 8), Cost(0, 51, 0)) == 0
        assert remaining_release_share("additive", Cost(0, 0, 0), Cost(0, 0, 0)) == 0

    def test_counts_releases(self) -> None:
        used = Cost(10, 1, 20)
        assert count_releases("additive", Cost(100, 10, 0), used, Cost(30, 2, 5)) == 3
        assert count_releases("additive", Cost(100, 4, 0), used, Cost(30, 2, 5)) == 1
        assert count_releases("additive", Cost(100, 10, 0), used, Cost(30, 0, 5)) == 3
        assert count_releases("additive", Cost(9, 10, 0), used, Cost(1, 1, 1)) == 0
        assert count_releases("gaussian", Cost(0, 20, 80), used, Cost(5, 3, 10)) == 3
        assert count_releases("gaussian", Cost(0, 100, 80), used, Cost(5, 3, 10)) == 6

    def test_certify_the_sum_or_the_least_epsilon_of_mu2(self) -> None:
        granted, charged = Cost(NANO, MICRO, limit_release_mu2(NANO, MICRO)), Cost(NANO // 2, 5, 10**10)
        assert certified_release_epsilon("additive", granted, charged) == NANO // 2
        found = certified_release_epsilon("gaussian", granted, charged)
        assert found is not None
        assert is_covered(charged.mu2_pico, found, MICRO // 2)
        assert not is_covered(charged.mu2_pico, found - 1, MICRO // 2)

    def test_cost_the_sum_or_the_epsilon_of_the_sum_of_mu2(self) -> None:
        release = Cost(NANO, 5, 10**10)
        assert cost_of_releases("additive", release, 3) == (3 * NANO, 15)
        assert cost_of_releases("additive", release, EPSILON_MAX_NANO // NANO) == (EPSILON_MAX_NANO, 160)
        assert cost_of_releases("additive", release, EPSILON_MAX_NANO // NANO + 1) == (None, 165)
        found, delta_atto = cost_of_releases("gaussian", Cost(NANO, MICRO, 10**10), 3)
        assert found is not None
        assert is_covered(3 * 10**10, found, 3 * MICRO)
        assert not is_covered(3 * 10**10, found - 1, 3 * MICRO)
        assert delta_atto == 6 * MICRO


class TestForecast:
    def test_of_a_job_too_small_for_a_block(self) -> None:
        with pytest.raises(InvalidSpec, match="too small"):
            forecast_budget(2 * NANO, MICRO, 1000, 1000)

    def test_without_a_delta_is_additive(self) -> None:
        found = forecast_budget(2 * NANO, 0, NANO // 5, 0)
        assert (found.additive, found.gaussian) == (10, 0)

    def test_random_sequences_agree_with_the_closed_form(self) -> None:
        """The sum of mu^2 is converted by the formula of Balle and Wang in floating point."""
        random = Random(7)  # noqa: S311 - test data
        for _ in range(20):
            parts = [cost(round(random.uniform(0.02, 0.5), 6), 1e-8) for _ in range(random.randint(1, 40))]
            charged = Cost(*map(sum, zip(*parts, strict=True)))
            found = certified_epsilon("gaussian", charged, MICRO)
            assert found is not None
            mu, epsilon, normal = math.sqrt(charged.mu2_pico / PICO), found / NANO, NormalDist()
            delta = normal.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * normal.cdf(-mu / 2 - epsilon / mu)
            assert delta == pytest.approx(1e-6, rel=1e-4)


class TestAgainstDpAccounting:
    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
    def test_certifies_random_sequences_within_one_percent(self) -> None:
        """Never below the optimistic bound of dp-accounting, and at most 1 % above its pessimistic one."""
        from dp_accounting.pld import privacy_loss_distribution as pld

        random, ratios = Random(38), []  # noqa: S311 - test data
        for _ in range(50):
            kinds = [(cost(round(random.uniform(0.02, 0.6), 6), 1e-8), random.randint(1, 30)) for _ in range(3)]
            charged = Cost(*(sum(number * job[i] for job, number in kinds) for i in range(3)))
            found = certified_epsilon("gaussian", charged, MICRO)
            assert found is not None
            bounds = []
            for is_pessimistic in (False, True):
                parts = [
                    pld.from_gaussian_mechanism(
                        (job.mu2_pico / PICO) ** -0.5,
                        pessimistic_estimate=is_pessimistic,
                        value_discretization_interval=1e-4,
                    ).self_compose(number)
                    for job, number in kinds
                ]
                composed = parts[0].compose(parts[1]).compose(parts[2])
                bounds.append(composed.get_epsilon_for_delta(MICRO / ATTO))
            ratios.append((found / NANO / bounds[0], found / NANO / bounds[1]))
        assert min(low for low, _ in ratios) >= 1
        assert max(high for _, high in ratios) <= 1.01
