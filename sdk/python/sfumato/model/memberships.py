"""Soft memberships of points in centroids, by the rule that a model publishes.

`fuzzy`: u_c ~ D_c^(-1/(m-1)), with D the distance of the fit (eq. (18) of Zhang et al. 2025; distances of
`noisy_fcm` in docs/algorithms.md). `gaussian_mixture`: the posterior of the fitted mixture,
u_c ~ size_c N(x; centre_c, width_c^2), times the shares of the categories of the record in the cluster. Points and
centres are in the scaled units of the features.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, log, sqrt
from typing import Any, ClassVar, get_args

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InvalidSpec
from sfumato.records.encodings import differences
from sfumato.records.mixed import step_for
from sfumato.specs import Distance
from sfumato.validation import is_int, require

ROUNDING = 1e-6  # share of sigma0 below which |x| is replaced by a parabola
LEAST = 1e-30  # minimum distance, which prevents a division by zero on a centre
LEAST_SHARE = 1e-6  # minimum share of a category in a cluster, because an estimate of zero is not certain

Points = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class FuzzyMemberships:
    """The fuzzy objective's memberships.

    Attributes
    ----------
    distance : {'mixed', 'euclidean', 'absolute', 'laplace', 'gaussian'}
    m : float
        Fuzziness, above 1.
    sigma0 : float
        Least spread of a report about its centre, as a share of a feature's range.
    """

    type: ClassVar[str] = "fuzzy"
    distance: Distance
    m: float
    sigma0: float

    def __post_init__(self) -> None:
        require(self.distance in get_args(Distance), f"distance must be one of {', '.join(get_args(Distance))}")
        require(isfinite(self.m) and self.m > 1, f"m must be above 1, not {self.m:g}")
        require(isfinite(self.sigma0) and self.sigma0 > 0, f"sigma0 must be above 0, not {self.sigma0:g}")

    def of(self, points: Points, centres: Points, _sizes: Points, _circles: Sequence[int] = ()) -> Points:
        """Return memberships of points of shape (n, d) in centres of shape (k, d): (n, k), with rows of sum 1."""
        distances = np.maximum(distances_of(self, points, centres), LEAST)
        closeness: Points = (distances.min(axis=1, keepdims=True) / distances) ** (1 / (self.m - 1))
        return np.asarray(closeness / closeness.sum(axis=1, keepdims=True), dtype=np.float64)

    def to_wire(self) -> dict[str, Any]:
        return {"type": self.type, "distance": self.distance, "m": self.m, "sigma0": self.sigma0}


@dataclass(frozen=True, slots=True)
class GaussianMixtureMemberships:
    """The posterior of a mixture of round normal clusters.

    Attributes
    ----------
    widths : tuple of float
        Standard deviation of each cluster in every direction, as a share of a feature's range.
    categories : tuple of int
        Number of categories of each attribute that formed the clusters. Their shares are the last features. Within a
        cluster, the attributes and the place are independent.
    """

    type: ClassVar[str] = "gaussian_mixture"
    widths: tuple[float, ...]
    categories: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        require(len(self.widths) > 0, "widths must have a number for each cluster")
        require(all(isfinite(width) and width > 0 for width in self.widths), "widths must be above 0")
        require(all(is_int(m) and m >= 2 for m in self.categories), "categories must be integers of at least 2")

    def of(self, points: Points, centres: Points, sizes: Points, circles: Sequence[int] = ()) -> Points:
        """Return memberships of points of shape (n, d) in centres of shape (k, d): (n, k), with rows of sum 1.

        Along `circles`, the indices of periodic features, a distance is that of the shorter way.
        """
        widths, d = np.array(self.widths), points.shape[1] - sum(self.categories)
        squares = (differences(points[:, None, :d], centres[None, :, :d], circles) ** 2).sum(axis=2)
        shares = np.log(np.maximum(sizes, LEAST)) - d * np.log(widths)
        logs = shares - squares / (2 * widths**2)
        for m in self.categories:
            own, of_centres = (1 / m + (part[:, d : d + m] - 0.5) / step_for(m) for part in (points, centres))
            logs += np.log(np.maximum(own @ np.maximum(of_centres, LEAST_SHARE).T, LEAST_SHARE))
            d += m
        parts: Points = np.exp(logs - logs.max(axis=1, keepdims=True, initial=-np.inf))
        return np.asarray(parts / parts.sum(axis=1, keepdims=True), dtype=np.float64)

    def to_wire(self) -> dict[str, Any]:
        wire: dict[str, Any] = {"type": self.type, "widths": list(self.widths)}
        return wire | ({"categories": list(self.categories)} if self.categories else {})


Memberships = FuzzyMemberships | GaussianMixtureMemberships


def memberships_from_wire(wire: Mapping[str, Any] | None) -> Memberships | None:
    """Return the rule that `to_wire` wrote. Ignore unknown members. Raise InvalidSpec."""
    if wire is None:
        return None
    try:
        if wire["type"] == FuzzyMemberships.type:
            return FuzzyMemberships(wire["distance"], float(wire["m"]), float(wire["sigma0"]))
        if wire["type"] == GaussianMixtureMemberships.type:
            widths = tuple(float(width) for width in wire["widths"])
            return GaussianMixtureMemberships(widths, tuple(wire.get("categories", ())))
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidSpec("these are no memberships") from error
    raise InvalidSpec("memberships of an unknown type")


def fits(rule: Memberships | None, n_clusters: int, categories: Sequence[int]) -> bool:
    """Return whether a rule has this number of clusters, and attributes with these numbers of categories."""
    if not isinstance(rule, GaussianMixtureMemberships):
        return rule is None or not categories
    return len(rule.widths) == n_clusters and rule.categories == tuple(categories)


def distances_of(rule: FuzzyMemberships, points: Points, centres: Points) -> Points:
    """Return the distance D of the fit between all points and centres: (n, k).

    The three distances with a noise model use the optimal spread max(sigma0, kappa l), so they become
    logarithmic at l = sigma0 / kappa. Corners are rounded below a millionth of sigma0.
    """
    gaps = points[:, None, :] - centres[None, :, :]
    d, sigma, rounding = points.shape[1], rule.sigma0, ROUNDING * rule.sigma0
    if rule.distance == "absolute":
        sizes = np.abs(gaps)
        return np.asarray(_rounded(sizes, rounding).sum(axis=2), dtype=np.float64)
    squares = (gaps**2).sum(axis=2)
    if rule.distance == "euclidean":
        return np.asarray(squares, dtype=np.float64)
    bowl = 0.0 if rule.distance == "laplace" else 0.5 / sigma**2
    cone = 0.0 if rule.distance == "gaussian" else 1 / sigma
    kappa = {"gaussian": 1 / sqrt(d), "laplace": 1 / d, "mixed": (1 + sqrt(1 + 4 * d)) / (2 * d)}[rule.distance]
    edge = sigma / kappa
    near = bowl * squares + cone * _rounded(np.sqrt(squares), rounding)
    at_edge = bowl * edge**2 + cone * (edge - rounding / 2)
    far = 0.5 * d * (np.log(np.maximum(squares, edge**2)) - 2 * log(edge)) + at_edge
    return np.asarray(np.where(squares >= edge**2, far, near), dtype=np.float64)


def _rounded(sizes: Points, rounding: float) -> Points:
    """Return |x| minus half the rounding, or a parabola below the rounding."""
    return np.where(sizes >= rounding, sizes - rounding / 2, sizes**2 / (2 * rounding))
