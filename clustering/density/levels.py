"""Levels of a label map: nested divisions that the data support about as well, and the tree of merges.

"Two groups, of which one divides into five" is often truer than one number of clusters. Everything here is
post-processing of released values and costs no privacy budget.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clustering.density.excess_mass import BumpTree
from clustering.density.label_map import region_totals
from clustering.density.map_agreement import Comparison
from sfumato.model.precision import ExpectedAgreement

WITHIN = 0.4  # largest distance from the best score
MOST = 3


def choose_levels(scores: Mapping[int, float]) -> tuple[int, ...]:
    """Return the numbers of clusters at local maxima of the score, near the best: at most three, ascending.

    Parameters
    ----------
    scores : mapping of int to float
        Scores by the number of clusters, from 2 on.
    """
    if not scores:
        return ()
    lowest = max(scores.values()) - WITHIN
    worse = -np.inf
    peaks = [
        clusters
        for clusters, score in scores.items()
        if score >= lowest and score > scores.get(clusters - 1, worse) and score >= scores.get(clusters + 1, worse)
    ]
    return tuple(sorted(sorted(peaks, key=lambda clusters: -scores[clusters])[:MOST]))


def describe_levels(
    tree: BumpTree, comparison: Comparison, agreements: Mapping[int, ExpectedAgreement], chosen: int
) -> dict[str, Any]:
    """Return the diagnostics `levels` and `merges`.

    - levels: ascending. Each has `clusters`, `expected_agreement`, `sizes`, `parents` (the cluster of the level before
      that contains each cluster; empty for the first level) and `labels` of the cells in row-major order, or null for
      the chosen level, which is the label map itself.
    - merges: the boundaries of the last level, from the coarsest on. Each has the number of `clusters` from which on it
      exists, the two clusters of the last level that it separates at their peaks, and its `probability`: the share of
      refits that separate these peaks too.

    Parameters
    ----------
    tree : BumpTree
    comparison : Comparison
        Of the same density.
    agreements : mapping of int to ExpectedAgreement
        By the number of clusters of each level.
    chosen : int
        Number of clusters of the label map.
    """
    maps = {clusters: tree.regions(comparison.ranked[:clusters]).labels for clusters in sorted(agreements)}
    levels, before = list[dict[str, Any]](), None
    for clusters, labels in maps.items():
        levels.append(
            {
                "clusters": clusters,
                "expected_agreement": asdict(agreements[clusters]),
                "sizes": region_totals(labels, comparison.density).tolist(),
                "parents": [] if before is None else _parents(labels, before),
                "labels": None if clusters == chosen else labels.ravel().tolist(),
            }
        )
        before = labels
    return {"levels": levels, "merges": [] if before is None else _merges(comparison, before)}


def _parents(labels: NDArray[np.int64], coarser: NDArray[np.int64]) -> list[int]:
    """Return the coarser region that contains each region. Regions of more bumps are parts of those of fewer."""
    _, first = np.unique(labels.ravel(), return_index=True)
    return [int(parent) for parent in coarser.ravel()[first]]


def _merges(comparison: Comparison, finest: NDArray[np.int64]) -> list[dict[str, Any]]:
    """Return the boundary that each further bump makes, and how often refits have it too."""
    n_clusters = int(finest.max()) + 1
    peaks = [bump.peak for bump in comparison.ranked[:n_clusters]]
    refits = [other.labels(n_clusters) for other in comparison.with_other_noise]
    merges = []
    for place in range(1, n_clusters):
        whole = comparison.labels(place)
        other = next(peak for peak in peaks[:place] if whole[peak] == whole[peaks[place]])
        apart = [labels[other] != labels[peaks[place]] for labels in refits]
        merges.append(
            {
                "clusters": place + 1,
                "between": [int(finest[other]), int(finest[peaks[place]])],
                "probability": float(np.mean(apart)),
            }
        )
    return merges
