"""What is charged, against the same worked out by hand: rounds, ratios, rhos, amounts.

Everything here is exact, so a claim holds of every case that was looked at, or it does not.
"""

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import partial
from itertools import combinations, combinations_with_replacement

import numpy as np

from audit.accounting_reference import Charged, cost_by_hand, discrete_delta, normal_delta, places
from audit.check import Check, Finding, Setting
from audit.exact_exponential import exp_bounds
from clustering.seeded_entropy import SeededEntropy
from sfumato.accounting import (
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
from sfumato.concentrated import PICO, rho_of
from sfumato.entropy import below

Cost = Callable[[Sequence[Charged]], int]
Realised = Callable[[Fraction], int]
Rho = Callable[[int, int], int]

SPAN = 4  # draws of the small world in which every collection of up to three rounds is tried
COLLECTIONS = 4000  # drawn in the large one
RATIOS = 1000
RHOS = 60
AMOUNTS = 20_000

DELTAS = tuple(10**place for place in range(3, 16, 3))  # 1e-15 .. 1e-3
SUMMED = (1e-3, 10)  # rho of noise that is neither too wide nor too narrow to be summed outcome by outcome
FLOATS = 1e-7  # of a delta: what is computed in doubles here says no more
EPSILONS = tuple(int(NANO * part) for part in (0.01, 0.1, 0.5, 1, 2, 4, 8, 16, 32))


# ---- rounds of a collection ----


def rounds(of: Cost, setting: Setting) -> list[Finding]:
    """A collection's cost is the most that any draw pays: with every small collection, and with large ones."""
    n, why = 0, ""
    for collection in _collections(setting.entropy("rounds"), setting.effort.trials(COLLECTIONS)):
        n += 1
        small = all(hi <= SPAN for (_, hi), _ in collection)
        true = cost_by_hand(collection, range(SPAN) if small else places(collection))
        said = of(collection)
        if why:
            continue
        if type(said) is not int or said != true:
            why = f"collection {n} of {len(collection)} rounds: some draw pays {true}, charged is {said}"
        elif of(collection[:-1]) > said:
            why = f"collection {n}: one round more costs less"
    claim = "rounds cost what the draw that pays most pays: no less, no more, in whole numbers"
    return [Finding("accounting: rounds", claim, "exact", n, holds=not why, why=why)]


def _collections(entropy: SeededEntropy, n_drawn: int) -> Iterator[list[Charged]]:
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


def ratios(of: Realised, setting: Setting) -> list[Finding]:
    """A channel's ratio costs the least whole number of nano-epsilon that covers it; e^epsilon is never overstated."""
    entropy, why = setting.entropy("ratios"), ""
    n = setting.effort.trials(RATIOS)
    for trial in range(n):
        nano = 1 + below(entropy, EPSILON_MAX_NANO)
        low, high = exp_bounds(Fraction(nano, NANO))
        if not exp_epsilon(nano) <= high:
            why = why or f"e^{format_epsilon(nano)} is overstated"
        # a threshold of 64 bits beside the border between two charges, and one from anywhere
        near = Fraction(int(low * (1 << 16)) + trial % 2, 1 << 16)
        ratio = near if trial % 4 < 2 else Fraction(1 + below(entropy, 1 << 63), 1 + below(entropy, 1 << 63))
        ratio = max(ratio, 1 / ratio)
        said = of(ratio)
        if exp_bounds(Fraction(said, NANO))[1] < ratio:
            why = why or f"a ratio of {float(ratio):.12g} costs more than the {format_epsilon(said)} that is charged"
        elif said and exp_bounds(Fraction(said - 1, NANO))[0] >= ratio:
            why = why or f"a ratio of {float(ratio):.12g} is charged a nano-epsilon too much"
    claim = "a channel is charged the least nano-epsilon that covers its largest ratio"
    return [Finding("accounting: ratios", claim, "exact", n, holds=not why, why=why)]


# ---- rho ----


def rhos(of: Rho, setting: Setting) -> list[Finding]:
    """The rho that (epsilon, delta) pays for: corollary 13 covers it, and so do normal and discrete Gaussian noise."""
    entropy, why = setting.entropy("rhos"), ""
    limits = ((EPSILON_MIN_NANO, EPSILON_MAX_NANO), (DELTA_MIN_ATTO, DELTA_MAX_ATTO))
    pairs = [(epsilon, delta) for epsilon in EPSILONS for delta in DELTAS]
    pairs += [(_spread(entropy, *limits[0]), _spread(entropy, *limits[1])) for _ in range(setting.effort.trials(RHOS))]
    for epsilon_nano, delta_atto in pairs:
        rho, epsilon, delta = of(epsilon_nano, delta_atto) / PICO, epsilon_nano / NANO, delta_atto / ATTO
        if rho == 0:
            continue
        promised = {
            "corollary 13 of CKS 2020": _promised(rho, epsilon),
            "normal noise": normal_delta(rho, epsilon),
            "discrete Gaussian noise": discrete_delta(rho, epsilon) if SUMMED[0] < rho < SUMMED[1] else 0.0,
        }
        over = max(promised, key=lambda name: promised[name])
        if promised[over] > delta * (1 + FLOATS):
            why = f"{rho:.6g} rho, epsilon {epsilon:.4g}: by {over} delta is {promised[over]:.4g}, not {delta:.4g}"
            break
    claim = "what is drawn from a block keeps to the (epsilon, delta) that was charged for it"
    return [Finding("accounting: rho", claim, "exact", len(pairs), holds=not why, why=why)]


def _spread(entropy: SeededEntropy, low: int, high: int) -> int:
    """A number between two, its logarithm uniform."""
    part = below(entropy, 1 << 53) / (1 << 53)
    return min(high, max(low, round(low * float((high / low) ** part))))


def _promised(rho: float, epsilon: float) -> float:
    """The least delta of corollary 13, over a grid of orders and a finer one about the best of them."""
    beyond = np.exp(np.linspace(-12, 20, 4001))
    for _ in range(3):
        a = 1 + beyond
        logs = beyond * (a * rho - epsilon) - np.log(a) + beyond * (np.log(beyond) - np.log(a))
        best = int(logs.argmin())
        least = float(logs[best])
        beyond = np.linspace(beyond[max(best - 1, 0)], beyond[min(best + 1, len(beyond) - 1)], 2001)
    return float(np.exp(least))


# ---- amounts ----


def amounts(setting: Setting) -> list[Finding]:
    """What a person types or reads is the whole number that is stored, as text and as a JSON number."""
    entropy, why = setting.entropy("amounts"), ""
    n = setting.effort.trials(AMOUNTS)
    for _ in range(n):
        nano, atto = (
            _spread(entropy, EPSILON_MIN_NANO, EPSILON_MAX_NANO),
            _spread(entropy, DELTA_MIN_ATTO, DELTA_MAX_ATTO),
        )
        if not parse_epsilon(format_epsilon(nano)) == parse_epsilon(nano / NANO) == nano:
            why = why or f"{nano} nano-epsilon do not come back"
        if parse_delta(format_delta(atto)) != atto:
            why = why or f"{atto} atto-delta do not come back"
    return [Finding("accounting: amounts", "amounts are read and written exactly", "exact", n, holds=not why, why=why)]


CHECKS: tuple[Check, ...] = (
    Check("accounting: rounds", partial(rounds, cost)),
    Check("accounting: ratios", partial(ratios, realised_epsilon)),
    Check("accounting: rho", partial(rhos, rho_of)),
    Check("accounting: amounts", amounts),
)
