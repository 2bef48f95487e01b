"""Where a cluster's people are, as a published model has it: P(symbol | cluster) under an encoding and a slot.

A label map says where by its density, cell by cell. Of centroids a cluster is a round normal
crowd about its own, with the width the model publishes, clipped to the bounds as records
are. One person in a million is taken to be anywhere in the box, labelled as `assign` labels
them, so that no symbol is impossible. Deterministic: nothing is drawn.
"""

from collections.abc import Callable
from functools import lru_cache
from math import erfc, sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from sfumato.cluster_model import ClusterModel
from sfumato.encodings import scale_many, symbols, unscale_many
from sfumato.errors import InvalidSpec
from sfumato.mechanisms import discrete_laplace
from sfumato.memberships import GaussianMixtureMemberships
from sfumato.specs import LATTICE, TURN, DiscreteLaplaceMechanism, Encoding, GridEncoding, PhaseEncoding

WIDTH = 0.06  # of a cluster whose model tells none: a share of a feature's range
ANYWHERE = 1e-6  # of the people
BOX_POINTS, CROWD_POINTS, WAVE_POINTS = 4096, 1024, 512
LEAST_POINTS, MANY_POINTS = 128, 1 << 14  # of a crowd, and of all of them about
MAX_ENTRIES = 1 << 24  # clusters times symbols, 128 MB
LEAST = 1e-300

Shares = Callable[[int], NDArray[np.float64]]  # of a slot: (n_clusters, n_symbols)


def widths(model: ClusterModel) -> NDArray[np.float64]:
    """Standard deviation of each cluster in every direction, as a share of a feature's range: (n_clusters,).

    Those of a mixture that the model publishes, of its diagnostics (`widths`, or the even width that
    makes `inertia`), else .06.
    """
    told = model.soft.widths if isinstance(model.soft, GaussianMixtureMemberships) else model.diagnostics.get("widths")
    if told is None and model.diagnostics.get("inertia") is not None:
        told = [sqrt(max(0.0, float(model.diagnostics["inertia"])) / len(model.features))] * model.n_clusters
    found = np.asarray([WIDTH] * model.n_clusters if told is None else told, dtype=np.float64)
    if found.shape != (model.n_clusters,) or not np.isfinite(found).all() or (found < 0).any():
        raise InvalidSpec("this model's widths are not one number a cluster")
    return found


def symbol_shares(model: ClusterModel, encoding: Encoding) -> Shares | None:
    """P(symbol | cluster) for each slot; None where the model does not say where in the box its clusters lie.

    Raises
    ------
    InvalidSpec
        Clusters times symbols above 2^24.
    """
    if model.n_clusters * encoding.n_symbols > MAX_ENTRIES:
        raise InvalidSpec(f"clusters times symbols may be at most {MAX_ENTRIES} to label reports")
    if model.label_map is not None and model.encoding is not None:
        return _of_codes(model) if model.encoding == encoding else None
    if model.label_map is not None:
        return _counted(encoding, *_cells(model), model.n_clusters)
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
) -> Shares:
    """Weighted points, each in the cluster of its label, counted by their symbols."""

    def shares(slot: int) -> NDArray[np.float64]:
        index = labels * encoding.n_symbols + symbols(encoding, points, np.full(len(points), slot, dtype=np.int64))
        counted = np.bincount(index, weights=weights, minlength=n_clusters * encoding.n_symbols)
        return np.asarray(counted.reshape(n_clusters, encoding.n_symbols), dtype=np.float64)

    return shares


# ---- label maps ----


def _cell_weights(model: ClusterModel) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Of each cell, flat: its cluster, and its share of the cluster's people."""
    assert model.label_map is not None  # noqa: S101 - for the type checker: who calls has looked
    labels = np.asarray(model.label_map.ravel(), dtype=np.int64)
    n_cells = np.bincount(labels, minlength=model.n_clusters)[labels].astype(np.float64)
    if model.density is None:
        return labels, np.asarray(1 / n_cells, dtype=np.float64)
    density = np.maximum(model.density.ravel(), 0.0)
    masses = np.bincount(labels, weights=density, minlength=model.n_clusters)[labels]
    within = np.divide(density, masses, out=1 / n_cells, where=masses > 0)
    return labels, np.asarray((1 - ANYWHERE) * within + ANYWHERE / n_cells, dtype=np.float64)


def _cells(model: ClusterModel) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]:
    """The cells' middles in [0, 1]^d, row-major, with cluster and weight of each."""
    assert model.label_map is not None  # noqa: S101 - for the type checker: who calls has looked
    return middles(model.label_map.shape), *_cell_weights(model)


def middles(shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Middles of the cells of a plain grid over [0, 1]^d, row-major: (n_cells, d)."""
    places = np.indices(shape).reshape(len(shape), -1).T
    return np.asarray((places + 0.5) / np.array(shape), dtype=np.float64)


def _of_codes(model: ClusterModel) -> Shares:
    labels, weights = _cell_weights(model)
    shares = np.zeros((model.n_clusters, len(labels)))
    shares[labels, np.arange(len(labels))] = weights
    return lambda _slot: shares


# ---- centroids ----


def _centres(model: ClusterModel) -> NDArray[np.float64]:
    if model.centroids is None:
        raise InvalidSpec("this model has neither a label map nor centroids")
    return scale_many(model.features, model.centroids)


def _nearest(model: ClusterModel, points: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Of points spread over the box: the cluster, and the weight of people who may be anywhere."""
    labels = model.assign(unscale_many(model.features, points))
    return labels, ANYWHERE / np.bincount(labels, minlength=model.n_clusters)[labels]


def _crowd(model: ClusterModel) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]:
    """Points of normal crowds about the centroids, and of the whole box."""
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
    """Exact: a round normal's features are independent, so a cell's share is a product over them."""
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
    """Of a wave only the place along it counts: there a round normal is one; bounds are left out, as by the fit."""
    centres, spread = _centres(model), widths(model)
    quantiles = np.array([NormalDist().inv_cdf((i + 0.5) / WAVE_POINTS) for i in range(WAVE_POINTS)])
    rows = np.repeat(np.arange(model.n_clusters), WAVE_POINTS) * encoding.phases

    def shares(slot: int) -> NDArray[np.float64]:
        turns = np.array(encoding.weights[slot], dtype=np.float64) * (LATTICE / TURN)  # across each feature's range
        places = (centres @ turns)[:, None] + spread[:, None] * sqrt(turns @ turns) * quantiles
        parts = np.minimum((places % 1.0 * encoding.phases).astype(np.int64), encoding.phases - 1)
        counted = np.bincount(rows + parts.ravel(), minlength=model.n_clusters * encoding.phases)
        found = counted.reshape(model.n_clusters, encoding.phases) / WAVE_POINTS
        return np.asarray((1 - ANYWHERE) * found + ANYWHERE / encoding.phases, dtype=np.float64)

    return shares


# ---- noisy vectors ----


def vector_evidence(model: ClusterModel, mechanism: DiscreteLaplaceMechanism) -> NDArray[np.float64]:
    """Log likelihood of what is sent of one feature, given the cluster: (n_clusters, n_features, steps + 1).

    Sent places outside of 0..steps tell what its ends tell: beyond them the noise's density
    falls by the same factor whatever the record, and so it does where sums are clamped. A
    place's sum over the records' places, sum of P(x) r^|v - x|, is made by one pass upwards
    and one downwards. Of a label map, each cell's people are at its middle.
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
    """P(place | cluster) of each feature by itself: (n_clusters, n_features, steps + 1)."""
    if model.label_map is not None:
        raise InvalidSpec("noisy vectors are labelled by centroids, not by a label map")
    centres, spread = _centres(model), widths(model)
    edges = (np.arange(1, steps + 1) - 0.5) / steps
    return np.stack([interval_shares(places, spread, edges) for places in centres.T], axis=1)


def vector_posterior_terms(
    evidence: NDArray[np.float64], mechanism: DiscreteLaplaceMechanism, values: NDArray[np.uint8]
) -> NDArray[np.float64]:
    """Log likelihood of whole vectors: (n, n_clusters). A round normal's features are independent given the cluster."""
    places = np.clip(discrete_laplace.vectors_of(mechanism, values), 0, mechanism.steps)
    total = np.zeros((len(values), len(evidence)))
    for feature in range(mechanism.n_features):
        total += evidence[:, feature, places[:, feature]].T
    return total


# ---- normal crowds ----


def interval_shares(
    centres: NDArray[np.float64], spread: NDArray[np.float64], edges: NDArray[np.float64]
) -> NDArray[np.float64]:
    """What of each normal, clipped to [0, 1], lies between edges: (n, n_edges + 1), small ones too, by their tails."""
    scores = (edges[None, :] - centres[:, None]) / np.maximum(spread, 1e-9)[:, None]
    upper = _tails(scores)
    lower = _tails(-scores)
    ends = np.ones((len(centres), 1))
    from_above = -np.diff(upper, axis=1, prepend=ends, append=0 * ends)
    from_below = np.diff(lower, axis=1, prepend=0 * ends, append=ends)
    is_above = np.concatenate([scores > 0, ends > 0], axis=1)  # the interval's upper edge; the last has none
    return np.asarray(np.where(is_above, from_above, from_below), dtype=np.float64)


def _tails(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """P(Z > score) of a standard normal."""
    flat = [0.5 * erfc(score) for score in (scores / sqrt(2)).ravel().tolist()]
    return np.array(flat, dtype=np.float64).reshape(scores.shape)


@lru_cache(maxsize=8)
def normal_points(n_features: int, n: int) -> NDArray[np.float64]:
    """Points of a standard normal in d dimensions, with its mean and covariance: (n, d), n even and at least 2 d."""
    even = even_points(n_features, n // 2)
    half = np.array([[NormalDist().inv_cdf(share) for share in row] for row in even.tolist()])
    round_ = half @ np.linalg.inv(np.linalg.cholesky(half.T @ half / len(half))).T
    return np.concatenate([round_, -round_])


def even_points(n_features: int, n: int) -> NDArray[np.float64]:
    """Points spread over (0, 1)^d: multiples of the square roots of primes, less their whole parts."""
    primes: list[int] = []
    number = 2
    while len(primes) < n_features:
        if all(number % prime for prime in primes):
            primes.append(number)
        number += 1
    steps = np.sqrt(np.array(primes, dtype=np.float64))
    places = np.arange(1, n + 1)[:, None] * steps[None, :] % 1.0
    return np.asarray(np.clip(places, 1e-9, 1 - 1e-9), dtype=np.float64)
