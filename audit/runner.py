"""Run checks in parallel, each in a process of its own."""

import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from audit.checks.check import Check, Finding, Leak, Setting


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check, or of the check of one planted leak."""

    name: str  # name of the leak, or subject of the check
    findings: tuple[Finding, ...]
    seconds: float
    error: str = ""  # type and message of the exception that ended the check

    @property
    def found_fault(self) -> bool:
        """Return whether at least one claim does not hold."""
        return any(not finding.holds for finding in self.findings)


def run_checks(planted: bool, only: str, setting: Setting, n_processes: int, fast: bool = False) -> list[CheckResult]:
    """Run the checks with `only` in their name or subject, in parallel. Return results in catalogue order.

    `fast` leaves out the subjects of `audit.catalogue.SLOW`.
    """
    from audit.catalogue import SLOW

    chosen = [
        i
        for i, item in enumerate(_catalogue(planted))
        if only.lower() in f"{_name_of(item)} {item.subject}".lower() and not (fast and item.subject in SLOW)
    ]
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        console=Console(stderr=True), transient=True,
    )  # fmt: skip
    with bar:
        task = bar.add_task("planted leaks" if planted else "claims", total=len(chosen))
        if n_processes == 1:
            return [run_check(planted, i, setting) for i in bar.track(chosen, task_id=task)]
        spawn = multiprocessing.get_context("spawn")  # numba's threads do not survive a fork
        with ProcessPoolExecutor(n_processes, spawn) as pool:
            futures = [pool.submit(run_check, planted, i, setting) for i in chosen]
            for _ in as_completed(futures):
                bar.advance(task)
    return [future.result() for future in futures]


def run_check(planted: bool, index: int, setting: Setting) -> CheckResult:
    """Run one check. An exception is stored in the result and counts as a failure of the audit."""
    item = _catalogue(planted)[index]
    start = time.perf_counter()
    findings: list[Finding] = []
    error = ""
    try:
        for finding in item.run(setting):
            findings.append(finding)
            if planted and not finding.holds:
                break  # one fault detects a leak
        if not findings:
            error = "the check returned no finding"
        elif all(finding.holds for finding in findings) and any(finding.trials < 1 for finding in findings):
            error = "the check made no trial"
    except Exception as exception:  # the other checks continue
        error = f"{type(exception).__name__}: {exception}"
    return CheckResult(_name_of(item), tuple(findings), time.perf_counter() - start, error)


def _catalogue(planted: bool) -> Sequence[Check | Leak]:
    from audit import catalogue

    return catalogue.LEAKS if planted else catalogue.CHECKS


def _name_of(item: Check | Leak) -> str:
    return item.name if isinstance(item, Leak) else item.subject
