"""Loops over packed reports: checks, counts, local hashing and the fast Walsh-Hadamard transform.

A row of `records` is one packed report. The slot starts at byte `at` and has four bytes; the value fills the rest.
At least N_BEFORE bytes precede the slot; the loops ignore them. Integers are little-endian. `statuses` has one byte
per row: TAKEN, or the reason why the report is not counted. Counting loops do not check bounds, because the check
loops did.

Array indices are unsigned, because numba tests signed indices for negative values and then loads byte by byte.

A locally hashed report has the hash of `sfumato.mechanisms.olh`: v = (a x^2 + b x + c) mod P with P = 2^31 - 1, hashed
to floor(v g / 2^31). A report supports the symbols x with v in the interval of its hash value.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

TAKEN, MALFORMED = 0, 255  # callers define further values
SLOT_BYTES = 4
N_BEFORE = 4  # minimum bytes before the slot, because a number is loaded as the last part of eight bytes

GROUP = 15  # reports that `count_bits` adds at once, the maximum of four bits
N_PLANES = 8  # bits per counter
FULL = 255  # maximum of a counter
BATCH = 256  # locally hashed reports that are counted at once; their four numbers fill 4 KiB

_HASH_PRIME = (1 << 31) - 1  # P; equals that of `sfumato.mechanisms.olh`
_SEED_WORDS = 3


@njit(cache=True, nogil=True)
def _half(octets: NDArray[np.uint8], at: np.uint64) -> np.uint64:  # IN, flat
    # the compiler turns this into one load
    return (
        np.uint64(octets[at])
        | np.uint64(octets[at + np.uint64(1)]) << np.uint64(8)
        | np.uint64(octets[at + np.uint64(2)]) << np.uint64(16)
        | np.uint64(octets[at + np.uint64(3)]) << np.uint64(24)
    )


@njit(cache=True, nogil=True)
def _word(octets: NDArray[np.uint8], at: np.uint64) -> np.uint64:
    # the compiler turns this into one load
    return _half(octets, at) | _half(octets, at + np.uint64(4)) << np.uint64(32)


@njit(cache=True, nogil=True)
def _number(octets: NDArray[np.uint8], end: np.uint64, size: np.uint64) -> np.uint64:
    """Return the number of `size` bytes, at most eight, that ends at `end`. The load includes the bytes before it."""
    return _word(octets, end - np.uint64(8)) >> (np.uint64(64) - np.uint64(8) * size)


@njit(cache=True, nogil=True)
def _bits_of(word: np.uint64) -> np.uint64:
    """Return the number of set bits. The compiler turns this form into one instruction."""
    word -= (word >> np.uint64(1)) & np.uint64(0x5555555555555555)
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return (word * np.uint64(0x0101010101010101)) >> np.uint64(56)


@njit(cache=True, nogil=True)
def check_numbers(
    records: NDArray[np.uint8],  # IN (n, width), `size` bytes per number
    at: int,
    n_slots: int,
    size: int,
    largest: int,  # maximum of a number
    statuses: NDArray[np.uint8],  # OUT (n,), TAKEN or MALFORMED
) -> None:
    """Check that slots and numbers are in range: symbols, signed coefficients or lattice places."""
    octets, width = records.reshape(-1), np.uint64(records.shape[1])
    begin, step = np.uint64(at + SLOT_BYTES), np.uint64(size)
    n_numbers = (width - begin) // step
    for i in range(records.shape[0]):
        start = np.uint64(i) * width
        ok = _half(octets, start + np.uint64(at)) < np.uint64(n_slots)
        for j in range(n_numbers):
            end = start + begin + step * np.uint64(j + 1)
            ok &= _number(octets, end, step) <= np.uint64(largest)
        statuses[i] = TAKEN if ok else MALFORMED


@njit(cache=True, nogil=True)
def check_bits(
    records: NDArray[np.uint8],  # IN (n, width), bit j of a value stands for symbol j
    at: int,
    n_slots: int,
    n_symbols: int,
    n_named: int,  # number of set bits of a value; -1 for any
    statuses: NDArray[np.uint8],  # OUT (n,), TAKEN or MALFORMED
) -> None:
    """Check that slots are in range, no bit follows the last symbol, and subsets have the right size."""
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
        statuses[i] = TAKEN if ok else MALFORMED


@njit(cache=True, nogil=True)
def check_hashed(
    records: NDArray[np.uint8],  # IN (n, width), values in the format of `olh`
    at: int,
    n_slots: int,
    hash_range: int,
    statuses: NDArray[np.uint8],  # OUT (n,), TAKEN or MALFORMED
) -> None:
    """Check that slots, hash seeds and hash values are in range."""
    octets, width = records.reshape(-1), np.uint64(records.shape[1])
    begin = np.uint64(at + SLOT_BYTES)
    size = width - begin - np.uint64(4 * _SEED_WORDS)
    for i in range(records.shape[0]):
        start = np.uint64(i) * width
        ok = _half(octets, start + np.uint64(at)) < np.uint64(n_slots)
        for part in range(_SEED_WORDS):
            ok &= _half(octets, start + begin + np.uint64(4 * part)) < np.uint64(_HASH_PRIME)
        ok &= _number(octets, start + width, size) < np.uint64(hash_range)
        statuses[i] = TAKEN if ok else MALFORMED


@njit(cache=True, nogil=True)
def count_numbers(
    records: NDArray[np.uint8],  # IN (n, width), values that are one number
    at: int,
    statuses: NDArray[np.uint8],  # IN (n,)
    counts: NDArray[np.int64],  # OUT (n_slots, n_symbols), added to
    reports: NDArray[np.int64],  # OUT (n_slots,), added to
) -> None:
    """Count the number of each report: its symbol, or the coefficient and sign of `hr`."""
    octets, width = records.reshape(-1), np.uint64(records.shape[1])
    size = width - np.uint64(at + SLOT_BYTES)
    for i in range(records.shape[0]):
        taken = np.uint64(statuses[i] == TAKEN)  # no branch, because which reports are duplicates is unpredictable
        start = np.uint64(i) * width
        slot = _half(octets, start + np.uint64(at)) * taken
        counts[slot, _number(octets, start + width, size) * taken] += np.int64(taken)
        reports[slot] += np.int64(taken)


@njit(cache=True, nogil=True)
def count_bits(
    records: NDArray[np.uint8],  # IN (n, width), bit j of a value stands for symbol j
    at: int,
    statuses: NDArray[np.uint8],  # IN (n,)
    waiting: NDArray[np.uint64],  # IN OUT (n_slots, GROUP, n_words), unprocessed values
    n_waiting: NDArray[np.uint64],  # IN OUT (n_slots,), reports in `planes` and `waiting` that are not in `counts` yet
    planes: NDArray[np.uint64],  # IN OUT (n_slots, N_PLANES, n_words), bit-sliced counters
    counts: NDArray[np.int64],  # OUT (n_slots, n_symbols), added to
    reports: NDArray[np.int64],  # OUT (n_slots,), added to
) -> None:
    """Count all symbols of each report, 64 symbols at once. `settle_bits` adds the unprocessed values at the end."""
    octets, width = records.reshape(-1), np.uint64(records.shape[1])
    begin = np.uint64(at + SLOT_BYTES)
    n_words, rest = (width - begin) // np.uint64(8), (width - begin) % np.uint64(8)
    for i in range(records.shape[0]):
        if statuses[i] != TAKEN:
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
    n_waiting: NDArray[np.uint64],  # IN OUT (n_slots,), then zero
    planes: NDArray[np.uint64],  # IN OUT (n_slots, N_PLANES, n_words), then zero
    counts: NDArray[np.int64],  # OUT (n_slots, n_symbols), added to
    reports: NDArray[np.int64],  # OUT (n_slots,), added to
) -> None:
    """Add the values that `count_bits` has not processed to the counts."""
    for slot in range(n_waiting.size):
        if n_waiting[slot] > 0:
            _settle(np.uint64(slot), waiting, n_waiting, planes, counts, reports)


@njit(cache=True, nogil=True)
def _add(a: np.uint64, b: np.uint64, c: np.uint64) -> tuple[np.uint64, np.uint64]:
    """Add three bits at each of 64 positions. Return the low and high bits of the sums."""
    either = a ^ b
    return either ^ c, (a & b) | (either & c)


@njit(cache=True, nogil=True)
def _add_group(
    slot: np.uint64,
    x: NDArray[np.uint64],  # IN (n_slots, GROUP, n_words)
    planes: NDArray[np.uint64],  # IN OUT (n_slots, N_PLANES, n_words), added to
) -> None:
    """Sum fifteen words to a four-bit number at each position and add it to the counters."""
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
    """Add the counters and unprocessed values of a slot to its counts."""
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
    records: NDArray[np.uint8],  # IN (n, width), `size` bytes per feature
    at: int,
    size: int,
    margin: int,  # offset of each number above its lattice place
    statuses: NDArray[np.uint8],  # IN (n,)
    vectors: NDArray[np.int32],  # OUT (number of TAKEN reports, d)
) -> None:
    """Read the vectors of the TAKEN reports, in order."""
    octets, width, step = records.reshape(-1), np.uint64(records.shape[1]), np.uint64(size)
    n_read = 0
    for i in range(records.shape[0]):
        if statuses[i] == TAKEN:
            begin = np.uint64(i) * width + np.uint64(at + SLOT_BYTES)
            for j in range(vectors.shape[1]):
                vectors[n_read, j] = np.int64(_number(octets, begin + step * np.uint64(j + 1), step)) - margin
            n_read += 1


@njit(cache=True, nogil=True)
def count_hashed(
    records: NDArray[np.uint8],  # IN (n, width), values in the format of `olh`
    at: int,
    statuses: NDArray[np.uint8],  # IN (n,)
    starts: NDArray[np.uint64],  # IN (g + 1,), least v of each hash value, then P
    waiting: NDArray[np.uint32],  # IN OUT (n_slots, 4, BATCH), polynomials of the unprocessed values
    n_waiting: NDArray[np.uint64],  # IN OUT (n_slots,), unprocessed values
    counts: NDArray[np.int64],  # OUT (n_slots, n_symbols), added to
    reports: NDArray[np.int64],  # OUT (n_slots,), added to
) -> None:
    """Count all symbols that each report supports. `settle_hashed` adds the unprocessed values at the end.

    A report supports the symbols x with w(x) = (v(x) - first) mod P below the length of its interval. A polynomial
    of degree two follows from w(0), its first difference a + b and its second difference 2 a by additions alone.
    """
    octets, width = records.reshape(-1), np.uint64(records.shape[1])
    begin, prime = np.uint64(at + SLOT_BYTES), np.uint64(_HASH_PRIME)
    size = width - begin - np.uint64(4 * _SEED_WORDS)
    for i in range(records.shape[0]):
        if statuses[i] != TAKEN:
            continue
        start = np.uint64(i) * width
        slot, value = _half(octets, start + np.uint64(at)), start + begin
        a, b, c = _half(octets, value), _half(octets, value + np.uint64(4)), _half(octets, value + np.uint64(8))
        sent = _number(octets, start + width, size)
        first = starts[sent]
        place = n_waiting[slot]
        waiting[slot, np.uint64(0), place] = (c + prime - first) % prime
        waiting[slot, np.uint64(1), place] = (a + b) % prime
        waiting[slot, np.uint64(2), place] = np.uint64(2) * a % prime
        waiting[slot, np.uint64(3), place] = starts[sent + np.uint64(1)] - first
        n_waiting[slot] = place + np.uint64(1)
        if n_waiting[slot] == BATCH:
            _settle_batch(waiting[slot], counts[slot])
            reports[slot] += BATCH
            n_waiting[slot] = np.uint64(0)


@njit(cache=True, nogil=True)
def settle_hashed(
    waiting: NDArray[np.uint32],  # IN OUT (n_slots, 4, BATCH)
    n_waiting: NDArray[np.uint64],  # IN OUT (n_slots,), then zero
    counts: NDArray[np.int64],  # OUT (n_slots, n_symbols), added to
    reports: NDArray[np.int64],  # OUT (n_slots,), added to
) -> None:
    """Add the values that `count_hashed` has not processed to the counts."""
    for slot in range(n_waiting.size):
        if n_waiting[slot] > 0:
            waiting[slot, 3, n_waiting[slot] :] = np.uint32(0)  # an empty interval supports nothing
            _settle_batch(waiting[slot], counts[slot])
            reports[slot] += np.int64(n_waiting[slot])
            n_waiting[slot] = np.uint64(0)


@njit(cache=True, nogil=True)
def _plus(x: np.uint32, y: np.uint32) -> np.uint32:
    """Return x + y mod P. A sum below P wraps around when P is subtracted, so the minimum is the remainder."""
    total = np.uint32(x + y)
    return min(total, np.uint32(total - np.uint32(_HASH_PRIME)))


@njit(cache=True, nogil=True)
def _settle_batch(
    polynomials: NDArray[np.uint32],  # IN OUT (4, BATCH): w, its two differences, and the length of the interval
    counts: NDArray[np.int64],  # OUT (n_symbols,), added to
) -> None:
    """Count the symbols of a batch, four at each pass over it, so that w and its difference stay in registers."""
    w, step, change, length = polynomials[0], polynomials[1], polynomials[2], polynomials[3]
    n_whole = np.uint64(counts.size // 4 * 4)
    for j in range(np.uint64(0), n_whole, np.uint64(4)):
        n0 = n1 = n2 = n3 = np.uint32(0)
        for i in range(BATCH):
            k = np.uint64(i)
            v, d, e, end = w[k], step[k], change[k], np.int32(length[k])
            n0 += np.uint32(np.int32(v) < end)
            v, d = _plus(v, d), _plus(d, e)
            n1 += np.uint32(np.int32(v) < end)
            v, d = _plus(v, d), _plus(d, e)
            n2 += np.uint32(np.int32(v) < end)
            v, d = _plus(v, d), _plus(d, e)
            n3 += np.uint32(np.int32(v) < end)
            w[k], step[k] = _plus(v, d), _plus(d, e)
        counts[j] += np.int64(n0)
        counts[j + np.uint64(1)] += np.int64(n1)
        counts[j + np.uint64(2)] += np.int64(n2)
        counts[j + np.uint64(3)] += np.int64(n3)
    for j in range(n_whole, np.uint64(counts.size)):
        n0 = np.uint32(0)
        for i in range(BATCH):
            k = np.uint64(i)
            n0 += np.uint32(np.int32(w[k]) < np.int32(length[k]))
            w[k], step[k] = _plus(w[k], step[k]), _plus(step[k], change[k])
        counts[j] += np.int64(n0)


_BLOCK = 1 << 12  # int64 values that fit into the first-level cache


@njit(cache=True, nogil=True)
def walsh_hadamard(x: NDArray[np.int64]) -> None:  # IN and OUT (K,), K a power of two
    """Replace x by y[i] = sum over j of (-1)^popcount(i & j) x[j], in place, in K log K additions.

    Short strides are processed block by block, while a block is in the cache. Long strides are processed
    in pairs, which halves the passes over memory.
    """
    size = x.size
    block = min(size, _BLOCK)
    for begin in range(0, size, block):
        part = x[begin : begin + block]
        stride = 1
        while stride < block:
            for start in range(0, block, 2 * stride):
                for i in range(start, start + stride):
                    low, high = part[i], part[i + stride]
                    part[i], part[i + stride] = low + high, low - high
            stride *= 2
    stride = block
    while 2 * stride < size:
        for start in range(0, size, 4 * stride):
            for i in range(start, start + stride):
                a, b, c, d = x[i], x[i + stride], x[i + 2 * stride], x[i + 3 * stride]
                x[i], x[i + stride] = a + b + c + d, a - b + c - d
                x[i + 2 * stride], x[i + 3 * stride] = a + b - c - d, a - b - c + d
        stride *= 4
    if stride < size:
        for i in range(stride):
            low, high = x[i], x[i + stride]
            x[i], x[i + stride] = low + high, low - high
