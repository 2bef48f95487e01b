"""The command: groups, failures, and a quick run of one group."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks.output import MissingTool
from benchmarks.peers.peer import PeerFailed
from benchmarks.speed import __main__ as command
from benchmarks.speed.__main__ import GROUPS, QUICK_TURNS, main
from benchmarks.speed.harness import results
from benchmarks.speed.harness.measurement import Measurement, Setting, compare

pytestmark = pytest.mark.release

ROOT = Path(__file__).parents[3]


class _Toy(ModuleType):
    """Counts up.

    More.
    """

    def __init__(self, name: str, error: Exception | None = None) -> None:
        super().__init__(name, "Counts up.\n\nMore.")
        self.settings: list[Setting] = []
        self._error = error

    def rows(self, setting: Setting) -> Iterator[Measurement]:
        self.settings.append(setting)
        yield compare("one", "two", ([1.0] * setting.turns, [2.0] * setting.turns), bar=3.0)
        if self._error is not None:
            raise self._error


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> _Toy:
    """Return the only group."""
    return _put(monkeypatch, _Toy("toy_rows"))


def _put(monkeypatch: pytest.MonkeyPatch, module: _Toy) -> _Toy:
    monkeypatch.setitem(sys.modules, "toy_rows", module)
    monkeypatch.setattr(command, "GROUPS", {"toy": ("toy_rows", "make it")})
    return module


class TestRun:
    def test_stdout_has_one_line_of_json_and_stderr_the_progress(
        self, toy: _Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["all", "--out", str(tmp_path), "--quick", "--json"]) == 0
        output = capsys.readouterr()
        assert json.loads(output.out) == [{"name": "toy: one", "ratio": 2.0, "bar": 3.0}]
        assert "MISSED" in output.err
        assert [(setting.quick, setting.turns) for setting in toy.settings] == [(True, QUICK_TURNS)]
        assert sorted(path.name for path in tmp_path.iterdir()) == ["machine.json", "rows.csv"]

    def test_a_repeated_group_replaces_its_rows_in_the_table(
        self, toy: _Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for _ in range(2):
            assert main(["toy", "--out", str(tmp_path), "--turns", "3"]) == 0
        assert "| one | two | 1 s | 2 s | 2 |" in capsys.readouterr().out
        assert len(results.read(tmp_path)) == 1

    @pytest.mark.parametrize(
        "error", [MissingTool("the tool is not there", "apt-get install tool"), PeerFailed("ended")]
    )
    def test_a_failing_group_keeps_its_rows_and_reports_the_reason(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], error: Exception
    ) -> None:
        _put(monkeypatch, _Toy("toy_rows", error))
        assert main(["toy", "--out", str(tmp_path), "--json"]) == 1
        output = capsys.readouterr()
        assert f"not measured: toy: {error}" in output.err
        assert len(json.loads(output.out)) == 1

    def test_a_missing_module_has_the_command_that_installs_it(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(command, "GROUPS", {"toy": ("benchmarks.speed.no_such", "make it")})
        assert main(["toy", "--out", str(tmp_path), "--json"]) == 1
        output = capsys.readouterr()
        assert "the group toy needs the module benchmarks.speed.no_such: `make it` installs it" in output.err
        assert json.loads(output.out) == []

    @pytest.mark.parametrize("arguments", [["none"], [], ["all", "--turns", "0"], ["all", "--turns", "many"]])
    def test_invalid_arguments_are_refused(self, arguments: list[str], tmp_path: Path) -> None:
        with pytest.raises(SystemExit) as refused:
            main([*arguments, "--out", str(tmp_path / "out")])
        assert refused.value.code == 2
        assert not (tmp_path / "out").exists()


class TestGroups:
    def test_they_are_the_documented_ones(self) -> None:
        assert list(GROUPS) == ["ingest", "cold", "jobs", "fold", "shuffling", "kernels", "scale"]

    def test_they_are_imported_only_when_they_run(self) -> None:
        code = (
            "import sys, benchmarks.speed.__main__ as m\n"
            "print([n for n in ('numba', 'clustering', 'dask', 'sqlalchemy') if n in sys.modules])"
        )
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "[]"

    @pytest.mark.release
    def test_a_quick_group_runs_from_the_command_line(self, tmp_path: Path) -> None:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "benchmarks.speed", "cold"),
                *("--out", str(tmp_path), "--quick", "--turns", "1", "--json"),
            ],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        output = json.loads(done.stdout)
        assert [each["name"] for each in output] == [f"cold: {name}" for name in results.read(tmp_path)["name"]]
        assert {each["name"]: each["bar"] for each in output} == {
            "cold: gateway, import": 1.0,
            "cold: gateway, from the command to its first response": None,
            "cold: gateway, memory after its first response": 1.0,
            "cold: `sfumato --help`": 1.0,
        }
        assert all(each["ratio"] > 0 for each in output)
