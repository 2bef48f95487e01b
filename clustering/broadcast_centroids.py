"""Centroids that are broadcast and moved by what devices say of them: the arithmetic of `ldp_kmeans`.

A round tells, of each centroid, the share of people nearest to it and, in each feature, the
share of them above it less the share below: its lean. A centroid whose lean is zero lies at
the median of its people, feature by feature.
"""

from itertools import count
from math import isqrt, pi, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustering.decoders import decoder
from clustering.errors import UnfitRound
from clustering.label_regions import project_to_shares
from clustering.phase_search import PublicWords
from clustering.plan import Collected
from clustering.weighted_kmeans import weighted_kmeans
from sfumato.specs import LATTICE, NearestCentroidEncoding

N_CANDIDATES = 1024  # places that spread-out centroids are chosen from
MARGIN = 0.1  # of the range, at both ends, that they stay away from
WIDTH = sqrt(pi / 2)  # a normal cluster of spread s leans by t / (s WIDTH) when its centroid is off by a small t
LEAST_MASS = 0.3  # of an even share: what a lean is divided by at least


class Heard(NamedTuple):
    """What one round told of its centroids, in [0, 1]^d."""

    places: NDArray[np.float64]  # (k, d), as published
    masses: NDArray[np.float64]  # (k,), share of people; unbiased, so that some may be negative
    mass_errors: NDArray[np.float64]  # (k,)
    leans: NDArray[np.float64]  # (k, d), share above less share below, of all people; unbiased
    lean_errors: NDArray[np.float64]  # (k, d); infinite where a feature brought no report
    n_reports: int


def hear(collected: Collected) -> Heard:
    """Read a round, its centroids and mechanism as published.

    A lean is the difference of two of the 2k estimates of its feature's slot. A mass is the
    sum of the two, over all slots, each by its reports.

    Raises
    ------
    UnfitRound
        The round is not over nearest centroids, or tells nothing.
    """
    encoding, tally = collected.spec.encoding, collected.tally
    if not isinstance(encoding, NearestCentroidEncoding):
        raise UnfitRound("ldp_kmeans goes on from a round over nearest centroids")
    reading = decoder(collected.spec.mechanism)
    n_reports, by_slot = tally.n_reports, tally.reports
    sides = reading.frequencies(tally).reshape(encoding.n_slots, -1, 2)  # feature, centroid, below or above
    both = sides.sum(axis=2)
    k = both.shape[1]
    masses = by_slot @ both / max(n_reports, 1)
    spreads = np.full(k, 2 * (1 - 2 / encoding.n_symbols))
    mass_errors = reading.standard_errors(spreads, masses, max(n_reports, 1))
    coins = 2 * reading.spread_variance + max(reading.slope_variance + 1, 0.0) * np.maximum(masses, 0.0)
    lean_errors = np.where(by_slot > 0, np.sqrt(coins[:, None] / np.maximum(by_slot, 1)), np.inf)
    places = (np.array(encoding.centroids, dtype=np.float64) + 0.5) / LATTICE
    return Heard(places, masses, mass_errors, (sides[:, :, 1] - sides[:, :, 0]).T, lean_errors, n_reports)


def balance(heard: Heard) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Each centroid's lean among its own people, in [-1, 1], and its standard error; (k, d) both.

    Divided by the mass, or by .3 of an even share where that is more, and shrunk by what of
    its size the noise explains, so that a centroid nobody is heard at stays where it is.
    """
    mass = np.maximum(heard.masses, LEAST_MASS / len(heard.masses))[:, None]
    with np.errstate(over="ignore"):
        trust = mass**2 / (mass**2 + heard.lean_errors**2)
    errors = np.where(np.isfinite(heard.lean_errors), heard.lean_errors, 0.0) / mass
    return np.clip(heard.leans / mass, -1.0, 1.0) * trust, errors * trust


def spread_out(n: int, n_features: int, seed: int) -> NDArray[np.int64]:
    """Places for n centroids, far from one another, that owe nothing to any record: (n, d), of the lattice.

    Farthest-first among 1024 points of a Kronecker sequence (multiples of the square roots of
    the primes, modulo one), shifted by the seed. All in integers, so that they are the same
    everywhere.
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


def gather(heard: Heard, clusters: int, words: PublicWords) -> NDArray[np.float64]:
    """The first K centroids from a round over many spread-out ones: weighted k-means of them, by their masses.

    Each is first moved within its own neighbourhood, half the mean distance between such
    places, to the side its people are heard on. Where fewer than K are heard at, places of the
    round make up the number.
    """
    k, d = heard.places.shape
    weights = project_to_shares(heard.masses)
    (heavy,) = np.nonzero(weights)
    moved = np.clip(heard.places + 0.5 * k ** (-1 / d) * balance(heard)[0], 0.0, 1.0)
    centres = weighted_kmeans(moved[heavy], weights[heavy], clusters, words).centres
    spare = np.flatnonzero(weights == 0)[: clusters - len(centres)]
    return np.concatenate([centres, heard.places[spare]])


def moved(heard: Heard, step: float) -> NDArray[np.float64]:
    """The centroids after a step of sign statistics: p + step sqrt(pi/2) balance, clipped to the box.

    For a normal cluster of spread s that is exact in the first order where step = s: a
    Robbins-Monro iteration towards the median. Where the step is longer it overshoots, by no
    more than the step; where it is shorter it takes several rounds, and noise is damped.
    """
    return np.asarray(np.clip(heard.places + step * WIDTH * balance(heard)[0], 0.0, 1.0), dtype=np.float64)


def to_lattice(places: NDArray[np.float64]) -> tuple[tuple[int, ...], ...]:
    """Centroids in [0, 1]^d as they are published."""
    return tuple(tuple(min(int(x * LATTICE), LATTICE - 1) for x in row) for row in places.tolist())


def _squares(places: NDArray[np.int64], place: int) -> NDArray[np.int64]:
    return np.asarray(((places - places[place]) ** 2).sum(axis=1), dtype=np.int64)
