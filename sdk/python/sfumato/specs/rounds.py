"""What a round publishes: features, the draw, and the round spec as a whole."""

import math
from dataclasses import dataclass

from sfumato.accounting import DRAW_SPAN
from sfumato.specs.checks import finite, is_int, require
from sfumato.specs.encodings import Encoding, LatticeEncoding
from sfumato.specs.mechanisms import DiscreteLaplaceMechanism, Mechanism

SPEC_VERSION = 1


@dataclass(frozen=True, slots=True)
class Feature:
    """One feature of a record, with its public bounds in its own unit."""

    name: str
    lower: float
    upper: float
    unit: str = ""

    def __post_init__(self) -> None:
        require(isinstance(self.name, str) and 0 < len(self.name) <= 64, "a feature needs a name of 1 to 64 characters")
        require(isinstance(self.unit, str) and len(self.unit) <= 64, f"{self.name}: a unit has at most 64 characters")
        for bound in ("lower", "upper"):  # floats from here on, so that every path scales with the same numbers
            object.__setattr__(self, bound, finite(getattr(self, bound), f"{self.name}: {bound}"))
        require(self.lower < self.upper, f"{self.name}: lower must lie below upper")
        require(math.isfinite(self.upper - self.lower), f"{self.name}: bounds lie too far apart")


@dataclass(frozen=True, slots=True)
class Draw:
    """The interval [lo, hi) of a device's secret 64-bit draw that answers a round."""

    lo: int = 0
    hi: int = DRAW_SPAN

    def __post_init__(self) -> None:
        require(is_int(self.lo) and is_int(self.hi), "a draw interval has integer ends")
        require(0 <= self.lo < self.hi <= DRAW_SPAN, "a draw interval needs 0 <= lo < hi <= 2**64")

    @classmethod
    def between(cls, lo: float, hi: float) -> "Draw":
        """The interval that holds the fractions [lo, hi) of all draws.

        Examples
        --------
        >>> from sfumato import Draw
        >>> Draw.between(0, 0.5).hi == 2**63
        True
        """
        return cls(math.floor(lo * DRAW_SPAN), math.floor(hi * DRAW_SPAN))

    def holds(self, draw: int) -> bool:
        """Whether a device with this draw answers."""
        return self.lo <= draw < self.hi


@dataclass(frozen=True, slots=True)
class RoundSpec:
    """Everything a device needs to answer a round; the same bytes for every device."""

    features: tuple[Feature, ...]
    encoding: Encoding
    mechanism: Mechanism
    draw: Draw = Draw()

    def __post_init__(self) -> None:
        require(len(self.features) == self.encoding.n_features, "the encoding is for another number of features")
        if isinstance(self.encoding, LatticeEncoding) or isinstance(self.mechanism, DiscreteLaplaceMechanism):
            require(_is_of_lattice(self.encoding, self.mechanism), "a lattice and discrete_laplace over it go together")
        require(self.mechanism.n_symbols == self.encoding.n_symbols, "the mechanism is for another number of symbols")


def _is_of_lattice(encoding: Encoding, mechanism: Mechanism) -> bool:
    return (
        isinstance(encoding, LatticeEncoding)
        and isinstance(mechanism, DiscreteLaplaceMechanism)
        and (encoding.n_features, encoding.steps) == (mechanism.n_features, mechanism.steps)
    )
