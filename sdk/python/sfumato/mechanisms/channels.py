"""Likelihood of a report for each symbol, from the exact channel of every mechanism.

Every mechanism that counts has one form: the probability of a report takes two values, one for the
symbols that the report supports and one for all others. A noisy vector
is different: its likelihood is that of the noise (`sfumato.model.cluster_likelihood`).
"""

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InvalidSpec
from sfumato.mechanisms import grr, olh
from sfumato.privacy.entropy import WORD_SPAN
from sfumato.specs import (
    DiscreteLaplaceMechanism,
    GrrMechanism,
    HrMechanism,
    Mechanism,
    OlhMechanism,
    OueMechanism,
    SsMechanism,
    WindowMechanism,
)

_CHUNK_SIGNS = 1 << 21  # reports times symbols worked on at once


def evidence(mechanism: Mechanism) -> tuple[float, float]:
    """Return (a, b) with sum 1, proportional to the probability of a value for a supported symbol and for another.

    They follow from exact fractions of the published thresholds. Values of `ss` and `oue` name
    sets; factors common to all symbols are left out.

    Raises
    ------
    InvalidSpec
        The reports are noisy vectors, which support no symbol.
    """
    own, other = exact_evidence(mechanism)
    total = own + other
    return float(own / total), float(other / total)


def exact_evidence(mechanism: Mechanism) -> tuple[Fraction, Fraction]:
    """Return the same as fractions, without the scaling to sum 1."""
    if isinstance(mechanism, GrrMechanism):
        return grr.support(mechanism)
    if isinstance(mechanism, SsMechanism):  # hold / C(k-1, d-1) against (1 - hold) / C(k-1, d)
        hold = Fraction(mechanism.hold_threshold, WORD_SPAN)
        return hold * (mechanism.n_symbols - mechanism.subset_size), (1 - hold) * mechanism.subset_size
    if isinstance(mechanism, OueMechanism):  # p (1-q) against (1-p) q, p = 1/2
        other = Fraction(mechanism.other_threshold, WORD_SPAN)
        return 1 - other, other
    if isinstance(mechanism, OlhMechanism):  # given its seed, a report is one of randomised response over g
        return grr.support(GrrMechanism(mechanism.hash_range, mechanism.keep_threshold))
    if isinstance(mechanism, HrMechanism):  # given its coefficient, a coin
        keep = Fraction(mechanism.keep_threshold, WORD_SPAN)
        return keep, 1 - keep
    if isinstance(mechanism, WindowMechanism):
        inside = Fraction(mechanism.inside_threshold, WORD_SPAN)
        return inside / mechanism.window_size, (1 - inside) / (mechanism.n_symbols - mechanism.window_size)
    raise InvalidSpec("noisy vectors support no symbol")


def supported(mechanism: Mechanism, values: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return whether each value, shape (n, value_bytes), supports each symbol: bool of shape (n, n_symbols).

    Raises
    ------
    InvalidSpec
        The reports are noisy vectors, which support no symbol.
    """
    k = mechanism.n_symbols
    if isinstance(mechanism, SsMechanism | OueMechanism):
        return np.unpackbits(values, axis=1, count=k, bitorder="little").astype(np.bool_)
    if isinstance(mechanism, DiscreteLaplaceMechanism):
        raise InvalidSpec("noisy vectors support no symbol")
    symbols = np.arange(k)
    if isinstance(mechanism, OlhMechanism):
        a, b, c = np.ascontiguousarray(values[:, : olh.SEED_BYTES]).view("<u4").astype(np.int64).T[:, :, None]
        hashed = (
            ((a * symbols + b) % olh.HASH_PRIME * symbols + c) % olh.HASH_PRIME * mechanism.hash_range // olh.HASH_SPAN
        )
        return np.asarray(hashed == grr.symbols_of(values[:, olh.SEED_BYTES :])[:, None], dtype=np.bool_)
    sent = grr.symbols_of(values)[:, None]
    if isinstance(mechanism, HrMechanism):
        return np.asarray((np.bitwise_count((sent >> 1) & (symbols + 1)) & 1) == (sent & 1), dtype=np.bool_)
    if isinstance(mechanism, WindowMechanism):
        return np.asarray((sent - symbols + mechanism.window_size // 2) % k < mechanism.window_size, dtype=np.bool_)
    return np.asarray(sent == symbols, dtype=np.bool_)


def likelihood(mechanism: Mechanism, values: NDArray[np.uint8], shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return P(value | group) up to a factor that depends on the value alone.

    Parameters
    ----------
    mechanism : Mechanism
        Any that counts.
    values : ndarray of shape (n, value_bytes), uint8
        That the mechanism could have sent.
    shares : ndarray of shape (n_groups, n_symbols)
        P(symbol | group).

    Returns
    -------
    ndarray of shape (n, n_groups)
    """
    own, other = evidence(mechanism)
    if isinstance(mechanism, GrrMechanism):
        mass = shares[:, grr.symbols_of(values)].T
    else:
        mass = np.empty((len(values), len(shares)))
        step = max(1, _CHUNK_SIGNS // mechanism.n_symbols)
        for start in range(0, len(values), step):
            part = slice(start, start + step)
            mass[part] = supported(mechanism, values[part]).astype(np.float64) @ shares.T
    return np.asarray(other * shares.sum(axis=1) + (own - other) * mass, dtype=np.float64)
