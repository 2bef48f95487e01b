"""Dividing an epsilon: nothing lost, nothing made, in proportion to the nano, and refused where it cannot be."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustering.central.budget import halving, split
from sfumato.accounting import NANO
from sfumato.errors import InvalidSpec

weights = st.lists(st.integers(1, 1000) | st.fractions(Fraction(1, 50), 50), min_size=1, max_size=40)


class TestSplit:
    @given(st.integers(10**9, 32 * NANO), weights)
    def test_parts_add_up_and_are_in_proportion(self, epsilon_nano: int, given_weights: list[Fraction]) -> None:
        parts = split(epsilon_nano, *given_weights)
        assert sum(parts) == epsilon_nano
        for part, weight in zip(parts, given_weights, strict=True):
            assert abs(part - Fraction(epsilon_nano) * weight / sum(given_weights)) < 1

    def test_less_than_a_nano_is_refused(self) -> None:
        assert split(3, 1, 1, 1) == (1, 1, 1)
        with pytest.raises(InvalidSpec, match="too small"):
            split(2, 1, 1, 1)


class TestHalving:
    @given(st.integers(10**9, 32 * NANO), st.integers(1, 20))
    def test_each_step_has_half_of_what_is_left_and_the_last_all_of_it(self, epsilon_nano: int, steps: int) -> None:
        parts = halving(epsilon_nano, steps)
        assert len(parts) == steps
        assert sum(parts) == epsilon_nano
        left = epsilon_nano
        for part in parts[:-1]:
            assert part == pytest.approx(left / 2, abs=2)
            left -= part
        assert parts[-1] == left
