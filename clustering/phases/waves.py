"""Waves that a round publishes, and constants of its fit, chosen from public facts alone."""

from collections.abc import Sequence
from math import log, pi

import numpy as np

from clustering.phases.characters import characters_for
from clustering.phases.mixture_fit import RADIANS, Limits
from clustering.random import PublicWords
from sfumato.sizing.centroids import CATEGORY_WAVES, phases
from sfumato.specs import FULL_TURN, PhaseEncoding
from sfumato.specs.attributes import Categorical

WAVES = 512
MANY_FEATURES, MANY_WAVES = 16, 1024  # from 16 features on there are 1024 waves

# |omega|, radians across the box. Tight clusters need shorter waves: they are shorter with two
# features, and still shorter if many clusters share the box. (Two features, agreement with
# k-means at epsilon 4: A1, 20 clusters, .88 with waves up to 45 and .97 up to 80. Error of
# 4 clear blobs at epsilon 1: .0043 up to 45, .0068 up to 80.)
LONGEST = 4.0
SHORTEST = 30.0
SHORTEST_FEW_FEATURES = 45.0
SHORTEST_MANY_CLUSTERS = 80.0
FEW_FEATURES = 2

MANY_CLUSTERS = 10  # more clusters than this use SHORTEST_MANY_CLUSTERS

_TIGHT = Limits(least_share=0.005, least_width=0.004, most_width=0.35, start_widths=(0.02, 0.035, 0.05, 0.08, 0.14))
_CLEAR = Limits(least_share=0.02, least_width=0.015, most_width=0.35, start_widths=(0.05, 0.065, 0.08, 0.14, 0.22))


def limits_for(n_features: int, circles: tuple[int, ...] = ()) -> Limits:
    """Return the constants of the fit. Clusters may be tighter and smaller in one or two features.

    `circles` are the indices of the periodic features.
    """
    return (_TIGHT if n_features <= FEW_FEATURES else _CLEAR)._replace(circles=circles)


def waves_for(
    n_features: int,
    n_clusters: int | None,
    n_slots: int | None,
    epsilon_nano: int,
    seed: int,
    lengths: tuple[float, float] | None = None,
    circles: tuple[int, ...] = (),
    attributes: Sequence[Categorical] = (),
) -> PhaseEncoding:
    """Return waves of uniform direction and log-uniform frequency, spread evenly over its range.

    Rounding of logarithms and cosines differs between machines and can change a weight's last
    digit. A plan therefore uses the weights as published.

    Parameters
    ----------
    n_features : int
    n_clusters : int or None
    n_slots : int or None
        None gives 512, or 1024 with attributes and from 16 features on.
    epsilon_nano : int
    seed : int
    lengths : (float, float), optional
        Least and greatest |omega|, radians across the box. None gives those of the fit of
        clear clusters.
    circles : tuple of int
        Indices of the periodic features, along which a wave makes whole turns. A wave that would be constant makes
        one turn along the circle closest to its direction.
    attributes : sequence of Categorical
        Attributes by which the job clusters; see `clustering.phases.characters`. The weights do not depend on them.

    Returns
    -------
    PhaseEncoding
    """
    words = PublicWords(seed)
    few = CATEGORY_WAVES if attributes else WAVES
    n_slots = n_slots or (MANY_WAVES if n_features >= MANY_FEATURES else few)
    radius, angle = words.uniform(2, n_slots, n_features)
    deviates = np.sqrt(-2 * np.log1p(-radius)) * np.cos(2 * pi * angle)  # standard normal, by Box and Muller
    directions = deviates / np.linalg.norm(deviates, axis=1, keepdims=True)
    places = (np.arange(n_slots) + words.uniform(n_slots)) / n_slots
    least, greatest = lengths or (LONGEST, _shortest(n_features, n_clusters))
    frequencies = least * np.exp(log(greatest / least) * places)
    weights = np.rint(directions * frequencies[:, None] / RADIANS).astype(np.int64)
    if circles:
        along = list(circles)
        weights[:, along] = FULL_TURN * np.rint(weights[:, along] / FULL_TURN).astype(np.int64)
        constant = np.flatnonzero(~weights.any(axis=1))
        nearest = np.array(along)[np.abs(directions[constant][:, along]).argmax(axis=1)]
        weights[constant, nearest] = FULL_TURN
    rows = tuple(tuple(row) for row in weights.tolist())
    if not attributes:
        return PhaseEncoding(rows, phases(epsilon_nano))
    characters = characters_for(n_slots, [len(each.categories) for each in attributes], words)
    return PhaseEncoding(
        rows, phases(epsilon_nano), tuple(attributes), tuple(tuple(row) for row in characters.tolist())
    )


def _shortest(n_features: int, n_clusters: int | None) -> float:
    if n_features > FEW_FEATURES:
        return SHORTEST
    return SHORTEST_MANY_CLUSTERS if n_clusters is not None and n_clusters > MANY_CLUSTERS else SHORTEST_FEW_FEATURES
