"""The command: which groups it runs, what it says where one cannot be, and a quick run of a cheap one."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks.speed import __main__ as command
from benchmarks.speed import table
from benchmarks.speed.__main__ import GROUPS, QUICK_TURNS, Source, main
from benchmarks.speed.peer import PeerFailed
from benchmarks.speed.row import Missing, Row, Setting, compare

ROOT = Path(__file__).parents[3]


class _Toy(ModuleType):
    """Counts up.

    More.
    """

    def __init__(self, name: str, error: Exception | None = None) -> None:
        super().__init__(name, "Counts up.\n\nMore.")
        self.settings: list[Setting] = []
        self._error = error

    def rows(self, setting: Setting) -> Iterator[Row]:
        self.settings.append(setting)
        yield compare("toy", "one", "two", ([1.0] * setting.turns, [2.0] * setting.turns), bar=3.0)
        if self._error is not None:
            raise self._error


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> _Toy:
    """The only group there is."""
    return _put(monkeypatch, _Toy("toy_rows"))


def _put(monkeypatch: pytest.MonkeyPatch, module: _Toy) -> _Toy:
    monkeypatch.setitem(sys.modules, "toy_rows", module)
    monkeypatch.setattr(command, "GROUPS", {"toy": Source("toy_rows")})
    return module


class TestARun:
    def test_ends_with_one_line_of_json_and_tells_the_rest_on_stderr(
        self, toy: _Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["all", "--out", str(tmp_path), "--quick", "--json"]) == 0
        told = capsys.readouterr()
        assert json.loads(told.out) == [{"name": "toy: one", "ratio": 2.0, "bar": 3.0}]
        assert "NOT MET" in told.err
        assert [(setting.quick, setting.turns) for setting in toy.settings] == [(True, QUICK_TURNS)]
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            "machine.json", "rows.csv", "speed-toy.png", "speed-toy.svg", "speed.md",
        ]  # fmt: skip

    def test_writes_a_table_under_what_the_group_says_of_itself(
        self, toy: _Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for _ in range(2):
            assert main(["toy", "--out", str(tmp_path), "--turns", "3"]) == 0
        assert "| one | two | 1 s | 2 s | 2 |" in capsys.readouterr().out
        assert len(table.read(tmp_path)) == 1
        assert "## toy\n\nCounts up.\n\n| what" in (tmp_path / "speed.md").read_text()

    @pytest.mark.parametrize("error", [Missing("the tool is not there", "apt-get install tool"), PeerFailed("ended")])
    def test_that_cannot_go_on_keeps_its_rows_says_why_and_fails(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], error: Exception
    ) -> None:
        _put(monkeypatch, _Toy("toy_rows", error))
        assert main(["toy", "--out", str(tmp_path), "--json"]) == 1
        told = capsys.readouterr()
        assert f"not measured: toy: {error}" in told.err
        assert len(json.loads(told.out)) == 1

    def test_whose_module_needs_what_is_not_installed_says_what_installs_it(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(command, "GROUPS", {"toy": Source("benchmarks.speed.no_such", "make it")})
        assert main(["toy", "--out", str(tmp_path), "--json"]) == 1
        told = capsys.readouterr()
        assert "the group toy needs the module benchmarks.speed.no_such: `make it` puts it there" in told.err
        assert json.loads(told.out) == []

    @pytest.mark.parametrize("asked", [["none"], [], ["all", "--turns", "0"], ["all", "--turns", "many"]])
    def test_of_what_there_is_not_is_refused(self, asked: list[str], tmp_path: Path) -> None:
        with pytest.raises(SystemExit) as refused:
            main([*asked, "--out", str(tmp_path / "out")])
        assert refused.value.code == 2
        assert not (tmp_path / "out").exists()


class TestTheGroups:
    def test_are_those_that_are_documented(self) -> None:
        assert list(GROUPS) == ["ingest", "cold", "jobs", "fold", "kernels", "growth", "scale"]

    def test_are_loaded_by_who_runs_them_alone(self) -> None:
        code = (
            "import sys, benchmarks.speed.__main__ as m\n"
            "print([n for n in ('numba', 'clustering', 'matplotlib', 'dask', 'pyarrow') if n in sys.modules])"
        )
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "[]"

    @pytest.mark.slow
    @pytest.mark.ci
    def test_a_quick_one_runs_from_the_command_line(self, tmp_path: Path) -> None:
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
        told = json.loads(done.stdout)
        assert [each["name"] for each in told] == [f"cold: {row.name}" for row in table.read(tmp_path)]
        assert {each["name"]: each["bar"] for each in told} == {
            "cold: gateway, import": 1.0,
            "cold: gateway, from the command to its first answer": None,
            "cold: gateway, memory after its first answer": 1.0,
            "cold: `sfumato --help`": 1.0,
        }
        assert all(each["ratio"] > 0 for each in told)
