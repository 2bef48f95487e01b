"""Uniform choices are exactly uniform: by counting words, not by sampling."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato import entropy
from sfumato.entropy import WORD_SPAN, SystemEntropy, below, below_many, word
from tests.sfumato.replay import Exhausted, GeneratorEntropy, ReplayEntropy, distribution

EXTREME_BOUNDS = [1, 2, 3, 5, 100, 168, 2**31 + 1, 2**32, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 1, 2**64]


def _accepted(bound: int, first: int) -> int | None:
    """What `below` makes of one word; None where it draws again."""
    try:
        return below(ReplayEntropy([first]), bound)
    except Exhausted:
        return None


class TestBelow:
    @pytest.mark.parametrize("bound", EXTREME_BOUNDS)
    def test_every_choice_owns_as_many_words_and_the_rest_is_drawn_again(self, bound: int) -> None:
        run = WORD_SPAN // bound
        for choice in {0, 1 % bound, bound // 2, bound - 1}:
            first, last = choice * run, choice * run + run - 1
            assert _accepted(bound, first) == choice
            assert _accepted(bound, last) == choice
            assert first == 0 or _accepted(bound, first - 1) == choice - 1
        if bound * run < WORD_SPAN:
            assert _accepted(bound, bound * run) is None
            assert _accepted(bound, WORD_SPAN - 1) is None

    def test_a_remainder_would_favour_small_choices_where_this_does_not(self) -> None:
        bound = 2**63 + 1  # by remainder, all but two choices would have two words and those one
        assert _accepted(bound, bound) is None
        assert _accepted(bound, WORD_SPAN - 1) is None
        assert _accepted(bound, bound - 1) == bound - 1

    @pytest.mark.parametrize("bound", [1, 2, 3, 5, 7, 15, 16])
    def test_in_a_space_of_sixteen_words_all_choices_are_alike(
        self, bound: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(entropy, "WORD_SPAN", 16)

        def once(words: ReplayEntropy) -> int | None:
            try:
                return below(words, bound)
            except Exhausted:
                if words.n_drawn == 0:
                    raise
                return None  # drawn again

        chances = distribution(once, 16)
        again = chances.pop(None, 0)
        assert set(chances) == set(range(bound))
        assert len(set(chances.values())) == 1
        assert again < 1 / 2

    def test_a_rejected_word_is_drawn_again_until_one_is_accepted(self) -> None:
        words = ReplayEntropy([WORD_SPAN - 1, WORD_SPAN - 1, 7])
        assert below(words, 3) == 0
        assert words.n_drawn == 3


class TestBelowMany:
    @settings(deadline=None)
    @given(st.integers(1, 2**63), st.lists(st.integers(0, WORD_SPAN - 1), min_size=1, max_size=4))
    def test_one_draw_is_what_below_draws_from_the_same_words(self, bound: int, words: list[int]) -> None:
        scalar, vector = ReplayEntropy([*words, 0]), ReplayEntropy([*words, 0])
        assert below_many(vector, bound, 1).tolist() == [below(scalar, bound)]
        assert vector.n_drawn == scalar.n_drawn

    def test_rejected_places_alone_are_drawn_again(self) -> None:
        top = WORD_SPAN - 1  # rejected for three
        words = ReplayEntropy([0, top, top, WORD_SPAN // 2, top, 1, WORD_SPAN // 3 * 2 + 5])
        assert below_many(words, 3, 4).tolist() == [0, 2, 0, 1]
        assert words.n_drawn == 7

    def test_nobody_draws_nothing(self) -> None:
        words = ReplayEntropy([])
        for bound in (1, 2, 3):
            assert below_many(words, bound, 0).shape == (0,)

    @pytest.mark.parametrize("bound", [1, 2, 169, 2**32, 2**63])
    def test_choices_lie_below_the_bound(self, bound: int) -> None:
        choices = below_many(GeneratorEntropy(1), bound, 10_000)
        assert choices.dtype == np.int64
        assert choices.min() >= 0
        assert choices.max() < bound
        assert bound == 1 or len(set(choices.tolist())) > 1


class TestSystemEntropy:
    def test_words_are_of_all_64_bits_and_do_not_repeat(self) -> None:
        words = SystemEntropy().words(4096)
        assert words.dtype == np.uint64
        assert len(set(words.tolist())) == 4096
        ones = (words[:, None] >> np.arange(64, dtype=np.uint64) & np.uint64(1)).sum(axis=0)
        assert (abs(ones.astype(float) - 2048) < 8 * 32).all()  # eight standard deviations

    def test_two_of_them_tell_different_words(self) -> None:
        assert word(SystemEntropy()) != word(SystemEntropy())
        assert SystemEntropy().words(0).shape == (0,)
