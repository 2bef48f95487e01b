"""Optimised unary encoding (`oue`).

A device sends k bits. Its own symbol's bit is set by a fair coin, p = 1/2; each other one
with probability q = 1 / (e^eps + 1), by coins of their own. The published threshold
T = ceil(q 2^64) is rounded up, so the realised ratio p (1-q) / ((1-p) q) = (1-q) / q at
q = T / 2^64 lies at or below e^eps. Bit i of the little-endian integer is symbol i's.
(STATISTICS, section 1; Wang, Blocki, Li and Jha 2017, "Locally differentially private
protocols for frequency estimation", section 4.2.)
"""

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from sfumato.privacy.accounting import exp_epsilon
from sfumato.privacy.entropy import WORD_SPAN, Entropy
from sfumato.specs import OueMechanism

_CHUNK_BITS = 1 << 21  # symbols times devices per block: 16 MB of words


def design(n_symbols: int, epsilon_nano: int) -> OueMechanism:
    """Return the mechanism with the largest cost of at most `epsilon_nano`."""
    other = 1 / (exp_epsilon(epsilon_nano) + 1)
    return OueMechanism(n_symbols, -int(-other * WORD_SPAN // 1))


def value_bytes(mechanism: OueMechanism) -> int:
    """Return the size of a report's value: one bit per symbol."""
    return (mechanism.n_symbols + 7) // 8


def perturb(mechanism: OueMechanism, symbol: int, entropy: Entropy) -> bytes:
    """Return a report's value. It draws one word per symbol, in order."""
    bits = 0
    for i, drawn in enumerate(entropy.words(mechanism.n_symbols).tolist()):
        threshold = WORD_SPAN // 2 if i == symbol else mechanism.other_threshold
        bits |= (drawn < threshold) << i
    return bits.to_bytes(value_bytes(mechanism), "little")


def perturb_many(mechanism: OueMechanism, symbols: NDArray[np.int64], entropy: Entropy) -> NDArray[np.uint8]:
    """Return the values of n devices with the same integer arithmetic: uint8 of shape (n, value_bytes)."""
    out = np.empty((len(symbols), value_bytes(mechanism)), dtype=np.uint8)
    step = max(1, _CHUNK_BITS // mechanism.n_symbols)
    for start in range(0, len(symbols), step):
        own = symbols[start : start + step]
        words = entropy.words(own.size * mechanism.n_symbols).reshape(own.size, mechanism.n_symbols)
        named = words < np.uint64(mechanism.other_threshold)
        rows = np.arange(own.size)
        named[rows, own] = words[rows, own] < np.uint64(WORD_SPAN // 2)
        out[start : start + step] = np.packbits(named, axis=1, bitorder="little")
    return out


def is_value(mechanism: OueMechanism, value: bytes) -> bool:
    """Return whether the mechanism can produce a value."""
    return len(value) == value_bytes(mechanism) and int.from_bytes(value, "little") < 1 << mechanism.n_symbols


def are_values(mechanism: OueMechanism, values: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return whether the mechanism can produce each value of shape (n, value_bytes): bool of shape (n,)."""
    spare_bits = 8 * value_bytes(mechanism) - mechanism.n_symbols
    return values[:, -1] < (256 >> spare_bits)


def support(mechanism: OueMechanism) -> tuple[Fraction, Fraction]:
    """Return (p, q), the probabilities that a report names its own symbol and another given symbol."""
    return Fraction(1, 2), Fraction(mechanism.other_threshold, WORD_SPAN)


def ratio(mechanism: OueMechanism) -> Fraction:
    """Return the largest probability ratio between two symbols, of a value that names only one of them."""
    _, other = support(mechanism)
    return max((1 - other) / other, other / (1 - other))


def channel(mechanism: OueMechanism) -> dict[bytes, tuple[Fraction, ...]]:
    """Return the probability of each value given each symbol, for small k."""
    own, other = support(mechanism)
    k = mechanism.n_symbols
    rows = {}
    for bits in range(1 << k):
        n_named = bits.bit_count()
        with_own = own * other ** (n_named - 1) * (1 - other) ** (k - n_named) if n_named else Fraction(0)
        without_own = (1 - own) * other**n_named * (1 - other) ** (k - n_named - 1) if n_named < k else Fraction(0)
        chances = tuple(with_own if bits >> symbol & 1 else without_own for symbol in range(k))
        rows[bits.to_bytes(value_bytes(mechanism), "little")] = chances
    return rows
