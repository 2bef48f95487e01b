"""A round as planned, and what every plan's sizes are made of: what reports can tell, parts of draws and epsilon."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from math import ceil
from typing import Literal

from sfumato.accounting import EPSILON_MIN_NANO, exp_epsilon, parse_epsilon
from sfumato.errors import InvalidSpec
from sfumato.mechanisms import design, design_for
from sfumato.precision import Precision, precision, signal_of
from sfumato.specs import Draw, Encoding, Feature, RoundSpec

MAX_JSON_INT = (1 << 53) - 1
MIN_EFFECTIVE_REPORTS = 1e4  # below this the number of clusters is not to be told
Z = 3.0  # standard errors a dense cell stands above noise
DENSE_SHARE = 0.5  # r, see `uniform_grid_cells`


@dataclass(frozen=True, slots=True)
class PlannedRound:
    """A round that a plan will ask for, as far as public facts tell.

    Attributes
    ----------
    draw : Draw
        Which devices answer.
    kind : {'auto', 'grr', 'window', 'discrete_laplace'}
        Of the mechanism, as `sfumato.mechanisms.design_for` takes it.
    epsilon_nano : int
        What an answer may cost.
    n_symbols : int
        k; at most, where `adapts`.
    encoding : Encoding or None
        None where the plan makes it: of public directions, or of what earlier rounds tell.
    adapts : bool
        The encoding follows from what earlier rounds tell.
    """

    draw: Draw
    kind: Literal["auto", "grr", "window", "discrete_laplace"]
    epsilon_nano: int
    n_symbols: int
    encoding: Encoding | None = None
    adapts: bool = False

    def spec(self, features: tuple[Feature, ...], encoding: Encoding | None = None) -> RoundSpec:
        """The round as it is published, over `encoding` where the plan had to find it first."""
        over = self.encoding if encoding is None else encoding
        if over is None:
            raise InvalidSpec("the plan makes the encoding of this round")
        return RoundSpec(features, over, design_for(over, self.kind, self.epsilon_nano), self.draw)


def whole_round(epsilon: float, encoding: Encoding, draw: Draw | None = None) -> PlannedRound:
    """A round over a known encoding, by default for every draw."""
    return PlannedRound(draw or Draw(), "auto", parse_epsilon(epsilon), encoding.n_symbols, encoding)


def effective_reports(n_reports: int, epsilon_nano: int) -> float:
    """N_eff = N (e^eps - 1)^2 / (4 e^eps)."""
    return n_reports * signal_of(exp_epsilon(epsilon_nano))


@lru_cache(maxsize=4096)
def precision_of(kind: str, n_symbols: int, epsilon_nano: int) -> Precision:
    """The precision of the mechanism that `design` makes of these."""
    return precision(design(kind, n_symbols, epsilon_nano))


def reports_to_tell(n_symbols: int, zero_variance: float, dense_share: float = DENSE_SHARE) -> int:
    """What it takes to tell the dense cells of a grid of k cells from noise, at least 1.

    N = z² (v + f) / f² at a dense cell's f = 1/(r k): v by the mechanism, f by the devices
    being a sample.
    """
    dense = min(1.0, 1 / (dense_share * n_symbols))
    return min(max(1, ceil(Z**2 * (zero_variance + dense) / dense**2)), MAX_JSON_INT)


def draws(shares: Sequence[int]) -> list[Draw]:
    """Intervals of the draw in proportion to whole numbers; they meet and leave no draw out."""
    ends = list(accumulate(shares, initial=0))
    return [Draw.between(lo / ends[-1], hi / ends[-1]) for lo, hi in pairwise(ends)]


def spending(epsilon_nano: int, n_parts: int) -> list[int]:
    """Nano-epsilon of equal parts, their sum at most the whole: every device pays for every part.

    Raises
    ------
    InvalidSpec
        A part would be less than any mechanism may cost.
    """
    part = epsilon_nano // n_parts
    if part < EPSILON_MIN_NANO:
        raise InvalidSpec(f"this epsilon is too small to be spent in {n_parts} parts")
    return [part] * n_parts


def largest(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The largest number in low..high for which a falling condition holds; `low` if for none."""
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low
