"""Result files, the rows that may be averaged, and the software versions of rows."""

from typing import ClassVar

import pandas as pd
import pytest

from benchmarks.quality import results
from benchmarks.quality.central.benchmark import CENTRAL
from benchmarks.quality.centroids.benchmark import CENTROIDS
from benchmarks.quality.data import DataSet
from benchmarks.quality.local.benchmark import LOCAL
from benchmarks.quality.results import imported, software_version
from benchmarks.quality.runs import Method, plan
from clustering.registry import PLANS
from clustering.simulate import simulate
from sfumato.specs import AdaptiveGridTree, ShiftedGrid

SHIFTED, TREE = PLANS[ShiftedGrid].__module__, PLANS[AdaptiveGridTree].__module__


def row(method="m", seed=0, version="old", score=1.0, **more):
    setting = {"method": method, "set": "s", "n": 9, "n_features": 2, "clusters": 2, "mark": "", "k": "given"}
    return {**setting, "epsilon": 1.0, "seed": seed, "score": score, "version": version, "note": "", **more}


def newest(*rows, current="current"):
    frame = results.newest(pd.DataFrame(rows), ["m"], lambda _: current)
    return list(zip(frame.seed, frame.version, frame.score, strict=True))


class TestFile:
    def test_a_row_reads_as_it_was_appended(self, tmp_path):
        path = tmp_path / "rows.csv"
        results.append(path, row(note='ValueError: "a", b', score=None, epsilon=None))
        results.append(path, row(score=0.123456))
        frame = results.read(path, ["score"])
        assert list(frame.note) == ['ValueError: "a", b', ""]
        assert list(frame.score.fillna(9)) == [9, 0.12346]
        assert frame.epsilon.isna().tolist() == [True, False]
        assert results.done(frame) == {("m", "s", 9, "given", e, 0, "old") for e in (None, 1.0)}

    def test_a_missing_file_has_no_rows(self, tmp_path):
        assert results.read(tmp_path / "no.csv", ["score"]).empty

    def test_a_line_that_a_crash_cut_short_is_dropped(self, tmp_path):
        path = tmp_path / "rows.csv"
        results.append(path, row(seed=0))
        results.append(path, row(seed=1))
        path.write_bytes(path.read_bytes()[:-4])
        assert list(results.read(path, ["score"]).seed) == [0]
        results.append(path, row(seed=2))
        assert list(results.read(path, ["score"]).seed) == [0, 2]

    def test_rows_follow_the_head_of_the_file(self, tmp_path):
        path = tmp_path / "rows.csv"
        path.write_text("seed,method,epsilon\n")
        results.append(path, row(seed=3))
        assert path.read_text().splitlines()[1] == "3,m,1.00000"


class TestNewest:
    def test_a_mean_never_mixes_software_versions(self):
        assert newest(row(seed=0), row(seed=1), row(seed=0, version="newer")) == [(0, "newer", 1.0)]
        rows = [row(seed=seed, version="current") for seed in (0, 1)]
        assert newest(*rows, row(seed=2, version="reverted")) == [(0, "current", 1.0), (1, "current", 1.0)]

    def test_the_last_row_of_a_run_counts(self):
        assert newest(row(score=0.1), row(score=0.2)) == [(0, "old", 0.2)]

    def test_rows_without_an_epsilon_are_one_setting(self):
        rows = [row(epsilon=None, seed=seed, version=version) for seed, version in ((0, "a"), (1, "b"))]
        assert newest(*rows) == [(1, "b", 1.0)]

    def test_methods_that_left_the_table_are_dropped(self):
        assert newest(row(method="gone")) == []

    def test_settings_keep_the_order_in_which_they_first_appear(self):
        rows = [row(epsilon=2.0), row(epsilon=1.0), row(epsilon=2.0, version="current")]
        assert list(results.newest(pd.DataFrame(rows), ["m"], lambda _: "current").epsilon) == [2.0, 1.0]


class TestSummary:
    def test_it_has_means_deviations_and_refusals(self):
        rows = pd.DataFrame([row(seed=0, score=0.2), row(seed=1, score=0.6), row(seed=2, score=None)])
        (line,) = results.summarise(rows, ["score"], "score", ["score"]).to_dict("records")
        assert (line["runs"], line["refused"]) == (3, 1)
        assert (line["score"], line["score_sd"]) == (pytest.approx(0.4), pytest.approx(0.2))

    def test_rows_of_a_set_stand_together(self):
        rows = [row(set="a"), row(set="b"), row(set="a", epsilon=2.0)]
        assert list(results.summarise(pd.DataFrame(rows), ["score"], "score", []).set) == ["a", "a", "b"]


class TestPlan:
    METHODS: ClassVar = {
        "private": Method("private", "ours", "m", print, k=("given", "auto"), features=(1, 2)),
        "open": Method("open", "open", "m", print, takes_epsilon=False, needs_labels=True, seeds=1),
    }

    def planned(self, **more):
        return [
            (run.method, run.k, run.epsilon, run.seed)
            for run, _ in plan([DataSet("s", 9, 2, **more)], [*self.METHODS], [1.0, 2.0], 2, self.METHODS)
        ]

    def test_private_methods_run_for_each_epsilon_seed_and_way_to_get_k(self):
        found = self.planned()
        assert len(found) == 2 * 2 * 2 + 1
        assert found.count(("open", "given", None, 0)) == 1

    def test_features_and_labels_are_respected(self):
        assert {method for method, *_ in self.planned(n_features=3)} == {"open"}
        assert {method for method, *_ in self.planned(labelled=False)} == {"private"}

    def test_an_unknown_method_is_refused(self):
        with pytest.raises(ValueError, match="no method is called magic; there are private, open"):
            plan([], ["magic"], [1.0], 1, self.METHODS)


class TestVersions:
    @pytest.fixture(autouse=True)
    def fresh(self):
        software_version.cache_clear()
        yield
        software_version.cache_clear()

    @pytest.mark.release
    def test_every_method_has_one(self):
        for benchmark in (LOCAL, CENTROIDS, CENTRAL):
            assert all("+" in benchmark.version_of(method) for method in benchmark.methods)

    def test_a_plan_depends_on_its_imports_and_not_on_other_plans(self):
        found = imported((SHIFTED, simulate.__module__))
        assert {SHIFTED, simulate.__module__, "clustering.rounds.decoders"} <= set(found)
        assert TREE not in found
        assert not any(name.startswith(("sfumato", "numpy")) for name in found)

    def test_a_method_that_chooses_among_plans_depends_on_all(self):
        assert {SHIFTED, TREE} <= set(imported((LOCAL.methods["auto"].module,)))

    def test_a_change_of_an_import_changes_the_version(self, tmp_path, monkeypatch):
        (tmp_path / "other.py").write_text("x = 1\n")
        (tmp_path / "main_one.py").write_text("from other import x\n")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setattr(results, "PACKAGES", ("other", "main_one"))
        first = software_version("main_one")
        software_version.cache_clear()
        assert software_version("main_one") == first
        (tmp_path / "other.py").write_text("x = 2\n")
        software_version.cache_clear()
        assert software_version("main_one") != first
