"""k-ary randomised response (`grr`).

A device keeps its symbol with probability p = e^eps / (e^eps + k - 1). Otherwise it sends one of the
other k - 1 symbols, uniformly. The published threshold T = floor(p 2^64) decides, so the
realised ratio p (k-1) / (1-p) at p = T / 2^64 lies at or below e^eps. The value is the
symbol as a little-endian integer of fixed width. (Kairouz, Bonawitz and Ramage 2016, "Discrete distribution
estimation under local privacy", section 3.)
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from sfumato.limits import MAX_RESPONSE_SYMBOLS
from sfumato.mechanisms.base import Form, Mechanism, read_numbers, write_numbers
from sfumato.privacy.accounting import exp_epsilon
from sfumato.privacy.entropy import WORD_SPAN, Entropy, below, below_many, word
from sfumato.validation import parameter


@dataclass(frozen=True, slots=True)
class GrrMechanism(Mechanism):
    """k-ary randomised response: keeps the symbol if a random 64-bit word is below `keep_threshold`."""

    type: ClassVar[str] = "grr"
    form: ClassVar[Form] = "number"
    n_symbols: int = parameter("Number k of symbols.", minimum=2, maximum=MAX_RESPONSE_SYMBOLS, example=4)
    keep_threshold: int = parameter(
        "Threshold floor(p 2^64), in decimal.", minimum=1, maximum=WORD_SPAN, is_word=True, example=13116093003189305344
    )

    @classmethod
    def design(cls, n_symbols: int, epsilon_nano: int) -> Self:
        """Return the mechanism with the largest cost of at most `epsilon_nano`."""
        weight = exp_epsilon(epsilon_nano)
        keep = weight / (weight + n_symbols - 1)
        return cls(n_symbols, int(keep * WORD_SPAN))

    @property
    def value_bytes(self) -> int:
        """Return the size of a report's value: 1, 2 or 3 bytes."""
        return max(1, ((self.n_symbols - 1).bit_length() + 7) // 8)

    @property
    def n_named(self) -> int:
        """Return 1: a report supports the symbol that it names."""
        return 1

    def _perturb(self, symbol: int, entropy: Entropy) -> bytes:
        """Return a report's value. The words decide, then select the other symbol if needed."""
        if word(entropy) >= self.keep_threshold:
            other = below(entropy, self.n_symbols - 1)
            symbol = other + (other >= symbol)
        return symbol.to_bytes(self.value_bytes, "little")

    def _perturb_many(self, symbols: NDArray[np.int64], entropy: Entropy) -> NDArray[np.uint8]:
        sent = symbols.copy()
        (lies,) = np.nonzero(~_below_threshold(entropy.words(len(symbols)), self.keep_threshold))
        if lies.size:
            others = below_many(entropy, self.n_symbols - 1, lies.size)
            sent[lies] = others + (others >= symbols[lies])
        return write_numbers(sent, self.value_bytes)

    def is_value(self, value: bytes) -> bool:
        """Return whether the mechanism can produce a value."""
        return len(value) == self.value_bytes and int.from_bytes(value, "little") < self.n_symbols

    def are_values(self, values: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Return whether the mechanism can produce each value of shape (n, value_bytes): bool of shape (n,)."""
        return read_numbers(values) < self.n_symbols

    def support(self) -> tuple[Fraction, Fraction]:
        """Return (p, q), the probabilities that a report supports its own symbol and another given symbol."""
        keep = Fraction(self.keep_threshold, WORD_SPAN)
        return keep, (1 - keep) / (self.n_symbols - 1)

    def offset_chances(self) -> tuple[Fraction, ...]:
        """Return for each t = 0 .. k-1 the probability that (sent - own) mod k is t."""
        keep, other = self.support()
        return (keep, *(other,) * (self.n_symbols - 1))

    def evidence(self) -> tuple[Fraction, Fraction]:
        """Return `support`."""
        return self.support()

    def supports(self, values: NDArray[np.uint8], symbols: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether the number sent is the symbol."""
        return np.asarray(read_numbers(values)[:, None] == symbols, dtype=np.bool_)

    def _supported_mass(self, values: NDArray[np.uint8], shares: NDArray[np.float64]) -> NDArray[np.float64]:
        return shares[:, read_numbers(values)].T

    def ratio(self) -> Fraction:
        """Return the largest probability ratio between two symbols. Raise ZeroDivisionError if it is unbounded."""
        keep, other = self.support()
        return max(keep / other, other / keep)

    def channel(self) -> dict[bytes, tuple[Fraction, ...]]:
        """Return the probability of each value given each symbol."""
        keep, other = self.support()
        k = self.n_symbols
        return {
            sent.to_bytes(self.value_bytes, "little"): tuple(keep if sent == symbol else other for symbol in range(k))
            for sent in range(k)
        }

    def _naming(self) -> tuple[Fraction, Fraction]:
        return Fraction(1, self.n_symbols), Fraction(0)


def _below_threshold(words: NDArray[np.uint64], threshold: int) -> NDArray[np.bool_]:
    if threshold == WORD_SPAN:  # the unperturbed channel of a dry run
        return np.ones(len(words), dtype=np.bool_)
    return words < np.uint64(threshold)
