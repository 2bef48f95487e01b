"""Faults of every kind against a running service, from a seed: nothing lost, nothing doubled, nothing overspent."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.faults.injections import FAULTS, Injection, schedule
from tests.faults.steps import PLANTED, STEPS
from tests.faults.world import BACKENDS

ROOT = Path(__file__).parents[2]
CI_FAULTS = {"sqlite": 50, "postgresql": 50}
ALL_FAULTS = {"sqlite": 500, "postgresql": 500}


def faults(*arguments: str, status: int = 0) -> dict[str, Any]:
    """The last line of `python -m tests.faults`, in a process of its own: it takes namespaces where it may."""
    command = [sys.executable, "-m", "tests.faults", "--json", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == status, f"{' '.join(arguments)}:\n{done.stdout[-6000:]}\n{done.stderr[-4000:]}"
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def assert_nothing_lost(found: dict[str, Any], n_faults: int) -> None:
    assert found["faults"] == n_faults
    assert (found["lost"], found["doubled"], found["overspent"], found["other"]) == (0, 0, 0, 0)
    assert found["n_reports"] > 0
    assert found["n_jobs"] > 0
    assert found["n_results"] > 0
    assert found["n_records"] > 0
    assert found["resent"] > 0


class TestASchedule:
    @pytest.mark.parametrize("backend", BACKENDS)
    def test_is_the_same_for_a_seed_and_another_for_another(self, backend: str) -> None:
        first, again, other = (schedule(seed, backend) for seed in ("1", "1", "2"))
        drawn = [next(first) for _ in range(50)]
        assert drawn == [next(again) for _ in range(50)]
        assert drawn != [next(other) for _ in range(50)]

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_comes_to_every_step_and_every_fault_of_its_back_end(self, backend: str) -> None:
        faults_of = schedule("1", backend)
        drawn = [next(faults_of) for _ in range(4000)]
        only_servers = {"kill_postgres", "kill_redis", "stop_redis", "flush_redis", "cut_network"}
        assert {each.fault for each in drawn} == set(FAULTS) - (only_servers if backend == "sqlite" else set())
        assert {each.step for each in drawn} >= set(STEPS)

    def test_reads_back_what_it_prints(self) -> None:
        for name in ("kill@child.result", "clock", "drop_response@reports"):
            assert str(Injection.parse(name)) == name
        assert Injection.parse("stop@child.result=2.5").amount == 2.5
        for wrong in ("", "kil", "kill@nowhere", "@child.result"):
            with pytest.raises(ValueError, match="is called"):
                Injection.parse(wrong)


@pytest.mark.slow
@pytest.mark.timeout(7200)
class TestFaults:
    @pytest.mark.ci
    @pytest.mark.parametrize("backend", BACKENDS)
    def test_a_hundred_of_them_lose_and_double_nothing(self, backend: str) -> None:
        n = CI_FAULTS[backend]
        assert_nothing_lost(faults("--faults", str(n), "--per-wave", str(n), "--seed", "ci", "--backend", backend), n)

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_a_thousand_of_them_lose_and_double_nothing(self, backend: str) -> None:
        n = ALL_FAULTS[backend]
        assert_nothing_lost(faults("--faults", str(n), "--seed", "all", "--backend", backend), n)


PROVOKED_BY = {  # what brings a planted bug to light, and what the oracle then says
    "acknowledge_early": (["kill@gateway.group", "kill@gateway.received"], "lost"),
    "count_repeats": (["kill@gateway.committed", "drop_response@reports"], "doubled"),
    "ignore_fence": (["stop@child.publish=8"], "other"),
    "charge_twice": (["kill@child.charged", "kill@child.kept"], "overspent"),
    "forget_keys": (["kill@gateway.posted", "drop_response@jobs"], "doubled"),
}


@pytest.mark.slow
@pytest.mark.timeout(1800)
class TestTheOracle:
    def test_is_shown_every_planted_bug(self) -> None:
        assert set(PROVOKED_BY) == set(PLANTED)

    @pytest.mark.parametrize("bug", sorted(PLANTED))
    def test_notices_a_planted_bug(self, bug: str) -> None:
        provocations, count = PROVOKED_BY[bug]
        only = [word for each in provocations for word in ("--only", each)]
        found = faults("--faults", "32", "--per-wave", "4", "--planted", bug, *only, status=1)
        assert found[count] > 0
