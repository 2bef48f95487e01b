"""Tests of the summary of a failed check."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.test_house import ROOT
from tools.failure_summary import MAX_LINES, summarise

PYTEST = "== tests: make test-check\n.venv/bin/pytest -n 4\n....F\n"


class TestSummary:
    def test_groups_tests_with_the_same_reason(self) -> None:
        log = PYTEST + "".join(f"ERROR tests/browser/test_a.py::test[{n}] - no browser: port {n}\n" for n in range(73))
        log += "FAILED tests/test_b.py::TestB::test_c[x - y] - AssertionError: 1 == 2\n74 failed in 3 s\n"
        assert summarise("tests", log, ["make", "test-check"]) == [
            "FAILED: tests, 74 tests",
            "73 tests, the first is tests/browser/test_a.py::test[0]",
            "    no browser: port 0",
            "tests/test_b.py::TestB::test_c[x - y]",
            "    AssertionError: 1 == 2",
            "repeat one: .venv/bin/pytest -m '' 'tests/browser/test_a.py::test[0]'",
        ]

    def test_has_at_most_forty_lines(self) -> None:
        log = "".join(
            f"FAILED tests/t.py::test_{chr(97 + n // 26)}{chr(97 + n % 26)} - {'x' * n}\n" for n in range(1, 90)
        )
        lines = summarise("tests", log, ["make"])
        assert len(lines) <= MAX_LINES
        assert lines[-2] == "and 71 more reasons"
        assert sum(line.startswith("tests/t.py") for line in lines) == 18
        assert len(summarise("lint", "\n".join(map(str, range(1000))), ["make", "lint"])) == MAX_LINES

    def test_shows_the_last_lines_of_another_stage(self) -> None:
        lines = summarise("lint", "first\n\nruff: E501\n", ["make", "lint", "ARGS=a b"])
        assert lines == ["FAILED: lint", "first", "ruff: E501", "repeat: make lint 'ARGS=a b'"]


FAILING = {
    "command": """stage bad sh -c 'echo "FAILED tests/t.py::test_a - AssertionError: no"; exit 3'""",
    "function": """failing() { echo "FAILED tests/t.py::test_a - AssertionError: no"; sh -c 'exit 3'; echo unreached; }
stage bad failing""",
}


class TestRun:
    @pytest.mark.parametrize("kind", FAILING)
    def test_stops_at_the_first_failure_and_ends_with_its_summary(self, tmp_path: Path, kind: str) -> None:
        script = (ROOT / ".ci" / "run").read_text()
        head = script[: script.index("\nstage ")].replace('cd "$(dirname "$0")/.."', f'cd "{ROOT}"')
        (tmp_path / "run").write_text(f"{head}\nstage good echo fine\n{FAILING[kind]}\nstage last echo unreached\n")
        done = subprocess.run(["bash", tmp_path / "run"], capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode, done.stderr) == (3, "")
        lines = done.stdout.splitlines()
        assert lines[:2] == ["== good: echo fine", "fine"]
        assert re.fullmatch(r"== good took \d+ s", lines[2])
        assert "unreached" not in lines
        assert lines[-4:] == [
            "FAILED: bad, 1 test",
            "tests/t.py::test_a",
            "    AssertionError: no",
            "repeat one: .venv/bin/pytest -m '' tests/t.py::test_a",
        ]
