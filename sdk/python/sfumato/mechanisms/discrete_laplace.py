"""Exact discrete Laplace noise on a lattice's vectors (`discrete_laplace`).

A device adds to each of its K integers 0..steps an integer of noise, P(z) = (1-r)/(1+r) r^|z|
with r = exp(-1/scale), and sends the sums. One feature's whole clipped range is steps units, so
it costs steps/scale, and K of them, which one record holds, K steps/scale: epsilon/K each
(sequential composition, Dwork and Roth 2014, theorem 3.14). The published scale is a fraction t/s, rounded up, so the
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
the largest sum needs.
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, sinh
from typing import ClassVar, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InvalidSpec
from sfumato.limits import MAX_FEATURES, MAX_MARGIN, MAX_SCALE, MAX_SCALE_PART, MAX_STEPS
from sfumato.mechanisms.base import Form, Mechanism, Symbol
from sfumato.privacy.accounting import NANO
from sfumato.privacy.entropy import Entropy, bernoulli_exp, bernoulli_exp_many, pick, pick_many
from sfumato.validation import parameter, parameters_of, require

MARGIN_SCALES = 16


@dataclass(frozen=True, slots=True)
class DiscreteLaplaceMechanism(Mechanism):
    """Exact discrete Laplace noise on every feature of a lattice vector, sampled with integer arithmetic.

    The noise has P(z) ~ exp(-|z| / scale), with scale_numerator / scale_denominator lattice units as its scale. A scale
    of 0, for a dry run, adds no noise. A sent number is clamped to -margin .. reach + margin, where reach is the larger
    of steps and mark.

    A vector has one more number if the round counts records outside of the bounds: 0 for a record inside. A record
    outside has this number at `mark` and each feature at floor(steps/2). It differs from a record inside by at most
    K ceil(steps/2) + mark in L1, which is at most K steps, the largest difference of two records inside. So the
    additional number costs nothing.
    """

    type: ClassVar[str] = "discrete_laplace"
    form: ClassVar[Form] = "vector"
    has_support: ClassVar[bool] = False
    n_features: int = parameter("Number K of features.", minimum=1, maximum=MAX_FEATURES, example=4)
    steps: int = parameter("Number of steps of the lattice.", minimum=1, maximum=MAX_STEPS, example=1000)
    scale_numerator: int = parameter(
        "Numerator of the scale K steps / epsilon, in lattice units.", minimum=1, maximum=MAX_SCALE_PART, example=4000
    )
    scale_denominator: int = parameter("Denominator of the scale.", minimum=1, maximum=MAX_SCALE_PART, example=1)
    margin: int = parameter(
        "Reported values are clamped to -margin .. max(steps, mark) + margin.",
        minimum=0,
        maximum=MAX_MARGIN,
        example=64_000,
    )
    mark: int = parameter(
        "Last number of the vector of a record outside of the bounds, with each feature at "
        "floor(steps / 2). It is 0 for other records. If `mark` is 0 or absent, vectors have no such number.",
        default=0,
        minimum=0,
        maximum=MAX_FEATURES * MAX_STEPS,
    )

    def __post_init__(self) -> None:
        for name, declaration in parameters_of(type(self)).items():
            if name != "scale_numerator" or self.scale_numerator != 0:  # 0 only in a dry run
                declaration.validate(name, getattr(self, name))
        require(
            self.scale_numerator <= MAX_SCALE * self.scale_denominator,
            f"the scale must be at most {MAX_SCALE} lattice units: {self.scale_numerator}/{self.scale_denominator}",
        )
        most = self.n_features * (self.steps // 2)
        require(
            self.mark <= most,
            f"mark must be at most {most}, so that a record outside costs no more than others: {self.mark}",
        )

    @classmethod
    def design(cls, n_features: int, steps: int, epsilon_nano: int) -> Self:
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
        return cls(n_features, steps, scale_numerator, denominator, margin)

    def marked(self) -> Self:
        """Return the mechanism with a mark, at the same cost. Raise InvalidSpec for a lattice of one step."""
        if self.steps == 1:
            raise InvalidSpec("a lattice that counts records outside must have at least 2 steps")
        return replace(self, mark=self.n_features * (self.steps // 2))

    # ---- size ----

    @property
    def n_symbols(self) -> int:
        return int((self.steps + 1) ** self.n_features)

    @property
    def n_numbers(self) -> int:
        """Return the numbers of a vector: the features, and the mark if there is one."""
        return self.n_features + (self.mark > 0)

    @property
    def reach(self) -> int:
        """Return the largest number of a vector before the noise."""
        return max(self.steps, self.mark)

    @property
    def largest(self) -> int:
        """Return the largest number in a report, which is that of reach + margin."""
        return self.reach + 2 * self.margin

    @property
    def width(self) -> int:
        """Return the bytes of one feature in a report, 1 to 4."""
        return max(1, (self.largest.bit_length() + 7) // 8)

    @property
    def value_bytes(self) -> int:
        """Return the size of a report's value in bytes."""
        return self.n_numbers * self.width

    @property
    def tally_width(self) -> int:
        """Raise InvalidSpec."""
        raise InvalidSpec("vectors are stored and not counted: use a sample")

    @property
    def lattice(self) -> tuple[int, int]:
        """Return the number of features and of steps of the lattice."""
        return self.n_features, self.steps

    @property
    def outside_vector(self) -> tuple[int, ...]:
        """Return the vector of a record outside: each feature in the middle, and the mark."""
        return (*(self.steps // 2,) * self.n_features, self.mark)

    # ---- devices ----

    def is_symbol(self, symbol: Symbol) -> bool:
        """Return whether the mechanism perturbs a vector."""
        return (
            isinstance(symbol, tuple)
            and len(symbol) == self.n_numbers
            and all(0 <= place <= self.steps for place in symbol[: self.n_features])
            and symbol[self.n_features :] in {(), (0,), (self.mark,)}
        )

    def are_symbols(self, symbols: NDArray[np.int64]) -> bool:
        """Return whether the mechanism perturbs each vector of shape (n, n_numbers)."""
        fits = symbols.shape == (len(symbols), self.n_numbers)
        return fits and (symbols.size == 0 or bool(symbols.min() >= 0 and symbols.max() <= self.reach))

    def _perturb(self, vector: tuple[int, ...], entropy: Entropy) -> bytes:  # type: ignore[override]
        """Return a report's value. It draws the noise of the features in order."""
        parts = []
        for place in vector:
            reached = place + noise(self, entropy) + self.margin
            parts.append(min(max(reached, 0), self.largest).to_bytes(self.width, "little"))
        return b"".join(parts)

    def _perturb_many(self, vectors: NDArray[np.int64], entropy: Entropy) -> NDArray[np.uint8]:
        reached = np.empty(vectors.shape, dtype="<u8")
        for feature in range(self.n_numbers):
            sums = vectors[:, feature] + _noise_many(self, len(vectors), entropy) + self.margin
            reached[:, feature] = np.clip(sums, 0, self.largest)
        parts = reached.view(np.uint8).reshape(*vectors.shape, 8)[:, :, : self.width]
        return np.ascontiguousarray(parts).reshape(len(vectors), self.value_bytes)

    # ---- values ----

    def is_value(self, value: bytes) -> bool:
        """Return whether the mechanism can produce a value."""
        if len(value) != self.value_bytes:
            return False
        step = self.width
        return all(int.from_bytes(value[at : at + step], "little") <= self.largest for at in range(0, len(value), step))

    def are_values(self, values: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Return whether the mechanism can produce each value of shape (n, value_bytes): bool of shape (n,)."""
        return np.asarray((self._numbers(values) <= self.largest).all(axis=1), dtype=np.bool_)

    def vectors_of(self, values: NDArray[np.uint8]) -> NDArray[np.int32]:
        """Return the vectors in values of shape (n, value_bytes), in lattice units: int32 of shape (n, n_numbers)."""
        return (self._numbers(values) - self.margin).astype(np.int32)

    def _numbers(self, values: NDArray[np.uint8]) -> NDArray[np.int64]:
        parts = values.reshape(len(values), self.n_numbers, self.width)
        places = 256 ** np.arange(self.width, dtype=np.int64)
        return parts.astype(np.int64) @ places

    # ---- the channel ----

    def epsilon(self) -> Fraction:
        """Return the exact cost of a report, K steps s/t. Raise ZeroDivisionError for a scale of 0."""
        return Fraction(self.n_features * self.steps * self.scale_denominator, self.scale_numerator)

    def _realised_epsilon(self) -> int:
        return ceil(self.epsilon() * NANO)

    def variance(self) -> float:
        """Return the variance of a feature's noise before the clamp, 2 r / (1-r)^2 squared lattice units."""
        if self.scale_numerator == 0:
            return 0.0
        return 0.5 / sinh(self.scale_denominator / self.scale_numerator / 2) ** 2

    def evidence(self) -> NoReturn:
        """Raise InvalidSpec."""
        raise InvalidSpec("noisy vectors support no symbol: their likelihood is that of the noise")

    def supports(self, values: NDArray[np.uint8], symbols: NDArray[np.int64]) -> NoReturn:  # noqa: ARG002
        """Raise InvalidSpec."""
        self.evidence()

    def ratio(self) -> NoReturn:
        """Raise InvalidSpec."""
        raise InvalidSpec("the ratio of discrete Laplace noise is not a fraction: use `epsilon`")

    def channel(self) -> NoReturn:
        """Raise InvalidSpec."""
        raise InvalidSpec("the probabilities of discrete Laplace noise are not fractions: use `epsilon`")

    def _naming(self) -> NoReturn:
        raise InvalidSpec("no privacy blanket is known for noisy vectors; a shuffler cannot reduce their stated cost")


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
