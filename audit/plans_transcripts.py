"""What a device's whole transcript tells of its point: drawn by the million, scored by the exact channel.

The adversary sees the published rounds and, of one device, which of them it answered, under
which slots, with which values. Given the rounds, devices answer independently, so transcripts
of a point x and of another x' can be drawn beside one another.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.plans_cases import Answering, Answers, Points
from sfumato.channels import evidence
from sfumato.encodings import symbols
from sfumato.entropy import Entropy
from sfumato.mechanisms import grr, olh
from sfumato.mechanisms.discrete_laplace import vectors_of
from sfumato.specs import (
    DiscreteLaplaceMechanism,
    HrMechanism,
    Mechanism,
    OlhMechanism,
    OueMechanism,
    RoundSpec,
    SsMechanism,
    WindowMechanism,
)

_CHUNK = 1 << 17  # devices at once


class Transcripts(NamedTuple):
    """Of n devices with one point.

    Attributes
    ----------
    odds : ndarray of shape (n,)
        How much likelier the values are under x than under x', as a logarithm, given what else
        was sent.
    slots : ndarray of shape (n, n_rounds), int16
        0 where a round was not answered, else the slot and one.
    """

    odds: NDArray[np.float64]
    slots: NDArray[np.int16]


def drawn(
    specs: Sequence[RoundSpec], pair: tuple[Points, Points], which: int, n: int, entropy: Entropy, ask: Answering
) -> Transcripts:
    """Transcripts of n devices that hold point 0 or 1 of a pair, each with a draw and coins of its own.

    Rounds have at most 2^15 - 2 slots.
    """
    odds, slots = np.zeros(n), np.zeros((n, len(specs)), dtype=np.int16)
    for begin in range(0, n, _CHUNK):
        size = min(_CHUNK, n - begin)
        points = np.broadcast_to(pair[which], (size, len(pair[which])))
        draws = entropy.words(size)
        for index, spec in enumerate(specs):
            answered = ask(spec, points, entropy, draws)
            odds[begin + answered.who] += log_odds(spec, answered, pair)
            slots[begin + answered.who, index] = answered.slots + 1
    return Transcripts(odds, slots)


def scores(one: Transcripts, other: Transcripts) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The values' odds, and what the first half of the transcripts says of rounds and slots.

    Those ought to owe nothing to the point, so they are learned: how much oftener a set of
    rounds was answered, and a slot drawn. `audit.bounds.distinguish` chooses by the same half.
    """
    totals = [one.odds.copy(), other.odds.copy()]
    by_round: list[tuple[NDArray[np.integer], NDArray[np.integer]]]
    by_round = [(one.slots[:, index], other.slots[:, index]) for index in range(one.slots.shape[1])]
    for pair in (*by_round, (_answered(one.slots), _answered(other.slots))):
        size = 1 + max(int(column.max(initial=0)) for column in pair)
        seen = [np.bincount(column[: len(column) // 2], minlength=size) + 0.5 for column in pair]
        learned = np.log(seen[0] / seen[1])
        for total, column in zip(totals, pair, strict=True):
            total += learned[column]
    return totals[0], totals[1]


def _answered(slots: NDArray[np.int16]) -> NDArray[np.int64]:
    """Which rounds were answered, a bit each."""
    bits = np.zeros(len(slots), dtype=np.int64)
    for index in range(slots.shape[1]):
        bits |= (slots[:, index] > 0).astype(np.int64) << index
    return bits


def log_odds(spec: RoundSpec, answered: Answers, pair: tuple[Points, Points]) -> NDArray[np.float64]:
    """log P(value | slot, x) / P(value | slot, x'): ndarray of shape (n,)."""
    mechanism, encoding = spec.mechanism, spec.encoding
    every = np.arange(encoding.n_slots)
    own, other = (symbols(encoding, np.tile(point, (encoding.n_slots, 1)), every) for point in pair)
    if isinstance(mechanism, DiscreteLaplaceMechanism):
        vectors = vectors_of(mechanism, answered.values).astype(np.float64)
        farther = np.abs(vectors - other[0]).sum(axis=1) - np.abs(vectors - own[0]).sum(axis=1)
        return np.asarray(farther * mechanism.scale_denominator / mechanism.scale_numerator)
    near, far = evidence(mechanism)
    agrees, opposes = (supports(mechanism, answered.values, held[answered.slots]) for held in (own, other))
    return np.asarray(np.log(near / far) * (agrees.astype(np.float64) - opposes), dtype=np.float64)


def supports(mechanism: Mechanism, values: NDArray[np.uint8], held: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each value supports the one symbol beside it: what `sfumato.channels.supported` says of all symbols."""
    if isinstance(mechanism, SsMechanism | OueMechanism):
        return np.asarray(values[np.arange(len(values)), held >> 3] >> (held & 7) & 1, dtype=np.bool_)
    if isinstance(mechanism, OlhMechanism):
        a, b, c = np.ascontiguousarray(values[:, : olh.SEED_BYTES]).view("<u4").astype(np.int64).T
        hashed = ((a * held + b) % olh.HASH_PRIME * held + c) % olh.HASH_PRIME * mechanism.hash_range // olh.HASH_SPAN
        return np.asarray(hashed == grr.symbols_of(values[:, olh.SEED_BYTES :]))
    sent = grr.symbols_of(values)
    if isinstance(mechanism, HrMechanism):
        return np.asarray((np.bitwise_count((sent >> 1) & (held + 1)) & 1) == (sent & 1))
    if isinstance(mechanism, WindowMechanism):
        return np.asarray((sent - held + mechanism.window_size // 2) % mechanism.n_symbols < mechanism.window_size)
    return np.asarray(sent == held)
