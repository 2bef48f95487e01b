"""The centroids' benchmark: data sets, methods, tables, and the command from its options to its files."""

import csv
import xml.etree.ElementTree as ET
from dataclasses import replace
from math import nan
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks.quality import results
from benchmarks.quality.__main__ import main
from benchmarks.quality.centroids import data as centroid_data
from benchmarks.quality.centroids import report
from benchmarks.quality.centroids.benchmark import CENTROIDS
from benchmarks.quality.centroids.data import draw, find
from benchmarks.quality.centroids.information_bound import least_rmse
from benchmarks.quality.centroids.methods import ABLATION, METHODS, run_plan
from benchmarks.quality.data import DataSet, Source
from benchmarks.quality.pipeline import Benchmark
from clustering.simulate import simulate
from sfumato.specs import LdpKmeans, NoisyFcm, PhaseSketch, ShiftedGrid

pytestmark = pytest.mark.release  # runs of the benchmark

FEW = ["--sizes", "2000", "--seeds", "2", "--epsilons", "1,4"]
SHORT = "grid_kmeans,noisy_fcm,noisy_fcm euclidean,PrivKM,FCM,k-means,one centre"


@pytest.fixture(autouse=True)
def files(monkeypatch):
    sources = {
        **centroid_data.SOURCES,
        "pair": Source("pair", 2),
        "city": Source("city", 3, labelled=False, components=1, standardised=True, clipped=0.02),
    }
    monkeypatch.setattr(centroid_data, "SOURCES", sources)


def run(out: Path, *more: str, methods: str = SHORT) -> list[dict[str, str]]:
    assert main(["centroids", "--out", str(out), *FEW, "--methods", methods, *more]) == 0
    return lines_of(out / "centroids.csv")


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Path:
    """Return a folder of results, measured once."""
    folder = tmp_path_factory.mktemp("out")
    run(folder, "--sets", "blobs_2,blobs_8")
    run(folder, "--sets", "blobs_2", methods="phase_sketch,phase_sketch (one round),auto")
    return folder


@pytest.fixture(scope="module")
def rows(out) -> list[dict[str, str]]:
    """Return its rows of the short list of methods."""
    return [row for row in lines_of(out / "centroids.csv") if row["method"] in SHORT.split(",")]


class TestRows:
    def test_there_is_one_per_run(self, rows):
        private, in_eight = 4, 3  # a grid takes at most four features
        assert len(rows) == 2 * ((private + in_eight) * 2 + 2 * 3)
        assert {row["set"] for row in rows if row["method"] == "grid_kmeans"} == {"blobs_2"}
        assert {row["epsilon"] for row in rows if row["method"] == "FCM"} == {""}
        assert {(row["set"], row["n_features"], row["clusters"], row["n"]) for row in rows} == {
            ("blobs_2", "2", "4", "2000"),
            ("blobs_8", "8", "4", "2000"),
        }
        assert [int(row["seed"]) for row in rows] == sorted(int(row["seed"]) for row in rows)

    def test_methods_without_privacy_have_known_scores(self, rows):
        exact = [row for row in rows if row["method"] == "k-means"]
        assert all(float(row["nicv_ratio"]) == 1.0 for row in exact)
        assert all(float(row["rmse"]) < 0.005 and float(row["ari"]) > 0.98 for row in exact)
        assert all(float(row["f_measure"]) > 0.99 and float(row["entropy"]) < 0.05 for row in exact)
        ones = [row for row in rows if row["method"] == "one centre"]
        assert all(float(row["ari"]) == 0.0 and float(row["entropy"]) == pytest.approx(2, abs=0.01) for row in ones)
        assert all(float(row["f_measure"]) == pytest.approx(0.4, abs=0.01) for row in ones)
        assert all(float(row["nicv_ratio"]) > 5 and 0.1 < float(row["rmse"]) < 0.4 for row in ones)

    def test_only_private_runs_have_a_bound(self, rows):
        for row in rows:
            if row["epsilon"]:
                bound = least_rmse(2000, int(row["n_features"]), 4, 0.06, float(row["epsilon"]))
                assert float(row["bound"]) == pytest.approx(bound, abs=1e-5)
            else:
                assert row["bound"] == ""

    def test_noisy_reports_are_labelled_if_there_are_any(self, rows):
        for row in rows:
            has = row["method"].startswith("noisy_fcm") or row["method"] == "PrivKM"
            for name in ("report_f_measure", "report_ari", "report_ari_true"):
                assert (row[name] != "") == has
            assert (row["loop_ratio"] != "") == row["method"].startswith("noisy_fcm")
        noisy = [row for row in rows if row["report_ari_true"] and row["set"] == "blobs_8"]
        assert all(abs(float(row["report_ari_true"])) < 0.1 for row in noisy)  # near chance

    def test_server_and_devices_have_separate_times(self, rows):
        for row in rows:
            assert float(row["seconds"]) >= 0
            assert float(row["time_ratio"]) >= 0
            assert (float(row["device_seconds"]) > 0) == (METHODS[row["method"]].kind != "open")
        same = [float(row["time_ratio"]) for row in rows if row["method"] == "FCM"]
        assert 0.02 < float(np.median(same)) < 50  # the same work timed twice

    def test_a_set_without_labels_is_scored_against_k_means(self, folder, tmp_path):
        rows = run(tmp_path, "--data", str(folder), "--sets", "city,pair", "--seeds", "1")
        city = [row for row in rows if row["set"] == "city"]
        assert {row["mark"] for row in city} == {"*†"}
        assert {row["n_features"] for row in city} == {"1"}
        assert [float(row["ari"]) for row in city if row["method"] == "k-means"] == [1.0]
        assert all(row["bound"] == "" for row in rows)
        pair = {row["method"]: row for row in rows if row["set"] == "pair"}
        assert {row["mark"] for row in pair.values()} == {"*"}
        assert float(pair["k-means"]["rmse"]) == 0.0

    def test_a_refused_run_is_a_row_with_the_reason(self, tmp_path, monkeypatch):
        def refuse(*_arguments):
            raise ValueError("too few")

        monkeypatch.setitem(METHODS, "grid_kmeans", replace(METHODS["grid_kmeans"], run=refuse))
        rows = run(tmp_path, "--sets", "blobs_2", "--seeds", "1", methods="grid_kmeans,k-means")
        assert [row["note"] for row in rows[:2]] == ["ValueError: too few"] * 2
        assert {row["rmse"] for row in rows[:2]} == {""}
        summary = CENTROIDS.summary(CENTROIDS.rows(tmp_path))
        assert summary[summary.method == "grid_kmeans"].refused.tolist() == [1, 1]


class TestPlans:
    @pytest.mark.parametrize("params", [PhaseSketch(2.0, 4), NoisyFcm(2.0, 4), LdpKmeans(2.0, 4)])
    def test_they_equal_simulate(self, params):
        points = draw(DataSet("blobs_4", 2000, 4, 4), 1).points
        model, found = run_plan(params, points, 5)
        same = simulate(params, points, seed=5)
        assert np.array_equal(found.centres, same.centroids)
        assert np.array_equal(found.labels, same.assign(points))
        assert model.diagnostics == same.diagnostics

    def test_reports_are_noisy_points_in_order(self):
        points = draw(DataSet("blobs_2", 4000, 4, 2), 1).points
        _, found = run_plan(NoisyFcm(20.0, 4), points, 5)
        gaps = found.reports - points
        assert abs(gaps.mean()) < 0.01
        assert gaps.std() == pytest.approx(np.sqrt(2) * 2 / 20, rel=0.1)  # scale d/epsilon
        # The array of the server has the same points with other noise, in another order.
        assert np.sort(found.array[:, 0]) == pytest.approx(np.sort(found.reports[:, 0]), abs=0.2)

    def test_devices_use_the_label_map_if_there_is_one(self):
        points = draw(DataSet("blobs_2", 4000, 4, 2), 1).points
        model, found = run_plan(ShiftedGrid(8.0, 4), points, 0)
        assert model.label_map is not None
        assert np.array_equal(found.labels, model.assign(points))
        assert np.array_equal(found.centres, model.centroids)

    @pytest.mark.parametrize("name", list(METHODS))
    def test_every_method_finds_at_most_the_given_number(self, name):
        points = draw(DataSet("blobs_2", 2000, 4, 2), 1).points
        found = METHODS[name].run(points, 4.0, 4, 0)
        assert found.labels.shape == (2000,)
        assert found.centres.shape[1] == 2
        assert len(found.centres) <= 4
        assert (name in ABLATION) == (found.rule is not None)


class TestSets:
    def test_blobs_are_far_apart_and_have_one_spread(self):
        for name, d in zip(centroid_data.BLOBS, centroid_data.BLOB_FEATURES, strict=True):
            sample = draw(DataSet(name, 5000, 4, d), 2)
            assert sample.centres.shape == (4, d)
            apart = np.linalg.norm(sample.centres[:, None] - sample.centres, axis=2)[np.triu_indices(4, 1)]
            assert apart.min() > 0.35
            residuals = sample.points - sample.centres[sample.labels - 1]
            assert residuals.std() == pytest.approx(0.06, rel=0.05)

    def test_real_sets_lie_in_the_box_and_depend_on_the_seed(self, folder):
        (pair,) = find(folder, ["pair"], [500])
        first, second = draw(pair, 0), draw(pair, 1)
        assert first.points.min() >= 0
        assert first.points.max() <= 1
        assert set(first.labels) == {0, 1, 2}  # noise points are included
        assert not np.array_equal(first.points, second.points)
        assert np.array_equal(first.points, draw(pair, 0).points)

    def test_a_larger_set_is_sampled_without_replacement(self, folder):
        (pair,) = find(folder, ["pair"], [100])
        assert pair.mark == ""
        assert len(np.unique(draw(pair, 0).points, axis=0)) == 100

    def test_components_are_the_widest_directions(self):
        (digits,) = find(None, ["digits_pca8"], [1000])
        assert digits.n_features == 8
        variances = draw(digits, 0).points.var(axis=0)
        assert (variances > 0.005).all()

    def test_groups(self, folder):
        assert [each.name for each in find(None, ["quick"], [10])] == list(centroid_data.QUICK)
        assert {each.n for each in find(None, ["blobs"], [10, 20])} == {10, 20}
        assert {"pair", "city", "iris"} <= {each.name for each in find(folder, ["all"], [10])}
        assert not {"pair", "s1"} & {each.name for each in find(None, ["all"], [10])}


class TestFiles:
    def test_charts_have_every_method_and_set(self, out):
        for name in ("centroids-rmse", "centroids-nicv"):
            root = ET.parse(out / f"{name}.svg").getroot()  # our own  # noqa: S314  # our own
            words = {"".join(node.itertext()).strip() for node in root.iter("{http://www.w3.org/2000/svg}text")}
            assert {"blobs_2 · 2,000", "blobs_8 · 2,000", "phase_sketch", "PrivKM"} <= words
            assert any("information bound" in word for word in words) == (name == "centroids-rmse")
            assert any("one centre" in word for word in words) == (name == "centroids-nicv")
            assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG\r\n")

    def test_one_epsilon_makes_no_chart(self, tmp_path):
        run(tmp_path, "--sets", "blobs_2", "--seeds", "1", "--epsilons", "1", methods="grid_kmeans,k-means")
        assert not list(tmp_path.glob("*.svg"))

    def test_the_blocks_have_every_table(self, out):
        text = "\n".join(CENTROIDS.blocks(CENTROIDS.rows(out)).values())
        for head in (
            "| method | features | reports | ε | ARI | RMSE | bound | over bound | Laplace + FCM is worse by |",
            "| method | ε=1 | ε=4 |",
            "| *information bound* |",
            "| scheme | measure | ε=1 | ε=4 |",
            "| MixDis | F-measure |",
            "| EucDis | Entropy |",
            "| NoPriv | RMSE |",
            "| set | method | ε | on devices | of noisy reports | the same, true centroids |",
            "| set | features | K | reports | ε | phase_sketch | grid_kmeans | auto | regret |",
        ):
            assert head in text

    def test_rows_of_the_same_software_are_not_measured_again(self, tmp_path, capsys):
        few = ("--sets", "blobs_2", "--seeds", "1")
        first = run(tmp_path, *few, methods="grid_kmeans,k-means")
        path = tmp_path / "centroids.csv"
        path.write_bytes(path.read_bytes()[:-60])  # the state after a crash
        again = run(tmp_path, *few, methods="grid_kmeans,k-means")
        assert len(results.read(path, CENTROIDS.measures)) == len(first)
        assert "3 runs, 2 of them measured before" in capsys.readouterr().err
        assert again[-1]["rmse"] == first[-1]["rmse"]

    def test_means_are_over_seeds(self, out):
        rows = [row for row in lines_of(out / "centroids.csv") if row["set"] == "blobs_2"]
        summaries = [line for line in lines_of(out / "centroids-summary.csv") if line["set"] == "blobs_2"]
        assert len(summaries) == len(rows) / 2
        for line in summaries:
            of = [row for row in rows if (row["method"], row["epsilon"]) == (line["method"], line["epsilon"])]
            assert int(line["runs"]) == len(of) == 2
            for name in ("rmse", "ari", "f_measure", "nicv_ratio", "time_ratio"):
                mean = sum(float(row[name]) for row in of) / 2
                assert float(line[name]) == pytest.approx(mean, abs=2e-5)
            apart = abs(float(of[0]["rmse"]) - float(of[1]["rmse"])) / 2
            assert float(line["rmse_sd"]) == pytest.approx(apart, abs=2e-5)


def lines_of(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


class TestTables:
    @staticmethod
    def summary(**scores: tuple[float, float]) -> pd.DataFrame:
        """Return a summary of methods with their RMSE and NICV."""
        frame = pd.DataFrame(scores, index=["rmse", "nicv_ratio"]).T.rename_axis("method").reset_index()
        frame = frame.assign(
            method=frame.method.str.replace("_x", " "), set="blobs_4", n=1000, n_features=4, clusters=4
        )
        frame = frame.assign(mark="", k="given", epsilon=1.0, seed=0, ari=0.995, bound=0.004)
        frame[[name for name in CENTROIDS.measures if name not in frame]] = nan
        return CENTROIDS.summary(frame)

    def test_a_missed_target_is_marked(self):
        line = report.targets(self.summary(phase_sketch=(0.008, 1.0), noisy_fcm_xeuclidean=(0.2, 9.0))).splitlines()[2]
        assert line == "| phase_sketch | 4 | 1,000 | 1 | 0.995 | 0.0080 ± 0.0000 | 0.0040 | 2.00 | 25 |"
        line = report.targets(self.summary(phase_sketch=(0.012, 1.0), noisy_fcm_xeuclidean=(0.1, 9.0))).splitlines()[2]
        assert line.endswith("| 3.00 ✗ | 8 ✗ |")

    def test_regret_is_against_the_better_of_the_two(self):
        summary = self.summary(phase_sketch=(0.1, 1.5), grid_kmeans=(0.1, 1.2), auto=(0.1, 1.5))
        lines = report.regret_table(summary).splitlines()
        assert lines[2] == "| blobs_4 | 4 | 4 | 1,000 | 1 | 1.500 | 1.200 | 1.500 | 25 % |"
        assert lines[4] == (
            "Mean regret in four features, 1 rows: `auto` 25 % (at worst 25 %), `phase_sketch` throughout 25 %, "
            "`grid_kmeans` throughout 0 %."
        )

    def test_there_is_no_regret_without_a_choice(self):
        assert report.regret_table(self.summary(phase_sketch=(0.1, 1.5), auto=(0.1, 1.5))) == ""


class TestCommand:
    def test_quick_runs_three_sets_and_two_seeds(self, tmp_path, monkeypatch):
        planned = []
        monkeypatch.setattr(Benchmark, "_measured", lambda _self, tasks, _jobs: planned.extend(tasks) or iter(()))
        assert main(["centroids", "--out", str(tmp_path), "--quick"]) == 0
        runs = [run for run, _ in planned]
        assert {run.set for run in runs} == {"blobs_2", "blobs_4", "iris"}
        assert {run.seed for run in runs} == {0, 1}
        assert {run.epsilon for run in runs} == {1.0, 4.0, None}
        assert {run.method for run in runs} == set(METHODS)
        assert {run.n for run in runs} == {30_000}

    def test_a_page_gets_its_blocks(self, out, tmp_path):
        names = ("run", "judged", "rmse", "nicv", "ablation", "time", "labels", "regret")
        target = tmp_path / "page.md"
        target.write_text(
            "".join(f"A\n<!-- begin: centroids-{name} -->\nold\n<!-- end: centroids-{name} -->\n" for name in names)
        )
        (tmp_path / "images").mkdir()
        command = ["page", "--results", str(out), "--page", str(target), "--images", str(tmp_path / "images")]
        assert main(command) == 0
        text = target.read_text()
        assert "old" not in text
        assert text.count("A\n") == 8
        assert "up to 2 seeds;" in text
        assert "| MixDis | F-measure |" in text
        assert (tmp_path / "images" / "benchmark-centroids-rmse.svg").exists()
        assert main(command) == 0
        assert target.read_text() == text
