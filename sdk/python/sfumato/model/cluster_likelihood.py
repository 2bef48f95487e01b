"""Distribution of a cluster's people under a published model: P(symbol | cluster) for an encoding and slot.

A label map gives the distribution by its density per cell. With centroids, a cluster is an isotropic
normal distribution with the published width, clipped to the bounds like records. One person in a
million is uniform in the box and labelled by `assign`, so no symbol is impossible. The computation is
deterministic.
"""

from collections.abc import Callable
from functools import lru_cache
from math import erfc, sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InvalidSpec
from sfumato.model.cluster_model import ClusterModel
from sfumato.model.memberships import GaussianMixtureMemberships
from sfumato.records.encodings import scale_many, symbols, unscale_many
from sfumato.specs import (
    LATTICE,
    TURN,
    DiscreteLaplaceMechanism,
    Encoding,
    GridEncoding,
    PhaseEncoding,
    ProfileEncoding,
)

WIDTH = 0.06  # default width of a cluster, as a share of a feature's range
ANYWHERE = 1e-6  # share of people with a uniform distribution in the box
BOX_POINTS, CROWD_POINTS, WAVE_POINTS = 4096, 1024, 512
FINE = 64  # parts of a phase in which the turn of a category is rounded
LEAST_POINTS, MANY_POINTS = 128, 1 << 14  # minimum points per cluster, and approximate maximum of all clusters
MAX_ENTRIES = 1 << 24  # clusters times symbols, 128 MB
LEAST = 1e-300

Shares = Callable[[int], NDArray[np.float64]]  # returns P(symbol | cluster) of a slot: (n_clusters, n_symbols)


def widths(model: ClusterModel) -> NDArray[np.float64]:
    """Return the standard deviation of each cluster, as a share of a feature's range: (n_clusters,).

    It comes from the published mixture, from the diagnostics (`widths`, or the equal width that gives
    `inertia`), or is .06.
    """
    published = model.diagnostics.get("widths")
    if isinstance(model.soft, GaussianMixtureMemberships):
        published = model.soft.widths
    if published is None and model.diagnostics.get("inertia") is not None:
        published = [sqrt(max(0.0, float(model.diagnostics["inertia"])) / len(model.features))] * model.n_clusters
    found = np.asarray([WIDTH] * model.n_clusters if published is None else published, dtype=np.float64)
    if found.shape != (model.n_clusters,) or not np.isfinite(found).all() or (found < 0).any():
        raise InvalidSpec("this model must have one width per cluster")
    return found


def symbol_shares(model: ClusterModel, encoding: Encoding) -> Shares | None:
    """Return P(symbol | cluster) for each slot.

    Raises
    ------
    InvalidSpec
        Clusters times symbols above 2^24, or the round is that of a profile.
    """
    if isinstance(encoding, ProfileEncoding):
        raise InvalidSpec("reports of a profile have no labels: label those of the job that it describes")
    if model.n_clusters * encoding.n_symbols > MAX_ENTRIES:
        raise InvalidSpec(f"clusters times symbols may be at most {MAX_ENTRIES} to label reports")
    if model.label_map is not None:
        points, codes = _cells(model)
        return _counted(encoding, points, *_cell_weights(model), model.n_clusters, codes)
    if isinstance(encoding, GridEncoding):
        return _of_grid(model, encoding)
    if isinstance(encoding, PhaseEncoding):
        return _of_phases(model, encoding)
    return _counted(encoding, *_crowd(model), model.n_clusters)


def _counted(
    encoding: Encoding,
    points: NDArray[np.float64],
    labels: NDArray[np.int64],
    weights: NDArray[np.float64],
    n_clusters: int,
    codes: NDArray[np.int64] | None = None,
) -> Shares:
    """Return the shares of weighted points with labels, and codes of their categories, by symbol."""

    def shares(slot: int) -> NDArray[np.float64]:
        slots = np.full(len(points), slot, dtype=np.int64)
        index = labels * encoding.n_symbols + symbols(encoding, points, slots, codes)
        counted = np.bincount(index, weights=weights, minlength=n_clusters * encoding.n_symbols)
        return np.asarray(counted.reshape(n_clusters, encoding.n_symbols), dtype=np.float64)

    return shares


# ---- label maps ----


def _cell_weights(model: ClusterModel) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return each cell's cluster, and its share of the cluster's people, flat."""
    assert model.label_map is not None  # noqa: S101 - for the type checker
    labels = np.asarray(model.label_map.ravel(), dtype=np.int64)
    n_cells = np.bincount(labels, minlength=model.n_clusters)[labels].astype(np.float64)
    if model.density is None:
        return labels, np.asarray(1 / n_cells, dtype=np.float64)
    density = np.maximum(model.density.ravel(), 0.0)
    masses = np.bincount(labels, weights=density, minlength=model.n_clusters)[labels]
    within = np.divide(density, masses, out=1 / n_cells, where=masses > 0)
    return labels, np.asarray((1 - ANYWHERE) * within + ANYWHERE / n_cells, dtype=np.float64)


def _cells(model: ClusterModel) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the middles of the cells in [0, 1]^d, row-major, and the codes of their categories."""
    assert model.label_map is not None  # noqa: S101 - for the type checker
    shape, d = model.label_map.shape, model.n_numeric
    places = np.indices(shape).reshape(len(shape), -1).T
    return np.asarray((places[:, :d] + 0.5) / np.array(shape[:d])), np.asarray(places[:, d:], dtype=np.int64)


def middles(shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return the middles of a grid's cells over [0, 1]^d, row-major: (n_cells, d)."""
    places = np.indices(shape).reshape(len(shape), -1).T
    return np.asarray((places + 0.5) / np.array(shape), dtype=np.float64)


# ---- centroids ----


def _centres(model: ClusterModel) -> NDArray[np.float64]:
    if model.centroids is None:
        raise InvalidSpec("this model has neither a label map nor centroids")
    return scale_many(model.features, model.centroids)


def _nearest(model: ClusterModel, points: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the clusters of points spread over the box, and the weights of uniform people."""
    labels = model.assign(unscale_many(model.features, points))
    return labels, ANYWHERE / np.bincount(labels, minlength=model.n_clusters)[labels]


def _crowd(model: ClusterModel) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]:
    """Return points of normal distributions about the centroids, and of the whole box."""
    centres, n_features = _centres(model), len(model.features)
    n_points = min(CROWD_POINTS, max(LEAST_POINTS, 2 * n_features, MANY_POINTS // max(1, model.n_clusters)))
    normal = normal_points(n_features, n_points // 2 * 2)
    crowd = centres[:, None, :] + widths(model)[:, None, None] * normal[None, :, :]
    box = even_points(n_features, BOX_POINTS)
    box_labels, box_weights = _nearest(model, box)
    points = np.concatenate([np.clip(crowd, 0.0, 1.0).reshape(-1, n_features), box])
    labels = np.concatenate([np.repeat(np.arange(model.n_clusters), len(normal)), box_labels])
    own = np.full(model.n_clusters * len(normal), (1 - ANYWHERE) / len(normal))
    return points, labels, np.concatenate([own, box_weights])


def _of_grid(model: ClusterModel, encoding: GridEncoding) -> Shares:
    """Return exact shares. Features are independent, so a cell's share is a product over them."""
    centres, spread = _centres(model), widths(model)
    shares = np.ones((model.n_clusters, 1))
    for feature, n_cells in enumerate(encoding.cells):
        along = interval_shares(centres[:, feature], spread, np.arange(1, n_cells) / n_cells)
        shares = (shares[:, :, None] * along[:, None, :]).reshape(model.n_clusters, -1)
    labels, weights = _nearest(model, middles(encoding.cells))
    shares *= 1 - ANYWHERE
    shares[labels, np.arange(len(labels))] += weights
    return lambda _slot: shares


def _of_phases(model: ClusterModel, encoding: PhaseEncoding) -> Shares:
    """Return the shares of phases. A projected isotropic normal is normal. Bounds are ignored.

    Within a cluster, a category turns the phase independently of the place.
    """
    centres, spread = _centres(model)[:, : model.n_numeric], widths(model)
    quantiles = np.array([NormalDist().inv_cdf((i + 0.5) / WAVE_POINTS) for i in range(WAVE_POINTS)])
    categories = list(model.category_shares.values())

    def shares(slot: int) -> NDArray[np.float64]:
        turns = np.array(encoding.weights[slot], dtype=np.float64) * (
            LATTICE / TURN
        )  # turns across each feature's range
        characters = encoding.characters[slot] if encoding.attributes else ()
        n_parts = encoding.phases * (FINE if any(characters) else 1)
        places = (centres @ turns)[:, None] + spread[:, None] * sqrt(turns @ turns) * quantiles
        parts = np.minimum((places % 1.0 * n_parts).astype(np.int64), n_parts - 1)
        rows = np.repeat(np.arange(model.n_clusters), WAVE_POINTS) * n_parts
        counted = np.bincount(rows + parts.ravel(), minlength=model.n_clusters * n_parts)
        turned = counted.reshape(model.n_clusters, n_parts) / WAVE_POINTS
        for character, of_category in zip(characters, categories, strict=False):
            turned = _turn(turned, character, of_category)
        found = turned.reshape(model.n_clusters, encoding.phases, -1).sum(axis=2)
        return np.asarray((1 - ANYWHERE) * found + ANYWHERE / encoding.phases, dtype=np.float64)

    return shares


def _turn(turned: NDArray[np.float64], character: int, of_category: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the shares of parts of a turn after the turn of a category, with the shares of categories: (k, n)."""
    n_parts, m = turned.shape[1], of_category.shape[1]
    if character == 0:
        return turned
    moved = [np.roll(turned, round(n_parts * (character * code % m) / m), axis=1) for code in range(m)]
    return np.asarray(sum(part * of_category[:, [code]] for code, part in enumerate(moved)))


# ---- noisy vectors ----


def vector_evidence(model: ClusterModel, mechanism: DiscreteLaplaceMechanism) -> NDArray[np.float64]:
    """Return the log likelihood of one sent feature, given the cluster: (n_clusters, n_features, steps + 1).

    Values outside of 0..steps have the same likelihood as the nearest end of the range, because the
    noise's density falls there by the same factor for all records. The sum of P(x) r^|v - x| over the
    records' places x is computed in one pass upwards and one downwards.
    """
    shares = _lattice_shares(model, mechanism.steps)
    if mechanism.scale_numerator:
        kept = float(np.exp(-mechanism.scale_denominator / mechanism.scale_numerator))  # r
        below, above = shares.copy(), np.zeros_like(shares)
        for place in range(1, mechanism.steps + 1):
            below[:, :, place] += kept * below[:, :, place - 1]
            back = mechanism.steps - place
            above[:, :, back] = kept * (above[:, :, back + 1] + shares[:, :, back + 1])
        shares = below + above
    return np.log(np.maximum(shares, LEAST))


def _lattice_shares(model: ClusterModel, steps: int) -> NDArray[np.float64]:
    """Return P(place | cluster) of each feature: (n_clusters, n_features, steps + 1)."""
    if model.label_map is not None:
        raise InvalidSpec("noisy vectors are labelled by centroids, not by a label map")
    centres, spread = _centres(model), widths(model)
    edges = (np.arange(1, steps + 1) - 0.5) / steps
    return np.stack([interval_shares(places, spread, edges) for places in centres.T], axis=1)


def vector_posterior_terms(
    evidence: NDArray[np.float64], mechanism: DiscreteLaplaceMechanism, values: NDArray[np.uint8]
) -> NDArray[np.float64]:
    """Return log likelihoods of vectors: (n, n_clusters). Features are independent given the cluster."""
    places = np.clip(mechanism.vectors_of(values), 0, mechanism.steps)
    total = np.zeros((len(values), len(evidence)))
    for feature in range(mechanism.n_features):
        total += evidence[:, feature, places[:, feature]].T
    return total


# ---- normal distributions ----


def interval_shares(
    centres: NDArray[np.float64], spread: NDArray[np.float64], edges: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return each interval's probability under clipped normals, exact in the tails: (n, n_edges + 1)."""
    scores = (edges[None, :] - centres[:, None]) / np.maximum(spread, 1e-9)[:, None]
    upper = _tails(scores)
    lower = _tails(-scores)
    ends = np.ones((len(centres), 1))
    from_above = -np.diff(upper, axis=1, prepend=ends, append=0 * ends)
    from_below = np.diff(lower, axis=1, prepend=0 * ends, append=ends)
    is_above = np.concatenate([scores > 0, ends > 0], axis=1)  # one for each upper edge; the last interval has none
    return np.asarray(np.where(is_above, from_above, from_below), dtype=np.float64)


def _tails(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return P(Z > score) of a standard normal."""
    flat = [0.5 * erfc(score) for score in (scores / sqrt(2)).ravel().tolist()]
    return np.array(flat, dtype=np.float64).reshape(scores.shape)


@lru_cache(maxsize=8)
def normal_points(n_features: int, n: int) -> NDArray[np.float64]:
    """Return points with the mean and covariance of a standard normal: (n, d), for even n of at least 2 d."""
    even = even_points(n_features, n // 2)
    half = np.array([[NormalDist().inv_cdf(share) for share in row] for row in even.tolist()])
    round_ = half @ np.linalg.inv(np.linalg.cholesky(half.T @ half / len(half))).T
    return np.concatenate([round_, -round_])


def even_points(n_features: int, n: int) -> NDArray[np.float64]:
    """Return points spread over (0, 1)^d: fractional parts of multiples of square roots of primes."""
    primes: list[int] = []
    number = 2
    while len(primes) < n_features:
        if all(number % prime for prime in primes):
            primes.append(number)
        number += 1
    steps = np.sqrt(np.array(primes, dtype=np.float64))
    places = np.arange(1, n + 1)[:, None] * steps[None, :] % 1.0
    return np.asarray(np.clip(places, 1e-9, 1 - 1e-9), dtype=np.float64)
