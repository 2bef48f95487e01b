"""Seeded faults of every kind against a running service: no data lost or duplicated, no budget overspent, no block."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.faults.deployment import BACKENDS
from tests.faults.injections import FAULTS, SERVER_FAULTS, Injection, each_kind, faults_of, schedule
from tests.faults.steps import PLANTED, STEPS

ROOT = Path(__file__).parents[2]
ALL_FAULTS = {"sqlite": 500, "postgresql": 500}


def run_faults(*arguments: str, status: int = 0) -> dict[str, Any]:
    """Return the last line of `python -m tests.faults`, run as a process of its own, which may enter namespaces."""
    command = [sys.executable, "-m", "tests.faults", "--json", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == status, f"{' '.join(arguments)}:\n{done.stdout[-6000:]}\n{done.stderr[-4000:]}"
    summary: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return summary


def assert_nothing_lost(summary: dict[str, Any], n_faults: int) -> None:
    assert summary["faults"] == n_faults
    assert {kind.partition("@")[0] for kind in summary["kinds"]} == set(faults_of(summary["backend"]))
    assert [summary[count] for count in ("lost", "doubled", "overspent", "blocked", "other")] == [0] * 5
    assert summary["n_reports"] > 0
    assert summary["n_jobs"] > 0
    assert summary["n_results"] > 0
    assert summary["n_records"] > 0
    assert summary["resent"] > 0


class TestSchedule:
    @pytest.mark.parametrize(
        "backend", [pytest.param(each, marks=() if each == "postgresql" else pytest.mark.release) for each in BACKENDS]
    )
    def test_equal_seeds_give_equal_schedules(self, backend: str) -> None:
        first, repeated, other = (schedule(seed, backend) for seed in ("1", "1", "2"))
        injections = [next(first) for _ in range(50)]
        assert injections == [next(repeated) for _ in range(50)]
        assert injections != [next(other) for _ in range(50)]

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_every_step_and_fault_of_the_backend_occurs(self, backend: str) -> None:
        injections_of = schedule("1", backend)
        injections = [next(injections_of) for _ in range(4000)]
        expected = set(FAULTS) - (set(SERVER_FAULTS) if backend == "sqlite" else set())
        assert {each.fault for each in injections} == {each.fault for each in each_kind("1", backend)} == expected
        assert {each.step for each in injections} >= set(STEPS)

    def test_a_printed_injection_can_be_parsed(self) -> None:
        for name in ("kill@child.result", "clock", "drop_response@reports"):
            assert str(Injection.parse(name)) == name
        assert Injection.parse("stop@child.result=2.5").amount == 2.5
        for wrong in ("", "kil", "kill@nowhere", "@child.result"):
            with pytest.raises(ValueError, match="unknown"):
                Injection.parse(wrong)


@pytest.mark.slow
@pytest.mark.timeout(7200)
class TestFaults:
    @pytest.mark.parametrize("backend", BACKENDS)
    def test_each_kind_loses_duplicates_and_blocks_nothing(self, backend: str) -> None:
        n = str(len(list(each_kind("ci", backend))))
        summary = run_faults("--faults", n, "--per-wave", n, "--seed", "ci", "--backend", backend)
        assert_nothing_lost(summary, int(n))

    @pytest.mark.release
    @pytest.mark.parametrize("backend", BACKENDS)
    def test_five_hundred_lose_duplicate_and_block_nothing(self, backend: str) -> None:
        n = ALL_FAULTS[backend]
        assert_nothing_lost(run_faults("--faults", str(n), "--seed", "all", "--backend", backend), n)


PROVOCATIONS = {  # faults that trigger each planted bug, and the count that must then be positive
    "acknowledge_early": (["kill@gateway.group", "kill@gateway.received"], "lost"),
    "count_repeats": (["kill@gateway.committed", "drop_response@reports"], "doubled"),
    "ignore_fence": (["stop_worker@child.publish=8"], "other"),
    "charge_twice": (["kill@child.charged", "kill@child.kept"], "overspent"),
    "forget_keys": (["kill@gateway.charged", "drop_response@jobs"], "doubled"),
    "long_lease": (["kill_supervisor@child.publish"], "blocked"),
}


@pytest.mark.release
@pytest.mark.timeout(1800)
class TestOracle:
    def test_every_planted_bug_has_a_test(self) -> None:
        assert set(PROVOCATIONS) == set(PLANTED)

    @pytest.mark.parametrize("bug", sorted(PLANTED))
    def test_a_planted_bug_is_detected(self, bug: str) -> None:
        provocations, count = PROVOCATIONS[bug]
        only = [word for each in provocations for word in ("--only", each)]
        summary = run_faults("--faults", "32", "--per-wave", "4", "--planted", bug, *only, status=1)
        assert summary[count] > 0
