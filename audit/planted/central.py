"""Broken central algorithms, each with one fault. Papers 001 and 003 print some of them; libraries ship others."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit.central import service_jobs
from audit.central.black_box import check_released_models
from audit.central.recordings import N_FEATURES, ODOMETER_FIELDS, Method, RunCentral
from audit.central.replay import ATTRIBUTES, check_replay
from audit.checks.check import Finding, Leak, Setting
from clustering.central.algorithms.dp_kmeans import NoisyMeans, release_means
from clustering.central.cells import GridCells, NearestCells, from_places, to_places
from clustering.central.curator import Curator
from clustering.central.mapped_records import MappedRecords, Selection, select_columns
from clustering.central.model import build_centroid_model
from clustering.central.narrowing import Bounds
from clustering.central.noise import LaplaceNoise, Noise
from clustering.central.private_kmeans.concentrated_kmeans import find_ball, find_in_projection
from clustering.central.queries import Exact, Query, Records, split
from clustering.central.run import run
from clustering.centroids.centroid_statistics import spread_places
from clustering.centroids.partition_agreement import PartitionAgreement
from clustering.centroids.weighted_kmeans import weighted_kmeans
from clustering.random import PublicWords
from sfumato.model.cluster_model import ClusterModel
from sfumato.records.encodings import unscale_many
from sfumato.specs import (
    LATTICE,
    CentralAlgorithm,
    DpBisectingKmeans,
    DpKmeans,
    DpQuadtreeKmeans,
    Feature,
    PrivateKmeans,
)
from sfumato.specs.attributes import MAX_WEIGHT, MIN_WEIGHT, Categorical
from workers.central_job import JobJournal

Features = tuple[Feature, ...]


def publish_raw_labels(params: CentralAlgorithm, features: Features, curator: Curator) -> ClusterModel:
    """Publish the number of records nearest to each centre."""
    model = run(params, features, curator)
    labels = NearestCells(_centroid_places(model)).index(curator._records.points)
    return _add_diagnostics(model, labels=np.bincount(labels, minlength=model.n_clusters).tolist())


def publish_raw_inertia(params: CentralAlgorithm, features: Features, curator: Curator) -> ClusterModel:
    """Publish the sum of squared distances between records and their centres."""
    model = run(params, features, curator)
    points, places = curator._records.points.astype(np.int64), _centroid_places(model)
    nearest = places[NearestCells(places).index(curator._records.points)]
    return _add_diagnostics(model, inertia=float(((points - nearest) ** 2).sum()) / LATTICE**2)


class RawSquares(Curator):
    """A curator that returns exact sums of squares without a charge."""

    def squares(self, cells: Any, centres: NDArray[np.int64], epsilon_nano: int) -> NDArray[np.int64]:  # noqa: ARG002
        points, labels = self._records.points, cells.index(self._records.points)
        squares = np.zeros(len(centres), dtype=np.int64)
        np.add.at(squares, labels, ((points - centres[labels]) ** 2).sum(axis=1) >> 20)
        return squares


def start_at_raw_centres(params: DpKmeans, features: Features, curator: Curator) -> ClusterModel:
    """Start at the result of k-means on the records (Zhang and Cheng 2021, section 2.2)."""
    points = curator._records.points / LATTICE
    centres = from_places(spread_places(params.clusters, len(features), params.seed))
    if len(points) >= params.clusters:
        found = weighted_kmeans(points, np.ones(len(points)), params.clusters, PublicWords(0), restarts=1).centres
        centres[: len(found)] = found
    return _run_steps(params, features, curator, centres)


def scale_by_raw_bounds(params: CentralAlgorithm, features: Features, curator: Curator) -> ClusterModel:
    """Scale by the minimum and maximum of the records (Zhang and Cheng 2021, algorithm 1, line 2)."""
    points = curator._records.points.astype(np.int64)
    low = points.min(axis=0, initial=LATTICE - 1)
    span = np.maximum(points.max(axis=0, initial=0) - low, 1)
    scaled = (np.maximum(points - low, 0) * (LATTICE - 1) // span).astype(np.int32)
    curator._records = Records(scaled, curator.max_per_user)
    model = run(params, features, curator)
    lowest = np.array([feature.lower for feature in features])
    ranges = np.array([feature.upper - feature.lower for feature in features])
    shares = (np.asarray(model.centroids) - lowest) / ranges
    return replace(model, centroids=lowest + (low + shares * span) / LATTICE * ranges)


def narrow_to_raw_bounds(params: CentralAlgorithm, features: Features, curator: Curator) -> ClusterModel:
    """Use the minimum and maximum of the records as private bounds, without a query."""
    points = curator._records.points.astype(np.int64)
    lows, highs = points.min(axis=0, initial=LATTICE - 1), points.max(axis=0, initial=0) + 1
    bounds = Bounds(np.minimum(lows, highs - 1), np.maximum(highs - lows, 1))
    curator.narrow(bounds)
    return run(params, bounds.scale_features(features), curator)


def select_by_raw_spread(params: CentralAlgorithm, features: Features, curator: Curator) -> ClusterModel:
    """Use the two features with the largest spread of the records."""
    points = curator._records.points.astype(np.int64)
    spread = points.max(axis=0, initial=0) - points.min(axis=0, initial=LATTICE - 1)
    widest = np.sort(np.argsort(-spread, kind="stable")[:2])
    curator._records = MappedRecords(curator._records, Selection(widest))
    return run(params, tuple(features[place] for place in widest), curator)


def weigh_by_raw_variance(params: CentralAlgorithm, features: Features, curator: Curator) -> ClusterModel:
    """Weigh categories by the variance of the numbers, as k-prototypes does, without a query (Szepannek 2018)."""
    mapped = curator._records
    assert isinstance(mapped, MappedRecords)  # noqa: S101 - for the type checker
    numbers = from_places(mapped.points[:, : len(features)].astype(np.int64))
    weight = float(np.clip(24 * numbers.var(axis=0).mean() if len(numbers) else 1.0, MIN_WEIGHT, MAX_WEIGHT))
    chosen = tuple(replace(each, weight=weight) for each in curator.attributes)
    selection = select_columns(features, chosen)
    curator._records, curator._space = MappedRecords(mapped.source, selection), (selection,)
    curator.domain = replace(curator.domain, blocks=selection.blocks)
    return run(params, features, curator)


def publish_raw_shares(params: CentralAlgorithm, features: Features, curator: Curator) -> ClusterModel:
    """Publish the exact shares of the categories in each cluster."""
    model = run(params, features, curator)
    points = unscale_many(model.features, from_places(curator._records.points.astype(np.int64)))
    centroids, labels = np.array(model.centroids), model.assign(points)
    for cluster in np.unique(labels):
        centroids[cluster, model.n_numeric :] = points[labels == cluster, model.n_numeric :].mean(axis=0)
    return replace(model, centroids=np.round(centroids, 6))


class OneFeatureNoise(Curator):
    """A curator with histograms that have the noise of one feature, although a record changes each of them."""

    def _release(self, query: Query, exact: Exact, noise: Noise) -> NDArray[np.int64]:
        if query.description == "histograms" and isinstance(noise, LaplaceNoise):
            noise = replace(noise, sensitivities=np.ones_like(noise.sensitivities))
        elif query.description == "histograms":
            noise = replace(noise, unit=noise.unit / self.n_features)
        return super()._release(query, exact, noise)


def skip_empty_clusters(params: DpKmeans, features: Features, curator: Curator) -> ClusterModel:
    """Keep empty clusters unchanged and query only the others (diffprivlib 0.6.6)."""
    centres = from_places(spread_places(params.clusters, len(features), params.seed))
    sizes = np.bincount(NearestCells(to_places(centres)).index(curator._records.points), minlength=len(centres))
    (non_empty,) = np.nonzero(sizes)
    counts, variances = np.ones(len(centres)), np.ones(len(centres))
    if non_empty.size:
        cells = NearestCells(to_places(centres[non_empty]))
        means = release_means(curator, cells, centres[non_empty], params.epsilon_nano)
        centres[non_empty], counts[non_empty], variances[non_empty] = means.places, means.counts, means.count_variances
    return _make_model(features, curator, NoisyMeans(centres, counts, variances, np.zeros_like(centres)))


def use_true_count(params: PrivateKmeans, features: Features, curator: Curator) -> ClusterModel:
    """Size the tree and its thresholds by the exact number of records."""
    block = curator.open_block(params.epsilon_nano, params.delta_atto)
    ball = find_ball(block)._replace(n_records=max(1.0, float(len(curator._records.points))))
    found = find_in_projection(block, ball, params.clusters or 1, PublicWords(params.seed))
    return _publish(features, curator, found.centres, found.counts, found.count_variances)


class UnlimitedCurator(Curator):
    """A curator without a budget limit, so that a wrong division of epsilon overspends."""

    @property
    def left_nano(self) -> int:
        return 1 << 62


def count_extra_level(params: DpQuadtreeKmeans, features: Features, curator: Curator) -> ClusterModel:
    """Count levels 0 to maxH at epsilon_1/maxH each, then the leaves (Zhang and Cheng 2021, algorithm 2)."""
    height = params.height or 2
    for_tree, for_leaves = split(params.epsilon_nano, 3, 7)
    for level in range(height + 1):
        curator.counts(_make_halved_grid(level, len(features)), for_tree // height)
    cells = _make_halved_grid(height, len(features))
    counts = curator.counts(cells, for_leaves).astype(np.float64)
    variance = curator.variance(1, for_leaves)
    centres = np.linspace(0.1, 0.9, cells.n_cells)[:, None] * np.ones(len(features))
    return _make_model(features, curator, NoisyMeans(centres, counts, np.full(len(counts), variance), 0 * centres))


def _make_halved_grid(level: int, n_features: int) -> GridCells:
    return GridCells((1 << level,) + (1,) * (n_features - 1))


def _run_steps(params: DpKmeans, features: Features, curator: Curator, centres: NDArray[np.float64]) -> ClusterModel:
    """Run correct steps from any start."""
    for part in split(params.epsilon_nano, *[1] * params.iterations):
        means = release_means(curator, NearestCells(to_places(centres)), np.full_like(centres, 0.5), part)
        centres = means.places
    return _make_model(features, curator, means)


def _make_model(features: Features, curator: Curator, means: NoisyMeans) -> ClusterModel:
    return _publish(features, curator, means.places, means.counts, means.count_variances)


def _publish(
    features: Features,
    curator: Curator,
    centres: NDArray[np.float64],
    counts: NDArray[np.float64],
    variances: NDArray[np.float64],
) -> ClusterModel:
    odometer = [{name: getattr(query, name) for name in ODOMETER_FIELDS} for query in curator.odometer]
    errors = np.zeros_like(centres)
    return build_centroid_model(
        features,
        centres,
        counts,
        variances,
        centre_errors=errors,
        agreement=PartitionAgreement("centres", 1.0, 0.0),
        diagnostics={"odometer": odometer},
    )


def _centroid_places(model: ClusterModel) -> NDArray[np.int64]:
    lowest = np.array([feature.lower for feature in model.features])
    ranges = np.array([feature.upper - feature.lower for feature in model.features])
    return to_places((np.asarray(model.centroids) - lowest) / ranges)


def _add_diagnostics(model: ClusterModel, **more: Any) -> ClusterModel:
    return replace(model, diagnostics={**model.diagnostics, **more})


class HalfChargeJournal(JobJournal):
    """A journal that charges half of a query's cost."""

    def charge(self, index: int, query: Query) -> NDArray[np.int64] | None:
        return super().charge(index, replace(query, epsilon_nano=query.epsilon_nano // 2))


class ForgetfulJournal(JobJournal):
    """A journal that charges and never returns a stored answer."""

    def charge(self, index: int, query: Query) -> NDArray[np.int64] | None:
        super().charge(index, query)
        return None


RunCheck = Callable[[Setting], list[Finding]]


def _replay(
    params: object,
    planted: RunCentral,
    curator: type[Curator] = Curator,
    n_features: tuple[int, ...] = N_FEATURES,
    attributes: tuple[Categorical, ...] = (),
) -> RunCheck:
    method = Method(f"broken {type(params).__name__}", params, planted, curator, n_features, attributes=attributes)
    return lambda setting: list(check_replay(method, setting, until_fault=True))


def _release(params: object, planted: RunCentral, pair: str) -> RunCheck:
    method = Method(f"broken {type(params).__name__}", params, planted)
    return lambda setting: list(check_released_models(method, 1, setting, (pair,)))


def _replay_job(setting: Setting, journal: type[JobJournal]) -> Sequence[Finding]:
    return service_jobs.check_job_replay(Method("job", _STEPS, run), setting, journal)


_STEPS = DpKmeans(1.0, 2, iterations=2)
_SPLITS = DpBisectingKmeans(1.0, 3, iterations=1)
_TREE = DpQuadtreeKmeans(1.0, 2, height=2)
_BLOCK = PrivateKmeans(16.0, 2, delta=1e-3)
_BOUNDS = PrivateKmeans(32.0, 2, bounds="private")
_BLOCK_BOUNDS = replace(_BOUNDS, delta=1e-3)

LEAKS: tuple[Leak, ...] = (
    Leak("raw labels in the result", "dp_kmeans, replay", _replay(_STEPS, publish_raw_labels)),
    Leak(
        "raw labels in the result",
        "dp_kmeans, released model",
        _release(_STEPS, publish_raw_labels, "no record, one in a corner"),
    ),
    Leak("raw inertia in the result", "dp_kmeans, replay", _replay(_STEPS, publish_raw_inertia)),
    Leak("raw SSE split", "dp_bisecting_kmeans, replay", _replay(_SPLITS, run, RawSquares)),
    Leak("raw initial centres", "dp_kmeans, replay", _replay(_STEPS, start_at_raw_centres)),
    Leak("bounds from raw min/max", "dp_quadtree_kmeans, replay", _replay(_TREE, scale_by_raw_bounds)),
    Leak(
        "bounds from raw min/max",
        "dp_quadtree_kmeans, released model",
        _release(_TREE, scale_by_raw_bounds, "one far point"),
    ),
    Leak("bounds from data", "private_kmeans, replay", _replay(_BLOCK, narrow_to_raw_bounds, n_features=(5,))),
    Leak(
        "columns from data",
        "private_kmeans, replay",
        _replay(PrivateKmeans(4.0, 2), select_by_raw_spread, n_features=(5,)),
    ),
    Leak(
        "weights of categories from data",
        "categories, replay",
        _replay(PrivateKmeans(8.0, 2), weigh_by_raw_variance, n_features=(3,), attributes=ATTRIBUTES),
    ),
    Leak(
        "exact shares of categories",
        "categories, replay",
        _replay(PrivateKmeans(8.0, 2), publish_raw_shares, n_features=(3,), attributes=ATTRIBUTES),
    ),
    Leak("histograms with the noise of one feature", "replay", _replay(_BOUNDS, run, OneFeatureNoise, n_features=(2,))),
    Leak(
        "histograms with the noise of one feature",
        "block, replay",
        _replay(_BLOCK_BOUNDS, run, OneFeatureNoise, n_features=(5,)),
    ),
    Leak(
        "histograms with the noise of one feature",
        "feature check, replay",
        _replay(PrivateKmeans(4.0, 2, check_features=True), run, OneFeatureNoise, n_features=(2,)),
    ),
    Leak("empty-cluster skip", "dp_kmeans, replay", _replay(_STEPS, skip_empty_clusters)),
    Leak("true number of records", "private_kmeans, replay", _replay(_BLOCK, use_true_count, n_features=(5,))),
    Leak(
        "maxH + 1 draws at epsilon/maxH",
        "dp_quadtree_kmeans, replay",
        _replay(_TREE, count_extra_level, UnlimitedCurator),
    ),
    Leak("maxH + 1 draws, rejected", "dp_quadtree_kmeans, replay", _replay(_TREE, count_extra_level)),
    Leak("half of the cost charged", "job, replay", lambda setting: _replay_job(setting, HalfChargeJournal)),
    Leak("second answer with new noise", "job, replay", lambda setting: _replay_job(setting, ForgetfulJournal)),
)
