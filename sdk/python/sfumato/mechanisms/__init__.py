"""Mechanisms, one module each, and functions that dispatch on the type of the specification.

A symbol enters and a perturbed value leaves. Each module has the thresholds (`design`), the device's
part (`perturb`, `perturb_many`), the estimator's part (`support` or `offset_chances`, `is_value`) and
the exact channel that proves the cost (`channel`, `ratio`).
"""

from fractions import Fraction
from math import ceil
from types import ModuleType
from typing import cast

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InvalidSpec
from sfumato.mechanisms import discrete_laplace, grr, hr, olh, oue, ss, window
from sfumato.privacy.accounting import NANO, realised_epsilon
from sfumato.privacy.entropy import Entropy
from sfumato.specs import (
    MAX_SUBSET_SYMBOLS,
    DiscreteLaplaceMechanism,
    Encoding,
    GrrMechanism,
    HrMechanism,
    LatticeEncoding,
    Mechanism,
    OlhMechanism,
    OueMechanism,
    SsMechanism,
    Symbol,
    WindowMechanism,
)

_FILES: dict[type[Mechanism], ModuleType] = {
    GrrMechanism: grr,
    SsMechanism: ss,
    OueMechanism: oue,
    OlhMechanism: olh,
    HrMechanism: hr,
    WindowMechanism: window,
    DiscreteLaplaceMechanism: discrete_laplace,
}
_DESIGNS: dict[str, ModuleType] = {"grr": grr, "ss": ss, "oue": oue, "olh": olh, "hr": hr, "window": window}

HASHING_GAIN = 1.3  # minimum ratio of `hr`'s variance to `olh`'s that justifies the decoding time


def design(kind: str, n_symbols: int, epsilon_nano: int, *, n_candidates: int | None = None) -> Mechanism:
    """Return the mechanism of a kind for k symbols with a cost of at most `epsilon_nano`.

    Parameters
    ----------
    kind : {'auto', 'grr', 'ss', 'oue', 'olh', 'hr', 'window'}
        'auto' selects by variance, report size and decoding time (STATISTICS, section 1). Up to
        4097 symbols it selects subset selection, which has the least variance, k bits per report
        and k additions per count. If a subset would have one symbol, it selects randomised
        response, which is the same channel in fewer bytes.
        Above 4097 symbols, k bits are too long. 'auto' then selects randomised response or
        Hadamard response, by variance: one to three bytes and one addition per report, and
        K log K operations at the end. Local hashing costs one hash per report and counted symbol.
        It is selected only for few counted symbols (`n_candidates`) and a variance at least 1.3
        times less than that of both. With many symbols this is so from epsilon 1.05.
        'auto' never selects 'window', which is for symbols on a circle.
    n_symbols : int
        k, at least 2.
    epsilon_nano : int
        Nano-epsilon, in [1e3, 32e9].
    n_candidates : int, optional
        Number of symbols that will be counted, which only `olh` uses. The service counts all
        symbols and does not pass it.

    Raises
    ------
    InvalidSpec
        The kind is unknown, or does not support so many symbols.

    Examples
    --------
    >>> from sfumato import mechanisms
    >>> made = mechanisms.design("auto", 64, 10**9)
    >>> made.type, mechanisms.epsilon_nano(made) <= 10**9, mechanisms.value_bytes(made)
    ('ss', True, 8)
    """
    if kind == "auto":
        return _least_noise(n_symbols, epsilon_nano, n_candidates)
    if kind not in _DESIGNS:
        raise InvalidSpec(f"unknown mechanism; this version knows auto, {', '.join(_DESIGNS)}")
    if kind == "olh":
        return olh.design(n_symbols, epsilon_nano, n_candidates=n_candidates)
    return cast(Mechanism, _DESIGNS[kind].design(n_symbols, epsilon_nano))


def design_for(encoding: Encoding, kind: str, epsilon_nano: int) -> Mechanism:
    """Return the mechanism of a kind for an encoding's symbols with a cost of at most `epsilon_nano`.

    Parameters
    ----------
    encoding : Encoding
    kind : str
        As for `design`. For a lattice 'discrete_laplace', which 'auto' also selects.
    epsilon_nano : int

    Raises
    ------
    InvalidSpec
        As for `design`, or the kind does not perturb the encoding's symbols.
    """
    if isinstance(encoding, LatticeEncoding) != (kind == "discrete_laplace") and kind != "auto":
        raise InvalidSpec("discrete_laplace is only for the vectors of a lattice, and the only mechanism for them")
    if isinstance(encoding, LatticeEncoding):
        return discrete_laplace.design(encoding.n_features, encoding.steps, epsilon_nano)
    return design(kind, encoding.n_symbols, epsilon_nano)


def _least_noise(n_symbols: int, epsilon_nano: int, n_candidates: int | None) -> Mechanism:
    if n_symbols <= MAX_SUBSET_SYMBOLS:
        subset = ss.design(n_symbols, epsilon_nano)
        return subset if subset.subset_size > 1 else grr.design(n_symbols, epsilon_nano)
    added: list[Mechanism] = [grr.design(n_symbols, epsilon_nano), hr.design(n_symbols, epsilon_nano)]
    best = min(added, key=zero_variance)
    if n_candidates is not None and n_candidates <= olh.MAX_COUNTED:
        hashing = olh.design(n_symbols, epsilon_nano, n_candidates=n_candidates)
        if HASHING_GAIN * zero_variance(hashing) <= zero_variance(best):
            return hashing
    return best


def zero_variance(mechanism: Mechanism) -> Fraction:
    """Return v = q (1-q) / (p-q)^2, n times the variance of (C/n - q) / (p-q) at frequency 0.

    Raises
    ------
    InvalidSpec
        Reports are independent of their symbol (p = q), or the mechanism has no (p, q), as a window.
    """
    p, q = support(mechanism)
    if p == q:
        raise InvalidSpec("reports of this mechanism are independent of their symbol")
    return q * (1 - q) / (p - q) ** 2


def tally_width(mechanism: Mechanism) -> int:
    """Return the number of counters of a tally per slot: k, or 2 K for `hr`.

    Raises
    ------
    InvalidSpec
        Reports of this mechanism are vectors, which are stored and not counted.
    """
    if isinstance(mechanism, DiscreteLaplaceMechanism):
        raise InvalidSpec("vectors are kept, not counted")
    return hr.tally_width(mechanism) if isinstance(mechanism, HrMechanism) else mechanism.n_symbols


def epsilon_nano(mechanism: Mechanism) -> int:
    """Return the cost of one report: the realised epsilon of the published thresholds, rounded up.

    The cost follows from exact rational arithmetic on the channel. It is never below the true cost
    and never above the argument of `design`.

    Raises
    ------
    InvalidSpec
        The cost is unbounded, because a report would reveal the symbol.
    """
    try:
        if isinstance(mechanism, DiscreteLaplaceMechanism):
            return ceil(discrete_laplace.epsilon(mechanism) * NANO)
        return realised_epsilon(ratio(mechanism))
    except ZeroDivisionError:
        raise InvalidSpec("this mechanism gives the symbol away: it has no finite epsilon") from None


def value_bytes(mechanism: Mechanism) -> int:
    """Return the size of a report's value in bytes."""
    return cast(int, _FILES[type(mechanism)].value_bytes(mechanism))


def perturb(mechanism: Mechanism, symbol: Symbol, entropy: Entropy) -> bytes:
    """Return a report's value for a symbol 0 .. k-1 or a vector of a lattice."""
    if not _is_symbol(mechanism, symbol):
        raise InvalidSpec("the symbol is out of range")
    return cast(bytes, _FILES[type(mechanism)].perturb(mechanism, symbol, entropy))


def perturb_many(mechanism: Mechanism, symbols: NDArray[np.int64], entropy: Entropy) -> NDArray[np.uint8]:
    """Return the values of n devices with the same integer arithmetic: uint8 of shape (n, value_bytes)."""
    if not _are_symbols(mechanism, symbols):
        raise InvalidSpec("a symbol is out of range")
    return cast(NDArray[np.uint8], _FILES[type(mechanism)].perturb_many(mechanism, symbols, entropy))


def _is_symbol(mechanism: Mechanism, symbol: Symbol) -> bool:
    if isinstance(mechanism, DiscreteLaplaceMechanism):
        return (
            isinstance(symbol, tuple)
            and len(symbol) == mechanism.n_numbers
            and all(0 <= place <= mechanism.steps for place in symbol[: mechanism.n_features])
            and symbol[mechanism.n_features :] in {(), (0,), (mechanism.mark,)}
        )
    return not isinstance(symbol, tuple) and 0 <= symbol < mechanism.n_symbols


def _are_symbols(mechanism: Mechanism, symbols: NDArray[np.int64]) -> bool:
    if isinstance(mechanism, DiscreteLaplaceMechanism):
        fits, largest = symbols.shape == (len(symbols), mechanism.n_numbers), mechanism.reach
    else:
        fits, largest = symbols.ndim == 1, mechanism.n_symbols - 1
    return fits and (symbols.size == 0 or bool(symbols.min() >= 0 and symbols.max() <= largest))


def is_value(mechanism: Mechanism, value: bytes) -> bool:
    """Return whether the mechanism can produce a value."""
    return cast(bool, _FILES[type(mechanism)].is_value(mechanism, value))


def are_values(mechanism: Mechanism, values: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return whether the mechanism can produce each value of shape (n, value_bytes): bool of shape (n,)."""
    return cast(NDArray[np.bool_], _FILES[type(mechanism)].are_values(mechanism, values))


def support(mechanism: Mechanism) -> tuple[Fraction, Fraction]:
    """Return (p, q), the probabilities that a report supports its own symbol and another given symbol.

    Raises
    ------
    InvalidSpec
        The mechanism has no (p, q). A window's report supports near symbols more than far ones; see
        `offset_chances`. A noisy vector supports no symbol.
    """
    if isinstance(mechanism, WindowMechanism):
        raise InvalidSpec("reports through a window support no one symbol")
    if isinstance(mechanism, DiscreteLaplaceMechanism):
        raise InvalidSpec("noisy vectors support no one symbol")
    return cast(tuple[Fraction, Fraction], _FILES[type(mechanism)].support(mechanism))


def offset_chances(mechanism: Mechanism) -> tuple[Fraction, ...]:
    """Return for each t = 0 .. k-1 the probability that (sent - own) mod k is t, for symbols on a circle.

    Randomised response and windows have such probabilities.

    Raises
    ------
    InvalidSpec
        A report of the mechanism is not one symbol.
    """
    if isinstance(mechanism, WindowMechanism):
        return window.offset_chances(mechanism)
    if isinstance(mechanism, GrrMechanism):
        keep, other = grr.support(mechanism)
        return (keep, *(other,) * (mechanism.n_symbols - 1))
    raise InvalidSpec("reports of this mechanism are no symbols of a circle")


def ratio(mechanism: Mechanism) -> Fraction:
    """Return the largest ratio of an output's probabilities under two symbols, as an exact fraction.

    Raises
    ------
    InvalidSpec
        The ratio of discrete Laplace noise is not a fraction; see `discrete_laplace.epsilon`.
    """
    if isinstance(mechanism, DiscreteLaplaceMechanism):
        raise InvalidSpec("the ratio of discrete Laplace noise is no fraction")
    return cast(Fraction, _FILES[type(mechanism)].ratio(mechanism))


def channel(mechanism: Mechanism) -> dict[bytes, tuple[Fraction, ...]]:
    """Return the probability of each value given each symbol. It enumerates the values, so k must be small.

    Raises
    ------
    InvalidSpec
        The probabilities of discrete Laplace noise are not fractions.
    """
    if isinstance(mechanism, DiscreteLaplaceMechanism):
        raise InvalidSpec("the chances of discrete Laplace noise are no fractions")
    return cast(dict[bytes, tuple[Fraction, ...]], _FILES[type(mechanism)].channel(mechanism))
