"""The fast Walsh-Hadamard transform."""

import numpy as np
from numba import njit
from numpy.typing import NDArray

_BLOCK = 1 << 12  # int64 that fit a core's first cache


@njit(cache=True, nogil=True)
def walsh_hadamard(x: NDArray[np.int64]) -> None:  # IN and OUT (K,), K a power of two
    """Replace x by y[i] = sum over j of (-1)^popcount(i & j) x[j], in place: K log K additions.

    The short strides are done block by block, while a block lies in the cache; long ones two
    at a time, so that memory is passed over half as often.
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
