"""Detection of repeated report ids in two steps: find repeated fingerprints, then compare the few suspected ids.

A fingerprint is 64 bits of the hash of an id under secret keys. `Fingerprints` gathers them in buckets by their hash,
and searches one bucket after another. A bucket fits into the processor's cache, whereas a set of all ids would cause a
cache miss for each id. Two ids may share a fingerprint, so `RepeatDetector` compares the suspected ids themselves.
"""

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil
from typing import IO

import numpy as np
from numpy.typing import NDArray

from clustering.kernels.counting import TAKEN
from workers.aggregation.duplicate_filter_kernels import (
    BLOCK,
    find_repeated,
    find_suspects,
    gather,
    mark,
    pick,
    scatter,
)
from workers.aggregation.id_set import IdSet, secret_words

FINGERPRINT_BYTES = 8
BUCKET_IDS = 1 << 14  # expected fingerprints per bucket: with their hash table, they fit into the cache
MIN_BUCKETS, MAX_BUCKETS = 16, 1 << 12  # per range: each bucket is written to at a separate position

_MANY = 4  # a bucket with this many times its expected size contains an id that occurs very often
_STEP = 1 << 15  # reports per step
_ENTRIES_PER_FINGERPRINT = 4  # in the hash table
_FILTER_BITS, _MIN_FILTER_BITS = 32, 1 << 20  # bits per suspected fingerprint: few other ids pass the filter
_ID_BYTES = 16

Keys = tuple[int, int, int]


class ScratchFileUnavailable(Exception):
    """The scratch file for fingerprints cannot be written or read."""


def new_keys() -> Keys:
    """Return random keys for fingerprints, so that a client cannot choose ids that collide."""
    first, second, third = secret_words(3)
    return first, second, third


@dataclass(frozen=True, slots=True)
class BucketRange:
    """The ids with a hash in the buckets `begin` to `end - 1`, of `n_buckets` in all.

    The bucket of an id depends only on the id and the keys.
    """

    begin: int
    end: int
    n_buckets: int
    keys: Keys = field(repr=False)

    def split(self, n_ranges: int) -> list["BucketRange"]:
        """Split into `n_ranges` ranges of about equal size, but at most one per bucket."""
        n_ranges = max(1, min(n_ranges, self.end - self.begin))
        cuts = [self.begin + (self.end - self.begin) * i // n_ranges for i in range(n_ranges + 1)]
        return [BucketRange(begin, end, self.n_buckets, self.keys) for begin, end in pairwise(cuts)]

    def pick(self, records: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the records in this range. `records` has shape (n, width), and each record begins with its id."""
        if self.end - self.begin == self.n_buckets:
            return records
        picked = np.empty_like(records)
        picked = picked[: pick(records, *self._words, picked)]
        picked.flags.writeable = False  # like the rows of a log, so that both use the same compiled loops
        return picked

    @property
    def _words(self) -> tuple[NDArray[np.uint64], np.uint64, np.uint64, np.uint64]:
        keys = np.array(self.keys, dtype=np.uint64)
        return keys, np.uint64(self.begin), np.uint64(self.end - self.begin), np.uint64(self.n_buckets)


def bucket_range(number: int, n_ranges: int, keys: Keys, *, n_expected: int) -> BucketRange:
    """Return range `number` of `n_ranges` ranges of equal size, for a log of `n_expected` reports."""
    n_own = min(MAX_BUCKETS, max(MIN_BUCKETS, ceil(n_expected / n_ranges / BUCKET_IDS)))
    return BucketRange(number * n_own, (number + 1) * n_own, n_ranges * n_own, keys)


class Fingerprints:
    """The fingerprints of the ids in a range of buckets, 8 bytes each.

    Above `max_in_memory` fingerprints, they are written to an unnamed scratch file. No other process can open it, and
    it disappears when it is closed or the process ends. A fingerprint reveals less than its id, which the log contains.

    Parameters
    ----------
    buckets : BucketRange
    n_expected : int
        Expected number of fingerprints. A wrong number costs time or memory, but does not change the result.
    max_in_memory : int
        Number of fingerprints in memory at once.
    may_spill : bool
        Whether a scratch file may be written. If not, all fingerprints stay in memory.
    n_threads : int
        Number of threads that search buckets.
    """

    def __init__(
        self, buckets: BucketRange, *, n_expected: int, max_in_memory: int, may_spill: bool = True, n_threads: int = 1
    ) -> None:
        self.buckets = buckets
        self._words, self._n_own = buckets._words, buckets.end - buckets.begin
        self._max_in_memory, self._may_spill, self._n_threads = max_in_memory, may_spill, n_threads
        self._n_blocks = 0
        self._scratch: IO[bytes] | None = None
        self._runs: list[NDArray[np.int64]] = []  # per spill: where each bucket begins in the file, and the end
        self._n_many = max(_MANY * BUCKET_IDS, _MANY * n_expected // self._n_own)
        self._allocate(ceil(min(n_expected, max_in_memory) / BLOCK))

    def close(self) -> None:
        """Discard all fingerprints."""
        self._pool = np.empty(0, dtype=np.uint64)
        if self._scratch is not None:
            self._scratch.close()
            self._scratch = None

    def add_packed(self, records: NDArray[np.uint8], statuses: NDArray[np.uint8]) -> None:
        """Add the ids of reports.

        Parameters
        ----------
        records : ndarray of shape (n, width), uint8
            The first 16 bytes of a record are its id. All ids lie in the range of buckets.
        statuses : ndarray of shape (n,), uint8
            The ids with status TAKEN are added.

        Raises
        ------
        ScratchFileUnavailable
        """
        keys, begin, _, n_buckets = self._words
        for start in range(0, len(records), _STEP):
            if self._n_free() < self._n_own + _STEP // BLOCK + 1:
                self._grow_or_spill()
            step = slice(start, start + _STEP)
            pool, at, owner = self._pool, self._at, self._owner
            self._n_blocks = scatter(
                records[step], statuses[step], keys, begin, n_buckets, pool, at, owner, self._n_blocks
            )

    def repeated(self, max_found: int) -> Iterator[tuple[BucketRange, NDArray[np.uint64]]]:
        """Yield subranges of the buckets with the fingerprints that occur more than once in them.

        A subrange ends when it has `max_found` such fingerprints; usually there is one subrange. After the last one,
        the fingerprints are discarded, and no more can be added.
        """
        order, cuts = self._sort_blocks()
        begin, found, n_found = 0, [np.empty(0, dtype=np.uint64)], 0
        at_once = max(1, min(64, ceil(self._n_own / self._n_threads)))
        with ExitStack() as stack:
            run_all: Callable[..., Iterable[list[NDArray[np.uint64]]]] = map
            if self._n_threads > 1:
                run_all = stack.enter_context(ThreadPoolExecutor(self._n_threads)).map
            for first in range(0, self._n_own, at_once * self._n_threads):
                after = min(self._n_own, first + at_once * self._n_threads)
                ranges = [range(start, min(after, start + at_once)) for start in range(first, after, at_once)]
                for parts in run_all(lambda buckets: self._search(buckets, order, cuts), ranges):
                    found += parts
                n_found = sum(each.size for each in found)
                if n_found >= max_found or after == self._n_own:
                    if after == self._n_own:
                        self.close()
                    whole = self.buckets
                    yield (
                        BucketRange(whole.begin + begin, whole.begin + after, whole.n_buckets, whole.keys),
                        np.concatenate(found),
                    )
                    begin, found = after, [np.empty(0, dtype=np.uint64)]

    def _search(self, buckets: range, order: NDArray[np.int64], cuts: NDArray[np.int64]) -> list[NDArray[np.uint64]]:
        """Return the repeated fingerprints of each bucket that has some."""
        words = over = np.empty(0, dtype=np.uint64)
        tags = np.empty(0, dtype=np.uint32)
        found = []
        for bucket in buckets:
            blocks = order[cuts[bucket] : cuts[bucket + 1]]
            n_most = len(blocks) * BLOCK + sum(int(run[bucket + 1] - run[bucket]) for run in self._runs)
            if words.size < n_most:
                words, over = np.empty(n_most, dtype=np.uint64), np.empty(n_most, dtype=np.uint64)
            n_words = gather(self._pool, blocks, self._at[bucket], words)
            n_words = self._read_back(bucket, words, n_words)
            if n_words > self._n_many:
                n_words = _limit_copies(words, n_words)
            n_entries = 1 << max(8, (_ENTRIES_PER_FINGERPRINT * n_words - 1).bit_length())
            if tags.size < n_entries:
                tags = np.empty(n_entries, dtype=np.uint32)
            n_found = find_repeated(words[:n_words], tags[:n_entries], over)
            if n_found:
                found.append(np.unique(over[:n_found]))
        return found

    def _sort_blocks(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the blocks in the order of their buckets, and where each bucket begins in this order."""
        order = np.argsort(self._owner[: self._n_blocks], kind="stable")
        return order, np.searchsorted(self._owner[order], np.arange(self._n_own + 1))

    def _n_free(self) -> int:
        return self._owner.size - self._n_blocks

    def _allocate(self, n_blocks: int) -> None:
        """Allocate empty buckets with one block each, and `n_blocks` more blocks."""
        n_blocks += 2 * self._n_own + _STEP // BLOCK + 2
        self._pool = np.empty(n_blocks * BLOCK, dtype=np.uint64)
        self._owner = np.empty(n_blocks, dtype=np.int64)
        self._empty()

    def _empty(self) -> None:
        self._at = np.arange(self._n_own, dtype=np.uint64) * np.uint64(BLOCK)
        self._owner[: self._n_own] = np.arange(self._n_own)
        self._n_blocks = self._n_own

    def _grow_or_spill(self) -> None:
        """Double the memory if the limit allows it, else write all fingerprints to the scratch file."""
        if not self._may_spill or 2 * self._pool.size <= self._max_in_memory:
            n_more = self._owner.size
            self._pool = np.concatenate([self._pool, np.empty(n_more * BLOCK, dtype=np.uint64)])
            self._owner = np.concatenate([self._owner, np.empty(n_more, dtype=np.int64)])
            return
        try:
            self._spill()
        except OSError as error:
            raise ScratchFileUnavailable(type(error).__name__) from None
        self._empty()

    def _spill(self) -> None:
        if self._scratch is None:
            self._scratch = tempfile.TemporaryFile(prefix="sfumato-")  # noqa: SIM115 - `close` closes it
        order, cuts = self._sort_blocks()
        run = np.empty(self._n_own + 1, dtype=np.int64)
        run[0] = self._runs[-1][-1] if self._runs else 0
        words = np.empty(int(np.diff(cuts).max()) * BLOCK, dtype=np.uint64)
        for bucket in range(self._n_own):
            n_words = gather(self._pool, order[cuts[bucket] : cuts[bucket + 1]], self._at[bucket], words)
            if n_words > self._n_many:
                n_words = _limit_copies(words, n_words)
            self._scratch.write(words[:n_words].data)
            run[bucket + 1] = run[bucket] + n_words
        self._scratch.flush()
        self._runs.append(run)

    def _read_back(self, bucket: int, words: NDArray[np.uint64], n_words: int) -> int:
        for run in self._runs:
            begin, n_more = int(run[bucket]), int(run[bucket + 1] - run[bucket])
            _read_fully(self._scratch, words[n_words : n_words + n_more], begin * FINGERPRINT_BYTES)
            n_words += n_more
        return n_words


def _limit_copies(words: NDArray[np.uint64], n_words: int) -> int:
    """Keep at most two copies of each fingerprint and return the number kept.

    This bounds the memory if a client repeats one id.
    """
    different, times = np.unique(words[:n_words], return_counts=True)
    left = np.repeat(different, np.minimum(times, 2))
    words[: left.size] = left
    return left.size


def _read_fully(file: IO[bytes] | None, words: NDArray[np.uint64], at: int) -> None:
    assert file is not None  # noqa: S101 - for the type checker: it exists if there are runs
    left = words.view(np.uint8).data
    while left:
        n_read = os.preadv(file.fileno(), [left], at)
        if n_read == 0:
            raise ScratchFileUnavailable("the file was truncated")
        left, at = left[n_read:], at + n_read


class RepeatDetector:
    """Detects repeated ids among the reports with suspected fingerprints.

    Parameters
    ----------
    buckets : BucketRange
    suspected : ndarray of shape (n,), uint64
        The fingerprints that occur more than once. Reports with other fingerprints are not repeats.
    """

    def __init__(self, buckets: BucketRange, suspected: NDArray[np.uint64]) -> None:
        n_bits = max(_MIN_FILTER_BITS, 1 << (_FILTER_BITS * suspected.size).bit_length())
        self._keys = np.array(buckets.keys, dtype=np.uint64)
        self._filter = np.zeros(n_bits // 64, dtype=np.uint64)
        mark(suspected, self._filter)
        self._ids = IdSet(2 * suspected.size)

    def mark_repeats(self, records: NDArray[np.uint8], statuses: NDArray[np.uint8]) -> None:
        """Set the status of repeated reports to `workers.aggregation.id_set.REPEATED`, in the order of the log.

        Parameters
        ----------
        records : ndarray of shape (n, width), uint8
            The first 16 bytes of a record are its id.
        statuses : ndarray of shape (n,), uint8
            The reports with status TAKEN are examined.
        """
        chosen = np.empty(len(records), dtype=np.int64)
        n_chosen = find_suspects(records, statuses, self._keys, self._filter, chosen)
        if n_chosen:
            ids = np.ascontiguousarray(records[chosen[:n_chosen], :_ID_BYTES])
            ids.flags.writeable = False  # like the rows of a log, so that both use the same compiled loops
            repeated = np.full(n_chosen, TAKEN, dtype=np.uint8)
            self._ids.add_packed(ids, repeated)
            statuses[chosen[:n_chosen]] = repeated
