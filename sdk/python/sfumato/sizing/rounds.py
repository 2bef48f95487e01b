"""Planned rounds, and rules that all plans use for grid sizes, shares of the draws and parts of epsilon."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, pairwise
from math import ceil, isqrt
from typing import Any, Literal, TypeVar

from sfumato.errors import InvalidSpec
from sfumato.mechanisms import design
from sfumato.model.precision import Precision, precision, signal_of
from sfumato.privacy.accounting import DRAW_SPAN, EPSILON_MIN_NANO, exp_epsilon, parse_epsilon
from sfumato.specs import (
    Encoding,
    Feature,
    Mechanism,
    Participation,
    RoundSpec,
    ShiftedGridEncoding,
    design_for,
)
from sfumato.specs.attributes import Categorical

MAX_JSON_INT = (1 << 53) - 1
MIN_EFFECTIVE_REPORTS = 1e4  # effective reports required to estimate the number of clusters
Z = 3.0  # standard errors of a dense cell above noise
DENSE_SHARE = 0.5  # r, see `uniform_grid_cells`

Sizes = TypeVar("Sizes", bound=Callable[[Any, int, int], object])  # (params, n_features, expected_reports) -> value

SHORTFALL = 3  # standard deviations by which the number of participating devices may fall below its expectation


@dataclass(frozen=True, slots=True)
class PlannedRound:
    """A round of a plan, as far as it follows from public facts.

    Attributes
    ----------
    participation : Participation
        Which devices answer.
    kind : {'auto', 'grr', 'window', 'discrete_laplace'}
        Kind of the mechanism, an argument of `sfumato.design_for`.
    epsilon_nano : int
        Maximum cost of a report.
    n_symbols : int
        Number of symbols k, an upper bound if `adapts`.
    encoding : Encoding or None
        None if the plan determines it later.
    adapts : bool
        Whether the encoding depends on earlier rounds.
    """

    participation: Participation
    kind: Literal["auto", "grr", "window", "discrete_laplace"]
    epsilon_nano: int
    n_symbols: int
    encoding: Encoding | None = None
    adapts: bool = False

    def mechanism(self) -> Mechanism:
        """Return the mechanism of a report, for `n_symbols` symbols if the plan determines the encoding later."""
        if self.encoding is None:
            return design(self.kind, self.n_symbols, self.epsilon_nano)
        return design_for(self.encoding, self.kind, self.epsilon_nano)

    def over(self, circles: tuple[int, ...], attributes: tuple[Categorical, ...] = ()) -> "PlannedRound":
        """Return the round with these periodic features and attributes; only a shifted grid has other symbols then."""
        if not isinstance(self.encoding, ShiftedGridEncoding):
            return self
        encoding = replace(self.encoding, circles=circles, attributes=attributes)
        return replace(self, encoding=encoding, n_symbols=encoding.n_symbols)

    def spec(self, features: tuple[Feature, ...], encoding: Encoding | None = None) -> RoundSpec:
        """Return the published specification, with `encoding` if the plan determined it."""
        over = self.encoding if encoding is None else encoding
        if over is None:
            raise InvalidSpec("the plan makes the encoding of this round")
        return RoundSpec(features, over, design_for(over, self.kind, self.epsilon_nano), self.participation)


PLANNED: dict[type[Any], Callable[[Any, int, int], tuple[PlannedRound, ...]]] = {}  # rounds of each local algorithm
REQUIRED: dict[type[Any], Callable[[Any, int, int], float]] = {}  # reports below which a result is insufficient


def plans(algorithm: type[Any]) -> Callable[[Sizes], Sizes]:
    """Return a decorator that registers a function as the planned rounds of an algorithm, in order."""
    return _register(PLANNED, algorithm)


def requires(algorithm: type[Any]) -> Callable[[Sizes], Sizes]:
    """Return a decorator that registers a function as the required reports of an algorithm.

    An algorithm without such a function has the reports that its detectable mass requires.
    """
    return _register(REQUIRED, algorithm)


def _register(registry: dict[type[Any], Any], algorithm: type[Any]) -> Callable[[Sizes], Sizes]:
    def register(function: Sizes) -> Sizes:
        registry[algorithm] = function
        return function

    return register


def whole_round(epsilon: float, encoding: Encoding, participation: Participation | None = None) -> PlannedRound:
    """Return a round with a known encoding, by default for every draw."""
    return PlannedRound(participation or Participation(), "auto", parse_epsilon(epsilon), encoding.n_symbols, encoding)


def expected_reports(n_devices: int, participation: Participation) -> int:
    """Return how many of `n_devices` devices answer a round, except with small probability.

    The participation draw of each device is uniform, so the number of answering devices is binomial with
    p = (hi - lo) / 2**64. A round with the target n p would miss it every other time. The result is therefore
    floor(n p - 3 sqrt(n p (1 - p))): fewer devices answer with probability below 1/250 (1/700 for p <= 1/2).
    It is n for the whole interval, and at least 1 if n is at least 1.
    """
    width = participation.hi - participation.lo
    spread = isqrt(SHORTFALL**2 * n_devices * width * (DRAW_SPAN - width))  # 2**64 times the standard deviations
    return max((n_devices * width - spread) // DRAW_SPAN, min(n_devices, 1))


def most_reports(n_devices: int, participation: Participation) -> int:
    """Return how many of `n_devices` devices answer a round at most, except with small probability.

    It is ceil(n p + 3 sqrt(n p (1 - p))), see `expected_reports`: a round with this target closes at its time.
    """
    width = participation.hi - participation.lo
    spread = isqrt(SHORTFALL**2 * n_devices * width * (DRAW_SPAN - width))
    return min(n_devices, -((n_devices * width + spread) // -DRAW_SPAN))


def effective_reports(n_reports: int, epsilon_nano: int) -> float:
    """Return N_eff = N (e^eps - 1)^2 / (4 e^eps)."""
    return n_reports * signal_of(exp_epsilon(epsilon_nano))


@lru_cache(maxsize=4096)
def precision_of(kind: str, n_symbols: int, epsilon_nano: int) -> Precision:
    """Return the precision of the mechanism that `design` returns."""
    return precision(design(kind, n_symbols, epsilon_nano))


def reports_to_tell(n_symbols: int, zero_variance: float, dense_share: float = DENSE_SHARE) -> int:
    """Return the reports required to distinguish the dense cells of a grid of k cells from noise, at least 1.

    N = z² (v + f) / f² for the frequency f = 1/(r k) of a dense cell. v is the mechanism's variance and
    f the variance of the sampling of devices.
    """
    dense = min(1.0, 1 / (dense_share * n_symbols))
    return min(max(1, ceil(Z**2 * (zero_variance + dense) / dense**2)), MAX_JSON_INT)


def draws(shares: Sequence[int]) -> list[Participation]:
    """Return adjacent intervals in proportion to whole numbers, which contain all draws."""
    ends = list(accumulate(shares, initial=0))
    return [Participation.between(lo / ends[-1], hi / ends[-1]) for lo, hi in pairwise(ends)]


def spending(epsilon_nano: int, n_parts: int) -> list[int]:
    """Return equal parts of epsilon with a sum of at most the whole, because every device pays every part.

    Raises
    ------
    InvalidSpec
        A part would be below the minimum cost of a mechanism.
    """
    part = epsilon_nano // n_parts
    if part < EPSILON_MIN_NANO:
        raise InvalidSpec(f"this epsilon is too small to be divided into {n_parts} parts")
    return [part] * n_parts


def largest(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Return the largest number in low..high for which a falling condition holds, or `low`."""
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low
