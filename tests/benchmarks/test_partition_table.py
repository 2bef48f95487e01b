"""The calibration of the agreement of centroids: which tables it writes, from which runs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import partition_table
from benchmarks.partition_table import GROUPS, calibrate, main, report
from clustering.centroids.partition_agreement import TABLE_FILE, calibrations

METHODS = GROUPS["centres",]
ONE_SET = ["--sets", "one_2_2", "--epsilons", "1", "--methods", *METHODS]


@pytest.fixture
def table_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    copy = tmp_path / "table.json"
    copy.write_text(TABLE_FILE.read_text())
    monkeypatch.setattr(partition_table, "TABLE_FILE", copy)
    return copy


def run_of(method: str, index: float, agreement: float) -> dict[str, Any]:
    return {
        "set": "one_2_2", "method": method, "epsilon": 1.0, "seed": 0, "agreement": agreement, "clusters": 2,
        "verdict": "uncertain", "source": "centres", "index": index, "moved": 0.0, "expected": [0.5, 0.2, 0.6],
        "loss": None,
    }  # fmt: skip


def write_runs(path: Path, methods: tuple[str, ...]) -> Path:
    runs = [run_of(method, 0.2 + 0.02 * place, 0.3 + 0.02 * place) for method in methods for place in range(30)]
    path.write_text("".join(json.dumps(run) + "\n" for run in runs))
    return path


class TestWritten:
    def test_table_is_that_of_the_named_group_alone(self, tmp_path: Path, table_file: Path) -> None:
        before = json.loads(table_file.read_text())
        main([str(write_runs(tmp_path / "runs.jsonl", METHODS)), *ONE_SET, "--write", "centres"])
        after = json.loads(table_file.read_text())
        assert after.keys() == before.keys()
        assert [name for name in after if after[name] != before[name]] == ["centres"]
        assert after["centres"]["below"] == [0.5, 0.7, 1.1]
        assert after["centres"]["value"][0] == 0.44  # the median of .30 to .58
        assert after["centres"]["poor"] == [0.333, 0.0, 0.0]  # .30 to .38 of .30 to .58

    def test_table_needs_runs_of_all_methods_of_the_group(
        self, tmp_path: Path, table_file: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        before = table_file.read_text()
        runs = write_runs(tmp_path / "runs.jsonl", METHODS[:2])
        with pytest.raises(SystemExit):
            main([str(runs), *ONE_SET[:-3], *METHODS[:2], "--write", "centres"])
        assert "centres needs runs of noisy_fcm: measure these first" in capsys.readouterr().err
        assert table_file.read_text() == before

    def test_tables_have_a_group_for_each_source(self) -> None:
        assert sorted(source for group in GROUPS for source in group) == sorted(calibrations())


class TestCalibration:
    def test_contains_four_fifths_of_its_runs(self) -> None:
        draw = np.random.default_rng(4)
        index = draw.uniform(0, 1, 400)
        agreement = np.clip(index + draw.normal(0, 0.1, 400), 0, 1)
        rows = [run_of("dp_kmeans", *pair) for pair in zip(index.tolist(), agreement.tolist(), strict=True)]
        found = [calibrate(rows).estimate(row["index"]) for row in rows]
        inside = [each.lower <= row["agreement"] <= each.upper for each, row in zip(found, rows, strict=True)]
        assert 0.77 <= np.mean(inside) <= 0.9

    def test_pools_ranges_that_do_not_increase(self) -> None:
        pairs = [(0.6, 0.8), (0.9, 0.2), (0.9, 0.6), (1.0, 1.0)]
        found = calibrate([run_of("dp_kmeans", *pair) for pair in pairs for _ in range(20)])
        assert found.below == [0.7, 0.95, 1.1]
        assert found.value == [0.53, 0.53, 1.0]  # .8 of 20 runs and .4 of 40
        assert found.poor == [0.333, 0.333, 0.0]


def test_report_counts_poor_agreement_without_a_doubt() -> None:
    rows = [run_of("dp_kmeans", 0.9, 0.1), run_of("dp_kmeans", 0.9, 0.55), run_of("noisy_fcm", 0.9, 0.95)]
    lines = list(report(rows))
    assert lines[-1].startswith("all, 3 runs: inside the interval 0.33, above it")
    assert "; of agreement < .4 (1) not doubtful 1; " in lines[-1]
    assert lines[-1].endswith("reliable 0, of these agreement >= .7 0; of agreement >= .9 (1) reliable 0")
    assert [line.split(",")[0] for line in lines] == ["method dp_kmeans", "method noisy_fcm", "source centres", "all"]
