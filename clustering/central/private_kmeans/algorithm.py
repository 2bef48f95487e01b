"""`private_kmeans`: the choice of a route, and the published model."""

from dataclasses import replace

import numpy as np

from clustering.central.curator import Curator
from clustering.central.model import build_centroid_model, compute_achieved_ratio, describe_missing_clusters
from clustering.central.private_kmeans.cell_errors import describe_narrow, judge_width
from clustering.central.private_kmeans.cluster_count import choose_pieces
from clustering.central.private_kmeans.concentrated_kmeans import (
    Budget,
    find_ball,
    find_by_grid_or_rounds,
    find_in_projection,
    may_refine,
)
from clustering.central.private_kmeans.gated_grid import FoundClusters, ProblemSize
from clustering.central.private_kmeans.pure_kmeans import count_by_steps, find_by_grid, find_by_steps
from clustering.central.queries import split
from clustering.centroids.verdict import Ground, few
from clustering.random import PublicWords
from sfumato.forecast.central import forecast_central
from sfumato.model.cluster_model import ClusterModel
from sfumato.model.precision import ExpectedLoss, Verdict
from sfumato.privacy.accounting import NANO
from sfumato.sizing.required_reports import (
    CLEAR_BLOCK,
    COUNTING,
    GRID_FEATURES,
    affords_block,
    detectable_clusters,
    usable_epsilon,
)
from sfumato.specs import Feature
from sfumato.specs.central import PrivateKmeans


def private_kmeans(params: PrivateKmeans, features: tuple[Feature, ...], curator: Curator) -> ClusterModel:
    """Run k-means under differential privacy, by a route that suits epsilon, delta and the features.

    - Above four features, or with categories, with a delta: seeds and repair in a projection, then steps in all
      features, in one concentrated block.
    - Up to four features: a two-level grid. With a delta and many clear clusters, repair rounds in a
      concentrated block follow.
    - Above four features, or with categories, without a delta: Lloyd steps with Laplace noise.

    Epsilon, delta, k, d and a noisy count decide the route. Without k, each route but the repair rounds
    after a grid first finds more clusters than there are, then merges those that touch
    (`cluster_count`). Source: this project; `docs/algorithms.md` has the measurements.

    Privacy: (epsilon, delta) in total; the parts add up exactly. Pure epsilon if no block is opened.

    Parameters
    ----------
    params : PrivateKmeans
    features : tuple of Feature
    curator : Curator

    Returns
    -------
    ClusterModel
        It has fewer clusters than requested, and a warning, if the others would be noise only.

    Raises
    ------
    InvalidSpec
        Epsilon is too small to be divided.
    """
    d = curator.domain.n_planned
    epsilon_nano, delta_atto = params.epsilon_nano, params.delta_atto
    words, is_counted = PublicWords(params.seed), params.clusters is None
    if d > GRID_FEATURES and affords_block(epsilon_nano, delta_atto, curator.max_per_user):
        block = curator.open_block(epsilon_nano, delta_atto)
        ball = find_ball(block)
        n_records = ball.n_records
        clusters = params.clusters or choose_pieces(n_records, epsilon_nano / NANO / curator.max_per_user)
        found = find_in_projection(block, ball, clusters, words, is_counted=is_counted)
    else:
        to_count, rest = split(epsilon_nano, *COUNTING)
        n_records = max(1.0, float(curator.count(to_count)))
        epsilon = usable_epsilon(epsilon_nano, curator.max_per_user)
        clusters = detectable_clusters(n_records, epsilon, d, params.clusters or choose_pieces(n_records, epsilon))
        size = ProblemSize(n_records, clusters, epsilon)
        if d > GRID_FEATURES:
            found = (count_by_steps if is_counted else find_by_steps)(curator, size, rest, words)
        elif is_counted:
            found = find_by_grid(curator, size, rest, words, is_counted=True)
        elif may_refine(size, budget := Budget(rest, delta_atto), curator.max_per_user):
            found = find_by_grid_or_rounds(curator, size, budget, words)
        else:
            found = find_by_grid(curator, size, rest, words)
    return build_model(params, features, found, n_records, curator)


def build_model(
    params: PrivateKmeans,
    features: tuple[Feature, ...],
    found: FoundClusters,
    n_records: float,
    curator: Curator,
) -> ClusterModel:
    """Build the model of found clusters. All its numbers follow from query answers."""
    d, clusters, max_per_user = curator.circles.n_along, params.clusters or len(found.centres), curator.max_per_user
    forecast = forecast_central(replace(params, clusters=clusters), curator.domain.n_planned, n_records, max_per_user)
    q = n_records * usable_epsilon(params.epsilon_nano, max_per_user) / clusters
    sampled = found.spreads**2 / d / np.maximum(found.counts, 1.0)
    variances = np.repeat((found.centre_variances + sampled)[:, None], len(features), axis=1)
    achieved = compute_achieved_ratio(found.centre_variances * d, found.counts, found.spreads)
    loss = None
    if forecast.ratio is not None and forecast.lower is not None and forecast.upper is not None:
        value = max(forecast.ratio, achieved)
        loss = ExpectedLoss(value, max(forecast.lower, 1.0), max(forecast.upper, value))
    grounds = [few(is_low=q < CLEAR_BLOCK or bool(forecast.warnings))]
    warnings, interval = list(forecast.warnings), {}
    if found.counted is not None:
        interval = {name: getattr(found.counted, name) for name in ("lower", "upper", "verdict")}
        grounds.append(Ground(found.counted.verdict, " ".join(found.counted.describe())))
        warnings += found.counted.describe()
    elif len(found.centres) < (forecast.clusters or 0):
        warnings.append(missing := describe_missing_clusters(len(found.centres)))
        grounds.append(Ground(Verdict.DOUBTFUL, missing))
    is_low = bool(warnings)
    if found.cells is not None:
        variances += found.cells.variances
        warnings += describe_narrow(found.cells.narrow)
        grounds.append(judge_width(found, found.cells))
    return build_centroid_model(
        features,
        found.centres,
        found.counts,
        found.count_variances,
        centre_errors=np.sqrt(variances),
        spreads=found.spreads,
        agreement=found.agreement,
        loss=loss,
        grounds=grounds,
        diagnostics={
            "noisy_count": n_records,
            "q": q,
            "route": found.route,
            "forecast": {"ratio": forecast.ratio, "lower": forecast.lower, "upper": forecast.upper},
            "achieved_ratio": achieved,
            "low_confidence": is_low,
            **({"cluster_count": interval} if interval else {}),
        },
        warnings=warnings,
    )
