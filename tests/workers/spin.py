"""A kernel that keeps a core busy without end."""

import numba


@numba.njit(nogil=True, cache=True)
def spin(n: int) -> int:
    """Compute practically without end."""
    x = 1
    for _ in range(n):
        x ^= x << 13
        x ^= x >> 7
        x ^= x << 17
    return x
