"""The part of each feature in the separation of clusters, and the result of a check for irrelevant features."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from sfumato.records.encodings import differences, scale_many
from sfumato.specs import Feature, circles_of
from sfumato.specs.attributes import Categorical


def feature_shares(
    features: tuple[Feature, ...], centroids: NDArray[np.float64] | None, sizes: NDArray[np.float64]
) -> NDArray[np.float64] | None:
    """Return the share of each feature in the separation of the clusters, or None if nothing is separated.

    The squared distance of each centroid from the nearest other one, with features scaled to [0, 1], is divided among
    the features. The shares are the mean over the people. They state what the clusters use, and not what they should
    use. Only released values are read, so nothing is spent.

    Parameters
    ----------
    features : tuple of Feature
    centroids : ndarray of shape (k, d) or None
        In the units of the features.
    sizes : ndarray of shape (k,)

    Returns
    -------
    ndarray of shape (d,), float64, or None
        Non-negative, with sum 1.
    """
    if centroids is None or len(centroids) < 2:
        return None
    centres = scale_many(features, centroids)
    parts = np.zeros(len(features))
    for centre, size in zip(centres, sizes, strict=True):
        squares = differences(centres, centre, circles_of(features)) ** 2
        distances = squares.sum(axis=1)
        distances[distances == 0] = np.inf
        nearest = int(distances.argmin())
        if np.isfinite(distances[nearest]):
            parts += max(float(size), 0.0) * squares[nearest] / distances[nearest]
    total = float(parts.sum())
    return parts / total if total > 0 else None


def by_column(
    features: Sequence[Feature], attributes: Sequence[Categorical], values: NDArray[np.float64]
) -> dict[str, float]:
    """Return the value of each column by its name, from one of each feature. Those of categories are added.

    The last features are the categories of the attributes.
    """
    n_numeric = len(features) - sum(len(each.categories) for each in attributes)
    found = {each.name: float(values[place]) for place, each in enumerate(features[:n_numeric])}
    start = n_numeric
    for attribute in attributes:
        end = start + len(attribute.categories)
        found[attribute.name] = float(values[start:end].sum())
        start = end
    return found


@dataclass(frozen=True, eq=False)
class FeatureCheck:
    """A check for features that divide people where nothing separates them.

    Attributes
    ----------
    epsilon : float
        Cost of the two queries of the check, as a part of the cost of the job.
    gapless_shares : ndarray of shape (d,), float64
        Share of each feature in the separation of neighbouring clusters without a gap between them. The sum is at most
        1.
    peak_scores : ndarray of shape (d,), float64
        How much more the histogram of each feature differs from one with a single peak than noise explains, in standard
        deviations. From 3 on, it has more than one peak. 0 for categories, which are not checked.
    irrelevant : tuple of str
        Features with a large gapless share and no second peak. Empty if the check is not conclusive.
    is_conclusive : bool
        Whether the records suffice for the check at this cost.
    """

    epsilon: float
    gapless_shares: NDArray[np.float64]
    peak_scores: NDArray[np.float64]
    irrelevant: tuple[str, ...]
    is_conclusive: bool

    def to_wire(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "epsilon": self.epsilon,
            "gapless_shares": self.gapless_shares.tolist(),
            "peak_scores": self.peak_scores.tolist(),
            "irrelevant": list(self.irrelevant),
            "is_conclusive": self.is_conclusive,
        }

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Return the check that `to_wire` wrote."""
        return cls(
            float(wire["epsilon"]),
            np.asarray(wire["gapless_shares"], dtype=np.float64),
            np.asarray(wire["peak_scores"], dtype=np.float64),
            tuple(wire["irrelevant"]),
            bool(wire["is_conclusive"]),
        )


def list_names(names: Sequence[str]) -> str:
    """Return names in quotes, with commas and one *and*."""
    quoted = [f"'{name}'" for name in names]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} and {quoted[-1]}"
