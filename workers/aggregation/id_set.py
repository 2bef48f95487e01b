"""A set of report ids that detects repeated ids."""

import secrets
from math import ceil

import numpy as np
from numba import njit
from numpy.typing import NDArray

from clustering.kernels.counting import TAKEN
from workers.aggregation.duplicate_filter_kernels import load_word

MAX_LOAD = 0.8  # ids per entry of the table: a new id nearly always finds a free entry in its first group

STEP = 1 << 13  # reports per step: about a hundred kilobytes, which stay in the processor's cache
_AHEAD = 128  # cache lines that are prefetched at once

NEW, REPEATED = TAKEN, 1  # statuses of an id

_ID_BYTES = 16
_GROUP = 8  # entries of the table with their marks in one 64-bit word


class IdSet:
    """A set of 16-byte ids in an open-addressed hash table, at 21.3 bytes per id.

    Each entry has a mark of one byte: zero if it is empty, else the high bit and seven bits of the id's hash.
    Eight marks are compared at once, so a new id is usually added without reading another id.

    Parameters
    ----------
    n_expected : int
        Number of ids that fit before the table grows.
    keys : (int, int), optional
        64-bit keys of the hash, random by default, so that a client cannot choose ids that collide. They affect the
        speed only.
    """

    def __init__(self, n_expected: int, *, keys: tuple[int, int] | None = None) -> None:
        self._keys = np.array(keys or secret_words(2), dtype=np.uint64)
        self._n_ids = 0
        self._allocate(n_expected)

    def add(self, ids: NDArray[np.uint64]) -> NDArray[np.uint8]:
        """Add ids of shape (n, 2). Return the status NEW or REPEATED of each, shape (n,)."""
        statuses = np.full(len(ids), NEW, dtype=np.uint8)
        self.add_packed(_octets(ids), statuses)
        return statuses

    def add_packed(self, records: NDArray[np.uint8], statuses: NDArray[np.uint8]) -> None:
        """Add the ids of reports, and set the status of repeated ids to REPEATED.

        Parameters
        ----------
        records : ndarray of shape (n, width), uint8
            The first 16 bytes of a record are its id.
        statuses : ndarray of shape (n,), uint8
            The ids with status NEW are added. Reports with another status are ignored.
        """
        for start in range(0, len(records), STEP):  # small steps, because the ids may be repeated and need no entries
            step = slice(start, start + STEP)
            if self._n_ids + STEP > MAX_LOAD * len(self._table):
                stored = self._table[self._marks.view(np.uint8) != 0]
                self._allocate(2 * self._n_ids + STEP)
                self._add(_octets(stored), np.full(len(stored), NEW, dtype=np.uint8))
            self._n_ids += self._add(records[step], statuses[step])

    def _add(self, records: NDArray[np.uint8], statuses: NDArray[np.uint8]) -> int:
        return add_ids(self._table, self._marks, records, self._keys, statuses)

    def _allocate(self, n_ids: int) -> None:
        n_groups = ceil((n_ids + STEP) / MAX_LOAD / _GROUP) + 1
        self._marks = np.zeros(n_groups, dtype="<u8")
        self._table = np.empty((_GROUP * n_groups, 2), dtype="<u8")


def secret_words(n: int) -> tuple[int, ...]:
    """Return `n` random 64-bit words from the operating system."""
    return tuple(secrets.randbits(64) for _ in range(n))


def _octets(ids: NDArray[np.uint64]) -> NDArray[np.uint8]:
    octets = np.ascontiguousarray(ids, dtype="<u8").view(np.uint8).reshape(-1, _ID_BYTES)
    octets.flags.writeable = False  # like the rows of a log, so that both use the same compiled loops
    return octets


@njit(cache=True, nogil=True)
def _mix(word: np.uint64) -> np.uint64:
    # The finaliser of MurmurHash3: each input bit flips each output bit with probability 1/2.
    word = (word ^ (word >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    word = (word ^ (word >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return word ^ (word >> np.uint64(33))


@njit(cache=True, nogil=True)
def _choose(
    marks: NDArray[np.uint64],  # IN (n_groups,)
    records: NDArray[np.uint8],  # IN (n, width)
    begin: int,
    end: int,
    keys: NDArray[np.uint64],  # IN (2,)
    statuses: NDArray[np.uint8],  # IN (n,)
    mixed: NDArray[np.uint64],  # OUT (_AHEAD + 1,), the hash of each id, and one unused word
    chosen: NDArray[np.int64],  # OUT (_AHEAD,), indices of the ids to add
) -> int:
    """Hash ids, choose the ids to add, and prefetch their marks together, because each is a cache miss."""
    n_groups = np.uint64(marks.size)
    octets, width = records.reshape(-1), np.uint64(records.shape[1])
    for i in range(begin, end):
        at = np.uint64(i) * width
        mixed[i - begin] = _mix(_mix(load_word(octets, at) ^ keys[0]) ^ load_word(octets, at + np.uint64(8)) ^ keys[1])
    n_chosen = 0
    for i in range(begin, end):
        chosen[n_chosen] = i
        n_chosen += statuses[i] == NEW
    fetched = np.uint64(0)
    for j in range(n_chosen):
        fetched |= marks[((mixed[chosen[j] - begin] >> np.uint64(32)) * n_groups) >> np.uint64(32)]
    mixed[_AHEAD] = fetched  # stored, so that the compiler cannot remove the loads
    return n_chosen


@njit(cache=True, nogil=True)
def _lowest_byte(bits: np.uint64) -> np.uint64:
    """Return the index of the lowest byte with its high bit set. No other bits may be set."""
    lowest = (bits & (~bits + np.uint64(1))) >> np.uint64(7)
    return (lowest * np.uint64(0x0001020304050607)) >> np.uint64(56)


@njit(cache=True, nogil=True)
def add_ids(
    table: NDArray[np.uint64],  # IN OUT (8 n_groups, 2), an id in each entry with a mark
    marks: NDArray[np.uint64],  # IN OUT (n_groups,), one byte per entry; at least one is zero
    records: NDArray[np.uint8],  # IN (n, width); each begins with its id
    keys: NDArray[np.uint64],  # IN (2,)
    statuses: NDArray[np.uint8],  # IN OUT (n,), NEW if the id is to be added
) -> int:
    """Add ids to the table, by linear probing over groups of entries. Return the number of ids added."""
    n_groups = np.uint64(marks.size)
    octets, width = records.reshape(-1), np.uint64(records.shape[1])
    ones, highest = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)
    mixed, chosen = np.empty(_AHEAD + 1, dtype=np.uint64), np.empty(_AHEAD, dtype=np.int64)
    n_taken = 0
    for begin in range(0, records.shape[0], _AHEAD):
        end = min(begin + _AHEAD, records.shape[0])
        for j in range(_choose(marks, records, begin, end, keys, statuses, mixed, chosen)):
            i = chosen[j]
            at = np.uint64(i) * width
            low, high = load_word(octets, at), load_word(octets, at + np.uint64(8))
            group = ((mixed[i - begin] >> np.uint64(32)) * n_groups) >> np.uint64(32)
            mark = mixed[i - begin] & np.uint64(0x7F) | np.uint64(0x80)
            while True:
                differs = marks[group] ^ (mark * ones)
                # The high bit of each byte that equals the mark; false positives are rare.
                alike = (differs - ones) & ~differs & highest
                while alike != 0:
                    place = group * np.uint64(8) + _lowest_byte(alike)
                    if table[place, 0] == low and table[place, 1] == high:
                        break
                    alike &= alike - np.uint64(1)
                if alike != 0:
                    statuses[i] = REPEATED
                    break
                free = ~marks[group] & highest
                if free != 0:
                    place = _lowest_byte(free)
                    marks[group] |= mark << (np.uint64(8) * place)
                    table[group * np.uint64(8) + place, 0] = low
                    table[group * np.uint64(8) + place, 1] = high
                    n_taken += 1
                    break
                group += np.uint64(1)
                if group == n_groups:
                    group = np.uint64(0)
    return n_taken
