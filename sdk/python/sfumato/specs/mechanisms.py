"""Specifications of the mechanisms, which perturb a symbol."""

from dataclasses import dataclass
from typing import ClassVar

from sfumato.limits import MAX_FEATURES, MAX_STEPS, MAX_SYMBOLS
from sfumato.privacy.accounting import DRAW_SPAN
from sfumato.validation import require, require_int

MAX_CELL_SYMBOLS = 4096  # maximum cells of a grid with one bit per symbol in a report
MAX_SUBSET_SYMBOLS = MAX_CELL_SYMBOLS + 1  # the cells, and one symbol for records outside of the bounds
MAX_RESPONSE_SYMBOLS = MAX_SYMBOLS + 1  # likewise
MAX_HASH_RANGE = 1 << 16  # maximum range of local hashing
MAX_SCALE_PART = 1 << 32  # numerator and denominator of a Laplace scale
MAX_SCALE = 1 << 26  # lattice units
MAX_MARGIN = 1 << 30  # lattice units; a reported feature has at most 32 bits
MAX_WINDOW_SYMBOLS = 1 << 12  # maximum number of symbols on a circle


@dataclass(frozen=True, slots=True)
class GrrMechanism:
    """k-ary randomised response. It keeps the symbol if a word < keep_threshold."""

    type: ClassVar[str] = "grr"
    n_symbols: int  # k
    keep_threshold: int  # T = floor(p 2^64)

    def __post_init__(self) -> None:
        require_int(self.n_symbols, 2, MAX_RESPONSE_SYMBOLS, f"grr has 2 to {MAX_RESPONSE_SYMBOLS} symbols")
        require_int(self.keep_threshold, 1, DRAW_SPAN, "keep_threshold lies in 1..2**64")


@dataclass(frozen=True, slots=True)
class SsMechanism:
    """Subset selection. The subset contains the symbol if a word < hold_threshold."""

    type: ClassVar[str] = "ss"
    n_symbols: int  # k
    subset_size: int  # d
    hold_threshold: int  # T = floor(p 2^64)

    def __post_init__(self) -> None:
        require_int(self.n_symbols, 2, MAX_SUBSET_SYMBOLS, f"ss has 2 to {MAX_SUBSET_SYMBOLS} symbols")
        require_int(self.subset_size, 1, self.n_symbols - 1, "subset_size lies in 1..k-1")
        require_int(self.hold_threshold, 1, DRAW_SPAN - 1, "hold_threshold lies in 1..2**64-1")


@dataclass(frozen=True, slots=True)
class OueMechanism:
    """Optimised unary encoding in k bits. The own bit is random; another bit is set if a word < other_threshold."""

    type: ClassVar[str] = "oue"
    n_symbols: int  # k
    other_threshold: int  # T = ceil(q 2^64)

    def __post_init__(self) -> None:
        require_int(self.n_symbols, 2, MAX_SUBSET_SYMBOLS, f"oue has 2 to {MAX_SUBSET_SYMBOLS} symbols")
        require_int(self.other_threshold, 1, DRAW_SPAN - 1, "other_threshold lies in 1..2**64-1")


@dataclass(frozen=True, slots=True)
class OlhMechanism:
    """Local hashing: a public seed and the hashed symbol, which is kept if a word < keep_threshold."""

    type: ClassVar[str] = "olh"
    n_symbols: int  # k
    hash_range: int  # g
    keep_threshold: int  # T = floor(p 2^64)

    def __post_init__(self) -> None:
        require_int(self.n_symbols, 2, MAX_RESPONSE_SYMBOLS, f"olh has 2 to {MAX_RESPONSE_SYMBOLS} symbols")
        require_int(self.hash_range, 2, MAX_HASH_RANGE, f"hash_range lies in 2..{MAX_HASH_RANGE}")
        require_int(self.keep_threshold, 1, DRAW_SPAN - 1, "keep_threshold lies in 1..2**64-1")


@dataclass(frozen=True, slots=True)
class HrMechanism:
    """Hadamard response: the sign of a public random Walsh coefficient, kept if a word < keep_threshold."""

    type: ClassVar[str] = "hr"
    n_symbols: int  # k
    keep_threshold: int  # T = floor(p 2^64)

    def __post_init__(self) -> None:
        require_int(self.n_symbols, 2, MAX_RESPONSE_SYMBOLS, f"hr has 2 to {MAX_RESPONSE_SYMBOLS} symbols")
        require_int(self.keep_threshold, 1, DRAW_SPAN - 1, "keep_threshold lies in 1..2**64-1")

    @property
    def n_coefficients(self) -> int:
        """Return K, the least power of two above k."""
        return 1 << self.n_symbols.bit_length()


@dataclass(frozen=True, slots=True)
class WindowMechanism:
    """The cyclic window. The sent symbol lies in the window around the own one if a word < inside_threshold."""

    type: ClassVar[str] = "window"
    n_symbols: int  # k, on a circle
    window_size: int  # w
    inside_threshold: int  # T = floor(p 2^64)

    def __post_init__(self) -> None:
        require_int(self.n_symbols, 2, MAX_WINDOW_SYMBOLS, f"window has 2 to {MAX_WINDOW_SYMBOLS} symbols")
        require_int(self.window_size, 1, self.n_symbols - 1, "window_size lies in 1..k-1")
        require_int(self.inside_threshold, 1, DRAW_SPAN - 1, "inside_threshold lies in 1..2**64-1")


@dataclass(frozen=True, slots=True)
class DiscreteLaplaceMechanism:
    """Exact discrete Laplace noise on every feature of a lattice's vector, P(z) ~ exp(-|z| / scale).

    The scale is scale_numerator / scale_denominator lattice units. A scale of 0, for a dry run, adds
    no noise. A sent number is clamped to -margin .. reach + margin, where reach is the larger of steps and mark.

    A vector has one more number if the round counts records outside of the bounds: 0 for a record inside. A record
    outside has this number at `mark` and each feature at floor(steps/2). It differs from a record inside by at most
    K ceil(steps/2) + mark in L1, which is at most K steps, the largest difference of two records inside. So the
    additional number costs nothing.
    """

    type: ClassVar[str] = "discrete_laplace"
    n_features: int  # K
    steps: int  # of the lattice
    scale_numerator: int
    scale_denominator: int
    margin: int
    mark: int = 0  # last number of a record outside; 0 if vectors have no such number

    def __post_init__(self) -> None:
        require_int(self.n_features, 1, MAX_FEATURES, f"discrete_laplace has 1 to {MAX_FEATURES} features")
        require_int(self.steps, 1, MAX_STEPS, f"steps lies in 1..{MAX_STEPS}")
        for name, least in (("scale_numerator", 0), ("scale_denominator", 1)):
            part = getattr(self, name)
            require_int(part, least, MAX_SCALE_PART, f"{name} lies in {least}..{MAX_SCALE_PART}")
        require(
            self.scale_numerator <= MAX_SCALE * self.scale_denominator,
            f"the scale is at most {MAX_SCALE} lattice units",
        )
        require_int(self.margin, 0, MAX_MARGIN, f"margin lies in 0..{MAX_MARGIN}")
        most = self.n_features * (self.steps // 2)
        require_int(self.mark, 0, most, f"mark lies in 0..{most}, so that a record outside costs no more than others")

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


Mechanism = (
    GrrMechanism | SsMechanism | OueMechanism | OlhMechanism | HrMechanism | WindowMechanism | DiscreteLaplaceMechanism
)
