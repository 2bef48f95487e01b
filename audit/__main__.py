"""`python -m audit`: look at every claim, or plant every leak; exit status 0 only if all is as it should be."""

import argparse
import json
import os
import secrets
import sys
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from audit.check import Effort, Finding, Setting
from audit.looking import Looked, look

EXIT_FAILED, EXIT_USAGE = 1, 2
UNBROKEN = 10_000  # columns: of a table that goes to a file, where a row is one line


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; the exit status."""
    options = _options(arguments)
    effort = Effort.QUICK if options.quick else Effort.NIGHTLY if options.nightly else Effort.FULL
    seed = secrets.randbits(32) if options.seed is None else options.seed
    looked = look(options.planted, options.only, Setting(effort, seed), options.processes)
    if not looked:
        Console(stderr=True).print(f"sfumato: nothing the audit looks at is called {options.only!r}", markup=False)
        return EXIT_USAGE
    as_it_should_be = [_is_right(each, options.planted) for each in looked]
    if options.json:
        for each, right in zip(looked, as_it_should_be, strict=True):
            sys.stdout.write(json.dumps({**asdict(each), "right": right}) + "\n")
    else:
        _show(looked, options.planted)
    _sum_up(looked, as_it_should_be, options, seed)
    return 0 if all(as_it_should_be) else EXIT_FAILED


def _is_right(each: Looked, planted: bool) -> bool:
    """A sound form without a fault, or a leak with one; and looking did not itself fail."""
    return not each.broke and each.found_fault == planted


def _show(looked: Sequence[Looked], planted: bool) -> None:
    table = Table(box=None, pad_edge=False)
    if planted:
        table.add_column("leak")
    for heading in ("subject", "claim", "method"):
        table.add_column(heading)
    for heading in ("trials", "charged", "measured"):
        table.add_column(heading, justify="right")
    table.add_column("verdict")
    for each in looked:
        for finding in _shown(each, planted):
            name = (each.name,) if planted else ()
            table.add_row(*name, *_cells(finding), _verdict(finding, planted))
        if each.broke:
            table.add_row(each.name, *[""] * (len(table.columns) - 2), f"BROKE: {each.broke}")
    width = None if sys.stdout.isatty() else UNBROKEN
    Console(markup=False, highlight=False, width=width).print(table)


def _shown(each: Looked, planted: bool) -> Sequence[Finding]:
    """Of a leak, what caught it; where nothing did, all that was seen."""
    faults = [finding for finding in each.findings if not finding.holds]
    return faults[:1] if planted and faults else each.findings


def _cells(finding: Finding) -> tuple[str, ...]:
    numbers = ("" if number is None else f"{number:.4g}" for number in (finding.charged, finding.measured))
    return finding.subject, finding.claim, finding.method, f"{finding.trials:,}", *numbers


def _verdict(finding: Finding, planted: bool) -> str:
    if planted:
        return "MISSED" if finding.holds else f"caught: {finding.why}"
    return "holds" if finding.holds else f"FAILS: {finding.why}"


def _sum_up(looked: Sequence[Looked], right: Sequence[bool], options: argparse.Namespace, seed: int) -> None:
    """The last line."""
    findings = [finding for each in looked for finding in each.findings]
    n_findings, n_faults = len(findings), sum(not finding.holds for finding in findings)
    seconds = sum(each.seconds for each in looked)
    if options.json:
        told = {
            "right": all(right), "planted": options.planted, "looked_at": len(looked), "wrong": right.count(False),
            "claims": n_findings, "faults": n_faults, "seconds": round(seconds, 1), "seed": seed,
        }  # fmt: skip
        sys.stdout.write(json.dumps(told) + "\n")
        return
    n_broke = sum(bool(each.broke) for each in looked)
    if options.planted:
        said = f"{sum(right)} of {len(looked)} planted leaks were caught"
    else:
        said = f"{n_findings - n_faults} of {n_findings} claims hold"
    broke = f"; {n_broke} could not be looked at" if n_broke else ""
    sys.stdout.write(f"{said}{broke} ({seconds:.0f} s of work, --seed {seed})\n")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="sfumato audit", description=__doc__)
    effort = parser.add_mutually_exclusive_group()
    effort.add_argument("--quick", action="store_true", help="minutes: as CI runs it")
    effort.add_argument("--nightly", action="store_true", help="hours: bounds as tight as they get")
    parser.add_argument(
        "--planted", action="store_true", help="put broken variants to the same checks: each is to fail"
    )
    parser.add_argument("--only", metavar="TEXT", default="", help="what has this in its name")
    parser.add_argument("--seed", type=int, metavar="N", help="repeat a run; a fresh one by default")
    parser.add_argument(
        "--processes", type=_count, metavar="N", default=os.cpu_count() or 1, help="by default one for each core"
    )
    parser.add_argument("--json", action="store_true", help="a line for each, and one that sums up")
    return parser.parse_args(arguments)


def _count(text: str) -> int:
    """A number of processes."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of processes: 1, 2, ...")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
