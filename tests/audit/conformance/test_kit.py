"""The conformance kit finds planted faults, and refuses programs that break the protocol. tests/sdks runs all of it."""

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from audit.conformance.__main__ import EXIT_FAILED, EXIT_USAGE, VECTORS, main
from tests.audit.conformance.faulty import FAULTS

ROOT = VECTORS.parents[1]
# The declarations of the errors, as patterns of (name, code).
ERRORS = {
    "python/sfumato/errors.py": r'class (\w+)\(.*\):\n(?:(?!class )[^\n]*\n)*?    code = "(\w+)"',
    "typescript/src/errors.ts": r'class (\w+) extends SfumatoError {\n  override readonly code = "(\w+)"',
    "kotlin/device/src/main/kotlin/sfumato/device/Errors.kt": r'class (\w+)\(.*\) : SfumatoException\("(\w+)"',
}
REFERENCE = [sys.executable, "-m", "audit.conformance.reference"]


def kit(only: str, command: Sequence[str], *options: str) -> int:
    return main(["--only", only, *options, "--", *command])


class TestKit:
    def test_passes_the_reference(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert kit("caps", REFERENCE, "--json") == 0
        *cases, summary = capsys.readouterr().out.splitlines()
        assert len(cases) == 10
        assert all(json.loads(case)["difference"] is None for case in cases)
        assert summary.startswith("10 cases (10 caps): all pass")

    @pytest.mark.parametrize("fault", FAULTS)
    def test_finds_a_planted_fault(self, fault: str, capsys: pytest.CaptureFixture[str]) -> None:
        only, _ = FAULTS[fault]
        assert kit(only, [sys.executable, "-m", "tests.audit.conformance.faulty", fault]) == EXIT_FAILED
        assert "fail; " in capsys.readouterr().out.splitlines()[-1]

    @pytest.mark.parametrize(
        ("program", "message"),
        [
            ("print('hello', flush=True); input()", "is not JSON"),
            ('print(\'{"id": 7, "result": {}}\', flush=True); input()', "must have the id 1"),
            ("print('{\"id\": 1}', flush=True); input()", "a result or an error"),
            ('print(\'{"id": 1, "result": {"protocol": 2}}\', flush=True); input()', "must state the protocol 1"),
            ("raise SystemExit(3)", "ended with status 3"),
        ],
    )
    def test_refuses_a_program_without_the_protocol(
        self, program: str, message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert kit("", [sys.executable, "-S", "-c", program]) == EXIT_FAILED
        assert message in capsys.readouterr().err

    def test_says_that_no_sealed_report_is_tested(self, capsys: pytest.CaptureFixture[str]) -> None:
        program = 'input(); print(\'{"id": 1, "result": {"protocol": 1}}\', flush=True); input()'
        assert kit("sealed vector", [sys.executable, "-S", "-c", program]) == EXIT_USAGE
        said = capsys.readouterr()
        assert "no sealed report is tested" in said.out
        assert "no case has 'sealed vector'" in said.err

    def test_needs_a_command_and_the_vectors(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        for arguments in (["--"], ["--vectors", str(tmp_path / "none"), "--", "true"]):
            with pytest.raises(SystemExit):
                main(arguments)
        assert "there are no vectors" in capsys.readouterr().err


PAGE = (ROOT / "docs" / "conformance.md").read_text()
TABLE = dict(re.findall(r"^\| `(\w+)` \| `([A-Z]\w+)` \|$", PAGE, re.MULTILINE))


class TestTheTableOfErrors:
    @pytest.mark.parametrize("source", ERRORS)
    def test_equals_the_declarations_of_each_language(self, source: str) -> None:
        declared = {code: name for name, code in re.findall(ERRORS[source], (ROOT / "sdk" / source).read_text())}
        assert len(TABLE) == 6
        assert {code: declared.get(code) for code in TABLE} == TABLE

    def test_has_each_code_of_the_bad_inputs(self) -> None:
        bad_inputs = PAGE.split("## Bad inputs")[1].split("The errors have")[0]
        codes = set(re.findall(r"^\|.*\| `(\w+)` \|", bad_inputs, re.MULTILINE))
        assert codes == TABLE.keys() | {"unauthenticated", "unexpected_response"}
