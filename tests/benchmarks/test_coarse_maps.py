"""Generated sets of the verdict on coarse maps, and the report of their runs."""

import numpy as np
import pytest

from benchmarks.coarse_maps import GROUPS, HALVES, SETS, choose_runs, measure, report

ALL = [(half, name, draw) for sets in (SETS, GROUPS) for half in HALVES for name, draw in sets[half].items()]


@pytest.mark.parametrize(("half", "name", "draw"), ALL, ids=[f"{half} {name}" for half, name, _ in ALL])
def test_a_set_depends_on_its_generator_alone(half, name, draw):
    points, labels = draw(np.random.default_rng(1), 500)
    assert points.shape == (500, 2)
    assert 0 == labels.min() <= labels.max() < 100
    again, _ = draw(np.random.default_rng(1), 500)
    assert np.array_equal(points, again)
    assert [run[0] for run in choose_runs(half, [1, 2])].count(name) == 2


def test_a_run_has_the_figures_of_its_result():
    name, draw = "blob20", SETS["tuning"]["blob20"]
    row = measure("tuning", name, draw, 1, 1.0, 2_000)
    assert row["true_clusters"] == 20
    assert row["verdict"] == "doubtful"
    assert row["index"] < 0.4
    assert row["clearly_undivided"] <= row["undivided"]


def test_the_report_counts_the_runs():
    def row(index, verdict, true_clusters=3, clusters=3):
        return {
            "half": "tuning",
            "index": index,
            "verdict": verdict,
            "true_clusters": true_clusters,
            "clusters": clusters,
        }

    rows = [
        row(0.3, "doubtful"), row(0.39, "uncertain"), row(0.2, "reliable"), row(0.7, "reliable"),
        row(0.85, "doubtful"), row(0.95, "reliable"), row(1.0, "uncertain"), row(1.0, "doubtful", 1, 1),
    ]  # fmt: skip
    (line,) = report(rows)
    assert line == (
        "tuning, 7 runs: of index < .4 (3) not doubtful 2; of index > .8 (3) doubtful 1; reliable 3, of these index >= "
        ".7 2; of index >= .9 (2) reliable 1"
    )
