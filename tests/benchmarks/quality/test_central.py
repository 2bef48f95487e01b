"""The central benchmark: data sets, scores, the peer, tables, and the command from its options to its files."""

import csv
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import calinski_harabasz_score, davies_bouldin_score, silhouette_score

from benchmarks.quality.__main__ import main
from benchmarks.quality.central import benchmark, report
from benchmarks.quality.central import data as central_data
from benchmarks.quality.central.benchmark import CENTRAL, scores
from benchmarks.quality.central.data import SETS, Blobs, draw, find
from benchmarks.quality.central.methods import GRID, METHODS, OURS, PEER, WITH_DELTA, Diffprivlib, peer
from benchmarks.quality.data import Source
from benchmarks.quality.pipeline import Benchmark, measured_row
from benchmarks.quality.runs import Run
from benchmarks.quality.scores import nearest, nicv

pytestmark = pytest.mark.release


@pytest.fixture(autouse=True, scope="module")
def small():
    """Replace the published sets by small ones."""
    sets = {
        "tiny": Blobs(400, 2, 3, 0.02),
        "wide": Blobs(400, 2, 3, 0.02, box=4.0),
        "iris": SETS["iris"],
        "filed": Source("filed", 2, labelled=False),
    }
    caches = (central_data._scaled, benchmark._open, benchmark._grid_nicv)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(central_data, "SETS", sets)
        patched.setattr(central_data, "QUICK", ("tiny",))
        for cache in caches:
            cache.cache_clear()
        yield
    for cache in caches:
        cache.cache_clear()


def data_of(name, folder=None):
    (data,) = find(folder, [name])
    return data


def points_of(name):
    return draw(data_of(name)).points


def measured(method, name="tiny", epsilon=None, seed=0, folder=None):
    data = data_of(name, folder)
    return measured_row(benchmark.measure, (Run(method, name, data.n, "given", epsilon, seed), data))


def summary(*ratios, rcp=None):
    """Return a summary of (method, epsilon, ratio)."""
    setting = {"set": "s1", "n": 1000, "n_features": 2, "clusters": 5, "mark": "", "k": "given", "seed": 0, "rcp": rcp}
    rows = [
        {
            **dict.fromkeys(CENTRAL.measures),
            **setting,
            "method": method,
            "epsilon": epsilon,
            "nicv_ratio": ratio,
            "rcp": rcp,
        }
        for method, epsilon, ratio in ratios
    ]
    return CENTRAL.summary(pd.DataFrame(rows).astype(dict.fromkeys(CENTRAL.measures, float)))


class TestSets:
    def test_points_lie_in_the_box_with_its_margin(self):
        assert points_of("tiny").min(axis=0) == pytest.approx(0.02 / 1.04)
        assert points_of("tiny").max(axis=0) == pytest.approx(1.02 / 1.04)

    def test_a_box_four_times_as_wide_scales_the_same_points(self):
        assert points_of("wide") - 0.5 == pytest.approx((points_of("tiny") - 0.5) / 4)

    def test_a_file_is_read_from_the_folder(self, tmp_path):
        np.savez(tmp_path / "filed.npz", X=np.arange(8.0).reshape(4, 2), y=np.array([1, 1, 2, 2]))
        data = data_of("filed", tmp_path)
        assert draw(data).points.shape == (4, 2)
        assert (data.n, data.labelled, data.clusters) == (4, False, 2)
        central_data._scaled.cache_clear()

    def test_groups_skip_missing_files_and_names_do_not(self, tmp_path):
        assert [data.name for data in find(tmp_path, ["all"])] == ["tiny", "wide", "iris"]
        with pytest.raises(ValueError, match="--data names the folder"):
            find(tmp_path, ["filed"])
        with pytest.raises(ValueError, match="no set is called nought"):
            find(None, ["nought"])


class TestMeasure:
    def test_the_non_private_optimum_has_ratio_one_and_one_mean_is_far_above(self):
        best, mean = measured("k-means"), measured("one mean")
        assert best["nicv_ratio"] == pytest.approx(1.0, abs=1e-6)
        assert best["ari"] == pytest.approx(1.0)
        assert mean["nicv_ratio"] > 5
        assert "silhouette" not in mean  # one cluster has none

    def test_the_gain_over_the_grid_compares_equal_seeds(self):
        points, row = points_of("tiny"), measured(OURS, epsilon=1.0, seed=4)
        grid = nicv(points, METHODS[GRID].run(points, 1.0, 3, 4))
        assert row["rcp"] == pytest.approx(1 - row["sse"] / len(points) / grid)
        assert measured(GRID, epsilon=1.0, seed=4)["rcp"] == pytest.approx(0)

    @pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.kind in ("ours", "paper")])
    def test_every_private_method_runs_and_is_repeatable(self, name):
        rows = [measured(name, epsilon=2.0, seed=1) for _ in range(2)]
        assert rows[0]["note"] == ""
        assert rows[0]["nicv_ratio"] >= 0.999
        assert rows[0]["sse"] == rows[1]["sse"]

    def test_scores_are_those_of_scikit_learn(self):
        points = points_of("iris")
        centres = points[[0, 60, 120]]
        found, labels = scores(data_of("iris"), centres), nearest(points, centres)
        assert found["silhouette"] == pytest.approx(silhouette_score(points, labels))
        assert found["davies_bouldin"] == pytest.approx(davies_bouldin_score(points, labels))
        assert found["calinski_harabasz"] == pytest.approx(calinski_harabasz_score(points, labels))
        assert found["sse"] == pytest.approx(nicv(points, centres) * 150)

    def test_a_refusal_becomes_a_row_with_the_reason(self, monkeypatch):
        def refuse(*_arguments):
            raise ValueError("not\ntoday")

        monkeypatch.setitem(METHODS, OURS, replace(METHODS[OURS], run=refuse))
        row = measured(OURS, epsilon=1.0)
        assert "nicv_ratio" not in row
        assert row["note"] == "ValueError: not today"

    def test_a_set_without_clusters_of_its_own_is_scored_against_k_means(self, tmp_path):
        points = np.random.default_rng(0).normal([[0.0, 0.0], [9.0, 9.0]], 1.0, (50, 2, 2)).reshape(-1, 2)
        np.savez(tmp_path / "filed.npz", X=points, y=np.ones(100, dtype=np.int64))
        row = measured("k-means", "filed", folder=tmp_path)
        assert row["ari"] == pytest.approx(1.0)
        assert row["f_measure"] == pytest.approx(1.0)


class TestPeer:
    @staticmethod
    def peer(tmp_path) -> Diffprivlib:
        own, python = Diffprivlib(), tmp_path / "python"
        python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
        python.chmod(0o755)
        own.python = python
        return own

    def test_it_gets_the_box_and_the_epsilon_in_its_own_interpreter(self, tmp_path):
        package = tmp_path / "diffprivlib"
        package.mkdir()
        (package / "__init__.py").write_text("")
        (package / "models.py").write_text(
            "import numpy as np\n"
            "class KMeans:\n"
            "    def __init__(self, **given):\n"
            "        self.given = given\n"
            "    def fit(self, points):\n"
            "        lower, upper = self.given['bounds']\n"
            "        row = [self.given['epsilon'] / 10, lower.sum() + upper.sum() / 4]\n"
            "        self.cluster_centers_ = np.array([row, points[0]])\n"
            "        return self\n"
        )
        points = np.array([[0.25, 0.75], [0.5, 0.5]])
        centres = self.peer(tmp_path).run(points, 3.0, 2, 0)
        assert centres.tolist() == [[0.3, 0.5], [0.25, 0.75]]

    def test_a_failure_has_its_reason(self, tmp_path):
        with pytest.raises(ValueError, match=r"diffprivlib failed: .*No module named 'diffprivlib'"):
            self.peer(tmp_path).run(np.zeros((2, 2)), 1.0, 1, 0)

    def test_it_runs_only_if_it_has_an_interpreter(self, tmp_path, monkeypatch):
        planned = []
        monkeypatch.setattr(Benchmark, "_measured", lambda _self, tasks, _jobs: planned.extend(tasks) or iter(()))
        assert main(["central", "--out", str(tmp_path), "--quick", "--seeds", "1", "--epsilons", "2"]) == 0
        assert peer.python is None
        methods = {run.method for run, _ in planned}
        assert OURS in methods
        assert PEER not in methods
        with pytest.raises(ValueError, match="set --peer"):
            Diffprivlib().run(np.zeros((2, 2)), 1.0, 1, 0)


class TestTables:
    def test_more_than_five_percent_above_the_best_paper_is_marked(self):
        papers = (GRID, 1.0, 1.1), ("dp_kmeans", 1.0, 3.0)
        text = report.against_papers(summary((OURS, 1.0, 1.2), *papers))
        assert "| s1 | 1 | 200 | 1.200 | 1.100 | dp_uniform_grid_kmeans | 1.09 ✗ |" in text
        text = report.against_papers(summary((OURS, 1.0, 1.15), *papers))
        assert "1.05 |" in text
        assert "✗" not in text

    def test_little_data_is_not_judged(self):
        assert report.against_papers(summary((OURS, 0.1, 9.0), (GRID, 0.1, 1.0))) == ""  # q = 20

    def test_a_weaker_guarantee_is_shown_beside_the_others_and_not_judged(self):
        rows = summary((OURS, 1.0, 1.2), (GRID, 1.0, 1.19), (WITH_DELTA, 1.0, 1.01))
        heads, *_, line = report.nicv_tables(rows).splitlines()[2:]
        assert heads.split(" | ")[4:6] == [OURS, WITH_DELTA]
        assert "| 1.200 | 1.010 | 1.190 |" in line
        assert "1.010" not in report.against_papers(rows)

    def test_gains_over_the_grid_are_percent(self):
        assert "| s1 | 25 % |" in report.rcp_table(summary((OURS, 0.1, 1.0), rcp=0.253))


class TestCommand:
    def test_it_writes_everything_resumes_and_fills_a_page(self, tmp_path, capsys):
        out, page = tmp_path / "out", tmp_path / "page.md"
        methods = f"{OURS},{GRID},k-means,one mean"
        arguments = ["central", "--out", str(out), "--quick", "--seeds", "1", "--methods", methods, "--epsilons", "2,1"]
        assert main(arguments) == 0
        assert {path.name for path in out.iterdir()} == {
            "central.csv", "central-summary.csv", "central-nicv.svg", "central-nicv.png",
        }  # fmt: skip
        content = (out / "central.csv").read_bytes()
        with (out / "central.csv").open() as file:
            assert len(list(csv.DictReader(file))) == 6
        assert "| tiny | 2 | 3 | 267 |" in CENTRAL.blocks(CENTRAL.rows(out))["central-nicv"]
        assert main(arguments) == 0
        assert (out / "central.csv").read_bytes() == content
        assert "private_kmeans" in capsys.readouterr().out
        names = ("central-run", "central-nicv", "central-rcp", "central-judged")
        page.write_text("".join(f"<!-- begin: {name} -->\nold\n<!-- end: {name} -->\n" for name in names))
        assert main(["page", "--results", str(out), "--page", str(page), "--images", str(tmp_path)]) == 0
        text = page.read_text()
        assert "old" not in text
        assert "| tiny | 2 | 3 | 267 |" in text
        assert "| tiny | 2 | 267 |" in text
        assert (tmp_path / "benchmark-central-nicv.svg").exists()
