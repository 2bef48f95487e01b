"""Sample transcripts of devices over all rounds and score them by the exact channel.

The adversary knows the published rounds and, for one device, the rounds it reported to, with slots and values. Given
the rounds, devices report independently. Therefore, transcripts of two points can be sampled with the same rounds.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.plans.cases import Points, Respond, RoundReports, own_symbols
from sfumato.privacy.entropy import Entropy
from sfumato.specs import RoundSpec, vector_noise

_CHUNK_SIZE = 1 << 17  # devices per array


class Transcripts(NamedTuple):
    """The transcripts of n devices with the same point.

    Attributes
    ----------
    odds : ndarray of shape (n,)
        Log likelihood ratio of the values, for x against x', given rounds and slots.
    slots : ndarray of shape (n, n_rounds), int16
        0 without a report, else the slot plus 1.
    """

    odds: NDArray[np.float64]
    slots: NDArray[np.int16]


def sample_transcripts(
    specs: Sequence[RoundSpec], pair: tuple[Points, Points], side: int, n: int, entropy: Entropy, respond: Respond
) -> Transcripts:
    """Sample transcripts of n devices with point 0 or 1 of a pair, each with its own draw and coins.

    Rounds may have at most 2^15 - 2 slots.
    """
    odds, slots = np.zeros(n), np.zeros((n, len(specs)), dtype=np.int16)
    for begin in range(0, n, _CHUNK_SIZE):
        size = min(_CHUNK_SIZE, n - begin)
        points = np.broadcast_to(pair[side], (size, len(pair[side])))
        draws = entropy.words(size)
        for index, spec in enumerate(specs):
            reports = respond(spec, points, entropy, draws)
            odds[begin + reports.devices] += log_odds(spec, reports, pair)
            slots[begin + reports.devices, index] = reports.slots + 1
    return Transcripts(odds, slots)


def score_transcripts(one: Transcripts, other: Transcripts) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the log likelihood ratio of the values plus that of rounds and slots.

    Rounds and slots must not depend on the point. Their ratio is learned from the first half of the transcripts: the
    relative frequency of each set of rounds and each slot. `audit.checks.bounds.distinguish` selects by the same half.
    """
    sums = [one.odds.copy(), other.odds.copy()]
    by_round: list[tuple[NDArray[np.integer], NDArray[np.integer]]]
    by_round = [(one.slots[:, index], other.slots[:, index]) for index in range(one.slots.shape[1])]
    for pair in (*by_round, (_participation_bits(one.slots), _participation_bits(other.slots))):
        size = 1 + max(int(column.max(initial=0)) for column in pair)
        seen = [np.bincount(column[: len(column) // 2], minlength=size) + 0.5 for column in pair]
        learned = np.log(seen[0] / seen[1])
        for score, column in zip(sums, pair, strict=True):
            score += learned[column]
    return sums[0], sums[1]


def _participation_bits(slots: NDArray[np.int16]) -> NDArray[np.int64]:
    """Return the rounds with a report, one bit per round."""
    bits = np.zeros(len(slots), dtype=np.int64)
    for index in range(slots.shape[1]):
        bits |= (slots[:, index] > 0).astype(np.int64) << index
    return bits


def log_odds(spec: RoundSpec, reports: RoundReports, pair: tuple[Points, Points]) -> NDArray[np.float64]:
    """Return log P(value | slot, x) / P(value | slot, x'): ndarray of shape (n,)."""
    mechanism, encoding = spec.mechanism, spec.encoding
    every = np.arange(encoding.n_slots)
    own, other = (own_symbols(spec, np.tile(point, (encoding.n_slots, 1)), every) for point in pair)
    if (noise := vector_noise(mechanism)) is not None:
        vectors = noise.vectors_of(reports.values).astype(np.float64)
        farther = np.abs(vectors - other[0]).sum(axis=1) - np.abs(vectors - own[0]).sum(axis=1)
        return np.asarray(farther * noise.scale_denominator / noise.scale_numerator)
    supported, unsupported = mechanism.normalised_evidence()
    supports_own, supports_other = (
        mechanism.supports(reports.values, each[reports.slots][:, None])[:, 0] for each in (own, other)
    )
    return np.asarray(
        np.log(supported / unsupported) * (supports_own.astype(np.float64) - supports_other), dtype=np.float64
    )
