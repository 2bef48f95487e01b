"""Subset selection (`ss`).

A device names d of the k symbols. With probability p = d e^eps / (d e^eps + k - d) its own symbol is
one of them, and the others are uniform. Otherwise all d are uniform among the other symbols. At
p = T / 2^64 the realised ratio is p (k-d) / ((1-p) d), at or below e^eps. The value is a
set of k bits: bit i of the little-endian integer is set if symbol i is named.
(STATISTICS, section 1; Ye and Barg 2018, "Optimal schemes for discrete distribution
estimation under locally differential privacy".)
"""

from fractions import Fraction
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

from sfumato.privacy.accounting import exp_epsilon
from sfumato.privacy.entropy import WORD_SPAN, Entropy, below, below_many, word
from sfumato.specs import SsMechanism

_CHUNK_BITS = 1 << 24  # symbols times devices per block: 16 MB


def design(n_symbols: int, epsilon_nano: int) -> SsMechanism:
    """Return the mechanism of least variance with a cost of at most `epsilon_nano`."""
    weight = exp_epsilon(epsilon_nano)
    size = min(max(1, round(n_symbols / (weight + 1))), n_symbols - 1)
    hold = size * weight / (size * weight + n_symbols - size)
    return SsMechanism(n_symbols, size, int(hold * WORD_SPAN))


def value_bytes(mechanism: SsMechanism) -> int:
    """Return the size of a report's value: one bit per symbol."""
    return (mechanism.n_symbols + 7) // 8


def perturb(mechanism: SsMechanism, symbol: int, entropy: Entropy) -> bytes:
    """Return a report's value.

    The first word decides. One word per other named symbol then selects m of the k - 1 others by
    Floyd's sampling (Bentley and Floyd 1987): for j = k-1-m .. k-2 take a uniform t in 0..j, or j if
    t is already taken.
    """
    k = mechanism.n_symbols
    holds_own = word(entropy) < mechanism.hold_threshold
    n_others = mechanism.subset_size - holds_own
    bits = 1 << symbol if holds_own else 0
    for last in range(k - 1 - n_others, k - 1):
        other = below(entropy, last + 1)
        if bits >> (other + (other >= symbol)) & 1:
            other = last
        bits |= 1 << (other + (other >= symbol))
    return bits.to_bytes(value_bytes(mechanism), "little")


def perturb_many(mechanism: SsMechanism, symbols: NDArray[np.int64], entropy: Entropy) -> NDArray[np.uint8]:
    """Return the values of n devices with the same integer arithmetic: uint8 of shape (n, value_bytes)."""
    out = np.empty((len(symbols), value_bytes(mechanism)), dtype=np.uint8)
    step = max(1, _CHUNK_BITS // mechanism.n_symbols)
    for start in range(0, len(symbols), step):
        out[start : start + step] = _perturb_chunk(mechanism, symbols[start : start + step], entropy)
    return out


def _perturb_chunk(mechanism: SsMechanism, symbols: NDArray[np.int64], entropy: Entropy) -> NDArray[np.uint8]:
    k = mechanism.n_symbols
    named = np.zeros((len(symbols), k), dtype=np.bool_)
    holds_own = entropy.words(len(symbols)) < np.uint64(mechanism.hold_threshold)
    for holds in (True, False):
        (rows,) = np.nonzero(holds_own == holds)
        own = symbols[rows]
        named[rows, own] = holds
        n_others = mechanism.subset_size - holds
        for last in range(k - 1 - n_others, k - 1):
            other = below_many(entropy, last + 1, rows.size)
            taken = named[rows, other + (other >= own)]
            other[taken] = last
            named[rows, other + (other >= own)] = True
    return np.packbits(named, axis=1, bitorder="little")


def is_value(mechanism: SsMechanism, value: bytes) -> bool:
    """Return whether the mechanism can produce a value."""
    bits = int.from_bytes(value, "little")
    return (
        len(value) == value_bytes(mechanism)
        and bits.bit_count() == mechanism.subset_size
        and bits < 1 << mechanism.n_symbols
    )


def are_values(mechanism: SsMechanism, values: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return whether the mechanism can produce each value of shape (n, value_bytes): bool of shape (n,)."""
    sizes = np.bitwise_count(values).sum(axis=1, dtype=np.int64)
    spare_bits = 8 * value_bytes(mechanism) - mechanism.n_symbols
    spare_clear = values[:, -1] < (256 >> spare_bits)
    ok: NDArray[np.bool_] = (sizes == mechanism.subset_size) & spare_clear
    return ok


def support(mechanism: SsMechanism) -> tuple[Fraction, Fraction]:
    """Return (p, q), the probabilities that a report names its own symbol and another given symbol."""
    k, d = mechanism.n_symbols, mechanism.subset_size
    hold = Fraction(mechanism.hold_threshold, WORD_SPAN)
    return hold, (hold * (d - 1) + (1 - hold) * d) / (k - 1)


def ratio(mechanism: SsMechanism) -> Fraction:
    """Return the largest probability ratio between two symbols."""
    k, d = mechanism.n_symbols, mechanism.subset_size
    hold = Fraction(mechanism.hold_threshold, WORD_SPAN)
    with_own = hold / comb(k - 1, d - 1)
    without_own = (1 - hold) / comb(k - 1, d)
    return max(with_own / without_own, without_own / with_own)


def channel(mechanism: SsMechanism) -> dict[bytes, tuple[Fraction, ...]]:
    """Return the probability of each value given each symbol, for small k."""
    k, d = mechanism.n_symbols, mechanism.subset_size
    hold = Fraction(mechanism.hold_threshold, WORD_SPAN)
    with_own = hold / comb(k - 1, d - 1)
    without_own = (1 - hold) / comb(k - 1, d)
    rows = {}
    for subset in combinations(range(k), d):
        value = sum(1 << named for named in subset).to_bytes(value_bytes(mechanism), "little")
        rows[value] = tuple(with_own if symbol in subset else without_own for symbol in range(k))
    return rows
