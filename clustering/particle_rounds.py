"""Rounds of k-means over people who are known as a cloud of particles: both move by what devices say (STATISTICS 4.2).

A round publishes the centroids. Devices say how many are nearest to each, and in each feature
how many more lie above it than below: its lean. Particles predict both. What devices say
beyond that moves the centroid's particles, by as much as their density says makes up the
difference; then the centroids are those of the particles again, by weighted k-means. So a cell's shape
comes from the first round's phases, and its place from all of them.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustering.broadcast_centroids import Heard
from clustering.kernels.weighted_lloyd import weighted_lloyd_step
from clustering.particles import Cloud
from clustering.weighted_kmeans import lloyd

FIRST_DOUBT = 0.9  # of a cell's spread: how far off its centre may be before anybody was asked
MOST_STEP = 1.5  # of a cell's spread
LEAST_SPREAD = 1e-3  # of a feature's range
LEAST_MASS = 0.03  # of an even share
MASS_DOUBT = 0.5  # of a cell's mass, likewise
LEAST_KEPT = 0.1  # of a mass: it falls no further in one round

# How far a cell's density is read about its centroid, and what may come of it, in units of the
# spread: a normal cell leans by .8 for a step of one.
DENSITY_REACH = 0.6
LEAST_SLOPE, MOST_SLOPE = 0.4, 1.2

# A step moves cells' bounds, so what was known of a centre is no longer quite known of the next.
LOST_BY_MOVING = 0.25  # of the squared step
LOST_BY_ROUND = 0.0025  # of the squared spread


class Standing(NamedTuple):
    """Where centroids stand, and how well that is known."""

    cloud: Cloud
    centres: NDArray[np.float64]  # (k, d)
    doubts: NDArray[np.float64]  # (k,), variance of a centre, in units of its cell's squared spread
    mass_doubts: NDArray[np.float64]  # (k,), variance of a cell's mass, in units of its square
    errors: NDArray[np.float64]  # (k, d), standard errors of the centres
    share_errors: NDArray[np.float64]  # (k,), of the masses
    drifts: bool  # cells share bounds with people on them, so that what is known of a centre wears off as it moves


class Cells(NamedTuple):
    """Particles by their nearest centre."""

    labels: NDArray[np.int64]  # (n,)
    shares: NDArray[np.float64]  # (k,), none zero
    spreads: NDArray[np.float64]  # (k, d), root mean square distance from the centre
    leans: NDArray[np.float64]  # (k, d), share above less share below, of the cell's own
    slopes: NDArray[np.float64]  # (k, d), how a lean falls when the centre rises


def begun(cloud: Cloud, centres: NDArray[np.float64]) -> Standing:
    """Centres of a cloud before any round, little trusted."""
    settled = lloyd(cloud.points, cloud.weights, centres).centres
    cells = cells_of(cloud, settled)
    doubts = np.full(len(settled), FIRST_DOUBT**2)
    mass_doubts = np.full(len(settled), MASS_DOUBT**2)
    return Standing(cloud, settled, doubts, mass_doubts, FIRST_DOUBT * cells.spreads, MASS_DOUBT * cells.shares, True)


def begun_from_fit(
    cloud: Cloud, centres: NDArray[np.float64], errors: NDArray[np.float64], share_errors: NDArray[np.float64]
) -> Standing:
    """Clear centres of a fit before any round about them, as well known as its standard errors say.

    Errors e that come near a cell's spread s are too small, for a likelihood is no parabola so
    far out: they are taken for e (1 + e/s). (4 blobs in 16 features, 84,000 phases at epsilon
    .5: stated .025, found .052.)
    """
    settled = lloyd(cloud.points, cloud.weights, centres).centres
    cells = cells_of(cloud, settled)
    relative = np.sqrt((errors**2 / cells.spreads**2).mean(axis=1))
    doubts = np.minimum(relative * (1 + relative), FIRST_DOUBT) ** 2
    mass_doubts = np.minimum((share_errors / cells.shares) ** 2, MASS_DOUBT**2)
    return Standing(cloud, settled, doubts, mass_doubts, errors, share_errors, False)


def cells_of(cloud: Cloud, centres: NDArray[np.float64]) -> Cells:
    """What particles predict devices to say of centres."""
    k, d = centres.shape
    labels, masses = np.empty(len(cloud.points), dtype=np.int64), np.empty(k)
    weighted_lloyd_step(cloud.points, cloud.weights, centres, labels, np.empty((k, d)), masses)
    offsets = cloud.points - centres[labels]

    def mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
        sums = [np.bincount(labels, cloud.weights * values[:, feature], minlength=k) for feature in range(d)]
        return np.array(sums).T / np.maximum(masses, 1e-12)[:, None]

    spreads = np.maximum(np.sqrt(mean(offsets * offsets)), LEAST_SPREAD)
    near = mean((np.abs(offsets) < DENSITY_REACH * spreads[labels]).astype(np.float64))
    slopes = np.clip(near / (DENSITY_REACH * spreads), LEAST_SLOPE / spreads, MOST_SLOPE / spreads)
    shares = np.maximum(masses / masses.sum(), LEAST_MASS / k)
    return Cells(labels, shares, spreads, mean(np.sign(offsets)), slopes)


def moved(before: Standing, heard: Heard) -> Standing:
    """Where centroids stand after a round about them.

    A centre's shift is (seen - predicted) / slope, shrunk by t^2 / (t^2 + its variance), where
    t is how far off the centre may be; at most 1.5 spreads. A mass is shrunk likewise. What
    nobody answered changes nothing.
    """
    cells = cells_of(before.cloud, heard.places)
    squared = cells.spreads**2
    masses, mass_left = _masses(cells.shares, before.mass_doubts, heard)
    may_be = before.doubts[:, None] * squared
    noise = (heard.lean_errors / masses[:, None] / cells.slopes) ** 2
    trust = may_be / (may_be + noise)
    off = (heard.leans / masses[:, None] - cells.leans) / cells.slopes
    shifts = np.clip(off * trust, -MOST_STEP * cells.spreads, MOST_STEP * cells.spreads)
    left = may_be * (1 - trust)
    lost = LOST_BY_MOVING * (shifts**2 / squared).mean(axis=1) + LOST_BY_ROUND if before.drifts else 0.0
    points = np.clip(before.cloud.points + shifts[cells.labels], 0.0, 1.0)
    weights = before.cloud.weights * (masses / cells.shares)[cells.labels]
    cloud = Cloud(points, weights / weights.sum())
    return Standing(
        cloud,
        lloyd(cloud.points, cloud.weights, np.clip(heard.places + shifts, 0.0, 1.0)).centres,
        np.minimum((left / squared).mean(axis=1) + lost, FIRST_DOUBT**2),
        np.minimum(mass_left / masses**2 + lost, MASS_DOUBT**2),
        np.sqrt(left),
        np.sqrt(mass_left),
        before.drifts,
    )


def misfit(before: Standing, heard: Heard) -> float:
    """Mean squared deviation of leans from those predicted, in standard errors: about one where particles are right.

    In the errors are the devices' coins and how far off the centres may be; what nobody
    answered is left out, and 0 where that is all.
    """
    cells = cells_of(before.cloud, heard.places)
    masses = cells.shares[:, None]
    may_be = before.doubts[:, None] * (masses * cells.slopes * cells.spreads) ** 2
    squares = (heard.leans - masses * cells.leans) ** 2 / (heard.lean_errors**2 + may_be)
    answered = np.isfinite(heard.lean_errors)
    return float(squares[answered].mean()) if answered.any() else 0.0


def _masses(
    shares: NDArray[np.float64], doubts: NDArray[np.float64], heard: Heard
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Masses after a round, of sum one, and their variances: both (k,)."""
    may_be = doubts * shares**2
    trust = may_be / (may_be + heard.mass_errors**2)
    masses = np.maximum(shares + trust * (heard.masses - shares), LEAST_KEPT * shares)
    return masses / masses.sum(), may_be * (1 - trust)
