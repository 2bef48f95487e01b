"""Entropy that replays given words, and the exact distribution over all words of a small space."""

from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")


class Exhausted(Exception):
    """A caller drew more words than there are."""


class ReplayEntropy:
    """A source of the given words, in order."""

    def __init__(self, words: Iterable[int]) -> None:
        self._words = list(words)
        self.n_drawn = 0

    def words(self, n: int) -> NDArray[np.uint64]:
        if self.n_drawn + n > len(self._words):
            raise Exhausted
        self.n_drawn += n
        return np.array(self._words[self.n_drawn - n : self.n_drawn], dtype=np.uint64)


class GeneratorEntropy:
    """A source of words of a seeded generator, with a count of the words drawn."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)
        self.n_drawn = 0

    def words(self, n: int) -> NDArray[np.uint64]:
        self.n_drawn += n
        return self._generator.integers(0, 1 << 64, size=n, dtype=np.uint64)


def distribution(toss: Callable[[ReplayEntropy], T], word_span: int) -> dict[T, Fraction]:
    """Return the exact distribution of `toss` over all sequences of words below `word_span`."""
    chances: dict[T, Fraction] = {}
    for outcome, chance in _outcomes(toss, word_span, ()):
        chances[outcome] = chances.get(outcome, Fraction(0)) + chance
    return chances


def _outcomes(
    toss: Callable[[ReplayEntropy], T], word_span: int, prefix: tuple[int, ...]
) -> Iterator[tuple[T, Fraction]]:
    try:
        outcome = toss(ReplayEntropy(prefix))
    except Exhausted:
        for word in range(word_span):
            yield from _outcomes(toss, word_span, (*prefix, word))
    else:
        yield outcome, Fraction(1, word_span ** len(prefix))
