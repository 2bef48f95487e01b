"""Command line of the audit: check every privacy claim, or every planted leak. Exit with 0 only if all checks pass."""

import argparse
import json
import os
import secrets
import sys
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from audit.checks.check import Effort, Finding, Setting
from audit.runner import CheckResult, run_checks

EXIT_FAILED, EXIT_USAGE = 1, 2
FILE_WIDTH = 10_000  # columns of a table that is written to a file; keeps each row on one line


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the audit that the command line requests and return the exit status."""
    options = _parse_options(arguments)
    effort = Effort.QUICK if options.quick else Effort.NIGHTLY if options.nightly else Effort.FULL
    seed = secrets.randbits(32) if options.seed is None else options.seed
    results = run_checks(options.planted, options.only, Setting(effort, seed), options.processes, options.fast)
    if not results:
        Console(stderr=True).print(f"sfumato: no check has {options.only!r} in its name", markup=False)
        return EXIT_USAGE
    passed = [_passes(result, options.planted) for result in results]
    if options.json:
        for result, ok in zip(results, passed, strict=True):
            sys.stdout.write(json.dumps({**asdict(result), "passed": ok}) + "\n")
    else:
        _print_table(results, options.planted)
    _print_summary(results, passed, options, seed)
    return 0 if all(passed) else EXIT_FAILED


def _passes(result: CheckResult, planted: bool) -> bool:
    """Return whether a sound form has no fault, or a planted leak has one, and the check ended without an error."""
    return not result.error and result.found_fault == planted


def _print_table(results: Sequence[CheckResult], planted: bool) -> None:
    table = Table(box=None, pad_edge=False)
    if planted:
        table.add_column("leak")
    for heading in ("subject", "claim", "method"):
        table.add_column(heading)
    for heading in ("trials", "charged", "measured"):
        table.add_column(heading, justify="right")
    table.add_column("verdict")
    for result in results:
        for finding in _select_findings(result, planted):
            name = (result.name,) if planted else ()
            table.add_row(*name, *_format_cells(finding), _format_verdict(finding, planted))
        if result.error:
            table.add_row(result.name, *[""] * (len(table.columns) - 2), f"ERROR: {result.error}")
    width = None if sys.stdout.isatty() else FILE_WIDTH
    Console(markup=False, highlight=False, width=width).print(table)


def _select_findings(result: CheckResult, planted: bool) -> Sequence[Finding]:
    """Return the first finding that detects a leak. Return all findings if there is none."""
    faults = [finding for finding in result.findings if not finding.holds]
    return faults[:1] if planted and faults else result.findings


def _format_cells(finding: Finding) -> tuple[str, ...]:
    numbers = ("" if number is None else f"{number:.4g}" for number in (finding.charged, finding.measured))
    return finding.subject, finding.claim, finding.method, f"{finding.trials:,}", *numbers


def _format_verdict(finding: Finding, planted: bool) -> str:
    if planted:
        return "MISSED" if finding.holds else f"detected: {finding.why}"
    return "holds" if finding.holds else f"FAILS: {finding.why}"


def _print_summary(
    results: Sequence[CheckResult], passed: Sequence[bool], options: argparse.Namespace, seed: int
) -> None:
    """Print the last line."""
    findings = [finding for result in results for finding in result.findings]
    n_findings, n_faults = len(findings), sum(not finding.holds for finding in findings)
    seconds = sum(result.seconds for result in results)
    if options.json:
        summary = {
            "passed": all(passed), "planted": options.planted, "checks": len(results), "failed": passed.count(False),
            "claims": n_findings, "faults": n_faults, "seconds": round(seconds, 1), "seed": seed,
        }  # fmt: skip
        sys.stdout.write(json.dumps(summary) + "\n")
        return
    n_errors = sum(bool(result.error) for result in results)
    if options.planted:
        text = f"{sum(passed)} of {len(results)} planted leaks were detected"
    else:
        text = f"{n_findings - n_faults} of {n_findings} claims hold"
    errors = f"; {n_errors} ended with an error" if n_errors else ""
    sys.stdout.write(f"{text}{errors} ({seconds:.0f} CPU seconds, --seed {seed})\n")


def _parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="sfumato audit", description=__doc__)
    effort = parser.add_mutually_exclusive_group()
    effort.add_argument("--quick", action="store_true", help="use few trials; takes minutes")
    effort.add_argument("--nightly", action="store_true", help="use ten times the trials of a normal run; takes hours")
    parser.add_argument(
        "--planted", action="store_true", help="run the checks on broken variants; each must be detected"
    )
    parser.add_argument("--fast", action="store_true", help="leave out the subjects with checks of a second or more")
    parser.add_argument("--only", metavar="TEXT", default="", help="run only checks with this text in their name")
    parser.add_argument("--seed", type=int, metavar="N", help="seed of the run; random by default")
    parser.add_argument(
        "--processes",
        type=_parse_count,
        metavar="N",
        default=os.cpu_count() or 1,
        help="number of processes; one per core by default",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON line per check and one summary line")
    return parser.parse_args(arguments)


def _parse_count(text: str) -> int:
    """Parse a number of processes."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of processes. Use 1 or more.")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
