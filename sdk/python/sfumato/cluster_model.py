"""What a result publishes, and how anyone labels points with it.

A model holds nothing of one person: it is computed from tallies alone, so labelling with
it is free, and devices can do it for themselves.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.encodings import cells, scale_many, symbols
from sfumato.errors import InvalidSpec
from sfumato.memberships import Memberships, fits, memberships_from_wire
from sfumato.specs import Encoding, Feature, encoding_from_wire, features_from_wire, to_wire

if TYPE_CHECKING:  # a device draws nothing
    from matplotlib.figure import Figure

ModelType = Literal["label_map", "centroids", "codes"]
PrivacyStatus = Literal["dp", "post_processed", "public"]


@dataclass(frozen=True, eq=False)
class ClusterModel:
    """Clusters as released.

    Attributes
    ----------
    type : {'label_map', 'centroids', 'codes'}
        A label for every cell of a grid over the bounds, nearest centroid, or a label for
        every symbol of an encoding.
    features : tuple of Feature
        The public bounds; points are in these units.
    sizes : ndarray of shape (n_clusters,), float64
        Estimated share of people in each cluster, in [0, 1]; sums to one.
    size_errors : ndarray of shape (n_clusters,), float64
        Standard error of each share.
    centroids : ndarray of shape (n_clusters, n_features), float64, or None
        In the features' units; of a label map, each cluster's centre of mass.
    centroid_errors : ndarray of the centroids' shape, float64, or None
        Standard error of each coordinate.
    encoding : Encoding or None
        Of codes: how a point becomes a symbol, under slot 0.
    label_map : ndarray of shape (cells,) * n_features, of codes (n_symbols,), int64, or None
        Cluster of each cell or symbol, 0 .. n_clusters-1.
    density : ndarray of the label map's shape, float64, or None
        Estimated share of people in each cell or symbol.
    soft : Memberships or None
        Of centroids: the rule of `memberships`.
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
    centroid_errors: NDArray[np.float64] | None = None
    encoding: Encoding | None = None
    label_map: NDArray[np.int64] | None = None
    density: NDArray[np.float64] | None = None
    soft: Memberships | None = None
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

        Examples
        --------
        >>> import numpy as np
        >>> from sfumato import ClusterModel, Feature
        >>> shares, places = np.array([0.4, 0.6]), np.array([[2.5], [7.5]])
        >>> model = ClusterModel("centroids", (Feature("east", 0, 10),), shares, np.zeros(2), centroids=places)
        >>> model.assign([[1.0], [9.0], [4.0]])
        array([0, 1, 0])
        """
        scaled = scale_many(self.features, points)
        if self.encoding is not None and self.label_map is not None:
            return np.asarray(
                self.label_map[symbols(self.encoding, scaled, np.zeros(len(scaled), dtype=np.int64))], dtype=np.int64
            )
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

    def memberships(self, points: ArrayLike) -> NDArray[np.float64]:
        """How much of each point belongs to each cluster, by the rule the model publishes.

        The largest is not always the label of `assign`, which stays the nearest centroid, one
        rule for all results: a mixture counts the clusters' sizes and widths too, and the
        `absolute` distance measures along the features.

        Parameters
        ----------
        points : array-like of shape (n, n_features)
            In the features' units; clipped to the bounds, finite.

        Returns
        -------
        ndarray of shape (n, n_clusters), float64
            In [0, 1]; rows sum to one.

        Raises
        ------
        InvalidPoint
            Another shape, or a value that is not finite.
        InvalidSpec
            The model publishes no such rule.
        """
        if self.soft is None or self.centroids is None:
            raise InvalidSpec("this model publishes no rule of memberships: its labels are hard")
        scaled, centres = scale_many(self.features, points), scale_many(self.features, self.centroids)
        found = np.empty((len(scaled), self.n_clusters))
        for start in range(0, len(scaled), 65536):  # bounds memory, as in `assign`
            part = slice(start, start + 65536)
            found[part] = self.soft.of(scaled[part], centres, self.sizes)
        return found

    def plot(
        self,
        *,
        title: str = "",
        caption: str | None = None,
        names: Sequence[str] = (),
        outlines: Sequence[ArrayLike] | None = None,
    ) -> "Figure":
        """Draw the model, as `sfumato.plot.figure` does; a notebook shows what this returns.

        Needs matplotlib, the extra `plot`. `sfumato.plot.svg` and `png` make files.

        Parameters
        ----------
        title, caption : str
            Above the picture, and below that; as a caption, what the model says of itself.
        names : sequence of str, optional
            What the legend calls the clusters, in their order.
        outlines : sequence of array-like of shape (n, 2), optional
            Public lines over a map; left out, coasts where the features are longitude and
            latitude in degrees.

        Returns
        -------
        matplotlib.figure.Figure
        """
        from sfumato.plot import figure

        return figure(self, title=title, caption=caption, names=names, outlines=outlines)

    def to_wire(self) -> dict[str, Any]:
        """The model as plain JSON values; arrays row-major and flat beside their shape."""
        return {
            "type": self.type,
            "features": [to_wire(feature) for feature in self.features],
            "n_clusters": self.n_clusters,
            "sizes": self.sizes.tolist(),
            "size_errors": self.size_errors.tolist(),
            "centroids": None if self.centroids is None else self.centroids.tolist(),
            "centroid_errors": None if self.centroid_errors is None else self.centroid_errors.tolist(),
            "encoding": None if self.encoding is None else to_wire(self.encoding),
            "grid_shape": None if self.label_map is None else list(self.label_map.shape),
            "labels": None if self.label_map is None else self.label_map.ravel().tolist(),
            "density": None if self.density is None else self.density.ravel().tolist(),
            "memberships": None if self.soft is None else self.soft.to_wire(),
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
            centroids=_places(wire.get("centroids"), len(wire["features"])),
            centroid_errors=_places(wire.get("centroid_errors"), len(wire["features"])),
            encoding=None if wire.get("encoding") is None else encoding_from_wire(wire["encoding"]),
            label_map=_labels(wire.get("labels"), wire.get("grid_shape")),
            density=_array(wire.get("density"), wire.get("grid_shape")),
            soft=memberships_from_wire(wire.get("memberships")),
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
    labels, centroids, errors = model.label_map, model.centroids, model.centroid_errors
    return (
        model.type in get_args(ModelType)
        and model.sizes.shape == model.size_errors.shape == (n_clusters,)
        and (model.type == "centroids" or labels is not None)
        and (model.type == "centroids") <= (centroids is not None)
        and (centroids is None or centroids.shape == (n_clusters, n_features))
        and (errors is None or (centroids is not None and errors.shape == centroids.shape))
        and (model.soft is None or (centroids is not None and fits(model.soft, n_clusters)))
        and (model.type == "codes") == (model.encoding is not None)
        and (labels is None or labels.shape == _labelled_shape(model, labels))
        and (labels is None or (labels.size > 0 and labels.min() >= 0 and labels.max() < n_clusters))
    )


def _labelled_shape(model: ClusterModel, labels: NDArray[np.int64]) -> tuple[int, ...]:
    """What the labels' shape must be."""
    if model.encoding is None:
        return labels.shape if labels.ndim == len(model.features) else ()
    return (model.encoding.n_symbols,) if model.encoding.n_features == len(model.features) else ()


def _array(values: Sequence[Any] | None, shape: Sequence[int] | None) -> NDArray[np.float64] | None:
    if values is None:
        return None
    array = np.asarray(values, dtype=np.float64)
    return array if shape is None else array.reshape(tuple(shape))


def _places(values: Sequence[Any] | None, n_features: int) -> NDArray[np.float64] | None:
    """Of no clusters too, which on the wire have no features either."""
    return _array(values, None if values else (0, n_features))


def _labels(values: Sequence[int] | None, shape: Sequence[int] | None) -> NDArray[np.int64] | None:
    if values is None or shape is None:
        return None
    return np.asarray(values, dtype=np.int64).reshape(tuple(shape))
