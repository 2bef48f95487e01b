"""Uniform choices are exactly uniform. The tests count words and do not sample."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.privacy import entropy
from sfumato.privacy.entropy import WORD_SPAN, SystemEntropy, below, below_many, word
from tests.sfumato.replay import Exhausted, GeneratorEntropy, ReplayEntropy, distribution


def choose(bound: int, word: int) -> int | None:
    """Return the choice of `below` for one word, or None if it rejects the word."""
    try:
        return below(ReplayEntropy([word]), bound)
    except Exhausted:
        return None


class TestBelow:
    @pytest.mark.parametrize("bound", [1, 2, 3, 168, 2**32, 2**63 - 1, 2**63 + 1, 2**64 - 1, 2**64])
    def test_each_choice_has_the_same_number_of_words(self, bound: int) -> None:
        run = WORD_SPAN // bound
        for choice in {0, 1 % bound, bound // 2, bound - 1}:
            first, last = choice * run, choice * run + run - 1
            assert (choose(bound, first), choose(bound, last)) == (choice, choice)
            assert first == 0 or choose(bound, first - 1) == choice - 1
        if bound * run < WORD_SPAN:
            assert choose(bound, bound * run) is None
            assert choose(bound, WORD_SPAN - 1) is None

    @pytest.mark.parametrize("bound", [1, 3, 5, 7, 15, 16])
    def test_choices_are_uniform_in_a_space_of_16_words(self, bound: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(entropy, "WORD_SPAN", 16)

        def choose_once(words: ReplayEntropy) -> int | None:
            try:
                return below(words, bound)
            except Exhausted:
                if words.n_drawn == 0:
                    raise
                return None  # rejected

        chances = distribution(choose_once, 16)
        rejected = chances.pop(None, 0)
        assert set(chances) == set(range(bound))
        assert len(set(chances.values())) == 1
        assert rejected < 1 / 2

    def test_draws_until_a_word_is_accepted(self) -> None:
        words = ReplayEntropy([WORD_SPAN - 1, WORD_SPAN - 1, 7])
        assert below(words, 3) == 0
        assert words.n_drawn == 3


class TestBelowMany:
    @settings(max_examples=50)
    @given(st.integers(1, 2**63), st.lists(st.integers(0, WORD_SPAN - 1), min_size=1, max_size=4))
    def test_one_choice_equals_that_of_below(self, bound: int, words: list[int]) -> None:
        scalar, vector = ReplayEntropy([*words, 0]), ReplayEntropy([*words, 0])
        assert below_many(vector, bound, 1).tolist() == [below(scalar, bound)]
        assert vector.n_drawn == scalar.n_drawn

    def test_draws_again_only_for_rejected_places(self) -> None:
        last = WORD_SPAN - 1  # rejected for a bound of three
        words = ReplayEntropy([0, last, last, WORD_SPAN // 2, last, 1, WORD_SPAN // 3 * 2 + 5])
        assert below_many(words, 3, 4).tolist() == [0, 2, 0, 1]
        assert words.n_drawn == 7

    @pytest.mark.parametrize("bound", [1, 3, 169, 2**32, 2**63])
    def test_choices_lie_below_the_bound(self, bound: int) -> None:
        choices = below_many(GeneratorEntropy(1), bound, 10_000)
        assert choices.dtype == np.int64
        assert choices.min() >= 0
        assert choices.max() < bound
        assert bound == 1 or len(set(choices.tolist())) > 1
        assert below_many(ReplayEntropy([]), bound, 0).shape == (0,)


class TestSystemEntropy:
    def test_words_have_64_random_bits_and_do_not_repeat(self) -> None:
        words = SystemEntropy().words(4096)
        assert words.dtype == np.uint64
        assert len(set(words.tolist())) == 4096
        ones = (words[:, None] >> np.arange(64, dtype=np.uint64) & np.uint64(1)).sum(axis=0)
        assert (abs(ones.astype(float) - 2048) < 8 * 32).all()  # eight standard deviations
        assert word(SystemEntropy()) != word(SystemEntropy())
        assert SystemEntropy().words(0).shape == (0,)
