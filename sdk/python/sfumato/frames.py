"""Results as tables: columns of numpy arrays, and pandas frames where pandas is there.

`..._columns` need nothing but numpy; `..._frame` need pandas: `pip install 'sfumato[pandas]'`.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfumato.accounting import ATTO, NANO
from sfumato.cluster_model import ClusterModel
from sfumato.errors import InvalidSpec
from sfumato.ledger import LedgerEntry

if TYPE_CHECKING:
    from pandas import DataFrame  # type: ignore[import-not-found,import-untyped,unused-ignore]

Columns = dict[str, NDArray[Any]]

# In full in the ledger; here to be read and plotted.
_AMOUNTS = {"epsilon_nano": ("epsilon", NANO), "delta_atto": ("delta", ATTO)}


def clusters_columns(model: ClusterModel) -> Columns:
    """The clusters, one a row.

    Returns
    -------
    dict of str to ndarray of shape (n_clusters,)
        `cluster`, `size`, `size_error`; where the model has centroids, a column for each
        feature, in its units, and where it has their errors, `<feature>_error`.

    Examples
    --------
    >>> from sfumato import Feature
    >>> from sfumato.cluster_model import ClusterModel
    >>> from sfumato.frames import clusters_columns
    >>> import numpy as np
    >>> model = ClusterModel("centroids", (Feature("east", 0, 10),), np.array([.4, .6]), np.array([.01, .01]),
    ...                      centroids=np.array([[2.5], [7.5]]))
    >>> clusters_columns(model)["east"].tolist()
    [2.5, 7.5]
    """
    columns: Columns = {
        "cluster": np.arange(model.n_clusters),
        "size": model.sizes,
        "size_error": model.size_errors,
    }
    for place, feature in enumerate(model.features):
        if model.centroids is not None:
            _add(columns, feature.name, model.centroids[:, place])
        if model.centroid_errors is not None:
            _add(columns, f"{feature.name}_error", model.centroid_errors[:, place])
    return columns


def cells_columns(model: ClusterModel) -> Columns:
    """The cells of a label map, or the symbols of codes, one a row.

    Returns
    -------
    dict of str to ndarray of shape (n_cells,)
        `cluster`; of a label map, for each feature `<feature>_lower` and `<feature>_upper`, in
        its units, of codes `symbol`; and `density` where the model has it.

    Raises
    ------
    InvalidSpec
        The model labels no cells: it is centroids alone.
    """
    if model.label_map is None:
        raise InvalidSpec("this model labels no cells: its centroids are in clusters_frame")
    columns: Columns = {"cluster": model.label_map.ravel()}
    if model.encoding is not None:
        columns["symbol"] = np.arange(model.label_map.size)
    else:
        shape = model.label_map.shape
        for feature, n_cells, place in zip(model.features, shape, np.indices(shape), strict=True):
            edges = np.linspace(feature.lower, feature.upper, n_cells + 1)
            _add(columns, f"{feature.name}_lower", edges[place.ravel()])
            _add(columns, f"{feature.name}_upper", edges[place.ravel() + 1])
    if model.density is not None:
        _add(columns, "density", model.density.ravel())
    return columns


def labels_columns(model: ClusterModel, points: ArrayLike) -> Columns:
    """Points, with the cluster of each: `model.assign`, and nobody is shown them.

    Parameters
    ----------
    points : array-like of shape (n, n_features)
        In the features' units.

    Returns
    -------
    dict of str to ndarray of shape (n,)
        `cluster`, and a column for each feature as it was given.
    """
    columns: Columns = {"cluster": model.assign(points)}
    given = np.asarray(points, dtype=np.float64)
    for place, feature in enumerate(model.features):
        _add(columns, feature.name, given[:, place])
    return columns


def ledger_columns(entries: Iterable[LedgerEntry]) -> Columns:
    """Ledger entries, one a row.

    Returns
    -------
    dict of str to ndarray of shape (n,)
        As in LedgerEntry: integers as they are, `at` as datetime64 in UTC; and `epsilon`
        and `delta` beside them as doubles, to read and to plot, not to add up.
    """
    held = list(entries)
    columns: Columns = {}
    for name in LedgerEntry.__slots__:
        values = [getattr(entry, name) for entry in held]
        if name == "at":
            columns[name] = np.array([each.replace(tzinfo=None) for each in values], dtype="datetime64[us]")
        elif name == "seq" or name.endswith(("_nano", "_atto")):
            columns[name] = np.array(values, dtype=np.int64)
        else:
            columns[name] = np.array(values, dtype=object)
        if name in _AMOUNTS:
            told, unit = _AMOUNTS[name]
            columns[told] = columns[name] / unit
    return columns


def clusters_frame(model: ClusterModel) -> "DataFrame":
    """`clusters_columns` as a DataFrame, by cluster. Needs `sfumato[pandas]`.

    Examples
    --------
    >>> from sfumato import Feature, clusters_frame
    >>> from sfumato.cluster_model import ClusterModel
    >>> import numpy as np
    >>> model = ClusterModel("centroids", (Feature("east", 0, 10),), np.array([.4, .6]), np.array([.01, .01]),
    ...                      centroids=np.array([[2.5], [7.5]]))
    >>> clusters_frame(model).loc[1, "east"].item()
    7.5
    """
    return _frame(clusters_columns(model)).set_index("cluster")


def cells_frame(model: ClusterModel) -> "DataFrame":
    """`cells_columns` as a DataFrame. Needs `sfumato[pandas]`."""
    return _frame(cells_columns(model))


def labels_frame(model: ClusterModel, points: ArrayLike) -> "DataFrame":
    """`labels_columns` as a DataFrame. Needs `sfumato[pandas]`."""
    return _frame(labels_columns(model, points))


def ledger_frame(entries: Iterable[LedgerEntry]) -> "DataFrame":
    """`ledger_columns` as a DataFrame, by `seq`, its times in UTC. Needs `sfumato[pandas]`."""
    frame = _frame(ledger_columns(entries))
    frame["at"] = frame["at"].dt.tz_localize("UTC")
    return frame.set_index("seq")


def _add(columns: Columns, name: str, values: NDArray[Any]) -> None:
    """Add a column; a feature that is called as another column is keeps its name with `feature_` before it."""
    columns[f"feature_{name}" if name in columns else name] = values


def _frame(columns: Mapping[str, NDArray[Any]]) -> "DataFrame":
    try:
        import pandas  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        raise ImportError("a frame needs pandas: pip install 'sfumato[pandas]'") from None
    return pandas.DataFrame(dict(columns))
