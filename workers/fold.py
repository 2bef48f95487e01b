"""The fold: a closed round's report log becomes its tally, each report id counted once."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from clustering.plan import Sample, Tally
from clustering.tally import Counting
from models import report
from models.db import Database
from models.round import Round
from sfumato import mechanisms
from sfumato.specs import RoundSpec
from workers.distinct import NEW, REPEATED, IdSet, new_keys

IDS_AT_ONCE = 1 << 24  # ids in memory at once: 307 MB; a longer log is read several times

JOINED_BYTES = 1 << 20  # of rows worked on at once

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
class _Reports:
    ids: NDArray[np.uint64]  # (n, 2)
    slots: NDArray[np.int64]  # (n,)
    values: NDArray[np.uint8]  # (n, width)

    def where(self, mask: NDArray[np.bool_]) -> "_Reports":
        return self if mask.all() else _Reports(self.ids[mask], self.slots[mask], self.values[mask])


def fold_round(database: Database, closed: Round) -> Folded:
    """Fold the log of a closed round."""
    with database.reading() as session:
        return fold(
            closed.spec,
            lambda: (packed for _, packed in report.batches(session, closed.id)),
            n_expected=closed.n_received,
        )


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
    counting, width = Counting(spec), report.HEADER_BYTES + mechanisms.value_bytes(spec.mechanism)
    n_repeated = n_malformed = 0
    n_parts, keys = max(1, ceil(n_expected / ids_at_once)), new_keys()
    for part in range(n_parts):
        # parts differ in size by chance: a little room keeps the set from growing
        seen = IdSet(
            n_expected if n_parts == 1 else int(1.01 * n_expected / n_parts), part=part, n_parts=n_parts, keys=keys
        )
        n_malformed = 0
        for packed in _joined(log(), width):
            reports, n_dropped = _well_formed(spec, packed, width)
            n_malformed += n_dropped
            said = seen.add(reports.ids)
            n_repeated += int(np.count_nonzero(said == REPEATED))
            fresh = reports.where(said == NEW)
            counting.add(fresh.slots, fresh.values)
    return Folded(counting.result(), n_repeated, n_malformed, counting.n_left_out)


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
        waiting.append(row)
        n_bytes += len(row)
        if n_bytes >= JOINED_BYTES:
            yield b"".join(waiting)
            waiting, n_bytes = [], 0
    yield b"".join(waiting)


def _well_formed(spec: RoundSpec, packed: bytes, width: int) -> tuple[_Reports, int]:
    """The reports of some rows that the mechanism could have produced, and how many were dropped."""
    if len(packed) % width:  # cut short somewhere: no record in it can be told from its neighbour
        return _unpack(b"", width), ceil(len(packed) / width)
    reports = _unpack(packed, width)
    ok = (reports.slots < spec.encoding.n_slots) & mechanisms.are_values(spec.mechanism, reports.values)
    return reports.where(ok), len(ok) - int(np.count_nonzero(ok))


def _unpack(packed: bytes, width: int) -> _Reports:
    records = np.frombuffer(packed, dtype=np.uint8).reshape(-1, width)
    ids, slots, values = np.split(records, [report.ID_BYTES, report.HEADER_BYTES], axis=1)
    return _Reports(
        ids=np.ascontiguousarray(ids).view("<u8").astype(np.uint64, copy=False),
        slots=np.ascontiguousarray(slots).view("<u4")[:, 0].astype(np.int64),
        values=np.ascontiguousarray(values),
    )
