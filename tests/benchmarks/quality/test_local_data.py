"""Data sets of the local benchmark."""

import numpy as np
import pytest

from benchmarks.quality.data import DataSet
from benchmarks.quality.local.data import SHAPES, TEN, draw, draw_shape, find, widened


class TestFind:
    def test_shapes_have_every_size_and_files_have_one(self, folder):
        found = find(folder, ["shapes", "pair"], [100, 200])
        assert [(data.name, data.n) for data in found] == [
            *((name, n) for name in SHAPES for n in (100, 200)),
            ("pair", 150_000),
        ]

    def test_a_small_file_is_resampled_and_one_without_labels_is_marked(self, folder):
        pair, city = find(folder, ["pair", "city"], [])
        assert (pair.mark, pair.clusters, pair.labelled) == ("*", 2, True)
        assert (city.mark, city.clusters, city.labelled) == ("*†", 5, False)

    def test_groups_follow_the_kind_and_skip_unknown_kinds(self, folder):
        assert [data.name for data in find(folder, ["geo"], [])] == ["city"]
        assert {data.name for data in find(folder, ["all"], [50])} == {*SHAPES, "pair", "city"}

    def test_the_ten_take_their_shapes_at_one_size(self, folder, monkeypatch):
        monkeypatch.setattr("benchmarks.quality.local.data.TEN", ("moons", "pair"))
        assert [(data.name, data.n) for data in find(folder, ["ten"], [100])] == [("moons", 150_000), ("pair", 150_000)]
        assert len(TEN) == 10

    def test_an_unknown_name_is_refused(self, folder):
        with pytest.raises(ValueError, match="no set is called nothing"):
            find(folder, ["nothing"], [])
        with pytest.raises(ValueError, match="--data"):
            find(None, ["pair"], [])


class TestDraw:
    @pytest.mark.parametrize("name", SHAPES)
    def test_a_shape_fits_its_bounds(self, name):
        sample = draw(DataSet(name, 5_000, SHAPES[name]), seed=3)
        inside = (sample.points > 0) & (sample.points < 1)
        assert inside.mean() > 0.999
        assert np.ptp(sample.points, axis=0).min() > 0.8
        assert sorted(set(sample.labels.tolist())) == list(range(1, SHAPES[name] + 1))

    def test_equal_seeds_give_equal_samples(self, folder):
        (pair,) = find(folder, ["pair"], [])
        assert (draw(pair, 1).points == draw(pair, 1).points).all()
        assert (draw(pair, 1).points != draw(pair, 2).points).any()

    def test_a_resampled_set_keeps_its_shares_and_stays_near_its_points(self, folder):
        (pair,) = find(folder, ["pair"], [])
        sample = draw(pair, 1)
        assert sample.points.shape == (150_000, 2)
        assert np.bincount(sample.labels) / 150_000 == pytest.approx(np.array([10, 60, 60]) / 130, abs=0.01)
        with np.load(pair.path) as file:
            original = file["X"]
        lower, upper = widened(original)
        scaled = (original - lower) / (upper - lower)
        few = sample.points[:300]
        nearest = np.sqrt(((few[:, None] - scaled[None]) ** 2).sum(axis=2)).min(axis=1)
        assert 0.002 < np.median(nearest) < 0.01
        assert len(np.unique(few, axis=0)) == 300

    def test_a_large_file_is_not_resampled(self, folder, monkeypatch):
        monkeypatch.setattr("benchmarks.quality.local.data.SMALL", 100)
        pair, city = find(folder, ["pair", "city"], [])
        assert (pair.n, pair.mark, city.n) == (130, "", 150_000)
        assert len(draw(pair, 1).points) == 130
        assert (draw(pair, 1).points == draw(pair, 2).points).all()

    def test_a_constant_feature_has_bounds(self):
        lower, upper = widened(np.array([[1.0, 5.0], [2.0, 5.0]]))
        assert lower.tolist() == [0.98, 4.0]
        assert upper.tolist() == [2.02, 6.0]

    def test_an_unknown_shape_is_refused(self):
        with pytest.raises(ValueError, match="unknown shape"):
            draw_shape("square", 10, 1)
