"""Compute the exact distribution of a program's output by running it on symbolic random words.

The shipped code runs on an entropy with unknown words. The code can only compare a word with a number, divide it
into equal ranges, or take its remainder. At a comparison, both results are followed with their exact probabilities.
The result is the distribution of the shipped code as fractions. It is independent of any formula.
"""

import operator
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from fractions import Fraction
from typing import Any, Generic, NamedTuple, NoReturn, SupportsIndex, TypeVar, cast
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

import clustering.central.noise
import sfumato.device.device
import sfumato.privacy.entropy
from sfumato.privacy.entropy import WORD_SPAN, Entropy

T = TypeVar("T", bound=Hashable)

RARE = Fraction(1, 1 << 32)  # a branch with a smaller probability, such as a rejected word, is followed once per path
MAX_VALUES = 1 << 12  # with more values, only some are followed

_MAX_DECISIONS = 200  # per path

_VALUE_SHARES = (0.1, 0.61803)  # positions of the followed values, as shares of all values


class NotEnumerable(Exception):
    """Raised if no finite number of intervals decides the output: the program uses a whole word, or does not end."""


class OpenDecision(Exception):
    """Raised at a decision that the path so far leaves open.

    Attributes
    ----------
    probabilities : tuple of Fraction
        Probability of each branch, with sum 1.
    """

    def __init__(self, probabilities: tuple[Fraction, ...]) -> None:
        super().__init__(f"one of {len(probabilities)} branches")
        self.probabilities = probabilities


class Retry(Exception):
    """Raised by `ExecutionPath.count_iteration` if a loop starts again."""


class ExecutionPath:
    """A path through the tree of decisions; it is an `Entropy`. An open decision raises `OpenDecision`."""

    def __init__(self, branches: Sequence[int]) -> None:
        self._branches = branches
        self._position = 0
        self.n_opaque = 0
        self.n_iterations = 0
        self.max_retries = 0

    def words(self, n: int) -> NDArray[np.uint64]:
        """Return `n` symbolic words: an array of `SymbolicWord`, although its type is an array of integers."""
        words = np.empty(n, dtype=object)
        for i in range(n):
            words[i] = SymbolicWord(_WordState(self), 1)
        return cast(NDArray[np.uint64], words)

    def choose(self, probabilities: Sequence[Fraction]) -> int:
        """Return the branch that the path takes. A branch with probability 1 is no decision."""
        certain = [i for i, probability in enumerate(probabilities) if probability == 1]
        if certain:
            return certain[0]
        if self._position == len(self._branches):
            raise OpenDecision(tuple(probabilities))
        self._position += 1
        return self._branches[self._position - 1]

    def coin(self, probability: Fraction) -> bool:
        """Return true with this probability."""
        return self.choose((probability, 1 - probability)) == 0

    def begin_loop(self) -> None:
        """Start to count the iterations of a loop that draws until it accepts a value."""
        self.n_iterations = 0

    def count_iteration(self) -> None:
        """Count an iteration. Raise `Retry` if there were more than `max_retries` before it."""
        self.n_iterations += 1
        if self.n_iterations > self.max_retries + 1:
            raise Retry


class _WordState:
    """The known range of one word: uniform in lo .. hi - 1."""

    __slots__ = ("hi", "is_consumed", "lo", "path")

    def __init__(self, path: ExecutionPath) -> None:
        self.path = path
        self.lo, self.hi = 0, WORD_SPAN
        self.is_consumed = False  # the remainder is known, or the whole word is in the output


class SymbolicWord:
    """floor(word / run). Comparisons branch; use as a number branches over the values."""

    __slots__ = ("_run", "_word")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, word: _WordState, run: int) -> None:
        self._word = word
        self._run = run

    def __deepcopy__(self, _memo: object) -> "SymbolicWord":
        return self  # decisions about a copy hold for the word

    def _is_below(self, bound: int) -> bool:
        word = self._word
        if word.is_consumed:
            raise NotEnumerable("the program uses a word again after it took its remainder")
        cut = min(max(bound * self._run, word.lo), word.hi)
        probability = Fraction(cut - word.lo, word.hi - word.lo)
        is_below = word.path.coin(probability)
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

    def __floordiv__(self, run: SupportsIndex) -> "SymbolicWord":
        return SymbolicWord(self._word, self._run * operator.index(run))

    def __mod__(self, modulus: SupportsIndex) -> int:
        word, modulus_value = self._word, operator.index(modulus)
        if self._run != 1 or word.is_consumed:
            return int(self) % modulus_value
        if modulus_value > MAX_VALUES:
            raise NotEnumerable(f"the remainder by {modulus_value} has too many values")
        n_below = [
            [(end - rest + modulus_value - 1) // modulus_value for rest in range(modulus_value)]
            for end in (word.lo, word.hi)
        ]
        span = word.hi - word.lo
        rest = word.path.choose([Fraction(high - low, span) for low, high in zip(*n_below, strict=True)])
        word.is_consumed = True
        return rest

    def __index__(self) -> int:
        """Return the value. All values are followed, or some of them if there are too many."""
        word, run = self._word, self._run
        if word.is_consumed:
            raise NotEnumerable("the program uses a word twice")
        first, last = word.lo // run, (word.hi - 1) // run
        n_values = last - first + 1
        if n_values > MAX_VALUES:
            if run < 1 << 16:
                raise NotEnumerable("the program makes a number from all bits of a word")
            values = sorted({first + int(share * (n_values - 1)) for share in _VALUE_SHARES})
        else:
            values = list(range(first, last + 1))
        sizes = [min(word.hi, (value + 1) * run) - max(word.lo, value * run) for value in values]
        value = values[word.path.choose([Fraction(size, sum(sizes)) for size in sizes])]
        word.lo, word.hi = max(word.lo, value * run), min(word.hi, (value + 1) * run)
        return value

    __int__ = __index__

    def __float__(self) -> NoReturn:
        raise NotEnumerable("the program makes a float from a word")

    def to_bytes(self, length: int, byteorder: Any) -> bytes:
        """Return the next unused name for a whole word on which nothing else depends; any name is equivalent."""
        word = self._word
        if (self._run, word.lo, word.hi) != (1, 0, WORD_SPAN) or word.is_consumed:
            return int(self).to_bytes(length, byteorder)
        word.is_consumed = True
        word.path.n_opaque += 1
        return word.path.n_opaque.to_bytes(length, byteorder)

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


class Distribution(NamedTuple, Generic[T]):
    """The distribution of a program's output.

    Attributes
    ----------
    probabilities : dict
        Probability of each output.
    n_paths : int
        Number of paths that were followed to their end.
    unexplored : Fraction
        Probability of paths that were not followed.
    retry_probability : Fraction
        Probability of paths on which a loop started again.
    """

    probabilities: dict[T, Fraction]
    n_paths: int
    unexplored: Fraction
    retry_probability: Fraction


class PathExplorer(Generic[T]):
    """Follows all paths of a program.

    Parameters
    ----------
    program : callable
        A function of an `Entropy`. It runs once per decision on each path.
    min_probability : Fraction
        A path with a smaller probability is not followed and counts as unexplored.
    max_retries : int
        How often a loop may start again (`ExecutionPath.count_iteration`).
    """

    def __init__(
        self, program: Callable[[ExecutionPath], T], min_probability: Fraction = Fraction(0), max_retries: int = 0
    ) -> None:
        self._program = program
        self._min_probability = min_probability
        self._max_retries = max_retries
        self._n_paths = 0
        self._unexplored = Fraction(0)
        self._confirmed: set[tuple[int, tuple[Fraction, ...]]] = set()

    def distribution(self) -> Distribution[T]:
        """Return the distribution of the output."""
        probabilities = self._explore((), Fraction(1), Fraction(1), True)
        retry_probability = probabilities.pop(_RETRY, Fraction(0))
        return Distribution(cast(dict[T, Fraction], probabilities), self._n_paths, self._unexplored, retry_probability)

    def _explore(
        self, branches: tuple[int, ...], probability: Fraction, true_probability: Fraction, may_follow_rare: bool
    ) -> dict[Hashable, Fraction]:
        """Return the distribution behind these branches. Its sum is 1 minus the unexplored share.

        `probability` decides where a path is cut. It ignores rare branches on the path, so that the distribution behind
        a rare branch is cut at the same depth as that of its neighbour. `true_probability` includes them.
        """
        if probability < self._min_probability:
            self._unexplored += true_probability
            return {}
        if len(branches) > _MAX_DECISIONS:
            raise NotEnumerable("a path does not end")
        path = ExecutionPath(branches)
        path.max_retries = self._max_retries
        try:
            outcome: Hashable = self._program(path)
        except Retry:
            outcome = _RETRY
        except OpenDecision as decision:
            return self._mix(decision.probabilities, branches, probability, true_probability, may_follow_rare)
        self._n_paths += 1
        return {outcome: Fraction(1)}

    def _mix(
        self,
        parts: Sequence[Fraction],
        branches: tuple[int, ...],
        probability: Fraction,
        true_probability: Fraction,
        may_follow_rare: bool,
    ) -> dict[Hashable, Fraction]:
        rare = [i for i, part in enumerate(parts) if 0 < part < RARE] if len(parts) == 2 else []
        common: dict[Hashable, Fraction] = {}
        share = 1 - sum((parts[i] for i in rare), Fraction(0))
        for i, part in enumerate(parts):
            if part and i not in rare:
                distribution = self._explore(
                    (*branches, i), probability * part / share, true_probability * part, may_follow_rare
                )
                _add_scaled(common, distribution, part / share)
        for i in rare:
            if not may_follow_rare or (len(branches), tuple(parts)) in self._confirmed:
                self._unexplored += true_probability * parts[i]
                continue
            distribution = self._explore((*branches, i), probability, true_probability * parts[i], False)
            if distribution == common:  # the program draws another word and behaves as if it were the first
                self._confirmed.add((len(branches), tuple(parts)))
                continue
            common = {outcome: part * share for outcome, part in common.items()}
            _add_scaled(common, distribution, parts[i])
        return common


_RETRY = object()


def _add_scaled(target: dict[Hashable, Fraction], distribution: dict[Hashable, Fraction], share: Fraction) -> None:
    for outcome, probability in distribution.items():
        target[outcome] = target.get(outcome, Fraction(0)) + share * probability


@contextmanager
def symbolic_words() -> Iterator[None]:
    """Let `sfumato.privacy.entropy` and `clustering.central.noise` pass symbolic words on, within this context.

    They convert a word from an array with `int(...)`, which must be a known number. Devices write their slot into JSON
    and need a known number there.
    """
    below = sfumato.privacy.entropy.below

    def number_below(entropy: Entropy, bound: int) -> int:
        return operator.index(below(entropy, bound))

    with ExitStack() as stack:
        for module in (sfumato.privacy.entropy, clustering.central.noise):
            stack.enter_context(patch.object(module, "int", lambda word: word, create=True))
        stack.enter_context(patch.object(sfumato.device.device, "below", number_below))
        yield


def exact_distribution(
    program: Callable[[ExecutionPath], T], min_probability: Fraction = Fraction(0), max_retries: int = 0
) -> Distribution[T]:
    """Return the distribution of a program's output on symbolic words.

    It is exact except for `unexplored`. A branch with a probability below 2^-32 is followed once per path. If the
    distribution behind it equals that of its neighbour, as for a rejected word, the result is that distribution, and
    other branches with the same probability and depth are not followed. Of a choice among more than 4096 values, two
    are followed as if they were all values. Such a choice must be public, so that each value has a distribution of its
    own.

    Raises
    ------
    NotEnumerable
        The program makes a number from a whole word, or has a loop that does not end.
    """
    with symbolic_words():
        return PathExplorer(program, min_probability, max_retries).distribution()
