"""Warming up: a worker that says it is ready compiles nothing more, whatever algorithm it is given."""

import json
import subprocess
import sys

import pytest

from clustering import simulate
from sfumato.specs import ALGORITHMS, MECHANISMS
from tests.workers.processes import ROOT
from workers import child, warm

# In a process of its own, where nothing is compiled yet: warm up as a child does, then run every
# algorithm over other points, with as many clusters as it finds, and fold and read every
# mechanism's reports as a worker does. Says which kernels were compiled (or loaded) when.
SCRIPT = """
import json, sys
from dataclasses import fields, replace
from itertools import product

import numpy as np
from numba.core.dispatcher import Dispatcher

from workers import child
from workers.process import log_to_stderr
log_to_stderr()
child._warm()

from clustering.decoders import decoder
from clustering.plan import Tally
from clustering.simulate import simulate
from sfumato.errors import SfumatoError
from sfumato.mechanisms import design
from sfumato.specs import ALGORITHMS, MECHANISMS, Feature, GridEncoding, RoundSpec
from tests.workers.collection import packed_reports
from workers.fold import fold
from workers.warm import N_FEATURES, small


def compiled():
    kernels = {}
    for name, module in sorted(sys.modules.items()):
        if name.split(".")[0] in ("clustering", "workers"):
            found = [each for each in vars(module).values() if isinstance(each, Dispatcher)]
            kernels |= {f"{each.__module__}.{each.__name__}": [str(s) for s in each.signatures] for each in found}
    return kernels


CHOICES = {  # where an algorithm has them
    "variant": ("sound", "paper"),
    "init": ("random", "plusplus", "subsets"),
    "split": ("largest_sse", "total_sse"),
    "synopsis": (False, True),
}
warm, ran = compiled(), set()
points = np.random.default_rng(0).beta(2, 5, size=(1000, 3))
for tag, clusters in product(ALGORITHMS, (None, 3)):
    chosen = [field.name for field in fields(ALGORITHMS[tag]) if field.name in CHOICES]
    for more in (dict(zip(chosen, made)) for made in product(*(CHOICES[name] for name in chosen))):
        for n_features in N_FEATURES:
            try:
                params = replace(small(tag), clusters=clusters, epsilon=8.0, **more)
                simulate(params, points[:, :n_features], seed=1)
                ran.add(tag)
                break
            except SfumatoError:  # not for so many features, or not without their number
                continue
for kind in MECHANISMS:
    try:
        spec = RoundSpec((Feature("x", 0.0, 1.0),), GridEncoding((9,)), design(kind, 9, 10**9))
        tally = fold(spec, lambda: [packed_reports(spec, 500, seed=1)], n_expected=500).tally
        decoder(spec.mechanism).frequencies(Tally.from_bytes(tally.to_bytes()))
    except SfumatoError:  # not for a grid's cells
        pass
json.dump({"warm": warm, "after": compiled(), "ran": sorted(ran)}, sys.stdout)
"""


@pytest.fixture(scope="module")
def said() -> dict:
    """What the script said, and what it logged."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, check=True)
    return {**json.loads(done.stdout), "log": done.stderr}


@pytest.mark.slow
@pytest.mark.ci
class TestWarmingUp:
    def test_no_algorithm_and_no_mechanism_compiles_anything_after_it(self, said: dict) -> None:
        assert said["ran"] == sorted(ALGORITHMS)
        assert said["after"] == said["warm"]

    def test_every_kernel_is_warm(self, said: dict) -> None:
        called = {name: signatures for name, signatures in said["warm"].items() if "._" not in name}
        assert {
            "workers.distinct.add_ids",
            "workers.fingerprint_loops.pick",
            "clustering.kernels.hashing.count_hashed",
        } <= (called.keys())
        assert [name for name, signatures in called.items() if not signatures] == []

    def test_the_log_says_what_is_warm(self, said: dict) -> None:
        assert "warming_failed" not in said["log"]
        (ready,) = [line for line in map(json.loads, said["log"].splitlines()) if line["event"] == "child_ready"]
        assert ready["warmed"] == sorted(ALGORITHMS)


class TestWhatCannotBeWarmed:
    def test_an_algorithm_that_breaks_is_logged_and_keeps_no_other_cold(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def broken(params, points, *, seed):
            if params.type == "uniform_grid":
                raise ValueError("the private value Zw9-4711")
            return simulate.simulate(params, points, seed=seed)

        monkeypatch.setattr(warm, "simulate", broken)
        assert warm.warm_up() == ALGORITHMS.keys() - {"uniform_grid"}
        logged = "".join(capsys.readouterr())
        assert "ValueError" in logged
        assert "Zw9-4711" not in logged

    def test_a_mechanism_that_breaks_keeps_no_algorithm_cold(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def broken(kind, points):
            raise ValueError(kind)

        monkeypatch.setattr(warm, "_run_mechanism", broken)
        assert warm.warm_up() == set(ALGORITHMS)
        assert "".join(capsys.readouterr()).count("warming_failed") == len(MECHANISMS)

    def test_the_child_is_ready_all_the_same(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def broken():
            raise ImportError

        monkeypatch.setattr(warm, "warm_up", broken)
        child._warm()
        assert "child_ready" in "".join(capsys.readouterr())


class TestLeftToTheJobs:
    def test_nothing_runs_and_the_child_is_ready(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        ran: list[str] = []
        monkeypatch.setattr(warm, "warm_up", lambda: ran.append("all") or set())
        child._warm(kernels=False)
        logged = "".join(capsys.readouterr())
        assert "child_ready" in logged
        assert "warming_failed" not in logged
        assert ran == []
