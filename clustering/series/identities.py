"""Ids of clusters over the windows of a series, by persistence.

An id stays with a bump as long as the peak lies in the region of the id. A new id needs an excess of mass that noise
does not explain. If an id has no bump, or a region changes too much, the earlier map stays. Without an alarm a new id
is a refinement: it was there before and was not resolved.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clustering.density.bump_fit import BumpFit
from clustering.density.excess_mass import Bump
from clustering.matching import match, on_grid

LEAST_EXCESS = 0.01  # excess of mass of a bump that founds a cluster
LEAST_RATIO = 0.3  # the same, relative to its mass
LEAST_ERRORS = 3.0  # the same, in its standard errors
LEAST_OVERLAP = 0.2  # Jaccard overlap of an id's regions in two maps that follow each other
MATCHED_OVERLAP = 0.3  # Jaccard overlap of matched regions of independent maps


@dataclass(frozen=True, eq=False)
class NamedMap:
    """A label map with an id for each cluster.

    Attributes
    ----------
    labels : ndarray of shape (fine_cells,) * n_features, int64
        0 .. n-1.
    ids : tuple of str
        The id of each label.
    """

    labels: NDArray[np.int64]
    ids: tuple[str, ...]

    def on_grid(self, fine_cells: int) -> "NamedMap":
        """Return the map on a grid with another number of fine cells along each feature."""
        return NamedMap(on_grid(self.labels, (fine_cells,) * self.labels.ndim), self.ids)


@dataclass(frozen=True)
class Continued:
    """A map, and what changed in its ids.

    Attributes
    ----------
    map : NamedMap
    parents : dict of str to str or None
        New ids, each with the one that it overlaps most; None in the first map.
    """

    map: NamedMap
    parents: dict[str, str | None]


def continue_map(
    fit: BumpFit, earlier: NamedMap | None, new_id: Callable[[], str], clusters: int | None = None
) -> Continued:
    """Return the map of a fit with the ids of the earlier map.

    Parameters
    ----------
    fit : BumpFit
    earlier : NamedMap or None
        None for the first map.
    new_id : callable
        Returns an unused id.
    clusters : int, optional
        Number of clusters, if it is given. Then all bumps found clusters, up to this number.
    """
    if earlier is None:
        labels = fit.tree.regions(_founders(fit, clusters, set())).labels
        ids = tuple(new_id() for _ in range(int(labels.max()) + 1))
        return Continued(NamedMap(labels, ids), dict.fromkeys(ids))
    owned = _own_bumps(fit, earlier)
    if len(owned) < len(earlier.ids):
        return Continued(earlier, {})
    peaks = {bump.peak for bump in owned.values()}
    others = _founders(fit, clusters, peaks)
    if clusters is not None:
        others = others[: max(0, clusters - len(owned))]
    labels = fit.tree.regions([*owned.values(), *others]).labels
    shared = overlaps(earlier.labels, labels, fit.density)
    agreement = jaccard(shared)
    places = {int(labels[bump.peak]): label for label, bump in owned.items()}
    if any(agreement[label, place] < LEAST_OVERLAP for place, label in places.items()):
        return Continued(earlier, {})
    ids = tuple(earlier.ids[places[place]] if place in places else new_id() for place in range(int(labels.max()) + 1))
    parents: dict[str, str | None] = {
        ids[place]: earlier.ids[int(shared[:, place].argmax())] for place in range(len(ids)) if place not in places
    }
    return Continued(NamedMap(labels, ids), parents)


def resolve_map(fit: BumpFit, named: NamedMap, clusters: int | None = None) -> NamedMap:
    """Return the map of a fit with those ids of another map that have a bump which founds a cluster in this fit.

    The other ids are clusters that the data of this fit do not show.
    """
    founders = _founders(fit, clusters, set())
    owned = {label: bump for label, bump in _own_bumps(fit, named).items() if bump in founders}
    labels = fit.tree.regions(list(owned.values())).labels
    ids = {int(labels[bump.peak]): named.ids[label] for label, bump in owned.items()}
    return NamedMap(labels, tuple(ids[place] for place in range(len(ids))))


def _own_bumps(fit: BumpFit, named: NamedMap) -> dict[int, Bump]:
    """Return the bump of each label: of those with a peak in its region, that with the greatest excess of mass."""
    owned: dict[int, Bump] = {}
    for bump in fit.all_bumps:  # the greatest excess of mass comes first
        owned.setdefault(int(named.labels[bump.peak]), bump)
    return owned


def _founders(fit: BumpFit, clusters: int | None, owned: set[tuple[int, ...]]) -> list[Bump]:
    """Return the bumps that may found a cluster, by descending excess of mass, without owned peaks.

    The standard errors of all bumps take as long as the fit, so none is computed for a bump that an id owns.
    """
    return [
        bump
        for bump in fit.all_bumps[:clusters]
        if bump.peak not in owned
        and (
            clusters is not None
            or bump.saddle is None
            or (
                bump.excess >= LEAST_EXCESS
                and bump.excess >= LEAST_RATIO * bump.mass
                and bump.excess >= LEAST_ERRORS * fit.excess_error(bump)
            )
        )
    ]


def overlaps(one: NDArray[np.int64], other: NDArray[np.int64], density: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mass of the overlap of each two regions of two maps: (n_one, n_other)."""
    n_one, n_other = int(one.max()) + 1, int(other.max()) + 1
    pairs = (one * n_other + other).ravel()
    mass = np.bincount(pairs, weights=density.ravel(), minlength=n_one * n_other)
    return np.asarray(mass.reshape(n_one, n_other), dtype=np.float64)


def jaccard(shared: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return overlap / union for each two regions, from `overlaps`."""
    union = shared.sum(axis=1)[:, None] + shared.sum(axis=0)[None] - shared
    return np.asarray(shared / np.maximum(union, 1e-300), dtype=np.float64)


def match_regions(
    one: NDArray[np.int64], other: NDArray[np.int64], density: NDArray[np.float64]
) -> list[tuple[int, int]]:
    """Return the pairs of regions of two maps with the greatest total overlap, each above `MATCHED_OVERLAP`."""
    return match(jaccard(overlaps(one, other, density)) - MATCHED_OVERLAP)
