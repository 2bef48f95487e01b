"""Many devices in one process: one for each record, by the same integers as `Device`.

For simulations, for demonstrations, and for an operator who holds the records of people
who agreed to no more than their reports leaving the house. What a `Device` remembers is
not kept here: whoever perturbs the same records for the same round twice has spent twice.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.accounting import DRAW_SPAN
from sfumato.encodings import scale_many, symbols
from sfumato.entropy import Entropy, SystemEntropy, below_many
from sfumato.errors import InvalidSpec
from sfumato.mechanisms import perturb_many
from sfumato.specs import Draw, RoundSpec

REPORT_ID_BYTES = 16
SLOT_BYTES = 4


class Reports(NamedTuple):
    """Reports of one round, a row each."""

    report_ids: NDArray[np.uint8]  # shape (n, 16)
    slots: NDArray[np.integer[Any]]  # shape (n,); perturb_records makes uint32
    values: NDArray[np.uint8]  # shape (n, value_bytes)


def perturb_records(
    spec: RoundSpec,
    records: ArrayLike,
    entropy: Entropy | None = None,
    *,
    draws: NDArray[np.uint64] | None = None,
) -> Reports:
    """The reports of one device for each record.

    Each device makes a draw of its own, and only those that the round asks report.

    Parameters
    ----------
    spec : RoundSpec
    records : array-like of shape (n, n_features)
        In the features' units; clipped to the bounds, finite.
    entropy : Entropy, optional
        The devices' coins: the operating system's by default. Report ids always come from
        the system, so that a replayed simulation does not repeat them.
    draws : ndarray of shape (n,), uint64, optional
        The devices' draws, where a collection has several rounds: the same for all of
        them, or a device would answer rounds that were meant for different ones. Fresh
        ones by default.

    Returns
    -------
    Reports
        In the order of the records; at most n.

    Raises
    ------
    InvalidPoint
        Another shape, or a value that is not finite; nothing was perturbed.

    Examples
    --------
    >>> from sfumato import Feature, GridEncoding, mechanisms, perturb_records
    >>> from sfumato.specs import RoundSpec
    >>> spec = RoundSpec((Feature("x", 0, 1),), GridEncoding((8,)), mechanisms.design("grr", 8, 10**9))
    >>> reports = perturb_records(spec, [[0.1], [0.9]])
    >>> reports.report_ids.shape, reports.values.shape
    ((2, 16), (2, 1))
    """
    coins = entropy or SystemEntropy()
    points = scale_many(spec.features, records)
    drawn = coins.words(len(points)) if draws is None else draws
    if drawn.shape != (len(points),):
        raise InvalidSpec("there is one draw for each record")
    answering = points[_holds(spec.draw, drawn)]
    slots = below_many(coins, spec.encoding.n_slots, len(answering))
    values = perturb_many(spec.mechanism, symbols(spec.encoding, answering, slots), coins)
    ids = SystemEntropy().words(2 * len(answering)).astype("<u8").view(np.uint8)
    return Reports(ids.reshape(-1, REPORT_ID_BYTES), slots.astype(np.uint32), values)


def _holds(draw: Draw, draws: NDArray[np.uint64]) -> NDArray[np.bool_]:
    at_least = draws >= np.uint64(draw.lo)
    if draw.hi == DRAW_SPAN:  # which a uint64 cannot hold
        return at_least
    return at_least & (draws < np.uint64(draw.hi))


def pack(reports: Reports) -> NDArray[np.uint8]:
    """Reports as packed records, shape (n, 20 + value_bytes): id, slot (little-endian), value.

    Raises
    ------
    InvalidSpec
        Columns of different lengths or types, or a slot that 32 bits do not hold.
    """
    report_ids, slots, values = (np.asarray(column) for column in reports)
    n = len(slots)
    if report_ids.shape != (n, REPORT_ID_BYTES) or report_ids.dtype != np.uint8:
        raise InvalidSpec("report_ids are bytes in shape (n, 16)")
    if slots.ndim != 1 or not np.issubdtype(slots.dtype, np.integer):
        raise InvalidSpec("slots are integers in shape (n,)")
    if n and not (slots.min() >= 0 and slots.max() < 1 << (8 * SLOT_BYTES)):
        raise InvalidSpec("a slot lies in 0..2**32-1")
    if values.ndim != 2 or len(values) != n or values.dtype != np.uint8:
        raise InvalidSpec("values are bytes in shape (n, value_bytes)")
    slot_bytes = slots.astype("<u4").view(np.uint8).reshape(n, SLOT_BYTES)
    return np.concatenate([report_ids, slot_bytes, values], axis=1)
