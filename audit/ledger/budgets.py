"""Attack the Gaussian accounting of datasets: the mu^2 of charges and grants exactly, and whole courses by black box.

An analyst chooses each job by the privacy loss so far and submits jobs until the ledger refuses them. Each job is the
worst of its cost: a block is one normal value that neighbours shift by mu, a pure job is randomised response. A release
of a shuffler is such a normal value too, and reveals all with probability delta_0. Simulated courses over both
neighbours bound the delta of the event that the loss exceeds the granted epsilon.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from math import exp, isqrt

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from audit.checks.bounds import ERROR_PROBABILITY, bound_exp, bound_probability, compute_normal_delta
from audit.checks.check import Check, Finding, Setting
from audit.ledger.accounting import draw_log_uniform
from models.ledger.amounts import GAUSSIAN_START, Amounts, Balance
from models.tables.ledger import Kind
from sfumato.privacy import shuffling
from sfumato.privacy.accountant import (
    Cost,
    certified_epsilon,
    charge_mu2,
    limit_mu2,
    limit_release_mu2,
    release_delta,
)
from sfumato.privacy.accounting import ATTO, DELTA_MAX_ATTO, DELTA_MIN_ATTO, EPSILON_MAX_NANO, EPSILON_MIN_NANO, NANO
from sfumato.privacy.entropy import below
from sfumato.privacy.gaussian_privacy import PICO, epsilon_of, rho_of
from sfumato.privacy.shuffled_rounds import gaussian_cost
from sfumato.privacy.shuffling import Blanket

N_COUNTS = 120  # costs in the exact check
N_COURSES = 1 << 15  # simulated courses per neighbour, of up to `MANY` jobs
MANY = 10
N_LONG_COURSES = 1 << 14
N_RELEASES = 6
RELEASE_STEPS = 12  # values of epsilon that the exact check of a release compares

CertifyEpsilon = Callable[[Cost, int], int | None]
CountMu2 = Callable[[int, int], int]
CountRelease = Callable[[Blanket, int, int], tuple[int, int]]
Admit = Callable[[Balance, Amounts], Balance | None]
Losses = NDArray[np.float64]
Choices = NDArray[np.int64]

_BITS = 512  # binary places of exact bounds
_TWO_PI = Fraction(
    62831853071795864769252867665590057683943387987502116419498891846156328125724179972560696506842341359642961730,
    10**109,
)  # within 1e-108


# ---- exact ----


def bound_tail(square: Fraction) -> tuple[Fraction, Fraction]:
    """Return (low, high) with low <= Phi(-x) <= high for x^2 = `square` <= 80, at a distance below 1e-80.

    Sums the alternating series of 1/2 - (x - x^3/6 + x^5/40 - ...) / sqrt(2 pi). Shares no code with the accountant.
    """
    total, power, n = Fraction(), Fraction(1), 0
    scale = 1 << _BITS
    while n <= square or abs(power) > Fraction(1, scale >> 8):
        total += power / (2 * n + 1)
        n += 1
        power = Fraction(int(-power * square / (2 * n) * scale), scale)
    error = Fraction(n, scale >> 9)  # terms that are left out, and rounding
    ratio = square / _TWO_PI
    root = Fraction(isqrt(int(ratio * scale * scale)), scale)  # x / sqrt(2 pi), rounded down by up to 2^-_BITS
    middle, near = Fraction(1, 2) - root * total, 8 * error + Fraction(1, 10**100)
    return middle - near, middle + near


def bound_delta(mu2_pico: int, epsilon_nano: int) -> tuple[Fraction, Fraction]:
    """Return bounds of the least delta with which (epsilon, delta) covers mu^2, by Balle and Wang 2018, theorem 8."""
    mu2, epsilon = Fraction(mu2_pico, PICO), Fraction(epsilon_nano, NANO)
    own = _bound_cdf(mu2 / 2 - epsilon, mu2)
    neighbour = _bound_cdf(-mu2 / 2 - epsilon, mu2)
    factor = bound_exp(epsilon)
    return own[0] - factor[1] * neighbour[1], own[1] - factor[0] * neighbour[0]


def _bound_cdf(numerator: Fraction, mu2: Fraction) -> tuple[Fraction, Fraction]:
    """Return bounds of Phi(numerator / mu)."""
    low, high = bound_tail(numerator**2 / mu2)
    return (low, high) if numerator < 0 else (1 - high, 1 - low)


def check_counts(count: CountMu2, setting: Setting) -> list[Finding]:
    """Check that a pure charge counts the least integer of mu^2 that it costs."""
    entropy, why = setting.entropy("counts"), ""
    n = setting.effort.trials(N_COUNTS)
    for _ in range(n):
        nano = draw_log_uniform(entropy, EPSILON_MIN_NANO, EPSILON_MAX_NANO)
        mu2 = count(nano, 0)
        tail = [1 / (1 + each) for each in reversed(bound_exp(Fraction(nano, NANO)))]
        if bound_tail(Fraction(mu2, 4 * PICO))[1] > tail[0]:
            why = why or f"a pure charge of {nano} nano-epsilon counts too little, {mu2}"
        elif mu2 and bound_tail(Fraction(mu2 - 1, 4 * PICO))[0] < tail[1] - Fraction(1, 10**50):
            why = why or f"a pure charge of {nano} nano-epsilon counts too much, {mu2}"
    claim = "a pure charge counts the least mu^2 of which it is post-processing"
    return [Finding("accounting: mu squared", claim, "exact", n, holds=not why, why=why)]


def check_limits(limit: CountMu2, certify: CertifyEpsilon, setting: Setting) -> list[Finding]:
    """Check that a grant covers its limit of mu^2, and that charges cost at most what is certified of them."""
    entropy, why = setting.entropy("limits"), ["", ""]
    n = setting.effort.trials(N_COUNTS) // 2
    for _ in range(n):
        nano = draw_log_uniform(entropy, NANO // 10, 8 * NANO)
        atto = draw_log_uniform(entropy, DELTA_MIN_ATTO, DELTA_MAX_ATTO)
        mu2, covered = limit(nano, atto), Fraction(atto, ATTO)
        if bound_delta(mu2, nano)[1] > covered:
            why[0] = why[0] or f"mu^2 of {mu2} is more than {nano} nano-epsilon and {atto} atto-delta cover"
        charged = 1 + mu2 // 3
        certified = certify(Cost(0, 1, charged), atto)
        if certified is None or bound_delta(charged, certified)[1] > covered:
            why[1] = why[1] or f"charges of mu^2 {charged} cost more than the certified {certified} nano-epsilon"
    claims = ("a grant covers its limit of mu^2", "charges cost at most the certified epsilon")
    return [
        Finding("accounting: limits", claim, "exact", n, holds=not each, why=each)
        for claim, each in zip(claims, why, strict=True)
    ]


def check_releases(count: CountRelease, setting: Setting) -> list[Finding]:
    """Check that mu^2 and delta_0 of a release cover the whole curve of its delta."""
    entropy, why = setting.entropy("releases"), ""
    n = setting.effort.trials(N_RELEASES)
    for _ in range(n):
        ratio = Fraction(draw_log_uniform(entropy, 3 * NANO, 1000 * NANO), NANO)
        blanket = Blanket(ratio, Fraction(1, 2 + below(entropy, 168)), Fraction(0))
        n_honest, atto = draw_log_uniform(entropy, 1_000, 1_000_000), draw_log_uniform(entropy, 10**9, 10**14)
        mu2, delta_0 = count(blanket, n_honest, atto)
        top = shuffling.epsilon(blanket, n_honest, atto)
        for step in range(RELEASE_STEPS):
            nano = top * step // RELEASE_STEPS
            covered = delta_0 / ATTO + (1 - delta_0 / ATTO) * compute_normal_delta(mu2 / 2 / PICO, nano / NANO)
            if shuffling.delta(blanket, n_honest, nano) / ATTO > covered * (1 + 1e-9):
                why = why or f"a release of {n_honest} reports costs more than mu^2 {mu2} and delta {delta_0} at {nano}"
    claim = "a release is post-processing of a normal value and of a rare disclosure"
    return [Finding("accounting: releases", claim, "exact", n * RELEASE_STEPS, holds=not why, why=why)]


# ---- black box ----


def reserve(balance: Balance, amounts: Amounts) -> Balance | None:
    """Return the balance after a reservation by the rule of the ledger, or None if it is refused."""
    after = balance.after(Kind.RESERVE, amounts, "job")
    return None if after.is_over else after


def open_round(balance: Balance, amounts: Amounts) -> Balance | None:
    """Return the balance after the charge of a release by the rule of the ledger, or None if it is refused."""
    after = balance.after(Kind.CHARGE, amounts, None)
    return None if after.is_over else after


@dataclass(frozen=True, slots=True)
class Release:
    """A release of a shuffler that reveals all with probability delta_0, and else one normal value."""

    mu2_pico: int
    delta_atto: int

    def amounts(self, _: CountMu2) -> Amounts:
        """Return what the ledger charges."""
        return Amounts(0, 0, 1, self.delta_atto, self.mu2_pico)

    def draw_losses(self, side: int, n_jobs: NDArray[np.int64], rng: np.random.Generator) -> Losses:
        """Draw the total log likelihood ratio of `n_jobs` releases for each course; `side` is 1 or -1."""
        mu2 = self.mu2_pico / PICO
        losses = n_jobs * side * mu2 / 2 + np.sqrt(n_jobs * mu2) * rng.standard_normal(len(n_jobs))
        return np.where(rng.binomial(n_jobs, self.delta_atto / ATTO) > 0, side * np.inf, losses)


@dataclass(frozen=True, slots=True)
class Job:
    """A job at the whole cost that it may have: a block with a delta, and randomised response without."""

    epsilon_nano: int
    delta_atto: int = 0

    @property
    def mu2(self) -> float:
        """Return the true mu^2 of the job's block."""
        return 2 * rho_of(self.epsilon_nano, self.delta_atto) / PICO

    def amounts(self, count: CountMu2) -> Amounts:
        """Return what the ledger reserves and charges."""
        return Amounts(self.epsilon_nano, self.delta_atto, mu2_pico=count(self.epsilon_nano, self.delta_atto))

    def draw_losses(self, side: int, n_jobs: NDArray[np.int64], rng: np.random.Generator) -> Losses:
        """Draw the total log likelihood ratio of `n_jobs` jobs for each course; `side` is 1 or -1."""
        if self.delta_atto:
            noise = np.sqrt(n_jobs * self.mu2) * rng.standard_normal(len(n_jobs))
            return np.asarray(n_jobs * side * self.mu2 / 2 + noise, dtype=np.float64)
        epsilon = self.epsilon_nano / NANO
        likely = 1 / (1 + exp(-side * epsilon))
        return np.asarray((2 * rng.binomial(n_jobs, likely) - n_jobs) * epsilon, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Analyst:
    """A way to choose jobs by the loss so far.

    Attributes
    ----------
    choose : callable
        Takes the losses of all courses and returns the index of the next job of each.
    at_once : int
        Number of jobs that it submits before it reads an answer.
    """

    name: str
    grant: Amounts
    jobs: tuple[Job | Release, ...]
    n_jobs: int
    choose: Callable[[Losses], Choices]
    at_once: int = 1


@dataclass
class Accountant:
    """The ledger's rule as a machine with numbered states, so that many courses share the work.

    Attributes
    ----------
    count : callable
        Returns the mu^2 of a charge.
    admit : callable
        Returns the balance after a reservation, or None.
    """

    analyst: Analyst
    count: CountMu2
    admit: Admit
    balances: list[Balance] = field(default_factory=list)
    _numbers: dict[Balance, int] = field(default_factory=dict)
    _steps: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._number(Balance(**GAUSSIAN_START).after(Kind.GRANT, self.analyst.grant, None))

    def step(self, state: int, choice: int) -> tuple[int, int]:
        """Reserve jobs and charge them. Return the new state and the number of jobs that were admitted."""
        if (state, choice) not in self._steps:
            amounts = self.analyst.jobs[choice].amounts(self.count)
            balance, n_admitted = self.balances[state], 0
            while n_admitted < self.analyst.at_once and (after := self.admit(balance, amounts)) is not None:
                balance, n_admitted = after, n_admitted + 1
            for _ in range(0 if any(amounts.shuffled) else n_admitted):  # a release has no reservation
                balance = balance.after(Kind.CHARGE, amounts, "job")
            self._steps[state, choice] = self._number(balance), n_admitted
        return self._steps[state, choice]

    def _number(self, balance: Balance) -> int:
        if balance not in self._numbers:
            self._numbers[balance] = len(self.balances)
            self.balances.append(balance)
        return self._numbers[balance]


def simulate(accountant: Accountant, side: int, n_courses: int, rng: np.random.Generator) -> Losses:
    """Return the privacy losses of courses over one of two neighbours. A refused job is replaced by the next kind."""
    analyst = accountant.analyst
    losses, states = np.zeros(n_courses), np.zeros(n_courses, dtype=np.int64)
    n_kinds = len(analyst.jobs)
    for _ in range(-(-analyst.n_jobs // analyst.at_once)):
        choices = analyst.choose(losses)
        going = np.ones(n_courses, dtype=np.bool_)
        for kind in range(n_kinds):
            for offset in range(n_kinds):
                mine = np.flatnonzero(going & ((choices + offset) % n_kinds == kind))
                if not len(mine):
                    continue
                old, places = np.unique(states[mine], return_inverse=True)
                steps = np.array([accountant.step(int(state), kind) for state in old])
                states[mine], n_admitted = steps[places, 0], steps[places, 1]
                losses[mine] += analyst.jobs[kind].draw_losses(side, n_admitted, rng)
                going[mine] = n_admitted == 0
    return losses


def check_courses(count: CountMu2, admit: Admit, setting: Setting) -> Iterator[Finding]:
    """Bound from below the delta at the granted epsilon of every analyst of jobs."""
    return _attack("accounting: courses", list_analysts(), count, admit, setting)


def check_release_courses(admit: Admit, setting: Setting) -> Iterator[Finding]:
    """Bound from below the delta at the granted epsilon of every analyst of shuffled rounds."""
    return _attack("accounting: shuffled courses", list_release_analysts(), charge_mu2, admit, setting)


def _attack(
    check: str, analysts: Iterable[Analyst], count: CountMu2, admit: Admit, setting: Setting
) -> Iterator[Finding]:
    for analyst in analysts:
        n = setting.effort.trials(N_COURSES if analyst.n_jobs <= MANY else N_LONG_COURSES)
        nano, atto = analyst.grant.shuffled if any(analyst.grant.shuffled) else analyst.grant[:2]
        epsilon, delta = nano / NANO, atto / ATTO
        accountant, hits = Accountant(analyst, count, admit), []
        for side in (1, -1):
            rng = np.random.default_rng(setting.entropy(f"{analyst.name}/{side}").words(2))
            hits.append(int((simulate(accountant, side, n, rng) > epsilon).sum()))
        least = bound_probability(hits[0], n, ERROR_PROBABILITY / 2)[0]
        measured = float(least - exp(epsilon) * bound_probability(hits[1], n, ERROR_PROBABILITY / 2)[1])
        why = f"delta is at least {measured:.4g}, but {delta:.4g} was granted" if measured > delta else ""
        claim = f"{analyst.name}: the loss exceeds the granted epsilon with at most the granted delta"
        yield Finding(check, claim, "black box", 2 * n, delta, max(measured, 0.0), not why, why)


def list_analysts() -> Iterator[Analyst]:
    """Yield analysts of 1, 10 and 100 jobs. The deltas are large, because trials cannot measure small ones."""
    for n_jobs in (1, 10, 100):
        grant = Amounts(NANO, ATTO // 12)
        block, large, pure = _block(grant, n_jobs), _block(grant, max(1, n_jobs // 4)), _pure(grant, n_jobs)
        yield Analyst(f"blocks ({n_jobs})", grant, (block,), n_jobs, _always)
        yield Analyst(f"blocks at once ({n_jobs})", grant, (block,), 3 * n_jobs, _always, at_once=3 * n_jobs)
        yield Analyst(f"blocks, larger after a low loss ({n_jobs})", grant, (block, large), n_jobs, _chase)
        yield Analyst(f"pure jobs, blocks after a low loss ({n_jobs})", grant, (pure, block), 2 * n_jobs + 4, _chase)
    # Its loss exceeds .1 with a delta of .749. That of a block with the same epsilon^2 as its mu^2 has .667.
    yield Analyst("a pure job of epsilon 2", Amounts(NANO // 10, ATTO * 67 // 100), (Job(2 * NANO),), 1, _always)
    mixed = Amounts(NANO, ATTO // 10)
    yield Analyst("a pure job of all epsilon, then blocks", mixed, (Job(NANO), _block(mixed, 2)), 3, _always)


def list_release_analysts() -> Iterator[Analyst]:
    """Yield analysts of 1, 10 and 100 shuffled rounds that spend both limits."""
    for n_jobs in (1, 10, 100):
        grant = Amounts(NANO, 0, NANO, ATTO // 12)
        release, large = _release(grant, n_jobs), _release(grant, max(1, n_jobs // 4))
        yield Analyst(f"rounds ({n_jobs})", grant, (release,), 3 * n_jobs, _always, at_once=3 * n_jobs)
        yield Analyst(f"rounds, larger after a low loss ({n_jobs})", grant, (release, large), 2 * n_jobs, _chase)
    rare = Release(limit_release_mu2(*grant.shuffled) // 100, release_delta(grant.shuffled_delta_atto) // 2)
    yield Analyst("rounds with much disclosure", grant, (rare,), 10, _always)
    whole = Release(limit_mu2(*grant.shuffled) // MANY, grant.shuffled_delta_atto // MANY)
    yield Analyst("rounds of the whole delta", grant, (whole,), MANY, _always)


def _always(losses: Losses) -> Choices:
    return np.zeros(len(losses), dtype=np.int64)


def _chase(losses: Losses) -> Choices:
    """Use the first kind of job after a high loss, and the second after a low one."""
    return np.where(losses < 0, 1, 0)


def _block(grant: Amounts, n: int) -> Job:
    """Return a block of which about `n` spend a grant, at a tenth of its delta for each."""
    delta_atto = grant.delta_atto // (10 * n)
    mu2 = limit_mu2(grant.epsilon_nano, grant.delta_atto) // n
    nano = epsilon_of(mu2, delta_atto)
    assert nano is not None  # noqa: S101 - for the type checker
    return Job(nano - 1, delta_atto)


def _release(grant: Amounts, n: int) -> Release:
    """Return a release of which about `n` spend a grant."""
    nano, atto = grant.shuffled
    return Release(limit_release_mu2(nano, atto) // n, release_delta(atto) // n)


def _pure(grant: Amounts, n: int) -> Job:
    """Return a pure job of which about `n` spend a grant."""
    mu = (limit_mu2(grant.epsilon_nano, grant.delta_atto) / PICO / n) ** 0.5
    return Job(int(NANO * float(np.log(ndtr(mu / 2) / ndtr(-mu / 2)))))


certify = partial(certified_epsilon, "gaussian")

CHECKS: Sequence[Check] = (
    Check("accounting: mu squared", partial(check_counts, charge_mu2)),
    Check("accounting: limits", partial(check_limits, limit_mu2, certify)),
    Check("accounting: courses", partial(check_courses, charge_mu2, reserve)),
    Check("accounting: releases", partial(check_releases, gaussian_cost)),
    Check("accounting: shuffled courses", partial(check_release_courses, open_round)),
)
