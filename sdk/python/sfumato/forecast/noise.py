"""Limits of detection, and standard errors for clusters of equal size, from the planned rounds."""

from collections.abc import Sequence
from math import ceil, cos, isfinite, pi, sin, sqrt

from sfumato.model.precision import contrast_of, mass_noise, signal_of
from sfumato.privacy.accounting import DRAW_SPAN, exp_epsilon
from sfumato.sizing.centroids import category_price
from sfumato.sizing.rounds import MAX_JSON_INT, MIN_EFFECTIVE_REPORTS, PlannedRound, effective_reports, precision_of
from sfumato.specs import Algorithm, WindowMechanism

NOISE_FACTOR = 8.0  # excess of mass, in δ, of a cluster that stands out
GAP_ERRORS = 3.0  # z of the gap rule: N >= z² / (4 δ² tanh²(eps/2))
SAMPLING_VARIANCE = 0.02  # variance by the sampling of devices, added to v for a cell of typical mass
ASSUMED_CLUSTERS = 2  # if the number is estimated; two clusters have the largest size errors
SKETCHED_MASS = 2.8  # c in the detectable share c / (|c_1| sqrt(N)) of a phase sketch


def detectable_mass(n_reports: int, epsilon_nano: int) -> float:
    """Return the least share of people of a cluster that stands out, 8 δ with δ = 1 / (2 sqrt(N) tanh(eps/2))."""
    return min(1.0, NOISE_FACTOR * mass_noise(n_reports, contrast(epsilon_nano)))


def gap_mass(n_reports: int, epsilon_nano: int) -> float:
    """Return the least share of people that separates two clusters by its absence, 3 δ. A heuristic."""
    return min(1.0, GAP_ERRORS * mass_noise(n_reports, contrast(epsilon_nano)))


def information(n_reports: int, epsilon_nano: int) -> float:
    """Return N / (1/signal + .02), which is N_eff limited by the sampling of devices. Quality depends on it."""
    return n_reports / (1 / signal_of(exp_epsilon(epsilon_nano)) + SAMPLING_VARIANCE)


def puts_all_in_one(params: Algorithm, n_reports: int) -> bool:
    """Return whether an adaptive grid returns one cluster instead of estimating their number: N_eff < 10,000."""
    counts = params.definition.counts_by == "excess" and params.clusters is None
    if not counts or getattr(params, "variant", "sound") == "paper":
        return False
    return effective_reports(n_reports, params.epsilon_nano) < MIN_EFFECTIVE_REPORTS


def contrast(epsilon_nano: int) -> float:
    """Return tanh(eps/2)."""
    return contrast_of(exp_epsilon(epsilon_nano))


def to_report_count(n_reports: float) -> int | None:
    """Return a number of reports rounded up, at least 1, or None above 2**53-1."""
    return max(1, ceil(n_reports)) if isfinite(n_reports) and n_reports <= MAX_JSON_INT else None


# ---- errors of planned rounds ----


def detectable_mass_of(
    params: Algorithm, planned: Sequence[PlannedRound], n_reports: int, n_attributes: int = 0
) -> float | None:
    """Return the least share of people of a cluster that stands out from noise, or None without a information rule."""
    if "phase" in params.definition.reads:
        first = planned[0]
        reports = n_reports * (first.participation.hi - first.participation.lo) / DRAW_SPAN
        reports /= category_price(n_attributes)
        return min(1.0, SKETCHED_MASS / (phase_contrast(first) * sqrt(reports)))
    return detectable_mass(n_reports, params.epsilon_nano) if params.definition.reads_cells else None


def phase_contrast(each: PlannedRound) -> float:
    """Return |c_1|, the factor by which cells and window reduce a phase's first harmonic."""
    chances = WindowMechanism.design(each.n_symbols, each.epsilon_nano).offset_chances()
    turn = 2 * pi / each.n_symbols
    real = sum(float(chance) * cos(turn * offset) for offset, chance in enumerate(chances))
    imaginary = sum(float(chance) * sin(turn * offset) for offset, chance in enumerate(chances))
    return sqrt(real**2 + imaginary**2) * sin(turn / 2) / (turn / 2)


def size_error_of(params: Algorithm, variance: float) -> float:
    """Return the standard error of the size of one of K equal clusters on equal parts of the box.

    A cluster has a share a = 1/K of a grid's cells, so the variance of its estimate is
        v k a (1-a) / n + a (1-a) / N,
    with v the mechanism's variance of a weighted sum for each unit of sum (w - mean w)^2 and
    n the round's reports. `variance` is `plan_variance`, v k / n + 1 / N.
    """
    share = 1 / (params.clusters or ASSUMED_CLUSTERS)
    return min(1.0, sqrt(share * (1 - share) * variance))


def centre_error_of(params: Algorithm, n_features: int, variance: float) -> float:
    """Return the standard error of a coordinate of such a cluster's centre of mass, for a fixed outline.

    The cluster is a cube with the share a of the box and of the people. A coordinate has the
    variance h = a^(2/d) / 12 within it, so the sum of cells weighted by it, over a, has the variance
        v k h / (a n) + h / (a N).
    """
    share = 1 / (params.clusters or ASSUMED_CLUSTERS)
    within = share ** (2 / n_features) / 12
    return min(1.0, sqrt(within / share * variance))


def plan_variance(params: Algorithm, planned: Sequence[PlannedRound], n_reports: int) -> float | None:
    """Return v k / n + 1 / N, or None if sizes are not sums of cells.

    Rounds over the whole box are weighted by their inverse variance. If later rounds adapt, the cells are those of the
    first round. The mechanism has one more symbol, `outside`, as in datasets that count people outside of the bounds.
    For datasets that clip, this states a little too much.
    """
    if not params.definition.reads_cells or getattr(params, "variant", "sound") == "paper":
        return None
    information = 0.0
    for each in planned:
        k = planned[0].n_symbols if each.adapts else each.n_symbols
        variance = precision_of(each.kind, k + 1, each.epsilon_nano).spread_variance * k
        information += n_reports * ((each.participation.hi - each.participation.lo) / DRAW_SPAN) / variance
    return 1 / information + 1 / n_reports
