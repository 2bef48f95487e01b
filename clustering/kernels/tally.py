"""Loops over packed reports: could the mechanism have produced them, and what do they name?

A row of `records` is one report: whatever stands before `at`, its slot in four bytes, its value
in the rest, integers little-endian. `said` holds a word for each row: TAKEN, or why it is not
counted. What is counted was checked: counting itself looks at no bound.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

TAKEN, MALFORMED = 0, 255  # other words are their writers' own
SLOT_BYTES = 4

FULL = 255  # reports that the bytes of a word can count

_HASH_PRIME = (1 << 31) - 1  # of `sfumato.mechanisms.olh`
_SEED_WORDS = 3

# For each byte a word whose bytes are its bits, the lowest first: adding such words counts eight symbols at once.
_SPREAD = np.array([sum((byte >> bit & 1) << (8 * bit) for bit in range(8)) for byte in range(256)], dtype=np.uint64)


@njit(cache=True, nogil=True)
def _number(records: NDArray[np.uint8], i: int, begin: int, end: int) -> np.int64:  # IN (n, width)
    number = np.int64(0)
    for byte in range(end - 1, begin - 1, -1):
        number = number << 8 | np.int64(records[i, byte])
    return number


@njit(cache=True, nogil=True)
def _slot(records: NDArray[np.uint8], i: int, at: int) -> np.int64:  # IN (n, width); its compiler makes one load of it
    return (
        np.int64(records[i, at])
        | np.int64(records[i, at + 1]) << 8
        | np.int64(records[i, at + 2]) << 16
        | np.int64(records[i, at + 3]) << 24
    )


@njit(cache=True, nogil=True)
def _word(records: NDArray[np.uint8], i: int, at: int) -> np.uint64:  # IN (n, width); one load, too
    low, high = np.uint64(_slot(records, i, at)), np.uint64(_slot(records, i, at + 4))
    return low | high << np.uint64(32)


@njit(cache=True, nogil=True)
def _bits_of(word: np.uint64) -> np.int64:
    """How many bits are set (the compiler knows this form, and takes one instruction for it)."""
    word -= (word >> np.uint64(1)) & np.uint64(0x5555555555555555)
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


@njit(cache=True, nogil=True)
def check_numbers(
    records: NDArray[np.uint8],  # IN (n, width), values of `size` bytes a number
    at: int,
    n_slots: int,
    size: int,
    largest: int,  # of a number
    said: NDArray[np.uint8],  # OUT (n,), TAKEN or MALFORMED
) -> None:
    """Look for slots and numbers out of range: symbols, coefficients with their signs, places of a lattice."""
    width = records.shape[1]
    for i in range(records.shape[0]):
        ok = _slot(records, i, at) < n_slots
        for begin in range(at + SLOT_BYTES, width, size):
            ok &= _number(records, i, begin, begin + size) <= largest
        said[i] = TAKEN if ok else MALFORMED


@njit(cache=True, nogil=True)
def check_bits(
    records: NDArray[np.uint8],  # IN (n, width), bit j of a value names symbol j
    at: int,
    n_slots: int,
    n_symbols: int,
    n_named: int,  # symbols a value names; -1 for any number of them
    said: NDArray[np.uint8],  # OUT (n,), TAKEN or MALFORMED
) -> None:
    """Look for slots out of range, bits past the last symbol, and subsets of another size."""
    begin, width = at + SLOT_BYTES, records.shape[1]
    after_last = 256 >> (8 * (width - begin) - n_symbols)
    whole = begin + (width - begin) // 8 * 8
    for i in range(records.shape[0]):
        ok = (_slot(records, i, at) < n_slots) & (records[i, width - 1] < after_last)
        if n_named >= 0:
            n_set = _bits_of(np.uint64(_number(records, i, whole, width)))
            for byte in range(begin, whole, 8):
                n_set += _bits_of(_word(records, i, byte))
            ok &= n_set == n_named
        said[i] = TAKEN if ok else MALFORMED


@njit(cache=True, nogil=True)
def check_hashed(
    records: NDArray[np.uint8],  # IN (n, width), values as `olh` sends them
    at: int,
    n_slots: int,
    hash_range: int,
    said: NDArray[np.uint8],  # OUT (n,), TAKEN or MALFORMED
) -> None:
    """Look for slots, seeds and hashed symbols out of range."""
    begin, width = at + SLOT_BYTES, records.shape[1]
    for i in range(records.shape[0]):
        ok = _slot(records, i, at) < n_slots
        for part in range(_SEED_WORDS):
            ok &= _slot(records, i, begin + 4 * part) < _HASH_PRIME
        ok &= _number(records, i, begin + 4 * _SEED_WORDS, width) < hash_range
        said[i] = TAKEN if ok else MALFORMED


@njit(cache=True, nogil=True)
def count_numbers(
    records: NDArray[np.uint8],  # IN (n, width), values of one number
    at: int,
    said: NDArray[np.uint8],  # IN (n,)
    counts: NDArray[np.int64],  # OUT (n_slots, n_symbols), added to
    reports: NDArray[np.int64],  # OUT (n_slots,), added to
) -> None:
    """Count the one number each report is: its symbol, or the coefficient and sign of `hr`."""
    width = records.shape[1]
    for i in range(records.shape[0]):
        taken = np.int64(said[i] == TAKEN)  # no branch: of a part of the ids nobody can guess which these are
        slot = _slot(records, i, at) * taken
        counts[slot, _number(records, i, at + SLOT_BYTES, width) * taken] += taken
        reports[slot] += taken


@njit(cache=True, nogil=True)
def count_bits(
    records: NDArray[np.uint8],  # IN (n, width), bit j of a value names symbol j
    at: int,
    said: NDArray[np.uint8],  # IN (n,)
    waiting: NDArray[np.uint64],  # IN OUT (n_slots, ceil(n_symbols / 8)), a byte a symbol
    n_waiting: NDArray[np.int64],  # IN OUT (n_slots,), reports that `waiting` counts
    counts: NDArray[np.int64],  # OUT (n_slots, n_symbols), added to
    reports: NDArray[np.int64],  # OUT (n_slots,), added to
) -> None:
    """Count every symbol each report names, in `waiting` first: `settle_bits` adds what is left there."""
    begin, width = at + SLOT_BYTES, records.shape[1]
    for i in range(records.shape[0]):
        if said[i] != TAKEN:
            continue
        slot = _slot(records, i, at)
        for byte in range(width - begin):
            waiting[slot, byte] += _SPREAD[records[i, begin + byte]]
        n_waiting[slot] += 1
        if n_waiting[slot] == FULL:
            _settle(slot, waiting, n_waiting, counts, reports)


@njit(cache=True, nogil=True)
def settle_bits(
    waiting: NDArray[np.uint64],  # IN OUT (n_slots, ceil(n_symbols / 8)), zero after
    n_waiting: NDArray[np.int64],  # IN OUT (n_slots,), zero after
    counts: NDArray[np.int64],  # OUT (n_slots, n_symbols), added to
    reports: NDArray[np.int64],  # OUT (n_slots,), added to
) -> None:
    """Add what `count_bits` has left waiting."""
    for slot in range(n_waiting.size):
        if n_waiting[slot] > 0:
            _settle(slot, waiting, n_waiting, counts, reports)


@njit(cache=True, nogil=True)
def _settle(
    slot: int | np.int64,
    waiting: NDArray[np.uint64],
    n_waiting: NDArray[np.int64],
    counts: NDArray[np.int64],
    reports: NDArray[np.int64],
) -> None:
    for symbol in range(counts.shape[1]):
        counts[slot, symbol] += np.int64(waiting[slot, symbol >> 3] >> np.uint64(8 * (symbol & 7)) & np.uint64(255))
    waiting[slot] = 0
    reports[slot] += n_waiting[slot]
    n_waiting[slot] = 0


@njit(cache=True, nogil=True)
def read_vectors(
    records: NDArray[np.uint8],  # IN (n, width), values of `size` bytes a feature
    at: int,
    size: int,
    margin: int,  # what each number is above its place
    said: NDArray[np.uint8],  # IN (n,)
    vectors: NDArray[np.int32],  # OUT (number taken, d)
) -> None:
    """The vectors of the reports that are taken, in their order."""
    n_read = 0
    for i in range(records.shape[0]):
        if said[i] == TAKEN:
            for j in range(vectors.shape[1]):
                begin = at + SLOT_BYTES + j * size
                vectors[n_read, j] = _number(records, i, begin, begin + size) - margin
            n_read += 1
