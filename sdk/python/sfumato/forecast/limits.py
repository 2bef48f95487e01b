"""What so many reports can tell at an epsilon, whatever the plan: the floors under every forecast."""

from math import ceil, isfinite

from sfumato.accounting import exp_epsilon, parse_epsilon
from sfumato.precision import contrast_of, mass_noise, signal_of
from sfumato.sizing import MAX_JSON_INT, MIN_EFFECTIVE_REPORTS, effective_reports
from sfumato.specs import AdaptiveGridIterative, AdaptiveGridTree, Algorithm

NOISE_FACTOR = 8.0  # E in δ that makes a cluster stand out (STATISTICS 3.2)
GAP_ERRORS = 3.0  # z of the gap rule: N >= z² / (4 δ² tanh²(eps/2))
SAMPLING_VARIANCE = 0.02  # what the devices being a sample adds to v, for a cell of typical mass


def detectable_mass(n_reports: int, epsilon_nano: int) -> float:
    """8 δ, δ = 1 / (2 sqrt(N) tanh(eps/2)): the least share of people that makes a cluster stand out; at most 1."""
    return min(1.0, NOISE_FACTOR * mass_noise(n_reports, contrast(epsilon_nano)))


def gap_mass(n_reports: int, epsilon_nano: int) -> float:
    """The least share of people whose lack parts two clusters, 3 δ; at most 1. A heuristic (STATISTICS 3.2)."""
    return min(1.0, GAP_ERRORS * mass_noise(n_reports, contrast(epsilon_nano)))


def information(n_reports: int, epsilon_nano: int) -> float:
    """N / (1/signal + .02): N_eff, bounded by the devices being a sample; what quality goes by."""
    return n_reports / (1 / signal_of(exp_epsilon(epsilon_nano)) + SAMPLING_VARIANCE)


def puts_all_in_one(params: Algorithm, n_reports: int) -> bool:
    """Whether it should count clusters and will not, for N_eff is below 10,000: the adaptive grids' rule."""
    counts = isinstance(params, AdaptiveGridIterative | AdaptiveGridTree) and params.clusters is None
    if not counts or getattr(params, "variant", "sound") == "paper":
        return False
    return effective_reports(n_reports, parse_epsilon(params.epsilon)) < MIN_EFFECTIVE_REPORTS


def contrast(epsilon_nano: int) -> float:
    """tanh(eps/2)."""
    return contrast_of(exp_epsilon(epsilon_nano))


def at_most_countable(n_reports: float) -> int | None:
    """So many reports as a whole number, at least 1; None where nobody could count them."""
    return max(1, ceil(n_reports)) if isfinite(n_reports) and n_reports <= MAX_JSON_INT else None
