"""Optimised local hashing (`olh`).

A device draws a public seed, independent of its symbol. The seed selects one function h of a family
that maps symbols to 0 .. g-1, with g = round(e^eps) + 1. It sends the seed and h(symbol) through randomised
response over g: kept with p = e^eps / (e^eps + g - 1), else another, uniformly. The published
threshold T = floor(p 2^64) decides, so the realised ratio p (g-1) / (1-p) at p = T / 2^64
lies at or below e^eps. A report supports every symbol with the hash that it sent.
(Wang, Blocki, Li and Jha 2017, "Locally differentially private protocols for frequency estimation", section 4.4.)

The family is that of quadratic polynomials modulo the prime P = 2^31 - 1 (Wegman and Carter
1981): v = (a x^2 + b x + c) mod P with a, b, c each uniform in 0 .. P-1, and
h = floor(v g / 2^31). Any three symbols have independent uniform v, so p, q and the
covariances of the counts are those of ideal hashing and q is known as a fraction. The
g runs of P values differ in length by one or two. A probability of h therefore differs from 1/g by
at most 2^-30, and q by less than g 2^-60. Every product is below 2^53, so the numbers of JavaScript
give the same integers.

The value is a, b and c in four little-endian bytes each, then the sent hash in one or two bytes.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InvalidSpec
from sfumato.limits import MAX_HASH_RANGE, MAX_RESPONSE_SYMBOLS, MAX_SUBSET_SYMBOLS
from sfumato.mechanisms.base import Form, Mechanism, read_numbers
from sfumato.mechanisms.grr import GrrMechanism
from sfumato.privacy.accounting import exp_epsilon
from sfumato.privacy.entropy import WORD_SPAN, Entropy, below, below_many
from sfumato.validation import parameter

HASH_SPAN = 1 << 31
HASH_PRIME = HASH_SPAN - 1
SEED_BYTES = 12
MAX_COUNTED = MAX_SUBSET_SYMBOLS  # maximum number of counted symbols; each costs one hash per report


@dataclass(frozen=True, slots=True)
class OlhMechanism(Mechanism):
    """Local hashing: a public seed and the hashed symbol, which is kept if a 64-bit word is below `keep_threshold`."""

    type: ClassVar[str] = "olh"
    form: ClassVar[Form] = "hash"
    n_symbols: int = parameter("Number k of symbols.", minimum=2, maximum=MAX_RESPONSE_SYMBOLS, example=121)
    hash_range: int = parameter("Number g of hash values.", minimum=2, maximum=MAX_HASH_RANGE, example=4)
    keep_threshold: int = parameter(
        "Threshold floor(p 2^64), in decimal.",
        minimum=1,
        maximum=WORD_SPAN - 1,
        is_word=True,
        example=8768971294881393556,
    )

    @classmethod
    def design(cls, n_symbols: int, epsilon_nano: int) -> Self:
        """Return the mechanism of least variance with a cost of at most `epsilon_nano`.

        Raises
        ------
        InvalidSpec
            There are more than 4097 symbols.
        """
        if n_symbols > MAX_COUNTED:
            raise InvalidSpec(f"olh counts at most {MAX_COUNTED} symbols, not {n_symbols}: use hr or grr")
        weight = exp_epsilon(epsilon_nano)
        hash_range = min(round(weight) + 1, MAX_HASH_RANGE)
        return cls(n_symbols, hash_range, int(weight / (weight + hash_range - 1) * WORD_SPAN))

    @property
    def response(self) -> GrrMechanism:
        """Return the randomised response for the hashed symbol."""
        return GrrMechanism(self.hash_range, self.keep_threshold)

    @property
    def value_bytes(self) -> int:
        """Return the size of a report's value: 13 or 14 bytes."""
        return SEED_BYTES + self.response.value_bytes

    @property
    def n_hashes(self) -> int:
        """Return g."""
        return self.hash_range

    def hashed(self, seed: tuple[Any, Any, Any], symbol: Any) -> Any:
        """Return h(symbol) for the seed (a, b, c): integers, or int64 arrays of one shape."""
        a, b, c = seed
        return ((a * symbol + b) % HASH_PRIME * symbol + c) % HASH_PRIME * self.hash_range // HASH_SPAN

    def _perturb(self, symbol: int, entropy: Entropy) -> bytes:
        """Return a report's value. The words give a, b and c, decide, then select the other value if needed."""
        seed = (below(entropy, HASH_PRIME), below(entropy, HASH_PRIME), below(entropy, HASH_PRIME))
        sent = self.response.perturb(self.hashed(seed, symbol), entropy)
        return b"".join(part.to_bytes(4, "little") for part in seed) + sent

    def _perturb_many(self, symbols: NDArray[np.int64], entropy: Entropy) -> NDArray[np.uint8]:
        a, b, c = (below_many(entropy, HASH_PRIME, len(symbols)) for _ in range(3))
        own = self.hashed((a, b, c), symbols)
        seeds = np.stack([a, b, c], axis=1).astype("<u4").view(np.uint8)
        return np.concatenate([seeds, self.response.perturb_many(own, entropy)], axis=1)

    def is_value(self, value: bytes) -> bool:
        """Return whether the mechanism can produce a value."""
        if not self.response.is_value(value[SEED_BYTES:]):
            return False
        return all(int.from_bytes(value[at : at + 4], "little") < HASH_PRIME for at in range(0, SEED_BYTES, 4))

    def are_values(self, values: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Return whether the mechanism can produce each value of shape (n, value_bytes): bool of shape (n,)."""
        seeds = np.ascontiguousarray(values[:, :SEED_BYTES]).view("<u4")
        seeds_ok: NDArray[np.bool_] = np.all(seeds < HASH_PRIME, axis=1)
        return seeds_ok & self.response.are_values(values[:, SEED_BYTES:])

    def support(self) -> tuple[Fraction, Fraction]:
        """Return (p, q), the probabilities that a report supports its own symbol and another given symbol.

        With s_y the share of 0 .. P-1 that h sends to y, q = sum over y of s_y P(y sent), and y is
        sent with probability other + (keep - other) s_y.
        """
        keep, other = self.response.support()
        return keep, other + (keep - other) * self.collision_probability()

    def collision_probability(self) -> Fraction:
        """Return the probability that two given symbols have the same hash, the sum over y of s_y^2."""
        run, n_longer = divmod(HASH_SPAN, self.hash_range)
        # runs of the numbers below 2^31; the last run has one number less
        squares = n_longer * (run + 1) ** 2 + (self.hash_range - 1 - n_longer) * run**2 + (run - 1) ** 2
        return Fraction(squares, HASH_PRIME**2)

    def evidence(self) -> tuple[Fraction, Fraction]:
        """Return the probabilities of the randomised response, given the seed."""
        return self.response.support()

    def supports(self, values: NDArray[np.uint8], symbols: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether the symbol has the hash that was sent."""
        a, b, c = np.ascontiguousarray(values[:, :SEED_BYTES]).view("<u4").astype(np.int64).T[:, :, None]
        hashed = self.hashed((a, b, c), symbols)
        return np.asarray(hashed == read_numbers(values[:, SEED_BYTES:])[:, None], dtype=np.bool_)

    def ratio(self) -> Fraction:
        """Return the largest probability ratio between two symbols, under a seed that separates them."""
        return self.response.ratio()

    def channel(self) -> dict[bytes, tuple[Fraction, ...]]:
        """Return the channel given one public seed, for small k.

        The seed is independent of the symbol, so the cost of a report is its cost given the seed. There
        are nearly 2^93 seeds. This one, with v = 0, b, 2 b, ... for the least b > P/k, separates as many
        symbols as a seed can.
        """
        response = self.response
        keep, other = response.support()
        seed = (0, HASH_PRIME // self.n_symbols + 1, 0)
        head = b"".join(part.to_bytes(4, "little") for part in seed)
        own = [self.hashed(seed, symbol) for symbol in range(self.n_symbols)]
        return {
            head + sent.to_bytes(response.value_bytes, "little"): tuple(keep if sent == h else other for h in own)
            for sent in range(self.hash_range)
        }

    def _naming(self) -> tuple[Fraction, Fraction]:
        # the sent hash is uniform, and the two symbols share it if they collide
        return Fraction(1, self.hash_range), self.collision_probability() / self.hash_range
