"""Mechanisms, one file each, behind one set of functions that dispatch on the spec's type.

Each file holds the thresholds (`design`), the device (`perturb`, `perturb_many`), what the
server needs (`support` or `offset_chances`, `is_value`), and the proof of its cost (`channel`, `ratio`).
"""

from fractions import Fraction
from math import ceil
from types import ModuleType
from typing import cast

import numpy as np
from numpy.typing import NDArray

from sfumato.accounting import NANO, realised_epsilon
from sfumato.entropy import Entropy
from sfumato.errors import InvalidSpec
from sfumato.mechanisms import discrete_laplace, grr, hr, olh, oue, ss, window
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

HASHING_GAIN = 1.3  # how many times less than `hr`'s the variance of `olh` must be to pay for its decoding


def design(kind: str, n_symbols: int, epsilon_nano: int, *, n_candidates: int | None = None) -> Mechanism:
    """The mechanism of this kind for k symbols that costs at most `epsilon_nano`.

    Parameters
    ----------
    kind : {'auto', 'grr', 'ss', 'oue', 'olh', 'hr', 'window'}
        'auto' weighs predicted variance, report size and decoding (STATISTICS, section 1).
        Up to 4096 symbols it is subset selection, which has the least variance of all and is
        sent in k bits and counted in k additions; where a subset would hold one symbol,
        randomised response, the same channel in fewer bytes.
        Above, k bits are too long a report. There it is randomised response or Hadamard
        response, whichever has less variance: one to three bytes, one addition a report,
        and at the end K log K. Local hashing costs one hash for each report and each
        symbol counted, so it is taken only where few symbols will be looked at
        (`n_candidates`) and its variance is at least 1.3 times less than of both: for
        many symbols that is from epsilon 1.05 on.
        It never takes 'window', which is for symbols on a circle.
    n_symbols : int
        k, at least 2.
    epsilon_nano : int
        Nano-epsilon, in [1e3, 32e9].
    n_candidates : int, optional
        How many symbols will be counted, by who keeps the reports; only `olh` needs to know.
        The service counts every symbol, so it leaves this out.

    Raises
    ------
    InvalidSpec
        Unknown kind, or more symbols than the kind can carry or count.

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
    """The mechanism of this kind for an encoding's symbols that costs at most `epsilon_nano`.

    Parameters
    ----------
    encoding : Encoding
    kind : str
        As for `design`; of a lattice, 'discrete_laplace', which 'auto' takes there.
    epsilon_nano : int

    Raises
    ------
    InvalidSpec
        As for `design`; or a kind that perturbs other symbols than the encoding's.
    """
    if isinstance(encoding, LatticeEncoding) != (kind == "discrete_laplace") and kind != "auto":
        raise InvalidSpec("discrete_laplace perturbs the vectors of a lattice, and nothing else does")
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
    """v = q (1-q) / (p-q)^2: n times the variance of (C/n - q) / (p-q) at frequency 0.

    Raises
    ------
    InvalidSpec
        Reports say nothing about their symbol (p = q), or are a window's, which have no (p, q).
    """
    p, q = support(mechanism)
    if p == q:
        raise InvalidSpec("reports of this mechanism say nothing about their symbol")
    return q * (1 - q) / (p - q) ** 2


def tally_width(mechanism: Mechanism) -> int:
    """How many counters a tally of this mechanism has in a slot: k, or 2 K for `hr`.

    Raises
    ------
    InvalidSpec
        Reports of this mechanism are vectors: they are kept, not counted.
    """
    if isinstance(mechanism, DiscreteLaplaceMechanism):
        raise InvalidSpec("vectors are kept, not counted")
    return hr.tally_width(mechanism) if isinstance(mechanism, HrMechanism) else mechanism.n_symbols


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
        if isinstance(mechanism, DiscreteLaplaceMechanism):
            return ceil(discrete_laplace.epsilon(mechanism) * NANO)
        return realised_epsilon(ratio(mechanism))
    except ZeroDivisionError:
        raise InvalidSpec("this mechanism gives the symbol away: it has no finite epsilon") from None


def value_bytes(mechanism: Mechanism) -> int:
    """Width of a report's value in bytes."""
    return cast(int, _FILES[type(mechanism)].value_bytes(mechanism))


def perturb(mechanism: Mechanism, symbol: Symbol, entropy: Entropy) -> bytes:
    """One device's report value for its symbol, 0 .. k-1, or its vector of a lattice."""
    if not _is_symbol(mechanism, symbol):
        raise InvalidSpec("the symbol is out of range")
    return cast(bytes, _FILES[type(mechanism)].perturb(mechanism, symbol, entropy))


def perturb_many(mechanism: Mechanism, symbols: NDArray[np.int64], entropy: Entropy) -> NDArray[np.uint8]:
    """Report values of n devices, by the very same integers: uint8, shape (n, value_bytes)."""
    if not _are_symbols(mechanism, symbols):
        raise InvalidSpec("a symbol is out of range")
    return cast(NDArray[np.uint8], _FILES[type(mechanism)].perturb_many(mechanism, symbols, entropy))


def _is_symbol(mechanism: Mechanism, symbol: Symbol) -> bool:
    if isinstance(mechanism, DiscreteLaplaceMechanism):
        return (
            isinstance(symbol, tuple)
            and len(symbol) == mechanism.n_features
            and all(0 <= place <= mechanism.steps for place in symbol)
        )
    return not isinstance(symbol, tuple) and 0 <= symbol < mechanism.n_symbols


def _are_symbols(mechanism: Mechanism, symbols: NDArray[np.int64]) -> bool:
    if isinstance(mechanism, DiscreteLaplaceMechanism):
        fits, largest = symbols.shape == (len(symbols), mechanism.n_features), mechanism.steps
    else:
        fits, largest = symbols.ndim == 1, mechanism.n_symbols - 1
    return fits and (symbols.size == 0 or bool(symbols.min() >= 0 and symbols.max() <= largest))


def is_value(mechanism: Mechanism, value: bytes) -> bool:
    """Whether a device that follows the mechanism could have sent this value."""
    return cast(bool, _FILES[type(mechanism)].is_value(mechanism, value))


def are_values(mechanism: Mechanism, values: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """What `is_value` says, for values of shape (n, value_bytes): bool of shape (n,)."""
    return cast(NDArray[np.bool_], _FILES[type(mechanism)].are_values(mechanism, values))


def support(mechanism: Mechanism) -> tuple[Fraction, Fraction]:
    """(p, q): the chance that a report supports its own symbol, and any one other.

    Raises
    ------
    InvalidSpec
        A window's report supports its neighbours too, near ones more than far ones: no (p, q)
        says that. What `offset_chances` says of it does. And a noisy vector names none.
    """
    if isinstance(mechanism, WindowMechanism):
        raise InvalidSpec("reports through a window support no one symbol")
    if isinstance(mechanism, DiscreteLaplaceMechanism):
        raise InvalidSpec("noisy vectors support no one symbol")
    return cast(tuple[Fraction, Fraction], _FILES[type(mechanism)].support(mechanism))


def offset_chances(mechanism: Mechanism) -> tuple[Fraction, ...]:
    """For each t = 0 .. k-1, the chance that (sent - own) mod k is t: the channel of symbols on a circle.

    Of randomised response, which treats all other symbols alike, as of a window.

    Raises
    ------
    InvalidSpec
        A mechanism whose report is not one symbol.
    """
    if isinstance(mechanism, WindowMechanism):
        return window.offset_chances(mechanism)
    if isinstance(mechanism, GrrMechanism):
        keep, other = grr.support(mechanism)
        return (keep, *(other,) * (mechanism.n_symbols - 1))
    raise InvalidSpec("reports of this mechanism are no symbols of a circle")


def ratio(mechanism: Mechanism) -> Fraction:
    """The largest ratio of an output's probabilities under two symbols, exactly.

    Raises
    ------
    InvalidSpec
        Of discrete Laplace noise it is no fraction: its logarithm is, `discrete_laplace.epsilon`.
    """
    if isinstance(mechanism, DiscreteLaplaceMechanism):
        raise InvalidSpec("the ratio of discrete Laplace noise is no fraction")
    return cast(Fraction, _FILES[type(mechanism)].ratio(mechanism))


def channel(mechanism: Mechanism) -> dict[bytes, tuple[Fraction, ...]]:
    """For each value, its probability given each symbol; enumerates, so small k only.

    Raises
    ------
    InvalidSpec
        The chances of discrete Laplace noise are no fractions.
    """
    if isinstance(mechanism, DiscreteLaplaceMechanism):
        raise InvalidSpec("the chances of discrete Laplace noise are no fractions")
    return cast(dict[bytes, tuple[Fraction, ...]], _FILES[type(mechanism)].channel(mechanism))
