"""The local benchmark: what a run measures, and how it is reported."""

import argparse
import time
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.quality.charts import DOTTED, WIDE, Chart, Reference, curve, write
from benchmarks.quality.data import DataSet, Labels
from benchmarks.quality.local import maps, report
from benchmarks.quality.local.data import RESAMPLED_SIZE, SHAPE_SIZES, draw, find
from benchmarks.quality.local.methods import METHODS
from benchmarks.quality.pipeline import Benchmark, Defaults, Measures, Section
from benchmarks.quality.runs import Run
from clustering.metrics import accuracy, adjusted_rand_index, fowlkes_mallows, purity
from clustering.simulate import simulate

MAP_EPSILON, MAP_SEED = 1.0, 0


def measure(run: Run, data: DataSet) -> Measures:
    """Run a method and score its labels; a set without labels is scored against the same method on exact counts."""
    labels, n_clusters, seconds = fit(run, data)
    truth = draw(data, run.seed).labels if data.labelled else _exact_labels(run, data)
    scored = truth > 0 if data.labelled else np.ones(data.n, dtype=np.bool_)
    pair = truth[scored], labels[scored]
    return {
        "ari": adjusted_rand_index(*pair),
        "accuracy": accuracy(*pair),
        "purity": purity(*pair),
        "fmi": fowlkes_mallows(*pair),
        "seconds": seconds,
        "n_clusters": n_clusters,
    }


def fit(run: Run, data: DataSet, *, perturb: bool = True) -> tuple[Labels, int, float]:
    """Return labels, number of clusters, and seconds of the fit, devices included."""
    sample = draw(data, run.seed)
    began = time.perf_counter()
    clusters = None if run.k == "auto" else data.clusters
    model = METHODS[run.method].run(sample, run.epsilon, clusters, run.seed, perturb)
    seconds = time.perf_counter() - began
    return model.assign(sample.points), model.n_clusters, seconds


@lru_cache(maxsize=4)
def _exact_labels(run: Run, data: DataSet) -> Labels:
    return fit(run, data, perturb=False)[0]


def draw_maps(options: argparse.Namespace, defaults: Defaults) -> None:
    """Draw the label maps of the shapes, unless the command line leaves them out."""
    if not options.no_maps:
        n = min(max(options.sizes or defaults.sizes), RESAMPLED_SIZE)
        maps.write(options.out, fit, options.methods or list(METHODS), n, MAP_EPSILON, MAP_SEED)


TITLES = {"given": "Quality by privacy: number of clusters given", "auto": "Quality by privacy: number found"}
CAPTION = "Adjusted Rand index against ε per person; mean over seeds, shaded: ± one standard deviation"
REFERENCES = (
    Reference("exact grid (no noise)", DOTTED, curve("exact grid", "ari")),
    Reference("best without privacy, tuned on the truth", WIDE, lambda group: group[group.k == "tuned"].ari.max()),
)


def draw_charts(folder: Path, summary: pd.DataFrame) -> None:
    """Write ari-given and ari-auto."""
    methods = [method for method in METHODS.values() if method.kind != "open"]
    for k, title in TITLES.items():
        chart = Chart(f"ari-{k}", title, CAPTION, "ari", (-0.05, 1.05), REFERENCES, is_log=False)
        write(folder, chart, summary[summary.k.isin([k, "tuned"])], methods)


LOCAL = Benchmark(
    help="Compare clusterings under local privacy with the papers' methods, comparators and non-private ceilings.",
    methods=METHODS,
    sources=(find.__module__, accuracy.__module__, simulate.__module__),
    score="ari",
    measures=(*report.MEASURES, "seconds", "n_clusters"),
    spread=report.MEASURES,
    find=find,
    measure=measure,
    sections=(
        Section("ten", report.ten_sets, is_printed=True),
        Section("shapes", report.shapes),
        Section("sets", report.overviews),
    ),
    draw=draw_charts,
    full=Defaults(["all"], (0.5, 1.0, 2.0, 4.0), 5, SHAPE_SIZES),
    quick=Defaults(["quick"], (1.0, 4.0), 2, SHAPE_SIZES[:1], jobs=2),
    options={
        "--jobs": {"type": int, "metavar": "N", "help": "number of processes; default 1, with --quick 2"},
        "--no-maps": {"action": "store_true", "help": "leave out the picture of label maps"},
    },
    finish=draw_maps,
)
