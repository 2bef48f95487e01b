"""Reports into tallies, or samples of vectors."""

from typing import cast

import numpy as np
from numpy.typing import NDArray

from clustering.errors import UnfitRound
from clustering.kernels.hashing import count_hashed
from clustering.kernels.tally import (
    GROUP,
    MALFORMED,
    N_BEFORE,
    N_PLANES,
    SLOT_BYTES,
    TAKEN,
    check_bits,
    check_hashed,
    check_numbers,
    count_bits,
    count_numbers,
    read_vectors,
    settle_bits,
)
from clustering.plan import MAX_COUNTERS, Sample, Tally, keeps_vectors
from sfumato.errors import ReportMalformed
from sfumato.mechanisms import discrete_laplace, tally_width, value_bytes
from sfumato.mechanisms.olh import MAX_COUNTED
from sfumato.specs import (
    MAX_SAMPLE_VALUES,
    DiscreteLaplaceMechanism,
    OlhMechanism,
    OueMechanism,
    RoundSpec,
    SsMechanism,
)


def count(spec: RoundSpec, slots: NDArray[np.int64], values: NDArray[np.uint8]) -> Tally:
    """The tally of reports.

    Parameters
    ----------
    spec : RoundSpec
        The round they answer.
    slots : ndarray of shape (n,), int64
        Each report's slot.
    values : ndarray of shape (n, value_bytes), uint8
        Each report's value.

    Raises
    ------
    ReportMalformed
        A slot or a symbol out of range, or arrays that do not fit the mechanism (index 0).
    UnfitRound
        Locally hashed reports over more than 4096 symbols: `count_candidates` counts some.
    """
    tally = Tally.empty(spec)
    count_into(tally, spec, slots, values)
    return tally


def count_into(tally: Tally, spec: RoundSpec, slots: NDArray[np.int64], values: NDArray[np.uint8]) -> None:
    """Add reports to a tally in place. Takes what `count` takes; when it raises, none of them is counted."""
    _check_arrays(spec, slots, values)
    records, said = _packed(spec, slots, values)
    counter = _Counter(spec, tally)
    counter.add(records, said)
    counter.settle()


class Counting:
    """What a round's reports come to, part by part: counts, or of vectors the sample that is kept.

    A sample holds at most `MAX_SAMPLE_VALUES`. No round asks for more, but the requests that
    fill it may bring more: the first vectors are kept then, whatever their values, and the rest
    counts as if it had not been sent. A round that was paid for is not lost for having been
    answered too well.

    Parameters
    ----------
    spec : RoundSpec

    Attributes
    ----------
    n_left_out : int
        Vectors that came when the sample was full.

    Raises
    ------
    UnfitRound
        The round's tally would be too large to keep.
    """

    def __init__(self, spec: RoundSpec) -> None:
        self._spec = spec
        self._counter = None if keeps_vectors(spec) else _Counter(spec, Tally.empty(spec))
        self._vectors = Sample.empty(spec).values
        self._n_kept = 0
        self.n_left_out = 0

    def add(self, slots: NDArray[np.int64], values: NDArray[np.uint8]) -> None:
        """Add reports; takes what `count` takes, and raises what it raises."""
        _check_arrays(self._spec, slots, values)
        self.add_packed(*_packed(self._spec, slots, values))

    def add_packed(self, records: NDArray[np.uint8], said: NDArray[np.uint8]) -> None:
        """Add those reports of a log that are taken.

        Parameters
        ----------
        records : ndarray of shape (n, width), uint8
            Slot and value at the end of each.
        said : ndarray of shape (n,), uint8
            What `check_packed` said of them; who takes one out again puts another word there.
        """
        if self._counter is not None:
            self._counter.add(records, said)
            return
        mechanism = cast(DiscreteLaplaceMechanism, self._spec.mechanism)
        vectors = np.empty((int(np.count_nonzero(said == TAKEN)), mechanism.n_features), dtype=np.int32)
        size = discrete_laplace.width(mechanism)
        read_vectors(records, _slot_at(self._spec, records), size, mechanism.margin, said, vectors)
        self._keep(vectors)

    def _keep(self, vectors: NDArray[np.int32]) -> None:
        free = MAX_SAMPLE_VALUES // vectors.shape[1] - self._n_kept
        self.n_left_out += max(0, len(vectors) - free)
        vectors = vectors[:free]
        n_kept = self._n_kept + len(vectors)
        if n_kept > len(self._vectors):  # room grows by half, so that a long log is copied a few times only
            room = np.empty((max(n_kept, len(self._vectors) * 3 // 2), vectors.shape[1]), dtype=np.int32)
            room[: self._n_kept] = self._vectors[: self._n_kept]
            self._vectors = room
        self._vectors[self._n_kept : n_kept] = vectors
        self._n_kept = n_kept

    def result(self) -> Tally | Sample:
        """What has been added so far."""
        if self._counter is None:
            return Sample(self._vectors[: self._n_kept])
        self._counter.settle()
        return self._counter.tally


class _Counter:
    """Adds checked reports to a tally; it holds all of them after `settle` alone."""

    def __init__(self, spec: RoundSpec, tally: Tally) -> None:
        self._spec, self.tally = spec, tally
        if isinstance(spec.mechanism, OlhMechanism) and spec.mechanism.n_symbols > MAX_COUNTED:
            raise UnfitRound(f"a tally of locally hashed reports counts at most {MAX_COUNTED} symbols")
        self._names_many = isinstance(spec.mechanism, SsMechanism | OueMechanism)
        if self._names_many:
            n_slots, n_symbols = tally.counts.shape
            n_words = (n_symbols + 63) // 64
            self._waiting = (
                np.zeros((n_slots, GROUP, n_words), dtype=np.uint64),
                np.zeros(n_slots, dtype=np.uint64),
                np.zeros((n_slots, N_PLANES, n_words), dtype=np.uint64),
            )

    def add(self, records: NDArray[np.uint8], said: NDArray[np.uint8]) -> None:
        at, tally, mechanism = _slot_at(self._spec, records), self.tally, self._spec.mechanism
        if self._names_many:
            count_bits(records, at, said, *self._waiting, tally.counts, tally.reports)
        elif isinstance(mechanism, OlhMechanism):
            taken = records[said == TAKEN, at:]
            slots = np.ascontiguousarray(taken[:, :SLOT_BYTES]).view("<u4")[:, 0].astype(np.int64)
            values = np.ascontiguousarray(taken[:, SLOT_BYTES:])
            symbols = np.arange(mechanism.n_symbols, dtype=np.int32)
            count_hashed(slots, values, mechanism.hash_range, symbols, tally.counts, tally.reports)
        else:  # the one symbol of `grr`, or the coefficient and sign of `hr`
            count_numbers(records, at, said, tally.counts, tally.reports)

    def settle(self) -> None:
        if self._names_many:
            settle_bits(*self._waiting, self.tally.counts, self.tally.reports)


def check_packed(spec: RoundSpec, records: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Which reports of a log the round's mechanism could have produced.

    Says in compiled loops what `sfumato.mechanisms.is_value` says of a value, and of a slot whether there is one.

    Parameters
    ----------
    spec : RoundSpec
    records : ndarray of shape (n, width), uint8
        Slot and value at the end of each, at least four bytes before them.

    Returns
    -------
    ndarray of shape (n,), uint8
        TAKEN, or MALFORMED.
    """
    said = np.empty(len(records), dtype=np.uint8)
    at, n_slots, mechanism = _slot_at(spec, records), spec.encoding.n_slots, spec.mechanism
    if at < N_BEFORE:
        raise ValueError("what stands before the slot is part of what is loaded")
    if isinstance(mechanism, SsMechanism | OueMechanism):
        n_named = mechanism.subset_size if isinstance(mechanism, SsMechanism) else -1
        check_bits(records, at, n_slots, mechanism.n_symbols, n_named, said)
    elif isinstance(mechanism, OlhMechanism):
        check_hashed(records, at, n_slots, mechanism.hash_range, said)
    elif isinstance(mechanism, DiscreteLaplaceMechanism):
        largest = mechanism.steps + 2 * mechanism.margin
        check_numbers(records, at, n_slots, discrete_laplace.width(mechanism), largest, said)
    else:
        check_numbers(records, at, n_slots, value_bytes(mechanism), tally_width(mechanism) - 1, said)
    return said


def _slot_at(spec: RoundSpec, records: NDArray[np.uint8]) -> int:
    return int(records.shape[1]) - value_bytes(spec.mechanism) - SLOT_BYTES


def _packed(
    spec: RoundSpec, slots: NDArray[np.int64], values: NDArray[np.uint8]
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Reports as a log holds them, without ids, and that all of them are taken; ReportMalformed where one cannot be."""
    out_of_range = (slots < 0) | (slots >= spec.encoding.n_slots)
    four = slots.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :SLOT_BYTES]
    before = np.zeros((len(slots), N_BEFORE), dtype=np.uint8)
    records = np.concatenate([before, four, values], axis=1)
    records.flags.writeable = False  # as those of a log are, so that the same compiled loops do for both
    said = check_packed(spec, records)
    said[out_of_range] = MALFORMED
    _check_counted(int(said.argmax()) if said.any() else -1)
    return records, said


def count_candidates(
    spec: RoundSpec, slots: NDArray[np.int64], values: NDArray[np.uint8], candidates: NDArray[np.int64]
) -> Tally:
    """The tally of locally hashed reports over some of their symbols, in the order given.

    It costs one hash for each report and candidate, whatever the number of symbols.

    Parameters
    ----------
    spec : RoundSpec
        The round they answer; its mechanism is `olh`.
    slots : ndarray of shape (n,), int64
    values : ndarray of shape (n, value_bytes), uint8
    candidates : ndarray of shape (m,), int64
        Symbols, 0 .. n_symbols-1.

    Returns
    -------
    Tally
        Counts of shape (n_slots, m), for `Decoder.candidate_frequencies`.

    Raises
    ------
    ReportMalformed
        A slot or a value out of range, or arrays that do not fit the mechanism (index 0).
    UnfitRound
        Another mechanism, no candidates, too many, or one that is no symbol.
    """
    mechanism = spec.mechanism
    if not isinstance(mechanism, OlhMechanism):
        raise UnfitRound("only locally hashed reports are counted for some symbols alone")
    if candidates.size == 0 or candidates.min() < 0 or candidates.max() >= mechanism.n_symbols:
        raise UnfitRound("candidates are symbols of the round, at least one")
    if candidates.size * spec.encoding.n_slots > MAX_COUNTERS:
        raise UnfitRound(f"a round may have at most {MAX_COUNTERS} counters (slots times candidates)")
    _check_arrays(spec, slots, values)
    n_slots = spec.encoding.n_slots
    tally = Tally(np.zeros((n_slots, candidates.size), dtype=np.int64), np.zeros(n_slots, dtype=np.int64))
    _check_counted(
        count_hashed(slots, values, mechanism.hash_range, candidates.astype(np.int32), tally.counts, tally.reports)
    )
    return tally


def _check_arrays(spec: RoundSpec, slots: NDArray[np.int64], values: NDArray[np.uint8]) -> None:
    if slots.ndim != 1 or values.shape != (len(slots), value_bytes(spec.mechanism)):
        raise ReportMalformed(0, "slots and values do not fit the mechanism")
    if slots.dtype != np.int64 or values.dtype != np.uint8:
        raise ReportMalformed(0, "slots are int64 and values are bytes")


def _check_counted(malformed: int) -> None:
    if malformed >= 0:
        raise ReportMalformed(int(malformed), "its slot or its symbol is out of range")
