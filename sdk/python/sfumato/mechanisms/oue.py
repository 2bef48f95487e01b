"""Optimised unary encoding (`oue`).

A device sends k bits. Its own symbol's bit is set by a fair coin, p = 1/2; each other one
with probability q = 1 / (e^eps + 1), by coins of their own. The published threshold
T = ceil(q 2^64) is rounded up, so the realised ratio p (1-q) / ((1-p) q) = (1-q) / q at
q = T / 2^64 lies at or below e^eps. Bit i of the little-endian integer is symbol i's.
(Wang, Blocki, Li and Jha 2017, "Locally differentially private protocols for frequency estimation", section 4.2.)
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from sfumato.limits import MAX_SUBSET_SYMBOLS
from sfumato.mechanisms.base import Form, Mechanism, has_bits
from sfumato.privacy.accounting import exp_epsilon
from sfumato.privacy.entropy import WORD_SPAN, Entropy
from sfumato.validation import parameter

_CHUNK_BITS = 1 << 21  # symbols times devices per block: 16 MB of words


@dataclass(frozen=True, slots=True)
class OueMechanism(Mechanism):
    """Optimised unary encoding: a fair coin sets the bit of the symbol, a word below `other_threshold` another bit."""

    type: ClassVar[str] = "oue"
    form: ClassVar[Form] = "bits"
    n_symbols: int = parameter("Number k of symbols.", minimum=2, maximum=MAX_SUBSET_SYMBOLS, example=121)
    other_threshold: int = parameter(
        "Threshold ceil(q 2^64), in decimal.",
        minimum=1,
        maximum=WORD_SPAN - 1,
        is_word=True,
        example=4961093570831980854,
    )

    @classmethod
    def design(cls, n_symbols: int, epsilon_nano: int) -> Self:
        """Return the mechanism with the largest cost of at most `epsilon_nano`."""
        other = 1 / (exp_epsilon(epsilon_nano) + 1)
        return cls(n_symbols, -int(-other * WORD_SPAN // 1))

    @property
    def value_bytes(self) -> int:
        """Return the size of a report's value: one bit per symbol."""
        return (self.n_symbols + 7) // 8

    def _perturb(self, symbol: int, entropy: Entropy) -> bytes:
        """Return a report's value. It draws one word per symbol, in order."""
        bits = 0
        for i, drawn in enumerate(entropy.words(self.n_symbols).tolist()):
            threshold = WORD_SPAN // 2 if i == symbol else self.other_threshold
            bits |= (drawn < threshold) << i
        return bits.to_bytes(self.value_bytes, "little")

    def _perturb_many(self, symbols: NDArray[np.int64], entropy: Entropy) -> NDArray[np.uint8]:
        out = np.empty((len(symbols), self.value_bytes), dtype=np.uint8)
        step = max(1, _CHUNK_BITS // self.n_symbols)
        for start in range(0, len(symbols), step):
            own = symbols[start : start + step]
            words = entropy.words(own.size * self.n_symbols).reshape(own.size, self.n_symbols)
            named = words < np.uint64(self.other_threshold)
            rows = np.arange(own.size)
            named[rows, own] = words[rows, own] < np.uint64(WORD_SPAN // 2)
            out[start : start + step] = np.packbits(named, axis=1, bitorder="little")
        return out

    def is_value(self, value: bytes) -> bool:
        """Return whether the mechanism can produce a value."""
        return len(value) == self.value_bytes and int.from_bytes(value, "little") < 1 << self.n_symbols

    def are_values(self, values: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Return whether the mechanism can produce each value of shape (n, value_bytes): bool of shape (n,)."""
        spare_bits = 8 * self.value_bytes - self.n_symbols
        return values[:, -1] < (256 >> spare_bits)

    def support(self) -> tuple[Fraction, Fraction]:
        """Return (p, q), the probabilities that a report names its own symbol and another given symbol."""
        return Fraction(1, 2), Fraction(self.other_threshold, WORD_SPAN)

    def evidence(self) -> tuple[Fraction, Fraction]:
        """Return p (1-q) and (1-p) q at p = 1/2, both doubled."""
        other = Fraction(self.other_threshold, WORD_SPAN)
        return 1 - other, other

    def supports(self, values: NDArray[np.uint8], symbols: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether the bit of the symbol is set."""
        return has_bits(values, symbols)

    def ratio(self) -> Fraction:
        """Return the largest probability ratio between two symbols, of a value that names only one of them."""
        own, other = self.evidence()
        return max(own / other, other / own)

    def channel(self) -> dict[bytes, tuple[Fraction, ...]]:
        """Return the probability of each value given each symbol, for small k."""
        own, other = self.support()
        k = self.n_symbols
        rows = {}
        for bits in range(1 << k):
            n_named = bits.bit_count()
            with_own = own * other ** (n_named - 1) * (1 - other) ** (k - n_named) if n_named else Fraction(0)
            without_own = (1 - own) * other**n_named * (1 - other) ** (k - n_named - 1) if n_named < k else Fraction(0)
            chances = tuple(with_own if bits >> symbol & 1 else without_own for symbol in range(k))
            rows[bits.to_bytes(self.value_bytes, "little")] = chances
        return rows

    def _naming(self) -> tuple[Fraction, Fraction]:
        _, other = self.support()
        return other, other**2
