"""After the warm-up, a worker compiles no kernel for any algorithm."""

import json
import queue
import subprocess
import sys
from collections.abc import Iterator

import pytest

from sfumato.errors import SfumatoError
from sfumato.specs import ALGORITHMS, MECHANISMS
from tests.workers.processes import ROOT
from workers import job_process
from workers.kernels import warmup

# Warm up in a new process, as a job process does. Then run every algorithm over other points, and aggregate and decode
# the reports of every mechanism, as a worker does. Print the compiled (or loaded) kernels before and after.
SCRIPT = """
import json, sys
from dataclasses import fields, replace
from itertools import product

import numpy as np
from numba.core.dispatcher import Dispatcher

from runtime.logging import configure_logging
from workers import job_process
configure_logging()
job_process._load_algorithms()
for _ in job_process._compile_kernels():
    pass

from clustering.rounds.decoders import decoder
from clustering.rounds.tally import Tally
from clustering.simulate import simulate
from sfumato.errors import SfumatoError
from sfumato.mechanisms import design
from sfumato.specs import ALGORITHMS, MECHANISMS, Feature, GridEncoding, RoundSpec
from tests.workers.collection import packed_reports
from workers.aggregation.aggregate import aggregate
from workers.kernels.warmup import N_FEATURES, small_parameters


def compiled():
    kernels = {}
    for name, module in sorted(sys.modules.items()):
        if name.split(".")[0] in ("clustering", "workers"):
            found = [each for each in vars(module).values() if isinstance(each, Dispatcher)]
            kernels |= {f"{each.__module__}.{each.__name__}": [str(s) for s in each.signatures] for each in found}
    return kernels


CHOICES = {  # of the algorithms that have these parameters
    "variant": ("sound", "paper"),
    "init": ("random", "plusplus", "subsets"),
    "split": ("largest_sse", "total_sse"),
    "synopsis": (False, True),
}
warm, ran = compiled(), set()
points = np.random.default_rng(0).beta(2, 5, size=(1000, 3))
for tag, clusters in product(ALGORITHMS, (None, 3)):
    names = [field.name for field in fields(ALGORITHMS[tag]) if field.name in CHOICES]
    for choice in product(*(CHOICES[name] for name in names)):
        for n_features in N_FEATURES:
            try:
                params = replace(small_parameters(tag), clusters=clusters, epsilon=8.0, **dict(zip(names, choice)))
                simulate(params, points[:, :n_features], seed=1)
                ran.add(tag)
                break
            except SfumatoError:  # the algorithm needs another number of features, or the number of clusters
                continue
for kind in MECHANISMS:
    try:
        spec = RoundSpec((Feature("x", 0.0, 1.0),), GridEncoding((9,)), design(kind, 9, 10**9))
        tally = aggregate(spec, lambda: [packed_reports(spec, 500, seed=1)], n_expected=500).tally
        decoder(spec.mechanism).frequencies(Tally.from_bytes(tally.to_bytes()))
    except SfumatoError:  # the mechanism does not fit the cells of a grid
        pass
json.dump({"warm": warm, "after": compiled(), "ran": sorted(ran)}, sys.stdout)
"""


@pytest.mark.slow
def test_warm_up_compiles_every_kernel_that_jobs_call() -> None:
    process = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, check=True)
    output = json.loads(process.stdout)
    assert output["ran"] == sorted(ALGORITHMS)
    assert output["after"] == output["warm"]
    public = {name: signatures for name, signatures in output["warm"].items() if "._" not in name}
    assert {
        "workers.aggregation.id_set.add_ids",
        "workers.aggregation.duplicate_filter_kernels.pick",
        "clustering.kernels.counting.count_hashed",
    } <= (public.keys())
    for inlined in (
        "clustering.kernels.nearest.find_nearest",
        "clustering.kernels.nearest.label_block",
        "clustering.kernels.nearest.measure_square",
        "clustering.kernels.nearest.prepare_search",
        "clustering.kernels.phases.sines_and_cosines",
        "workers.aggregation.duplicate_filter_kernels.load_word",
        "clustering.kernels.residuals.measure_residual",
    ):
        del public[inlined]  # only kernels call it, so they contain it
    assert [name for name, signatures in public.items() if not signatures] == []
    assert "warmup_failed" not in process.stderr
    lines = map(json.loads, process.stderr.splitlines())
    (compiled,) = [line for line in lines if line["event"] == "kernels_compiled"]
    assert compiled["warmed"] == sorted(ALGORITHMS)


class TestFailingAlgorithms:
    """`simulate` and the other runs are replaced, because they would compile all kernels."""

    @pytest.fixture(autouse=True)
    def failing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def simulate(params, points, *, seed):
            if params.type == "uniform_grid":
                raise ValueError("the private value Zw9-4711")
            if params.type == "phase_sketch" and points.shape[1] == 2:
                raise SfumatoError("not for two features")
            if params.type == "dp_kmeans":
                raise SfumatoError("not for any number of features")

        def run_mechanism(kind, points):
            raise {"grr": SfumatoError}.get(kind, ValueError)(kind)

        monkeypatch.setattr(warmup, "simulate", simulate)
        monkeypatch.setattr(warmup, "_run_mechanism", run_mechanism)
        monkeypatch.setattr(warmup, "_run_aggregation", lambda: None)

    def test_are_logged_without_private_values_and_the_others_are_warm(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert warmup.warm_up() == ALGORITHMS.keys() - {"uniform_grid", "dp_kmeans"}
        logged = "".join(capsys.readouterr())
        assert logged.count("warmup_failed") == 2 + len(MECHANISMS) - 1
        assert "ValueError" in logged
        assert "Zw9-4711" not in logged

    def test_do_not_end_the_job_process(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def fail() -> Iterator[tuple[str, bool]]:
            yield "phase_sketch", True
            raise ImportError

        monkeypatch.setattr(job_process.gc, "freeze", lambda: None)
        monkeypatch.setattr(warmup, "warm_up_each", fail)
        assert list(job_process._compile_kernels()) == ["phase_sketch"]
        failed, compiled = "".join(capsys.readouterr()).strip().split("\n", 1)
        assert "warmup_failed" in failed
        assert "kernels_compiled" in compiled
        assert "phase_sketch" in compiled


class TestTasks:
    def test_come_before_the_kernels_that_are_not_compiled_yet(self, monkeypatch: pytest.MonkeyPatch) -> None:
        order: list[str] = []
        tasks: queue.SimpleQueue[job_process.Task] = queue.SimpleQueue()
        now, later = job_process.AggregationTask("now"), job_process.AggregationTask("later")

        def warm_up_each() -> Iterator[tuple[str, bool]]:
            for name in ("first", "second", "third"):
                order.append(name)
                if name == "first":
                    tasks.put(now)
                yield name, True

        monkeypatch.setattr(job_process.gc, "freeze", lambda: None)
        monkeypatch.setattr(warmup, "warm_up_each", warm_up_each)
        kernels = job_process._compile_kernels()
        assert job_process._await_task(tasks, kernels) == now
        tasks.put(later)
        assert job_process._await_task(tasks, kernels) == later
        assert order == ["first"]
        assert list(kernels) == ["second", "third"]
