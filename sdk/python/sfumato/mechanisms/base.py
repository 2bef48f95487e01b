"""The interface of the mechanisms, and what they share."""

from abc import ABC, abstractmethod
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InvalidSpec
from sfumato.privacy.accounting import realised_epsilon
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.shuffling import Blanket
from sfumato.validation import parameters_of

Symbol = int | tuple[int, ...]  # an integer, or a vector of a lattice

# The form of a value: one number, one bit per symbol, a seed and a hashed symbol, or one number per feature.
Form = Literal["number", "bits", "hash", "vector"]

_CHUNK_SIGNS = 1 << 21  # reports times symbols that `likelihood` works on at once


class Mechanism(ABC):
    """A published mechanism. It perturbs a symbol 0 .. k-1, or a vector of a lattice, into the value of a report.

    A subclass is a frozen dataclass of the published integers. Its channel, its cost and its estimators follow from
    them by exact rational arithmetic. A mechanism that counts gives a report one of two probabilities: one for the
    symbols that the report supports, and one for all others.

    Attributes
    ----------
    type : str
        Name of the mechanism in a round's specification.
    form : {'number', 'bits', 'hash', 'vector'}
        Form of a value.
    has_support : bool
        Whether the two probabilities of `support` describe the mechanism.
    n_symbols : int
        k.
    """

    __slots__ = ()
    type: ClassVar[str]
    form: ClassVar[Form]
    has_support: ClassVar[bool] = True

    if TYPE_CHECKING:  # a field of the dataclasses, or a property

        @property
        def n_symbols(self) -> int: ...

    def __post_init__(self) -> None:
        for name, declaration in parameters_of(type(self)).items():
            declaration.validate(name, getattr(self, name))

    # ---- size ----

    @property
    @abstractmethod
    def value_bytes(self) -> int:
        """Return the size of a report's value in bytes."""

    @property
    def tally_width(self) -> int:
        """Return the number of counters of a tally per slot.

        Raises
        ------
        InvalidSpec
            Reports of this mechanism are vectors, which are stored and not counted.
        """
        return self.n_symbols

    @property
    def n_numbers(self) -> int:
        """Return the number of integers that the device perturbs: 1, or those of a vector."""
        return 1

    @property
    def n_coefficients(self) -> int:
        """Return the number of public coefficients of which a report names one, or 0."""
        return 0

    @property
    def n_hashes(self) -> int:
        """Return the range of the public hash functions of which a report names one, or 0."""
        return 0

    @property
    def n_named(self) -> int | None:
        """Return the number of symbols that each value supports, or None if values differ in it."""
        return None

    @property
    def lattice(self) -> tuple[int, int] | None:
        """Return the number of features and of steps of the lattice of the perturbed vectors, or None."""
        return None

    @property
    def outside_vector(self) -> tuple[int, ...] | None:
        """Return the vector of a record outside of the bounds, or None if the mechanism perturbs symbols."""
        return None

    def marked(self) -> "Mechanism":
        """Return the mechanism with a mark for records outside of the bounds in its vectors, at the same cost.

        Raises
        ------
        InvalidSpec
            The mechanism perturbs symbols, or the lattice has one step.
        """
        raise InvalidSpec(f"{self.type} perturbs symbols, which have no mark")

    # ---- devices ----

    def is_symbol(self, symbol: Symbol) -> bool:
        """Return whether the mechanism perturbs a symbol or vector."""
        return not isinstance(symbol, tuple) and 0 <= symbol < self.n_symbols

    def are_symbols(self, symbols: NDArray[np.int64]) -> bool:
        """Return whether the mechanism perturbs each symbol of shape (n,), or each vector of shape (n, n_numbers)."""
        return symbols.ndim == 1 and _is_within(symbols, self.n_symbols - 1)

    def perturb(self, symbol: Symbol, entropy: Entropy) -> bytes:
        """Return a report's value for a symbol or vector. It costs `epsilon_nano()`.

        Raises
        ------
        InvalidSpec
            The symbol is out of range. The message does not contain it.
        """
        if not self.is_symbol(symbol):
            raise InvalidSpec("the symbol is out of range")
        return self._perturb(symbol, entropy)  # type: ignore[arg-type]

    def perturb_many(self, symbols: NDArray[np.int64], entropy: Entropy) -> NDArray[np.uint8]:
        """Return the values of n devices, with the integer arithmetic of `perturb`.

        Parameters
        ----------
        symbols : ndarray of shape (n,), or (n, n_numbers) for vectors; int64
        entropy : Entropy

        Returns
        -------
        ndarray of shape (n, value_bytes), uint8

        Raises
        ------
        InvalidSpec
            A symbol is out of range.
        """
        if not self.are_symbols(symbols):
            raise InvalidSpec("a symbol is out of range")
        return self._perturb_many(symbols, entropy)

    @abstractmethod
    def _perturb(self, symbol: int, entropy: Entropy) -> bytes: ...

    @abstractmethod
    def _perturb_many(self, symbols: NDArray[np.int64], entropy: Entropy) -> NDArray[np.uint8]: ...

    # ---- values ----

    @abstractmethod
    def is_value(self, value: bytes) -> bool:
        """Return whether the mechanism can produce a value."""

    @abstractmethod
    def are_values(self, values: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Return whether the mechanism can produce each value of shape (n, value_bytes): bool of shape (n,)."""

    # ---- the channel ----

    def support(self) -> tuple[Fraction, Fraction]:
        """Return (p, q), the probabilities that a report supports its own symbol and another given symbol.

        Raises
        ------
        InvalidSpec
            Two numbers do not describe the mechanism, as for windows and vectors.
        """
        raise InvalidSpec(f"{self.type} has no probabilities p and q of support: use its channel")

    def offset_chances(self) -> tuple[Fraction, ...]:
        """Return for each t = 0 .. k-1 the probability that (sent - own) mod k is t, for symbols on a circle.

        Raises
        ------
        InvalidSpec
            A report of the mechanism is not one symbol.
        """
        raise InvalidSpec(f"a report of {self.type} is not one symbol of a circle: use grr or window")

    @abstractmethod
    def evidence(self) -> tuple[Fraction, Fraction]:
        """Return two numbers proportional to the probability of a value for a supported symbol and for another.

        Factors that all symbols share are left out.

        Raises
        ------
        InvalidSpec
            The reports are noisy vectors, which support no symbol.
        """

    @abstractmethod
    def supports(self, values: NDArray[np.uint8], symbols: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether values support symbols.

        Parameters
        ----------
        values : ndarray of shape (n, value_bytes), uint8
        symbols : ndarray of shape (m,) or (n, m), int64

        Returns
        -------
        ndarray of shape (n, m), bool

        Raises
        ------
        InvalidSpec
            The reports are noisy vectors, which support no symbol.
        """

    @abstractmethod
    def ratio(self) -> Fraction:
        """Return the largest ratio of a value's probabilities under two symbols, as an exact fraction.

        Raises
        ------
        InvalidSpec
            The ratio of discrete Laplace noise is not a fraction; see `DiscreteLaplaceMechanism.epsilon`.
        ZeroDivisionError
            The ratio is unbounded.
        """

    @abstractmethod
    def channel(self) -> dict[bytes, tuple[Fraction, ...]]:
        """Return the probability of each value given each symbol. It enumerates the values, so k must be small.

        Raises
        ------
        InvalidSpec
            The probabilities of discrete Laplace noise are not fractions.
        """

    # ---- what follows ----

    def epsilon_nano(self) -> int:
        """Return the cost of one report: the realised epsilon of the published thresholds, rounded up.

        The cost follows from exact rational arithmetic on the channel. It is never below the true cost
        and never above the argument of `design`.

        Raises
        ------
        InvalidSpec
            The cost is unbounded, because a report would reveal the symbol.
        """
        try:
            return self._realised_epsilon()
        except ZeroDivisionError:
            raise InvalidSpec("a report of this mechanism reveals its symbol, so its epsilon is unbounded") from None

    def _realised_epsilon(self) -> int:
        return realised_epsilon(self.ratio())

    def zero_variance(self) -> Fraction:
        """Return v = q (1-q) / (p-q)^2, n times the variance of (C/n - q) / (p-q) at frequency 0.

        Raises
        ------
        InvalidSpec
            Reports are independent of their symbol (p = q), or the mechanism has no (p, q), as a window.
        """
        p, q = self.support()
        if p == q:
            raise InvalidSpec("reports of this mechanism are independent of their symbol")
        return q * (1 - q) / (p - q) ** 2

    def normalised_evidence(self) -> tuple[float, float]:
        """Return `evidence` scaled to sum 1."""
        own, other = self.evidence()
        total = own + other
        return float(own / total), float(other / total)

    def likelihood(self, values: NDArray[np.uint8], shares: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return P(value | group) up to a factor that depends on the value alone.

        Parameters
        ----------
        values : ndarray of shape (n, value_bytes), uint8
            Values that the mechanism can produce.
        shares : ndarray of shape (n_groups, n_symbols)
            P(symbol | group).

        Returns
        -------
        ndarray of shape (n, n_groups)

        Raises
        ------
        InvalidSpec
            The reports are noisy vectors, which support no symbol.
        """
        own, other = self.normalised_evidence()
        mass = self._supported_mass(values, shares)
        return np.asarray(other * shares.sum(axis=1) + (own - other) * mass, dtype=np.float64)

    def _supported_mass(self, values: NDArray[np.uint8], shares: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the share of each group in the symbols that each value supports: shape (n, n_groups)."""
        mass = np.empty((len(values), len(shares)))
        symbols = np.arange(self.n_symbols)
        step = max(1, _CHUNK_SIGNS // self.n_symbols)
        for start in range(0, len(values), step):
            part = slice(start, start + step)
            mass[part] = self.supports(values[part], symbols).astype(np.float64) @ shares.T
        return mass

    # ---- a release of a shuffler ----

    @abstractmethod
    def _naming(self) -> tuple[Fraction, Fraction]:
        """Return the probabilities, under the base distribution of `blanket`, that a value names one symbol, and both.

        Pairs are equal except for windows. There the pair is the farthest one on the circle.
        """

    def blanket(self) -> Blanket:
        """Return the privacy blanket of the mechanism, for reports that a shuffler releases.

        The base distribution is uniform over the values; for `oue`, k independent coins of probability q. The blanket
        is the largest common part of the distributions of all symbols, except at values that name all symbols. There
        the common part is larger, and the bound leaves this out.

        The encoding does not change the cost. A slot is drawn independently of the record, so it is part of the
        blanket, and n is the number of honest reports over all slots. Given the slot, the mechanism perturbs one
        symbol, and the blanket covers each pair of symbols. This needs reports of equal length for all slots and
        values.

        Raises
        ------
        InvalidSpec
            No blanket is known (noisy vectors), or a report reveals its symbol or is independent of it.
        """
        named, both = self._naming()
        own, other = self.evidence()
        if own == other or not own or not other:
            raise InvalidSpec("a privacy blanket needs reports that depend on their symbol and do not reveal it")
        if own < other:  # a value then supports the symbols that it does not name
            own, other, named, both = other, own, 1 - named, 1 - 2 * named + both
        return Blanket(own / other, named, both)


def read_numbers(values: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the little-endian numbers in values of shape (n, value_bytes): int64 of shape (n,)."""
    if values.shape[1] == 1:  # the usual case, eight times as fast
        return values[:, 0].astype(np.int64)
    places = 256 ** np.arange(values.shape[1], dtype=np.int64)
    return values.astype(np.int64) @ places


def write_numbers(numbers: NDArray[np.int64], width: int) -> NDArray[np.uint8]:
    """Return numbers of shape (n,) as little-endian bytes: uint8 of shape (n, width)."""
    return np.ascontiguousarray(numbers.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :width])


def has_bits(values: NDArray[np.uint8], symbols: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return whether the bits of symbols, of shape (m,) or (n, m), are set in values: bool of shape (n, m)."""
    rows = np.arange(len(values))[:, None]
    return np.asarray(values[rows, symbols >> 3] >> (symbols & 7) & 1, dtype=np.bool_)


def _is_within(symbols: NDArray[np.int64], largest: int) -> bool:
    return symbols.size == 0 or bool(symbols.min() >= 0 and symbols.max() <= largest)
