"""How well a model's clusters stand apart, and what two models have in common: from released models alone.

Nothing here looks at a record or a report, so it costs no privacy: its privacy status is
`post_processed`.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.cluster_model import ClusterModel
from sfumato.encodings import scale_many, unscale_many
from sfumato.errors import InvalidSpec

_MAX_DISTANCES = 8_000_000  # cells times clusters looked at; of finer grids, the cells with most people


@dataclass(frozen=True, eq=False)
class Separation:
    """How far each cluster is from the others.

    Attributes
    ----------
    silhouettes : ndarray of shape (n_clusters,), float64
        In [-1, 1], the mean over the cluster's people of (b - a) / max(a, b), with a the
        distance of their cell to the cluster's own centre and b that to the nearest other
        centre (the simplified silhouette, Hruschka et al. 2004, of the released density).
        Near 1: compact and far from the rest; 0: at a border; below: nearer to another
        centre, as a ring's people are. NaN where there is no density, or no other cluster.
    nearest : ndarray of shape (n_clusters,), int64
        The cluster with the nearest centre; -1 where there is no other.
    distances : ndarray of shape (n_clusters,), float64
        How far that centre is, features scaled to [0, 1]; NaN where there is none.
    distance_errors : ndarray of shape (n_clusters,), float64
        Its standard error by that of both centres; NaN where that is not released.
    silhouette : float
        Over all people.
    """

    silhouettes: NDArray[np.float64]
    nearest: NDArray[np.int64]
    distances: NDArray[np.float64]
    distance_errors: NDArray[np.float64]
    silhouette: float


def separation(model: ClusterModel) -> Separation:
    """How far a model's clusters are from one another; all NaN where it has no centres."""
    n_clusters = model.n_clusters
    unknown = np.full(n_clusters, np.nan)
    nobody = np.full(n_clusters, -1, dtype=np.int64)
    if model.centroids is None or n_clusters < 2:
        return Separation(unknown, nobody, unknown, unknown, float("nan"))
    centres = scale_many(model.features, model.centroids)
    steps = centres[:, None, :] - centres[None, :, :]
    away = np.sqrt((steps**2).sum(axis=2))
    np.fill_diagonal(away, np.inf)
    nearest = away.argmin(axis=1)
    distances = away[np.arange(n_clusters), nearest]
    errors = unknown
    if model.centroid_errors is not None:
        ranges = np.array([feature.upper - feature.lower for feature in model.features])
        scaled = (model.centroid_errors / ranges) ** 2
        along = steps[np.arange(n_clusters), nearest] / np.where(distances > 0, distances, np.nan)[:, None]
        errors = np.sqrt((along**2 * (scaled + scaled[nearest])).sum(axis=1))
    silhouettes = _silhouettes(model, centres)
    counted = np.isfinite(silhouettes)
    weights = model.sizes * counted
    total = float(weights.sum())
    whole = float((np.nan_to_num(silhouettes) * weights).sum() / total) if total > 0 else float("nan")
    return Separation(silhouettes, nearest, distances, errors, whole)


def _silhouettes(model: ClusterModel, centres: NDArray[np.float64]) -> NDArray[np.float64]:
    found = np.full(len(centres), np.nan)
    if model.label_map is None or model.density is None or model.encoding is not None:
        return found
    places, density, labels = _heaviest(model.label_map, model.density, len(centres))
    away = np.sqrt(((places[:, None, :] - centres[None, :, :]) ** 2).sum(axis=2))
    own = away[np.arange(len(places)), labels]
    away[np.arange(len(places)), labels] = np.inf
    other = away.min(axis=1)
    farther = np.maximum(own, other)
    values = np.divide(other - own, farther, out=np.zeros_like(own), where=farther > 0)
    masses = np.bincount(labels, weights=density, minlength=len(centres))
    totals = np.bincount(labels, weights=density * values, minlength=len(centres))
    np.divide(totals, masses, out=found, where=masses > 0)
    return found


def _heaviest(
    label_map: NDArray[np.int64], density: NDArray[np.float64], n_centres: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Centres in [0, 1]^d, density and label of the cells that hold people, at most so many."""
    flat = density.ravel()
    most = max(1, _MAX_DISTANCES // max(1, n_centres))
    kept = np.flatnonzero(flat > 0)
    if len(kept) > most:
        kept = np.sort(kept[np.argsort(-flat[kept], kind="stable")[:most]])
    index = np.stack(np.unravel_index(kept, label_map.shape), axis=1)
    return (index + 0.5) / label_map.shape, flat[kept], label_map.ravel()[kept]


# ---- two models ----


@dataclass(frozen=True)
class Match:
    """A cluster of one model and the one of another that stands for it; None where there is none.

    Attributes
    ----------
    left, right : int or None
    overlap : float
        Of people in either, the share in both (Jaccard); NaN where no density says so.
    """

    left: int | None
    right: int | None
    overlap: float


@dataclass(frozen=True)
class Comparison:
    """What two models have in common.

    Attributes
    ----------
    matches : tuple of Match
        Every cluster of both once; pairs first, by the left one.
    agreement : float
        Share of people that both put into matched clusters; NaN where no density says so.
    """

    matches: tuple[Match, ...]
    agreement: float


def compare(left: ClusterModel, right: ClusterModel) -> Comparison:
    """Match the clusters of two models of the same features: the pair that shares most first.

    By the people both hold, as the left model's density has them (or the right's, where the
    left has none); by the distance of centres where neither has a density.

    Raises
    ------
    InvalidSpec
        Other features or bounds, or codes of different encodings: nothing says who is whom.
    """
    if left.features != right.features:
        raise InvalidSpec("these results are of different features or bounds")
    if (left.encoding is not None or right.encoding is not None) and left.encoding != right.encoding:
        raise InvalidSpec("these results label symbols of different encodings")
    shared = _shared(left, right)
    if shared is not None:
        union = shared.sum(axis=1, keepdims=True) + shared.sum(axis=0, keepdims=True) - shared
        overlaps = np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)
        pairs = _greedily(overlaps)
        whole = float(shared.sum())
        agreed = float(sum(shared[pair] for pair in pairs) / whole) if whole > 0 else float("nan")
    elif left.centroids is not None and right.centroids is not None:
        centres = scale_many(left.features, left.centroids), scale_many(right.features, right.centroids)
        away = np.sqrt(((centres[0][:, None, :] - centres[1][None, :, :]) ** 2).sum(axis=2))
        pairs = _greedily(1 / (1 + away))
        overlaps, agreed = np.full(away.shape, np.nan), float("nan")
    else:
        raise InvalidSpec("these results have neither a density nor centres to compare")
    matches = [Match(pair[0], pair[1], float(overlaps[pair])) for pair in sorted(pairs)]
    lonely = set(range(left.n_clusters)) - {pair[0] for pair in pairs}
    matches += [Match(each, None, float("nan")) for each in sorted(lonely)]
    lonely = set(range(right.n_clusters)) - {pair[1] for pair in pairs}
    matches += [Match(None, each, float("nan")) for each in sorted(lonely)]
    return Comparison(tuple(matches), agreed)


def _shared(left: ClusterModel, right: ClusterModel) -> NDArray[np.float64] | None:
    """People in each pair of clusters, shape (left's clusters, right's)."""
    source = left if left.density is not None else right
    if source.density is None or source.label_map is None:
        return None
    if source.encoding is not None:
        if left.label_map is None or right.label_map is None:
            return None
        labels, density = (left.label_map.ravel(), right.label_map.ravel()), source.density.ravel()
    else:
        places, density, _ = _heaviest(source.label_map, source.density, left.n_clusters + right.n_clusters)
        points = unscale_many(source.features, places)
        labels = left.assign(points), right.assign(points)
    flat = labels[0] * right.n_clusters + labels[1]
    masses = np.bincount(flat, weights=density, minlength=left.n_clusters * right.n_clusters)
    return np.asarray(masses.reshape(left.n_clusters, right.n_clusters), dtype=np.float64)


def _greedily(scores: NDArray[np.float64]) -> list[tuple[int, int]]:
    """Pairs of a row and a column, the highest score first, each row and column once; none without a score."""
    rows: set[int] = set()
    columns: set[int] = set()
    pairs = []
    for flat in np.argsort(-scores, axis=None, kind="stable").tolist():
        row, column = divmod(flat, scores.shape[1])
        if scores[row, column] <= 0:
            break
        if row not in rows and column not in columns:
            pairs.append((row, column))
            rows.add(row)
            columns.add(column)
    return pairs
