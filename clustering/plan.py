"""Plans: a local algorithm as a generator of rounds, and the integer tallies it is sent.

A plan yields the round it wants put to the devices and is sent what came of it: the round
*as published* and its tally. It is deterministic in its arguments and those answers, so it
keeps no state: whoever was interrupted starts it again and sends it the stored tallies.
"""

import struct
import zlib
from collections.abc import Callable, Generator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clustering.errors import TallyMalformed, UnfitRound
from sfumato.cluster_model import ClusterModel
from sfumato.mechanisms import tally_width
from sfumato.specs import RoundSpec

MAX_COUNTERS = 1 << 24  # slots times symbols: 128 MB of counts

_MAGIC = b"SFT1"  # the version is the last byte
_HEADER = struct.Struct("<4sII")  # magic, slots, symbols; then zlib of little-endian int64


@dataclass(frozen=True, eq=False)
class Tally:
    """Integer counts of one round; tallies of parts of a round merge by addition.

    Attributes
    ----------
    counts : ndarray of shape (n_slots, n_symbols), int64
        How many reports under a slot support a symbol; under Hadamard response, of shape
        (n_slots, 2 K), how many named a Walsh coefficient and a sign.
    reports : ndarray of shape (n_slots,), int64
        How many reports came under a slot.
    """

    counts: NDArray[np.int64]
    reports: NDArray[np.int64]

    __hash__ = None  # type: ignore[assignment]  # arrays inside can be counted into

    def __post_init__(self) -> None:
        if self.counts.dtype != np.int64 or self.reports.dtype != np.int64:
            raise TallyMalformed("a tally holds 64-bit integers")
        if self.counts.ndim != 2 or self.reports.shape != self.counts.shape[:1] or self.counts.size == 0:
            raise TallyMalformed("a tally has one row of counts and one number of reports a slot")

    @classmethod
    def empty(cls, spec: RoundSpec) -> "Tally":
        """The tally of a round nobody has answered; UnfitRound if it would be too large to keep."""
        n_slots, width = spec.encoding.n_slots, tally_width(spec.mechanism)
        if n_slots * width > MAX_COUNTERS:
            raise UnfitRound(f"a round may have at most {MAX_COUNTERS} counters (slots times symbols)")
        return cls(np.zeros((n_slots, width), dtype=np.int64), np.zeros(n_slots, dtype=np.int64))

    @property
    def n_reports(self) -> int:
        return int(self.reports.sum())

    def __add__(self, other: "Tally") -> "Tally":
        if not isinstance(other, Tally):
            return NotImplemented
        if self.counts.shape != other.counts.shape:
            raise TallyMalformed("tallies of different rounds do not add up")
        return Tally(self.counts + other.counts, self.reports + other.reports)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tally):
            return NotImplemented
        return np.array_equal(self.counts, other.counts) and np.array_equal(self.reports, other.reports)

    def to_bytes(self) -> bytes:
        """The tally as bytes: a header of 12 bytes, then zlib of reports and counts (int64, little-endian)."""
        body = self.reports.astype("<i8").tobytes() + self.counts.astype("<i8").tobytes()
        return _HEADER.pack(_MAGIC, *self.counts.shape) + zlib.compress(body, level=6)

    @classmethod
    def from_bytes(cls, data: bytes) -> "Tally":
        """Read what `to_bytes` wrote.

        Raises
        ------
        TallyMalformed
            Anything else: another version, a wrong length, trailing bytes, impossible counts.
        """
        if len(data) < _HEADER.size:
            raise TallyMalformed("a tally is cut short")
        magic, n_slots, n_symbols = _HEADER.unpack_from(data)
        if magic != _MAGIC:
            raise TallyMalformed("these bytes are no tally this version reads")
        if not 0 < n_slots * n_symbols <= MAX_COUNTERS:
            raise TallyMalformed("a tally has an impossible shape")
        values = np.frombuffer(_inflate(data[_HEADER.size :], 8 * n_slots * (n_symbols + 1)), dtype="<i8")
        if values.min() < 0:
            raise TallyMalformed("a tally holds a negative count")
        values = values.astype(np.int64)  # a copy: frombuffer's memory is read-only
        reports, counts = values[:n_slots], values[n_slots:].reshape(n_slots, n_symbols)
        if (counts.max(axis=1) > reports).any():
            raise TallyMalformed("a tally counts a symbol more often than it has reports")
        return cls(counts, reports)


def _inflate(packed: bytes, n_bytes: int) -> bytes:
    """Unpack exactly `n_bytes`: never more, however well the bytes are packed."""
    unpacker = zlib.decompressobj()
    try:
        body = unpacker.decompress(packed, n_bytes + 1)
    except zlib.error:
        raise TallyMalformed("a tally's counts cannot be unpacked") from None
    if len(body) != n_bytes or not unpacker.eof or unpacker.unused_data:
        raise TallyMalformed("a tally's counts have the wrong length")
    return body


@dataclass(frozen=True)
class Collected:
    """What a round brought: the spec the devices answered, and their tally."""

    spec: RoundSpec
    tally: Tally

    def __post_init__(self) -> None:
        if self.tally.counts.shape != (self.spec.encoding.n_slots, tally_width(self.spec.mechanism)):
            raise TallyMalformed("this tally is of another round")


Plan = Generator[RoundSpec, Collected, ClusterModel]


def drive(plan: Plan, collect: Callable[[RoundSpec], Collected]) -> ClusterModel:
    """Run a plan to its model.

    Parameters
    ----------
    plan : Plan
        Freshly started.
    collect : callable
        Puts a round to devices (or to arrays of points, or to stored tallies) and returns
        what came of it. Its errors pass through; so do the plan's.
    """
    try:
        wanted = next(plan)
        while True:
            wanted = plan.send(collect(wanted))
    except StopIteration as done:
        model: ClusterModel = done.value
        return model
    finally:
        plan.close()
