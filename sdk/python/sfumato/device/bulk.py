"""Many simulated devices in one process, one for each record, with the same integer arithmetic as `Device`.

The functions serve simulations, demonstrations, and operators that may only send perturbed reports.
They store nothing: perturbing the same records twice for one round doubles the cost.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InvalidSpec
from sfumato.privacy.accounting import DRAW_SPAN
from sfumato.privacy.entropy import Entropy, SystemEntropy, below_many
from sfumato.records.described import Described, read_records
from sfumato.records.inputs import Records
from sfumato.records.outside import encode_many
from sfumato.specs import Participation, RoundSpec

REPORT_ID_BYTES = 16
SLOT_BYTES = 4


class Reports(NamedTuple):
    """The reports of one round, one in each row."""

    report_ids: NDArray[np.uint8]  # shape (n, 16)
    slots: NDArray[np.integer[Any]]  # shape (n,), uint32 from perturb_records
    values: NDArray[np.uint8]  # shape (n, value_bytes)


def perturb_records(
    spec: RoundSpec,
    records: Records | Described,
    entropy: Entropy | None = None,
    *,
    draws: NDArray[np.uint64] | None = None,
) -> Reports:
    """Return the reports of devices with one record each.

    Each device has its own draw, and only devices in the round's interval report.

    Parameters
    ----------
    spec : RoundSpec
    records : array-like of shape (n, n_features)
        Finite, in the features' units. Records outside of the bounds are reported as outside, or clipped, as
        the round states. The columns of a data frame are matched by name; values without names are assumed to
        have the features' order. A profile round needs a table with the columns of its attributes, too.
    entropy : Entropy, optional
        Source of the devices' random numbers. The default is the operating system. Report ids
        always come from the system, so a repeated simulation has new ids.
    draws : ndarray of shape (n,), uint64, optional
        The devices' draws. All rounds of a collection need the same draws, because their intervals
        select different devices. The default is random.

    Returns
    -------
    Reports
        At most n reports, in the order of the records.

    Raises
    ------
    InvalidPoint
        The array has another shape or other columns, or a value is not finite.
    InvalidSpec
        The number of draws differs from that of records.

    Examples
    --------
    >>> from sfumato import Feature, GridEncoding, mechanisms, perturb_records
    >>> from sfumato.specs import RoundSpec
    >>> spec = RoundSpec((Feature("x", 0, 1),), GridEncoding((8,)), mechanisms.design("grr", 8, 10**9))
    >>> reports = perturb_records(spec, [[0.1], [0.9]])
    >>> reports.report_ids.shape, reports.values.shape
    ((2, 16), (2, 1))
    """
    entropy = entropy or SystemEntropy()
    read = read_records(spec, records)
    device_draws = entropy.words(len(read.points)) if draws is None else draws
    if device_draws.shape != (len(read.points),):
        raise InvalidSpec("draws must have one entry for each record")
    participating = read.select(_contains(spec.participation, device_draws))
    slots = below_many(entropy, spec.encoding.n_slots, len(participating.points))
    values = spec.mechanism.perturb_many(encode_many(spec, participating, slots, entropy), entropy)
    ids = SystemEntropy().words(2 * len(slots)).astype("<u8").view(np.uint8)
    return Reports(ids.reshape(-1, REPORT_ID_BYTES), slots.astype(np.uint32), values)


def _contains(participation: Participation, draws: NDArray[np.uint64]) -> NDArray[np.bool_]:
    at_least = draws >= np.uint64(participation.lo)
    if participation.hi == DRAW_SPAN:  # 2**64 exceeds uint64
        return at_least
    return at_least & (draws < np.uint64(participation.hi))


def pack(reports: Reports) -> NDArray[np.uint8]:
    """Return reports as packed rows of id, slot (little-endian) and value, shape (n, 20 + value_bytes).

    Raises
    ------
    InvalidSpec
        The columns differ in length, have another type, or a slot exceeds 32 bits.
    """
    report_ids, slots, values = (np.asarray(column) for column in reports)
    n = len(slots)
    if report_ids.shape != (n, REPORT_ID_BYTES) or report_ids.dtype != np.uint8:
        raise InvalidSpec("report_ids must have dtype uint8 and shape (n, 16)")
    if slots.ndim != 1 or not np.issubdtype(slots.dtype, np.integer):
        raise InvalidSpec("slots must be integers with shape (n,)")
    if n and not (slots.min() >= 0 and slots.max() < 1 << (8 * SLOT_BYTES)):
        raise InvalidSpec("slots must lie in 0..2**32-1")
    if values.ndim != 2 or len(values) != n or values.dtype != np.uint8:
        raise InvalidSpec("values must have dtype uint8 and shape (n, value_bytes)")
    slot_bytes = slots.astype("<u4").view(np.uint8).reshape(n, SLOT_BYTES)
    return np.concatenate([report_ids, slot_bytes, values], axis=1)


def unpack(packed: NDArray[np.uint8]) -> Reports:
    """Return the reports of rows that `pack` returned."""
    ids, slots, values = np.split(packed, [REPORT_ID_BYTES, REPORT_ID_BYTES + SLOT_BYTES], axis=1)
    return Reports(ids, np.ascontiguousarray(slots).view("<u4").ravel().astype(np.uint32), values)
