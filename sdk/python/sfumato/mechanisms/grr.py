"""k-ary randomised response (`grr`).

A device keeps its symbol with probability p = e^eps / (e^eps + k - 1), else it names one
of the other k - 1, uniformly. The published threshold T = floor(p 2^64) decides, so the
realised ratio p (k-1) / (1-p) at p = T / 2^64 lies at or below e^eps. The value is the
symbol as a little-endian integer of fixed width. (STATISTICS, section 1.)
"""

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from sfumato.accounting import exp_epsilon
from sfumato.entropy import WORD_SPAN, Entropy, below, below_many, word
from sfumato.specs import GrrMechanism


def design(n_symbols: int, epsilon_nano: int) -> GrrMechanism:
    """The mechanism that costs at most `epsilon_nano` and comes closest to it."""
    weight = exp_epsilon(epsilon_nano)
    keep = weight / (weight + n_symbols - 1)
    return GrrMechanism(n_symbols, int(keep * WORD_SPAN))


def value_bytes(mechanism: GrrMechanism) -> int:
    """Width of a report's value: 1, 2 or 3 bytes."""
    return max(1, ((mechanism.n_symbols - 1).bit_length() + 7) // 8)


def perturb(mechanism: GrrMechanism, symbol: int, entropy: Entropy) -> bytes:
    """One report's value. Words drawn: the decision, then the other symbol if needed."""
    if word(entropy) >= mechanism.keep_threshold:
        other = below(entropy, mechanism.n_symbols - 1)
        symbol = other + (other >= symbol)
    return symbol.to_bytes(value_bytes(mechanism), "little")


def perturb_many(mechanism: GrrMechanism, symbols: NDArray[np.int64], entropy: Entropy) -> NDArray[np.uint8]:
    """Values of n devices with the same integers: uint8 of shape (n, value_bytes)."""
    sent = symbols.copy()
    (lies,) = np.nonzero(~_below_threshold(entropy.words(len(symbols)), mechanism.keep_threshold))
    if lies.size:
        others = below_many(entropy, mechanism.n_symbols - 1, lies.size)
        sent[lies] = others + (others >= symbols[lies])
    width = value_bytes(mechanism)
    return np.ascontiguousarray(sent.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :width])


def _below_threshold(words: NDArray[np.uint64], threshold: int) -> NDArray[np.bool_]:
    if threshold == WORD_SPAN:  # always: the unperturbed channel of a dry run
        return np.ones(len(words), dtype=np.bool_)
    return words < np.uint64(threshold)


def is_value(mechanism: GrrMechanism, value: bytes) -> bool:
    """Whether a device that follows the mechanism could have sent this value."""
    return len(value) == value_bytes(mechanism) and int.from_bytes(value, "little") < mechanism.n_symbols


def are_values(mechanism: GrrMechanism, values: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """What `is_value` says, for values of shape (n, value_bytes)."""
    return symbols_of(values) < mechanism.n_symbols


def symbols_of(values: NDArray[np.uint8]) -> NDArray[np.int64]:
    """The symbols that values of shape (n, value_bytes) name: int64 of shape (n,)."""
    if values.shape[1] == 1:  # most are; eight times as fast
        return values[:, 0].astype(np.int64)
    places = 256 ** np.arange(values.shape[1], dtype=np.int64)
    return values.astype(np.int64) @ places


def support(mechanism: GrrMechanism) -> tuple[Fraction, Fraction]:
    """(p, q): the chance that a report supports its own symbol, and any one other."""
    keep = Fraction(mechanism.keep_threshold, WORD_SPAN)
    return keep, (1 - keep) / (mechanism.n_symbols - 1)


def ratio(mechanism: GrrMechanism) -> Fraction:
    """The largest probability ratio between two symbols; ZeroDivisionError where unbounded."""
    keep, other = support(mechanism)
    return max(keep / other, other / keep)


def channel(mechanism: GrrMechanism) -> dict[bytes, tuple[Fraction, ...]]:
    """The whole channel: for each value, its probability given each symbol."""
    keep, other = support(mechanism)
    width = value_bytes(mechanism)
    k = mechanism.n_symbols
    return {
        sent.to_bytes(width, "little"): tuple(keep if sent == held else other for held in range(k)) for sent in range(k)
    }
