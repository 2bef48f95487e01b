"""Command line of the conformance kit: test a device in any language. Exit with 0 only if all cases pass."""

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from audit.conformance.bench import Bench, Case, Difference
from audit.conformance.implementation import PROTOCOL, ProtocolError
from audit.conformance.input_cases import create_input_cases
from audit.conformance.scripted_service import ScriptedService
from audit.conformance.sealed_cases import create_sealed_cases
from audit.conformance.store_cases import create_store_cases
from audit.conformance.vector_cases import create_vector_cases

VECTORS = Path(__file__).resolve().parents[2] / "openapi" / "vectors"
EXIT_FAILED, EXIT_USAGE = 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the kit and return the exit status."""
    parser = argparse.ArgumentParser(prog="sfumato conformance", description=__doc__)
    parser.add_argument("--vectors", type=Path, default=VECTORS, metavar="DIR", help="Folder of the published vectors.")
    parser.add_argument("--only", default="", metavar="TEXT", help="Run the cases with this text in part or name.")
    parser.add_argument("--json", action="store_true", help="Print one line of JSON for each case.")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="Command that starts the implementation.")
    options = parser.parse_args(arguments)
    command = options.command[options.command[:1] == ["--"] :]
    if not command:
        parser.error("pass the command that starts the implementation")
    if not options.vectors.is_dir():
        parser.error(
            f"there are no vectors in {options.vectors}: pass --vectors with the folder openapi/vectors of a clone"
        )
    began = time.monotonic()
    try:
        results = list(run_cases(command, options.vectors, options.only, as_json=options.json))
    except (ProtocolError, OSError) as error:
        sys.stderr.write(f"sfumato conformance: {error}\n")
        return EXIT_FAILED
    if not results:
        sys.stderr.write(f"sfumato conformance: no case has {options.only!r} in its name\n")
        return EXIT_USAGE
    failed = [each for each in results if not each[1]]
    parts = ", ".join(f"{n} {part}" for part, n in Counter(case.part for case, _ in results).items())
    verdict = "all pass" if not failed else f"{len(failed)} fail"
    sys.stdout.write(f"{len(results)} cases ({parts}): {verdict}; {time.monotonic() - began:.1f} s\n")
    return EXIT_FAILED if failed else 0


def run_cases(command: Sequence[str], vectors: Path, only: str, *, as_json: bool) -> Iterator[tuple[Case, bool]]:
    """Run the cases against an implementation. Yield each case and whether it passed, and print the failures."""
    service, folder = ScriptedService(), Path(tempfile.mkdtemp(prefix="sfumato-conformance-"))
    bench = Bench(command, service)
    try:
        with bench:
            described = bench.implementation.call("describe").get("result", {})
            if described.get("protocol") != PROTOCOL:
                raise ProtocolError(f"the implementation must state the protocol {PROTOCOL}: {described}")
            cases = [*create_vector_cases(vectors), *create_input_cases(), *create_store_cases()]
            if described.get("sealed"):
                cases += create_sealed_cases(vectors)
            else:
                sys.stdout.write("The implementation does not state `sealed`, so no sealed report is tested.\n")
            for number, case in enumerate(case for case in cases if only in f"{case.part} {case.name}"):
                bench.folder = folder / str(number)
                bench.folder.mkdir()
                yield case, _run_case(case, bench, as_json=as_json)
                shutil.rmtree(bench.folder)
    finally:
        service.close()
        shutil.rmtree(folder)


def _run_case(case: Case, bench: Bench, *, as_json: bool) -> bool:
    difference = ""
    try:
        case.run(bench)
    except Difference as error:
        difference = str(error)
    except ProtocolError as error:
        difference = str(error)
        bench.restart()
    if as_json:
        sys.stdout.write(json.dumps({"part": case.part, "name": case.name, "difference": difference or None}) + "\n")
    elif difference:
        sys.stdout.write(f"{case.part}: {case.name}: {difference}\n")
    return not difference


if __name__ == "__main__":
    sys.exit(main())
