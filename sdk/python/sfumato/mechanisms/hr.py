"""Hadamard response with one bit (`hr`).

With K the least power of two above k, symbol x has the Walsh signs (-1)^popcount(j & (x+1)),
j = 0 .. K-1. A device draws j uniformly, independently of its symbol, and sends j with its sign
there, kept with probability p = e^eps / (e^eps + 1). The published threshold
T = floor(p 2^64) decides, so the realised ratio p / (1-p) at p = T / 2^64 lies at or below
e^eps. The value is 2 j + (1 where the sign sent is -1), little-endian, of fixed width.
A report supports the symbols that have the sent sign at j: its own with p, any other
with exactly 1/2. No symbol has the signs of column 0, which are all +1. Devices that
always send the same bit therefore support no symbol. (Acharya, Sun and Zhang 2019,
"Hadamard response: estimating distributions privately, efficiently, and with little
communication".)
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
class HrMechanism(Mechanism):
    """Hadamard response: the sign of a random Walsh coefficient, kept if a 64-bit word is below `keep_threshold`."""

    type: ClassVar[str] = "hr"
    form: ClassVar[Form] = "number"
    n_symbols: int = parameter("Number k of symbols.", minimum=2, maximum=MAX_RESPONSE_SYMBOLS, example=121)
    keep_threshold: int = parameter(
        "Threshold floor(p 2^64), in decimal.",
        minimum=1,
        maximum=WORD_SPAN - 1,
        is_word=True,
        example=13485650502877570762,
    )

    @classmethod
    def design(cls, n_symbols: int, epsilon_nano: int) -> Self:
        """Return the mechanism with the largest cost of at most `epsilon_nano`."""
        weight = exp_epsilon(epsilon_nano)
        return cls(n_symbols, int(weight / (weight + 1) * WORD_SPAN))

    @property
    def n_coefficients(self) -> int:
        """Return K, the least power of two above k."""
        return 1 << self.n_symbols.bit_length()

    @property
    def tally_width(self) -> int:
        """Return 2 K. A tally counts the values themselves, so that parts of a round can be added."""
        return 2 * self.n_coefficients

    @property
    def value_bytes(self) -> int:
        """Return the size of a report's value: 1, 2 or 3 bytes."""
        return (self.tally_width.bit_length() + 6) // 8

    def _perturb(self, symbol: int, entropy: Entropy) -> bytes:
        """Return a report's value. The words select the coefficient, then decide."""
        index = below(entropy, self.n_coefficients)
        lies = word(entropy) >= self.keep_threshold
        is_negative = (index & (symbol + 1)).bit_count() & 1 ^ lies
        return (2 * index + is_negative).to_bytes(self.value_bytes, "little")

    def _perturb_many(self, symbols: NDArray[np.int64], entropy: Entropy) -> NDArray[np.uint8]:
        index = below_many(entropy, self.n_coefficients, len(symbols))
        lies = entropy.words(len(symbols)) >= np.uint64(self.keep_threshold)
        is_negative = np.bitwise_count(index & (symbols + 1)) & 1 ^ lies
        return write_numbers(2 * index + is_negative, self.value_bytes)

    def is_value(self, value: bytes) -> bool:
        """Return whether the mechanism can produce a value."""
        return len(value) == self.value_bytes and int.from_bytes(value, "little") < self.tally_width

    def are_values(self, values: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Return whether the mechanism can produce each value of shape (n, value_bytes): bool of shape (n,)."""
        return read_numbers(values) < self.tally_width

    def support(self) -> tuple[Fraction, Fraction]:
        """Return (p, q), the probabilities that a report has the sign of its own symbol and of another given symbol."""
        return Fraction(self.keep_threshold, WORD_SPAN), Fraction(1, 2)

    def evidence(self) -> tuple[Fraction, Fraction]:
        """Return the probabilities of the two signs, given the coefficient."""
        keep = Fraction(self.keep_threshold, WORD_SPAN)
        return keep, 1 - keep

    def supports(self, values: NDArray[np.uint8], symbols: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether the symbol has the sign sent at the coefficient sent."""
        sent = read_numbers(values)[:, None]
        return np.asarray((np.bitwise_count((sent >> 1) & (symbols + 1)) & 1) == (sent & 1), dtype=np.bool_)

    def ratio(self) -> Fraction:
        """Return the largest probability ratio between two symbols, which is that of the two signs."""
        keep, other = self.evidence()
        return max(keep / other, other / keep)

    def channel(self) -> dict[bytes, tuple[Fraction, ...]]:
        """Return the probability of each value given each symbol, for small k."""
        keep, other = self.evidence()
        rows = {}
        for number in range(self.tally_width):
            index, is_negative = divmod(number, 2)
            rows[number.to_bytes(self.value_bytes, "little")] = tuple(
                (keep if (index & (symbol + 1)).bit_count() & 1 == is_negative else other) / self.n_coefficients
                for symbol in range(self.n_symbols)
            )
        return rows

    def _naming(self) -> tuple[Fraction, Fraction]:
        return Fraction(1, 2), Fraction(1, 4)  # two rows of a Walsh matrix agree in half of the columns
