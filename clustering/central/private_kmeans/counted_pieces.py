"""Clusters that are counted from noisy pieces, and the agreement of refits that count them again.

Another run finds other pieces, and may count another number of clusters from them. Refits repeat both.
"""

from math import sqrt

import numpy as np
from numpy.typing import NDArray

from clustering.central.private_kmeans.cluster_count import ClusterCount, NoisyClusters, count_clusters, merge_pieces
from clustering.central.private_kmeans.repair import Clusters, Step
from clustering.centroids.partition_agreement import (
    REFITS,
    PartitionAgreement,
    Population,
    compare_partitions,
    draw_normal,
)
from clustering.centroids.piece_population import Pieces, match_moments
from clustering.centroids.weighted_kmeans import choose_seeds, lloyd
from clustering.random import PublicWords

POINTS = 3072  # most points of a sample
PER_PIECE = 48
LEAST = 0.25  # least mass that divides noise, in mean masses

_TINY = 1e-30


def shrink_covariances(step: Step) -> Step:
    """Return the step with covariances from which most of the noise is removed.

    Noise of many small pieces exceeds their variances. It would let pieces of one cluster seem separate. So the mean
    shape of all pieces is shrunk to the round one, and each piece to the mean shape. What remains is the share of the
    squared deviation that noise does not explain. The sizes are the estimated spreads, which are shrunk already.
    """
    covariances, m = step.covariances, step.covariances.shape[1]
    weights = np.maximum(step.counts, 1.0) / np.maximum(step.counts, 1.0).sum()
    mean, traces = np.tensordot(weights, covariances, 1), np.trace(covariances, axis1=1, axis2=2) / m
    uneven = _keep(mean[None] - weights @ traces * np.eye(m), weights**2 @ step.covariance_noise**2)[0]
    sizes = step.clusters.spreads**2 / m  # positive, as noisy traces are not
    shapes = (sizes / max(float(weights @ sizes), _TINY))[:, None, None] * uneven
    own = _keep(covariances - traces[:, None, None] * np.eye(m) - shapes, step.covariance_noise**2)
    return step._replace(covariances=sizes[:, None, None] * np.eye(m) + shapes + own)


def _keep(deviations: NDArray[np.float64], variances: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the share of each deviation that noise of its elements does not explain."""
    squares = (deviations**2).sum(axis=(1, 2))
    trust = np.maximum(1 - deviations.shape[1] ** 2 * variances / np.maximum(squares, _TINY), 0.0)
    return np.asarray(trust[:, None, None] * deviations)


def merge_step(step: Step) -> tuple[Clusters, ClusterCount]:
    """Count the clusters of the pieces after a round without a swap, and merge the pieces."""
    found, (k, m) = step.clusters, step.clusters.centres.shape
    variances = np.full(k, step.count_variance)
    pieces = NoisyClusters(found.centres, m * step.centre_variances, step.counts, variances, step.covariances)
    merged = merge_pieces(count := count_clusters(pieces), found.centres, found.masses, found.spreads)
    return Clusters(merged.centres, merged.spreads, merged.masses, merged.spreads), count


def agreement_of_counts(step: Step, own: NDArray[np.float64], words: PublicWords) -> PartitionAgreement:
    """Return the agreement of refits that find pieces in new samples, with new noise, and count the clusters again.

    The released centres are compared with the refits too, because the number of clusters differs between them.

    Parameters
    ----------
    step : Step
        The round after which the clusters were counted, with shrunk covariances. Its noise is that of the refits.
    own : ndarray of shape (n, m)
        Centres of the clusters.
    words : PublicWords
    """
    found, (k, m) = step.clusters, step.clusters.centres.shape
    n = min(PER_PIECE * k, POINTS)
    pieces = Pieces(found.centres, found.masses, step.covariances, step.centre_variances)
    mixture = match_moments(pieces, draw_normal(words, n, m))
    refits = []
    for _ in range(REFITS):
        again = _find_again(step, mixture.draw(draw_normal(words, n, m)), words)
        refits.append(merge_step(shrink_covariances(again))[0].centres)
    sample = mixture.draw(draw_normal(words, n, m))
    return compare_partitions("counts", Population(sample, np.ones(n)), own, refits, with_own=True)


def _find_again(step: Step, sample: NDArray[np.float64], words: PublicWords) -> Step:
    """Return the step of another run, with pieces of this sample and the noise of the step's sums."""
    (k, m), weights = step.clusters.centres.shape, np.ones(len(sample))
    fit = lloyd(sample, weights, choose_seeds(sample, weights, k, words))
    masses = fit.masses * (float(step.clusters.masses.sum()) / len(sample))
    held, before = np.maximum(masses, LEAST * masses.mean()), np.maximum(step.counts, 1.0)
    centre_noise = float(np.median(np.sqrt(step.centre_variances) * before)) / held
    covariance_noise = float(np.median(step.covariance_noise * before)) / held
    covariances = np.empty((len(masses), m, m))
    for j, centre in enumerate(fit.centres):
        away = sample[fit.labels == j] - centre
        covariances[j] = away.T @ away / max(len(away), 1)
    spreads = np.sqrt(np.trace(covariances, axis1=1, axis2=2))
    upper = np.triu(draw_normal(words, *covariances.shape))
    covariances += covariance_noise[:, None, None] * (upper + np.triu(upper, 1).swapaxes(1, 2))
    centres = fit.centres + centre_noise[:, None] * draw_normal(words, *fit.centres.shape)
    counts = masses + sqrt(step.count_variance) * draw_normal(words, len(masses))
    clusters = Clusters(centres, spreads, np.maximum(counts, 1.0), spreads)
    return Step(clusters, centre_noise**2, counts, step.count_variance, covariances, covariance_noise)
