"""Fingerprints of a log's report ids: which ids may have come more than once?

A fingerprint is 64 bits of an id's hash under keys that nobody outside knows. They are gathered in
buckets, by the hash, and looked through bucket by bucket: both are work within the processor's cache, where
a set of all ids would be waited for at every one of them. What it finds is not yet a repeat, for
two ids may have one fingerprint: `Repeats` says of the few that are suspected which are.
"""

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil
from types import TracebackType
from typing import IO, Self

import numpy as np
from numpy.typing import NDArray

from clustering.kernels.tally import TAKEN
from workers.distinct import IdSet, secret_words
from workers.fingerprint_loops import BLOCK, gather, look_twice, mark, pick, scatter, suspects

WORD_BYTES = 8  # of a fingerprint
BUCKET_IDS = 1 << 14  # that one bucket is to hold: they, and a table of them, stay in the cache
MIN_BUCKETS, MAX_BUCKETS = 16, 1 << 12  # of one share: each is written to at a place of its own

_MANY = 4  # times as many as a bucket is to hold: some id came very often
_STEP = 1 << 15  # reports at once
_ROOM = 4  # places of the table that fingerprints are looked up in, for each of them
_FILTER_BITS, _MIN_FILTER_BITS = 32, 1 << 20  # for each suspected fingerprint: few others pass
_ID_BYTES = 16

Keys = tuple[int, int, int]


class ScratchAway(Exception):
    """There is no room for a file of fingerprints."""


def new_keys() -> Keys:
    """Fresh keys for fingerprints: whoever chooses ids is not to choose fingerprints."""
    first, second, third = secret_words(3)
    return first, second, third


@dataclass(frozen=True, slots=True)
class Share:
    """Some of all ids: those whose hash falls into some of so many buckets.

    Which buckets an id falls into depends on the id and the keys alone.
    """

    begin: int
    end: int
    n_buckets: int
    keys: Keys = field(repr=False)

    def split(self, n_shares: int) -> list["Share"]:
        """The same ids in so many shares, or in as many as there are buckets."""
        n_shares = max(1, min(n_shares, self.end - self.begin))
        cuts = [self.begin + (self.end - self.begin) * i // n_shares for i in range(n_shares + 1)]
        return [Share(begin, end, self.n_buckets, self.keys) for begin, end in pairwise(cuts)]

    def pick(self, records: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Of records of shape (n, width), which begin with their ids, those of this share."""
        if self.end - self.begin == self.n_buckets:
            return records
        picked = np.empty_like(records)
        picked = picked[: pick(records, *self._words, picked)]
        picked.flags.writeable = False  # as a log's rows are, so that one compiled loop does for both
        return picked

    @property
    def _words(self) -> tuple[NDArray[np.uint64], np.uint64, np.uint64, np.uint64]:
        keys = np.array(self.keys, dtype=np.uint64)
        return keys, np.uint64(self.begin), np.uint64(self.end - self.begin), np.uint64(self.n_buckets)


def share_of(number: int, n_shares: int, keys: Keys, *, n_expected: int) -> Share:
    """One of so many equal shares of the ids of a log of `n_expected` reports."""
    n_own = min(MAX_BUCKETS, max(MIN_BUCKETS, ceil(n_expected / n_shares / BUCKET_IDS)))
    return Share(number * n_own, (number + 1) * n_own, n_shares * n_own, keys)


class Fingerprints:
    """The fingerprints of one share of a log's ids: 8 bytes an id.

    Above `at_once` of them they go to a file without a name, which nobody else can open and which is
    gone when it is closed or its process ends, however that ends. A fingerprint tells less than the
    id it is of, which the log holds.

    Parameters
    ----------
    share : Share
    n_expected : int
        Fingerprints there will be; a wrong number costs time or memory, nothing else.
    at_once : int
        Fingerprints in memory at once.
    may_spill : bool
        Whether there may be a file. Else they are all kept in memory.
    n_threads : int
        That look through buckets at once.
    """

    def __init__(
        self, share: Share, *, n_expected: int, at_once: int, may_spill: bool = True, n_threads: int = 1
    ) -> None:
        self.share = share
        self._words, self._n_own = share._words, share.end - share.begin
        self._at_once, self._may_spill, self._n_threads = at_once, may_spill, n_threads
        self._n_blocks = 0
        self._scratch: IO[bytes] | None = None
        self._runs: list[NDArray[np.int64]] = []  # of the file, where each bucket begins, and the end
        self._n_many = max(_MANY * BUCKET_IDS, _MANY * n_expected // self._n_own)
        n_blocks = ceil(min(n_expected, at_once) / BLOCK)
        self._make_room(n_blocks)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Forget them all."""
        self._pool = np.empty(0, dtype=np.uint64)
        if self._scratch is not None:
            self._scratch.close()
            self._scratch = None

    def add_packed(self, records: NDArray[np.uint8], said: NDArray[np.uint8]) -> None:
        """Add the ids of reports.

        Parameters
        ----------
        records : ndarray of shape (n, width), uint8
            The first 16 bytes of each are its id, which is of the share.
        said : ndarray of shape (n,), uint8
            TAKEN where an id is to be added.

        Raises
        ------
        ScratchAway
        """
        keys, begin, _, n_buckets = self._words
        for start in range(0, len(records), _STEP):
            if self._n_free() < self._n_own + _STEP // BLOCK + 1:
                self._relieve()
            some, word = records[start : start + _STEP], said[start : start + _STEP]
            pool, at, owner = self._pool, self._at, self._owner
            self._n_blocks = scatter(some, word, keys, begin, n_buckets, pool, at, owner, self._n_blocks)

    def repeated(self, most: int) -> Iterator[tuple[Share, NDArray[np.uint64]]]:
        """The fingerprints that came more than once, of one part of the share after the other.

        A part ends when it has `most` of them; mostly there is one part. Whoever has the last one can add nothing more.
        """
        order = np.argsort(self._owner[: self._n_blocks], kind="stable")
        cuts = np.searchsorted(self._owner[order], np.arange(self._n_own + 1))
        begin, found, n_found = 0, [np.empty(0, dtype=np.uint64)], 0
        at_once = max(1, min(64, ceil(self._n_own / self._n_threads)))
        with ExitStack() as stack:
            run_all: Callable[..., Iterable[list[NDArray[np.uint64]]]] = map
            if self._n_threads > 1:
                run_all = stack.enter_context(ThreadPoolExecutor(self._n_threads)).map
            for first in range(0, self._n_own, at_once * self._n_threads):
                after = min(self._n_own, first + at_once * self._n_threads)
                ranges = [range(start, min(after, start + at_once)) for start in range(first, after, at_once)]
                for parts in run_all(lambda buckets: self._look_through(buckets, order, cuts), ranges):
                    found += parts
                n_found = sum(each.size for each in found)
                if n_found >= most or after == self._n_own:
                    if after == self._n_own:
                        self.close()
                    whole = self.share
                    yield (
                        Share(whole.begin + begin, whole.begin + after, whole.n_buckets, whole.keys),
                        np.concatenate(found),
                    )
                    begin, found = after, [np.empty(0, dtype=np.uint64)]

    def _look_through(
        self, buckets: range, order: NDArray[np.int64], cuts: NDArray[np.int64]
    ) -> list[NDArray[np.uint64]]:
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
                n_words = _thin_out(words, n_words)
            n_places = 1 << max(8, (_ROOM * n_words - 1).bit_length())
            if tags.size < n_places:
                tags = np.empty(n_places, dtype=np.uint32)
            n_found = look_twice(words[:n_words], tags[:n_places], over)
            if n_found:
                found.append(np.unique(over[:n_found]))
        return found

    def _n_free(self) -> int:
        return self._owner.size - self._n_blocks

    def _make_room(self, n_blocks: int) -> None:
        """Empty buckets, each with a block of its own, and room for more."""
        n_blocks += 2 * self._n_own + _STEP // BLOCK + 2
        self._pool = np.empty(n_blocks * BLOCK, dtype=np.uint64)
        self._owner = np.empty(n_blocks, dtype=np.int64)
        self._empty()

    def _empty(self) -> None:
        self._at = np.arange(self._n_own, dtype=np.uint64) * np.uint64(BLOCK)
        self._owner[: self._n_own] = np.arange(self._n_own)
        self._n_blocks = self._n_own

    def _relieve(self) -> None:
        """Find more room in memory as far as it is allowed, else write what is there to the file."""
        if not self._may_spill or 2 * self._pool.size <= self._at_once:
            n_more = self._owner.size
            self._pool = np.concatenate([self._pool, np.empty(n_more * BLOCK, dtype=np.uint64)])
            self._owner = np.concatenate([self._owner, np.empty(n_more, dtype=np.int64)])
            return
        try:
            self._spill()
        except OSError as error:
            raise ScratchAway(type(error).__name__) from None
        self._empty()

    def _spill(self) -> None:
        if self._scratch is None:
            self._scratch = tempfile.TemporaryFile(prefix="sfumato-")  # noqa: SIM115 - `close` closes it
        order = np.argsort(self._owner[: self._n_blocks], kind="stable")
        cuts = np.searchsorted(self._owner[order], np.arange(self._n_own + 1))
        run = np.empty(self._n_own + 1, dtype=np.int64)
        run[0] = self._runs[-1][-1] if self._runs else 0
        words = np.empty(int(np.diff(cuts).max()) * BLOCK, dtype=np.uint64)
        for bucket in range(self._n_own):
            n_words = gather(self._pool, order[cuts[bucket] : cuts[bucket + 1]], self._at[bucket], words)
            if n_words > self._n_many:
                n_words = _thin_out(words, n_words)
            self._scratch.write(words[:n_words].data)
            run[bucket + 1] = run[bucket] + n_words
        self._scratch.flush()
        self._runs.append(run)

    def _read_back(self, bucket: int, words: NDArray[np.uint64], n_words: int) -> int:
        for run in self._runs:
            begin, n_more = int(run[bucket]), int(run[bucket + 1] - run[bucket])
            _read_fully(self._scratch, words[n_words : n_words + n_more], begin * WORD_BYTES)
            n_words += n_more
        return n_words


def _thin_out(words: NDArray[np.uint64], n_words: int) -> int:
    """Leave two of each fingerprint that came more often, so that one id sent for ever takes no room; how many stay."""
    different, times = np.unique(words[:n_words], return_counts=True)
    left = np.repeat(different, np.minimum(times, 2))
    words[: left.size] = left
    return left.size


def _read_fully(file: IO[bytes] | None, words: NDArray[np.uint64], at: int) -> None:
    assert file is not None  # noqa: S101 - for the type checker: there are runs of it
    left = words.view(np.uint8).data
    while left:
        n_read = os.preadv(file.fileno(), [left], at)
        if n_read == 0:
            raise ScratchAway("its file was cut short")
        left, at = left[n_read:], at + n_read


class Repeats:
    """Says which reports of a share are repeats: their id came before.

    Parameters
    ----------
    share : Share
    suspected : ndarray of shape (n,), uint64
        The fingerprints that came more than once. Reports with others are not looked at.
    """

    def __init__(self, share: Share, suspected: NDArray[np.uint64]) -> None:
        n_bits = max(_MIN_FILTER_BITS, 1 << (_FILTER_BITS * suspected.size).bit_length())
        self._keys = np.array(share.keys, dtype=np.uint64)
        self._filter = np.zeros(n_bits // 64, dtype=np.uint64)
        mark(suspected, self._filter)
        self._ids = IdSet(2 * suspected.size)

    def add_packed(self, records: NDArray[np.uint8], said: NDArray[np.uint8]) -> None:
        """Look at reports, in the log's order.

        Parameters
        ----------
        records : ndarray of shape (n, width), uint8
            The first 16 bytes of each are its id.
        said : ndarray of shape (n,), uint8
            TAKEN where one is to be looked at; `workers.distinct.REPEATED` is said instead of some.
        """
        chosen = np.empty(len(records), dtype=np.int64)
        n_chosen = suspects(records, said, self._keys, self._filter, chosen)
        if n_chosen:
            ids = np.ascontiguousarray(records[chosen[:n_chosen], :_ID_BYTES])
            ids.flags.writeable = False  # as a log's rows are, so that one compiled loop does for both
            repeated = np.full(n_chosen, TAKEN, dtype=np.uint8)
            self._ids.add_packed(ids, repeated)
            said[chosen[:n_chosen]] = repeated
