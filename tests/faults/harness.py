"""Waves of faults against a running service: clients work, faults happen, all work ends, the oracle checks.

Each wave has a seed made from the run's seed and its number, so that a failed wave can be repeated alone. The seed
decides the order of faults and requests and their bytes, but not the exact time at which a fault hits a process.
"""

import json
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from tests.faults.clients import ClientGroup
from tests.faults.deployment import LEASE_SECONDS, START_SECONDS, Deployment
from tests.faults.injections import Injection, Injector, each_kind, schedule
from tests.faults.oracle import Findings, Oracle

FAULTS_PER_WAVE = 25
N_LEASES = 20  # leases that a client may wait for one after another: those of a job, its rounds and their aggregations
SLACK_SECONDS = 160.0  # time of the work on a busy machine
BLOCKED_SECONDS = N_LEASES * LEASE_SECONDS + SLACK_SECONDS  # after the last fault; later, work counts as blocked


@dataclass(frozen=True)
class Plan:
    """The parameters of a run.

    Attributes
    ----------
    backend : {'sqlite', 'postgresql'}
    n_faults : int
    seed : str
    only : tuple of Injection
        Faults to use in turn, instead of a schedule.
    first_wave : int
        Number of the first wave.
    planted : str
        A bug in the service, which the oracle must detect.
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
        """Return an endless sequence of a wave's faults. The first wave starts with each kind."""
        if not self.only:
            seed = f"{self.seed} {wave}"
            return chain(() if wave else each_kind(seed, self.backend), schedule(seed, self.backend))
        return (self.only[nth % len(self.only)] for nth in range(10**9))

    def rerun_command(self, wave: int, n_faults: int) -> str:
        """Return the command that repeats one wave."""
        words = ["python -m tests.faults", f"--faults {n_faults}", f"--seed {self.seed}", f"--backend {self.backend}"]
        words += [f"--first-wave {wave}", f"--per-wave {self.per_wave}"]
        words += [f"--only {injection}={injection.amount:g}" for injection in self.only]
        return " ".join(words + ([f"--planted {self.planted}"] if self.planted else []))


@dataclass
class Wave:
    """The result of one wave."""

    number: int
    seed: str
    seconds: float
    settle_seconds: float  # from the last fault to the end of all work
    injected: list[str]
    missed: list[str]
    findings: Findings
    n_requests: int
    n_resent: int
    n_unavailable: int


@dataclass
class Report:
    """The result of a run."""

    backend: str
    seed: str
    methods: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    waves: list[Wave] = field(default_factory=list)
    rerun_command: str = ""

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
        """Return the last line of the output."""
        total = self.findings
        return {
            "backend": self.backend,
            "seed": self.seed,
            "faults": self.n_faults,
            "missed": sum(len(wave.missed) for wave in self.waves),
            "seconds": round(self.seconds, 1),
            "longest_settle_seconds": round(max(wave.settle_seconds for wave in self.waves), 1),
            "methods": self.methods,
            "requests": sum(wave.n_requests for wave in self.waves),
            "resent": sum(wave.n_resent for wave in self.waves),
            "unavailable": sum(wave.n_unavailable for wave in self.waves),
            **{name: value for name, value in asdict(total).items() if name != "wrong"},
            "other": len(total.wrong),
            "ok": total.is_clean,
        }


def run(plan: Plan, print_line: Callable[[str], None] = lambda _line: None) -> Report:
    """Run the waves until one fails."""
    start = time.monotonic()
    scratch = Path(tempfile.mkdtemp(prefix=f"sfumato-faults-{plan.backend}-"))
    scratch.chmod(0o711)  # PostgreSQL runs as another user if this runs as root
    report = Report(plan.backend, plan.seed)
    try:
        deployment = Deployment(plan.backend, scratch, planted=plan.planted)
        try:
            report.methods = deployment.isolation.methods
            oracle = Oracle(deployment)
            while report.n_faults < plan.n_faults:
                number, n_left = plan.first_wave + len(report.waves), plan.n_faults - report.n_faults
                wave = _run_wave(deployment, oracle, plan, number, n_left, print_line)
                report.waves.append(wave)
                print_line(_format_row(wave))
                if not wave.findings.is_clean:
                    report.rerun_command = plan.rerun_command(wave.number, len(wave.injected))
                    (Path(tempfile.gettempdir()) / "sfumato-faults.log").write_text(deployment.read_log())
                    break
        finally:
            deployment.close()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    report.seconds = time.monotonic() - start
    return report


def _run_wave(
    deployment: Deployment, oracle: Oracle, plan: Plan, number: int, n_left: int, print_line: Callable[[str], None]
) -> Wave:
    start, seed = time.monotonic(), f"{plan.seed} {number}"
    _await_ready(deployment)
    clients = ClientGroup.create(
        f"http://{deployment.entry.host}:{deployment.entry.port}", deployment.secret, f"{seed} {plan.backend}"
    )
    injector, n_faults_wanted = Injector(deployment, seed), min(plan.per_wave, n_left)
    clients.start()
    injected, missed = injector.run(
        plan.faults(number), n_faults_wanted, print_line, lambda: clients.context.n_responses
    )
    last_fault = time.monotonic()
    deployment.release_all()
    _await_ready(deployment)
    findings = oracle.finish(clients, last_fault + BLOCKED_SECONDS)
    settle_seconds = time.monotonic() - last_fault
    oracle.check(clients, findings)
    if not injected:  # otherwise, the next wave injects the rest
        findings.wrong.append(f"none of {n_faults_wanted} faults could be injected")
    context = clients.context
    return Wave(
        number, seed, time.monotonic() - start, settle_seconds, injected, missed, findings,
        context.n_requests, context.n_resent, context.n_unavailable,
    )  # fmt: skip


def _await_ready(deployment: Deployment) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not deployment.is_ready():
        deployment.remove_ended()
        deployment.start_postgres()
        deployment.start()
        if time.monotonic() > deadline:
            raise TimeoutError(f"the service is not ready within {START_SECONDS:g} s:\n{deployment.read_log()[-4000:]}")
        time.sleep(0.1)


def _format_row(wave: Wave) -> str:
    found = wave.findings
    columns = [
        wave.number, len(wave.injected), len(wave.missed), f"{wave.seconds:.0f}", f"{wave.settle_seconds:.0f}",
        wave.n_requests, wave.n_resent,
        found.n_reports, found.n_in_doubt, found.n_rounds, found.n_jobs, found.n_results, found.n_records,
        found.lost, found.doubled, found.overspent, found.blocked, len(found.wrong),
    ]  # fmt: skip
    return " ".join(f"{value:>{len(name)}}" for name, value in zip(COLUMNS, columns, strict=True))


COLUMNS = (
    "wave", "faults", "missed", "seconds", "settle", "requests", "resent", "reports", "doubtful", "rounds", "jobs",
    "results", "records", "lost", "doubled", "overspent", "blocked", "other",
)  # fmt: skip


def format_json(report: Report) -> str:
    """Return the complete result as one JSON line."""
    return json.dumps(report.summary() | {"kinds": report.by_kind, "again": report.rerun_command})
