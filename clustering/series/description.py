"""Kinds of a change: the difference of two pools of tallies, explained by as few directions as possible.

The density after a change is log f_after = log f_before + g, with a smooth g. So it changes only where the data
require it. Its regions are matched with those before. A direction is a difference of densities that one kind of change
makes, such as more people in one region. Orthogonal matching pursuit explains the difference of the frequencies, in
all slots and symbols and in units of its standard errors, by at most four directions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from clustering.density.deconvolution import Model
from clustering.density.excess_mass import Bump, BumpTree
from clustering.density.label_map import centres_of, region_totals
from clustering.density.shifted_field import coarse_symbols
from clustering.series.identities import NamedMap, match_regions, overlaps
from clustering.series.observed import Window, pool_windows
from sfumato.records.encodings import differences

ChangeKind = Literal["grown", "shrunk", "gone", "born", "split", "moved", "merged"]
STRUCTURAL: frozenset[str] = frozenset({"gone", "split", "moved", "merged"})  # the earlier windows show another map

LEAST_ERRORS = 3.5  # least coefficient of a direction, in its standard errors
LEAST_SHARE = 0.015  # least change of a share, or share of a new cluster
LEAST_PART = 0.3  # least coefficient of a split, a move or a merger, relative to the share of the region
SHAPE_FACTOR = 0.85  # factor on the significance of a direction with a shape from the later windows
MOST_KINDS = 4
LEFT = 0.4  # a cluster with less of its share left is gone
LEAST_MOVE = 0.03  # distance of a move, in shares of the range of a feature
BORN_BEFORE = 0.25  # a new region is born if it had less than this part of its share before
SPLIT_BEFORE = 0.7  # a new region is a part of an older one if it had this part of its share before; else it has grown
_LEAST_EXCESS, _LEAST_RATIO = 0.02, 0.3  # limits of the bumps after the change
_CARRIED_SCALE, _CARRIED_AMPLITUDE, _CARRIED_STEPS = 0.06, 1.0, 200  # prior of g
_NEW = 0.2  # least part of a direction that earlier ones do not explain


@dataclass(frozen=True)
class Kind:
    """One kind of change of one cluster.

    Attributes
    ----------
    kind : str
    cluster : str
        Id of the cluster: the new one if it was born, the first one if clusters merged.
    others : tuple of str
        Ids of the other parts of a split, or of the clusters that were merged into this one.
    size : float
        Change of the share of all people; for a split, a move or a merger, the share of people that it concerns.
    error : float
        Standard error of the size.
    """

    kind: ChangeKind
    cluster: str
    others: tuple[str, ...]
    size: float
    error: float


@dataclass(frozen=True, eq=False)
class Description:
    """Kinds of a change, the most significant first, and the map afterwards."""

    kinds: tuple[Kind, ...]
    map: NamedMap
    parents: dict[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class _Direction:
    """A candidate: a kind, or a change of a share, with its difference of densities for the coefficient 1."""

    kind: ChangeKind | Literal["share"]
    cluster: str
    difference: NDArray[np.float64]
    share: float  # share of the region before
    others: tuple[str, ...] = ()

    def weigh(self, z: float, coefficient: float) -> float:
        """Return the significance of a coefficient; 0 if it is too small for this kind."""
        if self.kind == "share":
            return abs(z) if abs(coefficient) >= LEAST_SHARE else 0.0
        if self.kind == "born":
            return z if coefficient >= LEAST_SHARE else 0.0
        return SHAPE_FACTOR * z if coefficient >= LEAST_PART * self.share else 0.0

    def name(self, coefficient: float) -> ChangeKind:
        """Return the kind of a coefficient."""
        if self.kind != "share":
            return self.kind
        if self.share + coefficient < LEFT * self.share:
            return "gone"
        return "grown" if coefficient > 0 else "shrunk"


def describe(
    before: Sequence[Window],
    after: Sequence[Window],
    earlier: NamedMap,
    latest: NamedMap,
    density: NDArray[np.float64],
    clusters: int | None,
    new_id: Callable[[], str],
) -> Description:
    """Return what changed between two groups of windows.

    Parameters
    ----------
    before, after : sequence of Window
        Windows before the change, and from it on.
    earlier : NamedMap
        Map before the change.
    latest : NamedMap
        Map of the last window. It may have an id for a cluster that the windows before the change do not show.
    density : ndarray of the map's shape
        Density before the change.
    clusters : int or None
        Number of clusters, if it is given.
    new_id : callable
        Returns an unused id.
    """
    old, new = pool_windows(before), pool_windows(after)
    later, circles = _carry(density, new), new.circles
    tree = BumpTree(later, circles)
    bumps = tree.bumps()
    labels = tree.regions(bumps[:clusters] if clusters else [bump for bump in bumps if _is_clear(bump)]).labels
    pairs = match_regions(earlier.labels, labels, (density + later) / 2)
    kept = {place: earlier.ids[label] for label, place in pairs}
    spare = {place: latest.ids[label] for label, place in match_regions(latest.labels, labels, later)}
    named = {place: name for place, name in spare.items() if name not in earlier.ids} | kept
    ids = tuple(named.get(place) or new_id() for place in range(int(labels.max()) + 1))
    found = NamedMap(labels, ids)
    directions = _directions(earlier, found, density, later, pairs, circles)
    kinds = _pursue(old, new, directions, (density + later) / 2)
    shared = overlaps(earlier.labels, labels, (density + later) / 2)
    born = {each.cluster for each in kinds if each.kind == "born"}
    parents = {
        name: None if name in born else earlier.ids[int(shared[:, place].argmax())]
        for place, name in enumerate(ids)
        if place not in named
    }
    return Description(kinds, found, parents)


def _is_clear(bump: Bump) -> bool:
    return bump.saddle is None or (bump.excess >= _LEAST_EXCESS and bump.excess >= _LEAST_RATIO * bump.mass)


def _carry(density: NDArray[np.float64], after: Window) -> NDArray[np.float64]:
    """Return the density of the later windows that differs smoothly from the one before."""
    likelihood = after.likelihood
    model = Model(density.shape, _CARRIED_SCALE, _CARRIED_AMPLITUDE, after.circles)
    base = np.log(np.maximum(density, 1e-7 / density.size))

    def density_of(u: NDArray[np.float64]) -> NDArray[np.float64]:
        g = base + model.log_density(u)
        weights = np.exp(g - g.max())
        return np.asarray(weights / weights.sum(), dtype=np.float64)

    def loss(u: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        f = density_of(u)
        value, slope = likelihood.loss(f)
        return float(value + 0.5 * (u @ u)), model.pull(f, slope) + u

    start = np.zeros(model.deviations.size)
    fit = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": _CARRIED_STEPS})
    return density_of(fit.x)


def _variances(observed: Window, expected: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the variance of each frequency in all slots, of noise and of the sample of people."""
    noise = observed.noise
    n = np.repeat(np.maximum(observed.reports, 1), observed.encoding.n_symbols)
    return np.asarray((noise.spread_variance + (1 + noise.slope_variance) * expected) / n, dtype=np.float64)


def _within(density: NDArray[np.float64], inside: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the density within a region, which sums to one."""
    part = np.where(inside, density, 0.0)
    return np.asarray(part / max(float(part.sum()), 1e-9), dtype=np.float64)


def _directions(
    earlier: NamedMap,
    found: NamedMap,
    density: NDArray[np.float64],
    later: NDArray[np.float64],
    pairs: list[tuple[int, int]],
    circles: Sequence[int],
) -> list[_Direction]:
    """Return the candidates: shares and moves of kept clusters, new regions, splits and mergers."""
    old, new = earlier.labels, found.labels
    shares, later_shares = region_totals(old, density), region_totals(new, later)
    moves = centres_of(new, later, circles), centres_of(old, density, circles)
    shared = overlaps(old, new, (density + later) / 2)
    matched, kept = {a for a, _ in pairs}, {b for _, b in pairs}
    candidates = []
    for a, (name, share) in enumerate(zip(earlier.ids, shares.tolist(), strict=True)):
        part = _within(density, old == a)
        if share < 0.95:
            rest = (density - share * part) / (1 - share)
            candidates.append(_Direction("share", name, part - rest, share))
    for a, b in pairs:
        if np.linalg.norm(differences(moves[0][b], moves[1][a], circles)) >= LEAST_MOVE:
            difference = _within(later, new == b) - _within(density, old == a)
            candidates.append(_Direction("moved", earlier.ids[a], difference, float(shares[a])))
    had = np.array([min(float(density[new == b].sum()), 0.95) for b in range(len(found.ids))])
    is_part = had >= SPLIT_BEFORE * later_shares
    for b in sorted(set(range(len(found.ids))) - kept):
        part, a = _within(later, new == b), int(shared[:, b].argmax())
        if is_part[b]:
            children = [child for child in np.flatnonzero(shared.argmax(axis=0) == a) if is_part[child]]
            difference = _within(later, np.isin(new, children)) - _within(density, old == a)
            others = tuple(found.ids[child] for child in children if found.ids[child] != earlier.ids[a])
            candidates.append(_Direction("split", earlier.ids[a], difference, float(shares[a]), others))
            continue
        kind: Literal["born", "share"] = "born" if had[b] < BORN_BEFORE * later_shares[b] else "share"
        candidates.append(_Direction(kind, found.ids[b], (part - density) / (1 - had[b]), float(had[b])))
    for a in sorted(set(range(len(earlier.ids))) - matched):
        b = int(shared[a].argmax())
        parents = np.flatnonzero(shared.argmax(axis=1) == b)
        difference = _within(later, new == b) - _within(density, np.isin(old, parents))
        others = tuple(earlier.ids[parent] for parent in parents if earlier.ids[parent] != found.ids[b])
        candidates.append(_Direction("merged", found.ids[b], difference, float(shares[a]), others))
    return candidates


def _pursue(old: Window, new: Window, directions: list[_Direction], density: NDArray[np.float64]) -> tuple[Kind, ...]:
    """Return the directions that explain the difference of two pools, the most significant first.

    The noise of a sum by which counts are divided moves all frequencies together, so that direction is left out.
    """
    encoding = old.encoding
    if not directions:
        return ()
    symbols = [coarse_symbols(encoding, slot).ravel() for slot in range(encoding.n_slots)]
    given = np.stack([each.difference.ravel() for each in directions] + [density.ravel()])
    projected = np.concatenate(
        [np.stack([np.bincount(of, weights=row, minlength=encoding.n_symbols) for row in given]) for of in symbols],
        axis=1,
    )
    expected = np.maximum(projected[-1], 0.0)
    variances = [_variances(each, expected) for each in (old, new)]
    scale = 1 / np.sqrt(np.maximum(variances[0] + variances[1], 1e-300))
    both = (each.reports > 0 for each in (old, new))
    scale *= np.repeat(np.logical_and(*both), encoding.n_symbols)
    rows = projected * scale
    gap = (new.frequencies - old.frequencies).ravel() * scale
    fixed = [len(rows) - 1] if old.is_divided else []
    whole = np.linalg.norm(rows, axis=1)
    chosen: list[int] = []
    kinds: list[Kind] = []
    while len(chosen) < MOST_KINDS:
        rest, left = gap, rows
        if fixed or chosen:
            basis = np.linalg.qr(rows[fixed + chosen].T)[0]
            rest, left = gap - basis @ (basis.T @ gap), rows - (rows @ basis) @ basis.T
        norms = np.linalg.norm(left, axis=1)
        usable = norms > _NEW * np.maximum(whole, 1e-12)
        z = np.where(usable, left @ rest / np.maximum(norms, 1e-12), 0.0)
        coefficients = z / np.maximum(norms, 1e-12)
        weights = [
            0.0 if place in chosen else each.weigh(float(z[place]), float(coefficients[place]))
            for place, each in enumerate(directions)
        ]
        best = int(np.argmax(weights))
        if weights[best] < LEAST_ERRORS:
            break
        chosen.append(best)
        each, size = directions[best], float(coefficients[best])
        kinds.append(Kind(each.name(size), each.cluster, each.others, size, float(1 / norms[best])))
    return tuple(kinds)
