"""The block of the ten sets, and pages that are filled from results."""

import pytest

from benchmarks.quality import page, rows, tables
from benchmarks.quality.__main__ import main
from benchmarks.quality.data import TEN
from benchmarks.quality.rows import Row


def row(method="shifted_grid", name="moons", n=150_000, epsilon=1.0, seed=0, k="given", ari=0.5, **more) -> Row:
    values = {"accuracy": ari, "purity": ari, "fmi": ari, "seconds": 0.1, "n_clusters": 2, "mark": "", "version": "1"}
    return Row(method=method, set=name, n=n, epsilon=epsilon, seed=seed, k=k, ari=ari, **(values | more))


def ten(**more) -> list[Row]:
    return [row(name=name, ari=place / 10, **more) for place, name in enumerate(TEN)]


class TestTenSets:
    def test_the_mean_is_over_sets_of_means_over_seeds(self):
        found = [*ten(), row(name=TEN[0], seed=1, ari=1.0)]
        text = tables.ten_sets(rows.summarise(found))
        assert text.splitlines()[0] == "| method | given, ε=1 | auto, ε=1 |"
        assert text.splitlines()[2] == "| shifted_grid | 0.50 | – |"  # (.5 + .1 + ... + .9) / 10

    def test_a_mean_needs_all_ten(self):
        assert "0." not in tables.ten_sets(rows.summarise(ten()[:9]))

    def test_a_refused_run_counts_as_nothing_found(self):
        found = [*ten()[:9], row(name=TEN[9], ari=None)]
        assert "| shifted_grid | 0.36 | – |" in tables.ten_sets(rows.summarise(found))

    def test_other_sizes_do_not_count(self):
        assert tables.ten_sets(rows.summarise(ten(n=15_000))) == ""

    def test_a_ceiling_stands_once_for_all_epsilons(self):
        found = ten() + ten(epsilon=2.0) + ten(method="DBSCAN", epsilon=None, k="tuned")
        found += [row(method="k-means", name=TEN[0], epsilon=None, k="tuned", ari=1.0)]
        text = tables.ten_sets(rows.summarise(found))
        assert "| DBSCAN (tuned) | 0.45 | 0.45 | – | – |" in text
        assert "| k-means" not in text  # it has one set alone
        assert "| best of the tuned, set by set | 0.55 | 0.55 | – | – |" in text


class TestOverview:
    def test_a_set_is_a_row_and_a_method_a_column(self):
        found = [row(), row(method="k-means", epsilon=None, k="tuned", ari=0.25), row(name="city", mark="*†", ari=None)]
        lines = tables.set_overview(rows.summarise(found), 1.0, "given").splitlines()
        assert lines[0] == "| set | reports | shifted_grid | k-means |"
        assert lines[2:] == ["| moons | 150,000 | 0.50 | 0.25 |", "| city*† | 150,000 | – | – |"]


def test_nothing_is_minus_zero():
    assert [tables.short(value) for value in (-0.001, 0.004, -0.01, 0.996)] == ["0.00", "0.00", "-0.01", "1.00"]


class TestPage:
    TEXT = "A\n<!-- begin: {0} -->\nold\n<!-- end: {0} -->\nB\n"

    def test_blocks_are_filled_and_the_rest_stays(self, tmp_path):
        for found in ten():
            rows.add(tmp_path / "results.csv", found)
        target = tmp_path / "page.md"
        target.write_text("".join(self.TEXT.format(name) for name in ("run", "ten", "shapes", "sets")))
        (tmp_path / "images").mkdir()
        command = ["page", "--results", str(tmp_path), "--page", str(target), "--images", str(tmp_path / "images")]
        assert main(command) == 0
        text = target.read_text()
        assert "old" not in text
        assert text.count("A\n") == text.count("B\n") == 4
        assert "10 runs, 1 seed;" in text
        assert "| shifted_grid | 0.45 | – |" in text
        assert "**moons, 150,000 reports**" in text
        assert (tmp_path / "images" / "benchmark-ari-given.svg").exists()
        assert main(command) == 0
        assert target.read_text() == text

    def test_a_page_without_the_block_is_refused(self):
        with pytest.raises(ValueError, match="no block ten"):
            page.filled("nothing", "ten", "x")

    def test_a_folder_without_results_is_refused(self, tmp_path, capsys):
        (tmp_path / "page.md").write_text("")
        with pytest.raises(SystemExit):
            main(["page", "--results", str(tmp_path), "--page", str(tmp_path / "page.md")])
        assert "no results" in capsys.readouterr().err
