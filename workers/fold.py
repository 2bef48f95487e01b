"""The fold: a closed round's report log becomes its tally, each report id counted once."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple

import numpy as np
import structlog
from numpy.typing import NDArray

from clustering.plan import Sample, Tally
from clustering.tally import Counting, check_packed
from models import report
from sfumato import mechanisms
from sfumato.specs import RoundSpec
from workers.distinct import REPEATED
from workers.fingerprints import Fingerprints, Keys, Repeats, ScratchAway, Share, new_keys, share_of
from workers.read_ahead import read_ahead

IDS_AT_ONCE = 1 << 24  # whose fingerprints are in memory at once: 134 MB; those of more go to a file
JOINED_BYTES = 1 << 20  # of rows worked on at once, where they are smaller

_STEP = 1 << 15  # reports looked at at once: some hundred kilobytes, which stay in the cache between two looks

Log = Callable[[], Iterable[bytes]]
Say = Callable[[NDArray[np.uint8], NDArray[np.uint8]], None]

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Folded:
    """A tally, and what of the log is not in it.

    Attributes
    ----------
    tally : Tally or, of vectors, Sample
    n_repeated : int
        Reports whose id came before: sent again, counted once.
    n_malformed : int
        Reports the mechanism could not have produced. Ingest lets none in, so this
        is 0 unless the log was damaged.
    n_left_out : int
        Vectors beyond what a sample holds (`clustering.tally.Counting`).
    """

    tally: Tally | Sample
    n_repeated: int
    n_malformed: int
    n_left_out: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """Some of all ids: those that the keys scatter to one of so many parts."""

    number: int
    n_parts: int
    keys: Keys = field(repr=False)  # whoever knows them can choose ids that crowd together


class Counted(NamedTuple):
    """What was met in a log beside the reports that were counted."""

    n_repeated: int  # of the part's
    n_malformed: int  # of the part's
    n_broken: int = 0  # of the whole log: in rows that were cut short, so that nobody knows their ids
    n_bytes: int = 0  # of the whole log


def own_threads() -> int:
    """Threads that a fold keeps busy here: one reads while the other counts, where there are two cores."""
    return min(2, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def fold(
    spec: RoundSpec, log: Log, *, n_expected: int, ids_at_once: int = IDS_AT_ONCE, n_threads: int | None = None
) -> Folded:
    """Count the reports of a log.

    Of reports with the same id the first in log order counts. Memory: the tally, a few
    pages of the log and 8 bytes for each of at most `ids_at_once` ids, half as much again
    where many came twice.

    Parameters
    ----------
    spec : RoundSpec
        The round they answer, as published.
    log : callable
        Reads the packed rows from their beginning, in order, each time it is called: once, and
        once more where ids came twice.
    n_expected : int
        Reports in the log; a wrong number costs time or memory, nothing else.
    n_threads : int, optional
        1, or 2: one reads ahead, and both look for repeats. By default as many as there are cores for.
    """
    part = Part(0, 1, new_keys())
    counting, counted = fold_part(
        spec, log, part, n_expected=n_expected, ids_at_once=ids_at_once, n_threads=n_threads or own_threads()
    )
    return Folded(counting.result(), counted.n_repeated, counted.n_malformed + counted.n_broken, counting.n_left_out)


def fold_part(
    spec: RoundSpec, log: Log, part: Part, *, n_expected: int, ids_at_once: int = IDS_AT_ONCE, n_threads: int = 1
) -> tuple[Counting, Counted]:
    """Count the reports of a log whose ids are of one part.

    All of them are counted while their fingerprints are gathered. Only where some fingerprint came
    twice the log is read, and counted, once more: the ids of those alone are compared then.

    Parameters
    ----------
    spec : RoundSpec
    log : callable
        As of `fold`: the whole log.
    part : Part
    n_expected : int
        Reports in the whole log.
    """
    reading = _Reading(spec, log, n_threads)
    share = share_of(part.number, part.n_parts, part.keys, n_expected=n_expected)
    n_ids = ceil(n_expected / part.n_parts)
    counting = Counting(spec)
    try:
        with Fingerprints(share, n_expected=n_ids, at_once=ids_at_once, n_threads=n_threads) as ids:
            counted = reading.pass_over(share, ids.add_packed, counting)
            return _corrected(reading, ids, ids_at_once, counting, counted)
    except ScratchAway as away:
        _warn(away)
        return _by_shares(reading, share.split(ceil(n_ids / ids_at_once)), ids_at_once)


def _corrected(
    reading: "_Reading", ids: Fingerprints, ids_at_once: int, counting: Counting, counted: Counted
) -> tuple[Counting, Counted]:
    """Where ids may have come twice, what is counted by another pass, or by several where those are very many."""
    n_repeated, is_first = 0, True
    for share, suspected in ids.repeated(ids_at_once // 4):
        if is_first and share == ids.share and not suspected.size:
            return counting, counted
        if is_first:
            counting, is_first = Counting(reading.spec), False
        n_repeated += reading.pass_over(share, Repeats(share, suspected).add_packed, counting).n_repeated
    return counting, counted._replace(n_repeated=n_repeated)


def _by_shares(reading: "_Reading", shares: list[Share], ids_at_once: int) -> tuple[Counting, Counted]:
    """The same with no file: each share that fits into memory by passes of its own over the log."""
    counting, counted = Counting(reading.spec), Counted(0, 0)
    for share in shares:
        with Fingerprints(share, n_expected=ids_at_once, at_once=ids_at_once, may_spill=False) as ids:
            reading.pass_over(share, ids.add_packed, None)
            for some, suspected in ids.repeated(ids_at_once // 4):
                found = reading.pass_over(some, Repeats(some, suspected).add_packed, counting)
                n_repeated = counted.n_repeated + found.n_repeated
                counted = found._replace(n_repeated=n_repeated, n_malformed=counted.n_malformed + found.n_malformed)
    return counting, counted


def _warn(away: ScratchAway) -> None:
    log.warning("fold_without_scratch", cause=str(away))


@dataclass(frozen=True, slots=True)
class _Reading:
    """A round's log, to be read from its beginning as often as need be."""

    spec: RoundSpec
    log: Log
    n_threads: int

    def pass_over(self, share: Share, say: Say, counting: Counting | None) -> Counted:
        """Read all of it, and count what is of the share, is well-formed, and `say` says nothing else of."""
        width = report.HEADER_BYTES + mechanisms.value_bytes(self.spec.mechanism)
        n_repeated = n_malformed = n_broken = n_bytes = 0
        chunks = _joined(self.log(), width)
        with read_ahead(chunks) if self.n_threads > 1 else nullcontext(chunks) as ready:
            for packed in ready:
                n_bytes += len(packed)
                if len(packed) % width:  # cut short somewhere: no record in it can be told from its neighbour
                    n_broken += ceil(len(packed) / width)
                    continue
                records = np.frombuffer(packed, dtype=np.uint8).reshape(-1, width)
                for start in range(0, len(records), _STEP):
                    some = share.pick(records[start : start + _STEP])
                    said = check_packed(self.spec, some)
                    n_malformed += int(np.count_nonzero(said))
                    say(some, said)
                    n_repeated += int(np.count_nonzero(said == REPEATED))
                    if counting is not None:
                        counting.add_packed(some, said)
        return Counted(n_repeated, n_malformed, n_broken, n_bytes)


def _joined(rows: Iterable[bytes], width: int) -> Iterator[bytes]:
    """The log's rows, small ones together: a log of single reports takes no call a report.

    A row that is no whole number of reports stays by itself.
    """
    waiting: list[bytes] = []
    n_bytes = 0
    for row in rows:
        if len(row) % width:
            yield row
            continue
        if not waiting and len(row) >= JOINED_BYTES:
            yield row
            continue
        waiting.append(row)
        n_bytes += len(row)
        if n_bytes >= JOINED_BYTES:
            yield b"".join(waiting)
            waiting, n_bytes = [], 0
    yield b"".join(waiting)
