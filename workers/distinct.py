"""A set of report ids: says of each id whether it comes for the first time."""

import secrets
from math import ceil

import numpy as np
from numba import njit
from numpy.typing import NDArray

from clustering.kernels.tally import TAKEN

MAX_LOAD = 0.8  # ids per place: whoever is new finds room in the first group of places nearly always

STEP = 1 << 13  # reports looked at at once: some hundred kilobytes, which stay in the cache between two looks
_AHEAD = 128  # places that are on their way from memory at once

NEW, REPEATED = TAKEN, 1  # what is said of an id

_ID_BYTES = 16
_GROUP = 8  # places whose marks are one word


class IdSet:
    """16-byte ids in an open-addressed table: 21.3 bytes an id.

    Beside the table stands a byte for each place, zero where it is empty, else seven bits of the
    id's hash: eight of them are compared at once, and an id that is new is written without
    another having been read.

    Parameters
    ----------
    n_expected : int
        Ids it has room for before it has to grow.
    keys : (int, int), optional
        64-bit words that scatter ids over places, so that nobody can choose ids that crowd
        together. By default they are drawn; what the set says does not depend on them, only how fast.
    """

    def __init__(self, n_expected: int, *, keys: tuple[int, int] | None = None) -> None:
        self._keys = np.array(keys or secret_words(2), dtype=np.uint64)
        self._n_ids = 0
        self._make_room(n_expected)

    def add(self, ids: NDArray[np.uint64]) -> NDArray[np.uint8]:
        """Add ids of shape (n, 2); NEW or REPEATED for each, shape (n,)."""
        said = np.full(len(ids), NEW, dtype=np.uint8)
        self.add_packed(_octets(ids), said)
        return said

    def add_packed(self, records: NDArray[np.uint8], said: NDArray[np.uint8]) -> None:
        """Add the ids of reports.

        Parameters
        ----------
        records : ndarray of shape (n, width), uint8
            The first 16 bytes of each are its id.
        said : ndarray of shape (n,), uint8
            NEW where an id is to be added; where it is not new, that is said instead. Another
            word stays, and that report's id is not looked at.
        """
        for start in range(0, len(records), STEP):  # few at once: not all of them may be new
            some = slice(start, start + STEP)
            if self._n_ids + STEP > MAX_LOAD * len(self._table):
                held = self._table[self._marks.view(np.uint8) != 0]
                self._make_room(2 * self._n_ids + STEP)
                self._add(_octets(held), np.full(len(held), NEW, dtype=np.uint8))
            self._n_ids += self._add(records[some], said[some])

    def _add(self, records: NDArray[np.uint8], said: NDArray[np.uint8]) -> int:
        return add_ids(self._table, self._marks, records, self._keys, said)

    def _make_room(self, n_ids: int) -> None:
        n_groups = ceil((n_ids + STEP) / MAX_LOAD / _GROUP) + 1
        self._marks = np.zeros(n_groups, dtype="<u8")
        self._table = np.empty((_GROUP * n_groups, 2), dtype="<u8")


def secret_words(n: int) -> tuple[int, ...]:
    """Words of 64 bits that keep whoever chooses ids from knowing where they go."""
    return tuple(secrets.randbits(64) for _ in range(n))


def _octets(ids: NDArray[np.uint64]) -> NDArray[np.uint8]:
    octets = np.ascontiguousarray(ids, dtype="<u8").view(np.uint8).reshape(-1, _ID_BYTES)
    octets.flags.writeable = False  # as those of a log are, so that one compiled loop does for both
    return octets


@njit(cache=True, nogil=True)
def _mix(word: np.uint64) -> np.uint64:
    # The finaliser of MurmurHash3: every bit of the input turns every bit of the output half the time.
    word = (word ^ (word >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    word = (word ^ (word >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return word ^ (word >> np.uint64(33))


@njit(cache=True, nogil=True)
def _half(records: NDArray[np.uint8], i: int, at: int) -> np.uint64:  # IN (n, width); its compiler makes one load of it
    return (
        np.uint64(records[i, at])
        | np.uint64(records[i, at + 1]) << np.uint64(8)
        | np.uint64(records[i, at + 2]) << np.uint64(16)
        | np.uint64(records[i, at + 3]) << np.uint64(24)
        | np.uint64(records[i, at + 4]) << np.uint64(32)
        | np.uint64(records[i, at + 5]) << np.uint64(40)
        | np.uint64(records[i, at + 6]) << np.uint64(48)
        | np.uint64(records[i, at + 7]) << np.uint64(56)
    )


@njit(cache=True, nogil=True)
def _chosen(
    marks: NDArray[np.uint64],  # IN (n_groups,)
    records: NDArray[np.uint8],  # IN (n, width)
    begin: int,
    end: int,
    keys: NDArray[np.uint64],  # IN (2,)
    said: NDArray[np.uint8],  # IN (n,)
    mixed: NDArray[np.uint64],  # OUT (_AHEAD + 1,), each id's hash, and a word nobody reads
    chosen: NDArray[np.int64],  # OUT (_AHEAD,), those that are to be added
) -> int:
    """Hash ids, choose those to add, and have their marks fetched, all of them at once: each would be waited for."""
    n_groups = np.uint64(marks.size)
    for i in range(begin, end):
        mixed[i - begin] = _mix(_mix(_half(records, i, 0) ^ keys[0]) ^ _half(records, i, 8) ^ keys[1])
    n_chosen = 0
    for i in range(begin, end):
        chosen[n_chosen] = i
        n_chosen += said[i] == NEW
    fetched = np.uint64(0)
    for j in range(n_chosen):
        fetched |= marks[((mixed[chosen[j] - begin] >> np.uint64(32)) * n_groups) >> np.uint64(32)]
    mixed[_AHEAD] = fetched  # kept, so that the compiler cannot leave the fetching out
    return n_chosen


@njit(cache=True, nogil=True)
def _place(bits: np.uint64) -> np.uint64:
    """Which byte's highest bit is the lowest that is set; no other bits are."""
    lowest = (bits & (~bits + np.uint64(1))) >> np.uint64(7)
    return (lowest * np.uint64(0x0001020304050607)) >> np.uint64(56)


@njit(cache=True, nogil=True)
def add_ids(
    table: NDArray[np.uint64],  # IN OUT (8 n_groups, 2), ids where there is a mark
    marks: NDArray[np.uint64],  # IN OUT (n_groups,), a byte a place; at least one is zero
    records: NDArray[np.uint8],  # IN (n, width), which begin with their ids
    keys: NDArray[np.uint64],  # IN (2,)
    said: NDArray[np.uint8],  # IN OUT (n,), NEW where an id is to be added
) -> int:
    """Add ids to the table, group after group from the one their hash names; returns how many places were taken."""
    n_groups = np.uint64(marks.size)
    ones, highest = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)
    mixed, chosen = np.empty(_AHEAD + 1, dtype=np.uint64), np.empty(_AHEAD, dtype=np.int64)
    n_taken = 0
    for begin in range(0, records.shape[0], _AHEAD):
        end = min(begin + _AHEAD, records.shape[0])
        for j in range(_chosen(marks, records, begin, end, keys, said, mixed, chosen)):
            i = chosen[j]
            low, high = _half(records, i, 0), _half(records, i, 8)
            group = ((mixed[i - begin] >> np.uint64(32)) * n_groups) >> np.uint64(32)
            mark = mixed[i - begin] & np.uint64(0x7F) | np.uint64(0x80)
            while True:
                differs = marks[group] ^ (mark * ones)
                alike = (differs - ones) & ~differs & highest  # where the mark is, and seldom elsewhere
                while alike != 0:
                    place = group * np.uint64(8) + _place(alike)
                    if table[place, 0] == low and table[place, 1] == high:
                        break
                    alike &= alike - np.uint64(1)
                if alike != 0:
                    said[i] = REPEATED
                    break
                free = ~marks[group] & highest
                if free != 0:
                    place = _place(free)
                    marks[group] |= mark << (np.uint64(8) * place)
                    table[group * np.uint64(8) + place, 0] = low
                    table[group * np.uint64(8) + place, 1] = high
                    n_taken += 1
                    break
                group += np.uint64(1)
                if group == n_groups:
                    group = np.uint64(0)
    return n_taken
