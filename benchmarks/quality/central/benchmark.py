"""The central benchmark: what a run measures, and how it is reported."""

import argparse
import time
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.metrics import calinski_harabasz_score, davies_bouldin_score, silhouette_score

from benchmarks.quality.central import report
from benchmarks.quality.central.data import draw, find
from benchmarks.quality.central.methods import GRID, METHODS, ONE_MEAN, PEER, k_means, peer
from benchmarks.quality.charts import WIDE, Chart, Reference, level, write
from benchmarks.quality.data import DataSet, Labels, Points
from benchmarks.quality.pipeline import Benchmark, Defaults, Measures, Section
from benchmarks.quality.runs import Run
from benchmarks.quality.scores import f_measure, nearest, nicv
from clustering.central.curator import Curator
from clustering.metrics import adjusted_rand_index

SCORED_POINTS = 5_000  # points of the last three scores: the silhouette takes the square of their number
MEASURES = (
    "nicv_ratio",  # over the NICV of the best k-means without privacy
    "rcp",  # (NICV of the uniform grid - NICV) / NICV of the uniform grid, of the same seed
    "f_measure",
    "ari",
    "silhouette",
    "davies_bouldin",
    "calinski_harabasz",
    "sse",  # in the box [0, 1]^d
    "seconds",  # CPU time
)


def measure(run: Run, data: DataSet) -> Measures:
    """Run a method and score its centroids."""
    points = draw(data).points
    began = time.process_time()
    centres = METHODS[run.method].run(points, run.epsilon, data.clusters, run.seed)
    measures = {"seconds": time.process_time() - began, **scores(data, centres)}
    if run.epsilon is not None:
        grid = _grid_nicv(data, run.epsilon, run.seed)
        measures["rcp"] = (grid - measures["sse"] / data.n) / grid
    return measures


def scores(data: DataSet, centres: Points) -> Measures:
    """Score centroids; measures that need two clusters are left out if one centroid has all points."""
    points = draw(data).points
    labels = nearest(points, centres)
    best_nicv, truth = _open(data)
    pair = truth[truth > 0], labels[truth > 0]
    own_nicv = nicv(points, centres)
    found = {
        "nicv_ratio": own_nicv / best_nicv,
        "sse": own_nicv * len(points),
        "f_measure": f_measure(*pair),
        "ari": adjusted_rand_index(*pair),
    }
    few = np.random.default_rng(0).permutation(len(points))[:SCORED_POINTS]
    if 1 < len(np.unique(labels[few])) < len(few):
        found |= {
            "silhouette": float(silhouette_score(points[few], labels[few])),
            "davies_bouldin": float(davies_bouldin_score(points[few], labels[few])),
            "calinski_harabasz": float(calinski_harabasz_score(points[few], labels[few])),
        }
    return found


@cache
def _open(data: DataSet) -> tuple[float, Labels]:
    """Return the NICV of the better of two runs of k-means, and the labels that runs are scored against."""
    sample = draw(data)
    found = (k_means(sample.points, data.clusters, seed) for seed in (1, 2))
    centres = min(found, key=lambda each: nicv(sample.points, each))
    truth = sample.labels if data.labelled else nearest(sample.points, centres) + 1
    return nicv(sample.points, centres), truth


@lru_cache(maxsize=64)
def _grid_nicv(data: DataSet, epsilon: float, seed: int) -> float:
    points = draw(data).points
    return nicv(points, METHODS[GRID].run(points, epsilon, data.clusters, seed))


def _set_peer(options: argparse.Namespace) -> list[str]:
    """Set the interpreter of the peer; return all methods, the peer only if it has an interpreter."""
    peer.python = options.peer
    return [name for name in METHODS if name != PEER or options.peer]


CHART = Chart(
    "central-nicv",
    "Centroids of records by privacy",
    "NICV over that of the best k-means without privacy, against the ε of a job; mean over seeds",
    "nicv_ratio",
    (0.93, 30.0),
    (Reference("one mean, not private", WIDE, level(ONE_MEAN, "nicv_ratio")),),
    has_bands=False,
)


def draw_charts(folder: Path, summary: pd.DataFrame) -> None:
    """Write central-nicv."""
    write(folder, CHART, summary, [method for method in METHODS.values() if method.kind != "open"])


CENTRAL = Benchmark(
    help="Compare centroids under central privacy with the papers' methods, a peer and k-means without privacy.",
    methods=METHODS,
    sources=(find.__module__, nearest.__module__, Curator.__module__),
    score="nicv_ratio",
    measures=MEASURES,
    spread=("nicv_ratio",),
    find=find,
    measure=measure,
    sections=(
        Section("nicv", report.nicv_tables, is_printed=True),
        Section("rcp", report.rcp_table),
        Section("judged", report.against_papers, is_printed=True),
    ),
    draw=draw_charts,
    full=Defaults(["all"], (1.0, 0.1, 0.05), 10),
    quick=Defaults(["quick"], (1.0, 0.1, 0.05), 2),
    prefix="central",
    options={"--peer": {"type": Path, "metavar": "PYTHON", "help": "an interpreter that has diffprivlib"}},
    prepare=_set_peer,
)
