"""Broken Gaussian accounting."""

from functools import partial

from audit.checks.check import Leak
from audit.ledger.budgets import (
    certify,
    check_counts,
    check_courses,
    check_limits,
    check_release_courses,
    check_releases,
    reserve,
)
from models.ledger.amounts import Amounts, Balance
from models.tables.ledger import Kind
from sfumato.privacy.accountant import Cost, charge_mu2, limit_mu2
from sfumato.privacy.accounting import NANO
from sfumato.privacy.gaussian_privacy import PICO, rho_of
from sfumato.privacy.shuffled_rounds import gaussian_cost
from sfumato.privacy.shuffling import Blanket


def count_rounded_down(epsilon_nano: int, delta_atto: int) -> int:
    """Round the mu^2 of a pure charge down."""
    return charge_mu2(epsilon_nano, delta_atto) - (not delta_atto)


def limit_rounded_up(epsilon_nano: int, delta_atto: int) -> int:
    """Round the limit of a grant up."""
    return 2 * (rho_of(epsilon_nano, delta_atto) + 1)


def certify_rounded_down(charged: Cost, delta_atto: int) -> int | None:
    """Round a certified epsilon down."""
    exact = certify(charged, delta_atto)
    return None if exact is None else exact - 1


def count_pure_at_half_a_square(epsilon_nano: int, delta_atto: int) -> int:
    """Take a pure charge at rho = epsilon^2 / 2, which bounds its Renyi divergence but not its trade-off function."""
    return charge_mu2(epsilon_nano, delta_atto) if delta_atto else epsilon_nano**2 * PICO // NANO**2


def admit_without_reservations(balance: Balance, amounts: Amounts) -> Balance | None:
    """Compare the charges and the new job alone with the limit."""
    charged = balance._replace(reserved_nano=0, reserved_delta_atto=0, reserved_mu2_pico=0)
    return None if reserve(charged, amounts) is None else balance.after(Kind.RESERVE, amounts, "job")


def admit_pure_freely(balance: Balance, amounts: Amounts) -> Balance | None:
    """Give pure charges and blocks a whole budget each, as if condition (a) ignored blocks."""
    uncounted = amounts if amounts.delta_atto else amounts._replace(mu2_pico=0)
    after = balance.after(Kind.RESERVE, uncounted, "job")
    pure = not amounts.delta_atto and after.charged_nano + after.reserved_nano <= after.granted_nano
    is_over = (after.charged_mu2_pico or 0) + (after.reserved_mu2_pico or 0) > (after.granted_mu2_pico or 0)
    return after if pure or (amounts.delta_atto and not is_over) else None


def release_at_four_fifths(blanket: Blanket, n: int, delta_atto: int) -> tuple[int, int]:
    """Count four fifths of the mu^2 of a release."""
    mu2_pico, delta_0 = gaussian_cost(blanket, n, delta_atto)
    return mu2_pico * 4 // 5, delta_0


def open_round_without_delta(balance: Balance, amounts: Amounts) -> Balance | None:
    """Compare mu^2 alone with its limit."""
    after = balance.after(Kind.CHARGE, amounts, None)
    return None if after.slack.mu2_pico < 0 else after


def open_round_with_delta_twice(balance: Balance, amounts: Amounts) -> Balance | None:
    """Give the whole delta to mu^2, and the whole delta to the disclosures."""
    after = balance.after(Kind.CHARGE, amounts, None)
    is_over = (after.charged_mu2_pico or 0) > limit_mu2(after.granted_shuffled_nano, after.granted_shuffled_delta_atto)
    return None if is_over or after.charged_shuffled_delta_atto > after.granted_shuffled_delta_atto else after


LEAKS: tuple[Leak, ...] = (
    Leak("mu squared rounded down", "accounting: mu squared", partial(check_counts, count_rounded_down)),
    Leak("limit of mu squared rounded up", "accounting: limits", partial(check_limits, limit_rounded_up, certify)),
    Leak(
        "certified epsilon rounded down", "accounting: limits", partial(check_limits, limit_mu2, certify_rounded_down)
    ),
    Leak(
        "pure charge at epsilon^2 / 2",
        "accounting: courses",
        partial(check_courses, count_pure_at_half_a_square, reserve),
    ),
    Leak(
        "mu squared without reservations",
        "accounting: courses",
        partial(check_courses, charge_mu2, admit_without_reservations),
    ),
    Leak("mu squared of a release at 80 %", "accounting: releases", partial(check_releases, release_at_four_fifths)),
    Leak(
        "disclosures of releases not counted",
        "accounting: shuffled courses",
        partial(check_release_courses, open_round_without_delta),
    ),
    Leak(
        "delta of releases used twice",
        "accounting: shuffled courses",
        partial(check_release_courses, open_round_with_delta_twice),
    ),
    Leak("pure charges beside blocks", "accounting: courses", partial(check_courses, charge_mu2, admit_pure_freely)),
)
