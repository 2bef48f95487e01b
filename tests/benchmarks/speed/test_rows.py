"""A comparison, and the files that are made of many."""

import json
import math
from pathlib import Path

import pytest

from benchmarks.speed import chart, machine, page, table
from benchmarks.speed.row import Row, compare, in_turns


def row(group: str = "ingest", name: str = "a", ratio: float = 2.0, bar: float | None = 1.0, **more: object) -> Row:
    given = {"reference": "peer 1.0", "unit": "s", "ours": 1.25e-6, "theirs": 2.5e-6, "low": 1.9, "high": 2.1}
    return Row(group=group, name=name, ratio=ratio, bar=bar, turns=5, **(given | more))  # type: ignore[arg-type]


class TestAComparison:
    def test_takes_turns_and_changes_who_is_first(self) -> None:
        calls: list[str] = []

        def measure(name: str) -> float:
            calls.append(name)
            return float(len(calls))

        ours, theirs = in_turns(lambda: measure("ours"), lambda: measure("theirs"), 3)
        assert calls == ["ours", "theirs", "theirs", "ours", "ours", "theirs"]
        assert (ours, theirs) == ([1.0, 4.0, 5.0], [2.0, 3.0, 6.0])

    def test_of_times_is_above_one_where_ours_is_shorter(self) -> None:
        found = compare("g", "n", "r", ([1.0, 2.0, 3.0], [4.0, 4.0, 4.0]), bar=2.0)
        assert (found.ours, found.theirs, found.ratio, found.turns) == (2.0, 4.0, 2.0, 3)
        assert (found.low, found.high) == (pytest.approx(5 / 3), 3.0)
        assert found.is_met

    def test_of_rates_is_above_one_where_ours_is_higher(self) -> None:
        found = compare("g", "n", "r", ([10.0], [20.0]), unit="reports/s", more_is_better=True, bar=0.75)
        assert found.ratio == 0.5
        assert not found.is_met

    def test_without_a_bar_falls_short_of_none(self) -> None:
        assert compare("g", "n", "r", ([9.0], [1.0])).is_met


class TestTheFiles:
    def test_hold_a_row_as_it_was_however_small_its_times_are(self, tmp_path: Path) -> None:
        for made in (row(), row(name="b", bar=None, note='says "so", twice')):
            table.add(tmp_path, made)
        assert table.read(tmp_path) == [row(), row(name="b", bar=None, note='says "so", twice')]

    def test_a_group_that_is_run_again_is_measured_anew_and_the_others_stay(self, tmp_path: Path) -> None:
        for made in (row("ingest"), row("cold"), row("ingest", "b")):
            table.add(tmp_path, made)
        table.begin_anew(tmp_path, ["ingest"])
        assert table.read(tmp_path) == [row("cold")]

    def test_none_are_read_where_nothing_was_run(self, tmp_path: Path) -> None:
        assert table.read(tmp_path) == []
        table.begin_anew(tmp_path, ["ingest"])
        assert not (tmp_path / table.RESULTS).exists()

    def test_the_line_of_json_has_names_ratios_and_bars(self) -> None:
        told = json.loads(table.json_line([row(), row(name="b", bar=None, ratio=0.333333)]))
        assert told == [
            {"name": "ingest: a", "ratio": 2.0, "bar": 1.0},
            {"name": "ingest: b", "ratio": 0.3333, "bar": None},
        ]

    def test_the_line_of_json_refuses_what_is_no_number(self) -> None:
        with pytest.raises(ValueError, match="JSON"):
            table.json_line([row(ratio=math.inf)])

    def test_the_table_says_what_is_met_and_numbers_its_notes(self) -> None:
        text = table.markdown([row(note="same"), row(name="b", ratio=0.5, note="same"), row(name="c", bar=None)])
        lines = text.splitlines()
        assert lines[2] == "| a [1] | peer 1.0 | 1.25 µs | 2.5 µs | 2 | 1.9 to 2.1 | 1 | met |"
        assert "| b [1] |" in lines[3]
        assert lines[3].endswith("| **not met** |")
        assert lines[4].endswith("|  |  |")
        assert lines[-1] == "1. same"

    def test_what_is_not_met_is_listed(self) -> None:
        text = table.unmet([row(), row(name="slow one", ratio=0.5), row(bar=None, ratio=0.1)])
        assert "1 of 2 bars are met" in text
        assert "- ingest, slow one: 0.5, the bar is 1" in text
        assert table.unmet([row()]) == "All 1 bars are met.\n"

    @pytest.mark.parametrize(
        ("value", "unit", "said"),
        [
            (12.345, "s", "12.3 s"),
            (0.0123, "s", "12.3 ms"),
            (1.5e-7, "s", "0.15 µs"),
            (21_345_678.0, "reports/s", "21.3 Mreports/s"),
            (250.0, "reports/s", "250 reports/s"),
            (119.7, "MB", "120 MB"),
        ],
    )
    def test_figures_are_said_in_three_digits(self, value: float, unit: str, said: str) -> None:
        assert table.figure(value, unit) == said


class TestThePictures:
    def test_have_a_bar_for_each_row_and_hold_what_is_beyond_the_edge(self, tmp_path: Path) -> None:
        written = chart.write(tmp_path, [row(), row(name="far", ratio=1e9, high=1e9), row("cold", bar=None)])
        assert [path.name for path in written] == ["speed-ingest", "speed-cold"]
        drawn = (tmp_path / "speed-ingest.svg").read_text()
        assert "far · peer 1.0" in drawn
        assert drawn == (chart.write(tmp_path, [row(), row(name="far", ratio=1e9, high=1e9)]), drawn)[1]
        assert (tmp_path / "speed-cold.png").stat().st_size > 1000


class TestTheMachine:
    def test_is_told_without_names_and_paths(self, tmp_path: Path) -> None:
        machine.write(tmp_path)
        told = machine.read(tmp_path)
        assert int(told["cores"]) >= 1
        assert told["processor"]
        assert "numpy " in told["packages"]
        text = (tmp_path / machine.FILE).read_text()
        assert "/" not in text.replace("\\/", "")
        assert __import__("socket").gethostname() not in text

    def test_that_was_not_told_makes_an_empty_table(self, tmp_path: Path) -> None:
        assert machine.markdown(machine.read(tmp_path)) == "| machine | |\n|---|---|\n"


class TestThePage:
    def test_has_its_blocks_filled_and_its_pictures_beside_it(self, tmp_path: Path) -> None:
        results, images = tmp_path / "results", tmp_path / "images"
        results.mkdir()
        images.mkdir()
        for made in (row(), row("cold", ratio=0.5)):
            table.add(results, made)
        machine.write(results)
        chart.write(results, table.read(results))
        names = ("speed-machine", "speed-unmet", "speed-ingest", "speed-cold")
        there = tmp_path / "page.md"
        there.write_text("".join(f"# {name}\n<!-- begin: {name} -->\nstale\n<!-- end: {name} -->\n" for name in names))
        asked = ["--results", str(results), "--page", str(there), "--images", str(images)]
        assert page.main(asked) == 0
        text = there.read_text()
        assert "stale" not in text
        assert "| processor |" in text
        assert "- cold, a: 0.5" in text
        assert sorted(path.name for path in images.iterdir()) == ["speed-cold.svg", "speed-ingest.svg"]
        assert page.main(asked) == 0
        assert there.read_text() == text

    def test_without_a_block_for_a_group_is_refused_and_left_as_it_was(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        table.add(tmp_path, row())
        there = tmp_path / "page.md"
        there.write_text("nothing")
        with pytest.raises(SystemExit):
            page.main(["--results", str(tmp_path), "--page", str(there)])
        assert "no block" in capsys.readouterr().err
        assert there.read_text() == "nothing"

    def test_without_results_is_refused(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            page.main(["--results", str(tmp_path), "--page", str(tmp_path / "page.md")])
        assert "no results" in capsys.readouterr().err

    def test_of_the_documentation_has_a_block_for_every_group(self) -> None:
        from benchmarks.speed.__main__ import GROUPS

        text = (Path(__file__).parents[3] / "docs" / "speed.md").read_text()
        for name in (*GROUPS, "machine", "unmet"):
            assert text.count(f"<!-- begin: speed-{name} -->") == text.count(f"<!-- end: speed-{name} -->") == 1
