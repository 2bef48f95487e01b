"""Epsilon and delta as integers: parsing, formatting, rounding up, and the cost of rounds."""

from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.checks.bounds import bound_exp
from sfumato.errors import InvalidDelta, InvalidEpsilon
from sfumato.privacy.accounting import (
    ATTO,
    DELTA_MAX_ATTO,
    DELTA_MIN_ATTO,
    DRAW_SPAN,
    EPSILON_MAX_NANO,
    EPSILON_MIN_NANO,
    NANO,
    cost,
    exp_epsilon,
    format_delta,
    format_epsilon,
    parse_delta,
    parse_epsilon,
    realised_epsilon,
)

nanos = st.integers(EPSILON_MIN_NANO, EPSILON_MAX_NANO)
attos = st.just(0) | st.integers(DELTA_MIN_ATTO, DELTA_MAX_ATTO)

NOT_NUMBERS = [True, None, (0, (1,), 0), "", "one", "nan", float("nan"), float("inf"), "-Infinity", Decimal("sNaN")]
MANY_DECIMALS = Decimal("0.0005" + "0" * 34 + "1")


class TestEpsilon:
    @settings(max_examples=50)
    @given(nanos)
    def test_text_decimals_and_floats_stay_equal(self, nano: int) -> None:
        text = format_epsilon(nano)
        for written in (text, Decimal(text), nano / NANO, np.float64(nano / NANO)):  # JSON numbers are floats
            assert parse_epsilon(written) == nano

    @pytest.mark.parametrize(
        ("value", "nano"),
        [(1, NANO), (32, 32 * NANO), ("0.000001", 1000), (1e-6, 1000), (0.1, NANO // 10), ("1.50", 1_500_000_000)],
    )
    def test_parses_typed_numbers(self, value: int | float | str, nano: int) -> None:
        assert parse_epsilon(value) == nano

    @pytest.mark.parametrize(
        "value",
        [
            *NOT_NUMBERS,
            0,
            -1,
            32.000000001,
            "0.0000009",
            "0.1234567891",
            0.1 + 0.2,
            MANY_DECIMALS,
            "0.5" + "0" * 62,
            " 1",
            "1_0",
            "\u0661",
        ],
    )
    def test_refuses_other_values(self, value: object) -> None:
        with pytest.raises(InvalidEpsilon):
            parse_epsilon(value)  # type: ignore[arg-type]

    def test_ignores_the_decimal_precision_of_the_caller(self) -> None:
        with localcontext() as context:
            context.prec = 3
            assert parse_epsilon("1.123456789") == 1_123_456_789
            with pytest.raises(InvalidEpsilon):
                parse_epsilon("1.1234567891")

    @pytest.mark.parametrize(
        ("nano", "text"),
        [(0, "0"), (1, "0.000000001"), (1_500_000_000, "1.5"), (-250_000_000, "-0.25"), (10 * NANO, "10")],
    )
    def test_formats_plain_decimals(self, nano: int, text: str) -> None:
        assert format_epsilon(nano) == text


class TestDelta:
    @settings(max_examples=50)
    @given(attos)
    def test_text_decimals_and_floats_stay_equal(self, atto: int) -> None:
        text = format_delta(atto)
        for written in (text, Decimal(text), atto / ATTO, np.float64(atto / ATTO)):
            assert parse_delta(written) == atto

    @pytest.mark.parametrize(
        ("value", "atto"),
        [
            (-0.0, 0),
            ("0.000", 0),
            (1e-6, 10**12),
            ("1e-6", 10**12),
            (1e-15, 1000),
            (1e-3, 10**15),
            ("0.000000000000001001", 1001),
            ("1.50e-9", 1_500_000_000),
        ],
    )
    def test_parses_typed_numbers(self, value: float | str, atto: int) -> None:
        assert parse_delta(value) == atto

    @pytest.mark.parametrize(
        "value",
        [*NOT_NUMBERS, -1e-6, 9.99e-16, 0.0010000000000000002, 1, 1e-6 / 3, "1e-99999999", MANY_DECIMALS],
    )
    def test_refuses_other_values(self, value: object) -> None:
        with pytest.raises(InvalidDelta):
            parse_delta(value)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("atto", "text"),
        [
            (0, "0"),
            (1, "1e-18"),
            (-200_000_000_000, "-2e-7"),
            (1_500_000_000_000, "1.5e-6"),
            (999_999_999_999_999, "9.99999999999999e-4"),
            (10**15 + 1000, "1.000000000001e-3"),
            (ATTO, "1"),
            (12 * ATTO, "1.2e1"),
        ],
    )
    def test_formats_powers_of_ten(self, atto: int, text: str) -> None:
        assert format_delta(atto) == text


class TestRatios:
    @settings(max_examples=30)
    @given(nanos)
    def test_exp_epsilon_is_just_below_the_power(self, nano: int) -> None:
        low, high = bound_exp(Fraction(nano, NANO))
        assert low * (1 - Fraction(1, 10**75)) < exp_epsilon(nano) < high

    @settings(max_examples=60)
    @given(
        st.tuples(st.integers(1, 10**6), st.integers(1, 10**6))
        | st.tuples(st.integers(2**63, 2**64), st.integers(1, 2**64))
    )
    def test_the_cost_is_the_least_integer_that_covers_the_ratio(self, parts: tuple[int, int]) -> None:
        ratio = Fraction(max(parts), min(parts))
        nano = realised_epsilon(ratio)
        assert bound_exp(Fraction(nano, NANO))[0] >= ratio or nano == 0 == ratio - 1
        if nano > 0:
            assert bound_exp(Fraction(nano - 1, NANO))[1] < ratio

    def test_only_a_constant_channel_is_free(self) -> None:
        assert realised_epsilon(Fraction(1)) == 0
        assert realised_epsilon(Fraction(2**64 + 1, 2**64)) == 1
        with pytest.raises(InvalidEpsilon):
            realised_epsilon(Fraction(1, 2))


spans = st.tuples(st.integers(0, 12), st.integers(0, 12)).filter(lambda ends: ends[0] < ends[1])


class TestRounds:
    @settings(max_examples=50)
    @given(st.lists(st.tuples(spans, st.integers(0, 100)), max_size=8))
    def test_the_cost_is_the_largest_cost_of_a_draw(self, rounds: list[tuple[tuple[int, int], int]]) -> None:
        assert cost(rounds) == max(sum(epsilon for (lo, hi), epsilon in rounds if lo <= x < hi) for x in range(12))

    def test_disjoint_rounds_cost_the_largest_and_overlapping_rounds_the_sum(self) -> None:
        half = DRAW_SPAN // 2
        assert cost([((0, half), 3), ((half, DRAW_SPAN), 5)]) == 5
        assert cost([((0, half + 1), 3), ((half, DRAW_SPAN), 5)]) == 8
        assert cost([]) == 0
