"""Compare charges with reference implementations: costs of rounds, ratios of channels, rho, and amounts as text.

All comparisons are exact. A claim holds for every case of a run, or it fails.
"""

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import partial
from itertools import combinations, combinations_with_replacement

import numpy as np

from audit.checks.bounds import bound_exp, compute_normal_delta
from audit.checks.check import Check, Finding, Setting
from clustering.random import SeededEntropy
from sfumato.privacy.accounting import (
    ATTO,
    DELTA_MAX_ATTO,
    DELTA_MIN_ATTO,
    DRAW_SPAN,
    EPSILON_MAX_NANO,
    EPSILON_MIN_NANO,
    NANO,
    cost,
    exp_epsilon,
    format_delta,
    format_epsilon,
    parse_delta,
    parse_epsilon,
    realised_epsilon,
)
from sfumato.privacy.entropy import below
from sfumato.privacy.gaussian_privacy import ADDED_VARIANCE, PICO, rho_of

ChargedRound = tuple[tuple[int, int], int]  # interval of a round's draws, and its cost in nano-epsilon
CostFunction = Callable[[Sequence[ChargedRound]], int]
RealisedEpsilon = Callable[[Fraction], int]
RhoFunction = Callable[[int, int], int]

SPAN = 4  # number of draws in the exhaustive test of collections with up to three rounds
N_COLLECTIONS = 4000  # random collections over all draws
N_RATIOS = 1000
N_RHOS = 60
N_AMOUNTS = 20_000

DELTAS = tuple(10**place for place in range(3, 16, 3))  # 1e-15 .. 1e-3
SUMMABLE_RHO = (1e-3, 10)  # range of rho in which discrete noise can be summed over its outcomes
FLOAT_ERROR = 1e-7  # relative error of a delta in floats
EPSILONS = tuple(int(NANO * part) for part in (0.01, 0.1, 0.5, 1, 2, 4, 8, 16, 32))


# ---- reference implementations, which use only units of `sfumato.privacy.accounting` ----


def cost_of_draw(rounds: Sequence[ChargedRound], draw: int) -> int:
    """Return the cost of rounds for a device with this draw."""
    return sum(epsilon for (lo, hi), epsilon in rounds if lo <= draw < hi)


def largest_cost(rounds: Sequence[ChargedRound], draws: Sequence[int]) -> int:
    """Return the largest cost of these draws."""
    return max((cost_of_draw(rounds, draw) for draw in draws), default=0)


def list_critical_draws(rounds: Sequence[ChargedRound]) -> list[int]:
    """Return the ends of all intervals and the draws next to them. The cost is constant between them."""
    return sorted({end + by for ends, _ in rounds for end in ends for by in (-1, 0, 1)})


def compute_discrete_delta(rho: float, epsilon: float) -> float:
    """Return the least delta for this epsilon of discrete noise on a count that costs rho, by a sum over outcomes."""
    variance = 1 / (2 * rho) + ADDED_VARIANCE
    reach = int(40 * np.sqrt(variance)) + 40
    outcomes = np.arange(-reach, reach + 1)
    weights = np.exp(-(outcomes.astype(np.float64) ** 2) / (2 * variance))
    loss = (1 - 2 * outcomes) / (2 * variance)  # log P(z) / P(z - 1)
    is_uncovered = loss > epsilon
    return float((weights * -np.expm1(np.minimum(epsilon - loss, 0.0)) * is_uncovered).sum() / weights.sum())


# ---- rounds of a collection ----


def check_rounds(implementation: CostFunction, setting: Setting) -> list[Finding]:
    """Check the cost of all small and of random large collections: it must be the largest cost of a draw."""
    n, why = 0, ""
    for collection in _draw_collections(setting.entropy("rounds"), setting.effort.trials(N_COLLECTIONS)):
        n += 1
        small = all(hi <= SPAN for (_, hi), _ in collection)
        true = largest_cost(collection, range(SPAN) if small else list_critical_draws(collection))
        result = implementation(collection)
        if why:
            continue
        if type(result) is not int or result != true:
            why = f"collection {n} of {len(collection)} rounds: a draw costs {true}, but {result} is charged"
        elif implementation(collection[:-1]) > result:
            why = f"collection {n}: an additional round reduces the cost"
    claim = "the cost of rounds is the largest cost of a draw, as an integer"
    return [Finding("accounting: rounds", claim, "exact", n, holds=not why, why=why)]


def _draw_collections(entropy: SeededEntropy, n_drawn: int) -> Iterator[list[ChargedRound]]:
    small = [(ends, epsilon) for ends in combinations(range(SPAN + 1), 2) for epsilon in (1, 2, 5)]
    for size in range(4):
        for chosen in combinations_with_replacement(small, size):
            yield list(chosen)
    for _ in range(n_drawn):
        ends = sorted({0, DRAW_SPAN, *(int(word) for word in entropy.words(1 + below(entropy, 6)))})
        drawn = []
        for _ in range(1 + below(entropy, 8)):
            lo, hi = sorted((ends[below(entropy, len(ends))], ends[below(entropy, len(ends))]))
            if lo < hi:
                drawn.append(((lo, hi), below(entropy, EPSILON_MAX_NANO)))
        yield drawn


# ---- ratios ----


def check_ratios(implementation: RealisedEpsilon, setting: Setting) -> list[Finding]:
    """Check that a ratio costs the least covering number of nano-epsilon, and that e^epsilon is never rounded up."""
    entropy, why = setting.entropy("ratios"), ""
    n = setting.effort.trials(N_RATIOS)
    for trial in range(n):
        nano = 1 + below(entropy, EPSILON_MAX_NANO)
        low, high = bound_exp(Fraction(nano, NANO))
        if not exp_epsilon(nano) <= high:
            why = why or f"e^{format_epsilon(nano)} is rounded up"
        # half of the ratios lie close to the border between two charges
        near = Fraction(int(low * (1 << 16)) + trial % 2, 1 << 16)
        ratio = near if trial % 4 < 2 else Fraction(1 + below(entropy, 1 << 63), 1 + below(entropy, 1 << 63))
        ratio = max(ratio, 1 / ratio)
        result = implementation(ratio)
        if bound_exp(Fraction(result, NANO))[1] < ratio:
            why = why or f"a ratio of {float(ratio):.12g} costs more than the charge of {format_epsilon(result)}"
        elif result and bound_exp(Fraction(result - 1, NANO))[0] >= ratio:
            why = why or f"the charge for a ratio of {float(ratio):.12g} is a nano-epsilon too high"
    claim = "the charge of a channel is the least nano-epsilon that covers its largest ratio"
    return [Finding("accounting: ratios", claim, "exact", n, holds=not why, why=why)]


# ---- rho ----


def check_rhos(implementation: RhoFunction, setting: Setting) -> list[Finding]:
    """Check the rho for (epsilon, delta) by the deltas of normal and discrete Gaussian noise."""
    entropy, why = setting.entropy("rhos"), ""
    limits = ((EPSILON_MIN_NANO, EPSILON_MAX_NANO), (DELTA_MIN_ATTO, DELTA_MAX_ATTO))
    pairs = [(epsilon, delta) for epsilon in EPSILONS for delta in DELTAS]
    pairs += [
        (draw_log_uniform(entropy, *limits[0]), draw_log_uniform(entropy, *limits[1]))
        for _ in range(setting.effort.trials(N_RHOS))
    ]
    for epsilon_nano, delta_atto in pairs:
        rho, epsilon, delta = implementation(epsilon_nano, delta_atto) / PICO, epsilon_nano / NANO, delta_atto / ATTO
        if rho == 0:
            continue
        deltas = {
            "normal noise": compute_normal_delta(rho, epsilon),
            "discrete Gaussian noise": compute_discrete_delta(rho, epsilon)
            if SUMMABLE_RHO[0] < rho < SUMMABLE_RHO[1]
            else 0.0,
        }
        largest = max(deltas, key=lambda name: deltas[name])
        if deltas[largest] > delta * (1 + FLOAT_ERROR):
            why = f"rho {rho:.6g}, epsilon {epsilon:.4g}: delta {deltas[largest]:.4g} by {largest} exceeds {delta:.4g}"
            break
    claim = "the rho of a block costs at most the charged (epsilon, delta)"
    return [Finding("accounting: rho", claim, "exact", len(pairs), holds=not why, why=why)]


def draw_log_uniform(entropy: SeededEntropy, low: int, high: int) -> int:
    """Draw a number between two limits; its logarithm is uniform."""
    part = below(entropy, 1 << 53) / (1 << 53)
    return min(high, max(low, round(low * float((high / low) ** part))))


# ---- amounts ----


def check_amounts(setting: Setting) -> list[Finding]:
    """Check that amounts are equal after they are written and read, as text and as JSON numbers."""
    entropy, why = setting.entropy("amounts"), ""
    n = setting.effort.trials(N_AMOUNTS)
    for _ in range(n):
        nano, atto = (
            draw_log_uniform(entropy, EPSILON_MIN_NANO, EPSILON_MAX_NANO),
            draw_log_uniform(entropy, DELTA_MIN_ATTO, DELTA_MAX_ATTO),
        )
        if not parse_epsilon(format_epsilon(nano)) == parse_epsilon(nano / NANO) == nano:
            why = why or f"{nano} nano-epsilon change when written and read"
        if parse_delta(format_delta(atto)) != atto:
            why = why or f"{atto} atto-delta change when written and read"
    return [Finding("accounting: amounts", "amounts are read and written exactly", "exact", n, holds=not why, why=why)]


CHECKS: tuple[Check, ...] = (
    Check("accounting: rounds", partial(check_rounds, cost)),
    Check("accounting: ratios", partial(check_ratios, realised_epsilon)),
    Check("accounting: rho", partial(check_rhos, rho_of)),
    Check("accounting: amounts", check_amounts),
)
