"""Optimised local hashing (`olh`).

A device draws a public seed, whatever its symbol: one function h of a family that sends
symbols to 0 .. g-1, g = round(e^eps) + 1. It sends the seed and h(symbol) through randomised
response over g: kept with p = e^eps / (e^eps + g - 1), else another, uniformly. The published
threshold T = floor(p 2^64) decides, so the realised ratio p (g-1) / (1-p) at p = T / 2^64
lies at or below e^eps. A report supports every symbol that its seed hashes to what it sent.
(STATISTICS, section 1; Wang, Blocki, Li and Jha 2017, "Locally differentially private
protocols for frequency estimation", section 4.4.)

The family is that of quadratic polynomials modulo the prime P = 2^31 - 1 (Wegman and Carter
1981): v = (a x^2 + b x + c) mod P with a, b, c each uniform in 0 .. P-1, and
h = floor(v g / 2^31). Any three symbols have independent uniform v, so p, q and the
covariances of the counts are those of ideal hashing and q is known as a fraction. Cutting P
values into g runs leaves runs one or two longer than others: a value of h is off 1/g by at
most 2^-30, and q by less than g 2^-60. Every product stays below 2^53, so that plain numbers
of JavaScript compute the same integers.

The value is a, b and c in four little-endian bytes each, then what was sent in one or two.
"""

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from sfumato.accounting import exp_epsilon
from sfumato.entropy import WORD_SPAN, Entropy, below, below_many
from sfumato.errors import InvalidSpec
from sfumato.mechanisms import grr
from sfumato.specs import MAX_HASH_RANGE, GrrMechanism, OlhMechanism

HASH_SPAN = 1 << 31
HASH_PRIME = HASH_SPAN - 1
SEED_BYTES = 12
MAX_COUNTED = 4096  # symbols a tally counts: each costs one hash for each report


def design(n_symbols: int, epsilon_nano: int, *, n_candidates: int | None = None) -> OlhMechanism:
    """The mechanism of least variance that costs at most `epsilon_nano`.

    Raises
    ------
    InvalidSpec
        More symbols to count than 4096: all k, or the candidates if they are fewer.
    """
    if (n_symbols if n_candidates is None else n_candidates) > MAX_COUNTED:
        raise InvalidSpec(f"olh counts at most {MAX_COUNTED} symbols")
    weight = exp_epsilon(epsilon_nano)
    hash_range = min(round(weight) + 1, MAX_HASH_RANGE)
    return OlhMechanism(n_symbols, hash_range, int(weight / (weight + hash_range - 1) * WORD_SPAN))


def _response(mechanism: OlhMechanism) -> GrrMechanism:
    """The randomised response that the hashed symbol goes through."""
    return GrrMechanism(mechanism.hash_range, mechanism.keep_threshold)


def value_bytes(mechanism: OlhMechanism) -> int:
    """Width of a report's value: 13 or 14 bytes."""
    return SEED_BYTES + grr.value_bytes(_response(mechanism))


def hashed(mechanism: OlhMechanism, seed: tuple[int, int, int], symbol: int) -> int:
    """h(symbol) under the seed (a, b, c)."""
    a, b, c = seed
    return ((a * symbol + b) % HASH_PRIME * symbol + c) % HASH_PRIME * mechanism.hash_range // HASH_SPAN


def perturb(mechanism: OlhMechanism, symbol: int, entropy: Entropy) -> bytes:
    """One report's value. Words drawn: a, b, c, the decision, then the other value if needed."""
    seed = (below(entropy, HASH_PRIME), below(entropy, HASH_PRIME), below(entropy, HASH_PRIME))
    sent = grr.perturb(_response(mechanism), hashed(mechanism, seed, symbol), entropy)
    return b"".join(part.to_bytes(4, "little") for part in seed) + sent


def perturb_many(mechanism: OlhMechanism, symbols: NDArray[np.int64], entropy: Entropy) -> NDArray[np.uint8]:
    """Values of n devices with the same integers: uint8 of shape (n, value_bytes)."""
    a, b, c = (below_many(entropy, HASH_PRIME, len(symbols)) for _ in range(3))
    own = ((a * symbols + b) % HASH_PRIME * symbols + c) % HASH_PRIME * mechanism.hash_range // HASH_SPAN
    seeds = np.stack([a, b, c], axis=1).astype("<u4").view(np.uint8)
    return np.concatenate([seeds, grr.perturb_many(_response(mechanism), own, entropy)], axis=1)


def is_value(mechanism: OlhMechanism, value: bytes) -> bool:
    """Whether a device that follows the mechanism could have sent this value."""
    if not grr.is_value(_response(mechanism), value[SEED_BYTES:]):
        return False
    return all(int.from_bytes(value[at : at + 4], "little") < HASH_PRIME for at in range(0, SEED_BYTES, 4))


def are_values(mechanism: OlhMechanism, values: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """What `is_value` says, for values of shape (n, value_bytes)."""
    seeds = np.ascontiguousarray(values[:, :SEED_BYTES]).view("<u4")
    seeds_ok: NDArray[np.bool_] = np.all(seeds < HASH_PRIME, axis=1)
    return seeds_ok & grr.are_values(_response(mechanism), values[:, SEED_BYTES:])


def support(mechanism: OlhMechanism) -> tuple[Fraction, Fraction]:
    """(p, q): the chance that a report supports its own symbol, and any one other.

    With s_y the share of 0 .. P-1 that h sends to y, q = sum over y of s_y P(y sent), and y is
    sent with probability other + (keep - other) s_y.
    """
    keep, other = grr.support(_response(mechanism))
    run, n_longer = divmod(HASH_SPAN, mechanism.hash_range)
    # runs of the numbers below 2^31, the last of which lacks 2^31 - 1
    squares = n_longer * (run + 1) ** 2 + (mechanism.hash_range - 1 - n_longer) * run**2 + (run - 1) ** 2
    return keep, other + (keep - other) * Fraction(squares, HASH_PRIME**2)


def ratio(mechanism: OlhMechanism) -> Fraction:
    """The largest probability ratio between two symbols: under any seed that tells them apart."""
    return grr.ratio(_response(mechanism))


def channel(mechanism: OlhMechanism) -> dict[bytes, tuple[Fraction, ...]]:
    """The channel given one public seed (small k only).

    The seed is drawn whatever the symbol is, so what a report costs is what it costs given
    its seed. There are nearly 2^93 seeds; this one, whose v are 0, b, 2 b, ... of the least
    b > P/k, tells as many symbols apart as a seed can.
    """
    response = _response(mechanism)
    keep, other = grr.support(response)
    seed = (0, HASH_PRIME // mechanism.n_symbols + 1, 0)
    head = b"".join(part.to_bytes(4, "little") for part in seed)
    own = [hashed(mechanism, seed, held) for held in range(mechanism.n_symbols)]
    return {
        head + sent.to_bytes(grr.value_bytes(response), "little"): tuple(keep if sent == h else other for h in own)
        for sent in range(mechanism.hash_range)
    }
