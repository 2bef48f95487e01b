"""Mechanisms, one class each.

A symbol enters and a perturbed value leaves. Each class has its published integers, which `design` chooses, the
device's part (`perturb`, `perturb_many`), the estimator's part (`support` or `offset_chances`, `is_value`, `evidence`)
and the exact channel that proves the cost (`channel`, `ratio`, `epsilon_nano`).
"""

from dataclasses import replace
from typing import get_args

from sfumato.errors import InvalidSpec
from sfumato.kinds import MechanismKind
from sfumato.limits import MAX_SUBSET_SYMBOLS
from sfumato.mechanisms.base import Mechanism, Symbol
from sfumato.mechanisms.discrete_laplace import DiscreteLaplaceMechanism
from sfumato.mechanisms.grr import GrrMechanism
from sfumato.mechanisms.hr import HrMechanism
from sfumato.mechanisms.olh import OlhMechanism
from sfumato.mechanisms.oue import OueMechanism
from sfumato.mechanisms.ss import SsMechanism
from sfumato.mechanisms.window import WindowMechanism
from sfumato.privacy.entropy import WORD_SPAN

__all__ = [
    "COUNTED",
    "MECHANISMS",
    "DiscreteLaplaceMechanism",
    "GrrMechanism",
    "HrMechanism",
    "Mechanism",
    "OlhMechanism",
    "OueMechanism",
    "SsMechanism",
    "Symbol",
    "WindowMechanism",
    "design",
    "resize",
    "vector_noise",
    "without_noise",
]

_COUNTED = (GrrMechanism, SsMechanism, OueMechanism, OlhMechanism, HrMechanism, WindowMechanism)
COUNTED = tuple(kind.type for kind in _COUNTED)  # types of mechanisms for symbols
assert {"auto", *COUNTED} == set(get_args(MechanismKind))  # noqa: S101 - the options of an SDK and the command line
_DESIGNS = {kind.type: kind.design for kind in _COUNTED}

MECHANISMS: dict[str, type[Mechanism]] = {kind.type: kind for kind in (*_COUNTED, DiscreteLaplaceMechanism)}


def design(kind: str, n_symbols: int, epsilon_nano: int) -> Mechanism:
    """Return the mechanism of a kind for k symbols with a cost of at most `epsilon_nano`.

    Parameters
    ----------
    kind : MechanismKind
        'auto' selects by variance and report size. Up to 4097 symbols it selects subset selection,
        which has the least variance, k bits per report and k additions per count. If a subset would
        have one symbol, it selects randomised response, which is the same channel in fewer bytes.
        Above 4097 symbols, k bits are too long. 'auto' then selects randomised response or
        Hadamard response, by variance: one to three bytes and one addition per report, and
        K log K operations at the end. 'auto' never selects 'window', which is for symbols on a
        circle, nor 'olh', which costs one hash per report and counted symbol.
    n_symbols : int
        k, at least 2.
    epsilon_nano : int
        Nano-epsilon, in [1e3, 32e9].

    Raises
    ------
    InvalidSpec
        The kind is unknown, or does not support so many symbols.

    Examples
    --------
    >>> from sfumato import mechanisms
    >>> made = mechanisms.design("auto", 64, 10**9)
    >>> made.type, made.epsilon_nano() <= 10**9, made.value_bytes
    ('ss', True, 8)
    """
    if kind == "auto":
        return _least_noise(n_symbols, epsilon_nano)
    if kind not in _DESIGNS:
        raise InvalidSpec(f"unknown mechanism; this version knows auto, {', '.join(_DESIGNS)}")
    return _DESIGNS[kind](n_symbols, epsilon_nano)


def _least_noise(n_symbols: int, epsilon_nano: int) -> Mechanism:
    if n_symbols <= MAX_SUBSET_SYMBOLS:
        subset = SsMechanism.design(n_symbols, epsilon_nano)
        return subset if subset.subset_size > 1 else GrrMechanism.design(n_symbols, epsilon_nano)
    added: list[Mechanism] = [
        GrrMechanism.design(n_symbols, epsilon_nano),
        HrMechanism.design(n_symbols, epsilon_nano),
    ]
    return min(added, key=lambda each: each.zero_variance())


def resize(mechanism: Mechanism, n_symbols: int) -> Mechanism:
    """Return a mechanism of the same kind for another number of symbols, at most at the same cost.

    Raises
    ------
    InvalidSpec
        The mechanism does not support so many symbols.
    """
    if mechanism == without_noise(mechanism):
        return GrrMechanism(n_symbols, WORD_SPAN)
    return design(mechanism.type, n_symbols, mechanism.epsilon_nano())


def without_noise(mechanism: Mechanism) -> Mechanism:
    """Return a mechanism for the same symbols or vectors that does not perturb reports, for a dry run."""
    if (noise := vector_noise(mechanism)) is not None:
        return replace(noise, scale_numerator=0)
    return GrrMechanism(mechanism.n_symbols, WORD_SPAN)


def vector_noise(mechanism: Mechanism) -> DiscreteLaplaceMechanism | None:
    """Return the mechanism if it perturbs vectors, otherwise None."""
    return mechanism if isinstance(mechanism, DiscreteLaplaceMechanism) else None
