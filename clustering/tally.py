"""Reports into tallies, or samples of vectors."""

from typing import cast

import numpy as np
from numpy.typing import NDArray

from clustering.errors import UnfitRound
from clustering.kernels.hashing import count_hashed
from clustering.kernels.tally import count_bits, count_symbols
from clustering.plan import MAX_COUNTERS, Sample, Tally, keeps_vectors
from sfumato.errors import ReportMalformed
from sfumato.mechanisms import are_values, value_bytes
from sfumato.mechanisms.discrete_laplace import vectors_of
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
    """Add reports to a tally in place, so that a long log needs one tally and no sums.

    Takes what `count` takes. When it raises, the reports before the malformed one are
    counted already: throw the tally away.
    """
    _check_arrays(spec, slots, values)
    mechanism = spec.mechanism
    if isinstance(mechanism, OlhMechanism):
        if mechanism.n_symbols > MAX_COUNTED:
            raise UnfitRound(f"a tally of locally hashed reports counts at most {MAX_COUNTED} symbols")
        symbols = np.arange(mechanism.n_symbols, dtype=np.int32)
        malformed = count_hashed(slots, values, mechanism.hash_range, symbols, tally.counts, tally.reports)
    elif isinstance(mechanism, SsMechanism | OueMechanism):
        malformed = count_bits(slots, values, tally.counts, tally.reports)
    else:  # the one symbol of `grr`, or the coefficient and sign of `hr`
        malformed = count_symbols(slots, values, tally.counts, tally.reports)
    _check_counted(malformed)


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
        self._tally = None if keeps_vectors(spec) else Tally.empty(spec)
        self._vectors = Sample.empty(spec).values
        self._n_kept = 0
        self.n_left_out = 0

    def add(self, slots: NDArray[np.int64], values: NDArray[np.uint8]) -> None:
        """Add reports; takes what `count` takes, and raises what it raises."""
        if self._tally is not None:
            count_into(self._tally, self._spec, slots, values)
            return
        _check_arrays(self._spec, slots, values)
        ok = (slots == 0) & are_values(self._spec.mechanism, values)
        _check_counted(-1 if ok.all() else int(ok.argmin()))
        self._keep(vectors_of(cast(DiscreteLaplaceMechanism, self._spec.mechanism), values))

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
        return Sample(self._vectors[: self._n_kept]) if self._tally is None else self._tally


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
