"""What phases speak for: clear clusters, or a density whose clusters overlap.

Clear clusters are found by a fit of one round atom each. Of people who form none, phases tell
the density alone, and centroids are those of its particles. Both are fitted to the same phases:
clusters are clear where phases are enough to find so many, and the atoms that were found lie apart.
"""

from math import sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustering.atoms import Atoms, round_shape
from clustering.broadcast_centroids import Heard
from clustering.mixture_path import PARTICLES, PathFit, cloud_of
from clustering.particle_rounds import Standing, begun, begun_from_fit, misfit
from clustering.particles import Cloud, centroids_of, drawn
from clustering.phase_model import Errors, Mixture, Sketch, standard_errors
from clustering.phase_search import PublicWords, search
from clustering.phase_waves import limits_for
from sfumato.sizing import sketched_reports
from sfumato.specs import Refine

APART = 3.0  # sums of their widths that the centres of any two clear clusters lie apart
ENOUGH = 0.9  # of the phases that so many clear clusters take: the devices' draws make it a little less or more
SETTLED = 1.0  # of a clear cluster's width: the standard errors of its centre
SIGNED = 0.5  # likewise, where signs about it tell more than phases (STATISTICS 4.2)
# What devices say of clear clusters shows that they are none where leans deviate by so much, in the mean square
# and in standard errors, and by so many deviations of that mean.
MISFIT, MISFIT_DEVIATIONS = 2.0, 4.0
ALIKE = 0.3  # standard deviation of the logarithms of clear clusters' widths: a width that is hardly known is shrunk


class Start(NamedTuple):
    """Where later rounds begin."""

    way: str  # 'clear' or 'particles'; 'phases' where centroids are not known well enough to ask about them
    standing: Standing | None
    path: PathFit | None = None


def start_of(sketch: Sketch, refine: Refine, n_clusters: int, n_effective: float, seed: int, is_last: bool) -> Start:
    """What phases speak for.

    'lloyd' goes on with particles whatever they say, 'sign' with round clusters once their centres
    are known to half their widths. 'auto' takes clear clusters for what they are, and asks for
    phases once more where their centres are not known to their widths.

    Parameters
    ----------
    sketch : Sketch
    refine : {'auto', 'lloyd', 'sign'}
    n_clusters : int
    n_effective : float
        N tanh^2(eps/2) of the phases.
    seed : int
    is_last : bool
        There were phases once more already.
    """
    enough = ENOUGH * sketched_reports(sketch.n_features, n_clusters)
    if refine == "sign" or (refine == "auto" and n_effective >= enough):
        mixture = search(sketch, n_clusters, limits_for(sketch.n_features), PublicWords(seed)).mixture
        errors = standard_errors(sketch, mixture)
        known = float((errors.centres / mixture.widths[:, None]).max())
        if refine == "sign":
            return _clear(mixture, errors, seed) if known <= SIGNED else Start("phases", None)
        if separation(mixture) >= APART:
            return _clear(mixture, errors, seed) if is_last or known <= SETTLED else Start("phases", None)
    return start_of_particles(sketch, n_clusters, seed)


def start_of_particles(sketch: Sketch, n_clusters: int, seed: int) -> Start:
    """The density that phases tell, and k-means of its particles."""
    path = cloud_of(sketch, n_clusters, PublicWords(seed))
    centres = centroids_of(path.cloud, n_clusters, PublicWords(seed))
    return Start("particles", begun(path.cloud, centres), path)


def misfits(standing: Standing, heard: Heard) -> bool:
    """Whether what devices say of clear clusters is not what their particles predict."""
    chance = MISFIT_DEVIATIONS * sqrt(2 / standing.centres.size)
    return misfit(standing, heard) > max(MISFIT, 1 + chance)


def separation(mixture: Mixture) -> float:
    """The least distance of two centres, over the sum of their widths; infinite for one."""
    centres, _, widths = mixture
    distances = np.sqrt(((centres[:, None] - centres) ** 2).sum(axis=2))
    np.fill_diagonal(distances, np.inf)
    return float((distances / (widths[:, None] + widths)).min())


def _clear(mixture: Mixture, errors: Errors, seed: int) -> Start:
    """Clear clusters as particles."""
    centres, shares, _ = mixture
    n_features = centres.shape[1]
    atoms = Atoms(centres, shares, shrunk(mixture, errors)[:, None])
    points = drawn(round_shape(n_features), atoms, PARTICLES, PublicWords(seed))
    cloud = Cloud(np.clip(points, 0.0, 1.0), np.full(PARTICLES, 1 / PARTICLES))
    return Start("clear", begun_from_fit(cloud, np.clip(centres, 0.0, 1.0), errors.centres, errors.shares))


def shrunk(mixture: Mixture, errors: Errors) -> NDArray[np.float64]:
    """Widths drawn towards their mean in the logarithm, the more the less each is known: shape (C,)."""
    logs = np.log(mixture.widths)
    variances = errors.log_widths**2
    weights = 1 / (variances + ALIKE**2)
    mean = float(weights @ logs / weights.sum())
    return np.asarray(np.exp(mean + (logs - mean) * ALIKE**2 * weights))
