"""k-ary randomised response (`grr`).

A device keeps its symbol with probability p = e^eps / (e^eps + k - 1). Otherwise it sends one of the
other k - 1 symbols, uniformly. The published threshold T = floor(p 2^64) decides, so the
realised ratio p (k-1) / (1-p) at p = T / 2^64 lies at or below e^eps. The value is the
symbol as a little-endian integer of fixed width. (STATISTICS, section 1.)
"""

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from sfumato.privacy.accounting import exp_epsilon
from sfumato.privacy.entropy import WORD_SPAN, Entropy, below, below_many, word
from sfumato.specs import GrrMechanism


def design(n_symbols: int, epsilon_nano: int) -> GrrMechanism:
    """Return the mechanism with the largest cost of at most `epsilon_nano`."""
    weight = exp_epsilon(epsilon_nano)
    keep = weight / (weight + n_symbols - 1)
    return GrrMechanism(n_symbols, int(keep * WORD_SPAN))


def value_bytes(mechanism: GrrMechanism) -> int:
    """Return the size of a report's value: 1, 2 or 3 bytes."""
    return max(1, ((mechanism.n_symbols - 1).bit_length() + 7) // 8)


def perturb(mechanism: GrrMechanism, symbol: int, entropy: Entropy) -> bytes:
    """Return a report's value. The words decide, then select the other symbol if needed."""
    if word(entropy) >= mechanism.keep_threshold:
        other = below(entropy, mechanism.n_symbols - 1)
        symbol = other + (other >= symbol)
    return symbol.to_bytes(value_bytes(mechanism), "little")


def perturb_many(mechanism: GrrMechanism, symbols: NDArray[np.int64], entropy: Entropy) -> NDArray[np.uint8]:
    """Return the values of n devices with the same integer arithmetic: uint8 of shape (n, value_bytes)."""
    sent = symbols.copy()
    (lies,) = np.nonzero(~_below_threshold(entropy.words(len(symbols)), mechanism.keep_threshold))
    if lies.size:
        others = below_many(entropy, mechanism.n_symbols - 1, lies.size)
        sent[lies] = others + (others >= symbols[lies])
    width = value_bytes(mechanism)
    return np.ascontiguousarray(sent.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :width])


def _below_threshold(words: NDArray[np.uint64], threshold: int) -> NDArray[np.bool_]:
    if threshold == WORD_SPAN:  # the unperturbed channel of a dry run
        return np.ones(len(words), dtype=np.bool_)
    return words < np.uint64(threshold)


def is_value(mechanism: GrrMechanism, value: bytes) -> bool:
    """Return whether the mechanism can produce a value."""
    return len(value) == value_bytes(mechanism) and int.from_bytes(value, "little") < mechanism.n_symbols


def are_values(mechanism: GrrMechanism, values: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return whether the mechanism can produce each value of shape (n, value_bytes): bool of shape (n,)."""
    return symbols_of(values) < mechanism.n_symbols


def symbols_of(values: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the symbols in values of shape (n, value_bytes): int64 of shape (n,)."""
    if values.shape[1] == 1:  # the usual case, eight times as fast
        return values[:, 0].astype(np.int64)
    places = 256 ** np.arange(values.shape[1], dtype=np.int64)
    return values.astype(np.int64) @ places


def support(mechanism: GrrMechanism) -> tuple[Fraction, Fraction]:
    """Return (p, q), the probabilities that a report supports its own symbol and another given symbol."""
    keep = Fraction(mechanism.keep_threshold, WORD_SPAN)
    return keep, (1 - keep) / (mechanism.n_symbols - 1)


def ratio(mechanism: GrrMechanism) -> Fraction:
    """Return the largest probability ratio between two symbols. Raise ZeroDivisionError if it is unbounded."""
    keep, other = support(mechanism)
    return max(keep / other, other / keep)


def channel(mechanism: GrrMechanism) -> dict[bytes, tuple[Fraction, ...]]:
    """Return the probability of each value given each symbol."""
    keep, other = support(mechanism)
    width = value_bytes(mechanism)
    k = mechanism.n_symbols
    return {
        sent.to_bytes(width, "little"): tuple(keep if sent == symbol else other for symbol in range(k))
        for sent in range(k)
    }
