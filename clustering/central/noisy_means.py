"""One step of private k-means: noisy sums and counts of disjoint cells, and the means they make."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustering.central.budget import split
from clustering.central.cells import Cells
from clustering.curator import Curator, Shares
from sfumato.specs import LATTICE


class Means(NamedTuple):
    """What a step told of each cell, in [0, 1]^d."""

    places: NDArray[np.float64]  # (k, d), of the noisy means, clipped to the box
    counts: NDArray[np.float64]  # (k,), as answered
    count_variances: NDArray[np.float64]  # (k,)
    errors: NDArray[np.float64]  # (k, d), standard errors of the means by the sums' noise and the counts'


def shares_of(epsilon_nano: int, n_features: int) -> Shares:
    """d parts for the sums to three quarters of one for the counts.

    Su et al. 2016, section 4.1, have (4 d rho^2)^(1/3) for the counts, rho = .225: .74 at d = 2,
    .93 at 4. Raises InvalidSpec where a part is less than one nano-epsilon.
    """
    return Shares(*split(epsilon_nano, 4 * n_features, 3))


def noisy_means(curator: Curator, cells: Cells, anchors: NDArray[np.float64], epsilon_nano: int) -> Means:
    """The means of disjoint cells' records, each as its anchor plus the noisy sum of residuals by the noisy count.

    Parameters
    ----------
    curator : Curator
    cells : Cells
    anchors : ndarray of shape (k, d)
        In [0, 1]^d. A residual longer than d/2 in L1, which is that of a corner from the middle of
        the box, is shrunk to that.
    epsilon_nano : int
        What the step costs.

    Notes
    -----
    One record changes a sum by d/2 at most (by d where the box is [-1, 1]^d), wherever the anchors
    are. With the middle of the box for all of them nothing is ever shrunk: the papers' sums. Counts
    below one count as one, and means are clipped to the box.
    """
    k, d = anchors.shape
    shares = shares_of(epsilon_nano, d)
    places = np.clip(np.floor(anchors * LATTICE), 0, LATTICE - 1).astype(np.int64)
    radius = d * LATTICE // 2
    sums = curator.sums(cells, places, np.full(k, radius, dtype=np.int64), shares)
    sizes = np.maximum(sums.counts, 1)[:, None]
    steps = sums.residuals / sizes
    means = np.clip((places + 0.5 + steps) / LATTICE, 0.0, 1.0)
    sum_variance = curator.variance(radius, shares.residuals) / LATTICE**2
    count_variance = curator.variance(1, shares.counts)
    errors = np.sqrt(sum_variance + (steps / LATTICE) ** 2 * count_variance) / sizes
    return Means(means, sums.counts.astype(np.float64), np.full(k, count_variance), errors)
