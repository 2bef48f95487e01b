"""The cyclic window (`window`).

The k symbols lie on a circle. With probability p = w e^eps / (w e^eps + k - w) a device sends
one of the w symbols of a window around its own, uniformly; otherwise one of the other k - w,
uniformly. The published threshold T = floor(p 2^64) decides, so the realised ratio
p (k-w) / ((1-p) w) at p = T / 2^64 lies at or below e^eps. With own symbol a and offset o,
drawn in 0 .. w-1 or in w .. k-1, what is sent is (a + o - floor(w/2)) mod k, as a
little-endian integer of fixed width. (Its continuous form on the line is the square wave of Li et al. 2020,
"Estimating numerical distributions under local differential privacy".)

A report supports the neighbours of a symbol too, so two numbers p and q do not describe it.
Estimates use `offset_chances`.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from sfumato.limits import MAX_WINDOW_SYMBOLS
from sfumato.mechanisms.base import Form, Mechanism, read_numbers, write_numbers
from sfumato.privacy.accounting import exp_epsilon
from sfumato.privacy.entropy import WORD_SPAN, Entropy, below, below_many, word
from sfumato.validation import parameter, require


@dataclass(frozen=True, slots=True)
class WindowMechanism(Mechanism):
    """Symbols on a circle: reports one in a window around the own symbol if a word is below `inside_threshold`."""

    type: ClassVar[str] = "window"
    form: ClassVar[Form] = "number"
    has_support: ClassVar[bool] = False
    n_symbols: int = parameter("Number k of symbols.", minimum=2, maximum=MAX_WINDOW_SYMBOLS, example=16)
    window_size: int = parameter("Number w of symbols in the window.", minimum=1, maximum=MAX_WINDOW_SYMBOLS, example=6)
    inside_threshold: int = parameter(
        "Threshold floor(p 2^64), in decimal.",
        minimum=1,
        maximum=WORD_SPAN - 1,
        is_word=True,
        example=11439616490394810368,
    )

    def __post_init__(self) -> None:
        Mechanism.__post_init__(self)
        require(
            self.window_size < self.n_symbols,
            f"window_size must be less than n_symbols: {self.window_size} of {self.n_symbols}",
        )

    @classmethod
    def design(cls, n_symbols: int, epsilon_nano: int) -> Self:
        """Return the mechanism with a cost of at most `epsilon_nano` and w = max(1, round(k / (1 + e^(eps/2))))."""
        size = max(1, round(n_symbols / (1 + exp_epsilon(epsilon_nano // 2))))
        weight = size * exp_epsilon(epsilon_nano)
        inside = weight / (weight + n_symbols - size)
        return cls(n_symbols, size, int(inside * WORD_SPAN))

    @property
    def value_bytes(self) -> int:
        """Return the size of a report's value: 1 or 2 bytes."""
        return 1 if self.n_symbols <= 256 else 2

    @property
    def n_named(self) -> int:
        """Return w."""
        return self.window_size

    def _perturb(self, symbol: int, entropy: Entropy) -> bytes:
        """Return a report's value. The words decide, then select the place inside or outside the window."""
        k, w = self.n_symbols, self.window_size
        inside = word(entropy) < self.inside_threshold
        offset = below(entropy, w) if inside else w + below(entropy, k - w)
        return ((symbol + offset - w // 2) % k).to_bytes(self.value_bytes, "little")

    def _perturb_many(self, symbols: NDArray[np.int64], entropy: Entropy) -> NDArray[np.uint8]:
        k, w = self.n_symbols, self.window_size
        inside = entropy.words(len(symbols)) < np.uint64(self.inside_threshold)
        offsets = np.empty(len(symbols), dtype=np.int64)
        offsets[inside] = below_many(entropy, w, int(inside.sum()))
        offsets[~inside] = w + below_many(entropy, k - w, int((~inside).sum()))
        return write_numbers((symbols + offsets - w // 2) % k, self.value_bytes)

    def is_value(self, value: bytes) -> bool:
        """Return whether the mechanism can produce a value."""
        return len(value) == self.value_bytes and int.from_bytes(value, "little") < self.n_symbols

    def are_values(self, values: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Return whether the mechanism can produce each value of shape (n, value_bytes): bool of shape (n,)."""
        return read_numbers(values) < self.n_symbols

    def offset_chances(self) -> tuple[Fraction, ...]:
        """Return for each t = 0 .. k-1 the probability that (sent - own) mod k is t."""
        near, far = self.evidence()
        k, w = self.n_symbols, self.window_size
        return tuple(near if (t + w // 2) % k < w else far for t in range(k))

    def evidence(self) -> tuple[Fraction, Fraction]:
        """Return the probabilities of one symbol inside and one outside of the window."""
        inside = Fraction(self.inside_threshold, WORD_SPAN)
        w = self.window_size
        return inside / w, (1 - inside) / (self.n_symbols - w)

    def supports(self, values: NDArray[np.uint8], symbols: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether the number sent lies in the window around the symbol."""
        offsets = read_numbers(values)[:, None] - symbols + self.window_size // 2
        return np.asarray(offsets % self.n_symbols < self.window_size, dtype=np.bool_)

    def ratio(self) -> Fraction:
        """Return the largest probability ratio between two symbols."""
        near, far = self.evidence()
        return max(near / far, far / near)

    def channel(self) -> dict[bytes, tuple[Fraction, ...]]:
        """Return the probability of each value given each symbol."""
        chances, k, width = self.offset_chances(), self.n_symbols, self.value_bytes
        return {
            sent.to_bytes(width, "little"): tuple(chances[(sent - own) % k] for own in range(k)) for sent in range(k)
        }

    def _naming(self) -> tuple[Fraction, Fraction]:
        k, w = self.n_symbols, self.window_size
        return Fraction(w, k), Fraction(max(0, 2 * w - k), k)
