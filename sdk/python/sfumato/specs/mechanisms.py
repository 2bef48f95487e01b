"""Mechanisms: how a symbol is perturbed, as published."""

from dataclasses import dataclass
from typing import ClassVar

from sfumato.accounting import DRAW_SPAN
from sfumato.specs.checks import is_int, require
from sfumato.specs.encodings import MAX_FEATURES, MAX_STEPS, MAX_SYMBOLS

MAX_SUBSET_SYMBOLS = 4096  # subset selection and unary encoding send one bit a symbol
MAX_HASH_RANGE = 1 << 16  # of local hashing
MAX_SCALE_PART = 1 << 32  # numerator and denominator of a Laplace scale
MAX_SCALE = 1 << 26  # lattice units
MAX_MARGIN = 1 << 30  # lattice units: what is reported of a feature fits 32 bits
MAX_WINDOW_SYMBOLS = 1 << 12  # of a circle


@dataclass(frozen=True, slots=True)
class GrrMechanism:
    """k-ary randomised response: keeps the symbol where a word < keep_threshold."""

    type: ClassVar[str] = "grr"
    n_symbols: int  # k
    keep_threshold: int  # T = floor(p 2^64)

    def __post_init__(self) -> None:
        require(is_int(self.n_symbols) and 2 <= self.n_symbols <= MAX_SYMBOLS, f"grr has 2 to {MAX_SYMBOLS} symbols")
        require(is_int(self.keep_threshold) and 0 < self.keep_threshold <= DRAW_SPAN, "keep_threshold lies in 1..2**64")


@dataclass(frozen=True, slots=True)
class SsMechanism:
    """Subset selection: a subset that holds the symbol where a word < hold_threshold."""

    type: ClassVar[str] = "ss"
    n_symbols: int  # k
    subset_size: int  # d
    hold_threshold: int  # T = floor(p 2^64)

    def __post_init__(self) -> None:
        require(
            is_int(self.n_symbols) and 2 <= self.n_symbols <= MAX_SUBSET_SYMBOLS,
            f"ss has 2 to {MAX_SUBSET_SYMBOLS} symbols",
        )
        require(is_int(self.subset_size) and 1 <= self.subset_size < self.n_symbols, "subset_size lies in 1..k-1")
        require(
            is_int(self.hold_threshold) and 0 < self.hold_threshold < DRAW_SPAN, "hold_threshold lies in 1..2**64-1"
        )


@dataclass(frozen=True, slots=True)
class OueMechanism:
    """Optimised unary encoding: k bits, the own one set by a fair coin, another where a word < other_threshold."""

    type: ClassVar[str] = "oue"
    n_symbols: int  # k
    other_threshold: int  # T = ceil(q 2^64)

    def __post_init__(self) -> None:
        require(
            is_int(self.n_symbols) and 2 <= self.n_symbols <= MAX_SUBSET_SYMBOLS,
            f"oue has 2 to {MAX_SUBSET_SYMBOLS} symbols",
        )
        require(
            is_int(self.other_threshold) and 0 < self.other_threshold < DRAW_SPAN, "other_threshold lies in 1..2**64-1"
        )


@dataclass(frozen=True, slots=True)
class OlhMechanism:
    """Local hashing: a public seed, and the hashed symbol, kept where a word < keep_threshold."""

    type: ClassVar[str] = "olh"
    n_symbols: int  # k
    hash_range: int  # g
    keep_threshold: int  # T = floor(p 2^64)

    def __post_init__(self) -> None:
        require(is_int(self.n_symbols) and 2 <= self.n_symbols <= MAX_SYMBOLS, f"olh has 2 to {MAX_SYMBOLS} symbols")
        require(
            is_int(self.hash_range) and 2 <= self.hash_range <= MAX_HASH_RANGE,
            f"hash_range lies in 2..{MAX_HASH_RANGE}",
        )
        require(
            is_int(self.keep_threshold) and 0 < self.keep_threshold < DRAW_SPAN, "keep_threshold lies in 1..2**64-1"
        )


@dataclass(frozen=True, slots=True)
class HrMechanism:
    """Hadamard response: the sign of a public random Walsh coefficient, kept where a word < keep_threshold."""

    type: ClassVar[str] = "hr"
    n_symbols: int  # k
    keep_threshold: int  # T = floor(p 2^64)

    def __post_init__(self) -> None:
        require(is_int(self.n_symbols) and 2 <= self.n_symbols <= MAX_SYMBOLS, f"hr has 2 to {MAX_SYMBOLS} symbols")
        require(
            is_int(self.keep_threshold) and 0 < self.keep_threshold < DRAW_SPAN, "keep_threshold lies in 1..2**64-1"
        )

    @property
    def n_coefficients(self) -> int:
        """K, the least power of two above k."""
        return 1 << self.n_symbols.bit_length()


@dataclass(frozen=True, slots=True)
class WindowMechanism:
    """The cyclic window: a symbol of the window around the own one where a word < inside_threshold."""

    type: ClassVar[str] = "window"
    n_symbols: int  # k, on a circle
    window_size: int  # w
    inside_threshold: int  # T = floor(p 2^64)

    def __post_init__(self) -> None:
        require(
            is_int(self.n_symbols) and 2 <= self.n_symbols <= MAX_WINDOW_SYMBOLS,
            f"window has 2 to {MAX_WINDOW_SYMBOLS} symbols",
        )
        require(is_int(self.window_size) and 1 <= self.window_size < self.n_symbols, "window_size lies in 1..k-1")
        require(
            is_int(self.inside_threshold) and 0 < self.inside_threshold < DRAW_SPAN,
            "inside_threshold lies in 1..2**64-1",
        )


@dataclass(frozen=True, slots=True)
class DiscreteLaplaceMechanism:
    """Exact discrete Laplace noise on every feature of a lattice's vector, P(z) ~ exp(-|z| / scale).

    The scale is scale_numerator / scale_denominator lattice units; a scale of 0 adds nothing
    (a dry run). What is sent of a feature is clamped to -margin .. steps + margin.
    """

    type: ClassVar[str] = "discrete_laplace"
    n_features: int  # K
    steps: int  # of the lattice
    scale_numerator: int
    scale_denominator: int
    margin: int

    def __post_init__(self) -> None:
        require(
            is_int(self.n_features) and 1 <= self.n_features <= MAX_FEATURES,
            f"discrete_laplace has 1 to {MAX_FEATURES} features",
        )
        require(is_int(self.steps) and 1 <= self.steps <= MAX_STEPS, f"steps lies in 1..{MAX_STEPS}")
        for name, least in (("scale_numerator", 0), ("scale_denominator", 1)):
            part = getattr(self, name)
            require(is_int(part) and least <= part <= MAX_SCALE_PART, f"{name} lies in {least}..{MAX_SCALE_PART}")
        require(
            self.scale_numerator <= MAX_SCALE * self.scale_denominator,
            f"the scale is at most {MAX_SCALE} lattice units",
        )
        require(is_int(self.margin) and 0 <= self.margin <= MAX_MARGIN, f"margin lies in 0..{MAX_MARGIN}")

    @property
    def n_symbols(self) -> int:
        return int((self.steps + 1) ** self.n_features)


Mechanism = (
    GrrMechanism | SsMechanism | OueMechanism | OlhMechanism | HrMechanism | WindowMechanism | DiscreteLaplaceMechanism
)
