"""Measurements, and their files, tables and page."""

import json
import math
from dataclasses import asdict
from pathlib import Path

import pandas as pd
import pytest

from benchmarks.speed.__main__ import GROUPS, main
from benchmarks.speed.harness import results
from benchmarks.speed.harness.measurement import Measurement, alternate, compare


def row(name: str = "a", ratio: float = 2.0, bar: float | None = 1.0, **more: object) -> Measurement:
    given = {"reference": "peer 1.0", "unit": "s", "ours": 1.25e-6, "theirs": 2.5e-6, "low": 1.9, "high": 2.1}
    return Measurement(name=name, ratio=ratio, bar=bar, turns=5, **(given | more))  # type: ignore[arg-type]


def frame(*rows: Measurement, group: str = "ingest") -> pd.DataFrame:
    return pd.DataFrame([{"group": group, **asdict(each)} for each in rows]).astype({"bar": float})


class TestComparison:
    def test_turns_alternate_and_change_their_order(self) -> None:
        calls: list[str] = []

        def measure(name: str) -> float:
            calls.append(name)
            return float(len(calls))

        ours, theirs = alternate(lambda: measure("ours"), lambda: measure("theirs"), 3)
        assert calls == ["ours", "theirs", "theirs", "ours", "ours", "theirs"]
        assert (ours, theirs) == ([1.0, 4.0, 5.0], [2.0, 3.0, 6.0])

    def test_the_ratio_of_times_is_above_one_if_ours_is_shorter(self) -> None:
        found = compare("n", "r", ([1.0, 2.0, 3.0], [4.0, 4.0, 4.0]), bar=2.0)
        assert (found.ours, found.theirs, found.ratio, found.turns) == (2.0, 4.0, 2.0, 3)
        assert (found.low, found.high) == (pytest.approx(5 / 3), 3.0)
        assert found.is_met

    def test_the_ratio_of_rates_is_above_one_if_ours_is_higher(self) -> None:
        found = compare("n", "r", ([10.0], [20.0]), unit="reports/s", more_is_better=True, bar=0.75)
        assert found.ratio == 0.5
        assert not found.is_met

    def test_a_row_without_a_bar_misses_none(self) -> None:
        assert compare("n", "r", ([9.0], [1.0])).is_met


class TestFiles:
    def test_a_row_reads_as_it_was_written_with_small_times(self, tmp_path: Path) -> None:
        rows = [row(), row(name="b", bar=None, note='has "quotes", twice')]
        for measurement in rows:
            results.add(tmp_path, "ingest", measurement)
        pd.testing.assert_frame_equal(results.read(tmp_path), frame(*rows), check_dtype=False)

    def test_a_repeated_group_replaces_its_rows_only(self, tmp_path: Path) -> None:
        for group, name in (("ingest", "a"), ("cold", "a"), ("ingest", "b")):
            results.add(tmp_path, group, row(name))
        results.drop_groups(tmp_path, ["ingest"])
        assert results.read(tmp_path).group.tolist() == ["cold"]
        results.drop_groups(tmp_path, ["cold"])
        results.add(tmp_path, "cold", row("c"))
        assert results.read(tmp_path)["name"].tolist() == ["c"]

    def test_a_missing_file_has_no_rows(self, tmp_path: Path) -> None:
        assert results.read(tmp_path).empty
        results.drop_groups(tmp_path, ["ingest"])
        assert not (tmp_path / results.RESULTS).exists()

    def test_the_line_of_json_has_names_ratios_and_bars(self) -> None:
        properties = json.loads(results.json_line(frame(row(), row(name="b", bar=None, ratio=0.333333))))
        assert properties == [
            {"name": "ingest: a", "ratio": 2.0, "bar": 1.0},
            {"name": "ingest: b", "ratio": 0.3333, "bar": None},
        ]

    def test_the_line_of_json_refuses_infinity(self) -> None:
        with pytest.raises(ValueError, match="JSON"):
            results.json_line(frame(row(ratio=math.inf)))

    def test_the_table_has_met_bars_and_numbered_notes(self) -> None:
        rows = frame(row(note="same"), row(name="b", ratio=0.5, note="same"), row(name="c", bar=None))
        lines = results.markdown(rows).splitlines()
        assert lines[1] == "| --- | --- | ---: | ---: | ---: | --- | ---: | --- |"
        assert lines[2] == "| a [1] | peer 1.0 | 1.25 µs | 2.5 µs | 2 | 1.9 to 2.1 | 1 | met |"
        assert "| b [1] |" in lines[3]
        assert lines[3].endswith("| **not met** |")
        assert lines[4].endswith("|  |  |")
        assert lines[-1] == "1. same"

    def test_missed_bars_are_listed(self) -> None:
        text = results.missed_bars(frame(row(), row(name="slow one", ratio=0.5), row(bar=None, ratio=0.1)))
        assert "1 of 2 bars are met" in text
        assert "- ingest, slow one: 0.5, the bar is 1" in text
        assert results.missed_bars(frame(row())) == "All 1 bars are met.\n"

    @pytest.mark.parametrize(
        ("value", "unit", "text"),
        [
            (12.345, "s", "12.3 s"),
            (0.0123, "s", "12.3 ms"),
            (1.5e-7, "s", "0.15 µs"),
            (21_345_678.0, "reports/s", "21.3 Mreports/s"),
            (250.0, "reports/s", "250 reports/s"),
            (119.7, "MB", "120 MB"),
        ],
    )
    def test_figures_have_three_digits(self, value: float, unit: str, text: str) -> None:
        assert results.figure(value, unit) == text


class TestMachine:
    def test_the_description_has_no_names_and_paths(self, tmp_path: Path) -> None:
        results.write_machine(tmp_path)
        text = (tmp_path / results.MACHINE).read_text()
        properties = json.loads(text)
        assert int(properties["cores"]) >= 1
        assert properties["processor"]
        assert "numpy " in properties["packages"]
        assert "/" not in text.replace("\\/", "")
        assert __import__("socket").gethostname() not in text

    def test_a_missing_description_has_no_table(self, tmp_path: Path) -> None:
        assert results.machine_table(tmp_path) == ""


class TestPage:
    def test_blocks_are_filled(self, tmp_path: Path) -> None:
        folder = tmp_path / "results"
        folder.mkdir()
        results.add(folder, "ingest", row())
        results.add(folder, "cold", row(ratio=0.5))
        results.write_machine(folder)
        names = ("speed-machine", "speed-unmet", "speed-ingest", "speed-cold")
        target = tmp_path / "page.md"
        target.write_text("".join(f"# {name}\n<!-- begin: {name} -->\nstale\n<!-- end: {name} -->\n" for name in names))
        arguments = ["page", "--results", str(folder), "--page", str(target)]
        assert main(arguments) == 0
        text = target.read_text()
        assert "stale" not in text
        assert "| processor |" in text
        assert "- cold, a: 0.5" in text
        assert main(arguments) == 0
        assert target.read_text() == text

    def test_a_page_without_a_block_is_refused_and_unchanged(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        results.add(tmp_path, "ingest", row())
        target = tmp_path / "page.md"
        target.write_text("nothing")
        with pytest.raises(SystemExit):
            main(["page", "--results", str(tmp_path), "--page", str(target)])
        assert "no block" in capsys.readouterr().err
        assert target.read_text() == "nothing"

    def test_a_folder_without_results_is_refused(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            main(["page", "--results", str(tmp_path), "--page", str(tmp_path / "page.md")])
        assert "no results" in capsys.readouterr().err

    def test_the_documentation_has_a_block_for_every_group(self) -> None:
        text = (Path(__file__).parents[3] / "docs" / "speed.md").read_text()
        for name in (*GROUPS, "machine", "unmet"):
            assert text.count(f"<!-- begin: speed-{name} -->") == text.count(f"<!-- end: speed-{name} -->") == 1
