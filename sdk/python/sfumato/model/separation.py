"""Separation of a model's clusters, and comparison of two models.

The functions use released models alone, so they cost no privacy. Their privacy status is
`post_processed`.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InvalidSpec
from sfumato.model.category_maps import cell_points
from sfumato.model.cluster_model import ClusterModel
from sfumato.model.distances import squared_distances
from sfumato.records.encodings import differences, scale_errors, scale_many, unscale_many
from sfumato.specs import circles_of

_MAX_DISTANCES = 8_000_000  # maximum cells times clusters; finer grids use the cells with most people


@dataclass(frozen=True, eq=False)
class Separation:
    """The distances between clusters.

    Attributes
    ----------
    silhouettes : ndarray of shape (n_clusters,), float64
        In [-1, 1], the mean over the cluster's people of (b - a) / max(a, b), with a the
        distance of their cell to the cluster's own centre and b that to the nearest other
        centre (the simplified silhouette, Hruschka et al. 2004, of the released density).
        Near 1 the cluster is compact and far from others, at 0 it is at a border. Below 0 its people
        are nearer to another centre, as in a ring. NaN without a density or another cluster.
    nearest : ndarray of shape (n_clusters,), int64
        The cluster with the nearest centre, or -1.
    distances : ndarray of shape (n_clusters,), float64
        Distance to that centre, with features scaled to [0, 1], or NaN.
    distance_errors : ndarray of shape (n_clusters,), float64
        Standard error of the distance from the errors of both centres, or NaN.
    silhouette : float
        Mean over all people.
    """

    silhouettes: NDArray[np.float64]
    nearest: NDArray[np.int64]
    distances: NDArray[np.float64]
    distance_errors: NDArray[np.float64]
    silhouette: float


def separation(model: ClusterModel) -> Separation:
    """Return the separation of a model's clusters, which is NaN without centres."""
    n_clusters = model.n_clusters
    unknown = np.full(n_clusters, np.nan)
    nobody = np.full(n_clusters, -1, dtype=np.int64)
    if model.centroids is None or n_clusters < 2:
        return Separation(unknown, nobody, unknown, unknown, float("nan"))
    centres = scale_many(model.features, model.centroids)
    circles = circles_of(model.features)
    away = np.sqrt(squared_distances(centres, centres, circles))
    np.fill_diagonal(away, np.inf)
    nearest = away.argmin(axis=1)
    distances = away[np.arange(n_clusters), nearest]
    errors = unknown
    if model.centroid_errors is not None:
        scaled = scale_errors(model.features, model.centroids, model.centroid_errors) ** 2
        along = differences(centres, centres[nearest], circles) / np.where(distances > 0, distances, np.nan)[:, None]
        errors = np.sqrt((along**2 * (scaled + scaled[nearest])).sum(axis=1))
    silhouettes = _silhouettes(model, centres)
    counted = np.isfinite(silhouettes)
    weights = model.sizes * counted
    total = float(weights.sum())
    whole = float((np.nan_to_num(silhouettes) * weights).sum() / total) if total > 0 else float("nan")
    return Separation(silhouettes, nearest, distances, errors, whole)


def _silhouettes(model: ClusterModel, centres: NDArray[np.float64]) -> NDArray[np.float64]:
    found = np.full(len(centres), np.nan)
    if model.label_map is None or model.density is None:
        return found
    places, density, labels = _heaviest(model, len(centres))
    away = np.sqrt(squared_distances(places, centres, circles_of(model.features)))
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
    model: ClusterModel, n_centres: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Return centres in [0, 1]^d, densities and labels of the occupied cells with most people."""
    label_map, density = model.label_map, model.density
    assert label_map is not None and density is not None  # noqa: S101, PT018 - for the type checker
    flat = density.ravel()
    most = max(1, _MAX_DISTANCES // max(1, n_centres))
    kept = np.flatnonzero(flat > 0)
    if len(kept) > most:
        kept = np.sort(kept[np.argsort(-flat[kept], kind="stable")[:most]])
    index = np.stack(np.unravel_index(kept, label_map.shape), axis=1)
    return cell_points(model, index), flat[kept], label_map.ravel()[kept]


# ---- two models ----


@dataclass(frozen=True)
class Match:
    """A pair of matching clusters of two models, or a cluster without a match.

    Attributes
    ----------
    left, right : int or None
    overlap : float
        Jaccard index: people in both clusters over people in either one. NaN without a density.
    """

    left: int | None
    right: int | None
    overlap: float


@dataclass(frozen=True)
class Comparison:
    """The agreement of two models.

    Attributes
    ----------
    matches : tuple of Match
        All clusters of both models once: first pairs in the order of the left model.
    agreement : float
        Share of people in matched clusters of both models. NaN without a density.
    """

    matches: tuple[Match, ...]
    agreement: float


def compare(left: ClusterModel, right: ClusterModel) -> Comparison:
    """Match the clusters of two models of the same features greedily, best pair first.

    The score is the overlap of people by the left model's density, or the right model's if the left has
    none. Without a density it is the distance of the centres.

    Raises
    ------
    InvalidSpec
        The models have different features or bounds.
    """
    if left.features != right.features:
        raise InvalidSpec("these results are of different features or bounds")
    shared = _shared(left, right)
    if shared is not None:
        union = shared.sum(axis=1, keepdims=True) + shared.sum(axis=0, keepdims=True) - shared
        overlaps = np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)
        pairs = _greedily(overlaps)
        whole = float(shared.sum())
        agreed = float(sum(shared[pair] for pair in pairs) / whole) if whole > 0 else float("nan")
    elif left.centroids is not None and right.centroids is not None:
        centres = scale_many(left.features, left.centroids), scale_many(right.features, right.centroids)
        away = np.sqrt(squared_distances(*centres, circles_of(left.features)))
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
    """Return the share of people in each pair of clusters: (left clusters, right clusters)."""
    source = left if left.density is not None else right
    if source.density is None or source.label_map is None:
        return None
    places, density, _ = _heaviest(source, left.n_clusters + right.n_clusters)
    points = unscale_many(source.features, places)
    labels = left.assign(points), right.assign(points)
    flat = labels[0] * right.n_clusters + labels[1]
    masses = np.bincount(flat, weights=density, minlength=left.n_clusters * right.n_clusters)
    return np.asarray(masses.reshape(left.n_clusters, right.n_clusters), dtype=np.float64)


def _greedily(scores: NDArray[np.float64]) -> list[tuple[int, int]]:
    """Return pairs (row, column) with positive scores, highest first, with each row and column once."""
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
