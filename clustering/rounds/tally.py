"""Tallies and samples: the aggregates of a round, and their byte formats."""

import struct
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clustering.errors import TallyMalformed, UnfitRound
from sfumato.specs import MAX_SAMPLE_VALUES, DiscreteLaplaceMechanism, RoundSpec, vector_noise

MAX_COUNTERS = 1 << 24  # slots times symbols: 128 MB of counts

_MAGIC = b"SFT1"  # the last byte is the version
_HEADER = struct.Struct("<4sII")  # magic, slots, symbols; followed by zlib of little-endian int64

_HALF_WORD_BITS = 32

_SAMPLE_MAGIC = b"SFS1"
_SAMPLE_HEADER = struct.Struct("<4sII")  # magic, reports, features; followed by zlib of little-endian int32


@dataclass(frozen=True, eq=False)
class Tally:
    """Integer counts of one round. Tallies of parts of a round are merged by addition.

    Attributes
    ----------
    counts : ndarray of shape (n_slots, n_symbols), int64
        Number of reports in a slot that support a symbol. Under Hadamard response the shape is
        (n_slots, 2 K), with the number of reports for each Walsh coefficient and sign.
    reports : ndarray of shape (n_slots,), int64
        Number of reports in a slot.

    Raises
    ------
    TallyMalformed
        The arrays have other dtypes or shapes.
    """

    counts: NDArray[np.int64]
    reports: NDArray[np.int64]

    __hash__ = None  # type: ignore[assignment]  # its arrays are mutable

    def __post_init__(self) -> None:
        if self.counts.dtype != np.int64 or self.reports.dtype != np.int64:
            raise TallyMalformed("counts and reports of a tally must have dtype int64")
        if self.counts.ndim != 2 or self.reports.shape != self.counts.shape[:1] or self.counts.size == 0:
            raise TallyMalformed("counts of a tally must have shape (slots, symbols) and reports (slots,)")

    @classmethod
    def empty(cls, spec: RoundSpec) -> "Tally":
        """Return a tally without reports; raise UnfitRound if it would exceed `MAX_COUNTERS`."""
        n_slots, width = spec.encoding.n_slots, spec.mechanism.tally_width
        if n_slots * width > MAX_COUNTERS:
            raise UnfitRound(f"a round may have at most {MAX_COUNTERS} counters (slots times symbols)")
        return cls(np.zeros((n_slots, width), dtype=np.int64), np.zeros(n_slots, dtype=np.int64))

    @property
    def n_reports(self) -> int:
        """Return the number of reports in all slots."""
        return int(self.reports.sum())

    def __add__(self, other: "Tally") -> "Tally":
        if not isinstance(other, Tally):
            return NotImplemented
        if self.counts.shape != other.counts.shape:
            raise TallyMalformed("tallies of different rounds cannot be added")
        return Tally(self.counts + other.counts, self.reports + other.reports)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tally):
            return NotImplemented
        return np.array_equal(self.counts, other.counts) and np.array_equal(self.reports, other.reports)

    def to_bytes(self) -> bytes:
        """Return a header of 12 bytes, then zlib of reports and counts (int64, little-endian)."""
        body = self.reports.astype("<i8").tobytes() + self.counts.astype("<i8").tobytes()
        return _HEADER.pack(_MAGIC, *self.counts.shape) + zlib.compress(body, level=6)

    @classmethod
    def from_bytes(cls, data: bytes) -> "Tally":
        """Return the tally that `to_bytes` encoded.

        Raises
        ------
        TallyMalformed
            The version, length or counts are invalid, or bytes follow the tally.
        """
        if len(data) < _HEADER.size:
            raise TallyMalformed("the bytes of a tally are truncated")
        magic, n_slots, n_symbols = _HEADER.unpack_from(data)
        if magic != _MAGIC:
            raise TallyMalformed("these bytes are not a tally, or its format version is unknown")
        if not 0 < n_slots * n_symbols <= MAX_COUNTERS:
            raise TallyMalformed(f"the shape of a tally must have 1 to {MAX_COUNTERS} counters")
        values = np.frombuffer(_decompress(data[_HEADER.size :], 8 * n_slots * (n_symbols + 1)), dtype="<i8")
        if values.min() < 0:
            raise TallyMalformed("a tally has a negative count")
        values = values.astype(np.int64)  # copies, because frombuffer returns read-only memory
        reports, counts = values[:n_slots], values[n_slots:].reshape(n_slots, n_symbols)
        if (counts.max(axis=1) > reports).any():
            raise TallyMalformed("a count of a tally exceeds the reports of its slot")
        return cls(counts, reports)


@dataclass(frozen=True, eq=False)
class Sample:
    """Noisy vectors of one round in lexicographic order. Samples of parts of a round are merged by addition.

    A lattice has too many values to count, so the vectors are stored. Sorting removes the order
    of arrival, which could reveal early reports or reports sent together. Equal multisets have
    equal bytes, and floating-point sums over them are equal to the last bit. A plan over a sample
    is therefore as reproducible as one over counts.

    Attributes
    ----------
    values : ndarray of shape (n_reports, n_features), int32
        Lattice units, sorted by the constructor.

    Raises
    ------
    TallyMalformed
        The array has another dtype or shape.
    UnfitRound
        The sample exceeds `MAX_SAMPLE_VALUES`.
    """

    values: NDArray[np.int32]

    __hash__ = None  # type: ignore[assignment]  # its array is mutable

    def __post_init__(self) -> None:
        if self.values.dtype != np.int32 or self.values.ndim != 2 or self.values.shape[1] == 0:
            raise TallyMalformed("values of a sample must have dtype int32 and shape (reports, features)")
        if self.values.size > MAX_SAMPLE_VALUES:
            raise UnfitRound(f"a sample may have at most {MAX_SAMPLE_VALUES} values (reports times features)")
        if not _is_sorted(self.values):
            object.__setattr__(self, "values", _sort_rows(self.values))

    @classmethod
    def empty(cls, spec: RoundSpec) -> "Sample":
        """Return a sample without reports."""
        return cls(np.zeros((0, spec.mechanism.n_numbers), dtype=np.int32))

    @property
    def n_reports(self) -> int:
        """Return the number of vectors."""
        return len(self.values)

    def __add__(self, other: "Sample") -> "Sample":
        if not isinstance(other, Sample):
            return NotImplemented
        if self.values.shape[1] != other.values.shape[1]:
            raise TallyMalformed("samples of different rounds cannot be added")
        return Sample(np.concatenate([self.values, other.values]))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sample):
            return NotImplemented
        return np.array_equal(self.values, other.values)

    def to_bytes(self) -> bytes:
        """Return a header of 12 bytes, then zlib of the columns (int32, little-endian)."""
        body = np.ascontiguousarray(self.values.T).astype("<i4").tobytes()
        return _SAMPLE_HEADER.pack(_SAMPLE_MAGIC, *self.values.shape) + zlib.compress(body, level=1)

    @classmethod
    def from_bytes(cls, data: bytes) -> "Sample":
        """Return the sample that `to_bytes` encoded.

        Raises
        ------
        TallyMalformed
            The version or length is invalid, rows are unsorted, or bytes follow the sample.
        """
        if len(data) < _SAMPLE_HEADER.size:
            raise TallyMalformed("the bytes of a sample are truncated")
        magic, n_reports, n_features = _SAMPLE_HEADER.unpack_from(data)
        if magic != _SAMPLE_MAGIC:
            raise TallyMalformed("these bytes are not a sample, or its format version is unknown")
        if n_features == 0 or n_reports * n_features > MAX_SAMPLE_VALUES:
            raise TallyMalformed(f"a sample must have at least one feature and at most {MAX_SAMPLE_VALUES} values")
        columns = np.frombuffer(_decompress(data[_SAMPLE_HEADER.size :], 4 * n_reports * n_features), dtype="<i4")
        values = columns.reshape(n_features, n_reports).T.astype(np.int32, order="C")
        if not _is_sorted(values):
            raise TallyMalformed("the rows of a sample are not sorted")
        return cls(values)


def _is_sorted(values: NDArray[np.int32]) -> bool:
    """Return whether the rows are in lexicographic order."""
    first = values[:, 0]
    if (first[1:] < first[:-1]).any():
        return False
    undecided = np.flatnonzero(first[1:] == first[:-1])
    for column in values.T[1:]:
        above, below = column[undecided], column[undecided + 1]
        if (below < above).any():
            return False
        undecided = undecided[below == above]
    return True


def _sort_rows(values: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return rows in lexicographic order. Pack as many features as fit into each sort key of 32 or 64 bits."""
    columns = np.array(values.T, order="C")
    lows = columns.min(axis=1)
    spans = [int(span).bit_length() for span in columns.max(axis=1) - lows.astype(np.int64)]
    kind = np.dtype(np.uint32 if sum(spans) <= _HALF_WORD_BITS else np.uint64)
    words: list[NDArray[Any]] = []
    n_free = 0
    numbers, offsets = columns.view(np.uint32), lows.view(np.uint32)[:, None]
    numbers -= offsets  # modulo 2^32, which keeps differences
    for number, n_bits in zip(numbers, spans, strict=True):
        if n_bits > n_free or not words:
            words.append(number.astype(kind))
            n_free = 8 * kind.itemsize - n_bits
        else:
            words[-1] <<= kind.type(n_bits)
            words[-1] |= number
            n_free -= n_bits
    if len(words) > 1:
        return np.asarray(values[np.lexsort(words[::-1])])
    words[0].sort()
    for number, n_bits in zip(numbers[::-1], spans[::-1], strict=True):
        np.bitwise_and(words[0], kind.type((1 << n_bits) - 1), out=number, casting="unsafe")
        words[0] >>= kind.type(n_bits)
    numbers += offsets
    return np.array(columns.T, order="C")


def keeps_vectors(spec: RoundSpec) -> bool:
    """Return whether a round's reports are vectors, which are stored as a sample and not counted."""
    return spec.mechanism.form == "vector"


def noise_of(spec: RoundSpec) -> DiscreteLaplaceMechanism:
    """Return the mechanism of a round of noisy vectors; raise UnfitRound for another round."""
    if (noise := vector_noise(spec.mechanism)) is None:
        raise UnfitRound(f"this round must have noisy vectors, not reports of {spec.mechanism.type}")
    return noise


def read_aggregate(spec: RoundSpec, data: bytes) -> Tally | Sample:
    """Return the tally or sample that `to_bytes` encoded; raise TallyMalformed if the bytes are invalid."""
    return Sample.from_bytes(data) if keeps_vectors(spec) else Tally.from_bytes(data)


def _decompress(packed: bytes, n_bytes: int) -> bytes:
    """Decompress exactly `n_bytes`, and never allocate more."""
    unpacker = zlib.decompressobj()
    try:
        body = unpacker.decompress(packed, n_bytes + 1)
    except zlib.error:
        raise TallyMalformed("the body of a tally or sample is not valid zlib data") from None
    if len(body) != n_bytes or not unpacker.eof or unpacker.unused_data:
        raise TallyMalformed(f"the body of a tally or sample must have {n_bytes} bytes")
    return body
