"""Cluster model that a result publishes, and the labelling of points with it.

A model is computed from tallies or query answers alone. Labelling points with it costs no privacy
budget, and a device can label its own record.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.errors import InvalidSpec
from sfumato.model.cluster_names import check_names
from sfumato.model.distances import nearest_centres, point_blocks, squared_distances
from sfumato.model.feature_shares import FeatureCheck, by_column, feature_shares
from sfumato.model.geography import errors_in_km, place_of
from sfumato.model.levels import Level, levels_of
from sfumato.model.memberships import Memberships, fits, memberships_from_wire
from sfumato.model.precision import ExpectedAgreement, ExpectedLoss, Verdict
from sfumato.model.tables import Columns, add_column, new_frame
from sfumato.records.encodings import scale_many
from sfumato.records.mixed import count_categories, find_cells, to_points
from sfumato.specs import Feature, circles_of, features_from_wire, to_wire
from sfumato.specs.attributes import Categorical, attribute_to_wire, attributes_from_wire, clustering_attributes

if TYPE_CHECKING:
    from pandas import DataFrame  # type: ignore[import-not-found,import-untyped,unused-ignore]

T = TypeVar("T", ExpectedAgreement, ExpectedLoss)
ModelType = Literal["label_map", "centroids"]
PrivacyStatus = Literal["dp", "post_processed", "public"]

SHOWN_FEATURES = 6  # names in a repr


@dataclass(frozen=True, eq=False, repr=False)
class ClusterModel:
    """The clusters that a job released.

    Attributes
    ----------
    type : {'label_map', 'centroids'}
        A label for each cell of a grid over the bounds, or the nearest centroid.
    features : tuple of Feature
        The features with their public bounds. Points are in these units. The last ones are the shares of categories, if
        attributes formed the clusters.
    sizes : ndarray of shape (n_clusters,), float64
        Estimated share of the people inside the bounds in each cluster, in [0, 1]. The sum is 1.
    size_errors : ndarray of shape (n_clusters,), float64
        Standard error of each share.
    centroids : ndarray of shape (n_clusters, n_features), float64, or None
        In the features' units. With a label map, the centre of mass of each cluster.
    centroid_errors : ndarray of the centroids' shape, float64, or None
        Standard error of each coordinate.
    label_map : ndarray of shape (cells,) * n_numeric, int64, or None
        Cluster of each cell, 0 .. n_clusters-1. If an attribute formed the clusters, its categories are along one more
        axis, the last one; see `sfumato.model.category_maps`.
    density : ndarray of the label map's shape, float64, or None
        Estimated share of people in each cell.
    soft : Memberships or None
        For type 'centroids': the rule that `memberships` applies.
    verdict : Verdict
        The quality of the result: the worse of what the loss and the agreement allow.
    verdict_reason : str
        Sentences that state what the verdict follows from.
    outside_share : float or None
        Estimated share of all people that are outside of the bounds, in [0, 1]. The sizes are shares of those inside.
        None if people outside were not counted, because their values were moved to the bounds.
    outside_share_error : float or None
        Standard error of the share.
    dishonest_shares : ndarray of shape (n_clusters,), float64, or None
        For reports: the smallest share of dishonest devices that could have made each cluster, a lower bound.
    expected_agreement : ExpectedAgreement or None
        How far repeated runs reproduce these clusters. None for label maps without a smooth density.
    expected_loss : ExpectedLoss or None
        For centroids of methods with a measured loss.
    feature_check : FeatureCheck or None
        Irrelevant features, if the job checks for them.
    attributes : tuple of Categorical
        The attributes by which the job clustered. A feature, such as `plan = pro`, has the share of each category.
    names : tuple of str
        Names that an analyst gave to the clusters, in their order; empty for a cluster without a name. Empty without
        names.
    ids : tuple of (str or None)
        Ids (`clu_…`) of the clusters of a window in their series, in their order; None for a cluster that has none.
        Empty unless the job measured a window.
    diagnostics : mapping
        Plain JSON values about the fit and its reliability.
    warnings : tuple of str
        Limitations of this result, as sentences.
    privacy : mapping of str to {'dp', 'post_processed', 'public'}
        Privacy status of each field of the released document.
    """

    type: ModelType
    features: tuple[Feature, ...]
    sizes: NDArray[np.float64]
    size_errors: NDArray[np.float64]
    centroids: NDArray[np.float64] | None = None
    centroid_errors: NDArray[np.float64] | None = None
    label_map: NDArray[np.int64] | None = None
    density: NDArray[np.float64] | None = None
    soft: Memberships | None = None
    verdict: Verdict = Verdict.DOUBTFUL
    verdict_reason: str = ""
    expected_agreement: ExpectedAgreement | None = None
    expected_loss: ExpectedLoss | None = None
    outside_share: float | None = None
    outside_share_error: float | None = None
    dishonest_shares: NDArray[np.float64] | None = None
    feature_check: FeatureCheck | None = None
    attributes: tuple[Categorical, ...] = ()
    names: tuple[str, ...] = ()
    ids: tuple[str | None, ...] = ()
    diagnostics: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    privacy: Mapping[str, PrivacyStatus] = field(default_factory=dict)

    @property
    def n_clusters(self) -> int:
        """Return the number of clusters."""
        return len(self.sizes)

    @property
    def further_figures(self) -> tuple[str, ...]:
        """Return the sentences about the quality that the verdict's reason lacks.

        They state the expected agreement, the expected loss, and the gaps that the fit of a label map smooths out.
        """
        figures = [each.sentence for each in (self.expected_agreement, self.expected_loss) if each is not None]
        if self.expected_agreement is not None and (scale := self.diagnostics.get("length_scale")) is not None:
            figures.append(f"Gaps narrower than about {100 * scale:.2g} % of a feature's range do not divide groups.")
        return tuple(sentence for sentence in figures if sentence not in self.verdict_reason)

    @property
    def n_numeric(self) -> int:
        """Return the number of features that are numbers. The others are shares of categories."""
        return len(self.features) - count_categories(self.attributes)

    @property
    def category_shares(self) -> dict[str, NDArray[np.float64]]:
        """Return the shares of the categories in each cluster: (n_clusters, n_categories), by the attribute's name.

        Empty unless attributes formed the clusters. The errors are in `centroid_errors`.
        """
        if self.centroids is None or not self.attributes:
            return {}
        sizes = [len(each.categories) for each in self.attributes]
        parts = np.split(self.centroids[:, self.n_numeric :], np.cumsum(sizes)[:-1], axis=1)
        return {each.name: part for each, part in zip(self.attributes, parts, strict=True)}

    @property
    def feature_shares(self) -> NDArray[np.float64] | None:
        """Return the share of each feature in the separation of the clusters; see `sfumato.model.feature_shares`."""
        return feature_shares(self.features, self.centroids, self.sizes)

    @property
    def column_shares(self) -> dict[str, float]:
        """Return the share of each column in the separation of the clusters, by its name; the sum is 1.

        That of an attribute is the sum over its categories. Empty if nothing is separated.
        """
        shares = self.feature_shares
        return {} if shares is None else by_column(self.features, self.attributes, shares)

    @property
    def levels(self) -> tuple[Level, ...]:
        """Return up to three nested maps that the data support about as well, from the fewest clusters on.

        One of them is this map. Only label maps of a smooth density have levels, if the number of clusters was not
        given.
        """
        return levels_of(self.diagnostics, self.label_map)

    def assign(self, points: ArrayLike) -> NDArray[np.int64]:
        """Return the cluster of each point.

        Parameters
        ----------
        points : array-like of shape (n, n_features)
            Finite, in the features' units. Values outside the bounds are clipped. The columns of a data
            frame are matched by name; values without names are assumed to have the features' order. If attributes
            formed the clusters, a table needs the columns of the numeric features and of the attributes.

        Returns
        -------
        ndarray of shape (n,), int64
            Cluster of each point, 0 .. n_clusters-1.

        Raises
        ------
        InvalidPoint
            The array has another shape or other columns, or a value is not finite.
        InvalidSpec
            The model has neither a label map nor centroids.

        Examples
        --------
        >>> import numpy as np
        >>> from sfumato import ClusterModel, Feature
        >>> shares, places = np.array([0.4, 0.6]), np.array([[2.5], [7.5]])
        >>> model = ClusterModel("centroids", (Feature("east", 0, 10),), shares, np.zeros(2), centroids=places)
        >>> model.assign([[1.0], [9.0], [4.0]])
        array([0, 1, 0])
        """
        scaled = self._scale(points)
        if self.label_map is not None:
            index = find_cells(scaled, self.label_map.shape, self.n_numeric)
            return np.asarray(self.label_map[tuple(index.T)], dtype=np.int64)
        labels = np.empty(len(scaled), dtype=np.int64)
        centres = self._scaled_centres()
        for part in point_blocks(scaled.shape):
            labels[part] = nearest_centres(scaled[part], centres, circles_of(self.features))
        return labels

    def _scale(self, points: ArrayLike) -> NDArray[np.float64]:
        return scale_many(self.features, to_points(self.features, self.attributes, points))

    def names_of(self, labels: NDArray[np.int64]) -> NDArray[np.object_]:
        """Return the names of labels, in the labels' shape. A cluster without a name has an empty text."""
        return np.array(self.names or [""] * self.n_clusters, dtype=object)[labels]

    def distances(self, points: ArrayLike) -> NDArray[np.float64]:
        """Return the distance of each point from each centroid.

        Each feature is clipped to its bounds and divided by its range, as for the labels: without a label map, the
        nearest centroid is the cluster of `assign`. Along a periodic feature, the distance is that of the shorter way.

        Parameters
        ----------
        points : array-like of shape (n, n_features)
            As for `assign`.

        Returns
        -------
        ndarray of shape (n, n_clusters), float64
            In 0 .. sqrt(n_features).

        Raises
        ------
        InvalidPoint, InvalidSpec
            As `assign`; InvalidSpec if the model has no centroids.
        """
        scaled, centres = self._scale(points), self._scaled_centres()
        found = np.empty((len(scaled), self.n_clusters))
        for part in point_blocks(scaled.shape):
            found[part] = np.sqrt(squared_distances(scaled[part], centres, circles_of(self.features)))
        return found

    def _scaled_centres(self) -> NDArray[np.float64]:
        """Return the centroids in parts of the features' ranges. Raise InvalidSpec without centroids."""
        if self.centroids is None:
            raise InvalidSpec("this model has no centroids")
        return scale_many(self.features, self.centroids)

    def predict(self, points: ArrayLike) -> NDArray[np.int64]:
        """Return the cluster of each point, as `assign` does. This is the name in scikit-learn."""
        return self.assign(points)

    @property
    def cluster_centers_(self) -> NDArray[np.float64]:
        """Return the centroids under their name in scikit-learn. Raise AttributeError if the model has none."""
        if self.centroids is None:
            raise AttributeError("this model has no centroids: use label_map")
        return self.centroids

    def to_columns(self) -> Columns:
        """Return the clusters, one per row; see `sfumato.model.frames.clusters_columns`."""
        columns: Columns = {"cluster": np.arange(self.n_clusters)}
        if self.names:
            columns["name"] = self.names_of(columns["cluster"])
        if self.ids:
            columns["id"] = np.array(self.ids, dtype=object)
        columns |= {"size": self.sizes, "size_error": self.size_errors}
        for place, feature in enumerate(self.features):
            if self.centroids is not None:
                add_column(columns, feature.name, self.centroids[:, place])
            if self.centroid_errors is not None:
                add_column(columns, f"{feature.name}_error", self.centroid_errors[:, place])
        plane = place_of(self.features)
        if plane is not None and self.centroids is not None and self.centroid_errors is not None:
            in_km = errors_in_km(self.centroids[:, list(plane)], self.centroid_errors[:, list(plane)])
            add_column(columns, "error_km", in_km)
        return columns

    def to_frame(self) -> "DataFrame":
        """Return the clusters as a DataFrame indexed by cluster. Needs pandas."""
        return new_frame(self.to_columns()).set_index("cluster")

    def __repr__(self) -> str:
        names = [each.name for each in self.features[: self.n_numeric]] + [each.name for each in self.attributes]
        of = ", ".join(names) if len(names) <= SHOWN_FEATURES else f"{len(names)} features"
        return f"<ClusterModel {self.type}: {self.n_clusters} clusters of {of}; verdict {self.verdict.value}>"

    def memberships(self, points: ArrayLike) -> NDArray[np.float64]:
        """Return the degree to which each point belongs to each cluster.

        The cluster with the largest membership can differ from the label of `assign`, which is
        always the nearest centroid. A mixture also uses the sizes and widths of the clusters, and
        the distance `absolute` is the sum over the features.

        Parameters
        ----------
        points : array-like of shape (n, n_features)
            Finite, in the features' units. Values outside the bounds are clipped. The columns of a data
            frame are matched by name; values without names are assumed to have the features' order.

        Returns
        -------
        ndarray of shape (n, n_clusters), float64
            In [0, 1]. Each row sums to 1.

        Raises
        ------
        InvalidPoint
            The array has another shape or other columns, or a value is not finite.
        InvalidSpec
            The model publishes no membership rule.
        """
        if self.soft is None or self.centroids is None:
            raise InvalidSpec("this model publishes no membership rule. Use assign for hard labels.")
        scaled, centres = self._scale(points), scale_many(self.features, self.centroids)
        found = np.empty((len(scaled), self.n_clusters))
        for part in point_blocks(scaled.shape):
            found[part] = self.soft.of(scaled[part], centres, self.sizes, circles_of(self.features))
        return found

    def to_wire(self) -> dict[str, Any]:
        """Return the model as plain JSON values, with arrays flat in row-major order and their shape."""
        shares = self.feature_shares
        return {
            "type": self.type,
            "features": [to_wire(feature) for feature in self.features],
            "n_clusters": self.n_clusters,
            "sizes": self.sizes.tolist(),
            "size_errors": self.size_errors.tolist(),
            "centroids": None if self.centroids is None else self.centroids.tolist(),
            "centroid_errors": None if self.centroid_errors is None else self.centroid_errors.tolist(),
            "grid_shape": None if self.label_map is None else list(self.label_map.shape),
            "labels": None if self.label_map is None else self.label_map.ravel().tolist(),
            "density": None if self.density is None else self.density.ravel().tolist(),
            "memberships": None if self.soft is None else self.soft.to_wire(),
            "outside_share": self.outside_share,
            "outside_share_error": self.outside_share_error,
            "dishonest_shares": None if self.dishonest_shares is None else self.dishonest_shares.tolist(),
            "verdict": self.verdict.value,
            "verdict_reason": self.verdict_reason,
            "expected_agreement": None if self.expected_agreement is None else asdict(self.expected_agreement),
            "expected_loss": None if self.expected_loss is None else asdict(self.expected_loss),
            "feature_shares": None if shares is None else shares.tolist(),
            "feature_check": None if self.feature_check is None else self.feature_check.to_wire(),
            "attributes": [attribute_to_wire(each) for each in self.attributes],
            "names": list(self.names),
            "ids": list(self.ids),
            "diagnostics": dict(self.diagnostics),
            "warnings": list(self.warnings),
            "privacy": dict(self.privacy),
        }


def model_from_wire(wire: Mapping[str, Any]) -> ClusterModel:
    """Return the model that `ClusterModel.to_wire` wrote.

    Raises
    ------
    InvalidSpec
        The document is not a cluster model, or its parts are inconsistent.
    """
    try:
        model = ClusterModel(
            type=wire["type"],
            features=features_from_wire(list(wire["features"])),
            sizes=np.asarray(wire["sizes"], dtype=np.float64),
            size_errors=np.asarray(wire["size_errors"], dtype=np.float64),
            centroids=_points(wire.get("centroids"), len(wire["features"])),
            centroid_errors=_points(wire.get("centroid_errors"), len(wire["features"])),
            label_map=_labels(wire.get("labels"), wire.get("grid_shape")),
            density=_array(wire.get("density"), wire.get("grid_shape")),
            soft=memberships_from_wire(wire.get("memberships")),
            verdict=Verdict(wire["verdict"]),
            verdict_reason=str(wire.get("verdict_reason", "")),
            expected_agreement=_expected(ExpectedAgreement, wire.get("expected_agreement")),
            expected_loss=_expected(ExpectedLoss, wire.get("expected_loss")),
            outside_share=wire.get("outside_share"),
            outside_share_error=wire.get("outside_share_error"),
            dishonest_shares=_array(wire.get("dishonest_shares"), None),
            feature_check=FeatureCheck.from_wire(check) if (check := wire.get("feature_check")) else None,
            attributes=clustering_attributes(attributes_from_wire(wire.get("attributes", []))),
            names=check_names(wire.get("names", ()), len(wire["sizes"])),
            ids=tuple(wire.get("ids", ())),
            diagnostics=wire.get("diagnostics", {}),
            warnings=tuple(wire.get("warnings", ())),
            privacy=wire.get("privacy", {}),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidSpec("this is not a cluster model") from error
    if not _is_consistent(model):
        raise InvalidSpec("the parts of this cluster model are inconsistent")
    return model


def _is_consistent(model: ClusterModel) -> bool:
    n_clusters, n_features = model.n_clusters, len(model.features)
    labels, centroids, errors = model.label_map, model.centroids, model.centroid_errors
    categories = tuple(len(each.categories) for each in model.attributes)
    return (
        model.type in get_args(ModelType)
        and model.n_numeric >= 0
        and model.sizes.shape == model.size_errors.shape == (n_clusters,)
        and (model.type == "centroids" or labels is not None)
        and (model.type == "centroids") <= (centroids is not None)
        and (centroids is None or centroids.shape == (n_clusters, n_features))
        and (errors is None or (centroids is not None and errors.shape == centroids.shape))
        and (model.soft is None or (centroids is not None and fits(model.soft, n_clusters, categories)))
        and len(model.ids) in (0, n_clusters)
        and all(each is None or isinstance(each, str) for each in model.ids)
        and (labels is None or labels.shape[model.n_numeric :] == categories)
        and (labels is None or labels.ndim == model.n_numeric + len(model.attributes))
        and (labels is None or (labels.size > 0 and labels.min() >= 0 and labels.max() < n_clusters))
    )


def _expected(kind: type[T], wire: Mapping[str, Any] | None) -> T | None:
    return None if wire is None else kind(*(float(wire[name]) for name in ("value", "lower", "upper")))


def _array(values: Sequence[Any] | None, shape: Sequence[int] | None) -> NDArray[np.float64] | None:
    if values is None:
        return None
    array = np.asarray(values, dtype=np.float64)
    return array if shape is None else array.reshape(tuple(shape))


def _points(values: Sequence[Any] | None, n_features: int) -> NDArray[np.float64] | None:
    """Return coordinates as an array. An empty list has the shape (0, n_features)."""
    return _array(values, None if values else (0, n_features))


def _labels(values: Sequence[int] | None, shape: Sequence[int] | None) -> NDArray[np.int64] | None:
    if values is None or shape is None:
        return None
    return np.asarray(values, dtype=np.int64).reshape(tuple(shape))
