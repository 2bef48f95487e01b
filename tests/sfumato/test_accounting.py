"""Epsilon as integers: reading, writing, rounding up, and what rounds cost together."""

from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.exact_exponential import exp_bounds
from sfumato.accounting import (
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
from sfumato.errors import InvalidDelta, InvalidEpsilon

nanos = st.integers(EPSILON_MIN_NANO, EPSILON_MAX_NANO)


class TestParseEpsilon:
    @settings(deadline=None)
    @given(nanos)
    def test_text_decimals_and_floats_read_back_as_they_were_written(self, nano: int) -> None:
        text = format_epsilon(nano)
        assert parse_epsilon(text) == nano
        assert parse_epsilon(Decimal(text)) == nano
        assert parse_epsilon(nano / NANO) == nano  # as the service writes it: a JSON number
        assert parse_epsilon(np.float64(nano / NANO)) == nano

    @pytest.mark.parametrize(
        ("value", "nano"),
        [(1, NANO), (32, 32 * NANO), ("0.000001", 1000), (1e-6, 1000), (0.1, NANO // 10), ("1.50", 1_500_000_000)],
    )
    def test_reads_what_a_person_would_type(self, value: int | float | str, nano: int) -> None:
        assert parse_epsilon(value) == nano

    @pytest.mark.parametrize(
        "value",
        [
            True,
            False,
            None,
            (0, (1,), 0),
            [1],
            "",
            "one",
            "nan",
            float("nan"),
            float("inf"),
            "-Infinity",
            Decimal("sNaN"),
            0,
            0.0,
            -1,
            "-0.5",
            33,
            32.000000001,
            "1e99",
            1e-7,
            "0.0000009",
            "0.1234567891",
            0.1 + 0.2,
            "1." + "0" * 40 + "1",
            Decimal("1." + "0" * 40 + "1"),
            "1" * 65,
            "0.5" + "0" * 100,
        ],
    )
    def test_refuses_what_is_no_epsilon(self, value: object) -> None:
        with pytest.raises(InvalidEpsilon):
            parse_epsilon(value)  # type: ignore[arg-type]

    def test_the_callers_decimal_precision_changes_nothing(self) -> None:
        with localcontext() as context:
            context.prec = 3
            assert parse_epsilon("1.123456789") == 1_123_456_789
            with pytest.raises(InvalidEpsilon):
                parse_epsilon("1.1234567891")

    @pytest.mark.parametrize(
        ("nano", "text"),
        [(0, "0"), (1, "0.000000001"), (1_500_000_000, "1.5"), (-250_000_000, "-0.25"), (10 * NANO, "10")],
    )
    def test_writes_plain_decimals(self, nano: int, text: str) -> None:
        assert format_epsilon(nano) == text


class TestParseDelta:
    @settings(deadline=None)
    @given(st.one_of(st.just(0), st.integers(DELTA_MIN_ATTO, DELTA_MAX_ATTO)))
    def test_text_decimals_and_floats_read_back_as_they_were_written(self, atto: int) -> None:
        text = format_delta(atto)
        assert parse_delta(text) == atto
        assert parse_delta(Decimal(text)) == atto
        assert parse_delta(atto / ATTO) == atto  # as the service writes it: a JSON number
        assert parse_delta(np.float64(atto / ATTO)) == atto

    @pytest.mark.parametrize(
        ("value", "atto"),
        [
            (0, 0),
            (0.0, 0),
            (-0.0, 0),
            ("0.000", 0),
            (1e-6, 10**12),
            ("0.000001", 10**12),
            ("1e-6", 10**12),
            (1e-15, 1000),
            (1e-3, 10**15),
            ("0.000000000000001001", 1001),
            ("1.50e-9", 1_500_000_000),
        ],
    )
    def test_reads_what_a_person_would_type(self, value: float | str, atto: int) -> None:
        assert parse_delta(value) == atto

    @pytest.mark.parametrize(
        "value",
        [
            True,
            False,
            None,
            [0],
            "",
            "none",
            "nan",
            float("nan"),
            float("inf"),
            Decimal("sNaN"),
            -1e-6,
            "-0.5",
            1e-16,
            "0.000000000000000999",
            0.0010000000000000002,
            "0.001000000000000001",
            1,
            0.1,
            "1e-99999999",
            "0.0000010000000000001",
            1e-6 / 3,
            Decimal("0.000001" + "0" * 34 + "1"),
            "0." + "0" * 63,
        ],
    )
    def test_refuses_what_is_no_delta(self, value: object) -> None:
        with pytest.raises(InvalidDelta):
            parse_delta(value)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("atto", "text"),
        [
            (0, "0"),
            (1, "1e-18"),
            (10**12, "1e-6"),
            (1_500_000_000_000, "1.5e-6"),
            (-200_000_000_000, "-2e-7"),
            (999_999_999_999_999, "9.99999999999999e-4"),
            (10**15 + 1000, "1.000000000001e-3"),
            (ATTO, "1"),
            (12 * ATTO, "1.2e1"),
        ],
    )
    def test_writes_powers_of_ten(self, atto: int, text: str) -> None:
        assert format_delta(atto) == text
        assert Decimal(text) * ATTO == atto


class TestExpEpsilon:
    @settings(deadline=None, max_examples=50)
    @given(nanos)
    def test_lies_just_below_the_true_power(self, nano: int) -> None:
        low, high = exp_bounds(Fraction(nano, NANO))
        mine = exp_epsilon(nano)
        assert mine < high
        assert mine > low * (1 - Fraction(1, 10**75))


class TestRealisedEpsilon:
    @settings(deadline=None, max_examples=100)
    @given(
        st.one_of(
            st.tuples(st.integers(1, 10**6), st.integers(1, 10**6)),
            st.tuples(st.integers(2**63, 2**64), st.integers(1, 2**64)),
        )
    )
    def test_is_the_least_integer_that_covers_the_ratio(self, parts: tuple[int, int]) -> None:
        ratio = Fraction(max(parts), min(parts))
        nano = realised_epsilon(ratio)
        assert exp_bounds(Fraction(nano, NANO))[0] >= ratio or nano == 0 == ratio - 1
        if nano > 0:
            assert exp_bounds(Fraction(nano - 1, NANO))[1] < ratio

    def test_a_channel_that_says_nothing_costs_nothing(self) -> None:
        assert realised_epsilon(Fraction(1)) == 0

    def test_the_least_inequality_costs_something(self) -> None:
        assert realised_epsilon(Fraction(2**64 + 1, 2**64)) == 1

    def test_refuses_a_ratio_below_one(self) -> None:
        with pytest.raises(InvalidEpsilon):
            realised_epsilon(Fraction(1, 2))


spans = st.tuples(st.integers(0, 12), st.integers(0, 12)).filter(lambda ends: ends[0] < ends[1])


class TestCost:
    @settings(deadline=None)
    @given(st.lists(st.tuples(spans, st.integers(0, 100)), max_size=8))
    def test_is_the_most_that_any_one_draw_pays(self, rounds: list[tuple[tuple[int, int], int]]) -> None:
        brute = max(sum(epsilon for (lo, hi), epsilon in rounds if lo <= draw < hi) for draw in range(12))
        assert cost(rounds) == brute

    def test_rounds_side_by_side_cost_the_dearest_and_overlapping_ones_the_sum(self) -> None:
        half = DRAW_SPAN // 2
        assert cost([((0, half), 3), ((half, DRAW_SPAN), 5)]) == 5
        assert cost([((0, half + 1), 3), ((half, DRAW_SPAN), 5)]) == 8
        assert cost([]) == 0
