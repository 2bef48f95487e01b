"""Counting loops over reports."""

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def count_symbols(
    slots: NDArray[np.int64],  # IN (n,)
    values: NDArray[np.uint8],  # IN (n, width), little-endian integers
    counts: NDArray[np.int64],  # OUT (n_slots, n_symbols), added to
    reports: NDArray[np.int64],  # OUT (n_slots,), added to
) -> int:
    """Count the one number each report is: its symbol, or the coefficient and sign of `hr`.

    Returns -1, or the index of the first report out of range; those before it are counted.
    """
    n_slots, n_symbols = counts.shape
    for i in range(values.shape[0]):
        symbol = 0
        for byte in range(values.shape[1] - 1, -1, -1):
            symbol = symbol << 8 | values[i, byte]
        if slots[i] < 0 or slots[i] >= n_slots or symbol >= n_symbols:
            return i
        counts[slots[i], symbol] += 1
        reports[slots[i]] += 1
    return -1


@njit(cache=True, nogil=True)
def count_bits(
    slots: NDArray[np.int64],  # IN (n,)
    values: NDArray[np.uint8],  # IN (n, width), bit i of the little-endian integer names symbol i
    counts: NDArray[np.int64],  # OUT (n_slots, n_symbols), added to
    reports: NDArray[np.int64],  # OUT (n_slots,), added to
) -> int:
    """Count every symbol each report names; bits past the last symbol are not looked at.

    Returns -1, or the index of the first report out of range; those before it are counted.
    """
    n_slots, n_symbols = counts.shape
    n_whole = n_symbols // 8
    for i in range(values.shape[0]):
        slot = slots[i]
        if slot < 0 or slot >= n_slots:
            return i
        row = counts[slot]
        # Adding every bit, set or not, has no branches: it runs at the vector unit's pace.
        for byte in range(n_whole):
            bits = values[i, byte]
            for bit in range(8):
                row[8 * byte + bit] += (bits >> bit) & 1
        for symbol in range(8 * n_whole, n_symbols):
            row[symbol] += (values[i, n_whole] >> (symbol - 8 * n_whole)) & 1
        reports[slot] += 1
    return -1
