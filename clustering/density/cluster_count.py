"""Number of clusters of a density, by the agreement of its label map with the maps of refits.

Each number of clusters has a score: how far refits of synthetic data, of halves of the data and at other length scales
reproduce the map, and how far its bumps lie above the next one. All of it is post-processing of
released values and costs no privacy budget.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import log, sqrt

import numpy as np
from numpy.typing import NDArray

from clustering.density.bump_fit import BumpFit
from clustering.density.deconvolution import Deconvolution
from clustering.density.excess_mass import BumpTree
from clustering.density.levels import choose_levels
from clustering.density.map_agreement import NO_AGREEMENT, Agreement, Comparison, Selection

SELECTION = Selection(least_excess=0.004, least_contrast=0.3)  # bumps that are ranked
COUNTED_EXCESS = 0.007  # least E of a bump that may be a cluster
COUNTED_ERRORS = 0.75  # least E of such a bump, in its standard errors
MAX_COUNTED = 64  # largest number of clusters that is counted, to bound the time

# The score has the weight -.1 of 1/K, .03 of ln K and .07 of the gap.
FEW_PENALTY, MANY_BONUS, GAP_BONUS = 0.1, 0.03, 0.07
LEAST_AGREEMENT = 0.45  # least mean of the four agreements of a map of several clusters
LEAST_EVIDENCE = 0.14  # least evidence of several modes, in √n for n effective records
NOISE_THROWS = 6  # synthetic data sets of the density with one mode
CLOSE_SCORE = 0.3  # numbers of clusters with a score this close to the best are in the interval of 80 %


@dataclass(frozen=True)
class ClusterCount:
    """The counted clusters of a density.

    Attributes
    ----------
    clusters : int
    lower, upper : int
        Interval of the numbers of clusters that the data support about as well.
    agreement : Agreement
        Of the map of `clusters`.
    reason : str or None
        Reason for one cluster, as a sentence.
    levels : mapping of int to Agreement
        Of the nested maps that the data support about as well, by their number of clusters; empty for one cluster.
    finer : float
        Greatest mean agreement of a map of more clusters; 0 if there is none.
    """

    clusters: int
    lower: int
    upper: int
    agreement: Agreement
    reason: str | None = None
    levels: Mapping[int, Agreement] = field(default_factory=dict)
    finer: float = 0.0


def count_clusters(fit: BumpFit, comparison: Comparison) -> ClusterCount:
    """Return the number of clusters with the best score, A - .1/K + .03 ln K + .07 g.

    K_max is one more than the number of ranked bumps with E >= .007 and .75 standard errors. The result is one
    cluster if K_max is 1, if the mean of the four agreements is below .45, or if a density with one mode explains the
    data: if the evidence against it is below .14 √n, or below the mean evidence in synthetic data from that density.

    Parameters
    ----------
    fit : BumpFit
    comparison : Comparison
        Of the same fit, with `SELECTION`.
    """
    large = [
        bump
        for bump in comparison.ranked[1:]
        if bump.excess >= COUNTED_EXCESS and bump.excess >= COUNTED_ERRORS * fit.excess_error(bump)
    ]
    most = min(1 + len(large), MAX_COUNTED)
    if most == 1:
        return _one(1, "no bump of the density stands out from the noise")
    if is_explained_by_one_mode(fit):
        return _one(most, "a density with one mode explains the data as well")
    agreements = {clusters: comparison.agreement(clusters) for clusters in range(2, most + 1)}
    scores = {clusters: score(clusters, agreement) for clusters, agreement in agreements.items()}
    best = max(scores, key=scores.__getitem__)
    if agreements[best].mean_of_four < LEAST_AGREEMENT:
        return _one(most, "refits with other noise reproduce no division into several clusters")
    close = [clusters for clusters in scores if scores[clusters] >= scores[best] - CLOSE_SCORE]
    levels = {clusters: agreements[clusters] for clusters in choose_levels(scores)}
    finer = max((each.mean for clusters, each in agreements.items() if clusters > best), default=0.0)
    return ClusterCount(best, min(close), max(close), agreements[best], levels=levels, finer=finer)


def score(clusters: int, agreement: Agreement) -> float:
    """Return the score of a number of clusters, at least two."""
    return agreement.mean - FEW_PENALTY / clusters + MANY_BONUS * log(clusters) + GAP_BONUS * agreement.gap


def evidence(fitted: Deconvolution) -> float:
    """Return the evidence of several modes: how much less likely the data are under the density with one mode."""
    return fitted.excess_loss(unimodal(fitted.density, fitted.circles))


def is_explained_by_one_mode(fit: BumpFit) -> bool:
    """Return whether the evidence of several modes is no greater than that of noise, or of the shape of the prior.

    The ripples that the prior makes at edges and in even data grow with the number of records, about as its root.
    """
    found = evidence(fit.fitted)
    if found < LEAST_EVIDENCE * sqrt(fit.fitted.precision):
        return True
    null = unimodal(fit.density, fit.fitted.circles)
    return found < float(np.mean([evidence(fit.redraw(null, throw)) for throw in range(NOISE_THROWS)]))


def unimodal(density: NDArray[np.float64], circles: Sequence[int] = ()) -> NDArray[np.float64]:
    """Return the density with one mode, its greatest, normalised to sum one.

    `circles` are the axes of periodic features, where the first and the last cell are neighbours.

    Each cell keeps its density up to the highest level at which it connects to the peak: the
    maximum over paths of their minimum (greyscale reconstruction; Vincent 1993).
    """
    level = BumpTree(density, circles).connect_to_peak()
    return np.asarray(level / level.sum(), dtype=np.float64)


def _one(most: int, reason: str) -> ClusterCount:
    return ClusterCount(1, 1, most, NO_AGREEMENT, f"The result is one cluster, because {reason}.")
