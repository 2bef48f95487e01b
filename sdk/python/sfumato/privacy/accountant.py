"""Add up the costs of the jobs of a dataset: `additive`, or `gaussian`.

An additive budget bounds the sums of epsilon and of delta. A Gaussian budget may be used as long as, with all
reservations counted, one of two conditions holds:

(a) all charges are pure and their sum is at most epsilon, or
(b) the sum of all mu^2 is at most M^2, the largest mu^2 that (epsilon, delta) covers.

A concentrated block counts 2 rho, and a pure charge the mu^2 of `mu2_of_pure`. Either way the whole use of the dataset
is (epsilon, delta)-private, also if costs are chosen by earlier answers (Smith and Thakurta 2022).
docs/decisions/0038-gaussian-accounting-of-datasets.md has the proof. Every mu^2 is an integer in units of 1e-12. A
charge is rounded up and a limit down.

Under Gaussian accounting, a dataset with a shuffler counts the mu^2 of its releases. Each release is one normal value
with a shift of mu, except with probability delta_0 (`sfumato.privacy.shuffled_rounds`). Half of the granted delta
limits the sum of delta_0, and M^2 follows from the other half. docs/decisions/0040-shuffled-rounds-in-the-ledger.md has
the proof. Its local epsilons add up in each case.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from sfumato.errors import InvalidSpec
from sfumato.privacy.accounting import EPSILON_MAX_NANO, format_delta, format_epsilon
from sfumato.privacy.gaussian_privacy import epsilon_of, mu2_of_pure, rho_of

Accounting = Literal["additive", "gaussian"]


class Cost(NamedTuple):
    """A cost: nano-epsilon, atto-delta, and mu^2 in units of 1e-12."""

    epsilon_nano: int
    delta_atto: int
    mu2_pico: int


def limit_mu2(epsilon_nano: int, delta_atto: int) -> int:
    """Return M^2 of a grant, rounded down. 0 if the grant has no delta, or one too small for a conversion."""
    if not epsilon_nano or not delta_atto:
        return 0
    return 2 * rho_of(min(epsilon_nano, EPSILON_MAX_NANO), delta_atto)


def release_delta(delta_atto: int) -> int:
    """Return the limit of the sum of delta_0 of all releases, given the granted delta: a half of it, rounded down."""
    return delta_atto // 2


def limit_release_mu2(epsilon_nano: int, delta_atto: int) -> int:
    """Return M^2 of a grant towards an observer of releases, rounded down. It has the other half of delta."""
    return limit_mu2(epsilon_nano, delta_atto - release_delta(delta_atto))


def charge_mu2(epsilon_nano: int, delta_atto: int) -> int:
    """Return mu^2 of a charge, rounded up. A charge with a delta is a concentrated block.

    `rho_of` is an integer that the noise of the block uses exactly, so that 2 rho is not rounded.
    """
    return mu2_of_pure(epsilon_nano) if not delta_atto else 2 * rho_of(epsilon_nano, delta_atto)


def sum_mu2(charges: Mapping[tuple[int, int], int]) -> int | None:
    """Return mu^2 of additive charges, given how often each (epsilon, delta) was charged; None if one has no mu^2."""
    if any(atto and not 0 < nano <= EPSILON_MAX_NANO for nano, atto in charges):
        return None
    return sum(number * charge_mu2(*amounts) for amounts, number in charges.items())


def most_mu2(epsilon_nano: int, delta_atto: int) -> int:
    """Return the largest mu^2 that a job of (epsilon, delta) counts, however it divides them."""
    block = 2 * rho_of(epsilon_nano, delta_atto) if epsilon_nano and delta_atto else 0
    return mu2_of_pure(epsilon_nano) + block


def is_counted(charged: Cost) -> bool:
    """Return whether a charge counts at least the mu^2 that it costs. A charge of delta alone has no mu^2."""
    if charged.delta_atto and not 0 < charged.epsilon_nano <= EPSILON_MAX_NANO:
        return False
    return charged.mu2_pico >= charge_mu2(charged.epsilon_nano, charged.delta_atto)


def is_allowed(accounting: Accounting, granted: Cost, used: Cost) -> bool:
    """Return whether a dataset may be used up to `used`, its charges and reservations together."""
    if accounting == "additive":
        return used.epsilon_nano <= granted.epsilon_nano and used.delta_atto <= granted.delta_atto
    is_pure = used.delta_atto == 0 and used.epsilon_nano <= granted.epsilon_nano
    return is_pure or used.mu2_pico <= granted.mu2_pico


def is_release_allowed(accounting: Accounting, granted: Cost, used: Cost) -> bool:
    """Return whether the releases of a dataset may cost `used`, given what is granted towards their observer."""
    return all(used[i] <= have for i, have in _release_limits(accounting, granted))


def remaining_release_share(accounting: Accounting, granted: Cost, used: Cost) -> float:
    """Return the part of a budget towards an observer of releases that is left: of the amount that is left least."""
    limits = _release_limits(accounting, granted)
    return min(max(0, have - used[i]) / (have or 1) for i, have in limits)


def count_releases(accounting: Accounting, granted: Cost, used: Cost, release: Cost) -> int:
    """Return how many more releases of this cost a budget towards their observer allows."""
    limits = _release_limits(accounting, granted)
    return min((max(0, have - used[i]) // release[i] for i, have in limits if release[i]), default=0)


def _release_limits(accounting: Accounting, granted: Cost) -> tuple[tuple[int, int], ...]:
    """Return the members of a cost that are limited, with their limits."""
    if accounting == "additive":
        return (0, granted.epsilon_nano), (1, granted.delta_atto)
    return (2, granted.mu2_pico), (1, release_delta(granted.delta_atto))


def certified_release_epsilon(accounting: Accounting, granted: Cost, charged: Cost) -> int | None:
    """Return the nano-epsilon that releases certify towards their observer, rounded up; None if above 32.

    Additive charges certify their sum, at the sum of their deltas. Gaussian ones certify the least epsilon that covers
    their mu^2, at the granted delta.
    """
    if accounting == "additive":
        return charged.epsilon_nano
    return epsilon_of(charged.mu2_pico, granted.delta_atto - release_delta(granted.delta_atto))


def cost_of_releases(accounting: Accounting, release: Cost, n_releases: int) -> tuple[int | None, int]:
    """Return the nano-epsilon and the atto-delta of releases that a person takes part in; no epsilon if above 32.

    Additive costs add up. Under Gaussian accounting, half of the delta covers the sum of the deltas, which are delta_0,
    and the other half the sum of mu^2.
    """
    epsilon_nano, delta_atto, mu2_pico = (each * n_releases for each in release)
    if accounting == "additive":
        return (epsilon_nano if epsilon_nano <= EPSILON_MAX_NANO else None), delta_atto
    return epsilon_of(mu2_pico, delta_atto), 2 * delta_atto


def remaining_share(accounting: Accounting, granted: Cost, used: Cost) -> float:
    """Return the part of a budget that is left: of epsilon, or under Gaussian accounting the larger of both conditions.

    The second condition, of mu^2, always counts. The first one counts while all charges and reservations are pure.
    """
    free = [max(0, have - gone) / (have or 1) for have, gone in zip(granted, used, strict=True)]
    if accounting == "additive":
        return free[0]
    return free[2] if used.delta_atto else max(free[0], free[2])


def certified_epsilon(accounting: Accounting, charged: Cost, delta_atto: int) -> int | None:
    """Return the nano-epsilon that the charges certify at a delta, rounded up; None if above 32.

    Additive charges certify their sum. Gaussian ones certify the least epsilon with which (epsilon, delta) covers their
    mu^2, or their sum if it is less and all are pure.
    """
    if accounting == "additive":
        return charged.epsilon_nano
    certified = epsilon_of(charged.mu2_pico, delta_atto) if delta_atto or not charged.mu2_pico else None
    if charged.delta_atto or charged.epsilon_nano > EPSILON_MAX_NANO:
        return certified
    return charged.epsilon_nano if certified is None else min(certified, charged.epsilon_nano)


def count_jobs(accounting: Accounting, granted: Cost, used: Cost, job: Cost) -> int:
    """Return how many more jobs of this cost a budget allows."""
    if not any(job):
        raise InvalidSpec("a job must cost more than 0")
    free = Cost(*(have - gone for have, gone in zip(granted, used, strict=True)))
    sums = min(left // part for left, part in zip(free[:2], job[:2], strict=True) if part)
    if accounting == "additive":
        return max(0, sums)
    pure = sums if used.delta_atto == job.delta_atto == 0 else 0
    return max(0, pure, free.mu2_pico // job.mu2_pico if job.mu2_pico else 0)


@dataclass(frozen=True, slots=True)
class BudgetForecast:
    """Numbers of equal jobs that a budget allows under both kinds of accounting.

    Attributes
    ----------
    additive, gaussian : int
        Numbers of jobs. `gaussian` is 0 without a delta.
    """

    additive: int
    gaussian: int


def forecast_budget(epsilon_nano: int, delta_atto: int, job_epsilon_nano: int, job_delta_atto: int) -> BudgetForecast:
    """Return how many jobs of one cost a new budget allows.

    Parameters
    ----------
    epsilon_nano, delta_atto : int
        Grant of the dataset, in nano-epsilon and atto-delta.
    job_epsilon_nano, job_delta_atto : int
        Cost of a job. With a delta, the job is one concentrated block; without, it is pure.

    Raises
    ------
    InvalidSpec
        The job costs nothing, or its epsilon and delta are too small for a block.

    Examples
    --------
    >>> from sfumato.privacy.accountant import forecast_budget
    >>> from sfumato.privacy.accounting import parse_delta, parse_epsilon
    >>> forecast_budget(parse_epsilon(2), parse_delta(1e-6), parse_epsilon(0.2), parse_delta(1e-8))
    BudgetForecast(additive=10, gaussian=112)
    """
    job = Cost(job_epsilon_nano, job_delta_atto, charge_mu2(job_epsilon_nano, job_delta_atto))
    if not job.mu2_pico:
        raise InvalidSpec(
            f"epsilon {format_epsilon(job_epsilon_nano)} and delta {format_delta(job_delta_atto)} are too small for a "
            "concentrated block: increase one of them"
        )
    granted, none = Cost(epsilon_nano, delta_atto, limit_mu2(epsilon_nano, delta_atto)), Cost(0, 0, 0)
    gaussian = count_jobs("gaussian", granted, none, job) if delta_atto else 0
    return BudgetForecast(count_jobs("additive", granted, none, job), gaussian)
