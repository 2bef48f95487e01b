"""Lloyd steps in a concentrated block that also move centres from where two share a cluster to where one has two.

A step releases three values per cluster: the sum of clipped residuals, the number of records, and the
products of residuals. The products show in which direction a cluster is longer than the noise explains.
All else is post-processing.
"""

from math import sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustering.central.cells import from_places
from clustering.central.gaussian_block import ConcentratedBlock, Rho
from clustering.central.private_kmeans.private_lloyd import LEAST_OF_FORMER, trust_moves

RADIUS = (1.3, 3.0)  # smallest and largest radius in root mean square distances
RADIUS_NOISE = 0.03  # noise of a move, in root mean square distances, over which the radius is their ratio
RADIUS_GROWTH = 1.5  # maximum factor from round to round
LEAST_RADIUS = 0.3  # smallest radius, in smallest radii of the pooled spread
SPREAD_PRIOR = 0.5  # prior deviation of clusters' mean squares, in pooled mean squares
SPREAD_RANGE = (0.04, 6.0)  # limits of clusters' mean squares, in pooled mean squares
EMPTY = 9.0  # a cluster is empty below one deviation of its count, or below this many mean clusters
EDGE = 0.5  # largest eigenvalue of noise, in deviations beyond sqrt(d)
SWAP = 1.3  # least ratio of the gain of a split to the cost of a merger
APART = 0.8  # distance of both halves of a split cluster from its centre, in deviations along its direction

_TINY = 1e-12


class Clusters(NamedTuple):
    """Clusters between two steps, in feature ranges."""

    centres: NDArray[np.float64]  # (k, d)
    radii: NDArray[np.float64]  # (k,)
    masses: NDArray[np.float64]  # (k,), number of records
    spreads: NDArray[np.float64]  # (k,), root mean square distance of a cluster's records


class Step(NamedTuple):
    """The clusters after a step, and the noise of the step's answers."""

    clusters: Clusters
    centre_variances: NDArray[np.float64]  # (k,), noise variance per coordinate
    counts: NDArray[np.float64]  # (k,), noisy
    count_variance: float
    covariances: NDArray[np.float64]  # (k, d, d), noisy; empty if the step has no products
    covariance_noise: NDArray[np.float64]  # (k,), standard deviation of an element; empty likewise


def choose_radii(
    spreads: NDArray[np.float64], noise: float, masses: NDArray[np.float64], least: float
) -> NDArray[np.float64]:
    """Return clip radii: wide if the noise of a move is small.

    Parameters
    ----------
    spreads : ndarray of shape (k,)
        Root mean square distances.
    noise : float
        Expected norm of the noise of a sum of residuals at radius 1.
    masses : ndarray of shape (k,)
    least : float
        Smallest radius in root mean square distances.
    """
    return np.asarray(spreads * np.clip(RADIUS_NOISE * masses / max(noise, _TINY), least, RADIUS[1]))


def mix_variances(
    trust: NDArray[np.float64], noise: NDArray[np.float64], before: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the variances of centres that moved by a share `trust` of a noisy move, from those before it."""
    return np.asarray((1 - trust) ** 2 * before + trust**2 * noise)


def repair_round(block: ConcentratedBlock, clusters: Clusters, rho: Rho, n_clusters: int, *, swap: bool) -> Step:
    """Run one Lloyd step, then split long clusters and merge near ones.

    Privacy: each record is in one cluster, so the step costs the sum of `rho`. Centres and radii follow
    from earlier answers.

    Parameters
    ----------
    block : ConcentratedBlock
    clusters : Clusters
    rho : Rho
    n_clusters : int
        Number of clusters. Splits that need no merger follow if there are fewer.
    swap : bool
        Whether to split and merge.

    Returns
    -------
    Step
        Its noise describes the clusters before splits and mergers. The centres before the step count as
        equally noisy.
    """
    places = block.to_places(clusters.centres)
    answer = block.moments(places, clusters.radii, rho, "products")
    d = places.shape[1]
    count_noise = block.deviation(rho.counts)
    sum_noise, product_noise = block.moment_deviation(rho.sums), block.moment_deviation(rho.seconds)
    held = np.maximum(answer.counts, np.maximum(LEAST_OF_FORMER * clusters.masses, 1.0))
    moves = answer.sums / held[:, None]
    noise = sum_noise * clusters.radii / held
    trust = trust_moves(moves, noise, held)
    centres = from_places(places) + moves * trust[:, None]
    centred = answer.seconds - held[:, None, None] * moves[:, :, None] * moves[:, None, :]
    product_noises = product_noise * clusters.radii**2
    means, pooled = _estimate_squares(np.trace(centred, axis1=1, axis2=2), held, product_noises * sqrt(d))
    radii = choose_radii(np.sqrt(means), sum_noise * sqrt(d), held, RADIUS[0])
    radii = np.maximum(np.minimum(radii, RADIUS_GROWTH * clusters.radii), LEAST_RADIUS * RADIUS[0] * sqrt(pooled))
    after = Clusters(centres, radii, np.maximum(answer.counts, 0.0), np.sqrt(means))
    if swap:
        values, vectors = np.linalg.eigh(centred)
        long = _Long(np.maximum(values[:, -1] - (sqrt(d) + EDGE) * product_noises, 0.0), vectors[:, :, -1])
        empty = answer.counts < min(count_noise, EMPTY * float(clusters.masses.sum()) / n_clusters)
        costs = _merge_costs(after, np.maximum(answer.counts - count_noise, 0.0), d * trust * noise**2, empty)
        after = _swap(after, held, long, costs, empty, n_clusters)
    after = after._replace(masses=np.maximum(after.masses, 1.0))
    covariances = centred / held[:, None, None]
    variances = mix_variances(trust, noise**2, noise**2)
    return Step(after, variances, answer.counts, count_noise**2, covariances, product_noises / held)


class _Long(NamedTuple):
    """The longest direction of each cluster."""

    gains: NDArray[np.float64]  # (k,), sum of squares along it that the noise does not explain
    directions: NDArray[np.float64]  # (k, d), of norm 1


def _estimate_squares(
    traces: NDArray[np.float64], held: NDArray[np.float64], noise: NDArray[np.float64]
) -> tuple[NDArray[np.float64], float]:
    """Return the mean squared distances of clusters, shrunk to the pooled one by their noise, and the pooled one.

    `noise` is the deviation of a trace. The pooled mean is at least its own noise: radii that shrank to
    nothing would never grow again.
    """
    least = float(np.linalg.norm(noise))
    pooled = max(float(np.maximum(traces, 0.0).sum()), least, _TINY) / float(held.sum())
    prior, variances = (SPREAD_PRIOR * pooled) ** 2, (noise / held) ** 2
    means = (np.maximum(traces, 0.0) / held * prior + pooled * variances) / (prior + variances)
    return np.clip(means, SPREAD_RANGE[0] * pooled, SPREAD_RANGE[1] * pooled), pooled


def _merge_costs(
    clusters: Clusters, sizes: NDArray[np.float64], noise: NDArray[np.float64], empty: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Return the sum of squares that a merger of each pair adds, less what noise explains: (k, k).

    `sizes` are cautious counts, and `noise` the squared distance that noise moves each centre.
    """
    squares = ((clusters.centres[:, None] - clusters.centres[None]) ** 2).sum(axis=2)
    squares = np.maximum(squares - noise[:, None] - noise[None], 0.0)
    costs = sizes[:, None] * sizes[None] / np.maximum(sizes[:, None] + sizes[None], _TINY) * squares
    costs[empty] = costs[:, empty] = 0.0
    np.fill_diagonal(costs, np.inf)
    return np.asarray(costs)


def _swap(
    clusters: Clusters,
    held: NDArray[np.float64],
    long: _Long,
    costs: NDArray[np.float64],
    empty: NDArray[np.bool_],
    n_clusters: int,
) -> Clusters:
    """Split the cluster with the largest gain while that exceeds the cost of the cheapest merger."""
    centres, radii, masses, spreads = (part.copy() for part in clusters)
    gains, costs = np.where(empty, 0.0, long.gains), costs.copy()
    gone = np.zeros(len(masses), dtype=np.bool_)
    free = n_clusters - len(masses)
    added: list[tuple[NDArray[np.float64], float, float, float]] = []
    while (gain := gains.max()) > 0:
        j = int(gains.argmax())
        gains[j] = 0.0
        costs[j] = costs[:, j] = np.inf
        if free > 0:
            free -= 1
        else:
            kept, merged = (int(place) for place in np.unravel_index(costs.argmin(), costs.shape))
            if not gain >= SWAP * costs[kept, merged]:
                break
            kept, merged = (merged, kept) if empty[kept] and not empty[merged] else (kept, merged)
            if not empty[merged]:
                shares = masses[[kept, merged]] / (total := masses[kept] + masses[merged])
                apart = float(((centres[kept] - centres[merged]) ** 2).sum())
                centres[kept] = shares @ centres[[kept, merged]]
                spread = sqrt(float(shares @ spreads[[kept, merged]] ** 2) + float(shares.prod()) * apart)
                radii[kept] *= spread / spreads[kept]
                masses[kept], spreads[kept] = total, spread
                gains[kept] = 0.0
                costs[kept] = costs[:, kept] = np.inf
            gone[merged], gains[merged] = True, 0.0
            costs[merged] = costs[:, merged] = np.inf
        aside = APART * sqrt(long.gains[j] / held[j]) * long.directions[j]
        masses[j] /= 2
        added.append((centres[j] + aside, float(radii[j]), float(masses[j]), float(spreads[j])))
        centres[j] -= aside
    if not added:
        return clusters
    more = Clusters(*(np.array(part) for part in zip(*added, strict=True)))
    parts = zip((centres, radii, masses, spreads), more, strict=True)
    return Clusters(*(np.concatenate([part[~gone], new]) for part, new in parts))
