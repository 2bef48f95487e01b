"""Hadamard response with one bit (`hr`).

With K the least power of two above k, symbol x has the Walsh signs (-1)^popcount(j & (x+1)),
j = 0 .. K-1. A device draws j uniformly, whatever its symbol, and sends j with its sign
there, kept with probability p = e^eps / (e^eps + 1). The published threshold
T = floor(p 2^64) decides, so the realised ratio p / (1-p) at p = T / 2^64 lies at or below
e^eps. The value is 2 j + (1 where the sign sent is -1), little-endian, of fixed width.
A report supports the symbols whose sign at j is the one sent: its own with p, any other
with exactly 1/2. No symbol has the signs of column 0, which are all +1. Devices that
always send the same bit therefore support no symbol. (STATISTICS, section 1; Acharya, Sun and Zhang 2019,
"Hadamard response: estimating distributions privately, efficiently, and with little
communication".)
"""

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from sfumato.mechanisms.grr import symbols_of as numbers_of
from sfumato.privacy.accounting import exp_epsilon
from sfumato.privacy.entropy import WORD_SPAN, Entropy, below, below_many, word
from sfumato.specs import HrMechanism


def design(n_symbols: int, epsilon_nano: int) -> HrMechanism:
    """Return the mechanism with the largest cost of at most `epsilon_nano`."""
    weight = exp_epsilon(epsilon_nano)
    return HrMechanism(n_symbols, int(weight / (weight + 1) * WORD_SPAN))


def tally_width(mechanism: HrMechanism) -> int:
    """Return 2 K. A tally counts the values themselves, so that parts of a round can be added."""
    return 2 * mechanism.n_coefficients


def value_bytes(mechanism: HrMechanism) -> int:
    """Return the size of a report's value: 1, 2 or 3 bytes."""
    return (tally_width(mechanism).bit_length() + 6) // 8


def perturb(mechanism: HrMechanism, symbol: int, entropy: Entropy) -> bytes:
    """Return a report's value. The words select the coefficient, then decide."""
    index = below(entropy, mechanism.n_coefficients)
    lies = word(entropy) >= mechanism.keep_threshold
    is_negative = (index & (symbol + 1)).bit_count() & 1 ^ lies
    return (2 * index + is_negative).to_bytes(value_bytes(mechanism), "little")


def perturb_many(mechanism: HrMechanism, symbols: NDArray[np.int64], entropy: Entropy) -> NDArray[np.uint8]:
    """Return the values of n devices with the same integer arithmetic: uint8 of shape (n, value_bytes)."""
    index = below_many(entropy, mechanism.n_coefficients, len(symbols))
    lies = entropy.words(len(symbols)) >= np.uint64(mechanism.keep_threshold)
    is_negative = np.bitwise_count(index & (symbols + 1)) & 1 ^ lies
    numbers = (2 * index + is_negative).astype("<u8").view(np.uint8).reshape(-1, 8)
    return np.ascontiguousarray(numbers[:, : value_bytes(mechanism)])


def is_value(mechanism: HrMechanism, value: bytes) -> bool:
    """Return whether the mechanism can produce a value."""
    return len(value) == value_bytes(mechanism) and int.from_bytes(value, "little") < tally_width(mechanism)


def are_values(mechanism: HrMechanism, values: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return whether the mechanism can produce each value of shape (n, value_bytes): bool of shape (n,)."""
    return numbers_of(values) < tally_width(mechanism)


def support(mechanism: HrMechanism) -> tuple[Fraction, Fraction]:
    """Return (p, q), the probabilities that a report has the sign of its own symbol and of another given symbol."""
    return Fraction(mechanism.keep_threshold, WORD_SPAN), Fraction(1, 2)


def ratio(mechanism: HrMechanism) -> Fraction:
    """Return the largest probability ratio between two symbols, which is that of the two signs."""
    keep, _ = support(mechanism)
    return max(keep / (1 - keep), (1 - keep) / keep)


def channel(mechanism: HrMechanism) -> dict[bytes, tuple[Fraction, ...]]:
    """Return the probability of each value given each symbol, for small k."""
    keep, _ = support(mechanism)
    rows = {}
    for number in range(tally_width(mechanism)):
        index, is_negative = divmod(number, 2)
        rows[number.to_bytes(value_bytes(mechanism), "little")] = tuple(
            (keep if (index & (symbol + 1)).bit_count() & 1 == is_negative else 1 - keep) / mechanism.n_coefficients
            for symbol in range(mechanism.n_symbols)
        )
    return rows
