"""Compare the stated cost of shuffled reports with brute force over all data of the other people, and with samples.

Brute force enumerates the distribution of the released set for each combination of the other people's values. The
largest delta of these is exact for the observer that knows all values but one. Reports of dishonest devices are known
to the observer and can be removed from the set, so brute force leaves them out.

Samples cover sizes that cannot be enumerated. They estimate the delta for one hard combination, which must not exceed
the bound, and the expectation that the bound claims to be.

Neither uses the blanket of the package. Both start from the published channels, which `exact_channels` compares with
the reports of devices. Two values with proportional probabilities are one outcome, because the observer learns the
same from them.
"""

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import partial
from itertools import pairwise, product
from math import ceil, comb, exp, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.checks.check import Check, Finding, Setting
from audit.mechanisms.exact_channels import EXAMPLES, example_round, select_points
from sfumato import mechanisms
from sfumato.mechanisms import olh
from sfumato.privacy import shuffling
from sfumato.privacy.accounting import ATTO, NANO
from sfumato.privacy.shuffling import Blanket
from sfumato.records.described import own_symbol
from sfumato.specs import (
    MECHANISMS,
    DiscreteLaplaceMechanism,
    GridEncoding,
    GrrMechanism,
    LatticeEncoding,
    Mechanism,
    OlhMechanism,
    RoundSpec,
    SsMechanism,
)

Matrix = NDArray[np.float64]

MAX_REPORTS = 30  # maximum number of reports in brute force
SHUFFLED_EXAMPLES = EXAMPLES | {"two_cells": GridEncoding((2,))}
HONEST_SHARE = Fraction(3, 4)
N_ELEMENTS = 10_000_000  # elements of all compared distributions of one brute force
N_SAMPLES = 20_000
N_SAMPLED_REPORTS = 5_000
LOCAL_EPSILONS = (1.0, 3.0)
_PARTS = (0.0, 0.1, 0.3, 0.6)  # tested epsilons as parts of the local one
_DEVIATIONS = 6  # standard errors of a sampled mean that count as equal
_CLOSE = 0.01  # relative excess that the bound may have over its expectation
_FLOAT_ERROR = 1e-9  # relative error of brute force
_EXACT_BLANKETS = ("grr", "ss", "window")  # the others leave out values that name all symbols


class Accountant(NamedTuple):
    """The functions that state the cost of a release."""

    blanket: Callable[[Mechanism], Blanket] = Mechanism.blanket
    delta: Callable[[Blanket, int, int], int] = shuffling.delta
    honest_reports: Callable[[int, Fraction], int] = shuffling.honest_reports


ACCOUNTANT = Accountant()


# ---- channels ----


def enumerate_outcomes(spec: RoundSpec) -> Matrix:
    """Return the probabilities of a report's outcomes, slot included, per distinct point: (n_points, n_outcomes)."""
    points = select_points(spec)
    slots = range(spec.encoding.n_slots)
    rows: list[tuple[Fraction, ...]] = []
    for slot in slots:
        symbols = [int(own_symbol(spec, point, slot)) for point in points]  # type: ignore[arg-type]
        rows += [tuple(row[own] for own in symbols) for row in _list_rows(spec.mechanism, sorted(set(symbols)))]
    merged: dict[tuple[Fraction, ...], Fraction] = {}
    for row in rows:
        total = sum(row, Fraction(0)) / len(slots)
        key = tuple(each / sum(row) for each in row)
        merged[key] = merged.get(key, Fraction(0)) + total
    matrix = np.array([[float(part * total) for part in key] for key, total in merged.items()]).T
    return np.unique(matrix, axis=0)  # points with the same symbol in each slot are one


def _list_rows(mechanism: Mechanism, symbols: Sequence[int]) -> Iterator[dict[int, Fraction]]:
    """Yield the probabilities of each value for these symbols; for local hashing, of each set of equal hashes."""
    if not isinstance(mechanism, OlhMechanism):
        for row in mechanism.channel().values():
            yield {own: row[own] for own in symbols}
        return
    keep, other = GrrMechanism(mechanism.hash_range, mechanism.keep_threshold).support()
    g = mechanism.hash_range
    # parts of the numbers below P that the hash sends to y; up to three symbols have independent hashes
    ends = [-(-(y << 31) // g) for y in range(g)] + [olh.HASH_PRIME]
    parts = [Fraction(high - low, olh.HASH_PRIME) for low, high in pairwise(ends)]
    for hit in product((False, True), repeat=len(symbols)):
        mass = Fraction(0)
        for part in parts:
            term = Fraction(1)
            for is_hit in hit:
                term *= part if is_hit else 1 - part
            mass += term
        yield {own: mass * (keep if is_hit else other) for own, is_hit in zip(symbols, hit, strict=True)}


# ---- brute force ----


def compute_worst_deltas(outcomes: Matrix, n: int, growths: Sequence[float]) -> Matrix:
    """Return the largest delta at each e^epsilon in `growths`, over all values of n - 1 people and all pairs."""
    n_points = len(outcomes)
    steps = list(_index_sets(outcomes.shape[1], n))
    factors = np.asarray(growths)[:, None]
    worst = np.zeros(len(growths))

    def extend(law: Matrix, own: int, step: NDArray[np.int64]) -> Matrix:
        return np.asarray(np.bincount(step.ravel(), (law[:, None] * outcomes[own]).ravel()), dtype=np.float64)

    def visit(law: Matrix, first: int, size: int) -> None:
        nonlocal worst
        if size < n - 1:
            for own in range(first, n_points):
                visit(extend(law, own, steps[size]), own, size + 1)
            return
        laws = [extend(law, own, steps[size]) for own in range(n_points)]
        for own, other in product(range(n_points), repeat=2):
            if own != other:
                worst = np.maximum(worst, np.maximum(laws[own] - factors * laws[other], 0).sum(axis=1))

    visit(np.ones(1), 0, 0)
    return worst


def _index_sets(n_outcomes: int, n: int) -> Iterator[NDArray[np.int64]]:
    """Yield for each size below n the index of the set of the next size, of shape (n_sets, n_outcomes)."""
    sets = [(0,) * n_outcomes]
    for _ in range(n):
        larger: dict[tuple[int, ...], int] = {}
        step = [
            larger.setdefault((*counts[:place], counts[place] + 1, *counts[place + 1 :]), len(larger))
            for counts in sets
            for place in range(n_outcomes)
        ]
        yield np.array(step).reshape(-1, n_outcomes)
        sets = list(larger)


def choose_size(outcomes: Matrix, budget: int) -> int:
    """Return the largest number of reports that brute force compares within a budget of elements."""
    n_points, n_outcomes = outcomes.shape

    def count_elements(n: int) -> int:
        n_sets = comb(n + n_outcomes - 1, n_outcomes - 1)
        n_combinations = comb(n + n_points - 2, n_points - 1)  # values of the other people
        return int(n_combinations * n_sets * n_points * (n_outcomes + n_points * len(_PARTS)))

    return next((n for n in range(MAX_REPORTS, 2, -1) if count_elements(n) <= budget), 2)


def check_brute_force(kind: str, encoding: str, accountant: Accountant, setting: Setting) -> list[Finding]:
    """Check that the stated delta of a release, of which a quarter is fake, is at least the exact one."""
    trials, why, tightest = 0, "", (1.0, 0.0)
    for local in LOCAL_EPSILONS:
        spec = example_round(SHUFFLED_EXAMPLES[encoding], kind, local)
        outcomes = enumerate_outcomes(spec)
        honest = choose_size(outcomes, setting.effort.trials(N_ELEMENTS))
        min_batch = ceil(honest / HONEST_SHARE)
        epsilons = [round(part * local * NANO) for part in _PARTS]
        worst = compute_worst_deltas(outcomes, honest, [exp(nano / NANO) for nano in epsilons])
        n = accountant.honest_reports(min_batch, HONEST_SHARE)
        for nano, exact in zip(epsilons, worst.tolist(), strict=True):
            trials += 1
            stated = accountant.delta(accountant.blanket(spec.mechanism), n, nano) / ATTO
            if exact * tightest[0] > tightest[1] * stated:
                tightest = (stated, exact)
            if stated < exact * (1 - _FLOAT_ERROR) and not why:
                case = f"epsilon0 {local}, {honest} honest of {min_batch}, epsilon {nano / NANO:.3g}"
                why = f"{case}: delta is {exact:.4g}, but {stated:.4g} is stated"
    claim = "the delta of a release covers each combination of the other people's values"
    return [Finding(f"shuffled {kind} x {encoding}", claim, "exact", trials, *tightest, holds=not why, why=why)]


# ---- samples ----


def sample_delta(
    rng: np.random.Generator, chances: Matrix, losses: Matrix, n: int, n_samples: int
) -> tuple[float, float]:
    """Return the mean of [the sum of n independent losses]_+ / n over samples, and its standard error."""
    sums = np.maximum(rng.multinomial(n, chances, size=n_samples) @ losses, 0) / n
    return float(sums.mean()), float(sums.std()) / sqrt(n_samples)


def check_samples(kind: str, accountant: Accountant, setting: Setting) -> list[Finding]:
    """Check the delta of thousands of reports against samples: people with one value, and the blanket's expectation."""
    n, n_samples, why, tightest = N_SAMPLED_REPORTS, setting.effort.trials(N_SAMPLES), "", (1.0, 0.0)
    rng = np.random.default_rng(int(setting.entropy(f"shuffled {kind}").words(1)[0]))
    for local in LOCAL_EPSILONS:
        spec = example_round(EXAMPLES["grid"], kind, local)
        outcomes = enumerate_outcomes(spec)
        common = outcomes.min(axis=0)
        own, other = _find_far_pair(outcomes)
        third = next(place for place in range(len(outcomes)) if place not in (own, other))
        for growth_part in (0.5, 1.5):
            # all others have the third value: the set of n reports is distributed as if from that value alone
            known = outcomes[third]
            deviation = sqrt(float(((outcomes[own] - outcomes[other]) ** 2 / common).sum()) * n)
            nano = round(growth_part * deviation / n * NANO)
            losses = outcomes[own] - exp(nano / NANO) * outcomes[other]
            stated = accountant.delta(accountant.blanket(spec.mechanism), n, nano) / ATTO
            exact, error = sample_delta(rng, known / known.sum(), losses / known, n, n_samples)
            chances = np.append(common, max(0.0, 1 - common.sum()))
            bound, bound_error = sample_delta(rng, chances, np.append(losses / common, 0), n, n_samples)
            if exact * tightest[0] > tightest[1] * stated:
                tightest = (stated, exact)
            case = f"epsilon0 {local}, {n} reports, epsilon {nano / NANO:.3g}: {stated:.4g} is stated, but"
            if stated < exact - _DEVIATIONS * error:
                why = why or f"{case} samples have {exact:.4g} ± {error:.1g}"
            if stated < bound - _DEVIATIONS * bound_error:
                why = why or f"{case} the blanket has {bound:.4g} ± {bound_error:.1g}"
            if kind in _EXACT_BLANKETS and stated > (1 + _CLOSE) * bound + _DEVIATIONS * bound_error:
                why = why or f"{case} the blanket has only {bound:.4g} ± {bound_error:.1g}"
    claim = "the delta of a release covers people with one value, and the expectation of its blanket"
    return [Finding(f"shuffled {kind} in samples", claim, "sample", n_samples, *tightest, holds=not why, why=why)]


def _find_far_pair(outcomes: Matrix) -> tuple[int, int]:
    """Return the two points with the least common part."""
    pairs = [(own, other) for own in range(len(outcomes)) for other in range(own)]
    return min(pairs, key=lambda pair: float(np.minimum(outcomes[pair[0]], outcomes[pair[1]]).sum()))


# ---- monotony ----


def check_monotony(accountant: Accountant, _setting: Setting) -> list[Finding]:
    """Check that delta falls with the number of reports, and rises with the local epsilon at one subset size."""
    why, trials = "", 0
    for kind in _EXACT_BLANKETS:
        blanket = accountant.blanket(mechanisms.design(kind, 32, 2 * NANO))
        deltas = [accountant.delta(blanket, n, NANO // 20) for n in (10, 100, 1000, 10_000, 100_000, 1_000_000)]
        trials += len(deltas) - 1
        if any(more > less for less, more in pairwise(deltas)):
            why = why or f"{kind}: delta rises with the number of reports"
    thresholds = [round(share * 2**64) for share in (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)]
    subsets = [accountant.blanket(SsMechanism(32, 4, threshold)) for threshold in thresholds]
    deltas = [accountant.delta(blanket, 10_000, NANO // 20) for blanket in subsets]
    trials += len(deltas) - 1
    if any(more < less for less, more in pairwise(deltas)):
        why = why or "ss: delta falls while the local epsilon rises"
    claim = "delta falls with n, and rises with the local epsilon at one subset size"
    return [Finding("shuffled reports", claim, "exact", trials, holds=not why, why=why)]


_KINDS = tuple(kind for kind in MECHANISMS if kind != DiscreteLaplaceMechanism.type)
_ENCODINGS = tuple(name for name in SHUFFLED_EXAMPLES if name != LatticeEncoding.type)

CHECKS: tuple[Check, ...] = (
    *(
        Check(f"shuffled {kind} x {encoding}", partial(check_brute_force, kind, encoding, ACCOUNTANT))
        for kind, encoding in product(_KINDS, _ENCODINGS)
    ),
    *(Check(f"shuffled {kind} in samples", partial(check_samples, kind, ACCOUNTANT)) for kind in _KINDS),
    Check("shuffled reports", partial(check_monotony, ACCOUNTANT)),
)
