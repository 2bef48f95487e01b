"""The centroids' benchmark: what a run measures, and how it is reported."""

import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.quality.centroids import report
from benchmarks.quality.centroids.data import draw, find, spread_of
from benchmarks.quality.centroids.information_bound import least_rmse
from benchmarks.quality.centroids.methods import AUTO, FCM, METHODS, ONE_CENTRE, Found, k_means
from benchmarks.quality.charts import DASHED, DOTTED, WIDE, Chart, Reference, curve, level, write
from benchmarks.quality.data import DataSet, Labels, Points, Sample
from benchmarks.quality.pipeline import Benchmark, Defaults, Measures, Section
from benchmarks.quality.reference.fcm import TOLERANCE, fcm
from benchmarks.quality.runs import Run
from benchmarks.quality.scores import entropy, f_measure, matched_rmse, nearest, nicv
from clustering.centroids.fuzzy_cmeans import Rule, fuzzy_c_means
from clustering.centroids.noisy_fcm import STRETCH
from clustering.metrics import adjusted_rand_index
from clustering.simulate import simulate
from sfumato.errors import SfumatoError

WARM_UP_POINTS = 500
# Labels are those that devices give their true points, unless a comment states otherwise.
MEASURES = (
    "f_measure",
    "entropy",  # bits
    "ari",
    "rmse",  # error of a coordinate, as a share of its range, against the true means or the centroids of k-means
    "nicv_ratio",  # over the NICV of k-means
    "report_f_measure",  # labels that the server gives noisy reports
    "report_ari",
    "report_ari_true",  # the same by the true means or the centroids of k-means
    "seconds",  # CPU time of the server
    "time_ratio",  # over that of fuzzy c-means on the same array: the noisy reports, or else the points
    "loop_ratio",  # the same of the iterations alone: same start, same tolerance, without the errors of the fit
    "device_seconds",  # CPU time of all devices
    "bound",  # lower bound of the RMSE of an unbiased private estimate
)


@dataclass(frozen=True, eq=False)
class Truth:
    """The reference that the runs on a sample are scored against."""

    sample: Sample
    centres: Points  # the true means if they are known, else the centroids of k-means
    labels: Labels  # 0 and below are not scored
    nicv: float  # NICV of k-means
    fcm_seconds: float  # CPU time of fuzzy c-means on the points


def measure(run: Run, data: DataSet) -> Measures:
    """Run a method and score what it found."""
    truth = _truth(data, run.seed)
    _warm_up(run.method, data.n_features)
    found = METHODS[run.method].run(truth.sample.points, run.epsilon, data.clusters, run.seed)
    spread, bound = spread_of(data), None
    if spread is not None and run.epsilon is not None:
        bound = least_rmse(run.n, data.n_features, data.clusters, spread, run.epsilon)
    return {**_scores(found, truth), **_report_scores(found, truth), **_times(found, truth, run.seed), "bound": bound}


def _scores(found: Found, truth: Truth) -> Measures:
    scored = truth.labels > 0
    pair = truth.labels[scored], found.labels[scored]
    return {
        "f_measure": f_measure(*pair),
        "entropy": entropy(*pair),
        "ari": adjusted_rand_index(*pair),
        "rmse": matched_rmse(found.centres, truth.centres),
        "nicv_ratio": nicv(truth.sample.points, found.centres) / truth.nicv,
    }


def _report_scores(found: Found, truth: Truth) -> Measures:
    """Score the labels of noisy reports, if there are any."""
    if found.reports is None:
        return {}
    scored = truth.labels > 0
    labels, by_true = (nearest(found.reports, centres)[scored] for centres in (found.centres, truth.centres))
    return {
        "report_f_measure": f_measure(truth.labels[scored], labels),
        "report_ari": adjusted_rand_index(truth.labels[scored], labels),
        "report_ari_true": adjusted_rand_index(truth.labels[scored], by_true),
    }


def _times(found: Found, truth: Truth, seed: int) -> Measures:
    clusters = len(truth.centres)
    base = truth.fcm_seconds if found.array is None else _fcm_seconds(found.array, clusters, seed)
    times = {
        "seconds": found.seconds,
        "device_seconds": found.device_seconds,
        "time_ratio": _ratio(found.seconds, base),
    }
    if found.array is not None and found.rule is not None:
        first = np.random.default_rng(seed).random(truth.centres.shape)
        own, plain = (
            _loop_seconds(found.array, first, rule, stretch)
            for rule, stretch in ((found.rule, STRETCH), (Rule("euclidean", found.rule.m), 1.0))
        )
        times["loop_ratio"] = _ratio(own, plain)
    return times


def _ratio(seconds: float, base: float) -> float:
    return seconds / max(base, 1e-9)


def _fcm_seconds(points: Points, clusters: int, seed: int) -> float:
    began = time.process_time()
    fcm(points, clusters, seed)
    return time.process_time() - began


def _loop_seconds(array: Points, first: Points, rule: Rule, stretch: float) -> float:
    """Return the CPU time of the iterations of a fuzzy method."""
    began = time.process_time()
    fuzzy_c_means(array, first, rule, max_iterations=300, tolerance=TOLERANCE, stretch=stretch)
    return time.process_time() - began


@cache
def _warm_up(method: str, n_features: int) -> None:
    """Compile and load kernels before anything is timed; a refusal of so few points does not matter."""
    few = np.random.default_rng(0).random((WARM_UP_POINTS, n_features))
    with suppress(SfumatoError, ValueError):
        METHODS[method].run(few, 4.0, 2, 0)


@lru_cache(maxsize=2)
def _truth(data: DataSet, seed: int) -> Truth:
    sample = draw(data, seed)
    centres = k_means(sample.points, data.clusters, seed)
    labels = sample.labels if data.labelled else nearest(sample.points, centres) + 1
    _warm_up(FCM, data.n_features)
    seconds = _fcm_seconds(sample.points, data.clusters, seed)
    true = centres if sample.centres is None else sample.centres
    return Truth(sample, true, labels, nicv(sample.points, centres), seconds)


RMSE_CHART = Chart(
    "centroids-rmse",
    "Centroids by privacy: clear blobs",
    "RMSE of a coordinate, a share of its range, against ε per person; mean over seeds, shaded: ± one deviation",
    "rmse",
    (3e-4, 0.6),
    (Reference("information bound: no unbiased private estimate is below", DASHED, curve(None, "bound")),),
)
NICV_CHART = Chart(
    "centroids-nicv",
    "Centroids by privacy: spread left in the clusters",
    "NICV over that of k-means without privacy, against ε per person; mean over seeds",
    "nicv_ratio",
    (0.93, 30.0),
    (
        Reference("one centre at the mean", WIDE, level(ONE_CENTRE, "nicv_ratio")),
        Reference("k-means without privacy", DOTTED, lambda _: 1.0),
    ),
    has_bands=False,
)


def draw_charts(folder: Path, summary: pd.DataFrame) -> None:
    """Write centroids-rmse, of the sets with known means, and centroids-nicv."""
    methods = [method for name, method in METHODS.items() if method.kind in ("ours", "comparator") and name != AUTO]
    write(folder, RMSE_CHART, summary[summary.bound.notna()], methods)
    write(folder, NICV_CHART, summary, methods)


CENTROIDS = Benchmark(
    help="Compare centroids under local privacy with the papers' methods and an information bound.",
    methods=METHODS,
    sources=(find.__module__, nearest.__module__, least_rmse.__module__, simulate.__module__, fcm.__module__),
    score="rmse",
    measures=MEASURES,
    spread=("ari", "rmse", "nicv_ratio"),
    find=find,
    measure=measure,
    sections=(
        Section("judged", report.targets, is_printed=True),
        Section("rmse", report.rmse_tables),
        Section("nicv", report.nicv_tables),
        Section("ablation", report.ablation_tables),
        Section("time", report.time_table),
        Section("labels", report.label_table),
        Section("regret", report.regret_table),
    ),
    draw=draw_charts,
    full=Defaults(["all"], (0.25, 0.5, 1.0, 2.0, 4.0), 5, (100_000,)),
    quick=Defaults(["quick"], (1.0, 4.0), 2, (30_000,)),
    prefix="centroids",
)
