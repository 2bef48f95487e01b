"""Mechanisms, one file each, behind one set of functions that dispatch on the spec's type.

Each file holds the thresholds (`design`), the device (`perturb`, `perturb_many`), what the
server needs (`support`, `is_value`), and the proof of its cost (`channel`, `ratio`).
"""

from fractions import Fraction
from types import ModuleType
from typing import cast

import numpy as np
from numpy.typing import NDArray

from sfumato.accounting import realised_epsilon
from sfumato.entropy import Entropy
from sfumato.errors import InvalidSpec
from sfumato.mechanisms import grr, ss
from sfumato.specs import MAX_SUBSET_SYMBOLS, GrrMechanism, Mechanism, SsMechanism

_FILES: dict[type[Mechanism], ModuleType] = {GrrMechanism: grr, SsMechanism: ss}
_DESIGNS: dict[str, ModuleType] = {"grr": grr, "ss": ss}


def design(kind: str, n_symbols: int, epsilon_nano: int) -> Mechanism:
    """The mechanism of this kind for k symbols that costs at most `epsilon_nano`.

    Parameters
    ----------
    kind : {'auto', 'grr', 'ss'}
        'auto' takes the least variance: subset selection up to 4096 symbols, and
        randomised response where a subset would hold one symbol (the same channel, in
        fewer bytes) or above 4096 symbols.
    n_symbols : int
        k, at least 2.
    epsilon_nano : int
        Nano-epsilon, in [1e3, 32e9].

    Raises
    ------
    InvalidSpec
        Unknown kind, or more symbols than the kind can carry.
    """
    if kind == "auto":
        if n_symbols > MAX_SUBSET_SYMBOLS:
            return grr.design(n_symbols, epsilon_nano)
        subset = ss.design(n_symbols, epsilon_nano)
        return subset if subset.subset_size > 1 else grr.design(n_symbols, epsilon_nano)
    if kind not in _DESIGNS:
        raise InvalidSpec(f"unknown mechanism; this version knows auto, {', '.join(_DESIGNS)}")
    return cast(Mechanism, _DESIGNS[kind].design(n_symbols, epsilon_nano))


def epsilon_nano(mechanism: Mechanism) -> int:
    """What one report costs: the realised epsilon of the published thresholds, rounded up.

    Exact rational arithmetic on the channel; never below the true cost, and never above
    what `design` was asked for.

    Raises
    ------
    InvalidSpec
        The thresholds bound nothing: a report would give the symbol away.
    """
    try:
        return realised_epsilon(ratio(mechanism))
    except ZeroDivisionError:
        raise InvalidSpec("this mechanism gives the symbol away: it has no finite epsilon") from None


def value_bytes(mechanism: Mechanism) -> int:
    """Width of a report's value in bytes."""
    return cast(int, _FILES[type(mechanism)].value_bytes(mechanism))


def perturb(mechanism: Mechanism, symbol: int, entropy: Entropy) -> bytes:
    """One device's report value for its symbol, 0 .. k-1."""
    if not 0 <= symbol < mechanism.n_symbols:
        raise InvalidSpec("the symbol is out of range")
    return cast(bytes, _FILES[type(mechanism)].perturb(mechanism, symbol, entropy))


def perturb_many(mechanism: Mechanism, symbols: NDArray[np.int64], entropy: Entropy) -> NDArray[np.uint8]:
    """Report values of n devices, by the very same integers: uint8, shape (n, value_bytes)."""
    if symbols.size and not (symbols.min() >= 0 and symbols.max() < mechanism.n_symbols):
        raise InvalidSpec("a symbol is out of range")
    return cast(NDArray[np.uint8], _FILES[type(mechanism)].perturb_many(mechanism, symbols, entropy))


def is_value(mechanism: Mechanism, value: bytes) -> bool:
    """Whether a device that follows the mechanism could have sent this value."""
    return cast(bool, _FILES[type(mechanism)].is_value(mechanism, value))


def are_values(mechanism: Mechanism, values: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """What `is_value` says, for values of shape (n, value_bytes): bool of shape (n,)."""
    return cast(NDArray[np.bool_], _FILES[type(mechanism)].are_values(mechanism, values))


def support(mechanism: Mechanism) -> tuple[Fraction, Fraction]:
    """(p, q): the chance that a report supports its own symbol, and any one other."""
    return cast(tuple[Fraction, Fraction], _FILES[type(mechanism)].support(mechanism))


def ratio(mechanism: Mechanism) -> Fraction:
    """The largest ratio of an output's probabilities under two symbols, exactly."""
    return cast(Fraction, _FILES[type(mechanism)].ratio(mechanism))


def channel(mechanism: Mechanism) -> dict[bytes, tuple[Fraction, ...]]:
    """For each value, its probability given each symbol; enumerates, so small k only."""
    return cast(dict[bytes, tuple[Fraction, ...]], _FILES[type(mechanism)].channel(mechanism))
