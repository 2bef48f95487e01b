"""One-to-one matching of the clusters of two labellings, and maps on the grid of another one."""

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment


def match(gains: NDArray[np.float64] | NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return the pairs of a row and a column with the greatest total gain, each row and column in one pair at most.

    Pairs without a gain are left out. The assignment algorithm is Crouse 2016 (scipy).

    Parameters
    ----------
    gains : ndarray of shape (n_one, n_other)
        Negative gains count as none.
    """
    useful = np.maximum(gains, 0)
    rows, columns = linear_sum_assignment(useful, maximize=True)
    return [(int(a), int(b)) for a, b in zip(rows, columns, strict=True) if useful[a, b] > 0]


def on_grid(labels: NDArray[np.int64], shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Return a label map over the same box on a grid of another shape: each cell has the label at its middle."""
    if labels.shape == shape:
        return labels
    places = [((np.arange(n) + 0.5) / n * n_own).astype(np.int64) for n, n_own in zip(shape, labels.shape, strict=True)]
    return labels[np.ix_(*places)]
