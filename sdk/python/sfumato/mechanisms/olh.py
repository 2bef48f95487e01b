"""Optimised local hashing (`olh`).

A device draws a public seed, independent of its symbol. The seed selects one function h of a family
that maps symbols to 0 .. g-1, with g = round(e^eps) + 1. It sends the seed and h(symbol) through randomised
response over g: kept with p = e^eps / (e^eps + g - 1), else another, uniformly. The published
threshold T = floor(p 2^64) decides, so the realised ratio p (g-1) / (1-p) at p = T / 2^64
lies at or below e^eps. A report supports every symbol with the hash that it sent.
(STATISTICS, section 1; Wang, Blocki, Li and Jha 2017, "Locally differentially private
protocols for frequency estimation", section 4.4.)

The family is that of quadratic polynomials modulo the prime P = 2^31 - 1 (Wegman and Carter
1981): v = (a x^2 + b x + c) mod P with a, b, c each uniform in 0 .. P-1, and
h = floor(v g / 2^31). Any three symbols have independent uniform v, so p, q and the
covariances of the counts are those of ideal hashing and q is known as a fraction. The
g runs of P values differ in length by one or two. A probability of h therefore differs from 1/g by
at most 2^-30, and q by less than g 2^-60. Every product is below 2^53, so the numbers of JavaScript
give the same integers.

The value is a, b and c in four little-endian bytes each, then the sent hash in one or two bytes.
"""

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InvalidSpec
from sfumato.mechanisms import grr
from sfumato.privacy.accounting import exp_epsilon
from sfumato.privacy.entropy import WORD_SPAN, Entropy, below, below_many
from sfumato.specs import MAX_HASH_RANGE, MAX_SUBSET_SYMBOLS, GrrMechanism, OlhMechanism

HASH_SPAN = 1 << 31
HASH_PRIME = HASH_SPAN - 1
SEED_BYTES = 12
MAX_COUNTED = MAX_SUBSET_SYMBOLS  # maximum number of counted symbols; each costs one hash per report


def design(n_symbols: int, epsilon_nano: int, *, n_candidates: int | None = None) -> OlhMechanism:
    """Return the mechanism of least variance with a cost of at most `epsilon_nano`.

    Raises
    ------
    InvalidSpec
        More than 4097 symbols, or candidates if they are fewer, would be counted.
    """
    if (n_symbols if n_candidates is None else n_candidates) > MAX_COUNTED:
        raise InvalidSpec(f"olh counts at most {MAX_COUNTED} symbols")
    weight = exp_epsilon(epsilon_nano)
    hash_range = min(round(weight) + 1, MAX_HASH_RANGE)
    return OlhMechanism(n_symbols, hash_range, int(weight / (weight + hash_range - 1) * WORD_SPAN))


def _response(mechanism: OlhMechanism) -> GrrMechanism:
    """Return the randomised response for the hashed symbol."""
    return GrrMechanism(mechanism.hash_range, mechanism.keep_threshold)


def value_bytes(mechanism: OlhMechanism) -> int:
    """Return the size of a report's value: 13 or 14 bytes."""
    return SEED_BYTES + grr.value_bytes(_response(mechanism))


def hashed(mechanism: OlhMechanism, seed: tuple[int, int, int], symbol: int) -> int:
    """Return h(symbol) for the seed (a, b, c)."""
    a, b, c = seed
    return ((a * symbol + b) % HASH_PRIME * symbol + c) % HASH_PRIME * mechanism.hash_range // HASH_SPAN


def perturb(mechanism: OlhMechanism, symbol: int, entropy: Entropy) -> bytes:
    """Return a report's value. The words give a, b and c, decide, then select the other value if needed."""
    seed = (below(entropy, HASH_PRIME), below(entropy, HASH_PRIME), below(entropy, HASH_PRIME))
    sent = grr.perturb(_response(mechanism), hashed(mechanism, seed, symbol), entropy)
    return b"".join(part.to_bytes(4, "little") for part in seed) + sent


def perturb_many(mechanism: OlhMechanism, symbols: NDArray[np.int64], entropy: Entropy) -> NDArray[np.uint8]:
    """Return the values of n devices with the same integer arithmetic: uint8 of shape (n, value_bytes)."""
    a, b, c = (below_many(entropy, HASH_PRIME, len(symbols)) for _ in range(3))
    own = ((a * symbols + b) % HASH_PRIME * symbols + c) % HASH_PRIME * mechanism.hash_range // HASH_SPAN
    seeds = np.stack([a, b, c], axis=1).astype("<u4").view(np.uint8)
    return np.concatenate([seeds, grr.perturb_many(_response(mechanism), own, entropy)], axis=1)


def is_value(mechanism: OlhMechanism, value: bytes) -> bool:
    """Return whether the mechanism can produce a value."""
    if not grr.is_value(_response(mechanism), value[SEED_BYTES:]):
        return False
    return all(int.from_bytes(value[at : at + 4], "little") < HASH_PRIME for at in range(0, SEED_BYTES, 4))


def are_values(mechanism: OlhMechanism, values: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return whether the mechanism can produce each value of shape (n, value_bytes): bool of shape (n,)."""
    seeds = np.ascontiguousarray(values[:, :SEED_BYTES]).view("<u4")
    seeds_ok: NDArray[np.bool_] = np.all(seeds < HASH_PRIME, axis=1)
    return seeds_ok & grr.are_values(_response(mechanism), values[:, SEED_BYTES:])


def support(mechanism: OlhMechanism) -> tuple[Fraction, Fraction]:
    """Return (p, q), the probabilities that a report supports its own symbol and another given symbol.

    With s_y the share of 0 .. P-1 that h sends to y, q = sum over y of s_y P(y sent), and y is
    sent with probability other + (keep - other) s_y.
    """
    keep, other = grr.support(_response(mechanism))
    return keep, other + (keep - other) * collision_probability(mechanism)


def collision_probability(mechanism: OlhMechanism) -> Fraction:
    """Return the probability that two given symbols have the same hash, the sum over y of s_y^2."""
    run, n_longer = divmod(HASH_SPAN, mechanism.hash_range)
    # runs of the numbers below 2^31; the last run has one number less
    squares = n_longer * (run + 1) ** 2 + (mechanism.hash_range - 1 - n_longer) * run**2 + (run - 1) ** 2
    return Fraction(squares, HASH_PRIME**2)


def ratio(mechanism: OlhMechanism) -> Fraction:
    """Return the largest probability ratio between two symbols, under a seed that separates them."""
    return grr.ratio(_response(mechanism))


def channel(mechanism: OlhMechanism) -> dict[bytes, tuple[Fraction, ...]]:
    """Return the channel given one public seed, for small k.

    The seed is independent of the symbol, so the cost of a report is its cost given the seed. There
    are nearly 2^93 seeds. This one, with v = 0, b, 2 b, ... for the least b > P/k, separates as many
    symbols as a seed can.
    """
    response = _response(mechanism)
    keep, other = grr.support(response)
    seed = (0, HASH_PRIME // mechanism.n_symbols + 1, 0)
    head = b"".join(part.to_bytes(4, "little") for part in seed)
    own = [hashed(mechanism, seed, symbol) for symbol in range(mechanism.n_symbols)]
    return {
        head + sent.to_bytes(grr.value_bytes(response), "little"): tuple(keep if sent == h else other for h in own)
        for sent in range(mechanism.hash_range)
    }
