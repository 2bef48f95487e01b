"""Aggregate reports into tallies, or noisy vectors into samples."""

import numpy as np
from numpy.typing import NDArray

from clustering.errors import UnfitRound
from clustering.kernels.counting import (
    BATCH,
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
    count_hashed,
    count_numbers,
    read_vectors,
    settle_bits,
    settle_hashed,
)
from clustering.rounds.tally import Sample, Tally, keeps_vectors, noise_of
from sfumato.errors import ReportMalformed
from sfumato.mechanisms.olh import HASH_PRIME, MAX_COUNTED
from sfumato.specs import (
    MAX_SAMPLE_VALUES,
    RoundSpec,
)


def count(spec: RoundSpec, slots: NDArray[np.int64], values: NDArray[np.uint8]) -> Tally:
    """Return the tally of reports.

    Parameters
    ----------
    spec : RoundSpec
        Round of the reports.
    slots : ndarray of shape (n,), int64
        Slot of each report.
    values : ndarray of shape (n, value_bytes), uint8
        Value of each report.

    Returns
    -------
    Tally

    Raises
    ------
    ReportMalformed
        A slot or symbol is out of range, or the arrays do not fit the mechanism (index 0).
    UnfitRound
        Locally hashed reports have more than 4097 symbols.
    """
    tally = Tally.empty(spec)
    count_into(tally, spec, slots, values)
    return tally


def count_into(tally: Tally, spec: RoundSpec, slots: NDArray[np.int64], values: NDArray[np.uint8]) -> None:
    """Add reports to a tally in place, with the parameters and errors of `count`. Count none if it raises."""
    _check_arrays(spec, slots, values)
    records, statuses = _pack(spec, slots, values)
    counter = _TallyCounter(spec, tally)
    counter.add(records, statuses)
    counter.settle()


class RoundAggregator:
    """Aggregates the reports of a round in parts: counts, or a sample of vectors.

    A sample holds at most `MAX_SAMPLE_VALUES` values. No round plans for more, but requests may
    bring more. The first vectors are then kept for all values, and later ones are dropped.
    Thus excess reports do not invalidate a round that was already charged.

    Parameters
    ----------
    spec : RoundSpec

    Attributes
    ----------
    n_left_out : int
        Number of vectors dropped because the sample was full.

    Raises
    ------
    UnfitRound
        The round's tally would exceed `MAX_COUNTERS`.
    """

    def __init__(self, spec: RoundSpec) -> None:
        self._spec = spec
        self._counter = None if keeps_vectors(spec) else _TallyCounter(spec, Tally.empty(spec))
        self._vectors = Sample.empty(spec).values
        self._n_kept = 0
        self.n_left_out = 0

    def add(self, slots: NDArray[np.int64], values: NDArray[np.uint8]) -> None:
        """Add reports, with the parameters and errors of `count`."""
        _check_arrays(self._spec, slots, values)
        self.add_packed(*_pack(self._spec, slots, values))

    def add_packed(self, records: NDArray[np.uint8], statuses: NDArray[np.uint8]) -> None:
        """Add the reports of a log with the status TAKEN.

        Parameters
        ----------
        records : ndarray of shape (n, width), uint8
            Each row ends with the slot and the value.
        statuses : ndarray of shape (n,), uint8
            Result of `check_packed`. A caller excludes a report by setting another status.
        """
        if self._counter is not None:
            self._counter.add(records, statuses)
            return
        mechanism = noise_of(self._spec)
        vectors = np.empty((int(np.count_nonzero(statuses == TAKEN)), mechanism.n_numbers), dtype=np.int32)
        size = mechanism.width
        read_vectors(records, _slot_at(self._spec, records), size, mechanism.margin, statuses, vectors)
        self._keep(vectors)

    def _keep(self, vectors: NDArray[np.int32]) -> None:
        free = MAX_SAMPLE_VALUES // vectors.shape[1] - self._n_kept
        self.n_left_out += max(0, len(vectors) - free)
        vectors = vectors[:free]
        n_kept = self._n_kept + len(vectors)
        if n_kept > len(self._vectors):  # grow by half, so that a long log is copied only a few times
            grown = np.empty((max(n_kept, len(self._vectors) * 3 // 2), vectors.shape[1]), dtype=np.int32)
            grown[: self._n_kept] = self._vectors[: self._n_kept]
            self._vectors = grown
        self._vectors[self._n_kept : n_kept] = vectors
        self._n_kept = n_kept

    def merge(self, other: "RoundAggregator") -> None:
        """Add the counts of another aggregator of the same round, which does not keep vectors."""
        added = other.result()
        assert self._counter is not None  # noqa: S101 - for the type checker: the other one does not keep vectors
        assert isinstance(added, Tally)  # noqa: S101 - the same
        self._counter.tally += added

    def result(self) -> Tally | Sample:
        """Return the tally or sample of all reports added."""
        if self._counter is None:
            return Sample(self._vectors[: self._n_kept])
        self._counter.settle()
        return self._counter.tally


class _TallyCounter:
    """Adds checked reports to a tally, which is complete only after `settle`."""

    def __init__(self, spec: RoundSpec, tally: Tally) -> None:
        self._spec, self.tally = spec, tally
        if spec.mechanism.form == "hash" and spec.mechanism.n_symbols > MAX_COUNTED:
            raise UnfitRound(f"a tally of locally hashed reports may have at most {MAX_COUNTED} symbols")
        n_slots, n_symbols = tally.counts.shape
        n_waiting = np.zeros(n_slots, dtype=np.uint64)
        if spec.mechanism.form == "bits":
            n_words = (n_symbols + 63) // 64
            self._bits = (
                np.zeros((n_slots, GROUP, n_words), dtype=np.uint64),
                n_waiting,
                np.zeros((n_slots, N_PLANES, n_words), dtype=np.uint64),
            )
        elif spec.mechanism.form == "hash":
            self._starts = _hash_starts(spec.mechanism.n_hashes)
            self._hashes = np.zeros((n_slots, 4, BATCH), dtype=np.uint32), n_waiting

    def add(self, records: NDArray[np.uint8], statuses: NDArray[np.uint8]) -> None:
        at, tally, mechanism = _slot_at(self._spec, records), self.tally, self._spec.mechanism
        if mechanism.form == "bits":
            count_bits(records, at, statuses, *self._bits, tally.counts, tally.reports)
        elif mechanism.form == "hash":
            count_hashed(records, at, statuses, self._starts, *self._hashes, tally.counts, tally.reports)
        else:  # `grr` reports one symbol, `hr` a coefficient and a sign
            count_numbers(records, at, statuses, tally.counts, tally.reports)

    def settle(self) -> None:
        if self._spec.mechanism.form == "bits":
            settle_bits(*self._bits, self.tally.counts, self.tally.reports)
        elif self._spec.mechanism.form == "hash":
            settle_hashed(*self._hashes, self.tally.counts, self.tally.reports)


def _hash_starts(n_hashes: int) -> NDArray[np.uint64]:
    """Return the least v of each hash value floor(v g / 2^31), then P: shape (g + 1,)."""
    whole = np.arange(n_hashes + 1, dtype=np.uint64) << np.uint64(31)
    starts: NDArray[np.uint64] = (whole + np.uint64(n_hashes - 1)) // np.uint64(n_hashes)
    return np.minimum(starts, np.uint64(HASH_PRIME))


def check_packed(spec: RoundSpec, records: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return for each report of a log whether the mechanism of the round can produce it.

    The compiled loops check values like `Mechanism.is_value`, and check that the slot exists.

    Parameters
    ----------
    spec : RoundSpec
    records : ndarray of shape (n, width), uint8
        Each row has at least four bytes, then the slot and the value.

    Returns
    -------
    ndarray of shape (n,), uint8
        TAKEN or MALFORMED.

    Raises
    ------
    ValueError
        Fewer than four bytes precede the slot.
    """
    statuses = np.empty(len(records), dtype=np.uint8)
    at, n_slots, mechanism = _slot_at(spec, records), spec.encoding.n_slots, spec.mechanism
    if at < N_BEFORE:
        raise ValueError(f"a record needs at least {N_BEFORE} bytes before its slot")
    if mechanism.form == "bits":
        n_named = -1 if mechanism.n_named is None else mechanism.n_named
        check_bits(records, at, n_slots, mechanism.n_symbols, n_named, statuses)
    elif mechanism.form == "hash":
        check_hashed(records, at, n_slots, mechanism.n_hashes, statuses)
    elif mechanism.form == "vector":
        noise = noise_of(spec)
        check_numbers(records, at, n_slots, noise.width, noise.largest, statuses)
    else:
        check_numbers(records, at, n_slots, mechanism.value_bytes, mechanism.tally_width - 1, statuses)
    return statuses


def _slot_at(spec: RoundSpec, records: NDArray[np.uint8]) -> int:
    return int(records.shape[1]) - spec.mechanism.value_bytes - SLOT_BYTES


def _pack(
    spec: RoundSpec, slots: NDArray[np.int64], values: NDArray[np.uint8]
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return reports as rows of a log without ids, and their statuses; raise ReportMalformed if one is malformed."""
    out_of_range = (slots < 0) | (slots >= spec.encoding.n_slots)
    width = values.shape[1]
    fields = np.zeros(len(slots), dtype=[("before", f"V{N_BEFORE}"), ("slot", "<u4"), ("value", f"V{width}")])
    fields["slot"] = slots
    fields["value"] = np.ascontiguousarray(values).view(f"V{width}")[:, 0]  # whole fields are faster than bytes
    records = fields.view(np.uint8).reshape(-1, N_BEFORE + SLOT_BYTES + width)
    records.flags.writeable = False  # rows of a log are read-only too, so both use the same compiled loops
    statuses = check_packed(spec, records)
    statuses[out_of_range] = MALFORMED
    _check_counted(int(statuses.argmax()) if statuses.any() else -1)
    return records, statuses


def _check_arrays(spec: RoundSpec, slots: NDArray[np.int64], values: NDArray[np.uint8]) -> None:
    if slots.ndim != 1 or values.shape != (len(slots), spec.mechanism.value_bytes):
        raise ReportMalformed(0, f"slots must have shape (n,) and values (n, {spec.mechanism.value_bytes})")
    if slots.dtype != np.int64 or values.dtype != np.uint8:
        raise ReportMalformed(0, "slots must have dtype int64 and values uint8")


def _check_counted(malformed: int) -> None:
    if malformed >= 0:
        raise ReportMalformed(int(malformed), "its slot or symbol is out of range")
