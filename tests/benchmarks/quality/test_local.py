"""The local benchmark: methods, ceilings, tables, pictures, and the command from its options to its files."""

import csv
import xml.etree.ElementTree as ET

import numpy as np
import pandas as pd
import pytest

from benchmarks.output import fill
from benchmarks.quality import charts, results
from benchmarks.quality.__main__ import main
from benchmarks.quality.data import DataSet
from benchmarks.quality.local import ceilings, maps, report
from benchmarks.quality.local.benchmark import LOCAL
from benchmarks.quality.local.data import TEN, draw
from benchmarks.quality.local.methods import METHODS
from benchmarks.quality.pipeline import Benchmark
from benchmarks.quality.tables import number
from clustering.metrics import adjusted_rand_index
from sfumato.specs import LOCAL_ALGORITHMS

pytestmark = pytest.mark.release

FEW = ["--seeds", "2", "--epsilons", "1,4", "--sizes", "600", "--methods", "uniform_grid,LDPKmeans,k-means"]


@pytest.fixture(autouse=True, scope="module")
def small():
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("benchmarks.quality.local.data.RESAMPLED_SIZE", 800)
        yield


@pytest.fixture(scope="module")
def out(folder, tmp_path_factory):
    """Return a folder of results of two sets, measured once."""
    path = tmp_path_factory.mktemp("out")
    run(folder, path, "--sets", "moons,pair")
    return path


def run(folder, out, *more: str) -> list[dict[str, str]]:
    assert main(["local", "--data", str(folder), "--out", str(out), "--no-maps", *FEW, *more]) == 0
    return lines_of(out / "results.csv")


def lines_of(path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def texts_of(path) -> list[str]:
    root = ET.parse(path).getroot()  # noqa: S314  # our own
    return ["".join(node.itertext()).strip() for node in root.iter("{http://www.w3.org/2000/svg}text")]


class TestMethods:
    def test_the_papers_methods_are_measured_as_printed_and_made_sound(self):
        assert {"UGC (paper)", "AGC1 (paper)", "AGC2 (paper)"} <= set(METHODS)
        for tag in ("uniform_grid", "adaptive_grid_iterative", "adaptive_grid_tree", "shifted_grid"):
            assert tag in LOCAL_ALGORITHMS
            assert METHODS[tag].kind == "ours"

    @pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.takes_epsilon])
    def test_every_method_runs(self, name):
        sample = draw(DataSet("moons", 3_000, 2), 0)
        model = METHODS[name].run(sample, 4.0, 2, 0, True)
        labels = model.assign(sample.points)
        assert labels.shape == (3_000,)
        assert labels.max() < model.n_clusters <= 3  # people without a cluster form one more, as printed

    def test_every_private_method_has_a_line_style_of_its_own(self):
        styles = charts.strokes([method for method in METHODS.values() if method.kind != "open"])
        assert len({(style["color"], str(style["linestyle"])) for style in styles.values()}) == len(styles)


class TestCeilings:
    @pytest.mark.parametrize(
        ("tune", "min_ari"), [(ceilings.dbscan, 0.98), (ceilings.hdbscan, 0.98), (ceilings.k_means, 0.4)]
    )
    def test_they_find_the_moons_from_a_part_of_the_points(self, tune, min_ari, monkeypatch):
        monkeypatch.setattr(ceilings, "MAX_POINTS", 2_000)
        sample = draw(DataSet("moons", 5_000, 2), 0)
        labels = tune(sample.points, sample.labels, 2, 0)
        assert labels.shape == (5_000,)
        assert adjusted_rand_index(sample.labels, labels) > min_ari

    def test_exact_clique_is_tuned(self):
        sample = draw(DataSet("moons", 20_000, 2), 0)
        labels = ceilings.exact_clique(sample.points, sample.labels, 2, 0)
        assert adjusted_rand_index(sample.labels, labels) > 0.9

    def test_noise_points_do_not_choose_the_setting(self):
        fits = [np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])]
        assert ceilings._best(fits, np.array([1, 2, 0, 0])).tolist() == [0, 1, 0, 1]

    def test_all_points_are_one_cluster_if_none_is_in_a_cluster(self):
        points = np.random.default_rng(1).random((20, 2))
        assert ceilings._extended(points, np.full(20, -1), points).tolist() == [0] * 20


class TestRows:
    def test_there_is_one_row_per_run(self, out):
        rows = lines_of(out / "results.csv")
        # Two sets, two seeds: (2 ways + 1 way) at two epsilons, and the tuned method.
        assert len(rows) == 2 * 2 * (2 * 2 + 2 + 1)
        assert {(row["set"], row["n"], row["mark"]) for row in rows} == {("moons", "600", ""), ("pair", "800", "*")}
        assert {row["k"] for row in rows if row["method"] == "uniform_grid"} == {"given", "auto"}
        assert {row["epsilon"] for row in rows if row["method"] == "k-means"} == {""}
        for row in rows:
            assert -1 <= float(row["ari"]) <= 1
            assert 0 < float(row["accuracy"]) <= float(row["purity"]) <= 1
            assert 0 <= float(row["fmi"]) <= 1
            assert float(row["seconds"]) >= 0
            assert int(row["n_clusters"]) >= 1
        given = [row for row in rows if row["k"] == "given" and row["set"] == "pair"]
        assert {row["n_clusters"] for row in given} <= {"1", "2"}
        assert all(float(row["ari"]) > 0.95 for row in rows if row["method"] == "k-means" and row["set"] == "pair")

    def test_a_summary_has_means_and_deviations(self, out):
        rows, summaries = lines_of(out / "results.csv"), lines_of(out / "summary.csv")
        assert len(summaries) == len(rows) / 2
        for line in summaries:
            keys = ("method", "set", "epsilon", "k")
            aris = [float(row["ari"]) for row in rows if all(row[key] == line[key] for key in keys)]
            assert len(aris) == int(line["runs"]) == 2
            assert float(line["ari"]) == pytest.approx(sum(aris) / 2, abs=1e-4)
            assert float(line["ari_sd"]) == pytest.approx(abs(aris[0] - aris[1]) / 2, abs=1e-4)

    def test_sets_without_labels_are_scored_against_exact_counts(self, folder, tmp_path):
        rows = run(folder, tmp_path / "out", "--sets", "city", "--epsilons", "1,32")
        assert {row["mark"] for row in rows} == {"*†"}
        assert {row["method"] for row in rows} == {"uniform_grid", "LDPKmeans"}
        best = [float(row["ari"]) for row in rows if row["epsilon"] == "32.00000" and row["method"] == "uniform_grid"]
        assert min(best) > 0.9  # almost no noise

    def test_a_refused_run_is_a_row_with_the_reason(self, folder, tmp_path):
        rows = run(folder, tmp_path / "out", "--sets", "pair", "--epsilons", "0.00001", "--methods", "LDPKmeans")
        assert {row["ari"] for row in rows} == {""}
        assert all("too small to be split" in row["note"] for row in rows)
        summary = LOCAL.summary(LOCAL.rows(tmp_path / "out"))
        assert "| LDPKmeans | given | – |" in report.ari_table(summary)


class TestFiles:
    def test_the_tables_have_every_method_set_and_epsilon(self, out):
        text = "\n".join(LOCAL.blocks(LOCAL.rows(out)).values())
        assert "**moons, 600 reports**" in text
        assert "| pair* | 800 |" in text
        assert "| method | K | ε=1 | ε=4 |" in text
        assert sum(line.startswith("| LDPKmeans | given |") for line in text.splitlines()) == 1

    @pytest.mark.parametrize("name", ["ari-given", "ari-auto"])
    def test_charts_have_every_method_and_set(self, out, name):
        words = texts_of(out / f"{name}.svg")
        assert "uniform_grid" in words
        assert ("LDPKmeans" in words) == (name == "ari-given")
        assert "pair* · 800" in words
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG\r\n")

    def test_maps_show_each_method_on_each_shape(self, tmp_path):
        arguments = ["local", "--out", str(tmp_path), "--sets", "moons", *FEW, "--methods", "uniform_grid,k-means"]
        assert main(arguments) == 0
        assert {"truth", "uniform_grid", "k-means"} <= set(texts_of(tmp_path / "maps.svg"))
        root = ET.parse(tmp_path / "maps.svg").getroot()  # noqa: S314  # our own
        assert len(list(root.iter("{http://www.w3.org/2000/svg}image"))) >= 9
        assert (tmp_path / "maps.png").read_bytes().startswith(b"\x89PNG\r\n")

    def test_a_cluster_has_the_colour_of_its_class(self):
        truth = np.array([1, 1, 1, 2, 2, 2])
        swapped = maps.matched(truth, np.array([7, 7, 7, 3, 3, 3]))
        assert swapped.tolist() == maps.matched(truth, truth).tolist()
        split = maps.matched(truth, np.array([0, 0, 5, 1, 1, 1]))
        assert len(set(split.tolist())) == 3
        assert split[0] == swapped[0]

    def test_a_long_name_breaks_at_an_underscore(self):
        assert maps._short("adaptive_grid_iterative") == "adaptive_grid_\niterative"
        assert maps._short("k-means") == "k-means"


class TestCommand:
    def test_rows_are_measured_again_after_a_crash_or_a_change_of_software(self, folder, tmp_path, capsys, monkeypatch):
        def run_again(n_seeds):
            return run(folder, tmp_path / "out", "--sets", "pair", "--epsilons", "1", "--seeds", n_seeds)

        first = run_again("1")
        path = tmp_path / "out" / "results.csv"
        path.write_bytes(path.read_bytes()[:-60])  # a crash left half of the last line
        repeated = run_again("2")
        assert len(repeated) == 2 * len(first)
        assert [row["ari"] for row in repeated if row["seed"] == "0"] == [row["ari"] for row in first]
        assert f"{len(repeated)} runs, {len(first) - 1} of them measured before" in capsys.readouterr().err
        monkeypatch.setattr(Benchmark, "version_of", lambda *_: "later")
        rows = run_again("1")
        assert [row["version"] for row in rows[len(repeated) :]] == ["later"] * len(first)
        assert list(LOCAL.rows(tmp_path / "out").version) == ["later"] * len(first)

    @pytest.mark.release
    def test_several_processes_measure_the_same_rows(self, folder, tmp_path):
        def measured(out, *more):
            rows = run(folder, out, "--sets", "moons", "--seeds", "1", *more)
            return sorted((row["method"], row["epsilon"], row["k"], row["ari"]) for row in rows)

        assert measured(tmp_path / "a") == measured(tmp_path / "b", "--jobs", "2")

    @pytest.mark.parametrize("command", ["local", "centroids", "central"])
    @pytest.mark.parametrize(
        ("option", "message"),
        [(["--methods", "magic"], "no method is called magic"), (["--sets", "no"], "no set is called no")],
    )
    def test_unknown_names_end_the_command_with_a_message(self, tmp_path, capsys, command, option, message):
        with pytest.raises(SystemExit) as ended:
            main([command, "--out", str(tmp_path), "--sets", "quick", *option])
        assert ended.value.code == 2
        assert message in capsys.readouterr().err

    def test_quick_runs_few_sets_and_two_seeds(self, folder, tmp_path, monkeypatch):
        monkeypatch.setattr("benchmarks.quality.local.data.QUICK", ("pair",))
        planned = []
        monkeypatch.setattr(Benchmark, "_measured", lambda _self, tasks, _jobs: planned.extend(tasks) or iter(()))
        assert main(["local", "--data", str(folder), "--out", str(tmp_path), "--quick", "--no-maps"]) == 0
        runs = [run for run, _ in planned]
        assert {run.seed for run in runs} == {0, 1}
        assert {(run.set, run.n) for run in runs} == {
            ("moons", 15_000),
            ("aniso", 15_000),
            ("circles", 15_000),
            ("pair", 800),
        }
        assert {run.epsilon for run in runs} == {1.0, 4.0, None}
        assert {run.method for run in runs} == {name for name, method in METHODS.items() if method.features[0] <= 2}


def row(method="shifted_grid", name="moons", n=150_000, epsilon=1.0, seed=0, k="given", ari=0.5, mark=""):
    setting = {"method": method, "set": name, "n": n, "n_features": 2, "clusters": 2, "mark": mark, "k": k}
    scores = dict.fromkeys(report.MEASURES, ari)
    return {**setting, "epsilon": epsilon, "seed": seed, **scores, "seconds": 0.1, "n_clusters": 2, "version": "1"}


def ten(**more):
    return [row(name=name, ari=place / 10, **more) for place, name in enumerate(TEN)]


def summary(rows):
    return LOCAL.summary(pd.DataFrame(rows))


class TestTenSets:
    def test_the_mean_is_over_sets_of_means_over_seeds(self):
        lines = report.ten_sets(summary([*ten(), row(name=TEN[0], seed=1, ari=1.0)])).splitlines()
        assert lines[0] == "| method | given, ε=1 | auto, ε=1 |"
        assert lines[2] == "| shifted_grid | 0.50 | – |"  # (.5 + .1 + ... + .9) / 10

    def test_a_mean_needs_all_ten(self):
        assert "0." not in report.ten_sets(summary(ten()[:9]))

    def test_a_refused_run_counts_as_zero(self):
        assert "| shifted_grid | 0.36 | – |" in report.ten_sets(summary([*ten()[:9], row(name=TEN[9], ari=None)]))

    def test_other_sizes_do_not_count(self):
        assert report.ten_sets(summary(ten(n=15_000))) == ""

    def test_a_ceiling_repeats_at_all_epsilons(self):
        rows = ten() + ten(epsilon=2.0) + ten(method="DBSCAN", epsilon=None, k="tuned")
        rows += [row(method="k-means", name=TEN[0], epsilon=None, k="tuned", ari=1.0)]
        text = report.ten_sets(summary(rows))
        assert "| DBSCAN (tuned) | 0.45 | 0.45 | – | – |" in text
        assert "| k-means" not in text  # it has only one set
        assert "| best of the tuned, set by set | 0.55 | 0.55 | – | – |" in text


class TestTables:
    def test_an_overview_has_a_line_per_set_and_a_column_per_method(self):
        rows = [row(), row(method="k-means", epsilon=None, k="tuned", ari=0.25), row(name="city", mark="*†", ari=None)]
        lines = report.set_overview(summary(rows), 1.0, "given").splitlines()
        assert lines[0] == "| set | reports | shifted_grid | k-means |"
        assert lines[2:] == ["| moons | 150,000 | 0.50 | 0.25 |", "| city*† | 150,000 | – | – |"]

    def test_k_given_stands_before_k_auto(self):
        rows = [row(method="auto", k="auto"), row(method="auto", ari=0.25)]
        lines = report.ari_table(summary(rows)).splitlines()[2:]
        assert lines == ["| auto | given | 0.25 ± 0.00 |", "| auto | auto | 0.50 ± 0.00 |"]

    def test_zero_has_no_minus(self):
        assert [number(value, 2) for value in (-0.001, 0.004, -0.01, 0.996)] == ["0.00", "0.00", "-0.01", "1.00"]


class TestPage:
    TEXT = "A\n<!-- begin: {0} -->\nold\n<!-- end: {0} -->\nB\n"

    def test_blocks_are_filled_and_the_rest_stays(self, tmp_path):
        for each in ten():
            results.append(tmp_path / "results.csv", {**each, "note": ""})
            results.append(tmp_path / "results.csv", {**each, "note": "", "epsilon": 2.0})
        pages = [tmp_path / "page.md", tmp_path / "more.md"]
        for page, names in zip(pages, (("run", "ten"), ("shapes", "sets")), strict=True):
            page.write_text("".join(self.TEXT.format(name) for name in names))
        (tmp_path / "images").mkdir()
        command = ["page", "--results", str(tmp_path), "--page", *map(str, pages), "--images", str(tmp_path / "images")]
        assert main(command) == 0
        text = "".join(page.read_text() for page in pages)
        assert "old" not in text
        assert text.count("A\n") == text.count("B\n") == 4
        assert "20 runs, up to 1 seed;" in text
        assert "| shifted_grid | 0.45 | 0.45 | – | – |" in text
        assert "**moons, 150,000 reports**" in text
        assert (tmp_path / "images" / "benchmark-ari-given.svg").exists()
        assert fill(text, {"ten": report.ten_sets(LOCAL.summary(LOCAL.rows(tmp_path)))}) == text

    def test_a_page_without_the_block_is_refused(self):
        with pytest.raises(ValueError, match="no block ten"):
            fill("nothing", {"ten": "x"})

    def test_a_folder_without_results_is_refused(self, tmp_path, capsys):
        (tmp_path / "page.md").write_text("")
        with pytest.raises(SystemExit):
            main(["page", "--results", str(tmp_path), "--page", str(tmp_path / "page.md")])
        assert "no results" in capsys.readouterr().err
