"""``python -m benchmarks.quality``, from its command line to its files."""

import csv
import xml.etree.ElementTree as ET

import pytest

from benchmarks.quality import local, rows
from benchmarks.quality.__main__ import main
from benchmarks.quality.methods import METHODS
from benchmarks.quality.rows import Row

FEW = ["--seeds", "2", "--epsilons", "1,4", "--sizes", "600", "--methods", "uniform_grid,LDPKmeans,k-means"]


@pytest.fixture(autouse=True, scope="module")
def small():
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("benchmarks.quality.data.RESAMPLED_SIZE", 800)
        yield


@pytest.fixture(scope="module")
def out(folder, tmp_path_factory):
    """A folder of results over two sets, made once."""
    made = tmp_path_factory.mktemp("out")
    run(folder, made, "--sets", "moons,pair")
    return made


def run(folder, out, *more: str) -> list[dict[str, str]]:
    assert main(["local", "--data", str(folder), "--out", str(out), "--no-maps", *FEW, *more]) == 0
    return _lines(out / "results.csv")


def _lines(path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


class TestResults:
    def test_there_is_one_row_a_run(self, out):
        made = _lines(out / "results.csv")
        # Two sets, two seeds: (2 ways + 1 way) at two epsilons, and the tuned one.
        assert len(made) == 2 * 2 * (2 * 2 + 2 + 1)
        assert {(row["set"], row["n"], row["mark"]) for row in made} == {("moons", "600", ""), ("pair", "800", "*")}
        assert {row["k"] for row in made if row["method"] == "uniform_grid"} == {"given", "auto"}
        assert {row["epsilon"] for row in made if row["method"] == "k-means"} == {""}
        for row in made:
            assert -1 <= float(row["ari"]) <= 1
            assert 0 < float(row["accuracy"]) <= float(row["purity"]) <= 1
            assert 0 <= float(row["fmi"]) <= 1
            assert float(row["seconds"]) >= 0
            assert int(row["n_clusters"]) >= 1
        told = [row for row in made if row["k"] == "given" and row["set"] == "pair"]
        assert {row["n_clusters"] for row in told} <= {"1", "2"}
        assert all(float(row["ari"]) > 0.95 for row in made if row["method"] == "k-means" and row["set"] == "pair")

    def test_a_summary_has_means_and_deviations(self, out):
        made, summaries = _lines(out / "results.csv"), _lines(out / "summary.csv")
        assert len(summaries) == len(made) / 2
        for line in summaries:
            of = [
                float(row["ari"])
                for row in made
                if all(row[name] == line[name] for name in ("method", "set", "epsilon", "k"))
            ]
            assert len(of) == int(line["runs"]) == 2
            assert float(line["ari"]) == pytest.approx(sum(of) / 2, abs=1e-4)
            assert float(line["ari_sd"]) == pytest.approx(abs(of[0] - of[1]) / 2, abs=1e-4)

    def test_the_document_holds_every_method_set_and_epsilon(self, out):
        text = (out / "results.md").read_text()
        assert "## moons, 600 reports" in text
        assert "## pair*, 800 reports" in text
        assert "| method | K | ε=1 | ε=4 |" in text
        tables = [line for line in text.splitlines() if line.startswith("|")]
        assert sum(line.startswith("| LDPKmeans | given |") for line in tables) == 2 * (1 + 2)
        assert all(line.count("|") in (5, 11) for line in tables)

    @pytest.mark.parametrize("name", ["ari-given", "ari-auto"])
    def test_the_pictures_are_whole(self, out, name):
        root = ET.parse(out / f"{name}.svg").getroot()  # noqa: S314  # our own
        words = " ".join("".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text"))
        assert "uniform_grid" in words
        assert ("LDPKmeans" in words) == (name == "ari-given")
        assert "pair* · 800" in words
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG\r\n")

    def test_sets_without_labels_are_scored_against_exact_counts(self, folder, tmp_path, monkeypatch):
        made = run(folder, tmp_path / "out", "--sets", "city", "--epsilons", "1,32")
        assert {row["mark"] for row in made} == {"*†"}
        assert {row["method"] for row in made} == {"uniform_grid", "LDPKmeans"}
        best = [float(row["ari"]) for row in made if row["epsilon"] == "32.00000" and row["method"] == "uniform_grid"]
        assert min(best) > 0.9  # next to no noise: the exact run itself

    def test_a_refused_run_is_a_row_that_says_why(self, folder, tmp_path):
        made = run(folder, tmp_path / "out", "--sets", "pair", "--epsilons", "0.00001", "--methods", "LDPKmeans")
        assert {row["ari"] for row in made} == {""}
        assert all("too small to be split" in row["note"] for row in made)
        assert "| LDPKmeans | given | – |" in (tmp_path / "out" / "results.md").read_text()


class TestResume:
    def test_rows_of_the_same_software_are_not_made_again(self, folder, tmp_path, capsys):
        first = run(folder, tmp_path / "out", "--sets", "pair", "--seeds", "1")
        again = run(folder, tmp_path / "out", "--sets", "pair", "--seeds", "2")
        assert again[: len(first)] == first
        assert len(again) == 2 * len(first)
        assert f"{len(again)} runs, {len(first)} of them made before" in capsys.readouterr().err

    def test_rows_of_other_software_are_and_the_new_ones_count(self, folder, tmp_path, monkeypatch):
        run(folder, tmp_path / "out", "--sets", "pair", "--seeds", "1")
        for module in ("local", "measure"):
            monkeypatch.setattr(f"benchmarks.quality.{module}.software_version", lambda module: "later")
        made = run(folder, tmp_path / "out", "--sets", "pair", "--seeds", "1")
        assert [row["version"] == "later" for row in made] == [False] * 7 + [True] * 7
        kept = local.newest(rows.read(tmp_path / "out" / "results.csv"))
        assert len(kept) == 7
        assert {row.version for row in kept} == {"later"}

    def test_a_line_cut_short_by_a_crash_is_made_again(self, folder, tmp_path):
        first = run(folder, tmp_path / "out", "--sets", "pair", "--seeds", "1")
        path = tmp_path / "out" / "results.csv"
        path.write_bytes(path.read_bytes()[:-60])
        again = run(folder, tmp_path / "out", "--sets", "pair", "--seeds", "1")
        assert len(rows.read(path)) == len(first)
        assert again[-1]["ari"] == first[-1]["ari"]

    def test_software_is_never_mixed_in_a_mean(self):
        def row(seed: int, version: str) -> Row:
            return Row("uniform_grid", "moons", 9, 1.0, seed, "given", 1.0, 1.0, 1.0, 1.0, 0.1, 2, "", version)

        kept = local.newest([row(0, "old"), row(1, "old"), row(0, "newer")])
        assert [(found.seed, found.version) for found in kept] == [(0, "newer")]
        now = local.software_version(METHODS["uniform_grid"].module)
        kept = local.newest([row(0, now), row(1, now), row(2, "reverted")])
        assert [(found.seed, found.version) for found in kept] == [(0, now), (1, now)]

    def test_a_method_that_is_gone_is_left_out(self):
        row = Row("gone", "moons", 1, 1.0, 0, "given", 1.0, 1.0, 1.0, 1.0, 0.1, 2, "", "1")
        assert local.newest([row]) == []


class TestCommand:
    @pytest.mark.slow
    @pytest.mark.ci
    def test_processes_make_the_same_rows(self, folder, tmp_path):
        def measured(out, *more):
            made = run(folder, out, "--sets", "moons", "--seeds", "1", *more)
            return sorted((row["method"], row["epsilon"], row["k"], row["ari"]) for row in made)

        assert measured(tmp_path / "a") == measured(tmp_path / "b", "--jobs", "2")

    @pytest.mark.parametrize(
        ("option", "said"),
        [(["--methods", "magic"], "no method is called magic"), (["--sets", "no"], "no set is called")],
    )
    def test_unknown_names_end_it_with_a_sentence(self, folder, tmp_path, capsys, option, said):
        with pytest.raises(SystemExit) as ended:
            main(["local", "--data", str(folder), "--out", str(tmp_path), *option])
        assert ended.value.code == 2
        assert said in capsys.readouterr().err

    def test_quick_takes_few_sets_and_two_seeds(self, folder, tmp_path, monkeypatch):
        monkeypatch.setattr("benchmarks.quality.data.QUICK", ("pair",))
        asked = []
        monkeypatch.setattr(local, "measure_all", lambda missing, jobs: asked.extend(missing) or iter(()))
        assert main(["local", "--data", str(folder), "--out", str(tmp_path), "--quick", "--no-maps"]) == 0
        assert {task.run.seed for task in asked} == {0, 1}
        assert {(task.run.set, task.run.n) for task in asked} == {
            ("moons", 15_000),
            ("aniso", 15_000),
            ("circles", 15_000),
            ("pair", 800),
        }
        assert {task.run.epsilon for task in asked} == {1.0, 4.0, None}
        assert {task.run.method for task in asked} == {name for name, of in METHODS.items() if of.features[0] <= 2}

    def test_maps_show_each_method_on_each_shape(self, tmp_path):
        arguments = ["local", "--out", str(tmp_path), "--sets", "moons", *FEW, "--methods", "uniform_grid,k-means"]
        assert main(arguments) == 0
        root = ET.parse(tmp_path / "maps.svg").getroot()  # noqa: S314  # our own
        words = ["".join(node.itertext()).strip() for node in root.iter("{http://www.w3.org/2000/svg}text")]
        assert {"truth", "uniform_grid", "k-means"} <= set(words)
        assert len(list(root.iter("{http://www.w3.org/2000/svg}image"))) >= 9
        assert (tmp_path / "maps.png").read_bytes().startswith(b"\x89PNG\r\n")
