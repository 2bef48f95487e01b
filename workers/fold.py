"""The fold: a closed round's report log becomes its tally, each report id counted once."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple

import numpy as np

from clustering.plan import Sample, Tally
from clustering.tally import Counting, check_packed
from models import report
from sfumato import mechanisms
from sfumato.specs import RoundSpec
from workers.distinct import REPEATED, STEP, IdSet, new_keys

IDS_AT_ONCE = 1 << 24  # ids in memory at once: 307 MB; a longer log is read several times

JOINED_BYTES = 1 << 18  # of rows worked on at once, where they are smaller

Log = Callable[[], Iterable[bytes]]


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
    keys: tuple[int, int] = field(repr=False)  # whoever knows them can choose ids that crowd together


class Counted(NamedTuple):
    """What was met in a log beside the reports that were counted."""

    n_repeated: int  # of the part's
    n_malformed: int  # of the whole log's
    n_bytes: int  # of the whole log


def fold(spec: RoundSpec, log: Log, *, n_expected: int, ids_at_once: int = IDS_AT_ONCE) -> Folded:
    """Count the reports of a log.

    Of reports with the same id the first in log order counts. Memory: the tally, one page
    of the log and 18.3 bytes for each of at most `ids_at_once` ids; a log of more ids is
    read once for each such part of them.

    Parameters
    ----------
    spec : RoundSpec
        The round they answer, as published.
    log : callable
        Reads the packed rows from their beginning, in order, each time it is called.
    n_expected : int
        Reports in the log; a wrong number costs time or memory, nothing else.
    """
    n_parts, keys = max(1, ceil(n_expected / ids_at_once)), new_keys()
    counting = Counting(spec)
    n_repeated = n_malformed = 0
    for part in range(n_parts):
        found = fold_part(spec, log(), counting, Part(part, n_parts, keys), n_expected=n_expected)
        n_repeated += found.n_repeated
        n_malformed = found.n_malformed  # every part meets them
    return Folded(counting.result(), n_repeated, n_malformed, counting.n_left_out)


def fold_part(spec: RoundSpec, rows: Iterable[bytes], counting: Counting, part: Part, *, n_expected: int) -> Counted:
    """Count the reports of a log whose ids are of one part.

    Parameters
    ----------
    spec : RoundSpec
    rows : iterable of bytes
        The whole log, in its order.
    counting : Counting
        Added to.
    part : Part
    n_expected : int
        Reports in the whole log.
    """
    width = report.HEADER_BYTES + mechanisms.value_bytes(spec.mechanism)
    # parts differ in size by chance: a little room keeps the set from growing
    n_ids = n_expected if part.n_parts == 1 else int(1.01 * n_expected / part.n_parts)
    seen = IdSet(n_ids, part=part.number, n_parts=part.n_parts, keys=part.keys)
    n_repeated = n_malformed = n_bytes = 0
    for packed in _joined(rows, width):
        n_bytes += len(packed)
        if len(packed) % width:  # cut short somewhere: no record in it can be told from its neighbour
            n_malformed += ceil(len(packed) / width)
            continue
        records = np.frombuffer(packed, dtype=np.uint8).reshape(-1, width)
        for start in range(0, len(records), STEP):  # so few that all looks but the first find them in the cache
            some = records[start : start + STEP]
            said = check_packed(spec, some)
            n_malformed += int(np.count_nonzero(said))
            seen.add_packed(some, said)
            n_repeated += int(np.count_nonzero(said == REPEATED))
            counting.add_packed(some, said)
    return Counted(n_repeated, n_malformed, n_bytes)


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
