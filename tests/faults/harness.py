"""Waves of faults against a running service: clients work, faults come, everything settles, the oracle judges.

A wave has a seed of its own, made of the run's seed and its number, so one that failed is done again
alone. What is fixed by a seed is what comes in which order: faults, requests and their bytes. At which
microsecond a process is hit is up to the machine.
"""

import json
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.clients import Crowd
from tests.faults.injections import Injection, Injector, schedule
from tests.faults.oracle import Findings, Oracle
from tests.faults.world import START_SECONDS, World

FAULTS_PER_WAVE = 25


@dataclass(frozen=True)
class Plan:
    """What to do.

    Attributes
    ----------
    backend : {'sqlite', 'postgresql'}
    n_faults : int
    seed : str
    only : tuple of Injection
        These in turn, in place of the seed's.
    first_wave : int
        Number of the first wave.
    planted : str
        A fault of the service's own, which the oracle is to notice.
    per_wave : int
    """

    backend: str
    n_faults: int
    seed: str
    only: tuple[Injection, ...] = ()
    first_wave: int = 0
    planted: str = ""
    per_wave: int = FAULTS_PER_WAVE

    def faults(self, wave: int) -> Iterator[Injection]:
        """Faults of a wave, without end."""
        if not self.only:
            return schedule(f"{self.seed} {wave}", self.backend)
        return (self.only[nth % len(self.only)] for nth in range(10**9))

    def again(self, wave: int, n_faults: int) -> str:
        """The command that does one wave alone."""
        words = ["python -m tests.faults", f"--faults {n_faults}", f"--seed {self.seed}", f"--backend {self.backend}"]
        words += [f"--first-wave {wave}", f"--per-wave {self.per_wave}"]
        words += [f"--only {injection}={injection.amount:g}" for injection in self.only]
        return " ".join(words + ([f"--planted {self.planted}"] if self.planted else []))


@dataclass
class Wave:
    """What came of one."""

    number: int
    seed: str
    seconds: float
    injected: list[str]
    missed: list[str]
    findings: Findings
    n_requests: int
    n_resent: int
    n_unavailable: int


@dataclass
class Report:
    """What came of all."""

    backend: str
    seed: str
    means: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    waves: list[Wave] = field(default_factory=list)
    again: str = ""

    @property
    def findings(self) -> Findings:
        total = Findings()
        for wave in self.waves:
            total.add(wave.findings)
        return total

    @property
    def n_faults(self) -> int:
        return sum(len(wave.injected) for wave in self.waves)

    @property
    def by_kind(self) -> dict[str, int]:
        return dict(sorted(Counter(name for wave in self.waves for name in wave.injected).items()))

    def summary(self) -> dict[str, Any]:
        """The last line."""
        total = self.findings
        return {
            "backend": self.backend,
            "seed": self.seed,
            "faults": self.n_faults,
            "missed": sum(len(wave.missed) for wave in self.waves),
            "seconds": round(self.seconds, 1),
            "means": self.means,
            "requests": sum(wave.n_requests for wave in self.waves),
            "resent": sum(wave.n_resent for wave in self.waves),
            "unavailable": sum(wave.n_unavailable for wave in self.waves),
            **{name: value for name, value in asdict(total).items() if name != "wrong"},
            "other": len(total.wrong),
            "ok": total.is_clean,
        }


def run(plan: Plan, say: Callable[[str], None] = lambda _line: None) -> Report:
    """Do the plan, wave by wave, up to the first that fails."""
    began = time.monotonic()
    scratch = Path(tempfile.mkdtemp(prefix=f"sfumato-faults-{plan.backend}-"))
    scratch.chmod(0o711)  # PostgreSQL runs as nobody, where this runs as root
    report = Report(plan.backend, plan.seed)
    try:
        world = World(plan.backend, scratch, planted=plan.planted)
        try:
            report.means = world.room.means
            oracle = Oracle(world)
            while report.n_faults < plan.n_faults:
                number, n_left = plan.first_wave + len(report.waves), plan.n_faults - report.n_faults
                wave = _wave(world, oracle, plan, number, n_left, say)
                report.waves.append(wave)
                say(_row(wave))
                if not wave.findings.is_clean:
                    report.again = plan.again(wave.number, len(wave.injected))
                    (Path(tempfile.gettempdir()) / "sfumato-faults.log").write_text(world.text())
                    break
        finally:
            world.close()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    report.seconds = time.monotonic() - began
    return report


def _wave(world: World, oracle: Oracle, plan: Plan, number: int, n_left: int, say: Callable[[str], None]) -> Wave:
    began, seed = time.monotonic(), f"{plan.seed} {number}"
    _await_ready(world)
    crowd = Crowd.of(f"http://{world.door.host}:{world.door.port}", world.secret, f"{seed} {plan.backend}")
    injector, n_wanted = Injector(world, seed), min(plan.per_wave, n_left)
    crowd.start()
    injected, missed = injector.run(plan.faults(number), n_wanted, say, lambda: crowd.line.n_answered)
    world.release()
    _await_ready(world)
    crowd.settle()
    findings = oracle.judge(crowd)
    if not injected:  # else the next wave does what is left
        findings.wrong.append(f"none of {n_wanted} faults could be done")
    line = crowd.line
    return Wave(
        number, seed, time.monotonic() - began, injected, missed, findings,
        line.n_requests, line.n_resent, line.n_unavailable,
    )  # fmt: skip


def _await_ready(world: World) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not world.readies():
        world.forget_ended()
        world.revive_postgres()
        world.start()
        if time.monotonic() > deadline:
            raise TimeoutError(f"the service is not ready within {START_SECONDS:g} s:\n{world.text()[-4000:]}")
        time.sleep(0.1)


def _row(wave: Wave) -> str:
    found = wave.findings
    columns = [
        wave.number, len(wave.injected), len(wave.missed), f"{wave.seconds:.0f}", wave.n_requests, wave.n_resent,
        found.n_reports, found.n_in_doubt, found.n_rounds, found.n_jobs, found.n_results, found.n_records,
        found.lost, found.doubled, found.overspent, len(found.wrong),
    ]  # fmt: skip
    return " ".join(f"{value:>{len(name)}}" for name, value in zip(COLUMNS, columns, strict=True))


COLUMNS = (
    "wave", "faults", "missed", "seconds", "requests", "resent", "reports", "doubtful", "rounds", "jobs",
    "results", "records", "lost", "doubled", "overspent", "other",
)  # fmt: skip


def as_json(report: Report) -> str:
    """One line with everything a reader of results wants."""
    return json.dumps(report.summary() | {"kinds": report.by_kind, "again": report.again})
