"""Broken accountants of shuffled reports."""

from functools import partial
from math import ceil

from audit.checks.check import Leak
from audit.mechanisms.shuffled_reports import ACCOUNTANT, Accountant, check_brute_force, check_monotony, check_samples
from sfumato import mechanisms
from sfumato.privacy import shuffling
from sfumato.privacy.shuffling import Blanket
from sfumato.specs import Mechanism


def delta_at_70_percent(blanket: Blanket, n: int, epsilon_nano: int) -> int:
    """Return 70 % of the correct delta."""
    return shuffling.delta(blanket, n, epsilon_nano) * 7 // 10


def delta_of_whole_set(blanket: Blanket, n: int, epsilon_nano: int) -> int:
    """Use n reports of the blanket, although only a share of all reports is independent of its symbol."""
    return shuffling.delta(blanket, ceil(n / blanket.share), epsilon_nano)


def delta_for_thousands(blanket: Blanket, n: int, epsilon_nano: int) -> int:
    """Divide by the number of reports once more, beyond a thousand."""
    return shuffling.delta(blanket, n, epsilon_nano) * max(1, n // 1000)


def blanket_of_randomised_response(mechanism: Mechanism) -> Blanket:
    """Return the blanket of `grr` with the same local epsilon, for each mechanism."""
    return mechanisms.design("grr", mechanism.n_symbols, mechanism.epsilon_nano()).blanket()


def blanket_of_near_symbols(mechanism: Mechanism) -> Blanket:
    """Return the blanket for two neighbours on the circle."""
    blanket = mechanism.blanket()
    size = mechanism.n_named or 1
    both = blanket.named * (size - 1) / size
    return Blanket(blanket.ratio, blanket.named, both)


def _leak(name: str, kind: str, encoding: str, accountant: Accountant) -> Leak:
    run = partial(check_brute_force, kind, encoding, accountant)
    return Leak(name, f"shuffled {kind} x {encoding}", run)


LEAKS: tuple[Leak, ...] = (
    Leak(
        "delta at 70 %",
        "shuffled grr in samples",
        partial(check_samples, "grr", ACCOUNTANT._replace(delta=delta_at_70_percent)),
    ),
    Leak(
        "blanket share ignored",
        "shuffled ss in samples",
        partial(check_samples, "ss", ACCOUNTANT._replace(delta=delta_of_whole_set)),
    ),
    Leak(
        "delta that rises with n",
        "shuffled reports",
        partial(check_monotony, ACCOUNTANT._replace(delta=delta_for_thousands)),
    ),
    _leak(
        "fake reports counted as honest",
        "ss",
        "tree_grid",
        ACCOUNTANT._replace(honest_reports=lambda min_batch, _: min_batch),
    ),
    Leak(
        "blanket of another mechanism",
        "shuffled window in samples",
        partial(check_samples, "window", ACCOUNTANT._replace(blanket=blanket_of_randomised_response)),
    ),
    _leak("blanket of near symbols", "window", "phase", ACCOUNTANT._replace(blanket=blanket_of_near_symbols)),
)
