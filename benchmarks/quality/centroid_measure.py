"""One run of a method that finds centroids, and what it scores."""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

from benchmarks.quality.centroid_data import CentroidSample, CentroidSet, draw
from benchmarks.quality.centroid_methods import FCM, METHODS, Found, k_means
from benchmarks.quality.centroid_rows import CentroidRow, CentroidRun
from benchmarks.quality.centroid_scores import entropy, f_measure, matched_rmse, nearest, nicv
from benchmarks.quality.information_bound import least_rmse
from benchmarks.quality.versions import software_version
from clustering.fuzzy import Rule, fuzzy_c_means
from clustering.metrics import adjusted_rand_index
from clustering.plans.noisy_fcm import STRETCH
from clustering.reference.fcm import TOLERANCE, fcm
from sfumato.errors import SfumatoError

# behind every row, besides what its method is made of
BEHIND = (
    "benchmarks.quality.centroid_data",
    "benchmarks.quality.centroid_scores",
    "benchmarks.quality.information_bound",
    "clustering.simulate",
    "clustering.reference.fcm",
)

WARMING_POINTS = 500

Points = NDArray[np.float64]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Task:
    """A run, and its set."""

    run: CentroidRun
    data: CentroidSet


def version_of(method: str) -> str:
    """Which software makes a method's rows."""
    return software_version(METHODS[method].module, BEHIND)


def tasks(
    sets: Sequence[CentroidSet], methods: Sequence[str], epsilons: Sequence[float], seeds: Sequence[int]
) -> list[Task]:
    """Every run that means something: seed by seed, so that a run cut short is even over sets.

    Raises
    ------
    ValueError
        A name that is no method.
    """
    unknown = [name for name in methods if name not in METHODS]
    if unknown:
        raise ValueError(f"no method is called {unknown[0]}; there are {', '.join(METHODS)}")
    return [
        Task(CentroidRun(name, data.name, data.n, epsilon, seed), data)
        for seed in seeds
        for data in sets
        for name in methods
        if data.n_features <= METHODS[name].most_features
        for epsilon in ([None] if METHODS[name].kind == "open" else epsilons)
    ]


def measure(task: Task) -> CentroidRow:
    """Make a run and score it; what the method refuses becomes a row without measures."""
    run, data = task.run, task.data
    known = _known(data, run.seed)
    same = {
        "method": run.method,
        "set": run.set,
        "n": run.n,
        "n_features": data.n_features,
        "clusters": data.clusters,
        "epsilon": run.epsilon,
        "seed": run.seed,
        "mark": data.mark,
        "version": version_of(run.method),
    }
    try:
        _warm(run.method, data.n_features)
        found = METHODS[run.method].run(known.sample.points, run.epsilon or 0.0, data.clusters, run.seed)
    except (SfumatoError, ValueError) as refusal:
        return CentroidRow(**same, note=f"{type(refusal).__name__}: {refusal}")  # type: ignore[arg-type]
    bound = None
    if data.spread is not None and run.epsilon is not None:
        bound = least_rmse(run.n, data.n_features, data.clusters, data.spread, run.epsilon)
    return CentroidRow(**same, **scores(found, known), bound=bound)  # type: ignore[arg-type]


@cache
def _warm(method: str, n_features: int) -> None:
    """Have kernels compiled and loaded before anything is timed; what so few points are too few for does not matter."""
    few = np.random.default_rng(0).random((WARMING_POINTS, n_features))
    with suppress(SfumatoError, ValueError):
        METHODS[method].run(few, 4.0, 2, 0)


@dataclass(frozen=True, eq=False)
class Known:
    """What a sample's runs are scored against.

    Attributes
    ----------
    centres : ndarray of shape (c, d)
        The true means where they are known, else those of the non-private k-means.
    truth : ndarray of shape (n,), int64
        Labels; 0 and below are not scored.
    nicv : float
        Of the non-private k-means.
    fcm_seconds : float
        CPU time of non-private FCM on the points.
    """

    sample: CentroidSample
    centres: Points
    truth: Labels
    nicv: float
    fcm_seconds: float
    clusters: int
    seed: int


def scores(found: Found, known: Known) -> dict[str, float | None]:
    """Every measure of a run."""
    points, scored = known.sample.points, known.truth > 0
    truth, labels = known.truth[scored], found.labels[scored]
    of_reports: dict[str, float | None] = {"report_f_measure": None, "report_ari": None, "report_ari_true": None}
    base_seconds, loop_ratio = known.fcm_seconds, None
    if found.reports is not None:
        named, by_true = (nearest(found.reports, centres)[scored] for centres in (found.centres, known.centres))
        of_reports = {
            "report_f_measure": f_measure(truth, named),
            "report_ari": adjusted_rand_index(truth, named),
            "report_ari_true": adjusted_rand_index(truth, by_true),
        }
    if found.array is not None:
        base_seconds = _fcm_seconds(found.array, known.clusters, known.seed)
        if found.rule is not None:
            loop_ratio = _loop_ratio(found.array, found.rule, known)
    return {
        "f_measure": f_measure(truth, labels),
        "entropy": entropy(truth, labels),
        "ari": adjusted_rand_index(truth, labels),
        "rmse": matched_rmse(found.centres, known.centres),
        "nicv_ratio": nicv(points, found.centres) / known.nicv,
        **of_reports,
        "seconds": found.seconds,
        "time_ratio": found.seconds / max(base_seconds, 1e-9),
        "loop_ratio": loop_ratio,
        "device_seconds": found.device_seconds,
    }


@lru_cache(maxsize=2)
def _known(data: CentroidSet, seed: int) -> Known:
    sample = draw(data, seed)
    centres = k_means(sample.points, data.clusters, seed)
    _warm(FCM, data.n_features)
    truth = sample.labels if data.labelled else nearest(sample.points, centres) + 1
    seconds = _fcm_seconds(sample.points, data.clusters, seed)
    true = centres if sample.centres is None else sample.centres
    return Known(sample, true, truth, nicv(sample.points, centres), seconds, data.clusters, seed)


def _fcm_seconds(points: Points, clusters: int, seed: int) -> float:
    began = time.process_time()
    fcm(points, clusters, seed=seed)
    return time.process_time() - began


def _loop_ratio(array: Points, rule: Rule, known: Known) -> float:
    """CPU time of the plan's iterations over those of classical FCM, from one start to one tolerance."""
    start = np.random.default_rng(known.seed).random(known.centres.shape)
    seconds = []
    for each, stretch in ((rule, STRETCH), (Rule("euclidean", rule.m), 1.0)):
        began = time.process_time()
        fuzzy_c_means(array, start, each, max_iterations=300, tolerance=TOLERANCE, stretch=stretch)
        seconds.append(time.process_time() - began)
    return seconds[0] / max(seconds[1], 1e-9)
