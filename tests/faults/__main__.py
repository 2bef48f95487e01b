"""`python -m tests.faults`: faults against a service of its own, from a seed; 0 where nothing was lost or doubled."""

import argparse
import json
import sys

from tests.faults import room
from tests.faults.harness import COLUMNS, FAULTS_PER_WAVE, Plan, as_json, run
from tests.faults.injections import FAULTS, Injection
from tests.faults.steps import PLANTED, STEPS
from tests.faults.world import BACKENDS


def parsed(arguments: list[str]) -> argparse.Namespace:
    """What is asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--faults", type=int, default=100, help="how many are to happen")
    parser.add_argument("--seed", default="1", help="any word; the same one gives the same schedule")
    parser.add_argument("--backend", choices=BACKENDS, default="sqlite")
    parser.add_argument("--first-wave", type=int, default=0, help="number of the wave to begin with")
    parser.add_argument("--per-wave", type=int, default=FAULTS_PER_WAVE, help="faults between two looks of the oracle")
    parser.add_argument("--only", action="append", type=Injection.parse, default=[], metavar="FAULT[@STEP][=SECONDS]")
    parser.add_argument("--planted", choices=PLANTED, default="", help="a bug on purpose, for the oracle to find")
    parser.add_argument("--json", action="store_true", help="the last line as JSON")
    parser.add_argument("--list", action="store_true", help="say which faults and steps there are, and end")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run it; the exit status."""
    chosen = parsed(arguments)
    if chosen.list:
        for name, meaning in (FAULTS | STEPS | PLANTED).items():
            print(f"{name:<20} {meaning}")
        return 0
    room.enter(arguments)
    plan = Plan(
        chosen.backend,
        chosen.faults,
        chosen.seed,
        only=tuple(chosen.only),
        first_wave=chosen.first_wave,
        planted=chosen.planted,
        per_wave=chosen.per_wave,
    )
    print(" ".join(COLUMNS), flush=True)
    report = run(plan, lambda line: print(line, flush=True))
    for kind, n in report.by_kind.items():
        print(f"{n:>5}  {kind}")
    for line in report.findings.wrong[:20]:
        print(f"wrong: {line}")
    if report.again:
        print(f"to do the failing wave again: {report.again}")
    if chosen.json:
        print(as_json(report))
    else:
        print(json.dumps(report.summary()))
    return 0 if report.findings.is_clean else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
