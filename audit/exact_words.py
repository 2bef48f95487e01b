"""The exact law of code that draws words: every way the words can fall, by the intervals that matter to it.

The real code runs over an entropy whose words are unknown. A word says nothing of itself but
what it is asked: whether it lies below a number (then both answers are followed, each with its
exact chance), which of equal runs it falls in, which remainder it leaves. So what comes out is
the law of the code that is shipped, in fractions, and no formula of anybody's.
"""

import operator
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from fractions import Fraction
from typing import Any, Generic, NamedTuple, NoReturn, SupportsIndex, TypeVar, cast
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

import clustering.noise
import sfumato.device
import sfumato.entropy
from sfumato.entropy import WORD_SPAN, Entropy

T = TypeVar("T", bound=Hashable)

RARE = Fraction(1, 1 << 32)  # a branch below this is taken once on a way: it is a word that is drawn again
MOST_VALUES = 1 << 12  # of more values than that, some are followed

_MOST_DECISIONS = 200  # on one way

_SOME = (0.1, 0.61803)  # which: as shares of all of them


class NotEnumerable(Exception):
    """No finite number of intervals says what comes of the words: a whole word was looked at, or no way ends."""


class Open(Exception):
    """A decision that the way so far leaves open.

    Attributes
    ----------
    chances : tuple of Fraction
        Of each branch, of sum one.
    """

    def __init__(self, chances: tuple[Fraction, ...]) -> None:
        super().__init__(f"one of {len(chances)} branches")
        self.chances = chances


class Again(Exception):
    """A loop begins anew, by `Way.loop`."""


class Way:
    """One way down the tree of decisions: an Entropy. What the way leaves open raises `Open`."""

    def __init__(self, branches: Sequence[int]) -> None:
        self._branches = branches
        self._place = 0
        self.n_opaque = 0
        self.n_loops = 0
        self.most_loops = 0

    def words(self, n: int) -> NDArray[np.uint64]:
        """Draw `n` words of which nothing is known: an array of `Drawn`, for all that its type says."""
        drawn = np.empty(n, dtype=object)
        for i in range(n):
            drawn[i] = Drawn(_Word(self), 1)
        return cast(NDArray[np.uint64], drawn)

    def choose(self, chances: Sequence[Fraction]) -> int:
        """Which branch the way takes; where all but one are impossible, nothing is decided."""
        certain = [i for i, chance in enumerate(chances) if chance == 1]
        if certain:
            return certain[0]
        if self._place == len(self._branches):
            raise Open(tuple(chances))
        self._place += 1
        return self._branches[self._place - 1]

    def coin(self, chance: Fraction) -> bool:
        """Heads with this chance."""
        return self.choose((chance, 1 - chance)) == 0

    def begin(self) -> None:
        """A loop that draws until something is kept begins."""
        self.n_loops = 0

    def loop(self) -> None:
        """One more turn of it: `Again` where it is one more than `most_loops` allows."""
        self.n_loops += 1
        if self.n_loops > self.most_loops + 1:
            raise Again


class _Word:
    """What is known of one word: that it lies in lo .. hi-1, uniformly."""

    __slots__ = ("hi", "is_told", "lo", "way")

    def __init__(self, way: Way) -> None:
        self.way = way
        self.lo, self.hi = 0, WORD_SPAN
        self.is_told = False  # its remainder is known, or it was handed out as it is


class Drawn:
    """floor(word / run): compared with numbers, it branches; used as a number, it becomes one."""

    __slots__ = ("_run", "_word")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, word: _Word, run: int) -> None:
        self._word = word
        self._run = run

    def __deepcopy__(self, _memo: object) -> "Drawn":
        return self  # what is found out of a copy is found out of the word

    def _is_below(self, bound: int) -> bool:
        word = self._word
        if word.is_told:
            raise NotEnumerable("a word is looked at again after its remainder was taken")
        cut = min(max(bound * self._run, word.lo), word.hi)
        chance = Fraction(cut - word.lo, word.hi - word.lo)
        is_below = word.way.coin(chance)
        word.lo, word.hi = (word.lo, cut) if is_below else (cut, word.hi)
        return is_below

    def __lt__(self, bound: SupportsIndex) -> bool:
        return self._is_below(operator.index(bound))

    def __ge__(self, bound: SupportsIndex) -> bool:
        return not self._is_below(operator.index(bound))

    def __le__(self, bound: SupportsIndex) -> bool:
        return self._is_below(operator.index(bound) + 1)

    def __gt__(self, bound: SupportsIndex) -> bool:
        return not self._is_below(operator.index(bound) + 1)

    def __eq__(self, other: object) -> bool:
        value = operator.index(cast(SupportsIndex, other))
        return self._is_below(value + 1) and not self._is_below(value)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __floordiv__(self, run: SupportsIndex) -> "Drawn":
        return Drawn(self._word, self._run * operator.index(run))

    def __mod__(self, modulus: SupportsIndex) -> int:
        word, by = self._word, operator.index(modulus)
        if self._run != 1 or word.is_told:
            return int(self) % by
        if by > MOST_VALUES:
            raise NotEnumerable(f"a remainder by {by}")
        n_below = [[(end - rest + by - 1) // by for rest in range(by)] for end in (word.lo, word.hi)]
        span = word.hi - word.lo
        rest = word.way.choose([Fraction(high - low, span) for low, high in zip(*n_below, strict=True)])
        word.is_told = True
        return rest

    def __index__(self) -> int:
        """Its value: every one is followed, or some where there are too many."""
        word, run = self._word, self._run
        if word.is_told:
            raise NotEnumerable("a word is used twice")
        first, last = word.lo // run, (word.hi - 1) // run
        n_values = last - first + 1
        if n_values > MOST_VALUES:
            if run < 1 << 16:
                raise NotEnumerable("a number is made of all bits of a word")
            values = sorted({first + int(share * (n_values - 1)) for share in _SOME})
        else:
            values = list(range(first, last + 1))
        sizes = [min(word.hi, (value + 1) * run) - max(word.lo, value * run) for value in values]
        value = values[word.way.choose([Fraction(size, sum(sizes)) for size in sizes])]
        word.lo, word.hi = max(word.lo, value * run), min(word.hi, (value + 1) * run)
        return value

    __int__ = __index__

    def __float__(self) -> NoReturn:
        raise NotEnumerable("a float is made of a word")

    def to_bytes(self, length: int, byteorder: Any) -> bytes:
        """A whole word that nothing else was made of: any name will do, so it gets the next."""
        word = self._word
        if (self._run, word.lo, word.hi) != (1, 0, WORD_SPAN) or word.is_told:
            return int(self).to_bytes(length, byteorder)
        word.is_told = True
        word.way.n_opaque += 1
        return word.way.n_opaque.to_bytes(length, byteorder)

    def __add__(self, other: Any) -> Any:
        return int(self) + other

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return int(self) - other

    def __mul__(self, other: Any) -> Any:
        return int(self) * other

    __rmul__ = __mul__

    def __and__(self, other: Any) -> Any:
        return int(self) & other

    __rand__ = __and__

    def __xor__(self, other: Any) -> Any:
        return int(self) ^ other

    __rxor__ = __xor__

    def __rshift__(self, other: Any) -> Any:
        return int(self) >> other


class Law(NamedTuple, Generic[T]):
    """The law of what comes out.

    Attributes
    ----------
    chances : dict
        Of each outcome, in fractions.
    n_ways : int
        Followed to their end.
    unseen : Fraction
        The chance that is left out: at most so much lies elsewhere.
    again : Fraction
        The chance of ways that began a loop anew.
    """

    chances: dict[T, Fraction]
    n_ways: int
    unseen: Fraction
    again: Fraction


class Walk(Generic[T]):
    """Follows every way of one toss.

    Parameters
    ----------
    toss : callable of an Entropy
        What is looked into; run once for every decision on every way.
    least : Fraction
        A way less likely than this is given up, and counted as unseen.
    loops : int
        How often a loop may begin anew (`Way.loop`).
    """

    def __init__(self, toss: Callable[[Way], T], least: Fraction = Fraction(0), loops: int = 0) -> None:
        self._toss = toss
        self._least = least
        self._loops = loops
        self._n_ways = 0
        self._unseen = Fraction(0)
        self._followed: set[tuple[int, tuple[Fraction, ...]]] = set()

    def law(self) -> Law[T]:
        """All of it."""
        chances = self._below((), Fraction(1), Fraction(1), True)
        again = chances.pop(_AGAIN, Fraction(0))
        return Law(cast(dict[T, Fraction], chances), self._n_ways, self._unseen, again)

    def _below(
        self, branches: tuple[int, ...], chance: Fraction, real: Fraction, is_rare_left: bool
    ) -> dict[Hashable, Fraction]:
        """The law of what comes of these branches, of sum one but for what is unseen.

        `chance` decides where a way is given up: that of the ways, did no rare branch lie on
        it, so that the law behind a rare branch is cut off as the one beside it is. `real` is
        the chance itself.
        """
        if chance < self._least:
            self._unseen += real
            return {}
        if len(branches) > _MOST_DECISIONS:
            raise NotEnumerable("a way does not end")
        way = Way(branches)
        way.most_loops = self._loops
        try:
            outcome: Hashable = self._toss(way)
        except Again:
            outcome = _AGAIN
        except Open as decision:
            return self._mixed(decision.chances, branches, chance, real, is_rare_left)
        self._n_ways += 1
        return {outcome: Fraction(1)}

    def _mixed(
        self, parts: Sequence[Fraction], branches: tuple[int, ...], chance: Fraction, real: Fraction, is_rare_left: bool
    ) -> dict[Hashable, Fraction]:
        rare = [i for i, part in enumerate(parts) if 0 < part < RARE] if len(parts) == 2 else []
        common: dict[Hashable, Fraction] = {}
        share = 1 - sum((parts[i] for i in rare), Fraction(0))
        for i, part in enumerate(parts):
            if part and i not in rare:
                law = self._below((*branches, i), chance * part / share, real * part, is_rare_left)
                _add(common, law, part / share)
        for i in rare:
            if not is_rare_left or (len(branches), tuple(parts)) in self._followed:
                self._unseen += real * parts[i]
                continue
            law = self._below((*branches, i), chance, real * parts[i], False)
            if law == common:  # the word was drawn again, and nothing remembers it
                self._followed.add((len(branches), tuple(parts)))
                continue
            common = {outcome: part * share for outcome, part in common.items()}
            _add(common, law, parts[i])
        return common


_AGAIN = object()


def _add(to: dict[Hashable, Fraction], law: dict[Hashable, Fraction], share: Fraction) -> None:
    for outcome, chance in law.items():
        to[outcome] = to.get(outcome, Fraction(0)) + share * chance


@contextmanager
def unknown_words() -> Iterator[None]:
    """For so long, `sfumato.entropy` and `clustering.noise` hand words on as they are drawn.

    They say `int(...)` where they take a word out of an array, and an `int` cannot be unknown.
    Devices write their slot into JSON, which needs a number, so there it becomes one.
    """
    below = sfumato.entropy.below

    def number_below(entropy: Entropy, bound: int) -> int:
        return operator.index(below(entropy, bound))

    with ExitStack() as stack:
        for module in (sfumato.entropy, clustering.noise):
            stack.enter_context(patch.object(module, "int", lambda word: word, create=True))
        stack.enter_context(patch.object(sfumato.device, "below", number_below))
        yield


def exact_law(toss: Callable[[Way], T], least: Fraction = Fraction(0), loops: int = 0) -> Law[T]:
    """The law of a toss whose words are unknown.

    Exact but for `unseen`. A branch rarer than 2^-32 is followed once on a way. Where what comes of it
    has the very law of its neighbour, as behind a word that is drawn again, the law is that, and other
    branches of the same chance after as many decisions are not followed. What is not is counted as
    unseen. Of a choice among more than 4096 two are followed, as if they were all: such a choice is to
    be public, and there is a law for each.

    Raises
    ------
    NotEnumerable
            The code makes a number of a whole word, or loops without end.
    """
    with unknown_words():
        return Walk(toss, least, loops).law()
