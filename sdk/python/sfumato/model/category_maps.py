"""Label maps of clusters that an attribute formed: the plain map of each category, and the points of cells."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InvalidSpec
from sfumato.model.cluster_model import ClusterModel
from sfumato.records.encodings import scale_many


class CategoryMap(NamedTuple):
    """The label map of one category.

    Attributes
    ----------
    attribute, category : str or None
        Name of the attribute and of the category; None if no attribute formed the clusters.
    model : ClusterModel
        The clusters over the numeric features, with the numbers that they have in the whole result.
    """

    attribute: str | None
    category: str | None
    model: ClusterModel


def category_maps(model: ClusterModel) -> tuple[CategoryMap, ...]:
    """Return the label map of each category of the attribute that formed the clusters, over the numeric features.

    Without such an attribute, or without a label map, the only one is the model itself. All keep the numbers of the
    clusters, and the sizes and centroids of all of them.

    Examples
    --------
    >>> import numpy as np
    >>> from sfumato import ClusterModel, Feature
    >>> from sfumato.model.category_maps import category_maps
    >>> shares, places = np.array([0.4, 0.6]), np.array([[2.5], [7.5]])
    >>> model = ClusterModel("centroids", (Feature("east", 0, 10),), shares, np.zeros(2), centroids=places)
    >>> [each.category for each in category_maps(model)]
    [None]
    """
    if model.label_map is None or not model.attributes:
        return (CategoryMap(None, None, model),)
    (attribute,) = model.attributes
    return tuple(
        CategoryMap(attribute.name, category, _of_category(model, model.label_map, place))
        for place, category in enumerate(attribute.categories)
    )


def _of_category(model: ClusterModel, labels: NDArray[np.int64], place: int) -> ClusterModel:
    n_numeric = model.n_numeric
    return replace(
        model,
        features=model.features[:n_numeric],
        attributes=(),
        centroids=None if model.centroids is None else model.centroids[:, :n_numeric],
        centroid_errors=None if model.centroid_errors is None else model.centroid_errors[:, :n_numeric],
        label_map=labels[..., place],
        density=None if model.density is None else model.density[..., place],
    )


def cell_points(model: ClusterModel, index: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the middles of cells of the label map, scaled to [0, 1] per feature: (n, n_features).

    Parameters
    ----------
    model : ClusterModel
    index : ndarray of shape (n, ndim), int64
        Places along the axes of the label map.

    Raises
    ------
    InvalidSpec
        The model has no label map.
    """
    if model.label_map is None:
        raise InvalidSpec("this model has no cells: its centroids label points")
    shape, n_numeric = model.label_map.shape, model.n_numeric
    parts = [(index[:, :n_numeric] + 0.5) / shape[:n_numeric]]
    if model.attributes:
        shares = [np.eye(n)[index[:, n_numeric + place]] for place, n in enumerate(shape[n_numeric:])]
        parts.append(scale_many(model.features[n_numeric:], np.concatenate(shares, axis=1)))
    return np.concatenate(parts, axis=1)
