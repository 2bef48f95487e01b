"""Aggregation of a closed round: its report log becomes its tally, and each report id counts once.

A first pass over the log counts all reports and gathers a fingerprint of each id. Its threads take chunks of the log in
turn, and each counts its chunks. A second pass is needed only if some fingerprint occurs twice. It follows the order of
the log: a thread reads ahead while another one counts.
"""

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from math import ceil
from queue import Full, Queue
from typing import NamedTuple

import numpy as np
import structlog
from numpy.typing import NDArray

from clustering.rounds.counting import RoundAggregator, check_packed
from clustering.rounds.tally import Sample, Tally, keeps_vectors
from models.collection import releases, report_log
from models.database.engine import Database
from models.tables.rounds import Round
from sfumato.specs import RoundSpec
from workers.aggregation.duplicate_filter import (
    BucketRange,
    Fingerprints,
    Keys,
    RepeatDetector,
    ScratchFileUnavailable,
    bucket_range,
    new_keys,
)
from workers.aggregation.id_set import REPEATED
from workers.aggregation.open_batch import open_batch

MAX_IDS_IN_MEMORY = 1 << 24  # fingerprints in memory at once: 134 MB; more go to a scratch file
JOINED_BYTES = 1 << 20  # smaller rows of the log are joined up to this size
MAX_CHUNKS_AHEAD = 2  # chunks that are read before they are counted
MAX_OWN_COUNTERS = 1 << 18  # each thread counts into a tally of its own up to this size: 2 MB, a share of the cache

_STEP = 1 << 15  # reports per step: a few hundred kilobytes, which stay in the processor's cache
_CHECK_SECONDS = 0.1  # between checks of a waiting reader whether the consumer has stopped

ReadLog = Callable[[], Iterable[bytes]]
MarkRepeats = Callable[[NDArray[np.uint8], NDArray[np.uint8]], None]  # (records, statuses)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Aggregation:
    """A tally, and the numbers of reports that it omits.

    Attributes
    ----------
    tally : Tally or Sample
        A sample if the reports are vectors.
    n_repeated : int
        Reports with the id of an earlier report, for example because a device sent them again.
    n_malformed : int
        Reports that the mechanism cannot produce. Ingestion rejects such reports, so this is 0 unless the log was
        damaged.
    n_left_out : int
        Vectors beyond the capacity of a sample (`clustering.rounds.counting.RoundAggregator`).
    """

    tally: Tally | Sample
    n_repeated: int
    n_malformed: int
    n_left_out: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """One of `n_parts` parts of all ids. The keys assign each id to a part."""

    number: int
    n_parts: int
    keys: Keys = field(repr=False)  # secret: a client that knows them can choose ids that collide


class LogCounts(NamedTuple):
    """Numbers of omitted reports, and the size of the log."""

    n_repeated: int  # in the part
    n_malformed: int  # in the part
    n_broken: int = 0  # in the whole log: reports in truncated rows; their ids are unknown
    n_bytes: int = 0  # size of the whole log

    def plus(self, other: "LogCounts") -> "LogCounts":
        """Return the sums of the numbers of two parts of a log."""
        return LogCounts(*(ours + theirs for ours, theirs in zip(self, other, strict=True)))


def count_threads() -> int:
    """Return the number of threads of an aggregation: two unless there is only one core."""
    return min(2, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def aggregate_round(database: Database, closed: Round) -> Aggregation:
    """Aggregate the stored report log of a closed round."""
    with database.reading() as session:
        return aggregate(
            closed.spec,
            lambda: (packed for _, packed in report_log.batches(session, closed.id)),
            n_expected=closed.n_received,
        )


def aggregate_sealed_round(database: Database, closed: Round, private_key: bytes) -> Aggregation:
    """Open the batch of a shuffled round and aggregate its reports. Those that do not open are malformed."""
    spec = closed.spec
    with database.reading() as session:
        packed = open_batch(
            (sealed for _, sealed in report_log.batches(session, closed.id)),
            closed.n_received,
            spec.mechanism.value_bytes,
            closed.id,
            releases.round_bytes(closed),
            private_key,
        )
    aggregation = aggregate(spec, lambda: [packed.tobytes()], n_expected=len(packed))
    n_sealed = closed.n_received - len(packed)
    return replace(aggregation, n_malformed=aggregation.n_malformed + n_sealed)


def aggregate(
    spec: RoundSpec,
    read_log: ReadLog,
    *,
    n_expected: int,
    max_ids_in_memory: int = MAX_IDS_IN_MEMORY,
    n_threads: int | None = None,
) -> Aggregation:
    """Count the reports of a log.

    The first report with an id counts, in the order of the log. Memory: the tally, a few pages of the log, and 8 bytes
    for each of at most `max_ids_in_memory` ids. Many repeats add half of that.

    Parameters
    ----------
    spec : RoundSpec
        Published specification of the round.
    read_log : callable
        Returns an iterator over the packed rows, in order. It is called once, and again if ids may be repeated.
    n_expected : int
        Number of reports in the log. A wrong number costs time or memory, but does not change the result.
    max_ids_in_memory : int
        Number of fingerprints in memory at once.
    n_threads : int, optional
        1 or 2. Two threads read and count in turn, and both search for repeats. By default `count_threads()`.
    """
    part = Part(0, 1, new_keys())
    counting, counts = aggregate_part(
        spec,
        read_log,
        part,
        n_expected=n_expected,
        max_ids_in_memory=max_ids_in_memory,
        n_threads=n_threads or count_threads(),
    )
    return Aggregation(counting.result(), counts.n_repeated, counts.n_malformed + counts.n_broken, counting.n_left_out)


def aggregate_part(
    spec: RoundSpec,
    read_log: ReadLog,
    part: Part,
    *,
    n_expected: int,
    max_ids_in_memory: int = MAX_IDS_IN_MEMORY,
    n_threads: int = 1,
) -> tuple[RoundAggregator, LogCounts]:
    """Count the reports of a log that have an id in one part.

    A first pass counts all of them and gathers their fingerprints. Only if a fingerprint occurs twice, a second pass
    counts again and compares the ids with such fingerprints.

    Parameters
    ----------
    spec : RoundSpec
        Published specification of the round.
    read_log : callable
        Reads the whole log, as for `aggregate`.
    part : Part
        The ids to count.
    n_expected : int
        Number of reports in the whole log.
    """
    reader = _LogReader(spec, read_log, n_threads)
    buckets = bucket_range(part.number, part.n_parts, part.keys, n_expected=n_expected)
    n_ids = ceil(n_expected / part.n_parts)
    try:
        fingerprints = Fingerprints(buckets, n_expected=n_ids, max_in_memory=max_ids_in_memory, n_threads=n_threads)
        with closing(fingerprints) as ids:
            counting, counts = reader.count_all(buckets, ids)
            return _count_without_repeats(reader, ids, max_ids_in_memory, counting, counts)
    except ScratchFileUnavailable as unavailable:
        log.warning("aggregated_without_scratch_file", cause=str(unavailable))
        return _aggregate_in_memory(reader, buckets.split(ceil(n_ids / max_ids_in_memory)), max_ids_in_memory)


def _count_without_repeats(
    reader: "_LogReader", ids: Fingerprints, max_ids: int, counting: RoundAggregator, counts: LogCounts
) -> tuple[RoundAggregator, LogCounts]:
    """Count again without the repeated reports: in one more pass, or in several if very many ids are suspected."""
    n_repeated, is_first = 0, True
    for buckets, suspected in ids.repeated(max_ids // 4):
        if is_first and buckets == ids.buckets and not suspected.size:
            return counting, counts
        if is_first:
            counting, is_first = RoundAggregator(reader.spec), False
        detector = RepeatDetector(buckets, suspected)
        n_repeated += reader.count_reports(buckets, detector.mark_repeats, counting).n_repeated
    return counting, counts._replace(n_repeated=n_repeated)


def _aggregate_in_memory(
    reader: "_LogReader", ranges: list[BucketRange], max_ids: int
) -> tuple[RoundAggregator, LogCounts]:
    """Aggregate without a scratch file: read the log separately for each range of buckets that fits into memory."""
    counting, counts = RoundAggregator(reader.spec), LogCounts(0, 0)
    for buckets in ranges:
        with closing(Fingerprints(buckets, n_expected=max_ids, max_in_memory=max_ids, may_spill=False)) as ids:
            reader.count_reports(buckets, ids.add_packed, None)
            for subrange, suspected in ids.repeated(max_ids // 4):
                detector = RepeatDetector(subrange, suspected)
                found = reader.count_reports(subrange, detector.mark_repeats, counting)
                counts = LogCounts(
                    counts.n_repeated + found.n_repeated,
                    counts.n_malformed + found.n_malformed,
                    found.n_broken,
                    found.n_bytes,
                )
    return counting, counts


@dataclass(frozen=True, slots=True)
class _LogReader:
    """A round's log, which can be read repeatedly."""

    spec: RoundSpec
    read_log: ReadLog
    n_threads: int

    def count_all(self, buckets: BucketRange, ids: Fingerprints) -> tuple[RoundAggregator, LogCounts]:
        """Count all well-formed reports in `buckets`, and gather their fingerprints.

        Each thread takes the next chunk of the log and counts it. Sums do not depend on the order of the reports. The
        sample of a round of vectors may, if it is full, so one thread counts vectors.
        """
        counting = RoundAggregator(self.spec)
        if not self._counts_in_threads:
            return counting, self.count_reports(buckets, ids.add_packed, counting)
        chunks, reading, adding, is_over = self._chunks(), threading.Lock(), threading.Lock(), threading.Event()

        def take_chunk() -> bytes | None:
            with reading:
                return None if is_over.is_set() else next(chunks, None)

        def add_ids(records: NDArray[np.uint8], statuses: NDArray[np.uint8]) -> None:
            with adding:
                ids.add_packed(records, statuses)

        def count_chunks(counting: RoundAggregator) -> LogCounts:
            counts = LogCounts(0, 0)
            try:
                while (packed := take_chunk()) is not None:
                    counts = counts.plus(self._count_chunk(packed, buckets, add_ids, counting))
            finally:
                is_over.set()  # ends the other threads if this one failed
            return counts

        with ThreadPoolExecutor(self.n_threads - 1, "count-log") as pool:
            others = [RoundAggregator(self.spec) for _ in range(self.n_threads - 1)]
            waiting = [pool.submit(count_chunks, other) for other in others]
            counts = count_chunks(counting)
            for other, its_counts in zip(others, waiting, strict=True):
                counts = counts.plus(its_counts.result())
                counting.merge(other)
        return counting, counts

    def count_reports(
        self, buckets: BucketRange, mark_repeats: MarkRepeats, counting: RoundAggregator | None
    ) -> LogCounts:
        """Count the well-formed reports in `buckets` that `mark_repeats` does not mark, in the order of the log."""
        counts, chunks = LogCounts(0, 0), self._chunks()
        with read_ahead(chunks) if self.n_threads > 1 else nullcontext(chunks) as ready:
            for packed in ready:
                counts = counts.plus(self._count_chunk(packed, buckets, mark_repeats, counting))
        return counts

    @property
    def _counts_in_threads(self) -> bool:
        if self.n_threads == 1 or keeps_vectors(self.spec):
            return False
        return self.spec.encoding.n_slots * self.spec.mechanism.tally_width <= MAX_OWN_COUNTERS

    @property
    def _width(self) -> int:
        return report_log.HEADER_BYTES + self.spec.mechanism.value_bytes

    def _chunks(self) -> Iterator[bytes]:
        return _join_rows(self.read_log(), self._width)

    def _count_chunk(
        self, packed: bytes, buckets: BucketRange, mark_repeats: MarkRepeats, counting: RoundAggregator | None
    ) -> LogCounts:
        width, n_repeated, n_malformed = self._width, 0, 0
        if len(packed) % width:  # truncated somewhere, so the boundaries of its reports are unknown
            return LogCounts(0, 0, ceil(len(packed) / width), len(packed))
        records = np.frombuffer(packed, dtype=np.uint8).reshape(-1, width)
        for start in range(0, len(records), _STEP):
            picked = buckets.pick(records[start : start + _STEP])
            statuses = check_packed(self.spec, picked)
            n_malformed += int(np.count_nonzero(statuses))
            mark_repeats(picked, statuses)
            n_repeated += int(np.count_nonzero(statuses == REPEATED))
            if counting is not None:
                counting.add_packed(picked, statuses)
        return LogCounts(n_repeated, n_malformed, 0, len(packed))


def _join_rows(rows: Iterable[bytes], width: int) -> Iterator[bytes]:
    """Join small rows of the log, because a step for each report would be slow.

    A row with a length that is not a multiple of `width` is not joined.
    """
    waiting: list[bytes] = []
    n_bytes = 0
    for row in rows:
        if len(row) % width or (not waiting and len(row) >= JOINED_BYTES):
            yield row
            continue
        waiting.append(row)
        n_bytes += len(row)
        if n_bytes >= JOINED_BYTES:
            yield b"".join(waiting)
            waiting, n_bytes = [], 0
    yield b"".join(waiting)


@contextmanager
def read_ahead(chunks: Iterable[bytes]) -> Iterator[Iterator[bytes]]:
    """Yield an iterator over the same chunks, which a thread reads up to `MAX_CHUNKS_AHEAD` ahead.

    An exception of the source is raised in place of the chunk. The thread has ended when the context exits, even in
    the middle of the log, because the database connection is then returned to its pool.
    """
    waiting: Queue[bytes | BaseException | None] = Queue(MAX_CHUNKS_AHEAD)
    is_over = threading.Event()

    def put(chunk: bytes | BaseException | None) -> bool:
        while not is_over.is_set():
            try:
                waiting.put(chunk, timeout=_CHECK_SECONDS)
            except Full:
                continue
            return True
        return False

    def read() -> None:
        try:
            if all(put(chunk) for chunk in chunks):
                put(None)
        except BaseException as error:  # raised in the consumer
            put(error)

    def consume() -> Iterator[bytes]:
        while (chunk := waiting.get()) is not None:
            if isinstance(chunk, BaseException):
                raise chunk
            yield chunk

    thread = threading.Thread(target=read, name="read-ahead", daemon=True)
    thread.start()
    try:
        yield consume()
    finally:
        is_over.set()
        thread.join()
