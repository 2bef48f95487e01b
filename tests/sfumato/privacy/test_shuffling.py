"""The stated cost of shuffled reports against published figures and exact sums."""

from collections.abc import Iterator
from fractions import Fraction
from itertools import product
from math import exp, factorial

import pytest

from sfumato import mechanisms
from sfumato.errors import InvalidSpec
from sfumato.privacy.accounting import ATTO, DRAW_SPAN, NANO
from sfumato.privacy.shuffling import (
    EPSILON_STEP_NANO,
    MAX_HONEST,
    Blanket,
    delta,
    epsilon,
    honest_reports,
    shuffled_cost,
)

DELTA = 10**12  # 1e-6


def design(kind: str, n_symbols: int, local: float) -> Blanket:
    return mechanisms.design(kind, n_symbols, round(local * NANO)).blanket()


def list_counts(n: int, n_parts: int) -> Iterator[tuple[int, ...]]:
    return ((*counts, n - sum(counts)) for counts in product(range(n + 1), repeat=n_parts - 1) if sum(counts) <= n)


def sum_exactly(shown: Blanket, n: int, growth: float) -> float:
    """Return E[Z_1 + ... + Z_n]_+ / n as a sum over all counts of the five outcomes of Z."""
    ratio, share, named, both = (float(each) for each in (shown.ratio, shown.share, shown.named, shown.both))
    one = named - both
    chances = (share * both, share * one, share * one, share * (1 - named - one), 1 - share)
    values = (ratio * (1 - growth), ratio - growth, 1 - growth * ratio, 1 - growth, 0.0)
    total = 0.0
    for counts in list_counts(n, 5):
        weight = float(factorial(n))
        for count, chance in zip(counts, chances, strict=True):
            weight *= chance**count / factorial(count)
        total += weight * max(0.0, sum(count * value for count, value in zip(counts, values, strict=True)))
    return total / n


class TestFigures:
    """Epsilon at delta = 1e-6 for 10^4, 10^5 and 10^6 reports, as two independent prototypes found it."""

    @pytest.mark.parametrize(
        ("kind", "n_symbols", "local", "expected"),
        [
            ("ss", 169, 1, (0.030, 0.009, 0.002)),
            ("ss", 169, 2, (0.079, 0.023, 0.007)),
            ("ss", 169, 4, (0.279, 0.081, 0.024)),
            ("ss", 169, 6, (1.06, 0.295, 0.086)),
            ("grr", 169, 4, (0.191, 0.056, 0.016)),
            ("oue", 169, 6, (0.826, 0.243, 0.071)),
            ("olh", 169, 4, (0.278, 0.081, 0.024)),
            ("hr", 169, 1, (0.030, 0.009, 0.002)),
            ("window", 16, 4, (0.387, 0.112, 0.032)),
        ],
    )
    def test_epsilons_equal_the_published_figures(
        self, kind: str, n_symbols: int, local: float, expected: tuple[float, ...]
    ) -> None:
        found = [epsilon(design(kind, n_symbols, local), n, DELTA) / NANO for n in (10**4, 10**5, 10**6)]
        assert found == pytest.approx(expected, rel=0.005, abs=0.0006)

    def test_epsilon_is_the_first_step_that_delta_covers(self) -> None:
        shown = design("ss", 169, 2)
        found = epsilon(shown, 10_000, DELTA)
        assert found % EPSILON_STEP_NANO == 0
        assert delta(shown, 10_000, found) <= DELTA < delta(shown, 10_000, found - EPSILON_STEP_NANO)


class TestBound:
    @pytest.mark.parametrize(
        ("kind", "n_symbols", "local", "n", "close"),
        [
            ("grr", 3, 1, 5, 1.01),
            ("ss", 4, 0.5, 14, 1.01),
            ("oue", 3, 1, 8, 1.01),
            ("window", 4, 2, 9, 1.01),
            ("hr", 3, 4, 8, 1.04),  # few reports of the blanket: smoothing their discrete sum costs more
            ("grr", 4, 6, 10, 1.04),
        ],
    )
    def test_bound_is_close_above_the_exact_sum(
        self, kind: str, n_symbols: int, local: float, n: int, close: float
    ) -> None:
        shown = design(kind, n_symbols, local)
        for part in (0.0, 0.3, 0.8, 0.999):
            nano = round(part * shown.local_epsilon_nano)
            exact = sum_exactly(shown, n, exp(nano / NANO))
            assert exact * (1 - 1e-9) <= delta(shown, n, nano) / ATTO <= close * exact

    def test_a_very_small_delta_stays_a_bound(self) -> None:
        # the least probable event: every report names the first symbol only, and a sum of this event alone is below
        shown = design("grr", 2, 1)
        for n in (40, 60, 80):
            nano = NANO - NANO // 100
            ratio, share = float(shown.ratio), float(shown.share)
            least = (share / 2) ** n * (ratio - exp(nano / NANO))
            assert least < delta(shown, n, nano) / ATTO
        assert delta(design("ss", 169, 1), 10**6, NANO // 2) == 1

    def test_one_report_has_the_local_guarantee(self) -> None:
        shown = design("grr", 4, 2)
        local = float(shown.share * shown.named) * (float(shown.ratio) - exp(1))
        assert delta(shown, 1, NANO) / ATTO == pytest.approx(local, rel=1e-9)
        assert epsilon(shown, 1, DELTA) == pytest.approx(shown.local_epsilon_nano, rel=1e-4)

    def test_the_local_guarantee_is_never_exceeded(self) -> None:
        shown = design("ss", 169, 12)
        assert delta(shown, 10, shown.local_epsilon_nano) == 0
        assert epsilon(shown, 10, DELTA) <= shown.local_epsilon_nano
        assert epsilon(shown, 10**6, 0) == shown.local_epsilon_nano

    def test_extreme_arguments_have_a_bound(self) -> None:
        for local, n in ((0.000_01, MAX_HONEST), (32, MAX_HONEST), (32, 1), (0.001, 2)):
            shown = design("grr", 8, local)
            found = epsilon(shown, n, DELTA)
            assert 0 <= found <= shown.local_epsilon_nano
            assert delta(shown, n, found) <= DELTA

    def test_invalid_arguments_are_refused(self) -> None:
        shown = design("grr", 4, 1)
        for n in (0, -1, MAX_HONEST + 1):
            with pytest.raises(InvalidSpec, match="honest reports"):
                delta(shown, n, NANO)
        with pytest.raises(InvalidSpec, match="negative"):
            delta(shown, 10, -1)
        for wrong in (-1, ATTO):
            with pytest.raises(InvalidSpec, match="delta"):
                epsilon(shown, 10, wrong)
        half = Fraction(1, 2)
        for ratio, named, both in ((half, half, half / 2), (2, 1, half), (2, half, half), (2, 2 * half / 3, -half)):
            with pytest.raises(InvalidSpec):
                Blanket(Fraction(ratio), Fraction(named), Fraction(both))


class TestHonestReports:
    def test_the_number_is_rounded_down(self) -> None:
        assert honest_reports(1000, Fraction(2, 3)) == 666
        assert honest_reports(7, Fraction(1)) == 7

    @pytest.mark.parametrize(
        ("batch", "share", "message"),
        [
            (0, 1, "min_batch must be at least 1, not 0"),
            (10, 0, "the honest share must be more than 0 and at most 1, not 0.0"),
            (10, Fraction(11, 10), "the honest share must be more than 0 and at most 1, not 1.1"),
            (10, Fraction(1, 16), "at least one honest report: increase min_batch, 10, or honest_share, 0.0625"),
        ],
    )
    def test_a_batch_without_honest_reports_is_refused(self, batch: int, share: Fraction, message: str) -> None:
        with pytest.raises(InvalidSpec, match=message):
            honest_reports(batch, Fraction(share))


class TestComposition:
    def test_overlapping_rounds_and_collections_add_up(self) -> None:
        half, whole = DRAW_SPAN // 2, DRAW_SPAN
        one = [((0, half), (3, 10)), ((half, whole), (2, 40)), ((0, whole), (1, 1))]
        assert shuffled_cost([one]) == (4, 41)  # no draw has both, but each bound covers each draw
        assert shuffled_cost([one, [((0, half), (5, 5))]]) == (9, 46)
        assert shuffled_cost([]) == (0, 0)
