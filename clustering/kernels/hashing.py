"""Counting loops over locally hashed reports: which symbols does a public seed send to what was sent?

The hash is that of `sfumato.mechanisms.olh`: v = (a x^2 + b x + c) mod P, P = 2^31 - 1, and
floor(v g / 2^31). A report supports x where v lies in the run that is cut to what it sent.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

_PRIME = (1 << 31) - 1
_SEED_BYTES = 12


@njit(cache=True, nogil=True)
def _little_endian(value: NDArray[np.uint8], begin: int, end: int) -> int:
    number = 0
    for byte in range(end - 1, begin - 1, -1):
        number = number << 8 | value[byte]
    return number


@njit(cache=True, nogil=True)
def _run_start(sent: int, hash_range: int) -> int:
    """The first v that is hashed to `sent`."""
    return ((sent << 31) + hash_range - 1) // hash_range


@njit(cache=True, nogil=True)
def count_hashed(
    slots: NDArray[np.int64],  # IN (n,)
    values: NDArray[np.uint8],  # IN (n, width), as `olh` sends them
    hash_range: int,  # IN g
    symbols: NDArray[np.int32],  # IN (m,), those to count
    counts: NDArray[np.int64],  # OUT (n_slots, m), added to
    reports: NDArray[np.int64],  # OUT (n_slots,), added to
) -> int:
    """Count, of the given symbols, those that each report supports.

    Returns -1, or the index of the first report out of range; those before it are counted.
    """
    n_slots = counts.shape[0]
    for i in range(values.shape[0]):
        slot, value = slots[i], values[i]
        a = _little_endian(value, 0, 4)
        b = _little_endian(value, 4, 8)
        c = _little_endian(value, 8, 12)
        sent = _little_endian(value, _SEED_BYTES, value.size)
        if slot < 0 or slot >= n_slots or max(a, b, c) >= _PRIME or sent >= hash_range:
            return i
        first, after = _run_start(sent, hash_range), _run_start(sent + 1, hash_range)
        row = counts[slot]
        for j in range(symbols.size):
            # Modulo 2^31 - 1, the high bits may be added to the low ones. No branch in here,
            # and no product beyond 2^53: it runs at the vector unit's pace.
            v = a * symbols[j] + b
            v = (v & _PRIME) + (v >> 31)
            v = v * symbols[j] + c
            v = (v & _PRIME) + (v >> 31)
            v = v - _PRIME if v >= _PRIME else v
            row[j] += (v >= first) & (v < after)
        reports[slot] += 1
    return -1
