"""Results as tables: columns of numpy arrays, and pandas data frames.

Functions `..._columns` need numpy only. Functions `..._frame` need pandas: `pip install pandas`.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.errors import InvalidSpec
from sfumato.model.cluster_model import ClusterModel
from sfumato.model.tables import Columns, add_column, new_frame
from sfumato.privacy.accounting import ATTO, NANO
from sfumato.privacy.ledger import LedgerEntry
from sfumato.records.encodings import edges_of
from sfumato.records.mixed import to_points

if TYPE_CHECKING:
    from pandas import DataFrame  # type: ignore[import-not-found,import-untyped,unused-ignore]

# Exact integer amounts, and their columns as doubles for reading and plots.
_AMOUNTS = {"epsilon_nano": ("epsilon", NANO), "delta_atto": ("delta", ATTO)}


def clusters_columns(model: ClusterModel) -> Columns:
    """Return the clusters, one per row.

    Returns
    -------
    dict of str to ndarray of shape (n_clusters,)
        `cluster`, `name` if the clusters have names, `size`, `size_error`. If the model has centroids, a column per
        feature in its units, and if it has their errors, `<feature>_error`. The centres of a place also have
        `error_km`, the standard error of the distance.

    Examples
    --------
    >>> from sfumato import Feature
    >>> from sfumato.model.cluster_model import ClusterModel
    >>> from sfumato.model.frames import clusters_columns
    >>> import numpy as np
    >>> model = ClusterModel("centroids", (Feature("east", 0, 10),), np.array([.4, .6]), np.array([.01, .01]),
    ...                      centroids=np.array([[2.5], [7.5]]))
    >>> clusters_columns(model)["east"].tolist()
    [2.5, 7.5]
    """
    return model.to_columns()


def cells_columns(model: ClusterModel) -> Columns:
    """Return the cells of a label map, one per row.

    Returns
    -------
    dict of str to ndarray of shape (n_cells,)
        `cluster`, and `name` if clusters have names; the category of the attribute that formed the clusters; for each
        numeric feature `<feature>_lower` and `<feature>_upper` in its units; `density` if the model has one.

    Raises
    ------
    InvalidSpec
        The model labels no cells: it is centroids alone.
    """
    if model.label_map is None:
        raise InvalidSpec("this model labels no cells: its centroids are in clusters_frame")
    columns = _labelled(model, model.label_map.ravel())
    shape = model.label_map.shape
    places = np.indices(shape)
    for attribute, place in zip(model.attributes, places[model.n_numeric :], strict=True):
        add_column(columns, attribute.name, np.array(attribute.categories, dtype=object)[place.ravel()])
    for feature, n_cells, place in zip(model.features[: model.n_numeric], shape, places, strict=False):
        edges = edges_of(feature, n_cells)
        add_column(columns, f"{feature.name}_lower", edges[place.ravel()])
        add_column(columns, f"{feature.name}_upper", edges[place.ravel() + 1])
    if model.density is not None:
        add_column(columns, "density", model.density.ravel())
    return columns


def _labelled(model: ClusterModel, labels: NDArray[np.int64]) -> Columns:
    named: Columns = {"name": model.names_of(labels)} if model.names else {}
    return {"cluster": labels, **named} | ({"id": np.array(model.ids, dtype=object)[labels]} if model.ids else {})


def labels_columns(model: ClusterModel, points: ArrayLike) -> Columns:
    """Return points with their clusters by `model.assign`. The points stay local.

    Parameters
    ----------
    points : array-like of shape (n, n_features)
        In the features' units, matched by name, or in the features' order if they have no names.

    Returns
    -------
    dict of str to ndarray of shape (n,)
        `cluster`, `name` if the clusters have names, `id` if they have ids in a series, and a column per feature with
        the given values, which are 0 or 1 for the share of a category.
    """
    columns = _labelled(model, model.assign(points))
    given = to_points(model.features, model.attributes, points)
    for place, feature in enumerate(model.features):
        add_column(columns, feature.name, given[:, place])
    return columns


def ledger_columns(entries: Iterable[LedgerEntry]) -> Columns:
    """Return ledger entries, one per row.

    Returns
    -------
    dict of str to ndarray of shape (n,)
        The members of LedgerEntry, with exact integers and `at` as datetime64 in UTC. `epsilon` and
        `delta` are doubles for reading and plots; do not sum them.
    """
    rows = list(entries)
    columns: Columns = {}
    for name in LedgerEntry.__slots__:
        values = [getattr(entry, name) for entry in rows]
        if name == "at":
            columns[name] = np.array([each.replace(tzinfo=None) for each in values], dtype="datetime64[us]")
        elif name == "seq" or name.endswith(("_nano", "_atto")):
            columns[name] = np.array(values, dtype=np.int64)
        else:
            columns[name] = np.array(values, dtype=object)
        if name in _AMOUNTS:
            name_of_amount, unit = _AMOUNTS[name]
            columns[name_of_amount] = columns[name] / unit
    return columns


def clusters_frame(model: ClusterModel) -> "DataFrame":
    """Return `clusters_columns` as a DataFrame indexed by cluster. Needs pandas.

    Examples
    --------
    >>> from sfumato import Feature, clusters_frame
    >>> from sfumato.model.cluster_model import ClusterModel
    >>> import numpy as np
    >>> model = ClusterModel("centroids", (Feature("east", 0, 10),), np.array([.4, .6]), np.array([.01, .01]),
    ...                      centroids=np.array([[2.5], [7.5]]))
    >>> clusters_frame(model).loc[1, "east"].item()
    7.5
    """
    return model.to_frame()


def cells_frame(model: ClusterModel) -> "DataFrame":
    """Return `cells_columns` as a DataFrame. Needs pandas."""
    return new_frame(cells_columns(model))


def labels_frame(model: ClusterModel, points: ArrayLike) -> "DataFrame":
    """Return `labels_columns` as a DataFrame. Needs pandas.

    The frame has the index of `points` if they are a frame of pandas, so that joins and assignments of columns give
    each row its own label.

    Examples
    --------
    >>> import numpy as np
    >>> import pandas as pd
    >>> from sfumato import ClusterModel, Feature, labels_frame
    >>> shares, places = np.array([0.4, 0.6]), np.array([[2.5], [7.5]])
    >>> model = ClusterModel("centroids", (Feature("east", 0, 10),), shares, np.zeros(2), centroids=places)
    >>> people = pd.DataFrame({"east": [1.0, 9.0]}, index=["anna", "ben"])
    >>> labels_frame(model, people).loc["ben", "cluster"].item()
    1
    """
    is_indexed = hasattr(type(points), "iloc")
    return new_frame(labels_columns(model, points), index=getattr(points, "index", None) if is_indexed else None)


def ledger_frame(entries: Iterable[LedgerEntry]) -> "DataFrame":
    """Return `ledger_columns` as a DataFrame indexed by `seq`, with times in UTC. Needs pandas."""
    frame = new_frame(ledger_columns(entries))
    frame["at"] = frame["at"].dt.tz_localize("UTC")
    return frame.set_index("seq")
