"""Estimates from rounds over broadcast centroids, and the steps that move centroids.

A round gives, for each centroid, the share of people nearest to it and, in each feature, its imbalance:
the share of them above the centroid less the share below. A centroid with imbalance 0 is the median of
its people in each feature. Reports have one of two forms: nearest centroid and side, or one signed bit.
"""

from itertools import count
from math import inf, isqrt, pi, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustering.centroids.weighted_kmeans import weighted_kmeans
from clustering.density.label_map import project_to_shares
from clustering.errors import UnfitRound
from clustering.random import PublicWords
from clustering.rounds.decoders import decoder
from clustering.rounds.plan import Collected
from sfumato.specs import LATTICE, CentroidSignEncoding, NearestCentroidEncoding

N_CANDIDATES = 1024  # candidates for spread-out places
MARGIN = 0.1  # share of the range at both ends that has no candidates
NORMAL_WIDTH = sqrt(pi / 2)  # a normal cluster of spread s has imbalance t / (s NORMAL_WIDTH) at a small offset t
LEAST_MASS = 0.3  # lower bound of the mass in a relative imbalance, in even shares


class CentroidStatistics(NamedTuple):
    """Estimates from one round about its centroids, in [0, 1]^d."""

    places: NDArray[np.float64]  # (k, d), as published
    masses: NDArray[np.float64]  # (k,), share of people; unbiased, possibly negative
    mass_errors: NDArray[np.float64]  # (k,)
    imbalances: NDArray[np.float64]  # (k, d), share above less share below, of all people; unbiased
    imbalance_errors: NDArray[np.float64]  # (k, d); infinite for a feature without reports
    n_reports: int


def estimate_statistics(collected: Collected) -> CentroidStatistics:
    """Estimate the statistics of a round over nearest centroids.

    The slot of a feature gives 2k frequencies: below and above each centroid. An imbalance is the
    difference of two of them. A mass is their sum, averaged over slots by numbers of reports.

    Parameters
    ----------
    collected : Collected
        The round with its published centroids and mechanism, and its tally.

    Returns
    -------
    CentroidStatistics

    Raises
    ------
    UnfitRound
        The round does not have the encoding of nearest centroids, or its mechanism carries no
        information.
    """
    encoding, tally = collected.spec.encoding, collected.tally
    if not isinstance(encoding, NearestCentroidEncoding):
        raise UnfitRound("ldp_kmeans needs a round over nearest centroids")
    decoding = decoder(collected.spec.mechanism)
    n_reports, by_slot = tally.n_reports, tally.reports
    sides = decoding.frequencies(tally).reshape(encoding.n_slots, -1, 2)  # feature, centroid, below or above
    both = sides.sum(axis=2)
    k = both.shape[1]
    masses = by_slot @ both / max(n_reports, 1)
    spreads = np.full(k, 2 * (1 - 2 / encoding.n_symbols))
    mass_errors = decoding.standard_errors(spreads, np.full(k, 2.0), masses, max(n_reports, 1))
    coins = 2 * decoding.spread_variance + max(decoding.slope_variance + 1, 0.0) * np.maximum(masses, 0.0)
    imbalance_errors = np.where(by_slot > 0, np.sqrt(coins[:, None] / np.maximum(by_slot, 1)), np.inf)
    places = (np.array(encoding.centroids, dtype=np.float64) + 0.5) / LATTICE
    return CentroidStatistics(
        places, masses, mass_errors, (sides[:, :, 1] - sides[:, :, 0]).T, imbalance_errors, n_reports
    )


def step_direction(statistics: CentroidStatistics) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return each centroid's imbalance relative to its own people, in [-1, 1], and its standard error.

    The imbalance is divided by the mass, at least .3 of an even share, and shrunk by the share of noise
    in it. A centroid without reports therefore does not move. Both arrays have shape (k, d).
    """
    mass = np.maximum(statistics.masses, LEAST_MASS / len(statistics.masses))[:, None]
    with np.errstate(over="ignore"):
        trust = mass**2 / (mass**2 + statistics.imbalance_errors**2)
    errors = np.where(np.isfinite(statistics.imbalance_errors), statistics.imbalance_errors, 0.0) / mass
    return np.clip(statistics.imbalances / mass, -1.0, 1.0) * trust, errors * trust


def spread_places(n: int, n_features: int, seed: int) -> NDArray[np.int64]:
    """Choose n public places far from each other: ndarray of shape (n, d), int64, lattice places.

    Farthest-first selection among 1024 points of a Kronecker sequence (multiples of the square roots of
    the primes, modulo 1), shifted by the seed. Integer arithmetic makes the result the same on every
    machine. No record is read.
    """
    primes = (p for p in count(2) if all(p % q for q in range(2, isqrt(p) + 1)))
    strides = np.array([isqrt(next(primes) << 64) % (1 << 32) for _ in range(n_features)], dtype=np.int64)
    shifts = np.random.PCG64(seed).random_raw(n_features).astype(np.uint64) >> np.uint64(32)
    turns = (np.arange(N_CANDIDATES, dtype=np.int64)[:, None] * strides + shifts.astype(np.int64)) % (1 << 32)
    margin = int(MARGIN * LATTICE)
    places = margin + (turns >> 12) * (LATTICE - 2 * margin) // LATTICE
    chosen = [0]
    distances = _squares(places, 0)
    while len(chosen) < n:
        chosen.append(int(distances.argmax()))
        distances = np.minimum(distances, _squares(places, chosen[-1]))
    return places[chosen]


def choose_initial_centroids(statistics: CentroidStatistics, clusters: int, words: PublicWords) -> NDArray[np.float64]:
    """Choose the first K centroids by weighted k-means on the centroids of a round over many places.

    Each place first moves by its relative imbalance, at most half the mean distance between the places.
    Weights are the masses. If fewer than K places have a positive mass, other places of the round
    complete the number.

    Returns
    -------
    ndarray of shape (clusters, d)
        In [0, 1].
    """
    k, d = statistics.places.shape
    weights = project_to_shares(statistics.masses)
    (heavy,) = np.nonzero(weights)
    shifted = np.clip(statistics.places + 0.5 * k ** (-1 / d) * step_direction(statistics)[0], 0.0, 1.0)
    centres = weighted_kmeans(shifted[heavy], weights[heavy], clusters, words).centres
    spare = np.flatnonzero(weights == 0)[: clusters - len(centres)]
    return np.concatenate([centres, statistics.places[spare]])


def update_centroids(statistics: CentroidStatistics, step: float) -> NDArray[np.float64]:
    """Return the centroids after one Robbins-Monro step towards the medians, clipped to the box.

    The new place is p + step sqrt(pi/2) times the relative imbalance. For a normal cluster of spread s,
    step = s is exact to first order. A longer step overshoots by at most the step. A shorter one needs
    several rounds and damps noise. The result has shape (k, d).
    """
    return np.asarray(
        np.clip(statistics.places + step * NORMAL_WIDTH * step_direction(statistics)[0], 0.0, 1.0), dtype=np.float64
    )


def to_lattice(places: NDArray[np.float64]) -> tuple[tuple[int, ...], ...]:
    """Convert centroids in [0, 1]^d to lattice places, the published form."""
    return tuple(tuple(min(int(x * LATTICE), LATTICE - 1) for x in row) for row in places.tolist())


def _squares(places: NDArray[np.int64], place: int) -> NDArray[np.int64]:
    return np.asarray(((places - places[place]) ** 2).sum(axis=1), dtype=np.int64)


def estimate_round_statistics(collected: Collected, n_centroids: int) -> CentroidStatistics:
    """Estimate the statistics of a round over `n_centroids` centroids, in either form of reports.

    Raises
    ------
    UnfitRound
        The round has another encoding or another number of centroids, or its mechanism carries no
        information.
    """
    statistics = (
        _estimate_sign_statistics(collected)
        if isinstance(collected.spec.encoding, CentroidSignEncoding)
        else estimate_statistics(collected)
    )
    if len(statistics.places) != n_centroids:
        raise UnfitRound("the round's number of centroids must equal the number of clusters")
    return statistics


def _estimate_sign_statistics(collected: Collected) -> CentroidStatistics:
    """Estimate the statistics of a round of signed bits.

    An imbalance is the mean, over a feature's reports, of sign times H[h, c] divided by the contrast.
    Rows h are uniform, so the terms of other centroids cancel in the mean. Each term is plus or minus
    1 / contrast, so the variance is at most 1 / (contrast^2 * reports), which is used. A mass is the
    same mean over the slots in which each point counts as above.
    """
    encoding, tally = collected.spec.encoding, collected.tally
    assert isinstance(encoding, CentroidSignEncoding)  # noqa: S101 - for the type checker
    decoding = decoder(collected.spec.mechanism)
    k, n_rows = len(encoding.centroids), encoding.n_rows
    frequencies = decoding.frequencies(tally)
    by_slot = tally.reports.reshape(-1, n_rows)
    signed = ((frequencies[:, 1] - frequencies[:, 0]) * tally.reports).reshape(-1, n_rows)
    by_feature = by_slot.sum(axis=1)
    estimates = signed @ walsh_signs(n_rows, k) / np.maximum(by_feature, 1)[:, None]
    variance = 1 + 4 * decoding.zero_variance  # 1 / tanh^2(eps/2)
    errors = np.where(by_feature > 0, np.sqrt(variance / np.maximum(by_feature, 1)), inf)
    return CentroidStatistics(
        places=(np.array(encoding.centroids, dtype=np.float64) + 0.5) / LATTICE,
        masses=estimates[-1],
        mass_errors=np.full(k, errors[-1]),
        imbalances=np.ascontiguousarray(estimates[:-1].T),
        imbalance_errors=np.tile(errors[:-1], (k, 1)),
        n_reports=tally.n_reports,
    )


def walsh_signs(n_rows: int, n_columns: int) -> NDArray[np.float64]:
    """Return H[h, c] = (-1)^popcount(h & c), shape (n_rows, n_columns)."""
    both = np.arange(n_rows)[:, None] & np.arange(n_columns)
    return np.asarray(1.0 - 2.0 * (np.bitwise_count(both) % 2))
