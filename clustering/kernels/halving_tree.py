"""Records in a tree of halved cells: one level down for those whose node was split."""

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def descend(
    points: NDArray[np.int32],  # IN (n, d), lattice places
    nodes: NDArray[np.int32],  # IN OUT (n,), the node each record is in
    first_child: NDArray[np.int64],  # IN (n_nodes,), the lower half of a node, its upper half is the next; -1 for none
    feature: int,  # IN, which feature is halved
    bit: int,  # IN, which bit of its lattice places tells the halves apart
    counts: NDArray[np.int64],  # IN OUT (n_nodes and their children,), records of every node, added to
) -> None:
    """Move every record whose node has children into one of them, and count it there."""
    for i in range(points.shape[0]):
        child = first_child[nodes[i]]
        if child >= 0:
            child += (points[i, feature] >> bit) & 1
            nodes[i] = child
            counts[child] += 1
