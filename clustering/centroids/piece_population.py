"""A population that agrees with the released sizes, centres and covariances of clusters.

A cluster of k-means is cut at its borders. A normal distribution with the same covariance is not, so that a mixture of
them has gaps that even data do not have. The components are therefore moved and widened until the clusters of points
that are drawn from the mixture have the released moments. Two halves of one normal cluster become one cluster again.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustering.centroids.partition_agreement import (
    REFITS,
    PartitionAgreement,
    Population,
    Source,
    compare_partitions,
    draw_normal,
    refit,
)
from clustering.random import PublicWords

POINTS = (1536, 6144)  # least and most points of a sample
PER_CLUSTER = 48
ITERATIONS = 8
LEAST_ALONG = 0.1  # least variance of a cluster along a direction, in mean variances
EVEN = 0.5  # share of the variance of a cluster that is even over all features, if only its spread is known
TOUCHING = 0.35  # standard deviation of a cluster in distances to the nearest centre, if only centres are known
STEP = 0.8  # share of the difference of moments by which a component changes
LEAST_COUNT = 4  # points below which a component does not change


class Pieces(NamedTuple):
    """Released moments of clusters, in any coordinates."""

    centres: NDArray[np.float64]  # (k, m)
    masses: NDArray[np.float64]  # (k,), positive
    covariances: NDArray[np.float64]  # (k, m, m)
    centre_variances: NDArray[np.float64]  # (k,), noise variance per coordinate of a centre


class Mixture(NamedTuple):
    """Normal components."""

    shares: NDArray[np.float64]
    centres: NDArray[np.float64]
    roots: NDArray[np.float64]

    def draw(self, deviates: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return one point for each row of normal deviates."""
        ends = np.cumsum(self.shares)
        n = len(deviates)
        owners = np.searchsorted(ends, (np.arange(n) + 0.5) / n * ends[-1], side="right").clip(max=len(ends) - 1)
        points = np.empty_like(deviates)
        for j, root in enumerate(self.roots):
            own = owners == j
            points[own] = self.centres[j] + deviates[own] @ root.T
        return points


def agreement_of_pieces(
    source: Source, pieces: Pieces, own: NDArray[np.float64], words: PublicWords
) -> PartitionAgreement:
    """Return the agreement of refits to samples from a population with the moments of the pieces.

    Parameters
    ----------
    source : Source
    pieces : Pieces
        The clusters, or pieces that were merged into them.
    own : ndarray of shape (k, m)
        The released centres in the coordinates of the pieces.
    words : PublicWords
    """
    k, m = pieces.centres.shape
    n = int(np.clip(PER_CLUSTER * k, *POINTS))
    mixture = match_moments(pieces, draw_normal(words, n, m))
    refits = []
    for _ in range(REFITS):
        sample = mixture.draw(draw_normal(words, n, m))
        centres = refit(Population(sample, np.ones(n)), own, words)
        noise = np.sqrt(np.resize(pieces.centre_variances, len(centres)))
        refits.append(centres + noise[:, None] * draw_normal(words, *centres.shape))
    sample = mixture.draw(draw_normal(words, n, m))
    return compare_partitions(source, Population(sample, np.ones(n)), own, refits)


def agreement_of_spreads(
    centres: NDArray[np.float64],
    masses: NDArray[np.float64],
    spreads: NDArray[np.float64],
    centre_variances: NDArray[np.float64],
    words: PublicWords,
) -> PartitionAgreement:
    """Return the agreement of refits if only the root mean square distances of clusters are known.

    The agreement is the lower one of two cases. All records together are round (`as_round`). Or half of a cluster's
    variance lies in the directions in which the centres differ: a feature with a dominant scale spreads both centres
    and records.

    Parameters
    ----------
    centres : ndarray of shape (k, d)
    masses : ndarray of shape (k,)
        Positive.
    spreads : ndarray of shape (k,)
    centre_variances : ndarray of shape (k,)
        Noise variance per coordinate.
    words : PublicWords
    """
    d = centres.shape[1]
    axes, between = _main_axes(centres, masses)
    along = (1 - EVEN) * between / max(float(between.sum()), 1e-12) + EVEN / d
    covariances = (spreads**2)[:, None, None] * np.diag(along)
    dominated = Pieces(centres @ axes.T, masses, covariances, centre_variances)
    cases = (as_round(centres, masses, spreads, centre_variances), dominated)
    found = [agreement_of_pieces("spreads", pieces, pieces.centres, words) for pieces in cases]
    return min(found, key=lambda each: each.index)


def as_round(
    centres: NDArray[np.float64],
    masses: NDArray[np.float64],
    spreads: NDArray[np.float64],
    centre_variances: NDArray[np.float64],
) -> Pieces:
    """Return clusters of records that are round all together, as far as the centres permit.

    The clusters are then narrow along the differences of the centres, like the parts of one round cluster. The
    coordinates are those along the differences. The parameters are those of `agreement_of_spreads`.
    """
    d = centres.shape[1]
    axes, between = _main_axes(centres, masses)
    within = float(masses @ spreads**2 / masses.sum())
    along = np.maximum((between.sum() + within) / d - between, LEAST_ALONG * within / d)
    covariances = (spreads**2 / max(within, 1e-12))[:, None, None] * np.diag(along)
    return Pieces(centres @ axes.T, masses, covariances, centre_variances)


def _main_axes(
    centres: NDArray[np.float64], masses: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the directions of the differences of the centres, and the variance of the centres along each."""
    shares = masses / masses.sum()
    away = (centres - shares @ centres) * np.sqrt(shares)[:, None]
    _, lengths, axes = np.linalg.svd(away, full_matrices=False)
    return axes, lengths**2


def agreement_of_errors(
    centres: NDArray[np.float64], masses: NDArray[np.float64], errors: NDArray[np.float64], words: PublicWords
) -> PartitionAgreement:
    """Return the agreement of centres moved by their errors, if nothing but the centres is known.

    Clusters are taken to touch their nearest neighbours.

    Parameters
    ----------
    centres, errors : ndarray of shape (k, d)
    masses : ndarray of shape (k,)
    words : PublicWords
    """
    (k, d), n = centres.shape, POINTS[0]
    squares = ((centres[:, None] - centres) ** 2).sum(axis=2)
    np.fill_diagonal(squares, np.inf)
    widths = TOUCHING * np.sqrt(squares.min(axis=1)) if k > 1 else np.ones(1)
    owners = np.searchsorted(np.cumsum(masses / masses.sum()), words.uniform(n)).clip(max=k - 1)
    points = centres[owners] + widths[owners, None] * draw_normal(words, n, d)
    refits = [centres + errors * draw_normal(words, k, d) for _ in range(REFITS)]
    return compare_partitions("centres", Population(points, np.ones(n)), centres, refits)


def match_moments(pieces: Pieces, deviates: NDArray[np.float64]) -> Mixture:
    """Return the mixture of which the clusters by the nearest centre have the moments of the pieces.

    Parameters
    ----------
    pieces : Pieces
    deviates : ndarray of shape (n, m)
        Normal deviates of the points of which the moments are compared.
    """
    k, m = pieces.centres.shape
    targets = pieces.masses / pieces.masses.sum()
    shares, centres, covariances = targets.copy(), pieces.centres.copy(), pieces.covariances.copy()
    for _ in range(ITERATIONS):
        mixture = Mixture(shares, centres, _roots(covariances))
        points = mixture.draw(deviates)
        squares = (
            ((points[:, None] - pieces.centres) ** 2).sum(axis=2)
            if k * m < 64
            else ((pieces.centres**2).sum(axis=1) - 2 * points @ pieces.centres.T)
        )
        labels = squares.argmin(axis=1)
        counts = np.bincount(labels, minlength=k)
        for j in np.flatnonzero(counts >= LEAST_COUNT):
            own = points[labels == j]
            mean = own.mean(axis=0)
            centres[j] += STEP * (pieces.centres[j] - mean)
            covariances[j] += STEP * (pieces.covariances[j] - (own - mean).T @ (own - mean) / len(own))
        found = counts / len(points)
        shares = np.clip(shares + STEP * (targets - found), targets / 4, None)
        shares /= shares.sum()
    return Mixture(shares, centres, _roots(covariances))


def _roots(covariances: NDArray[np.float64]) -> NDArray[np.float64]:
    values, vectors = np.linalg.eigh(covariances)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 1e-12))[:, None, :])
