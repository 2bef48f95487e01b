"""Plans: a local algorithm as a generator of rounds, and the integers it is sent.

A plan yields the round it wants put to the devices and is sent what came of it: the round
*as published* and its tally, or the sample that is kept of vectors. It is deterministic in
its arguments and those answers, so it keeps no state: whoever was interrupted starts it again
and sends it the stored tallies.
"""

import struct
import zlib
from collections.abc import Callable, Generator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clustering.errors import TallyMalformed, UnfitRound
from clustering.fuzzy import Passes
from sfumato.cluster_model import ClusterModel
from sfumato.mechanisms import tally_width
from sfumato.specs import MAX_SAMPLE_VALUES, DiscreteLaplaceMechanism, RoundSpec

MAX_COUNTERS = 1 << 24  # slots times symbols: 128 MB of counts

_MAGIC = b"SFT1"  # the version is the last byte
_HEADER = struct.Struct("<4sII")  # magic, slots, symbols; then zlib of little-endian int64

_WORD_BITS = 64

_SAMPLE_MAGIC = b"SFS1"
_SAMPLE_HEADER = struct.Struct("<4sII")  # magic, reports, features; then zlib of little-endian int32


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


@dataclass(frozen=True, eq=False)
class Sample:
    """The noisy vectors of one round, in lexicographic order; samples of parts of a round merge by addition.

    Vectors of a lattice take too many values to be counted, so they are kept. What is kept
    must be no more than what was reported, and the order in which reports came is not: it
    could tell who was early, or which reports were sent together. Sorted, equal multisets are
    equal bytes in whatever order the log was read, and sums of doubles over them are equal to
    the last bit, so that a plan over a sample is as repeatable as one over counts.

    Attributes
    ----------
    values : ndarray of shape (n_reports, n_features), int32
        In lattice units; sorted by the constructor.
    """

    values: NDArray[np.int32]

    __hash__ = None  # type: ignore[assignment]  # as of a tally

    def __post_init__(self) -> None:
        if self.values.dtype != np.int32 or self.values.ndim != 2 or self.values.shape[1] == 0:
            raise TallyMalformed("a sample holds one row of 32-bit integers a report")
        if self.values.size > MAX_SAMPLE_VALUES:
            raise UnfitRound(f"a round of vectors keeps at most {MAX_SAMPLE_VALUES} values (reports times features)")
        if not _is_sorted(self.values):
            object.__setattr__(self, "values", _in_order(self.values))

    @classmethod
    def empty(cls, spec: RoundSpec) -> "Sample":
        """The sample of a round nobody has answered."""
        return cls(np.zeros((0, spec.encoding.n_features), dtype=np.int32))

    @property
    def n_reports(self) -> int:
        return len(self.values)

    def __add__(self, other: "Sample") -> "Sample":
        if not isinstance(other, Sample):
            return NotImplemented
        if self.values.shape[1] != other.values.shape[1]:
            raise TallyMalformed("samples of different rounds do not add up")
        return Sample(np.concatenate([self.values, other.values]))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sample):
            return NotImplemented
        return np.array_equal(self.values, other.values)

    def to_bytes(self) -> bytes:
        """The sample as bytes: a header of 12 bytes, then zlib of the columns (int32, little-endian)."""
        body = np.ascontiguousarray(self.values.T).astype("<i4").tobytes()
        return _SAMPLE_HEADER.pack(_SAMPLE_MAGIC, *self.values.shape) + zlib.compress(body, level=1)

    @classmethod
    def from_bytes(cls, data: bytes) -> "Sample":
        """Read what `to_bytes` wrote.

        Raises
        ------
        TallyMalformed
            Anything else: another version, a wrong length, trailing bytes, rows out of order.
        """
        if len(data) < _SAMPLE_HEADER.size:
            raise TallyMalformed("a sample is cut short")
        magic, n_reports, n_features = _SAMPLE_HEADER.unpack_from(data)
        if magic != _SAMPLE_MAGIC:
            raise TallyMalformed("these bytes are no sample this version reads")
        if n_features == 0 or n_reports * n_features > MAX_SAMPLE_VALUES:
            raise TallyMalformed("a sample has an impossible shape")
        columns = np.frombuffer(_inflate(data[_SAMPLE_HEADER.size :], 4 * n_reports * n_features), dtype="<i4")
        values = columns.reshape(n_features, n_reports).T.astype(np.int32, order="C")
        if not _is_sorted(values):
            raise TallyMalformed("a sample's rows are out of order")
        return cls(values)


def _is_sorted(values: NDArray[np.int32]) -> bool:
    """Whether no row lies before the one above it, by the first feature in which they differ."""
    undecided = np.arange(len(values) - 1)
    for column in values.T:
        above, below = column[undecided], column[undecided + 1]
        if (below < above).any():
            return False
        undecided = undecided[below == above]
    return True


def _in_order(values: NDArray[np.int32]) -> NDArray[np.int32]:
    """Rows in lexicographic order. Features are compared together, as many as a word of 64 bits holds."""
    lows = values.min(axis=0).astype(np.int64)
    spans = [int(span).bit_length() for span in values.max(axis=0) - lows]
    words: list[NDArray[np.uint64]] = []
    n_free = 0
    for column, low, n_bits in zip(values.T, lows, spans, strict=True):
        number = (column - low).astype(np.uint64)
        if n_bits > n_free or not words:
            words.append(number)
            n_free = _WORD_BITS - n_bits
        else:
            words[-1] = words[-1] << np.uint64(n_bits) | number
            n_free -= n_bits
    if len(words) > 1:
        return np.asarray(values[np.lexsort(words[::-1])])
    words[0].sort()
    ordered = np.empty_like(values)
    for j in reversed(range(len(spans))):
        mask = np.uint64((1 << spans[j]) - 1)
        ordered[:, j] = (words[0] & mask).astype(np.int64) + lows[j]
        words[0] >>= np.uint64(spans[j])
    return ordered


def keeps_vectors(spec: RoundSpec) -> bool:
    """Whether a round's reports are vectors that are kept as a sample, not symbols that are counted."""
    return isinstance(spec.mechanism, DiscreteLaplaceMechanism)


def read_answers(spec: RoundSpec, data: bytes) -> Tally | Sample:
    """What `to_bytes` wrote of a round; raises TallyMalformed."""
    return Sample.from_bytes(data) if keeps_vectors(spec) else Tally.from_bytes(data)


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
    """What a round brought: the spec the devices answered, and their tally or, of vectors, the sample.

    A plan asks for the one it needs; where the round kept the other, that raises UnfitRound.

    `passes`, where there is one, makes passes over the sample's vectors, as shares of the lattice's range,
    on other machines (`clustering.fuzzy.Passes`): to the same doubles as here.
    """

    spec: RoundSpec
    answers: Tally | Sample
    passes: Passes | None = None

    def __post_init__(self) -> None:
        if not _is_of(self.spec, self.answers):
            raise TallyMalformed("this tally is of another round")

    @property
    def tally(self) -> Tally:
        if not isinstance(self.answers, Tally):
            raise UnfitRound("this round kept a sample of vectors: there are no counts")
        return self.answers

    @property
    def sample(self) -> Sample:
        if not isinstance(self.answers, Sample):
            raise UnfitRound("this round counted symbols: there is no sample of vectors")
        return self.answers


def _is_of(spec: RoundSpec, answers: Tally | Sample) -> bool:
    mechanism = spec.mechanism
    if not isinstance(mechanism, DiscreteLaplaceMechanism):
        return isinstance(answers, Tally) and answers.counts.shape == (spec.encoding.n_slots, tally_width(mechanism))
    if not isinstance(answers, Sample) or answers.values.shape[1] != mechanism.n_features:
        return False
    least, most = -mechanism.margin, mechanism.steps + mechanism.margin
    return answers.n_reports == 0 or bool(answers.values.min() >= least and answers.values.max() <= most)


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
