"""``python -m benchmarks.quality centroids``, from its command line to its files."""

import csv
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from benchmarks.quality import centroid_data, centroid_measure, centroid_rows, centroid_tables, centroids
from benchmarks.quality.__main__ import main
from benchmarks.quality.centroid_data import CentroidSet, Source, draw, find
from benchmarks.quality.centroid_methods import ABLATION, METHODS, run_plan
from benchmarks.quality.centroid_rows import CentroidRow
from benchmarks.quality.information_bound import least_rmse
from clustering.simulate import simulate
from sfumato.specs import LdpKmeans, NoisyFcm, PhaseSketch, ShiftedGrid

pytestmark = [pytest.mark.slow, pytest.mark.ci]  # runs of the benchmark

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
    return _lines(out / centroids.RESULTS)


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Path:
    """A folder of results, made once."""
    folder = tmp_path_factory.mktemp("out")
    run(folder, "--sets", "blobs_2,blobs_8")
    run(folder, "--sets", "blobs_2", methods="phase_sketch,phase_sketch (one round),auto")
    return folder


@pytest.fixture(scope="module")
def made(out) -> list[dict[str, str]]:
    """Its rows of the short list of methods."""
    return [row for row in _lines(out / centroids.RESULTS) if row["method"] in SHORT.split(",")]


class TestRows:
    def test_there_is_one_a_run(self, made):
        private, in_eight = 4, 3  # a grid takes four features
        assert len(made) == 2 * ((private + in_eight) * 2 + 2 * 3)
        assert {row["set"] for row in made if row["method"] == "grid_kmeans"} == {"blobs_2"}
        assert {row["epsilon"] for row in made if row["method"] == "FCM"} == {""}
        assert {(row["set"], row["n_features"], row["clusters"], row["n"]) for row in made} == {
            ("blobs_2", "2", "4", "2000"),
            ("blobs_8", "8", "4", "2000"),
        }
        assert [int(row["seed"]) for row in made] == sorted(int(row["seed"]) for row in made)

    def test_what_is_not_private_scores_as_it_must(self, made):
        exact = [row for row in made if row["method"] == "k-means"]
        assert all(float(row["nicv_ratio"]) == 1.0 for row in exact)
        assert all(float(row["rmse"]) < 0.005 and float(row["ari"]) > 0.98 for row in exact)
        assert all(float(row["f_measure"]) > 0.99 and float(row["entropy"]) < 0.05 for row in exact)
        ones = [row for row in made if row["method"] == "one centre"]
        assert all(float(row["ari"]) == 0.0 and float(row["entropy"]) == pytest.approx(2, abs=0.01) for row in ones)
        assert all(float(row["f_measure"]) == pytest.approx(0.4, abs=0.01) for row in ones)
        assert all(float(row["nicv_ratio"]) > 5 and 0.1 < float(row["rmse"]) < 0.4 for row in ones)

    def test_the_bound_is_of_private_runs_alone(self, made):
        for row in made:
            if row["epsilon"]:
                bound = least_rmse(2000, int(row["n_features"]), 4, 0.06, float(row["epsilon"]))
                assert float(row["bound"]) == pytest.approx(bound, abs=1e-5)
            else:
                assert row["bound"] == ""

    def test_noisy_reports_are_labelled_where_there_are_any(self, made):
        for row in made:
            has = row["method"].startswith("noisy_fcm") or row["method"] == "PrivKM"
            for name in ("report_f_measure", "report_ari", "report_ari_true"):
                assert (row[name] != "") == has
            assert (row["loop_ratio"] != "") == row["method"].startswith("noisy_fcm")
        noisy = [row for row in made if row["report_ari_true"] and row["set"] == "blobs_8"]
        assert all(abs(float(row["report_ari_true"])) < 0.1 for row in noisy)  # near chance

    def test_time_is_told_of_server_and_devices(self, made):
        for row in made:
            assert float(row["seconds"]) >= 0
            assert float(row["time_ratio"]) >= 0
            assert (float(row["device_seconds"]) > 0) == (METHODS[row["method"]].kind != "open")
        same = [float(row["time_ratio"]) for row in made if row["method"] == "FCM"]
        assert 0.02 < float(np.median(same)) < 50  # the same work, timed twice

    def test_a_set_without_labels_is_scored_against_k_means(self, folder, tmp_path):
        made = run(tmp_path, "--data", str(folder), "--sets", "city,pair", "--seeds", "1")
        city = [row for row in made if row["set"] == "city"]
        assert {row["mark"] for row in city} == {"*†"}
        assert {row["n_features"] for row in city} == {"1"}
        assert [float(row["ari"]) for row in city if row["method"] == "k-means"] == [1.0]
        assert all(row["bound"] == "" for row in made)
        pair = {row["method"]: row for row in made if row["set"] == "pair"}
        assert {row["mark"] for row in pair.values()} == {"*"}
        assert float(pair["k-means"]["rmse"]) == 0.0

    def test_a_refused_run_is_a_row_that_says_why(self, tmp_path, monkeypatch):
        monkeypatch.setitem(METHODS, "grid_kmeans", _refusing(METHODS["grid_kmeans"]))  # type: ignore[arg-type]
        made = run(tmp_path, "--sets", "blobs_2", "--seeds", "1", methods="grid_kmeans,k-means")
        assert [row["note"] for row in made[:2]] == ["ValueError: too few"] * 2
        assert {row["rmse"] for row in made[:2]} == {""}
        assert "| 1, 1 refused |" in (tmp_path / centroids.DOCUMENT).read_text()


def _refusing(method):
    def run(*_of):
        raise ValueError("too few")

    return type(method)(method.name, method.kind, method.module, run, method.most_features)


class TestPlans:
    @pytest.mark.parametrize("params", [PhaseSketch(2.0, 4), NoisyFcm(2.0, 4), LdpKmeans(2.0, 4)])
    def test_they_run_as_simulate_runs_them(self, params):
        points = draw(CentroidSet("blobs_4", 2000, 4, 4), 1).points
        model, found = run_plan(params, points, 5)
        same = simulate(params, points, seed=5)
        assert np.array_equal(found.centres, same.centroids)
        assert np.array_equal(found.labels, same.assign(points))
        assert model.diagnostics == same.diagnostics

    def test_reports_are_noisy_points_in_their_order(self):
        points = draw(CentroidSet("blobs_2", 4000, 4, 2), 1).points
        _, found = run_plan(NoisyFcm(20.0, 4), points, 5)
        gaps = found.reports - points
        assert abs(gaps.mean()) < 0.01
        assert gaps.std() == pytest.approx(np.sqrt(2) * 2 / 20, rel=0.1)  # scale d/epsilon
        # the server's array holds the same points under other coins, whoever they are of
        assert np.sort(found.array[:, 0]) == pytest.approx(np.sort(found.reports[:, 0]), abs=0.2)

    def test_devices_label_themselves_by_a_label_map_where_there_is_one(self):
        points = draw(CentroidSet("blobs_2", 4000, 4, 2), 1).points
        model, found = run_plan(ShiftedGrid(8.0, 4), points, 0)
        assert model.label_map is not None
        assert np.array_equal(found.labels, model.assign(points))
        assert np.array_equal(found.centres, model.centroids)

    @pytest.mark.parametrize("name", list(METHODS))
    def test_every_method_finds_as_many_as_it_is_told(self, name):
        points = draw(CentroidSet("blobs_2", 2000, 4, 2), 1).points
        found = METHODS[name].run(points, 4.0, 4, 0)
        assert found.labels.shape == (2000,)
        assert found.centres.shape[1] == 2
        assert len(found.centres) <= 4
        assert (name in ABLATION) == (found.rule is not None)


class TestSets:
    def test_blobs_are_far_apart_and_of_one_spread(self):
        for name, d in zip(centroid_data.BLOBS, centroid_data.BLOB_FEATURES, strict=True):
            sample = draw(CentroidSet(name, 5000, 4, d), 2)
            assert sample.centres.shape == (4, d)
            apart = np.linalg.norm(sample.centres[:, None] - sample.centres, axis=2)[np.triu_indices(4, 1)]
            assert apart.min() > 0.35
            residuals = sample.points - sample.centres[sample.labels - 1]
            assert residuals.std() == pytest.approx(0.06, rel=0.05)

    def test_real_ones_lie_in_the_box_and_are_drawn_anew(self, folder):
        (pair,) = find(folder, ["pair"], [500])
        first, second = draw(pair, 0), draw(pair, 1)
        assert first.points.min() >= 0
        assert first.points.max() <= 1
        assert set(first.labels) == {0, 1, 2}  # noise points take part
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
    def test_pictures_are_whole(self, out):
        for name in ("centroids-rmse", "centroids-nicv"):
            root = ET.parse(out / f"{name}.svg").getroot()  # noqa: S314  # our own
            words = {"".join(node.itertext()).strip() for node in root.iter("{http://www.w3.org/2000/svg}text")}
            assert {"blobs_2 · 2,000", "blobs_8 · 2,000", "phase_sketch", "PrivKM"} <= words
            assert any("information bound" in word for word in words) == (name == "centroids-rmse")
            assert any("one centre" in word for word in words) == (name == "centroids-nicv")
            assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG\r\n")

    def test_one_epsilon_alone_makes_no_picture(self, tmp_path):
        run(tmp_path, "--sets", "blobs_2", "--seeds", "1", "--epsilons", "1", methods="grid_kmeans,k-means")
        assert not list(tmp_path.glob("*.svg"))
        assert "| grid_kmeans |" in (tmp_path / centroids.DOCUMENT).read_text()

    def test_the_document_holds_every_table(self, out):
        text = (out / centroids.DOCUMENT).read_text()
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

    def test_rows_of_the_same_software_are_not_made_again(self, tmp_path, capsys):
        few = ("--sets", "blobs_2", "--seeds", "1")
        first = run(tmp_path, *few, methods="grid_kmeans,k-means")
        path = tmp_path / centroids.RESULTS
        path.write_bytes(path.read_bytes()[:-60])  # as a crash leaves it
        again = run(tmp_path, *few, methods="grid_kmeans,k-means")
        assert len(centroid_rows.read(path)) == len(first)
        assert "3 runs, 2 of them made before" in capsys.readouterr().err
        assert again[-1]["rmse"] == first[-1]["rmse"]

    def test_software_is_never_mixed_in_a_mean(self):
        def row(seed: int, version: str) -> CentroidRow:
            return CentroidRow("k-means", "iris", 9, 4, 3, None, seed, version=version)

        kept = centroids.newest([row(0, "old"), row(1, "old"), row(0, "newer")])
        assert [(found.seed, found.version) for found in kept] == [(0, "newer")]
        now = centroid_measure.version_of("k-means")
        kept = centroids.newest([row(0, now), row(1, now), row(2, "reverted")])
        assert [(found.seed, found.version) for found in kept] == [(0, now), (1, now)]

    def test_a_method_that_is_gone_is_left_out(self):
        assert centroids.newest([CentroidRow("gone", "iris", 9, 4, 3, None, 0)]) == []

    def test_means_are_over_seeds(self, out):
        made = [row for row in _lines(out / centroids.RESULTS) if row["set"] == "blobs_2"]
        summaries = [line for line in _lines(out / centroids.SUMMARY) if line["set"] == "blobs_2"]
        assert len(summaries) == len(made) / 2
        for line in summaries:
            of = [row for row in made if (row["method"], row["epsilon"]) == (line["method"], line["epsilon"])]
            assert int(line["runs"]) == len(of) == 2
            for name in ("rmse", "ari", "f_measure", "nicv_ratio", "time_ratio"):
                mean = sum(float(row[name]) for row in of) / 2
                assert float(line[name]) == pytest.approx(mean, abs=2e-5)
            apart = abs(float(of[0]["rmse"]) - float(of[1]["rmse"])) / 2
            assert float(line["rmse_sd"]) == pytest.approx(apart, abs=2e-5)


def _lines(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


class TestTables:
    @staticmethod
    def rows(**rmses: float) -> list[CentroidRow]:
        return [
            CentroidRow(
                name.replace("_x", " "),
                "blobs_4",
                1000,
                4,
                4,
                1.0,
                0,
                ari=0.995,
                rmse=rmse,
                nicv_ratio=nicv,
                bound=0.004,
            )
            for name, (rmse, nicv) in rmses.items()  # type: ignore[misc]
        ]

    def test_what_is_not_met_is_marked(self):
        found = self.rows(phase_sketch=(0.008, 1.0), noisy_fcm_xeuclidean=(0.2, 9.0))
        line = centroid_tables.judged(centroid_rows.summarise(found)).splitlines()[2]
        assert line == "| phase_sketch | 4 | 1,000 | 1 | 0.995 | 0.0080 ± 0.0000 | 0.0040 | 2.00 | 25 |"
        found = self.rows(phase_sketch=(0.012, 1.0), noisy_fcm_xeuclidean=(0.1, 9.0))
        line = centroid_tables.judged(centroid_rows.summarise(found)).splitlines()[2]
        assert line.endswith("| 3.00 ✗ | 8 ✗ |")

    def test_regret_is_against_the_better_of_the_two(self):
        found = self.rows(phase_sketch=(0.1, 1.5), grid_kmeans=(0.1, 1.2), auto=(0.1, 1.5))
        lines = centroid_tables.regret_table(centroid_rows.summarise(found)).splitlines()
        assert lines[2] == "| blobs_4 | 4 | 4 | 1,000 | 1 | 1.500 | 1.200 | 1.500 | 25 % |"
        assert lines[4] == (
            "Mean regret in four features, 1 rows: `auto` 25 % (at worst 25 %), `phase_sketch` throughout 25 %, "
            "`grid_kmeans` throughout 0 %."
        )

    def test_there_is_no_regret_without_a_choice(self):
        found = self.rows(phase_sketch=(0.1, 1.5), auto=(0.1, 1.5))
        assert centroid_tables.regret_table(centroid_rows.summarise(found)) == ""


class TestCommand:
    def test_quick_takes_three_sets_and_two_seeds(self, tmp_path, monkeypatch):
        asked = []

        def measured(task):
            asked.append(task.run)
            return CentroidRow(task.run.method, task.run.set, task.run.n, 2, 4, task.run.epsilon, task.run.seed)

        monkeypatch.setattr(centroids, "measure", measured)
        assert main(["centroids", "--out", str(tmp_path), "--quick"]) == 0
        assert {run.set for run in asked} == {"blobs_2", "blobs_4", "iris"}
        assert {run.seed for run in asked} == {0, 1}
        assert {run.epsilon for run in asked} == {1.0, 4.0, None}
        assert {run.method for run in asked} == set(METHODS)
        assert {run.n for run in asked} == {30_000}

    @pytest.mark.parametrize(
        ("option", "said"), [(["--methods", "magic"], "no method is called magic"), (["--sets", "no"], "no set is")]
    )
    def test_unknown_names_end_it_with_a_sentence(self, tmp_path, capsys, option, said):
        with pytest.raises(SystemExit) as ended:
            main(["centroids", "--out", str(tmp_path), *option])
        assert ended.value.code == 2
        assert said in capsys.readouterr().err

    def test_a_page_takes_the_blocks(self, out, tmp_path):
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
