"""One run, from a drawn sample to its row; and all runs, one after another or over processes."""

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from benchmarks.quality.data import DataSet, Sample, draw
from benchmarks.quality.methods import METHODS, AnyMethod, TunedMethod
from benchmarks.quality.rows import Row, Run
from benchmarks.quality.versions import software_version
from clustering.metrics import accuracy, adjusted_rand_index, fowlkes_mallows, purity
from sfumato.errors import SfumatoError

Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Task:
    """A run, and what is needed to make it in another process."""

    run: Run
    data: DataSet


def tasks(sets: Sequence[DataSet], methods: Sequence[str], epsilons: Sequence[float], seeds: int) -> list[Task]:
    """Every run that means something: seed by seed, so that a run cut short is even over sets.

    Raises
    ------
    ValueError
        A name that is no method.
    """
    unknown = [name for name in methods if name not in METHODS]
    if unknown:
        raise ValueError(f"no method is called {unknown[0]}; there are {', '.join(METHODS)}")
    found = []
    for seed in range(seeds):
        for data in sets:
            for name in methods:
                method = METHODS[name]
                least, most = method.features
                if not least <= data.n_features <= most or (method.kind == "ceiling" and not data.labelled):
                    continue
                for way in method.ways:
                    for epsilon in [None] if isinstance(method, TunedMethod) else epsilons:
                        run = Run(name, data.name, data.n, epsilon, seed, way)
                        found.append(Task(run, data))
    return found


def measure(task: Task) -> Row:
    """Make a run and score it; what the method refuses becomes a row without measures."""
    run, data = task.run, task.data
    method = METHODS[run.method]
    sample = _sample(data, run.seed)
    began = time.perf_counter()
    try:
        labels, n_clusters, seconds = _labels(method, task, sample, perturb=True)
        truth, scored = sample.labels, sample.labels > 0
        if not data.labelled:
            truth, scored = _exact_labels(task), np.ones(data.n, dtype=np.bool_)
    except (SfumatoError, ValueError) as refusal:
        seconds = time.perf_counter() - began
        return _row(task, None, seconds, 0, f"{type(refusal).__name__}: {refusal}")
    return _row(task, (truth[scored], labels[scored]), seconds, n_clusters, "")


def labels_of(task: Task) -> Labels:
    """The labels a run gives all points of its sample; raises what the method raises."""
    return _labels(METHODS[task.run.method], task, _sample(task.data, task.run.seed), perturb=True)[0]


def measure_all(todo: Sequence[Task], jobs: int) -> Iterator[Row]:
    """Rows as they are made, in any order; `jobs` processes where that is more than one."""
    if jobs <= 1:
        yield from map(measure, todo)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:  # a fork after OpenMP kills children
        yield from pool.imap_unordered(measure, todo)


def _labels(method: AnyMethod, task: Task, sample: Sample, *, perturb: bool) -> tuple[Labels, int, float]:
    """Labels, number of clusters, and seconds of fitting."""
    run, data = task.run, task.data
    began = time.perf_counter()
    if isinstance(method, TunedMethod):
        labels = method.tune(sample.points, sample.labels, data.clusters, run.seed)
        return labels, len(np.unique(labels)), time.perf_counter() - began
    assert run.epsilon is not None  # only what is tuned on the truth knows none
    clusters = data.clusters if run.k == "given" else None
    model = method.run(sample.points, run.epsilon, clusters, run.seed, perturb)
    seconds = time.perf_counter() - began
    return model.assign(sample.points), model.n_clusters, seconds


def _row(task: Task, pair: tuple[Labels, Labels] | None, seconds: float, n_clusters: int, note: str) -> Row:
    """`pair` is the truth and the labels, of the points that are scored."""
    run = task.run
    return Row(
        method=run.method,
        set=run.set,
        n=run.n,
        epsilon=run.epsilon,
        seed=run.seed,
        k=run.k,
        ari=adjusted_rand_index(*pair) if pair else None,
        accuracy=accuracy(*pair) if pair else None,
        purity=purity(*pair) if pair else None,
        fmi=fowlkes_mallows(*pair) if pair else None,
        seconds=seconds,
        n_clusters=n_clusters,
        mark=task.data.mark,
        version=software_version(METHODS[run.method].module),
        note=note,
    )


@lru_cache(maxsize=2)
def _sample(data: DataSet, seed: int) -> Sample:
    return draw(data, seed)


@lru_cache(maxsize=4)
def _exact_labels(task: Task) -> Labels:
    """The same method's labels on exact counts, with the same seed: the truth where there is none."""
    sample = _sample(task.data, task.run.seed)
    return _labels(METHODS[task.run.method], task, sample, perturb=False)[0]
