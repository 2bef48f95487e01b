"""Central algorithms that are broken, each in one way: as papers 001 and 003 print them, as libraries have them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit import central_service
from audit.central import replayed
from audit.central_blackbox import told_apart
from audit.check import Finding, Leak, Setting
from audit.replay import SHOWN, Method, RunCentral
from clustering.broadcast_centroids import spread_out
from clustering.central.budget import split
from clustering.central.cells import GridCells, NearestCells, from_places, to_places
from clustering.central.model import centroid_model
from clustering.central.noisy_means import Means, noisy_means
from clustering.central.run import run
from clustering.curator import Curator, Question, Records
from clustering.phase_search import PublicWords
from clustering.weighted_kmeans import weighted_kmeans
from sfumato.accounting import parse_epsilon
from sfumato.cluster_model import ClusterModel
from sfumato.specs import LATTICE, CentralAlgorithm, DpBisectingKmeans, DpKmeans, DpQuadtreeKmeans, Feature
from workers.central import JobJournal

Features = tuple[Feature, ...]


def raw_labels(params: CentralAlgorithm, features: Features, curator: Curator) -> ClusterModel:
    """Publishes how many records are nearest to each centre: labels, added up."""
    model = run(params, features, curator)
    labels = NearestCells(_places_of(model)).index(curator._records.points)
    return _with(model, labels=np.bincount(labels, minlength=model.n_clusters).tolist())


def raw_inertia(params: CentralAlgorithm, features: Features, curator: Curator) -> ClusterModel:
    """Publishes the sum of squared distances of records to their centres."""
    model = run(params, features, curator)
    points, places = curator._records.points.astype(np.int64), _places_of(model)
    nearest = places[NearestCells(places).index(curator._records.points)]
    return _with(model, inertia=float(((points - nearest) ** 2).sum()) / LATTICE**2)


class RawSquares(Curator):
    """Sums of squares as they are, for nothing."""

    def squares(self, cells: Any, centres: NDArray[np.int64], epsilon_nano: int) -> NDArray[np.int64]:  # noqa: ARG002
        points, labels = self._records.points, cells.index(self._records.points)
        squares = np.zeros(len(centres), dtype=np.int64)
        np.add.at(squares, labels, ((points - centres[labels]) ** 2).sum(axis=1) >> 20)
        return squares


def raw_seeds(params: DpKmeans, features: Features, curator: Curator) -> ClusterModel:
    """Starts where k-means on the records ends (paper 003, section 2.2)."""
    points = curator._records.points / LATTICE
    centres = from_places(spread_out(params.clusters, len(features), params.seed))
    if len(points) >= params.clusters:
        found = weighted_kmeans(points, np.ones(len(points)), params.clusters, PublicWords(0), restarts=1).centres
        centres[: len(found)] = found
    return _stepped(params, features, curator, centres)


def raw_bounds(params: CentralAlgorithm, features: Features, curator: Curator) -> ClusterModel:
    """Scales by the least and the largest record (paper 003, algorithm 1, line 2)."""
    points = curator._records.points.astype(np.int64)
    low = points.min(axis=0, initial=LATTICE - 1)
    span = np.maximum(points.max(axis=0, initial=0) - low, 1)
    stretched = (np.maximum(points - low, 0) * (LATTICE - 1) // span).astype(np.int32)
    curator._records = Records(stretched, curator.max_per_user)
    model = run(params, features, curator)
    lowest = np.array([feature.lower for feature in features])
    ranges = np.array([feature.upper - feature.lower for feature in features])
    shares = (np.asarray(model.centroids) - lowest) / ranges
    return replace(model, centroids=lowest + (low + shares * span) / LATTICE * ranges)


def empty_cluster_skip(params: DpKmeans, features: Features, curator: Curator) -> ClusterModel:
    """Leaves clusters that nobody is in as they are, and asks of the others alone (diffprivlib 0.6.6)."""
    centres = from_places(spread_out(params.clusters, len(features), params.seed))
    held = np.bincount(NearestCells(to_places(centres)).index(curator._records.points), minlength=len(centres))
    (filled,) = np.nonzero(held)
    counts, variances = np.ones(len(centres)), np.ones(len(centres))
    if filled.size:
        cells = NearestCells(to_places(centres[filled]))
        told = noisy_means(curator, cells, centres[filled], parse_epsilon(params.epsilon))
        centres[filled], counts[filled], variances[filled] = told.places, told.counts, told.count_variances
    return _published(features, curator, Means(centres, counts, variances, np.zeros_like(centres)))


class Unlimited(Curator):
    """Refuses nothing: whoever divides epsilon wrongly overspends it."""

    @property
    def left_nano(self) -> int:
        return 1 << 62


def one_level_more(params: DpQuadtreeKmeans, features: Features, curator: Curator) -> ClusterModel:
    """Counts levels 0 to maxH at epsilon_1/maxH each, then the leaves (paper 003, algorithm 2)."""
    height = params.height or 2
    for_tree, for_leaves = split(parse_epsilon(params.epsilon), 3, 7)
    for level in range(height + 1):
        curator.counts(_halved(level, len(features)), for_tree // height)
    cells = _halved(height, len(features))
    counts = curator.counts(cells, for_leaves).astype(np.float64)
    variance = curator.variance(1, for_leaves)
    centres = np.linspace(0.1, 0.9, cells.n_cells)[:, None] * np.ones(len(features))
    return _published(features, curator, Means(centres, counts, np.full(len(counts), variance), 0 * centres))


def _halved(level: int, n_features: int) -> GridCells:
    return GridCells((1 << level,) + (1,) * (n_features - 1))


def _stepped(params: DpKmeans, features: Features, curator: Curator, centres: NDArray[np.float64]) -> ClusterModel:
    """Sound steps, from wherever."""
    for part in split(parse_epsilon(params.epsilon), *[1] * params.iterations):
        told = noisy_means(curator, NearestCells(to_places(centres)), np.full_like(centres, 0.5), part)
        centres = told.places
    return _published(features, curator, told)


def _published(features: Features, curator: Curator, told: Means) -> ClusterModel:
    odometer = [{name: getattr(asked, name) for name in SHOWN} for asked in curator.odometer]
    return centroid_model(features, told.places, told.counts, told.count_variances, diagnostics={"odometer": odometer})


def _places_of(model: ClusterModel) -> NDArray[np.int64]:
    lowest = np.array([feature.lower for feature in model.features])
    ranges = np.array([feature.upper - feature.lower for feature in model.features])
    return to_places((np.asarray(model.centroids) - lowest) / ranges)


def _with(model: ClusterModel, **more: Any) -> ClusterModel:
    return replace(model, diagnostics={**model.diagnostics, **more})


class HalfPosted(JobJournal):
    """Posts half of what a question costs."""

    def charge(self, index: int, question: Question) -> NDArray[np.int64] | None:
        return super().charge(index, replace(question, epsilon_nano=question.epsilon_nano // 2))


class Forgetful(JobJournal):
    """Pays, and never tells an old answer."""

    def charge(self, index: int, question: Question) -> NDArray[np.int64] | None:
        super().charge(index, question)
        return None


Look = Callable[[Setting], list[Finding]]


def _replays(params: object, broken: RunCentral, curator: type[Curator] = Curator) -> Look:
    method = Method(f"a broken {type(params).__name__}", params, broken, curator)
    return lambda setting: list(replayed(method, setting))


def _released(params: object, broken: RunCentral, pair: str) -> Look:
    method = Method(f"a broken {type(params).__name__}", params, broken)
    return lambda setting: list(told_apart(method, 1, setting, (pair,)))


def _job(setting: Setting, journal: type[JobJournal]) -> Sequence[Finding]:
    return central_service.replayed(Method("a job", _STEPS, run), setting, journal)


_STEPS = DpKmeans(1.0, 2, iterations=2)
_SPLITS = DpBisectingKmeans(1.0, 3, iterations=1)
_TREE = DpQuadtreeKmeans(1.0, 2, height=2)

LEAKS: tuple[Leak, ...] = (
    Leak("raw labels in the result", "dp_kmeans, replayed", _replays(_STEPS, raw_labels)),
    Leak("raw labels in the result", "dp_kmeans, released", _released(_STEPS, raw_labels, "one record")),
    Leak("raw inertia in the result", "dp_kmeans, replayed", _replays(_STEPS, raw_inertia)),
    Leak("raw SSE split", "dp_bisecting_kmeans, replayed", _replays(_SPLITS, run, RawSquares)),
    Leak("raw initial centres", "dp_kmeans, replayed", _replays(_STEPS, raw_seeds)),
    Leak("bounds from raw min/max", "dp_quadtree_kmeans, replayed", _replays(_TREE, raw_bounds)),
    Leak("bounds from raw min/max", "dp_quadtree_kmeans, released", _released(_TREE, raw_bounds, "one far point")),
    Leak("empty-cluster skip", "dp_kmeans, replayed", _replays(_STEPS, empty_cluster_skip)),
    Leak("maxH + 1 draws at epsilon/maxH", "dp_quadtree_kmeans, replayed", _replays(_TREE, one_level_more, Unlimited)),
    Leak("maxH + 1 draws, refused", "dp_quadtree_kmeans, replayed", _replays(_TREE, one_level_more)),
    Leak("half of a charge is posted", "a job, replayed", lambda setting: _job(setting, HalfPosted)),
    Leak("an answer drawn anew", "a job, replayed", lambda setting: _job(setting, Forgetful)),
)
