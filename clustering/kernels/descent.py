"""Directions of descent from former steps, and sums over neighbours on a grid."""

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def descent_direction(
    slope: NDArray[np.float64],  # IN (n,), gradient
    steps: NDArray[np.float64],  # IN (m, n), former steps, a ring
    changes: NDArray[np.float64],  # IN (m, n), changes of the gradient in these steps
    products: NDArray[np.float64],  # IN (m,), products of each step with its change, positive
    n_steps: int,  # number of former steps; the last m are in the ring, step i at i % m
    direction: NDArray[np.float64],  # OUT (n,)
) -> None:
    """Return H g, with H the inverse of the curvature that L-BFGS estimates from former steps.

    The two loops of Nocedal and Wright 2006, "Numerical Optimization", algorithm 7.4. Without former steps, H is 1.
    """
    n_kept = min(n_steps, len(products))
    shares = np.empty(len(products))
    direction[:] = slope
    for back in range(n_kept):
        i = (n_steps - 1 - back) % len(products)
        shares[i] = np.dot(steps[i], direction) / products[i]
        _add(direction, changes[i], -shares[i])
    if n_kept:
        last = (n_steps - 1) % len(products)
        direction *= products[last] / np.dot(changes[last], changes[last])
    for back in range(n_kept - 1, -1, -1):
        i = (n_steps - 1 - back) % len(products)
        _add(direction, steps[i], shares[i] - np.dot(changes[i], direction) / products[i])


@njit(cache=True, nogil=True)
def add_triangles(
    values: NDArray[np.float64],  # IN (blocks, cells * stride), cells along one axis of each block
    stride: int,  # distance of neighbours along the axis
    half_width: int,  # w
    is_circle: bool,  # whether the first and the last cell are neighbours
    sums: NDArray[np.float64],  # OUT, of the shape of `values`
) -> None:
    """Add each cell's values up to its neighbours at a distance of a cells, with the weights 1 - a/w."""
    length = values.shape[1]
    n_cells = length // stride
    farthest = min(half_width - 1, n_cells // 2 if is_circle else n_cells - 1)
    for block in range(len(values)):
        own, total = values[block], sums[block]
        total[:] = own
        for apart in range(1, farthest + 1):
            weight, shift = 1 - apart / half_width, apart * stride
            rest = length - shift
            _add(total[:rest], own[shift:], weight)
            _add(total[shift:], own[:rest], weight)
            if is_circle and 2 * apart != n_cells:  # opposite cells are the same on both ways
                _add(total[rest:], own[:shift], weight)
                _add(total[:shift], own[rest:], weight)


@njit(cache=True, nogil=True)
def _add(total: NDArray[np.float64], values: NDArray[np.float64], weight: float) -> None:
    for i in range(len(total)):
        total[i] += weight * values[i]
