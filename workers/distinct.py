"""A set of report ids: says of each id whether it comes for the first time."""

import secrets
from math import ceil

import numpy as np
from numba import njit
from numpy.typing import NDArray

MAX_LOAD = 0.875  # ids per place: an insertion looks at 4.5 places on average, in one or two cache lines

_STEP = 4096  # ids added at once

NEW, REPEATED, ELSEWHERE = 0, 1, 2  # what is said of an id


class IdSet:
    """16-byte ids in an open-addressed table: 18.3 bytes an id.

    It may hold one part of `n_parts` only, for a log whose ids do not fit into memory at
    once: an id always belongs to the same part.

    Parameters
    ----------
    n_expected : int
        Ids it has room for before it has to grow.
    part, n_parts : int
        Which ids it holds; the others are ELSEWHERE.
    keys : (int, int), optional
        64-bit words that scatter ids over places and parts, so that nobody can choose ids
        that crowd together. By default they are drawn; what the set says does not depend
        on them, only how fast. All parts of one log need the same keys.
    """

    def __init__(
        self, n_expected: int, *, part: int = 0, n_parts: int = 1, keys: tuple[int, int] | None = None
    ) -> None:
        self._keys = np.array(keys or new_keys(), dtype=np.uint64)
        self._part = (np.uint64(part), np.uint64(n_parts))
        self._table = _empty_table(n_expected)
        self._n_ids = 0
        self._has_zero = np.zeros(1, dtype=np.bool_)  # zeros mark an empty place, so that id is kept aside

    def add(self, ids: NDArray[np.uint64]) -> NDArray[np.uint8]:
        """Add ids of shape (n, 2); NEW, REPEATED or ELSEWHERE for each, shape (n,)."""
        said = np.empty(len(ids), dtype=np.uint8)
        for start in range(0, len(ids), _STEP):  # few at once: not all of them may be new, or of this part
            some = slice(start, start + _STEP)
            if self._n_ids + _STEP > MAX_LOAD * len(self._table):
                self._grow(2 * self._n_ids + _STEP)
            self._n_ids += add_ids(self._table, self._has_zero, ids[some], self._keys, *self._part, said[some])
        return said

    def _grow(self, n_ids: int) -> None:
        held = self._table[self._table.any(axis=1)]
        self._table = _empty_table(n_ids)
        add_ids(self._table, self._has_zero, held, self._keys, *self._part, np.empty(len(held), dtype=np.uint8))


def new_keys() -> tuple[int, int]:
    """Fresh keys for `IdSet`."""
    return secrets.randbits(64), secrets.randbits(64)


def _empty_table(n_ids: int) -> NDArray[np.uint64]:
    return np.zeros((ceil((n_ids + _STEP) / MAX_LOAD) + 1, 2), dtype=np.uint64)


@njit(cache=True, nogil=True)
def _mix(word: np.uint64) -> np.uint64:
    # The finaliser of MurmurHash3: every bit of the input turns every bit of the output half the time.
    word = (word ^ (word >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    word = (word ^ (word >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return word ^ (word >> np.uint64(33))


@njit(cache=True, nogil=True)
def add_ids(
    table: NDArray[np.uint64],  # IN, OUT (n_places, 2), zeros where empty, at least one place empty
    has_zero: NDArray[np.bool_],  # IN, OUT (1,), whether the id of zeros was added
    ids: NDArray[np.uint64],  # IN (n, 2)
    keys: NDArray[np.uint64],  # IN (2,)
    part: np.uint64,
    n_parts: np.uint64,
    said: NDArray[np.uint8],  # OUT (n,)
) -> int:
    """Add ids to the table by linear probing; returns how many places were taken."""
    n_places = np.uint64(table.shape[0])
    n_taken = 0
    for i in range(ids.shape[0]):
        low, high = ids[i, 0], ids[i, 1]
        mixed = _mix(_mix(low ^ keys[0]) ^ high ^ keys[1])
        if mixed % n_parts != part:
            said[i] = ELSEWHERE
            continue
        if low == 0 and high == 0:
            said[i] = REPEATED if has_zero[0] else NEW
            has_zero[0] = True
            continue
        place = (mixed // n_parts) % n_places
        while (table[place, 0] != 0 or table[place, 1] != 0) and (table[place, 0] != low or table[place, 1] != high):
            place += np.uint64(1)
            if place == n_places:
                place = np.uint64(0)
        if table[place, 0] == low and table[place, 1] == high:
            said[i] = REPEATED
        else:
            table[place, 0], table[place, 1] = low, high
            said[i] = NEW
            n_taken += 1
    return n_taken
