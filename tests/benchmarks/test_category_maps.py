"""Populations of the agreement of maps of categories, a short run, and the report."""

import numpy as np
import pytest

from benchmarks import category_maps
from benchmarks.category_maps import POPULATIONS, draw_people, measure, report


@pytest.mark.parametrize("name", POPULATIONS)
def test_a_population_depends_on_its_seed_alone(name):
    points, codes, n_clusters = draw_people(name, 1, 3_000)
    again, same, _ = draw_people(name, 1, 3_000)
    assert np.array_equal(points, again)
    assert np.array_equal(codes, same)
    assert set(codes) == set(range(len(POPULATIONS[name][0])))
    assert n_clusters >= len(POPULATIONS[name][0])


def test_a_run_has_the_figures_of_its_result(monkeypatch):
    monkeypatch.setattr(category_maps, "N_JUDGED", 1_000)
    monkeypatch.setattr(category_maps, "RUNS", 2)
    rows = list(measure("student expo", 1, 4.0, 2_000))
    assert [(row["given"], row["run"]) for row in rows] == [(False, 0), (False, 1), (True, 0), (True, 1)]
    for row in rows:
        assert [each["share"] for each in row["categories"]] == pytest.approx([0.5, 0.5], abs=0.15)
        assert sum(each["clusters"] for each in row["categories"]) == row["clusters"]
    assert rows[0]["agreement"] == rows[1]["agreement"]  # two runs agree with each other alike
    assert rows[2]["clusters"] == rows[2]["true_clusters"] == 2


def test_the_report_counts_the_runs():
    def row(agreement, verdict, value=0.8):
        return {
            "given": True, "agreement": agreement, "verdict": verdict,
            "value": value, "lower": value - 0.1, "upper": value + 0.1,
        }  # fmt: skip

    rows = [
        row(0.85, "reliable"),
        row(0.95, "reliable"),
        row(0.3, "uncertain"),
        row(0.2, "doubtful"),
        row(0.5, "reliable"),
    ]
    (line,) = report(rows)
    assert line == (
        "given, 5 runs: inside the interval 0.20, above it 0.20; mean error 0.320; of agreement < .4 (2) not "
        "doubtful 1; of agreement > .8 (2) doubtful 0; reliable 3, of these agreement >= .7 2; of agreement >= .9 (1) "
        "reliable 1"
    )
