"""The function of each central algorithm, and the entry point that runs it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from clustering.central.algorithms.density_map import density_map
from clustering.central.algorithms.dp_bisecting_kmeans import dp_bisecting_kmeans
from clustering.central.algorithms.dp_density_peaks import dp_density_peaks
from clustering.central.algorithms.dp_kmeans import dp_kmeans
from clustering.central.algorithms.dp_quadtree_kmeans import dp_quadtree_kmeans
from clustering.central.algorithms.dp_uniform_grid_kmeans import dp_uniform_grid_kmeans
from clustering.central.bounds import judge_bounds, narrow_bounds
from clustering.central.curator import Curator
from clustering.central.feature_check import check_features, judge_features
from clustering.central.private_kmeans.algorithm import private_kmeans
from clustering.edges import find_edge_share, shows_edges
from clustering.poles import warn_of_poles
from sfumato.errors import InvalidSpec
from sfumato.forecast import check_over_records, resolve_central
from sfumato.model.cluster_model import ClusterModel
from sfumato.model.outside import edge_share_of_centres, with_edge_share
from sfumato.records.encodings import scale_many, unscale_many
from sfumato.records.mixed import expand_features
from sfumato.sizing.feature_checks import split_check
from sfumato.specs import (
    Auto,
    CentralAlgorithm,
    DensityMap,
    DpBisectingKmeans,
    DpDensityPeaks,
    DpKmeans,
    DpQuadtreeKmeans,
    DpUniformGridKmeans,
    Feature,
    PrivateKmeans,
    check_periodic,
    circles_of,
    endless_of,
    to_wire,
)

CentralFunction = Callable[[Any, tuple[Feature, ...], Curator], ClusterModel]

FUNCTIONS: dict[type[CentralAlgorithm], CentralFunction] = {
    DensityMap: density_map,
    DpBisectingKmeans: dp_bisecting_kmeans,
    DpDensityPeaks: dp_density_peaks,
    DpKmeans: dp_kmeans,
    DpQuadtreeKmeans: dp_quadtree_kmeans,
    DpUniformGridKmeans: dp_uniform_grid_kmeans,
    PrivateKmeans: private_kmeans,
}
ALONG_CIRCLES = (DensityMap,)  # algorithms that divide circles; others see the points on them


def run(params: CentralAlgorithm | Auto, features: tuple[Feature, ...], curator: Curator) -> ClusterModel:
    """Run a central algorithm and return its model.

    Parameters
    ----------
    params : CentralAlgorithm or Auto
        The algorithm's parameters; their type selects the function. `Auto` runs the choice of
        `sfumato.forecast.choose_central`; the model's diagnostics name the choice and its reason.
    features : tuple of Feature
        Features with the public bounds that scale records, without the categories.
    curator : Curator
        Its selection states the attributes by which the job clusters.

    Returns
    -------
    ClusterModel
        Its diagnostics list each query and its cost (`odometer`) and the sums (`spent_nano`,
        `spent_delta_atto`).

    Raises
    ------
    InvalidSpec
        The algorithm is unknown or does not support these features.
    BudgetOverdrawn, DeltaOverdrawn, BlockOverdrawn
        The algorithm tried to spend more than it declared. This is a bug; no noise was drawn.
    """
    attributes, n_planned = curator.attributes, curator.domain.n_planned
    features = expand_features(features, attributes)
    params, reason = resolve_central(params, n_planned)
    kind, chosen = type(params), to_wire(params)
    if kind not in FUNCTIONS:
        raise InvalidSpec("unknown central algorithm")
    params.require_attributes(attributes)
    check_periodic(params, features)
    check_over_records(params, n_planned, curator.max_per_user)
    found = dict[str, Any]()
    rest, plan = split_check(params)
    if rest.bounds == "private":
        rest, features, found = narrow_bounds(rest, features, curator)
    with curator.on_circles(() if kind in ALONG_CIRCLES else circles_of(features)) as circles:
        model = FUNCTIONS[kind](rest, circles.expand(features) if circles.places else features, curator)
    model = with_categories(circles.restore(model, features) if circles.places else model, curator)
    check = None if plan is None else check_features(curator, model, plan)
    model = judge_features(params, model, check, curator.max_per_user)
    if found:
        model = replace(model, privacy={**model.privacy, "features": "post_processed"})
    model = judge_bounds(model, in_ball=curator.domain.is_ball, is_searched=bool(found))
    if curator.may_clip and not curator.domain.is_ball:
        endless = endless_of(features)
        grids = [grid._replace(endless=endless) for grid in curator.grids]
        is_searched = shows_edges(grids) or len(endless) == len(features)  # otherwise only uploads state it
        model = with_edge_share(model, find_edge_share(grids) or edge_share_of_centres(model), is_searched=is_searched)
    model = warn_of_poles(model)
    odometer = [query.entry for query in curator.odometer]
    spent = {"spent_nano": curator.spent_nano, "spent_delta_atto": curator.spent_delta_atto}
    choice = {} if reason is None else {"chosen": {"algorithm": chosen, "reason": reason}}
    return replace(model, diagnostics={**model.diagnostics, **found, "odometer": odometer, **spent, **choice})


def with_categories(model: ClusterModel, curator: Curator) -> ClusterModel:
    """Return a model that states the attributes, with shares that are non-negative and sum to 1. No privacy cost."""
    if not curator.attributes or model.centroids is None:
        return model
    confined = curator.domain.confine(scale_many(model.features, model.centroids))
    centroids = unscale_many(model.features, confined)
    numeric = model.centroids[:, : curator.domain.n_numeric]
    shares = np.clip(centroids[:, numeric.shape[1] :], 0.0, 1.0)
    return replace(
        model,
        attributes=curator.attributes,
        centroids=np.concatenate([numeric, shares], axis=1),
    )
