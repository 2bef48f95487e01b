"""Estimators with the interface of scikit-learn, over records in this process.

They need scikit-learn 1.6 or newer (in a clone: `pip install ./sdk/python '.[estimators]'`). Each class has the
parameters of the algorithm of the same name, with `n_clusters` in place of `clusters`, `bounds_kind` in place of
`bounds`, and `bounds` themselves.

Each call of `fit` spends `epsilon` (and `delta`) of each person in the records; the estimators keep
no ledger. `model_` and `cluster_centers_` are private releases. `labels_` and the results of
`predict` and `transform` are computed from the model and the true records, so they are as private
as the records.
"""

import warnings
from collections.abc import Sequence
from dataclasses import MISSING, fields
from inspect import Parameter, Signature
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data

from clustering.simulate import run_central, run_local
from sfumato import specs
from sfumato.errors import SfumatoError
from sfumato.model.cluster_model import ClusterModel
from sfumato.names import find_positions, list_texts
from sfumato.privacy.entropy import SystemEntropy
from sfumato.records.encodings import scale_many
from sfumato.records.mixed import encode_column
from sfumato.records.outside import are_outside
from sfumato.specs import Feature
from sfumato.specs.attributes import Categorical

DEFAULTS = {"epsilon": 1.0, "clusters": 8}  # the service requires these parameters
RENAMED = {"clusters": "n_clusters", "bounds": "bounds_kind"}
Bounds = tuple[ArrayLike, ArrayLike]
OUTSIDE = 2.0  # a place outside of [0, 1]
WARN_SHARE = 0.01  # clipped records
_MAX_LISTED = 5  # features in a warning


class PrivateEstimator(ClusterMixin, BaseEstimator):  # type: ignore[misc]
    """The base class of the estimators.

    Parameters
    ----------
    bounds : tuple of two numbers, or of two array-likes of shape (n_features,)
        Lower and upper bounds of the features. They must be public: do not compute them from the
        records. `fit` raises ValueError without them. Algorithms over reports count the records outside, and the
        model states their share. Algorithms over records clip them, and `fit` warns from 1 % on.
    features : sequence of str, optional
        Names of the columns that the model uses, in any order; by default all. Without column names they are `x0`,
        `x1`, and so on. `fit`, `predict` and `transform` take records with all columns.
    attributes : sequence of Categorical
        `PrivateKMeans`, and over reports `PhaseSketch`, or one for `ShiftedGrid`: attributes with the use `cluster`.
        The records are then a pandas data frame with their columns, and the others are the features.
    periodic : sequence of str, optional
        Names of the periodic features, such as hours of the day. Their bounds are one period. Only
        estimators of algorithms that take them have this argument.
    **parameters
        Parameters of the algorithm. Without `epsilon` and `mu`, `fit` spends an epsilon of 1. `random_state` is not
        one, because noise that can be drawn again can be subtracted. `clustering.simulate` has seeded runs.

    Attributes
    ----------
    model_ : ClusterModel
        The released model, with its verdict, warnings and diagnostics.
    cluster_centers_ : ndarray of shape (n_clusters, n_used_features)
        Centroids in the units of the records, if the model has them.
    labels_ : ndarray of shape (n_samples,), int64
        Clusters of the records of `fit`. They are not a private release.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features,)
        Only if the records had column names.
    """

    specification: ClassVar[type[Any]]
    _defaults: ClassVar[dict[str, Any]]

    def __init_subclass__(cls, **options: Any) -> None:
        """Give the class a constructor with the parameters of its specification."""
        if "specification" in cls.__dict__:
            cls._defaults = {"bounds": None, "features": None}
            if cls.specification.definition.max_attributes:
                cls._defaults["attributes"] = ()
            if cls.specification.definition.periodic:
                cls._defaults["periodic"] = None
            for declared in fields(cls.specification):
                default = DEFAULTS[declared.name] if declared.default is MISSING else declared.default
                cls._defaults[RENAMED.get(declared.name, declared.name)] = default
            cls.__init__ = _constructor(cls._defaults)  # type: ignore[method-assign]
        super().__init_subclass__(**options)

    def __init__(self, **parameters: Any) -> None:  # noqa: ARG002 - the subclasses' signature
        raise TypeError("the base class has no algorithm: use one of its subclasses")

    def fit(self, X: ArrayLike, y: object = None) -> Self:  # noqa: ARG002 - scikit-learn passes it
        """Cluster records.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Finite. One row per person.
        y : object
            Ignored.

        Returns
        -------
        PrivateEstimator

        Raises
        ------
        ValueError
            The records, the bounds or a parameter are not valid. Nothing was released.
        """
        numbers, codes = self._split(X)
        records = validate_data(self, numbers, dtype=np.float64)
        names = {RENAMED.get(each.name, each.name): each.name for each in fields(self.specification)}
        self._used: slice | list[int]
        try:
            given = {name: getattr(self, own) for own, name in names.items()}
            if given["epsilon"] is None and given.get("mu") is None:
                given["epsilon"] = DEFAULTS["epsilon"]
            parameters = self.specification(**given)
            features = self._features(records.shape[1])
            self._used = slice(None)
            if self.features is not None:
                known = [each.name for each in features]
                self._used = list(find_positions(list_texts(self.features, "features"), known, "column"))
                features = tuple(features[place] for place in self._used)
            records = records[:, self._used]
            attributes = tuple(getattr(self, "attributes", ()))
            self.model_: ClusterModel = self._run(parameters, features, records, attributes, codes)
        except SfumatoError as error:
            raise ValueError(str(error)) from error
        if self.model_.centroids is not None:
            self.cluster_centers_ = self.model_.centroids
        self.labels_ = self.model_.assign(self._with_shares(records, codes))
        return self

    def _split(self, X: Any) -> tuple[Any, list[NDArray[np.int32]]]:
        """Return the records without the columns of attributes, and the codes of these columns."""
        attributes: tuple[Categorical, ...] = tuple(getattr(self, "attributes", ()))
        if not attributes:
            return X, []
        wrong = [each for each in attributes if not isinstance(each, Categorical) or not each.clusters]
        if wrong or not hasattr(X, "columns") or not hasattr(X, "drop"):
            raise ValueError(
                "attributes must be Categorical with the use cluster, and the records a data frame with their columns"
            )
        names = [each.name for each in attributes]
        if missing := [name for name in names if name not in X.columns]:
            raise ValueError(f"the records have no column {missing[0]}, which is an attribute: add it")
        return X.drop(columns=names), [encode_column(each, X[each.name]) for each in attributes]

    def _with_shares(self, records: NDArray[np.float64], codes: list[NDArray[np.int32]]) -> NDArray[np.float64]:
        shares = [np.eye(len(each.categories))[code] for each, code in zip(self.model_.attributes, codes, strict=True)]
        return np.concatenate([records, *shares], axis=1)

    def _points(self, X: Any) -> NDArray[np.float64]:
        """Return the records as points of the model."""
        numbers, codes = self._split(X)
        records: NDArray[np.float64] = validate_data(self, numbers, dtype=np.float64, reset=False)
        return self._with_shares(records[:, self._used], codes)

    @staticmethod
    def _run(
        parameters: Any,
        features: tuple[Feature, ...],
        records: NDArray[np.float64],
        attributes: tuple[Categorical, ...] = (),
        codes: Sequence[NDArray[np.int32]] = (),
    ) -> ClusterModel:
        """Return the model. Reports count the records outside of the bounds; a curator's records are clipped."""
        points = scale_many(features, records)
        joined = np.stack(codes, axis=1) if codes else None
        if parameters.definition.needs_records:
            _warn_of_clipping(features, records)
            return run_central(parameters, points, features, SystemEntropy(), attributes=attributes, codes=joined)
        outside = are_outside(features, records)
        points[outside] = OUTSIDE
        return run_local(
            parameters, points, features, SystemEntropy(), out_of_bounds="count", attributes=attributes, codes=joined
        )

    def predict(self, X: ArrayLike) -> NDArray[np.int64]:
        """Return the cluster of each record.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Finite. Values outside the bounds are clipped.

        Returns
        -------
        ndarray of shape (n_samples,), int64
        """
        check_is_fitted(self)
        return self.model_.assign(self._points(X))

    def __sklearn_tags__(self) -> Tags:
        """Return the tags of scikit-learn."""
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        return tags

    def _features(self, n_features: int) -> tuple[Feature, ...]:
        if self.bounds is None:
            raise ValueError("bounds are required. They must be public, so fit does not take them from the records.")
        try:
            lower, upper = (np.broadcast_to(np.asarray(each, dtype=np.float64), n_features) for each in self.bounds)
        except (TypeError, ValueError):
            raise ValueError(
                f"bounds must be a pair (lower, upper) of numbers or of {n_features} numbers each"
            ) from None
        names = getattr(self, "feature_names_in_", [f"x{i}" for i in range(n_features)])
        periodic, circles = getattr(self, "periodic", None), tuple[int, ...]()
        if periodic is not None:
            circles = find_positions(list_texts(periodic, "periodic"), list(names), "column")
        pairs = zip(names, lower.tolist(), upper.tolist(), strict=True)
        return tuple(Feature(*each, periodic=place in circles) for place, each in enumerate(pairs))


def _warn_of_clipping(features: tuple[Feature, ...], records: NDArray[np.float64]) -> None:
    """Warn the caller, the holder of the records, if more than `WARN_SHARE` of them are outside of the bounds."""
    lines = [not each.periodic for each in features]  # values on circles are moved by whole periods
    features, records = tuple(each for each in features if not each.periodic), records[:, lines]
    n_clipped = int(are_outside(features, records).sum())
    if n_clipped <= WARN_SHARE * len(records):
        return
    lower, upper = (np.array([getattr(each, name) for each in features]) for name in ("lower", "upper"))
    counts = ((records < lower) | (records > upper)).sum(axis=0)
    places = [place for place in np.argsort(-counts, kind="stable")[:_MAX_LISTED] if counts[place]]
    named = ", ".join(f"{counts[place]:,} in {features[place].name}" for place in places)
    warnings.warn(
        f"{n_clipped:,} of {len(records):,} records are clipped to the bounds: {named}. "
        "Check the bounds, the units and the order of the columns.",
        UserWarning,
        stacklevel=4,
    )


def _constructor(defaults: dict[str, Any]) -> Any:
    """Return a constructor that stores these parameters. scikit-learn reads them from its signature."""

    def construct(self: PrivateEstimator, **parameters: Any) -> None:
        if "random_state" in parameters:
            raise TypeError("random_state is not a parameter: noise that can be drawn again can be subtracted")
        if unknown := parameters.keys() - defaults.keys():
            raise TypeError(f"unknown parameters: {', '.join(sorted(unknown))}")
        for name, value in (defaults | parameters).items():
            setattr(self, name, value)

    options = [Parameter(name, Parameter.KEYWORD_ONLY, default=value) for name, value in defaults.items()]
    signature = Signature([Parameter("self", Parameter.POSITIONAL_ONLY), *options])
    construct.__signature__ = signature  # type: ignore[attr-defined]
    return construct


class CentroidEstimator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, PrivateEstimator):  # type: ignore[misc]
    """The base class for models with centroids only."""

    def transform(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the distance of each record from each centroid; see `ClusterModel.distances`.

        Each feature counts in units of its range, so the nearest centroid is the cluster of `predict`.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)

        Returns
        -------
        ndarray of shape (n_samples, n_clusters), float64
        """
        check_is_fitted(self)
        return self.model_.distances(self._points(X))

    @property
    def _n_features_out(self) -> int:
        return len(self.cluster_centers_)


class ShiftedGrid(PrivateEstimator):
    """`shifted_grid` over reports that each record's device would send. The trust model is local."""

    specification = specs.ShiftedGrid


class UniformGrid(PrivateEstimator):
    """`uniform_grid` over perturbed reports. The trust model is local."""

    specification = specs.UniformGrid


class AdaptiveGridIterative(PrivateEstimator):
    """`adaptive_grid_iterative` over perturbed reports. The trust model is local."""

    specification = specs.AdaptiveGridIterative


class AdaptiveGridTree(PrivateEstimator):
    """`adaptive_grid_tree` over perturbed reports. The trust model is local."""

    specification = specs.AdaptiveGridTree


class PhaseSketch(CentroidEstimator):
    """`phase_sketch` over perturbed reports. The trust model is local."""

    specification = specs.PhaseSketch


class GridKMeans(CentroidEstimator):
    """`grid_kmeans` over perturbed reports. The trust model is local."""

    specification = specs.GridKmeans


class LdpKMeans(CentroidEstimator):
    """`ldp_kmeans` over perturbed reports. The trust model is local."""

    specification = specs.LdpKmeans


class NoisyFCM(CentroidEstimator):
    """`noisy_fcm` over perturbed reports. The trust model is local."""

    specification = specs.NoisyFcm


class PrivateKMeans(CentroidEstimator):
    """`private_kmeans` over records. The trust model is central."""

    specification = specs.PrivateKmeans


class DensityMap(PrivateEstimator):
    """`density_map` over records. The trust model is central."""

    specification = specs.DensityMap


class DPKMeans(CentroidEstimator):
    """`dp_kmeans` over records. The trust model is central."""

    specification = specs.DpKmeans


class DPBisectingKMeans(CentroidEstimator):
    """`dp_bisecting_kmeans` over records. The trust model is central."""

    specification = specs.DpBisectingKmeans


class DPUniformGridKMeans(CentroidEstimator):
    """`dp_uniform_grid_kmeans` over records. The trust model is central."""

    specification = specs.DpUniformGridKmeans


class DPQuadtreeKMeans(CentroidEstimator):
    """`dp_quadtree_kmeans` over records. The trust model is central."""

    specification = specs.DpQuadtreeKmeans


class DPDensityPeaks(CentroidEstimator):
    """`dp_density_peaks` over records. The trust model is central."""

    specification = specs.DpDensityPeaks
