"""`python -m tests.faults`: inject seeded faults into a service. Exit with 0 if no data was lost or duplicated."""

import argparse
import json
import sys

from tests.faults import isolation
from tests.faults.deployment import BACKENDS
from tests.faults.harness import COLUMNS, FAULTS_PER_WAVE, Plan, format_json, run
from tests.faults.injections import FAULTS, Injection
from tests.faults.steps import PLANTED, STEPS


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--faults", type=int, default=100, help="number of faults")
    parser.add_argument("--seed", default="1", help="any word; equal seeds give equal schedules")
    parser.add_argument("--backend", choices=BACKENDS, default="sqlite")
    parser.add_argument("--first-wave", type=int, default=0, help="number of the first wave")
    parser.add_argument("--per-wave", type=int, default=FAULTS_PER_WAVE, help="faults per wave")
    parser.add_argument("--only", action="append", type=Injection.parse, default=[], metavar="FAULT[@STEP][=SECONDS]")
    parser.add_argument("--planted", choices=PLANTED, default="", help="plant a bug, which the oracle must detect")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    parser.add_argument("--list", action="store_true", help="list faults and steps")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run the faults and return the exit status."""
    options = parse_arguments(arguments)
    if options.list:
        for name, meaning in (FAULTS | STEPS | PLANTED).items():
            print(f"{name:<20} {meaning}")
        return 0
    isolation.enter_namespaces(arguments)
    plan = Plan(
        options.backend,
        options.faults,
        options.seed,
        only=tuple(options.only),
        first_wave=options.first_wave,
        planted=options.planted,
        per_wave=options.per_wave,
    )
    print(" ".join(COLUMNS), flush=True)
    report = run(plan, lambda line: print(line, flush=True))
    for kind, n in report.by_kind.items():
        print(f"{n:>5}  {kind}")
    for line in report.findings.wrong[:20]:
        print(f"wrong: {line}")
    if report.rerun_command:
        print(f"repeat the failed wave with: {report.rerun_command}")
    if options.json:
        print(format_json(report))
    else:
        print(json.dumps(report.summary()))
    return 0 if report.findings.is_clean else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
