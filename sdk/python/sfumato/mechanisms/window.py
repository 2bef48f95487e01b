"""The cyclic window (`window`).

The k symbols lie on a circle. With probability p = w e^eps / (w e^eps + k - w) a device sends
one of the w symbols of a window around its own, uniformly; otherwise one of the other k - w,
uniformly. The published threshold T = floor(p 2^64) decides, so the realised ratio
p (k-w) / ((1-p) w) at p = T / 2^64 lies at or below e^eps. With own symbol a and offset o,
drawn in 0 .. w-1 or in w .. k-1, what is sent is (a + o - floor(w/2)) mod k, as a
little-endian integer of fixed width. (STATISTICS, section 4.2; its continuous form on the
line is Li et al. 2020, "Estimating Numerical Distributions under Local Differential
Privacy".)

A report supports the neighbours of a symbol too, so two numbers p and q do not describe it.
Estimates use `offset_chances`.
"""

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from sfumato.mechanisms.grr import symbols_of
from sfumato.privacy.accounting import exp_epsilon
from sfumato.privacy.entropy import WORD_SPAN, Entropy, below, below_many, word
from sfumato.specs import WindowMechanism


def design(n_symbols: int, epsilon_nano: int) -> WindowMechanism:
    """Return the mechanism with a cost of at most `epsilon_nano` and w = max(1, round(k / (1 + e^(eps/2))))."""
    size = max(1, round(n_symbols / (1 + exp_epsilon(epsilon_nano // 2))))
    weight = size * exp_epsilon(epsilon_nano)
    inside = weight / (weight + n_symbols - size)
    return WindowMechanism(n_symbols, size, int(inside * WORD_SPAN))


def value_bytes(mechanism: WindowMechanism) -> int:
    """Return the size of a report's value: 1 or 2 bytes."""
    return 1 if mechanism.n_symbols <= 256 else 2


def perturb(mechanism: WindowMechanism, symbol: int, entropy: Entropy) -> bytes:
    """Return a report's value. The words decide, then select the place inside or outside the window."""
    k, w = mechanism.n_symbols, mechanism.window_size
    inside = word(entropy) < mechanism.inside_threshold
    offset = below(entropy, w) if inside else w + below(entropy, k - w)
    return ((symbol + offset - w // 2) % k).to_bytes(value_bytes(mechanism), "little")


def perturb_many(mechanism: WindowMechanism, symbols: NDArray[np.int64], entropy: Entropy) -> NDArray[np.uint8]:
    """Return the values of n devices with the same integer arithmetic: uint8 of shape (n, value_bytes)."""
    k, w = mechanism.n_symbols, mechanism.window_size
    inside = entropy.words(len(symbols)) < np.uint64(mechanism.inside_threshold)
    offsets = np.empty(len(symbols), dtype=np.int64)
    offsets[inside] = below_many(entropy, w, int(inside.sum()))
    offsets[~inside] = w + below_many(entropy, k - w, int((~inside).sum()))
    sent = (symbols + offsets - w // 2) % k
    return np.ascontiguousarray(sent.astype("<u8").view(np.uint8).reshape(-1, 8)[:, : value_bytes(mechanism)])


def is_value(mechanism: WindowMechanism, value: bytes) -> bool:
    """Return whether the mechanism can produce a value."""
    return len(value) == value_bytes(mechanism) and int.from_bytes(value, "little") < mechanism.n_symbols


def are_values(mechanism: WindowMechanism, values: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return whether the mechanism can produce each value of shape (n, value_bytes): bool of shape (n,)."""
    return symbols_of(values) < mechanism.n_symbols


def _densities(mechanism: WindowMechanism) -> tuple[Fraction, Fraction]:
    """Return the probabilities of a symbol inside and outside the window."""
    inside = Fraction(mechanism.inside_threshold, WORD_SPAN)
    w = mechanism.window_size
    return inside / w, (1 - inside) / (mechanism.n_symbols - w)


def offset_chances(mechanism: WindowMechanism) -> tuple[Fraction, ...]:
    """Return for each t = 0 .. k-1 the probability that (sent - own) mod k is t."""
    near, far = _densities(mechanism)
    k, w = mechanism.n_symbols, mechanism.window_size
    return tuple(near if (t + w // 2) % k < w else far for t in range(k))


def ratio(mechanism: WindowMechanism) -> Fraction:
    """Return the largest probability ratio between two symbols."""
    near, far = _densities(mechanism)
    return max(near / far, far / near)


def channel(mechanism: WindowMechanism) -> dict[bytes, tuple[Fraction, ...]]:
    """Return the probability of each value given each symbol."""
    chances, k = offset_chances(mechanism), mechanism.n_symbols
    width = value_bytes(mechanism)
    return {sent.to_bytes(width, "little"): tuple(chances[(sent - own) % k] for own in range(k)) for sent in range(k)}
