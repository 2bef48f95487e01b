"""Weighted particles as an estimate of the population, and their updates by rounds of centroid statistics.

A round publishes the centroids. Devices report the mass nearest to each centroid, and the
imbalance per feature: the share above it minus the share below. Particles predict both.
The difference moves the centroid's particles, by an amount that their density determines.
Weighted k-means of the particles then gives the next centroids. Thus the shape of a cell
comes from the first round's phases, and its place from all rounds.
"""

from math import ceil, log2
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from clustering.centroids.centroid_statistics import CentroidStatistics
from clustering.centroids.weighted_kmeans import lloyd, weighted_kmeans
from clustering.kernels.kmeans import weighted_lloyd_step
from clustering.phases.gaussian_components import Components, CovarianceShape
from clustering.random import PublicWords

_INSIDE = 2.0**-40  # least distance of quantiles from 0 and 1


class Cloud(NamedTuple):
    """Weighted particles in the box."""

    points: NDArray[np.float64]  # (n, d), in [0, 1]
    weights: NDArray[np.float64]  # (n,), sum one


def sobol_points(n: int, n_features: int, words: PublicWords) -> NDArray[np.float64]:
    """Return n points of a Sobol sequence, shifted by public words modulo one: shape (n, d), in [0, 1).

    Means over them have far smaller errors than over n random points.
    """
    from scipy.stats.qmc import Sobol  # its import takes as long as that of numba

    points = Sobol(n_features, scramble=False).random_base2(ceil(log2(max(n, 2))))[:n]
    return np.asarray((points + words.uniform(n_features)) % 1.0)


def sample_components(
    shape: CovarianceShape, components: Components, n: int, words: PublicWords
) -> NDArray[np.float64]:
    """Return n particles of a Gaussian mixture, which may lie outside the box: shape (n, d).

    Each component gets its rounded share of particles. Their normal deviates are quantiles of a
    segment of a Sobol sequence.
    """
    n_features = components.centres.shape[1]
    deviates = ndtri(np.clip(sobol_points(n, n_features, words), _INSIDE, 1 - _INSIDE))
    ends = np.cumsum(components.shares)
    owners = np.searchsorted(ends, (np.arange(n) + 0.5) / n * ends[-1], side="right").clip(max=len(ends) - 1)
    points = np.empty((n, n_features))
    for component, root in enumerate(components.roots(shape)):
        own = owners == component
        points[own] = components.centres[component] + deviates[own] @ root.T
    return points


def centroids_of(cloud: Cloud, n_clusters: int, words: PublicWords) -> NDArray[np.float64]:
    """Return the centres of weighted k-means of the particles: shape (k, d).

    If fewer than k particles differ, some centres coincide.
    """
    centres = weighted_kmeans(cloud.points, cloud.weights, n_clusters, words).centres
    return np.asarray(np.resize(centres, (n_clusters, centres.shape[1])))


FIRST_ERROR = 0.9  # initial standard error of a centre, in spreads of its cell
MOST_STEP = 1.5  # largest step of a centre, in spreads of its cell
LEAST_SPREAD = 1e-3  # share of a feature's range
LEAST_MASS = 0.03  # share of an even share
FIRST_MASS_ERROR = 0.5  # initial standard error of a cell's mass, as a share of it
LEAST_KEPT = 0.1  # least share of a mass that remains after one round

# Range around a centroid for the density of its cell, and limits of the resulting slope, in spreads.
# The imbalance of a normal cell changes by .8 for a step of one spread.
DENSITY_REACH = 0.6
LEAST_SLOPE, MOST_SLOPE = 0.4, 1.2

# Variance added after a step, because it moves the bounds of cells.
LOST_BY_MOVING = 0.25  # share of the squared step
LOST_BY_ROUND = 0.0025  # share of the squared spread


class CentroidState(NamedTuple):
    """Centroids between rounds, and their uncertainty."""

    cloud: Cloud
    centres: NDArray[np.float64]  # (k, d)
    centre_variances: NDArray[np.float64]  # (k,), variance of a centre, in units of its cell's squared spread
    mass_variances: NDArray[np.float64]  # (k,), variance of a cell's mass, in units of its square
    errors: NDArray[np.float64]  # (k, d), standard errors of the centres
    share_errors: NDArray[np.float64]  # (k,), standard errors of the masses
    drifts: bool  # whether adjacent cells touch, so that moves add uncertainty


class Cells(NamedTuple):
    """Particles by their nearest centre, and the statistics they predict."""

    labels: NDArray[np.int64]  # (n,)
    shares: NDArray[np.float64]  # (k,), none zero
    spreads: NDArray[np.float64]  # (k, d), root mean square distance from the centre
    imbalances: NDArray[np.float64]  # (k, d), share above minus share below, within the cell
    slopes: NDArray[np.float64]  # (k, d), decrease of the imbalance per increase of the centre


def initial_state(cloud: Cloud, centres: NDArray[np.float64]) -> CentroidState:
    """Return the state of a cloud before any round about its centres, with large uncertainty."""
    settled = lloyd(cloud.points, cloud.weights, centres).centres
    cells = predict_cells(cloud, settled)
    centre_variances = np.full(len(settled), FIRST_ERROR**2)
    mass_variances = np.full(len(settled), FIRST_MASS_ERROR**2)
    return CentroidState(
        cloud,
        settled,
        centre_variances,
        mass_variances,
        FIRST_ERROR * cells.spreads,
        FIRST_MASS_ERROR * cells.shares,
        True,
    )


def initial_state_from_fit(
    cloud: Cloud, centres: NDArray[np.float64], errors: NDArray[np.float64], share_errors: NDArray[np.float64]
) -> CentroidState:
    """Return the state of clear centres before any round about them, with a fit's standard errors.

    Errors e that approach a cell's spread s are too small, because the likelihood is not
    parabolic that far out. They become e (1 + e/s). (4 blobs in 16 features, 84,000 phases at
    epsilon .5: stated .025, measured .052.)
    """
    settled = lloyd(cloud.points, cloud.weights, centres).centres
    cells = predict_cells(cloud, settled)
    relative = np.sqrt((errors**2 / cells.spreads**2).mean(axis=1))
    centre_variances = np.minimum(relative * (1 + relative), FIRST_ERROR) ** 2
    mass_variances = np.minimum((share_errors / cells.shares) ** 2, FIRST_MASS_ERROR**2)
    return CentroidState(cloud, settled, centre_variances, mass_variances, errors, share_errors, False)


def predict_cells(cloud: Cloud, centres: NDArray[np.float64]) -> Cells:
    """Return the cells of centres, with the statistics that particles predict."""
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


def update_state(previous: CentroidState, statistics: CentroidStatistics) -> CentroidState:
    """Return the state after a round about the centroids.

    A centre's shift is (observed - predicted) / slope, shrunk by t^2 / (t^2 + its variance), where
    t is the centre's standard error. It is at most 1.5 spreads. Masses are shrunk likewise.
    Statistics without reports change nothing.
    """
    cells = predict_cells(previous.cloud, statistics.places)
    squared = cells.spreads**2
    masses, mass_left = _masses(cells.shares, previous.mass_variances, statistics)
    prior_variances = previous.centre_variances[:, None] * squared
    noise = (statistics.imbalance_errors / masses[:, None] / cells.slopes) ** 2
    trust = prior_variances / (prior_variances + noise)
    off = (statistics.imbalances / masses[:, None] - cells.imbalances) / cells.slopes
    shifts = np.clip(off * trust, -MOST_STEP * cells.spreads, MOST_STEP * cells.spreads)
    left = prior_variances * (1 - trust)
    lost = LOST_BY_MOVING * (shifts**2 / squared).mean(axis=1) + LOST_BY_ROUND if previous.drifts else 0.0
    points = np.clip(previous.cloud.points + shifts[cells.labels], 0.0, 1.0)
    weights = previous.cloud.weights * (masses / cells.shares)[cells.labels]
    cloud = Cloud(points, weights / weights.sum())
    return CentroidState(
        cloud,
        lloyd(cloud.points, cloud.weights, np.clip(statistics.places + shifts, 0.0, 1.0)).centres,
        np.minimum((left / squared).mean(axis=1) + lost, FIRST_ERROR**2),
        np.minimum(mass_left / masses**2 + lost, FIRST_MASS_ERROR**2),
        np.sqrt(left),
        np.sqrt(mass_left),
        previous.drifts,
    )


def misfit(previous: CentroidState, statistics: CentroidStatistics) -> float:
    """Return the mean squared deviation of imbalances from the prediction, in standard errors.

    It is about one for correct particles. The errors include the mechanism and the uncertainty of the
    centres. Statistics without reports are left out; if none remains, return 0.
    """
    cells = predict_cells(previous.cloud, statistics.places)
    masses = cells.shares[:, None]
    prior_variances = previous.centre_variances[:, None] * (masses * cells.slopes * cells.spreads) ** 2
    squares = (statistics.imbalances - masses * cells.imbalances) ** 2 / (
        statistics.imbalance_errors**2 + prior_variances
    )
    answered = np.isfinite(statistics.imbalance_errors)
    return float(squares[answered].mean()) if answered.any() else 0.0


def _masses(
    shares: NDArray[np.float64], centre_variances: NDArray[np.float64], statistics: CentroidStatistics
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return masses after a round, which sum to one, and their variances: both (k,)."""
    prior_variances = centre_variances * shares**2
    trust = prior_variances / (prior_variances + statistics.mass_errors**2)
    masses = np.maximum(shares + trust * (statistics.masses - shares), LEAST_KEPT * shares)
    return masses / masses.sum(), prior_variances * (1 - trust)
