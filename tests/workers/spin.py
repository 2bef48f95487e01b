"""A kernel that holds a core for as long as anybody likes."""

import numba


@numba.njit(nogil=True, cache=True)
def spin(n: int) -> int:
    """Compute for a hundred years."""
    x = 1
    for _ in range(n):
        x ^= x << 13
        x ^= x >> 7
        x ^= x << 17
    return x
