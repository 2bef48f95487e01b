"""Words nobody knows: laws of small tosses, what is drawn again, and what no interval says."""

from fractions import Fraction

import numpy as np
import pytest

from audit.exact_words import NotEnumerable, exact_law
from sfumato.entropy import WORD_SPAN, below, below_many, word

HALF = WORD_SPAN // 2


class TestLaws:
    def test_a_comparison_falls_as_often_as_words_lie_below(self) -> None:
        law = exact_law(lambda way: word(way) < 3)
        assert law.chances == {True: Fraction(3, WORD_SPAN), False: 1 - Fraction(3, WORD_SPAN)}
        assert law.unseen == 0

    @pytest.mark.parametrize(("bound", "n_words"), [(HALF, HALF), (HALF + 1, HALF + 1)])
    def test_at_most_and_below_differ_by_one_word(self, bound: int, n_words: int) -> None:
        assert exact_law(lambda way: bool(word(way) < bound)).chances[True] == Fraction(n_words, WORD_SPAN)
        assert exact_law(lambda way: bool(word(way) <= bound)).chances[True] == Fraction(n_words + 1, WORD_SPAN)
        assert exact_law(lambda way: bool(word(way) >= bound)).chances[False] == Fraction(n_words, WORD_SPAN)
        assert exact_law(lambda way: bool(word(way) > bound)).chances[False] == Fraction(n_words + 1, WORD_SPAN)

    def test_what_was_found_out_of_a_word_is_remembered(self) -> None:
        def toss(way):
            drawn = word(way)
            return (bool(drawn < HALF), bool(drawn < HALF // 2), bool(drawn < HALF))

        chances = {(True, True, True): Fraction(1, 4), (True, False, True): Fraction(1, 4)}
        assert exact_law(toss).chances == chances | {(False, False, False): Fraction(1, 2)}

    @pytest.mark.parametrize("bound", [1, 2, 3, 7, 100])
    def test_choices_are_alike_though_some_words_are_drawn_again(self, bound: int) -> None:
        for choose in (below, lambda way, bound: below_many(way, bound, 1)[0]):
            law = exact_law(lambda way, choose=choose: int(choose(way, bound)))
            assert law.chances == dict.fromkeys(range(bound), Fraction(1, bound))
            assert law.unseen < Fraction(bound, WORD_SPAN) ** 2 * 2

    def test_a_remainder_favours_small_choices(self) -> None:
        law = exact_law(lambda way: word(way) % 3)
        third, more = divmod(WORD_SPAN, 3)
        assert more == 1
        assert law.chances == {
            0: Fraction(third + 1, WORD_SPAN),
            1: Fraction(third, WORD_SPAN),
            2: Fraction(third, WORD_SPAN),
        }

    def test_arrays_of_words_are_independent(self) -> None:
        law = exact_law(lambda way: tuple((way.words(2) < np.uint64(HALF // 2)).tolist()))
        assert law.chances[(True, True)] == Fraction(1, 16)
        assert law.chances[(True, False)] == law.chances[(False, True)] == Fraction(3, 16)

    def test_who_remembers_a_word_that_was_drawn_again_has_another_law(self) -> None:
        def toss(way):
            first = word(way) < WORD_SPAN - 1
            return bool(word(way) < (HALF if first else HALF // 2))

        rare = Fraction(1, WORD_SPAN)
        assert exact_law(toss).chances[True] == (1 - rare) / 2 + rare / 4

    def test_ways_that_are_too_rare_are_counted(self) -> None:
        def toss(way):
            n = 0
            while word(way) < HALF:
                n += 1
            return n

        law = exact_law(toss, Fraction(1, 1 << 10))
        assert law.unseen == Fraction(1, 1 << 10)
        assert [law.chances[n] for n in range(4)] == [Fraction(1, 2 << n) for n in range(4)]

    def test_whole_words_that_nothing_else_is_made_of_are_names(self) -> None:
        law = exact_law(lambda way: b"".join(word(way).to_bytes(8, "little") for _ in range(2)))
        assert law.n_ways == 1


class TestWhatNoIntervalSays:
    @pytest.mark.parametrize(
        "toss",
        [
            lambda way: float(word(way)),
            lambda way: word(way) + 1,
            lambda way: word(way) & 7,
            lambda way: word(way) ^ 7,
            lambda way: word(way) * 3,
            lambda way: (word(way) >> 11) * 2.0**-53,
            lambda way: way.words(3).astype(np.float64).sum(),
            lambda way: [drawn.to_bytes(8, "little") for drawn in [word(way)] for _ in range(2)],
        ],
    )
    def test_is_refused(self, toss) -> None:
        with pytest.raises(NotEnumerable):
            exact_law(toss)

    def test_a_way_without_an_end_is_refused(self) -> None:
        def toss(way):
            while word(way) < HALF:
                pass
            return 0

        with pytest.raises(NotEnumerable, match="does not end"):
            exact_law(toss)
