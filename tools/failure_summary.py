"""Summarise a failed stage of .ci/run in at most 40 lines: the stage, the failures by reason, and how to repeat one.

Usage: python3 tools/failure_summary.py STAGE LOG COMMAND...

LOG is the output of the stage. Needs no environment, because the set-up can be the stage that failed.
"""

import re
import shlex
import sys
from collections import defaultdict
from pathlib import Path

MAX_LINES = 40
MAX_WIDTH = 200
_FAILED = re.compile(
    r"^(?:FAILED|ERROR) (?P<test>\S+?\.py(?:::[^\s\[]+)?(?:\[.*?\])?)(?: - (?P<reason>.*))?$", re.MULTILINE
)
# Parts of a reason that differ between tests.
_VARIABLE = re.compile(r"0x[0-9a-f]+|(?<![\w.])\d[\d.,]*|'[^']*'")


def summarise(stage: str, log: str, command: list[str]) -> list[str]:
    """Return the lines of the summary. Tests with the same reason, except for numbers and quoted text, are grouped."""
    groups: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for found in _FAILED.finditer(log):
        reason = found["reason"] or "no reason given"
        groups[_VARIABLE.sub("#", reason)].append((found["test"], reason))
    if not groups:
        last = [line[:MAX_WIDTH] for line in log.splitlines() if line.strip()][-(MAX_LINES - 2) :]
        return [f"FAILED: {stage}", *last, f"repeat: {shlex.join(command)}"]
    ordered = sorted(groups.values(), key=len, reverse=True)
    lines = []
    for tests in ordered:
        name, reason = tests[0]
        many = f"{len(tests)} tests, the first is {name}" if len(tests) > 1 else name
        lines += [many[:MAX_WIDTH], f"    {reason[:MAX_WIDTH]}"]
    n_shown = MAX_LINES - 3
    if len(lines) > n_shown:
        n_left = len(ordered) - (n_shown - 1) // 2
        lines = [*lines[: n_shown - 1], f"and {n_left} more reasons"]
    repeat = f"repeat one: .venv/bin/pytest -m '' {shlex.quote(ordered[0][0][0])}"
    n_tests = sum(map(len, ordered))
    return [f"FAILED: {stage}, {n_tests} test{'s' * (n_tests > 1)}", *lines, repeat]


def main() -> None:
    """Print the summary."""
    stage, log, *command = sys.argv[1:]
    print("\n".join(summarise(stage, Path(log).read_text(encoding="utf-8", errors="replace"), command)))  # noqa: T201


if __name__ == "__main__":
    main()
