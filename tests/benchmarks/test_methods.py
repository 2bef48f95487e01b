"""The table of methods, the ceilings, and which software made a row."""

import numpy as np
import pytest

from benchmarks.quality import ceilings, charts, maps, style, versions
from benchmarks.quality.data import DataSet, draw
from benchmarks.quality.methods import METHODS, TABLE, Method
from benchmarks.quality.versions import software_version
from clustering.metrics import adjusted_rand_index
from sfumato.specs import LOCAL_ALGORITHMS


class TestTable:
    def test_names_are_unique_and_every_module_has_a_version(self):
        assert len(METHODS) == len(TABLE)
        assert all("+" in software_version(method.module) for method in TABLE)

    def test_the_papers_methods_are_measured_as_printed_and_made_sound(self):
        assert {"UGC (paper)", "AGC1 (paper)", "AGC2 (paper)"} <= set(METHODS)
        for tag in ("uniform_grid", "adaptive_grid_iterative", "adaptive_grid_tree", "shifted_grid"):
            assert tag in LOCAL_ALGORITHMS
            assert METHODS[tag].kind == "ours"

    @pytest.mark.parametrize("name", [method.name for method in TABLE if isinstance(method, Method)])
    def test_every_method_runs(self, name):
        method = METHODS[name]
        assert isinstance(method, Method)
        sample = draw(DataSet("moons", 3_000, 2), 0)
        model = method.run(sample.points, 4.0, 2, 0, True)
        labels = model.assign(sample.points)
        assert labels.shape == (3_000,)
        assert labels.max() < model.n_clusters <= 3  # as printed, the people of no cluster are one more

    def test_every_private_method_has_a_line_of_its_own(self):
        strokes = style.strokes()
        assert set(strokes) == {method.name for method in TABLE if method.kind != "ceiling"}
        looks = [(stroke.colour, str(stroke.dashes)) for stroke in strokes.values()]
        assert len(set(looks)) == len(looks)


class TestCeilings:
    @pytest.mark.parametrize(
        ("tune", "least"), [(ceilings.dbscan, 0.98), (ceilings.hdbscan, 0.98), (ceilings.k_means, 0.4)]
    )
    def test_find_the_moons_by_a_part_of_the_points(self, tune, least, monkeypatch):
        monkeypatch.setattr(ceilings, "MAX_POINTS", 2_000)
        sample = draw(DataSet("moons", 5_000, 2), 0)
        labels = tune(sample.points, sample.labels, 2, 0)
        assert labels.shape == (5_000,)
        assert adjusted_rand_index(sample.labels, labels) > least

    def test_exact_clique_is_tuned(self):
        sample = draw(DataSet("moons", 20_000, 2), 0)
        labels = ceilings.exact_clique(sample.points, sample.labels, 2, 0)
        assert adjusted_rand_index(sample.labels, labels) > 0.9

    def test_noise_points_do_not_choose_the_setting(self):
        fits = [np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])]
        assert ceilings._best(fits, np.array([1, 2, 0, 0])).tolist() == [0, 1, 0, 1]

    def test_where_nothing_is_in_a_cluster_everybody_is_in_one(self):
        points = np.random.default_rng(1).random((20, 2))
        assert ceilings._extended(points, np.full(20, -1), points).tolist() == [0] * 20


class TestVersions:
    @pytest.fixture(autouse=True)
    def fresh(self):
        software_version.cache_clear()
        yield
        software_version.cache_clear()

    def test_a_plan_is_tied_to_what_it_imports_and_not_to_other_plans(self):
        followed = versions._followed(("clustering.plans.shifted_grid", *versions.SHARED))
        assert {"clustering.simulate", "clustering.decoders", "clustering.plans.shifted_grid"} <= set(followed)
        assert "clustering.plans.adaptive_grid_tree" not in followed
        assert not any(name.startswith(("sfumato", "numpy")) for name in followed)

    def test_what_chooses_among_plans_is_tied_to_all(self):
        followed = versions._followed((METHODS["auto"].module,))
        assert {"clustering.plans.shifted_grid", "clustering.plans.adaptive_grid_tree"} <= set(followed)

    def test_a_change_of_a_module_is_a_change_of_version(self, tmp_path, monkeypatch):
        (tmp_path / "other.py").write_text("x = 1\n")
        (tmp_path / "main_one.py").write_text("from other import x\n")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setattr(versions, "ROOMS", ("other", "main_one"))
        before = software_version("main_one")
        software_version.cache_clear()
        assert software_version("main_one") == before
        (tmp_path / "other.py").write_text("x = 2\n")
        software_version.cache_clear()
        assert software_version("main_one") != before


class TestPictures:
    def test_counts_are_short(self):
        assert [charts._count(n) for n in (800, 15_000, 138_957, 1_000_000)] == ["800", "15k", "139k", "1M"]

    def test_a_cluster_has_the_colour_of_its_class(self):
        truth = np.array([1, 1, 1, 2, 2, 2])
        swapped = maps.matched(truth, np.array([7, 7, 7, 3, 3, 3]))
        assert swapped.tolist() == maps.matched(truth, truth).tolist()
        split = maps.matched(truth, np.array([0, 0, 5, 1, 1, 1]))
        assert len(set(split.tolist())) == 3
        assert split[0] == swapped[0]

    def test_a_long_name_is_cut_at_an_underscore(self):
        assert maps._short("adaptive_grid_iterative") == "adaptive_grid_\niterative"
        assert maps._short("k-means") == "k-means"
