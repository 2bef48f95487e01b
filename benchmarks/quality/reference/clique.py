"""CLIQUE under local differential privacy: dense units of one uniform grid, pruned by their projections.

Agrawal, Gehrke, Gunopulos and Raghavan 1998, "Automatic subspace clustering of high
dimensional data for data mining applications", as Zhang et al. 2023 takes it for a comparator. That
paper runs it without privacy and states neither xi nor tau. The private form here is the
natural one: every device reports its unit of the full-dimensional grid once, at the full
epsilon, and the rest is computed from the estimates:

- xi = 10 intervals a feature, the original's own choice (fewer where xi^d would exceed 4096);
- tau = the mean share of a unit, xi^-d: Definition 2 of Zhang et al. 2023;
- bottom-up pruning: a unit is dense only if its projection to every subspace is, where a
  subspace's unit is estimated by the sum of the units above it. On exact counts the original's
  monotonicity makes that idle; on noisy ones it removes units that only noise made dense;
- clusters are face-connected dense units of the full space. With K given the K of most mass
  are kept. Points of no dense unit are the original's outliers; here they go to the nearest
  cluster, so that all points are scored, which is kinder than printing a cluster of outliers.
"""

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clustering.density.label_map import (
    dense_components,
    fill_nearest,
    keep_largest,
    project_to_shares,
    rank_by_mass,
    region_totals,
)
from clustering.rounds.decoders import decoder
from clustering.simulate import SeededEntropy, collect
from sfumato.mechanisms import design
from sfumato.model.cluster_model import ClusterModel
from sfumato.privacy.accounting import DRAW_SPAN, parse_epsilon
from sfumato.specs import MAX_CLUSTERS, Feature, GridEncoding, GrrMechanism, RoundSpec

MAX_FEATURES = 8
MAX_UNITS = 4096


@dataclass(frozen=True)
class Clique:
    """Parameters of `clique`.

    Parameters
    ----------
    epsilon : float
        What one device spends, in its one report.
    clusters : int, optional
        How many clusters to keep; None keeps every connected dense region, at most 256.
    intervals : int
        xi, intervals a feature.
    """

    epsilon: float
    clusters: int | None = None
    intervals: int = 10


def rounds(params: Clique, n_features: int) -> list[RoundSpec]:
    """Return the rounds of the comparator: one round over the full-dimensional grid."""
    if not 1 <= n_features <= MAX_FEATURES:
        raise ValueError(f"clique takes 1 to {MAX_FEATURES} features")
    most = int(round(MAX_UNITS ** (1 / n_features), 6))
    features = tuple(Feature(f"x{i + 1}", 0.0, 1.0) for i in range(n_features))
    encoding = GridEncoding((min(params.intervals, most),) * n_features)
    return [RoundSpec(features, encoding, design("auto", encoding.n_symbols, parse_epsilon(params.epsilon)))]


def clique(params: Clique, points: ArrayLike, *, seed: int, perturb: bool = True) -> ClusterModel:
    """Run CLIQUE over points, each on a device of its own.

    Parameters
    ----------
    params : Clique
    points : array-like of shape (n, d), float64
        In [0, 1]; 1 to 8 features.
    seed : int
        Of the devices' coins.
    perturb : bool
        False counts exactly: CLIQUE as published, not private.

    Returns
    -------
    ClusterModel
        A label map over the grid.

    Raises
    ------
    ValueError
        Too many features, or no points.
    """
    points = np.asarray(points, dtype=np.float64)
    if len(points) == 0:
        raise ValueError("clique needs points")
    (spec,) = rounds(params, points.shape[1])
    if not perturb:
        spec = RoundSpec(spec.features, spec.encoding, GrrMechanism(spec.encoding.n_symbols, DRAW_SPAN))
    entropy = SeededEntropy(seed)
    tally = collect(spec, points, entropy, np.zeros(len(points), dtype=np.uint64)).tally
    reading = decoder(spec.mechanism)
    assert isinstance(spec.encoding, GridEncoding)  # made above; for mypy
    shares = reading.frequencies(tally).reshape(spec.encoding.cells)
    labels = dense_components(dense_units(shares, 1 / shares.size))
    n_found = int(labels.max()) + 1
    labels = fill_nearest(keep_largest(labels, shares, params.clusters or MAX_CLUSTERS))
    density = project_to_shares(shares)
    labels, _ = rank_by_mass(labels, density)
    n_units = np.bincount(labels.ravel())
    spreads = n_units * (1 - n_units / labels.size)
    errors = reading.standard_errors(spreads, n_units, region_totals(labels, density), tally.n_reports)
    return ClusterModel(
        type="label_map",
        features=spec.features,
        sizes=region_totals(labels, density),
        size_errors=errors,
        label_map=labels,
        density=density,
        diagnostics={"dense_regions": n_found},
    )


def dense_units(shares: NDArray[np.float64], tau: float) -> NDArray[np.bool_]:
    """Mark units above `tau` with projections to all subspaces above it as well: bool of the same shape."""
    dense = shares > tau
    axes = range(shares.ndim)
    for size in range(1, shares.ndim):
        for kept in combinations(axes, size):
            others = tuple(axis for axis in axes if axis not in kept)
            dense &= shares.sum(axis=others, keepdims=True) > tau
    return np.asarray(dense, dtype=np.bool_)
