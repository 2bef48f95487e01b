"""What is charged, against the audit's own reckoning; and that reckoning against others."""

from math import exp, expm1

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from audit import accounting
from audit.accounting import CHECKS
from audit.accounting_reference import cost_by_hand, discrete_delta, normal_delta, places
from audit.check import Effort, Setting
from audit.planted.accounting import LEAKS
from sfumato.accounting import ATTO, DRAW_SPAN, NANO, cost
from sfumato.concentrated import PICO, rho_of

SETTING = Setting(Effort.QUICK, 3)
NAMED = {  # every leak the audit is asked to catch here
    "a draw interval ignored",
    "cost as the mean over draws",
    "epsilon in floats",
}


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quick audit that is over in a second."""
    for name, n in (("COLLECTIONS", 300), ("RATIOS", 60), ("RHOS", 4), ("AMOUNTS", 500)):
        monkeypatch.setattr(accounting, name, n)
    monkeypatch.setattr(accounting, "EPSILONS", (NANO // 100, NANO, 32 * NANO))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.subject)
def test_what_is_sound_passes(check) -> None:
    for finding in check.run(SETTING):
        assert finding.holds, finding.why
        assert finding.trials >= 10


@pytest.mark.parametrize("leak", LEAKS, ids=lambda leak: leak.name)
def test_what_is_planted_is_caught(leak) -> None:
    (finding,) = leak.run(SETTING)
    assert not finding.holds
    assert finding.why


def test_every_leak_that_was_promised_is_planted() -> None:
    assert {leak.name for leak in LEAKS} >= NAMED
    assert {leak.subject for leak in LEAKS} <= {check.subject for check in CHECKS}


words = st.integers(0, DRAW_SPAN)
spans = st.tuples(words, words).filter(lambda ends: ends[0] != ends[1]).map(lambda ends: (min(ends), max(ends)))
collections = st.lists(st.tuples(spans, st.integers(0, 32 * NANO)), max_size=7)


class TestCompositionByHand:
    @given(collections)
    def test_the_cost_of_any_collection_is_what_the_dearest_draw_pays(self, rounds) -> None:
        assert cost(rounds) == cost_by_hand(rounds, places(rounds))

    @given(collections, st.lists(words, max_size=20))
    def test_no_draw_pays_more(self, rounds, draws) -> None:
        assert cost_by_hand(rounds, draws) <= cost(rounds)

    @given(collections, collections)
    def test_collections_together_cost_at_most_their_sum_and_at_least_either(self, one, other) -> None:
        together = cost([*one, *other])
        assert max(cost(one), cost(other)) <= together <= cost(one) + cost(other)

    @given(collections)
    def test_the_increases_that_rounds_post_as_they_open_add_up(self, rounds) -> None:
        increases = [cost(rounds[: i + 1]) - cost(rounds[:i]) for i in range(len(rounds))]
        assert min(increases, default=0) >= 0
        assert sum(increases) == cost(rounds)


class TestDeltas:
    @pytest.mark.parametrize(("rho", "epsilon"), [(0.01, 0.3), (0.5, 1.0), (2.0, 8.0), (8.0, 2.0)])
    def test_of_normal_noise_are_those_of_the_closed_form(self, rho: float, epsilon: float) -> None:
        shift = (2 * rho) ** 0.5
        plain = norm.cdf(shift / 2 - epsilon / shift) - exp(epsilon) * norm.cdf(-shift / 2 - epsilon / shift)
        assert normal_delta(rho, epsilon) == pytest.approx(plain, rel=1e-9)

    @pytest.mark.parametrize(("rho", "epsilon"), [(1e-3, 0.05), (0.02, 0.5), (0.1, 1.0)])
    def test_of_wide_discrete_noise_are_about_the_same(self, rho: float, epsilon: float) -> None:
        assert discrete_delta(rho, epsilon) == pytest.approx(normal_delta(rho, epsilon), rel=0.12)

    def test_of_the_narrowest_noise_are_one_outcome(self) -> None:
        # sigma^2 = 1/10: z = 0 says with probability P(0) (1 - e^(eps - 5)) that there is one record less
        weights = [exp(-5 * z * z) for z in range(-3, 4)]
        expected = (weights[3] * -expm1(2 - 5) + weights[2] * -expm1(2 - 15) + weights[1] + weights[0]) / sum(weights)
        assert discrete_delta(5.0, 2.0) == pytest.approx(expected, rel=1e-9)

    @pytest.mark.parametrize("delta_atto", [10**6, 10**12])
    def test_a_thousandth_more_rho_breaks_the_promise(self, delta_atto: int) -> None:
        for epsilon_nano in (NANO // 10, NANO, 8 * NANO):
            rho = rho_of(epsilon_nano, delta_atto) / PICO
            promised = accounting._promised(rho, epsilon_nano / NANO)
            assert promised == pytest.approx(delta_atto / ATTO, rel=1e-5)
            assert accounting._promised(1.001 * rho, epsilon_nano / NANO) > 1.001 * promised
