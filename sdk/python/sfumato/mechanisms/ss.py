"""Subset selection (`ss`).

A device names d of the k symbols. With probability p = d e^eps / (d e^eps + k - d) its own symbol is
one of them, and the others are uniform. Otherwise all d are uniform among the other symbols. At
p = T / 2^64 the realised ratio is p (k-d) / ((1-p) d), at or below e^eps. The value is a
set of k bits: bit i of the little-endian integer is set if symbol i is named.
(Ye and Barg 2018, "Optimal schemes for discrete distribution estimation under locally differential privacy".)
"""

from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from math import comb
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from sfumato.limits import MAX_SUBSET_SYMBOLS
from sfumato.mechanisms.base import Form, Mechanism, has_bits
from sfumato.privacy.accounting import exp_epsilon
from sfumato.privacy.entropy import WORD_SPAN, Entropy, below, below_many, word
from sfumato.validation import parameter, require

_CHUNK_BITS = 1 << 24  # symbols times devices per block: 16 MB


@dataclass(frozen=True, slots=True)
class SsMechanism(Mechanism):
    """Subset selection: the subset contains the symbol if a random 64-bit word is below `hold_threshold`."""

    type: ClassVar[str] = "ss"
    form: ClassVar[Form] = "bits"
    n_symbols: int = parameter("Number k of symbols.", minimum=2, maximum=MAX_SUBSET_SYMBOLS, example=121)
    subset_size: int = parameter("Number d of symbols in a subset.", minimum=1, maximum=MAX_SUBSET_SYMBOLS, example=14)
    hold_threshold: int = parameter(
        "Threshold floor(p 2^64), in decimal.",
        minimum=1,
        maximum=WORD_SPAN - 1,
        is_word=True,
        example=9142189234563317760,
    )

    def __post_init__(self) -> None:
        Mechanism.__post_init__(self)
        require(
            self.subset_size < self.n_symbols,
            f"subset_size must be less than n_symbols: {self.subset_size} of {self.n_symbols}",
        )

    @classmethod
    def design(cls, n_symbols: int, epsilon_nano: int) -> Self:
        """Return the mechanism of least variance with a cost of at most `epsilon_nano`."""
        weight = exp_epsilon(epsilon_nano)
        size = min(max(1, round(n_symbols / (weight + 1))), n_symbols - 1)
        hold = size * weight / (size * weight + n_symbols - size)
        return cls(n_symbols, size, int(hold * WORD_SPAN))

    @property
    def value_bytes(self) -> int:
        """Return the size of a report's value: one bit per symbol."""
        return (self.n_symbols + 7) // 8

    @property
    def n_named(self) -> int:
        """Return d."""
        return self.subset_size

    def _perturb(self, symbol: int, entropy: Entropy) -> bytes:
        """Return a report's value.

        The first word decides. One word per other named symbol then selects m of the k - 1 others by
        Floyd's sampling (Bentley and Floyd 1987): for j = k-1-m .. k-2 take a uniform t in 0..j, or j if
        t is already taken.
        """
        k = self.n_symbols
        holds_own = word(entropy) < self.hold_threshold
        n_others = self.subset_size - holds_own
        bits = 1 << symbol if holds_own else 0
        for last in range(k - 1 - n_others, k - 1):
            other = below(entropy, last + 1)
            if bits >> (other + (other >= symbol)) & 1:
                other = last
            bits |= 1 << (other + (other >= symbol))
        return bits.to_bytes(self.value_bytes, "little")

    def _perturb_many(self, symbols: NDArray[np.int64], entropy: Entropy) -> NDArray[np.uint8]:
        out = np.empty((len(symbols), self.value_bytes), dtype=np.uint8)
        step = max(1, _CHUNK_BITS // self.n_symbols)
        for start in range(0, len(symbols), step):
            out[start : start + step] = self._perturb_chunk(symbols[start : start + step], entropy)
        return out

    def _perturb_chunk(self, symbols: NDArray[np.int64], entropy: Entropy) -> NDArray[np.uint8]:
        k = self.n_symbols
        named = np.zeros((len(symbols), k), dtype=np.bool_)
        holds_own = entropy.words(len(symbols)) < np.uint64(self.hold_threshold)
        for holds in (True, False):
            (rows,) = np.nonzero(holds_own == holds)
            own = symbols[rows]
            named[rows, own] = holds
            n_others = self.subset_size - holds
            for last in range(k - 1 - n_others, k - 1):
                other = below_many(entropy, last + 1, rows.size)
                taken = named[rows, other + (other >= own)]
                other[taken] = last
                named[rows, other + (other >= own)] = True
        return np.packbits(named, axis=1, bitorder="little")

    def is_value(self, value: bytes) -> bool:
        """Return whether the mechanism can produce a value."""
        bits = int.from_bytes(value, "little")
        return len(value) == self.value_bytes and bits.bit_count() == self.subset_size and bits < 1 << self.n_symbols

    def are_values(self, values: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Return whether the mechanism can produce each value of shape (n, value_bytes): bool of shape (n,)."""
        sizes = np.bitwise_count(values).sum(axis=1, dtype=np.int64)
        spare_bits = 8 * self.value_bytes - self.n_symbols
        spare_clear = values[:, -1] < (256 >> spare_bits)
        ok: NDArray[np.bool_] = (sizes == self.subset_size) & spare_clear
        return ok

    def support(self) -> tuple[Fraction, Fraction]:
        """Return (p, q), the probabilities that a report names its own symbol and another given symbol."""
        k, d = self.n_symbols, self.subset_size
        hold = Fraction(self.hold_threshold, WORD_SPAN)
        return hold, (hold * (d - 1) + (1 - hold) * d) / (k - 1)

    def evidence(self) -> tuple[Fraction, Fraction]:
        """Return hold / C(k-1, d-1) and (1 - hold) / C(k-1, d), both times d C(k-1, d)."""
        hold = Fraction(self.hold_threshold, WORD_SPAN)
        return hold * (self.n_symbols - self.subset_size), (1 - hold) * self.subset_size

    def supports(self, values: NDArray[np.uint8], symbols: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether the subset contains the symbol."""
        return has_bits(values, symbols)

    def ratio(self) -> Fraction:
        """Return the largest probability ratio between two symbols."""
        with_own, without_own = self.evidence()
        return max(with_own / without_own, without_own / with_own)

    def channel(self) -> dict[bytes, tuple[Fraction, ...]]:
        """Return the probability of each value given each symbol, for small k."""
        k, d = self.n_symbols, self.subset_size
        hold = Fraction(self.hold_threshold, WORD_SPAN)
        with_own = hold / comb(k - 1, d - 1)
        without_own = (1 - hold) / comb(k - 1, d)
        rows = {}
        for subset in combinations(range(k), d):
            value = sum(1 << named for named in subset).to_bytes(self.value_bytes, "little")
            rows[value] = tuple(with_own if symbol in subset else without_own for symbol in range(k))
        return rows

    def _naming(self) -> tuple[Fraction, Fraction]:
        k, d = self.n_symbols, self.subset_size
        return Fraction(d, k), Fraction(d * (d - 1), k * (k - 1))
