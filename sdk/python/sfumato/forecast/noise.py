"""Standard errors that follow from the mechanisms of a plan's rounds, for clusters of equal size."""

from collections.abc import Sequence
from math import cos, pi, sin, sqrt

from sfumato.accounting import DRAW_SPAN, parse_epsilon
from sfumato.forecast.limits import detectable_mass
from sfumato.mechanisms import design, offset_chances
from sfumato.sizing import PlannedRound, precision_of
from sfumato.specs import (
    AdaptiveGridIterative,
    AdaptiveGridTree,
    Algorithm,
    GridKmeans,
    LdpKmeans,
    NoisyFcm,
    PhaseSketch,
    ShiftedGrid,
    UniformGrid,
    WindowMechanism,
)

OPEN_CLUSTERS = 2  # where nobody said how many: their sizes are the least certain
SKETCHED_MASS = 2.8  # c / (|c_1| sqrt(N)) of people that a sketch of phases shows (STATISTICS 4.2)


def detectable_mass_of(params: Algorithm, planned: Sequence[PlannedRound], n_reports: int) -> float | None:
    """The least share of people that makes a cluster stand out from noise; None where no rule is known."""
    if isinstance(params, NoisyFcm | LdpKmeans):
        return None
    if isinstance(params, PhaseSketch):
        asked = planned[0]
        reports = n_reports * (asked.draw.hi - asked.draw.lo) / DRAW_SPAN
        return min(1.0, SKETCHED_MASS / (phase_contrast(asked) * sqrt(reports)))
    return detectable_mass(n_reports, parse_epsilon(params.epsilon))


def phase_contrast(asked: PlannedRound) -> float:
    """|c_1|: what a window leaves of a phase's first harmonic, cells and window both."""
    made = design("window", asked.n_symbols, asked.epsilon_nano)
    chances = offset_chances(made) if isinstance(made, WindowMechanism) else ()
    turn = 2 * pi / asked.n_symbols
    real = sum(float(chance) * cos(turn * offset) for offset, chance in enumerate(chances))
    imaginary = sum(float(chance) * sin(turn * offset) for offset, chance in enumerate(chances))
    return sqrt(real**2 + imaginary**2) * sin(turn / 2) / (turn / 2)


def size_error_of(params: Algorithm, planned: Sequence[PlannedRound], n_reports: int) -> float | None:
    """Standard error of the size of one of K equal clusters on equal parts of the box.

    Of a grid's cells a cluster has a share a = 1/K, so its estimate varies by
        v k a (1-a) / n + a (1-a) / N,
    with v the mechanism's variance of a weighted sum for each unit of sum (w - mean w)^2 and
    n the round's reports; rounds that ask about the whole box count by their inverse
    variance. Cells are those of the first round where later ones adapt.
    """
    known = _known(params, planned, n_reports)
    if known is None:
        return None
    share = 1 / (params.clusters or OPEN_CLUSTERS)
    return min(1.0, sqrt(share * (1 - share) * (1 / known + 1 / n_reports)))


def centre_error_of(params: Algorithm, planned: Sequence[PlannedRound], n_reports: int) -> float | None:
    """Standard error of a coordinate of the centre of mass of such a cluster, its outline held fixed.

    Of a cube that is the share a of the box and holds as much of the people: a coordinate
    varies within it by h = a^(2/d) / 12, so the sum of cells weighted by it, over a, varies by
        v k h / (a n) + h / (a N).
    """
    known = _known(params, planned, n_reports)
    first = planned[0].encoding
    if known is None or first is None:
        return None
    share = 1 / (params.clusters or OPEN_CLUSTERS)
    within = share ** (2 / first.n_features) / 12
    return min(1.0, sqrt(within / share * (1 / known + 1 / n_reports)))


def _known(params: Algorithm, planned: Sequence[PlannedRound], n_reports: int) -> float | None:
    """n / (v k), summed over rounds that ask about the whole box; None where sizes are not such sums."""
    of_grids = ShiftedGrid | UniformGrid | AdaptiveGridIterative | AdaptiveGridTree | GridKmeans
    if not isinstance(params, of_grids) or getattr(params, "variant", "sound") == "paper":
        return None
    known = 0.0
    for asked in planned:
        k = planned[0].n_symbols if asked.adapts else asked.n_symbols
        coins = precision_of(asked.kind, k, asked.epsilon_nano).spread_variance * k
        known += n_reports * ((asked.draw.hi - asked.draw.lo) / DRAW_SPAN) / coins
    return known
