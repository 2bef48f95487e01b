"""The number of clusters, from more noisy clusters than there are. It depends on query answers only.

Pieces of one cluster touch: their centres are near, compared with the pieces' own extent along the line
between them. For the halves of a normal or even distribution, the squared distance is 3 to 6 times the
sum of the two variances. The nearest pieces are merged first. The ratio of each merger, sorted by its
order, jumps where separate clusters would be merged. Source: this project, decision 0026.
"""

from math import log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sfumato.model.precision import Verdict

MOST = 64  # largest number of pieces
RECORDS = 200.0  # N epsilon per piece

CLEAR = 4.0  # standard deviations of a count above which a piece is a part of a cluster
LEAST_SHARE = 0.25  # least count of such a piece, in mean pieces

TOUCHING = 6.0  # ratio of pieces of one cluster
SEPARATE = 10.0  # least ratio of two clusters
LEAST_VARIANCE = 0.1  # least variance along a line, in mean variances
JOINED = 15.0  # largest ratio of a merger; beyond it, separate clusters would be joined
NOISE = 2.0  # weight of the noise of the centres in their squared distance
SIMILAR = 0.25  # a number of clusters is possible if its jump is this share of the largest one, in logarithms

NEAR_MOST = 0.75  # share of the pieces from which there may be more clusters than pieces
LEAST_JUMP = 1.7  # least factor of a jump; pieces of one skewed cluster have ratios that grow gradually
FEW, LEAST_JUMP_OF_FEW = 8, 2.0  # number of clusters, up to it the least factor: a skewed cluster is divided into few
CLEAR_JUMP = 2.0  # least factor of a jump for a reliable number
CLOSE = 1.1  # largest ratio of the interval's ends for a reliable number
WIDE = 1.5  # largest one for an uncertain number

_TINY = 1e-15


class NoisyClusters(NamedTuple):
    """Noisy clusters, in feature ranges."""

    centres: NDArray[np.float64]  # (k, d)
    centre_noise: NDArray[np.float64]  # (k,), squared distance by which noise moves each centre
    counts: NDArray[np.float64]  # (k,)
    count_variances: NDArray[np.float64]  # (k,)
    covariances: NDArray[np.float64]  # (k, d, d)


class ClusterCount(NamedTuple):
    """The number of clusters with an interval."""

    groups: NDArray[np.int64]  # (k,), cluster of each piece, 0 .. n_clusters-1, or -1 for pieces that may be noise
    lower: int
    upper: int
    n_pieces: int  # number of pieces that were sought
    jump: float  # factor by which the ratio of mergers jumps beyond this number; 1 if there is one cluster
    best: Verdict = Verdict.RELIABLE  # best possible verdict

    @property
    def n_clusters(self) -> int:
        """Return the number of clusters, at least 1."""
        return max(int(self.groups.max(initial=-1)) + 1, 1)

    @property
    def verdict(self) -> Verdict:
        """Return the quality of the number. It is doubtful for one cluster and near the number of pieces."""
        if self.n_clusters == 1 or self.n_clusters > NEAR_MOST * self.n_pieces or self.upper > WIDE * self.lower:
            return Verdict.DOUBTFUL
        is_clear = self.jump >= CLEAR_JUMP and self.upper <= CLOSE * self.lower
        return self.best if is_clear else Verdict.UNCERTAIN

    def describe(self) -> tuple[str, ...]:
        """Return the limitations of the number as sentences."""
        n = self.n_clusters
        if n > NEAR_MOST * self.n_pieces:
            most = f"At this epsilon, the records support a search for at most {self.n_pieces} clusters"
            return (f"{most}, so there may be more than {n}.",)
        if n == 1:
            return ("No two separate clusters were found, so there is one cluster. There may be clusters that touch.",)
        if self.verdict is Verdict.RELIABLE:
            return ()
        interval = f": {self.lower} to {self.upper} are plausible" if self.lower < self.upper else ""
        return (f"The number of clusters is uncertain{interval}.",)


def choose_pieces(n_records: float, epsilon: float) -> int:
    """Return the number of pieces to seek, 2..64.

    Parameters
    ----------
    n_records : float
        Noisy number of records.
    epsilon : float
        Divided by the maximum number of records per user.
    """
    return int(min(max(n_records * epsilon / RECORDS, 2), MOST))


def count_clusters(pieces: NoisyClusters) -> ClusterCount:
    """Merge noisy clusters that touch, and count the results.

    Parameters
    ----------
    pieces : NoisyClusters
        At least as many as there are clusters.

    Returns
    -------
    ClusterCount
        One cluster without clear pieces, if all pieces touch, or if no jump of the ratios is clear.
    """
    n_pieces = len(pieces.counts)
    deviations = np.sqrt(pieces.count_variances)
    mean = max(float(pieces.counts.sum()), 1.0) / n_pieces
    (kept,) = np.nonzero(pieces.counts > np.maximum(CLEAR * deviations, LEAST_SHARE * mean))
    groups = np.full(n_pieces, -1, dtype=np.int64)
    if len(kept) == 0:
        return ClusterCount(groups, 1, n_pieces, n_pieces, 1.0)
    ratios, mergers = _merge_all(NoisyClusters(*(part[kept] for part in pieces)))
    jumps = _find_jumps(ratios)
    least = np.where(np.arange(len(jumps)) < FEW, log(LEAST_JUMP_OF_FEW), log(LEAST_JUMP))
    n_clusters = 1 + int(np.where(jumps >= least, jumps, 0.0).argmax())
    labels = np.arange(len(kept))
    for into, gone in mergers[: len(kept) - n_clusters]:
        labels[labels == gone] = into
    groups[kept] = np.unique(labels, return_inverse=True)[1]
    if n_clusters == 1:
        upper = 1 + int((np.maximum.accumulate(ratios) > TOUCHING).sum())
        return ClusterCount(groups, 1, upper, n_pieces, 1.0)
    (possible,) = np.nonzero(jumps >= SIMILAR * jumps.max())
    return ClusterCount(
        groups, int(possible[0]) + 1, int(possible[-1]) + 1, n_pieces, float(np.exp(jumps[n_clusters - 1]))
    )


class MergedClusters(NamedTuple):
    """Clusters of merged pieces."""

    centres: NDArray[np.float64]  # (n, d)
    masses: NDArray[np.float64]  # (n,), number of records
    spreads: NDArray[np.float64]  # (n,), root mean square distance of a cluster's records


def merge_pieces(
    count: ClusterCount, centres: NDArray[np.float64], masses: NDArray[np.float64], spreads: NDArray[np.float64]
) -> MergedClusters:
    """Merge the pieces of each cluster. If all pieces may be noise, they are one cluster.

    Parameters
    ----------
    count : ClusterCount
    centres : ndarray of shape (k, d)
    masses : ndarray of shape (k,)
        Positive.
    spreads : ndarray of shape (k,)
    """
    groups = count.groups if (count.groups >= 0).any() else np.zeros_like(count.groups)
    shares = np.where(groups == np.arange(count.n_clusters)[:, None], masses, 0.0)
    totals = shares.sum(axis=1)
    shares /= totals[:, None]
    merged = shares @ centres
    squares = spreads**2 + ((centres - merged[groups]) ** 2).sum(axis=1)
    return MergedClusters(merged, totals, np.sqrt(shares @ squares))


def _find_jumps(ratios: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the logarithm of the jump beyond each number of clusters, 1..k, from the ratios of k-1 mergers.

    All are 0 if no merger joins separate clusters. That of one cluster is always 0, and that of a number which needs a
    merger beyond `JOINED`: a large jump between a large cluster and many small ones is not the only one.
    """
    highest = np.maximum.accumulate(np.maximum(np.concatenate([[TOUCHING], ratios]), TOUCHING))
    jumps = np.zeros(len(ratios) + 1)
    if highest[-1] >= SEPARATE:
        jumps[1:] = np.where(highest[:-1] <= JOINED, np.diff(np.log(highest)), 0.0)[::-1]
    return jumps


def _merge_all(pieces: NoisyClusters) -> tuple[NDArray[np.float64], list[tuple[int, int]]]:
    """Merge the two nearest clusters until one is left. Return each merger's ratio and its two pieces."""
    centres, noise, counts, _, covariances = (part.copy() for part in pieces)
    k, d = centres.shape
    pooled = float(counts @ np.trace(covariances, axis1=1, axis2=2)) / (d * float(counts.sum()))
    least = max(LEAST_VARIANCE * pooled, _TINY)
    ratios = np.full((k, k), np.inf)

    def compare(i: int, others: NDArray[np.int64]) -> NDArray[np.float64]:
        lines = centres[others] - centres[i]
        squares = (lines**2).sum(axis=1)
        units = lines / np.sqrt(squares + _TINY)[:, None]
        own = np.einsum("nd,de,ne->n", units, covariances[i], units)
        other = np.einsum("nd,nde,ne->n", units, covariances[others], units)
        squares = np.maximum(squares - NOISE * (noise[i] + noise[others]), 0.0)
        return np.asarray(squares / (np.maximum(own, least) + np.maximum(other, least)))

    for i in range(1, k):
        ratios[i, :i] = compare(i, np.arange(i))
    found, mergers, left = [], [], np.ones(k, dtype=np.bool_)
    for _ in range(k - 1):
        gone, into = (int(place) for place in np.unravel_index(ratios.argmin(), ratios.shape))
        found.append(float(ratios[gone, into]))
        mergers.append((into, gone))
        total = counts[into] + counts[gone]
        own, other = counts[into] / total, counts[gone] / total
        line = centres[gone] - centres[into]
        covariances[into] = own * covariances[into] + other * covariances[gone] + own * other * np.outer(line, line)
        centres[into] += other * line
        noise[into] = own**2 * noise[into] + other**2 * noise[gone]
        counts[into], left[gone] = total, False
        ratios[gone] = ratios[:, gone] = np.inf
        (others,) = np.nonzero(left & (np.arange(k) != into))
        renewed = compare(into, others)
        lower = others < into
        ratios[into, others[lower]], ratios[others[~lower], into] = renewed[lower], renewed[~lower]
    return np.array(found), mergers
