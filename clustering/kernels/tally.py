"""Loops over packed reports: could the mechanism have produced them, and what do they name?

A row of `records` is one report: N_BEFORE bytes or more that are not looked at, from `at` on its slot in four
bytes, its value in the rest, integers little-endian. `said` holds a word for each row: TAKEN, or why it is not
counted. What is counted was checked: counting itself looks at no bound.

Indices are unsigned: numba asks of a signed one whether it is negative, and then loads byte by byte.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

TAKEN, MALFORMED = 0, 255  # other words are their writers' own
SLOT_BYTES = 4
N_BEFORE = 4  # bytes before the slot, at least: a number is loaded with what stands before it, eight bytes in all

GROUP = 15  # reports that `count_bits` adds up at once: as many as four bits count
N_PLANES = 8  # bits of the counters they are added to
FULL = 255  # reports that those count

_HASH_PRIME = (1 << 31) - 1  # of `sfumato.mechanisms.olh`
_SEED_WORDS = 3

_SLOT = np.uint64(0xFFFFFFFF)


@njit(cache=True, nogil=True)
def _half(octets: NDArray[np.uint8], at: np.uint64) -> np.uint64:  # IN, flat; its compiler makes one load of it
    return (
        np.uint64(octets[at])
        | np.uint64(octets[at + np.uint64(1)]) << np.uint64(8)
        | np.uint64(octets[at + np.uint64(2)]) << np.uint64(16)
        | np.uint64(octets[at + np.uint64(3)]) << np.uint64(24)
    )


@njit(cache=True, nogil=True)
def _word(octets: NDArray[np.uint8], at: np.uint64) -> np.uint64:  # one load, too
    return _half(octets, at) | _half(octets, at + np.uint64(4)) << np.uint64(32)


@njit(cache=True, nogil=True)
def _number(octets: NDArray[np.uint8], end: np.uint64, size: np.uint64) -> np.uint64:
    """The number of `size` bytes, at most eight, that ends there; the bytes before it are loaded with it."""
    return _word(octets, end - np.uint64(8)) >> (np.uint64(64) - np.uint64(8) * size)


@njit(cache=True, nogil=True)
def _bits_of(word: np.uint64) -> np.uint64:
    """How many bits are set (the compiler knows this form, and takes one instruction for it)."""
    word -= (word >> np.uint64(1)) & np.uint64(0x5555555555555555)
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return (word * np.uint64(0x0101010101010101)) >> np.uint64(56)


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
    octets, width = records.reshape(-1), np.uint64(records.shape[1])
    begin, step = np.uint64(at + SLOT_BYTES), np.uint64(size)
    n_numbers = (width - begin) // step
    for i in range(records.shape[0]):
        start = np.uint64(i) * width
        ok = _half(octets, start + np.uint64(at)) < np.uint64(n_slots)
        for j in range(n_numbers):
            end = start + begin + step * np.uint64(j + 1)
            ok &= _number(octets, end, step) <= np.uint64(largest)
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
    octets, width = records.reshape(-1), np.uint64(records.shape[1])
    begin = np.uint64(at + SLOT_BYTES)
    n_words, rest = (width - begin) // np.uint64(8), (width - begin) % np.uint64(8)
    after_last = 256 >> (8 * (records.shape[1] - at - SLOT_BYTES) - n_symbols)
    for i in range(records.shape[0]):
        start = np.uint64(i) * width
        end = start + width
        ok = (_half(octets, start + np.uint64(at)) < np.uint64(n_slots)) & (octets[end - np.uint64(1)] < after_last)
        if n_named >= 0:
            n_set = _bits_of(_number(octets, end, rest)) if rest > 0 else np.uint64(0)
            for j in range(n_words):
                n_set += _bits_of(_word(octets, start + begin + np.uint64(8) * np.uint64(j)))
            ok &= n_set == np.uint64(n_named)
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
    octets, width = records.reshape(-1), np.uint64(records.shape[1])
    begin = np.uint64(at + SLOT_BYTES)
    size = width - begin - np.uint64(4 * _SEED_WORDS)
    for i in range(records.shape[0]):
        start = np.uint64(i) * width
        ok = _half(octets, start + np.uint64(at)) < np.uint64(n_slots)
        for part in range(_SEED_WORDS):
            ok &= _half(octets, start + begin + np.uint64(4 * part)) < np.uint64(_HASH_PRIME)
        ok &= _number(octets, start + width, size) < np.uint64(hash_range)
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
    octets, width = records.reshape(-1), np.uint64(records.shape[1])
    size = width - np.uint64(at + SLOT_BYTES)
    for i in range(records.shape[0]):
        taken = np.uint64(said[i] == TAKEN)  # no branch: of a part of the ids nobody can guess which these are
        start = np.uint64(i) * width
        slot = _half(octets, start + np.uint64(at)) * taken
        counts[slot, _number(octets, start + width, size) * taken] += np.int64(taken)
        reports[slot] += np.int64(taken)


@njit(cache=True, nogil=True)
def count_bits(
    records: NDArray[np.uint8],  # IN (n, width), bit j of a value names symbol j
    at: int,
    said: NDArray[np.uint8],  # IN (n,)
    waiting: NDArray[np.uint64],  # IN OUT (n_slots, GROUP, n_words), values as they came
    n_waiting: NDArray[np.uint64],  # IN OUT (n_slots,), reports that are in `planes` and `waiting` alone
    planes: NDArray[np.uint64],  # IN OUT (n_slots, N_PLANES, n_words), counters whose bits lie apart
    counts: NDArray[np.int64],  # OUT (n_slots, n_symbols), added to
    reports: NDArray[np.int64],  # OUT (n_slots,), added to
) -> None:
    """Count every symbol each report names, a word of 64 symbols at once; `settle_bits` adds what is left waiting."""
    octets, width = records.reshape(-1), np.uint64(records.shape[1])
    begin = np.uint64(at + SLOT_BYTES)
    n_words, rest = (width - begin) // np.uint64(8), (width - begin) % np.uint64(8)
    for i in range(records.shape[0]):
        if said[i] != TAKEN:
            continue
        start = np.uint64(i) * width
        slot = _half(octets, start + np.uint64(at))
        place = n_waiting[slot] % np.uint64(GROUP)
        for j in range(n_words):
            waiting[slot, place, np.uint64(j)] = _word(octets, start + begin + np.uint64(8) * np.uint64(j))
        if rest > 0:
            waiting[slot, place, n_words] = _number(octets, start + width, rest)
        n_waiting[slot] += np.uint64(1)
        if place == GROUP - 1:
            _add_group(slot, waiting, planes)
            if n_waiting[slot] == FULL:
                _settle(slot, waiting, n_waiting, planes, counts, reports)


@njit(cache=True, nogil=True)
def settle_bits(
    waiting: NDArray[np.uint64],  # IN OUT (n_slots, GROUP, n_words)
    n_waiting: NDArray[np.uint64],  # IN OUT (n_slots,), zero after
    planes: NDArray[np.uint64],  # IN OUT (n_slots, N_PLANES, n_words), zero after
    counts: NDArray[np.int64],  # OUT (n_slots, n_symbols), added to
    reports: NDArray[np.int64],  # OUT (n_slots,), added to
) -> None:
    """Add what `count_bits` has left waiting."""
    for slot in range(n_waiting.size):
        if n_waiting[slot] > 0:
            _settle(np.uint64(slot), waiting, n_waiting, planes, counts, reports)


@njit(cache=True, nogil=True)
def _add(a: np.uint64, b: np.uint64, c: np.uint64) -> tuple[np.uint64, np.uint64]:
    """Three bits at each of 64 places: their sum's low bit and its high one."""
    either = a ^ b
    return either ^ c, (a & b) | (either & c)


@njit(cache=True, nogil=True)
def _add_group(
    slot: np.uint64,
    x: NDArray[np.uint64],  # IN (n_slots, GROUP, n_words)
    planes: NDArray[np.uint64],  # IN OUT (n_slots, N_PLANES, n_words), added to
) -> None:
    """Fifteen words to a number of four bits at each place, which is added to the counters."""
    none = np.uint64(0)
    for word in range(planes.shape[2]):
        j = np.uint64(word)
        a0, b0 = _add(x[slot, np.uint64(0), j], x[slot, np.uint64(1), j], x[slot, np.uint64(2), j])
        a1, b1 = _add(x[slot, np.uint64(3), j], x[slot, np.uint64(4), j], x[slot, np.uint64(5), j])
        a2, b2 = _add(x[slot, np.uint64(6), j], x[slot, np.uint64(7), j], x[slot, np.uint64(8), j])
        a3, b3 = _add(x[slot, np.uint64(9), j], x[slot, np.uint64(10), j], x[slot, np.uint64(11), j])
        a4, b4 = _add(x[slot, np.uint64(12), j], x[slot, np.uint64(13), j], x[slot, np.uint64(14), j])
        a0, b5 = _add(a0, a1, a2)
        ones, b6 = _add(a0, a3, a4)
        b0, c0 = _add(b0, b1, b2)
        b3, c1 = _add(b3, b4, b5)
        twos, c2 = _add(b0, b3, b6)
        fours, eights = _add(c0, c1, c2)
        planes[slot, np.uint64(0), j], carry = _add(planes[slot, np.uint64(0), j], ones, none)
        planes[slot, np.uint64(1), j], carry = _add(planes[slot, np.uint64(1), j], twos, carry)
        planes[slot, np.uint64(2), j], carry = _add(planes[slot, np.uint64(2), j], fours, carry)
        planes[slot, np.uint64(3), j], carry = _add(planes[slot, np.uint64(3), j], eights, carry)
        for plane in range(4, N_PLANES):
            planes[slot, np.uint64(plane), j], carry = _add(planes[slot, np.uint64(plane), j], carry, none)


@njit(cache=True, nogil=True)
def _settle(
    slot: np.uint64,
    waiting: NDArray[np.uint64],
    n_waiting: NDArray[np.uint64],
    planes: NDArray[np.uint64],
    counts: NDArray[np.int64],
    reports: NDArray[np.int64],
) -> None:
    n_left = n_waiting[slot] % np.uint64(GROUP)
    if n_left > 0:
        waiting[slot, n_left:] = np.uint64(0)
        _add_group(slot, waiting, planes)
    n_symbols = np.uint64(counts.shape[1])
    for word in range(planes.shape[2]):
        first = np.uint64(64) * np.uint64(word)
        for plane in range(N_PLANES):
            bits = planes[slot, np.uint64(plane), np.uint64(word)]
            for j in range(min(np.uint64(64), n_symbols - first)):
                bit = bits >> np.uint64(j) & np.uint64(1)
                counts[slot, first + np.uint64(j)] += np.int64(bit << np.uint64(plane))
            planes[slot, np.uint64(plane), np.uint64(word)] = np.uint64(0)
    reports[slot] += np.int64(n_waiting[slot])
    n_waiting[slot] = np.uint64(0)


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
    octets, width, step = records.reshape(-1), np.uint64(records.shape[1]), np.uint64(size)
    n_read = 0
    for i in range(records.shape[0]):
        if said[i] == TAKEN:
            begin = np.uint64(i) * width + np.uint64(at + SLOT_BYTES)
            for j in range(vectors.shape[1]):
                vectors[n_read, j] = np.int64(_number(octets, begin + step * np.uint64(j + 1), step)) - margin
            n_read += 1
