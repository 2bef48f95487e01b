"""Looking at many things at once, each in a process of its own."""

import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from audit.check import Check, Finding, Leak, Setting


@dataclass(frozen=True, slots=True)
class Looked:
    """What came of one check, or of one leak that was put to its check."""

    name: str  # of the leak; of a check, its subject
    findings: tuple[Finding, ...]
    seconds: float
    broke: str = ""  # where looking itself failed: by which error

    @property
    def found_fault(self) -> bool:
        """Whether some claim was seen not to hold."""
        return any(not finding.holds for finding in self.findings)


def look(planted: bool, only: str, setting: Setting, n_processes: int) -> list[Looked]:
    """Look at everything whose name or subject holds `only`, several at once; in the catalogue's order."""
    names = [f"{_name(each)} {each.subject}".lower() for each in _catalogue(planted)]
    chosen = [i for i, name in enumerate(names) if only.lower() in name]
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        console=Console(stderr=True), transient=True,
    )  # fmt: skip
    with bar:
        task = bar.add_task("planted leaks" if planted else "claims", total=len(chosen))
        if n_processes == 1:
            return [look_at(planted, i, setting) for i in bar.track(chosen, task_id=task)]
        spawn = multiprocessing.get_context("spawn")  # threads of numba do not live through a fork
        with ProcessPoolExecutor(n_processes, spawn) as pool:
            futures = [pool.submit(look_at, planted, i, setting) for i in chosen]
            for _ in as_completed(futures):
                bar.advance(task)
    return [future.result() for future in futures]


def look_at(planted: bool, index: int, setting: Setting) -> Looked:
    """Look at one; what it raises is told, and counts as a failure of the audit."""
    each = _catalogue(planted)[index]
    began = time.perf_counter()
    findings: tuple[Finding, ...] = ()
    broke = ""
    try:
        findings = tuple(each.run(setting))
        if not findings:
            broke = "it found nothing to look at"
    except Exception as error:  # whatever it is, the other checks go on
        broke = f"{type(error).__name__}: {error}"
    return Looked(_name(each), findings, time.perf_counter() - began, broke)


def _catalogue(planted: bool) -> Sequence[Check | Leak]:
    from audit import catalogue

    return catalogue.LEAKS if planted else catalogue.CHECKS


def _name(each: Check | Leak) -> str:
    return each.name if isinstance(each, Leak) else each.subject
