"""The central benchmark: its sets, its runs, what they score, and the tables made of them."""

import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import calinski_harabasz_score, davies_bouldin_score, silhouette_score

from benchmarks.quality import central, central_data, central_tables
from benchmarks.quality.__main__ import main
from benchmarks.quality.central import Task, measure, scores, tasks
from benchmarks.quality.central_data import SETS, Blobs, Real, load, wanted
from benchmarks.quality.central_methods import GRID, METHODS, OURS, PEER, WITH_DELTA, Method, with_peer
from benchmarks.quality.central_rows import CentralRow, CentralRun, newest, read, summarise
from benchmarks.quality.centroid_scores import nearest, nicv


@pytest.fixture(autouse=True, scope="module")
def small():
    """Three sets of few points instead of the published ones; what is read and scored of them is kept."""
    sets = {
        "tiny": Blobs(400, 2, 3, 0.02),
        "wide": Blobs(400, 2, 3, 0.02, box=4.0),
        "iris": SETS["iris"],
        "filed": Real("filed", 2, labelled=False),
    }
    caches = (load, central._open, central._grid_nicv)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(central_data, "SETS", sets)
        patched.setattr(central_data, "GROUPS", {"quick": ["tiny"], "all": list(sets)})
        for cache in caches:
            cache.cache_clear()
        yield
    for cache in caches:
        cache.cache_clear()


def summary(method, epsilon, ratio, *, n=1000, clusters=5, rcp=None):
    row = CentralRow(method, "s1", n, 2, clusters, epsilon, 0, nicv_ratio=ratio, rcp=rcp, sse=1.0, version="v")
    return summarise([row])[0]


class TestSets:
    def test_points_lie_in_the_box_with_the_margin_that_is_said(self):
        points = load("tiny", None).points
        assert points.min(axis=0) == pytest.approx(0.02 / 1.04)
        assert points.max(axis=0) == pytest.approx(1.02 / 1.04)

    def test_a_box_four_times_as_wide_holds_the_same_points_four_times_as_near(self):
        tight, wide = load("tiny", None).points, load("wide", None).points
        assert wide - 0.5 == pytest.approx((tight - 0.5) / 4)

    def test_a_file_is_read_from_the_folder_and_its_labels_left_out_where_they_are_no_clusters(self, tmp_path):
        np.savez(tmp_path / "filed.npz", X=np.arange(8.0).reshape(4, 2), y=np.array([1, 1, 2, 2]))
        data = load("filed", tmp_path)
        assert data.points.shape == (4, 2)
        assert data.labels is None
        assert data.clusters == 2

    def test_groups_take_what_is_there_and_a_name_whose_file_is_not_is_refused(self, tmp_path):
        assert wanted(tmp_path, ["all"]) == ["tiny", "wide", "iris"]
        with pytest.raises(ValueError, match="--data names the folder"):
            wanted(tmp_path, ["filed"])
        with pytest.raises(ValueError, match="no set is called nought"):
            wanted(None, ["nought"])


class TestTasks:
    def test_private_methods_run_for_each_epsilon_and_seed_others_once(self):
        found = tasks(["tiny"], [OURS, "k-means"], [1.0, 0.1], 3, METHODS)
        of = [(task.run.method, task.run.epsilon, task.run.seed) for task in found]
        assert of.count(("k-means", None, 0)) == 1
        assert len(of) == 1 + 2 * 3

    def test_an_unknown_method_is_refused(self):
        with pytest.raises(ValueError, match="no method is called nought"):
            tasks(["tiny"], ["nought"], [1.0], 1, METHODS)


class TestMeasure:
    def test_the_non_private_optimum_has_ratio_one_and_one_mean_is_far_above(self):
        rows = [
            measure(Task(CentralRun(name, "tiny", None, 0), METHODS[name], None)) for name in ("k-means", "one mean")
        ]
        assert rows[0].nicv_ratio == pytest.approx(1.0, abs=1e-6)
        assert rows[0].ari == pytest.approx(1.0)
        assert rows[1].nicv_ratio > 5
        assert rows[1].silhouette is None  # of one cluster

    def test_what_is_gained_over_the_grid_is_measured_on_the_same_seed(self):
        data = load("tiny", None)
        row = measure(Task(CentralRun(OURS, "tiny", 1.0, 4), METHODS[OURS], None))
        grid = nicv(data.points, METHODS[GRID].run(data.points, 1.0, 3, 4))
        assert row.rcp == pytest.approx(1 - row.sse / len(data.points) / grid)
        assert measure(Task(CentralRun(GRID, "tiny", 1.0, 4), METHODS[GRID], None)).rcp == pytest.approx(0)

    @pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.is_private])
    def test_every_private_method_runs_and_is_repeatable(self, name):
        rows = [measure(Task(CentralRun(name, "tiny", 2.0, 1), METHODS[name], None)) for _ in range(2)]
        assert rows[0].note == ""
        assert rows[0].nicv_ratio is not None
        assert rows[0].nicv_ratio >= 0.999
        assert rows[0].sse == rows[1].sse

    def test_scores_are_those_of_scikit_learn(self):
        data = load("iris", None)
        centres = data.points[[0, 60, 120]]
        found, labels = scores(data, centres, None), nearest(data.points, centres)
        assert found["silhouette"] == pytest.approx(silhouette_score(data.points, labels))
        assert found["davies_bouldin"] == pytest.approx(davies_bouldin_score(data.points, labels))
        assert found["calinski_harabasz"] == pytest.approx(calinski_harabasz_score(data.points, labels))
        assert found["sse"] == pytest.approx(nicv(data.points, centres) * 150)

    def test_what_a_method_refuses_becomes_a_row_that_says_so(self):
        def refuse(points, epsilon, clusters, seed):
            raise ValueError("not today")

        row = measure(Task(CentralRun("m", "tiny", 1.0, 0), Method("m", "benchmarks.quality.central", refuse), None))
        assert row.nicv_ratio is None
        assert row.note == "ValueError: not today"


class TestPeer:
    def test_it_is_asked_with_the_box_and_the_epsilon_in_its_own_interpreter(self, tmp_path, monkeypatch):
        package = tmp_path / "diffprivlib"
        package.mkdir()
        (package / "__init__.py").write_text("")
        (package / "models.py").write_text(
            "import numpy as np\n"
            "class KMeans:\n"
            "    def __init__(self, **asked):\n"
            "        self.asked = asked\n"
            "    def fit(self, points):\n"
            "        lower, upper = self.asked['bounds']\n"
            "        told = [self.asked['epsilon'] / 10, lower.sum() + upper.sum() / 4]\n"
            "        self.cluster_centers_ = np.array([told, points[0]])\n"
            "        return self\n"
        )
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        points = np.array([[0.25, 0.75], [0.5, 0.5]])
        centres = with_peer(Path(sys.executable))[PEER].run(points, 3.0, 2, 0)
        assert centres.tolist() == [[0.3, 0.5], [0.25, 0.75]]

    def test_one_that_fails_says_how(self, monkeypatch):
        monkeypatch.setenv("PYTHONPATH", "")
        with pytest.raises(ValueError, match=r"diffprivlib failed: .*No module named 'diffprivlib'"):
            with_peer(Path(sys.executable))[PEER].run(np.zeros((2, 2)), 1.0, 1, 0)

    def test_without_an_interpreter_there_is_none(self):
        assert PEER not in with_peer(None)


class TestTables:
    def test_more_than_five_percent_above_the_best_paper_is_marked(self):
        rows = [summary(OURS, 1.0, 1.2), summary(GRID, 1.0, 1.1), summary("dp_kmeans", 1.0, 3.0)]
        assert "| s1 | 1 | 200 | 1.200 | 1.100 | dp_uniform_grid_kmeans | 1.09 ✗ |" in central_tables.judged(rows)
        rows[0] = summary(OURS, 1.0, 1.15)
        assert "1.05 |" in central_tables.judged(rows)
        assert "✗" not in central_tables.judged(rows)

    def test_little_data_is_not_judged(self):
        rows = [summary(OURS, 0.1, 9.0), summary(GRID, 0.1, 1.0)]  # q = 20
        assert central_tables.judged(rows) == ""

    def test_another_guarantee_is_shown_beside_the_others_and_not_judged(self):
        rows = [summary(OURS, 1.0, 1.2), summary(GRID, 1.0, 1.19), summary(WITH_DELTA, 1.0, 1.01)]
        heads, *_, line = central_tables.nicv_tables(rows).splitlines()[2:]
        assert heads.split(" | ")[4:6] == [OURS, WITH_DELTA]
        assert "| 1.200 | 1.010 | 1.190 |" in line
        assert "1.010" not in central_tables.judged(rows)
        assert f"`{WITH_DELTA}`, whose δ is 1e-06" in central_tables.LEGEND

    def test_gains_over_the_grid_are_percent(self):
        assert "| s1 | 25 % |" in central_tables.rcp_table([summary(OURS, 0.1, 1.0, rcp=0.253)])


class TestCommand:
    def test_it_writes_everything_and_takes_up_where_it_left(self, tmp_path, capsys):
        out = tmp_path / "out"
        arguments = ["central", "--out", str(out), "--quick", "--seeds", "1", "--methods", f"{OURS},{GRID},k-means"]
        assert main([*arguments, "--epsilons", "2"]) == 0
        assert {path.name for path in out.iterdir()} == {
            "central.csv", "central-summary.csv", "central.md", "central-nicv.svg", "central-nicv.png",
        }  # fmt: skip
        rows = read(out / "central.csv")
        assert len(rows) == 3
        assert rows[0] == newest(rows)[0]
        assert "| tiny | 2 | 3 | 267 |" in (out / "central.md").read_text()
        before = (out / "central.csv").read_bytes()
        assert main([*arguments, "--epsilons", "2"]) == 0
        assert (out / "central.csv").read_bytes() == before
        assert "gated_grid_kmeans" in capsys.readouterr().out

    def test_a_set_without_clusters_of_its_own_is_scored_against_k_means(self, tmp_path):
        points = np.random.default_rng(0).normal([[0.0, 0.0], [9.0, 9.0]], 1.0, (50, 2, 2)).reshape(-1, 2)
        np.savez(tmp_path / "filed.npz", X=points, y=np.ones(100, dtype=np.int64))
        row = measure(Task(CentralRun("k-means", "filed", None, 0), METHODS["k-means"], tmp_path))
        assert row.ari == pytest.approx(1.0)
        assert row.f_measure == pytest.approx(1.0)

    def test_the_page_takes_its_tables_and_its_picture(self, tmp_path):
        out, page = tmp_path / "out", tmp_path / "page.md"
        assert main(["central", "--out", str(out), "--quick", "--seeds", "1", "--epsilons", "2"]) == 0
        names = ("central-run", "central-nicv", "central-rcp", "central-judged")
        page.write_text("".join(f"<!-- begin: {name} -->\nold\n<!-- end: {name} -->\n" for name in names))
        assert main(["page", "--results", str(out), "--page", str(page), "--images", str(tmp_path)]) == 0
        written = page.read_text()
        assert "old" not in written
        assert "| tiny | 2 | 3 | 267 |" in written
        assert "| tiny | 2 | 267 |" in written
        assert (tmp_path / "benchmark-central-nicv.svg").exists()
