"""Symbolic words: distributions of small programs, rejected words, and programs that cannot be enumerated."""

from fractions import Fraction

import numpy as np
import pytest

from audit.mechanisms.symbolic_random import NotEnumerable, exact_distribution
from sfumato.privacy.entropy import WORD_SPAN, below, below_many, word

HALF = WORD_SPAN // 2


class TestDistributions:
    def test_a_comparison_has_its_exact_probability(self) -> None:
        distribution = exact_distribution(lambda path: word(path) < 3)
        assert distribution.probabilities == {True: Fraction(3, WORD_SPAN), False: 1 - Fraction(3, WORD_SPAN)}
        assert distribution.unexplored == 0

    @pytest.mark.parametrize(("bound", "n_words"), [(HALF, HALF), (HALF + 1, HALF + 1)])
    def test_at_most_and_below_differ_by_one_word(self, bound: int, n_words: int) -> None:
        programs = {
            True: (lambda path: bool(word(path) < bound), lambda path: not word(path) >= bound),
            False: (lambda path: bool(word(path) <= bound), lambda path: not word(path) > bound),
        }
        for excludes, pair in programs.items():
            for program in pair:
                chance = exact_distribution(program).probabilities[True]
                assert chance == Fraction(n_words + (not excludes), WORD_SPAN)

    def test_later_comparisons_of_a_word_agree_with_earlier_ones(self) -> None:
        def program(path):
            drawn = word(path)
            return (bool(drawn < HALF), bool(drawn < HALF // 2), bool(drawn < HALF))

        probabilities = {(True, True, True): Fraction(1, 4), (True, False, True): Fraction(1, 4)}
        assert exact_distribution(program).probabilities == probabilities | {(False, False, False): Fraction(1, 2)}

    @pytest.mark.parametrize("bound", [1, 2, 3, 7, 100])
    def test_choices_are_uniform_although_some_words_are_rejected(self, bound: int) -> None:
        for choose in (below, lambda path, bound: below_many(path, bound, 1)[0]):
            distribution = exact_distribution(lambda path, choose=choose: int(choose(path, bound)))
            assert distribution.probabilities == dict.fromkeys(range(bound), Fraction(1, bound))
            assert distribution.unexplored < Fraction(bound, WORD_SPAN) ** 2 * 2

    def test_a_remainder_is_biased_to_small_choices(self) -> None:
        distribution = exact_distribution(lambda path: word(path) % 3)
        third = WORD_SPAN // 3  # with a remainder of 1
        assert distribution.probabilities == {i: Fraction(third + (i == 0), WORD_SPAN) for i in range(3)}

    def test_arrays_of_words_are_independent(self) -> None:
        distribution = exact_distribution(lambda path: tuple((path.words(2) < np.uint64(HALF // 2)).tolist()))
        assert distribution.probabilities[(True, True)] == Fraction(1, 16)
        assert distribution.probabilities[(True, False)] == distribution.probabilities[(False, True)] == Fraction(3, 16)

    def test_a_program_that_depends_on_a_rejected_word_has_another_distribution(self) -> None:
        def program(path):
            first = word(path) < WORD_SPAN - 1
            return bool(word(path) < (HALF if first else HALF // 2))

        rare = Fraction(1, WORD_SPAN)
        assert exact_distribution(program).probabilities[True] == (1 - rare) / 2 + rare / 4

    def test_paths_below_the_minimum_count_as_unexplored(self) -> None:
        def program(path):
            n = 0
            while word(path) < HALF:
                n += 1
            return n

        distribution = exact_distribution(program, Fraction(1, 1 << 10))
        assert distribution.unexplored == Fraction(1, 1 << 10)
        assert [distribution.probabilities[n] for n in range(4)] == [Fraction(1, 2 << n) for n in range(4)]

    def test_whole_words_in_the_output_are_interchangeable(self) -> None:
        distribution = exact_distribution(lambda path: b"".join(word(path).to_bytes(8, "little") for _ in range(2)))
        assert distribution.n_paths == 1


class TestNotEnumerable:
    @pytest.mark.parametrize(
        "program",
        [
            lambda path: float(word(path)),
            lambda path: word(path) + 1,
            lambda path: word(path) & 7,
            lambda path: word(path) ^ 7,
            lambda path: word(path) * 3,
            lambda path: (word(path) >> 11) * 2.0**-53,
            lambda path: path.words(3).astype(np.float64).sum(),
            lambda path: [drawn.to_bytes(8, "little") for drawn in [word(path)] for _ in range(2)],
        ],
    )
    def test_use_of_a_whole_word_is_rejected(self, program) -> None:
        with pytest.raises(NotEnumerable):
            exact_distribution(program)

    def test_an_endless_path_is_rejected(self) -> None:
        def program(path):
            while word(path) < HALF:
                pass
            return 0

        with pytest.raises(NotEnumerable, match="does not end"):
            exact_distribution(program)
