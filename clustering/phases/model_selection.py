"""Choice between clear clusters and a density with overlapping clusters, from a round of phases.

A fit with one round component per cluster finds clear clusters. For other populations phases
determine the density only, and centroids are those of its particles. Clusters are clear if the
phases suffice to find as many, and the fitted components are well separated.
"""

from math import sqrt
from typing import NamedTuple

import numpy as np

from clustering.centroids.centroid_statistics import CentroidStatistics
from clustering.circles import Circles
from clustering.phases.gaussian_components import Components, round_shape
from clustering.phases.incremental_mixture import PARTICLES, MixtureFit, fit_cloud
from clustering.phases.initialisation import search
from clustering.phases.mixture_fit import Errors, Mixture, Sketch, standard_errors
from clustering.phases.particles import (
    CentroidState,
    Cloud,
    centroids_of,
    initial_state,
    initial_state_from_fit,
    misfit,
    predict_cells,
    sample_components,
)
from clustering.phases.waves import limits_for
from clustering.random import PublicWords
from sfumato.records.encodings import differences
from sfumato.sizing.centroids import sketched_reports
from sfumato.specs import Refine

APART = 3.0  # least distance of clear clusters' centres, in sums of their widths
ENOUGH = 0.9  # least share of the needed phases; the number of reports is random
SETTLED = 1.0  # largest standard error of a clear cluster's centre, in widths
SIGNED = 0.5  # the same for refine="sign", where signs give more information than phases
# Clusters are not clear if the mean squared deviation of imbalances, in standard errors, exceeds both
# MISFIT and one plus MISFIT_DEVIATIONS of its standard deviations.
MISFIT, MISFIT_DEVIATIONS = 2.0, 4.0


class RefinementStart(NamedTuple):
    """The start of later rounds."""

    kind: str  # 'clear', 'particles', or 'phases' if the centroids are too uncertain for a round about them
    state: CentroidState | None
    mixture: MixtureFit | None = None


def choose_start(
    sketch: Sketch, refine: Refine, n_clusters: int, n_effective: float, seed: int, is_last: bool
) -> RefinementStart:
    """Return the start of later rounds that the phases support.

    'lloyd' always continues with particles. 'sign' continues with round clusters once their
    centres are known to half their widths. 'auto' continues with clear clusters if there are any,
    and collects phases once more if their centres are not known to their widths.

    Parameters
    ----------
    sketch : Sketch
    refine : {'auto', 'lloyd', 'sign'}
    n_clusters : int
    n_effective : float
        N tanh^2(eps/2) of the phases.
    seed : int
    is_last : bool
        Whether phases were already collected twice.

    Returns
    -------
    RefinementStart
    """
    enough = ENOUGH * sketched_reports(sketch.n_features, n_clusters)
    if refine == "sign" or (refine == "auto" and n_effective >= enough):
        mixture = search(sketch, n_clusters, limits_for(sketch.n_features), PublicWords(seed)).mixture
        errors = standard_errors(sketch, mixture)
        known = float((errors.centres / mixture.widths[:, None]).max())
        if refine == "sign":
            return _clear(mixture, errors, seed) if known <= SIGNED else RefinementStart("phases", None)
        if separation(mixture) >= APART:
            return _clear(mixture, errors, seed) if is_last or known <= SETTLED else RefinementStart("phases", None)
    return start_of_particles(sketch, n_clusters, seed)


def start_of_particles(sketch: Sketch, n_clusters: int, seed: int) -> RefinementStart:
    """Return the start from the fitted density and k-means of its particles."""
    path = fit_cloud(sketch, n_clusters, PublicWords(seed))
    centres = centroids_of(path.cloud, n_clusters, PublicWords(seed))
    return RefinementStart("particles", initial_state(path.cloud, centres), path)


def state_of_overlap(sketch: Sketch, mixture: Mixture, seed: int, circles: tuple[int, ...] = ()) -> CentroidState:
    """Return the centroids of k-means over particles of overlapping components.

    The means of overlapping components do not minimise the distance of points to the nearest of them.
    The errors of a cell are those of the components that its particles belong to. They are along the features; the
    particles and the centres are points on `circles`, the indices of the periodic features.
    """
    errors = standard_errors(sketch, mixture)
    k, d = mixture.centres.shape
    components = Components(mixture.centres, mixture.shares, mixture.widths[:, None])
    points = Circles(d, circles).to_points(sample_components(round_shape(d), components, PARTICLES, PublicWords(seed)))
    cloud = Cloud(np.clip(points, 0.0, 1.0), np.full(PARTICLES, 1 / PARTICLES))
    state = initial_state(cloud, centroids_of(cloud, k, PublicWords(seed)))
    ends = np.cumsum(mixture.shares)
    owners = np.searchsorted(ends, (np.arange(PARTICLES) + 0.5) / PARTICLES * ends[-1], side="right").clip(max=k - 1)
    labels = predict_cells(cloud, state.centres).labels
    overlap = np.bincount(labels * k + owners, minlength=k * k).reshape(k, k).astype(np.float64)  # cell, component
    of_cell = overlap / np.maximum(overlap.sum(axis=1, keepdims=True), 1.0)
    of_component = overlap / np.maximum(overlap.sum(axis=0), 1.0)
    return state._replace(
        errors=np.sqrt(of_cell @ errors.centres**2), share_errors=np.sqrt(of_component**2 @ errors.shares**2)
    )


def contradicts_clusters(state: CentroidState, statistics: CentroidStatistics) -> bool:
    """Return whether statistics of clear clusters contradict the prediction from their particles."""
    chance = MISFIT_DEVIATIONS * sqrt(2 / state.centres.size)
    return misfit(state, statistics) > max(MISFIT, 1 + chance)


def separation(mixture: Mixture, circles: tuple[int, ...] = ()) -> float:
    """Return the least distance of two centres over the sum of their widths; infinite for one cluster.

    Along `circles`, the indices of the periodic features, it is the shorter way.
    """
    centres, _, widths = mixture
    distances = np.sqrt((differences(centres[:, None], centres, circles) ** 2).sum(axis=2))
    np.fill_diagonal(distances, np.inf)
    return float((distances / (widths[:, None] + widths)).min())


def _clear(mixture: Mixture, errors: Errors, seed: int) -> RefinementStart:
    """Return the start from clear clusters as particles."""
    centres, shares, widths = mixture
    n_features = centres.shape[1]
    components = Components(centres, shares, widths[:, None])
    points = sample_components(round_shape(n_features), components, PARTICLES, PublicWords(seed))
    cloud = Cloud(np.clip(points, 0.0, 1.0), np.full(PARTICLES, 1 / PARTICLES))
    return RefinementStart(
        "clear", initial_state_from_fit(cloud, np.clip(centres, 0.0, 1.0), errors.centres, errors.shares)
    )
