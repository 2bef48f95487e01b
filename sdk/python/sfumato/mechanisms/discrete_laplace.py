"""Exact discrete Laplace noise on a lattice's vectors (`discrete_laplace`).

A device adds to each of its K integers 0..steps an integer of noise, P(z) = (1-r)/(1+r) r^|z|
with r = exp(-1/scale), and sends the sums. One feature's whole clipped range is steps units, so
it costs steps/scale, and K of them, which one record holds, K steps/scale: epsilon/K each
(composition, Theorem 5 of paper 004). The published scale is a fraction t/s, rounded up, so the
epsilon K steps s/t is an exact fraction and at most the requested one.

A vector has a last number, the mark, if the round counts records outside of the bounds. It has noise of the same scale
and costs nothing more (`DiscreteLaplaceMechanism`).

The sum of a number and its noise is clamped to -margin .. reach + margin, where reach is steps or a larger mark. This
gives a report a fixed width. The clamp follows the noise, so it costs no privacy. `design` uses a margin of 16 scales,
which a device exceeds with probability e^-16, one in nine million.

The noise uses integers alone (Canonne, Kamath and Steinke 2020, "The discrete Gaussian
for differential privacy", algorithms 1 and 2): U uniform in 0..t-1, kept with probability
exp(-U/t); V with P(V >= v) = e^-v; then floor((U + t V)/s) with a sign; minus zero is
drawn again. A Bernoulli sample of probability exp(-a/b) draws samples of a/b, a/(2b), a/(3b), ... until
one fails, and is true if the first failure has an odd number. V is counted only until every record
would be clamped.

The value has each feature's clamped sum plus the margin, little-endian, in as many whole bytes as
the largest sum needs. (STATISTICS 4.1.)
"""

from fractions import Fraction
from math import ceil, sinh

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InvalidSpec
from sfumato.privacy.accounting import NANO
from sfumato.privacy.entropy import Entropy, bernoulli_exp, bernoulli_exp_many, pick, pick_many
from sfumato.specs import MAX_SCALE, MAX_SCALE_PART, DiscreteLaplaceMechanism

MARGIN_SCALES = 16


def design(n_features: int, steps: int, epsilon_nano: int) -> DiscreteLaplaceMechanism:
    """Return the mechanism for vectors of a lattice, with a cost of at most `epsilon_nano` for all features.

    The scale is K steps/epsilon, or the next larger fraction of 32-bit integers, which is larger by a
    factor of at most 1 + 2^-31.

    Raises
    ------
    InvalidSpec
        The scale would exceed 2^26 units. Coarser steps lose no accuracy there.
    """
    scale = Fraction(n_features * steps * NANO, epsilon_nano)
    if scale > MAX_SCALE:
        raise InvalidSpec(f"the noise would exceed {MAX_SCALE} lattice units: take fewer steps")
    if scale.numerator > MAX_SCALE_PART:
        denominator = int(MAX_SCALE_PART / scale)
        scale_numerator = ceil(scale * denominator)
    else:
        scale_numerator, denominator = scale.numerator, scale.denominator
    margin = ceil(MARGIN_SCALES * Fraction(scale_numerator, denominator))
    return DiscreteLaplaceMechanism(n_features, steps, scale_numerator, denominator, margin)


def epsilon(mechanism: DiscreteLaplaceMechanism) -> Fraction:
    """Return the exact cost of a report, K steps s/t. Raise ZeroDivisionError for a scale of 0."""
    units = mechanism.n_features * mechanism.steps * mechanism.scale_denominator
    return Fraction(units, mechanism.scale_numerator)


def variance(mechanism: DiscreteLaplaceMechanism) -> float:
    """Return the variance of a feature's noise before the clamp, 2 r / (1-r)^2 squared lattice units."""
    if mechanism.scale_numerator == 0:
        return 0.0
    return 0.5 / sinh(mechanism.scale_denominator / mechanism.scale_numerator / 2) ** 2


def width(mechanism: DiscreteLaplaceMechanism) -> int:
    """Return the bytes of one feature in a report, 1 to 4."""
    return max(1, (_largest(mechanism).bit_length() + 7) // 8)


def _largest(mechanism: DiscreteLaplaceMechanism) -> int:
    return mechanism.reach + 2 * mechanism.margin


def value_bytes(mechanism: DiscreteLaplaceMechanism) -> int:
    """Return the size of a report's value in bytes."""
    return mechanism.n_numbers * width(mechanism)


def perturb(mechanism: DiscreteLaplaceMechanism, vector: tuple[int, ...], entropy: Entropy) -> bytes:
    """Return a report's value. It draws the noise of the features in order."""
    parts = []
    for place in vector:
        reached = place + noise(mechanism, entropy) + mechanism.margin
        parts.append(min(max(reached, 0), _largest(mechanism)).to_bytes(width(mechanism), "little"))
    return b"".join(parts)


def perturb_many(
    mechanism: DiscreteLaplaceMechanism, vectors: NDArray[np.int64], entropy: Entropy
) -> NDArray[np.uint8]:
    """Return the values of n devices with the same integer arithmetic: uint8 of shape (n, value_bytes)."""
    reached = np.empty(vectors.shape, dtype="<u8")
    for feature in range(mechanism.n_numbers):
        sums = vectors[:, feature] + _noise_many(mechanism, len(vectors), entropy) + mechanism.margin
        reached[:, feature] = np.clip(sums, 0, _largest(mechanism))
    parts = reached.view(np.uint8).reshape(*vectors.shape, 8)[:, :, : width(mechanism)]
    return np.ascontiguousarray(parts).reshape(len(vectors), value_bytes(mechanism))


def noise(mechanism: DiscreteLaplaceMechanism, entropy: Entropy) -> int:
    """Return one exact sample of the noise, cut off beyond the clamp."""
    t, s = mechanism.scale_numerator, mechanism.scale_denominator
    if t == 0:
        return 0
    while True:
        part = pick(entropy, t)
        if not bernoulli_exp(part, t, entropy):
            continue
        turns = 0
        while turns < _turns_to_clamp(mechanism) and bernoulli_exp(1, 1, entropy):
            turns += 1
        size = (part + t * turns) // s
        is_negative = pick(entropy, 2) == 1
        if size > 0 or not is_negative:
            return -size if is_negative else size


def _noise_many(mechanism: DiscreteLaplaceMechanism, n: int, entropy: Entropy) -> NDArray[np.int64]:
    """Return n samples of the noise: int64 of shape (n,). Rejected samples are drawn again together."""
    t, s = mechanism.scale_numerator, mechanism.scale_denominator
    drawn = np.zeros(n, dtype=np.int64)
    waiting = np.arange(n if t else 0)
    while waiting.size:
        parts = pick_many(entropy, t, waiting.size)
        kept = bernoulli_exp_many(parts, t, entropy)
        who, parts = waiting[kept], parts[kept]
        turns = np.zeros(who.size, dtype=np.int64)
        counting = np.arange(who.size)
        for _ in range(_turns_to_clamp(mechanism)):
            counting = counting[bernoulli_exp_many(np.ones(counting.size, dtype=np.int64), 1, entropy)]
            if counting.size == 0:
                break
            turns[counting] += 1
        sizes = (parts + t * turns) // s
        is_negative = pick_many(entropy, 2, who.size) == 1
        drawn[who] = np.where(is_negative, -sizes, sizes)
        again = ~kept
        again[np.flatnonzero(kept)[is_negative & (sizes == 0)]] = True
        waiting = waiting[again]
    return drawn


def _turns_to_clamp(mechanism: DiscreteLaplaceMechanism) -> int:
    """Return the least V for which every sum is clamped: t V / s >= reach + margin."""
    reach = (mechanism.reach + mechanism.margin) * mechanism.scale_denominator
    return -(-reach // mechanism.scale_numerator)


def is_value(mechanism: DiscreteLaplaceMechanism, value: bytes) -> bool:
    """Return whether the mechanism can produce a value."""
    if len(value) != value_bytes(mechanism):
        return False
    step = width(mechanism)
    return all(
        int.from_bytes(value[at : at + step], "little") <= _largest(mechanism) for at in range(0, len(value), step)
    )


def are_values(mechanism: DiscreteLaplaceMechanism, values: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return whether the mechanism can produce each value of shape (n, value_bytes): bool of shape (n,)."""
    return np.asarray((_numbers(mechanism, values) <= _largest(mechanism)).all(axis=1), dtype=np.bool_)


def vectors_of(mechanism: DiscreteLaplaceMechanism, values: NDArray[np.uint8]) -> NDArray[np.int32]:
    """Return the vectors in values of shape (n, value_bytes), in lattice units: int32 of shape (n, n_numbers)."""
    return (_numbers(mechanism, values) - mechanism.margin).astype(np.int32)


def _numbers(mechanism: DiscreteLaplaceMechanism, values: NDArray[np.uint8]) -> NDArray[np.int64]:
    parts = values.reshape(len(values), mechanism.n_numbers, width(mechanism))
    places = 256 ** np.arange(width(mechanism), dtype=np.int64)
    return parts.astype(np.int64) @ places
