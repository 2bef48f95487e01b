"""What a result publishes, and how anyone labels points with it.

A model holds nothing of one person: it is computed from tallies alone, so labelling with
it is free, and devices can do it for themselves.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.encodings import cells, scale_many
from sfumato.errors import InvalidSpec
from sfumato.specs import Feature, features_from_wire, to_wire

ModelType = Literal["label_map", "centroids"]
PrivacyStatus = Literal["dp", "post_processed", "public"]


@dataclass(frozen=True, eq=False)
class ClusterModel:
    """Clusters as released.

    Attributes
    ----------
    type : {'label_map', 'centroids'}
        A label for every cell of a grid over the bounds, or nearest-centroid.
    features : tuple of Feature
        The public bounds; points are in these units.
    sizes : ndarray of shape (n_clusters,), float64
        Estimated share of people in each cluster, in [0, 1]; sums to one.
    size_errors : ndarray of shape (n_clusters,), float64
        Standard error of each share.
    centroids : ndarray of shape (n_clusters, n_features), float64, or None
        In the features' units; of a label map, each cluster's centre of mass.
    label_map : ndarray of shape (cells,) * n_features, int64, or None
        Cluster of each cell, 0 .. n_clusters-1.
    density : ndarray of the label map's shape, float64, or None
        Estimated share of people in each cell.
    diagnostics : mapping
        Plain JSON values: how the fit went, what can be trusted.
    warnings : tuple of str
        Sentences for a person: what this result cannot tell.
    privacy : mapping of str to {'dp', 'post_processed', 'public'}
        What each field of the released document is.
    """

    type: ModelType
    features: tuple[Feature, ...]
    sizes: NDArray[np.float64]
    size_errors: NDArray[np.float64]
    centroids: NDArray[np.float64] | None = None
    label_map: NDArray[np.int64] | None = None
    density: NDArray[np.float64] | None = None
    diagnostics: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    privacy: Mapping[str, PrivacyStatus] = field(default_factory=dict)

    @property
    def n_clusters(self) -> int:
        return len(self.sizes)

    def assign(self, points: ArrayLike) -> NDArray[np.int64]:
        """Label points.

        Parameters
        ----------
        points : array-like of shape (n, n_features)
            In the features' units; clipped to the bounds, finite.

        Returns
        -------
        ndarray of shape (n,), int64
            Cluster of each point, 0 .. n_clusters-1.

        Raises
        ------
        InvalidPoint
            Another shape, or a value that is not finite.
        """
        scaled = scale_many(self.features, points)
        if self.label_map is not None:
            index = cells(scaled, self.label_map.shape)
            return np.asarray(self.label_map[tuple(index.T)], dtype=np.int64)
        if self.centroids is None:
            raise InvalidSpec("this model has neither a label map nor centroids")
        centres = scale_many(self.features, self.centroids)
        labels = np.empty(len(scaled), dtype=np.int64)
        for start in range(0, len(scaled), 65536):  # bounds memory at 65536 * n_clusters
            part = scaled[start : start + 65536]
            distances = ((part[:, None, :] - centres[None, :, :]) ** 2).sum(axis=2)
            labels[start : start + 65536] = distances.argmin(axis=1)
        return labels

    def to_wire(self) -> dict[str, Any]:
        """The model as plain JSON values; arrays row-major and flat beside their shape."""
        return {
            "type": self.type,
            "features": [to_wire(feature) for feature in self.features],
            "n_clusters": self.n_clusters,
            "sizes": self.sizes.tolist(),
            "size_errors": self.size_errors.tolist(),
            "centroids": None if self.centroids is None else self.centroids.tolist(),
            "grid_shape": None if self.label_map is None else list(self.label_map.shape),
            "labels": None if self.label_map is None else self.label_map.ravel().tolist(),
            "density": None if self.density is None else self.density.ravel().tolist(),
            "diagnostics": dict(self.diagnostics),
            "warnings": list(self.warnings),
            "privacy": dict(self.privacy),
        }


def model_from_wire(wire: Mapping[str, Any]) -> ClusterModel:
    """Read what `ClusterModel.to_wire` wrote; raises InvalidSpec."""
    try:
        model = ClusterModel(
            type=wire["type"],
            features=features_from_wire(list(wire["features"])),
            sizes=np.asarray(wire["sizes"], dtype=np.float64),
            size_errors=np.asarray(wire["size_errors"], dtype=np.float64),
            centroids=_array(wire.get("centroids"), None),
            label_map=_labels(wire.get("labels"), wire.get("grid_shape")),
            density=_array(wire.get("density"), wire.get("grid_shape")),
            diagnostics=wire.get("diagnostics", {}),
            warnings=tuple(wire.get("warnings", ())),
            privacy=wire.get("privacy", {}),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidSpec("this is not a cluster model") from error
    if not _is_sound(model):
        raise InvalidSpec("this cluster model's parts do not fit one another")
    return model


def _is_sound(model: ClusterModel) -> bool:
    n_clusters, n_features = model.n_clusters, len(model.features)
    labels, centroids = model.label_map, model.centroids
    return (
        model.type in get_args(ModelType)
        and model.sizes.shape == model.size_errors.shape == (n_clusters,)
        and (model.type == "centroids" or labels is not None)
        and (model.type == "label_map" or centroids is not None)
        and (centroids is None or centroids.shape == (n_clusters, n_features))
        and (labels is None or (labels.ndim == n_features and labels.size > 0))
        and (labels is None or (labels.min() >= 0 and labels.max() < n_clusters))
    )


def _array(values: Sequence[Any] | None, shape: Sequence[int] | None) -> NDArray[np.float64] | None:
    if values is None:
        return None
    array = np.asarray(values, dtype=np.float64)
    return array if shape is None else array.reshape(tuple(shape))


def _labels(values: Sequence[int] | None, shape: Sequence[int] | None) -> NDArray[np.int64] | None:
    if values is None or shape is None:
        return None
    return np.asarray(values, dtype=np.int64).reshape(tuple(shape))
