"""A second round over warped axes: the warps, who answers, what is merged, and that rows are kept."""

import csv
from pathlib import Path

import numpy as np
import pytest

from benchmarks.quality import zooming
from benchmarks.quality.zooming import (
    STRAIGHT,
    WAYS,
    Outcome,
    Way,
    ask,
    followed,
    load,
    loss_of,
    narrowest,
    warps,
    zoomed,
)
from tests.benchmarks.conftest import write_set

CORE_HEAVY = np.array([1.0] * 10 + [40.0, 40.0] + [1.0] * 8)  # four in five people in a tenth of the axis


class TestTheWarps:
    def test_the_narrowest_interval_is_the_shortest_that_holds_the_share(self) -> None:
        assert narrowest(CORE_HEAVY, 0.8) == pytest.approx((0.5, 0.6))
        assert narrowest(np.ones(10), 0.3) == pytest.approx((0.0, 0.3))

    def test_an_interval_of_one_cell_is_found_at_either_end(self) -> None:
        assert narrowest(np.array([9.0, 1, 0, 0]), 0.9) == pytest.approx((0, 0.25))
        assert narrowest(np.array([0.0, 0, 1, 9]), 0.9) == pytest.approx((0.75, 1))

    @pytest.mark.parametrize("bend", [zoomed, followed])
    @pytest.mark.parametrize("marginal", [CORE_HEAVY, np.array([1000.0] + [1.0] * 30), np.array([1.0] * 30 + [1000.0])])
    def test_a_warp_is_monotone_onto_the_axis_and_its_lines_undo_it(self, bend, marginal) -> None:
        warp = bend(marginal)
        at = warp.apply(np.linspace(0, 1, 1001))
        assert at[0] == 0
        assert at[-1] == 1
        assert (np.diff(at) > 0).all()
        np.testing.assert_allclose(warp.apply(warp.edges(48)), np.linspace(0, 1, 49), atol=1e-12)

    def test_a_zoom_gives_most_of_the_lattice_to_the_core(self) -> None:
        lo, hi = zoomed(np.array([0.0] * 10 + [45.0, 45.0] + [1.0] * 8)).apply(np.array([0.5, 0.6]))
        assert hi - lo == pytest.approx(0.75)

    def test_even_people_are_neither_zoomed_into_nor_moved(self) -> None:
        assert zoomed(np.ones(32)) is STRAIGHT
        np.testing.assert_allclose(followed(np.ones(32)).apply(np.linspace(0, 1, 99)), np.linspace(0, 1, 99))

    def test_only_concentrated_people_pass_the_gate(self) -> None:
        gated = Way("warp", 0.2, gated=True)
        assert all(axis is STRAIGHT for axis in warps(gated, np.ones((20, 20))))
        assert all(axis is not STRAIGHT for axis in warps(gated, np.outer(CORE_HEAVY, CORE_HEAVY)))


class TestTheRounds:
    def test_each_device_answers_one_round(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked = []
        true_collect = zooming.collect

        def watched(spec, points, entropy, draws):
            asked.append(spec.draw)
            return true_collect(spec, points, entropy, draws)

        monkeypatch.setattr(zooming, "collect", watched)
        ask(WAYS["warp 0.2"], load("core_and_far", None, 3000, 0).points, 4.0, 7, 0)
        first, last = asked
        assert first.lo == 0
        assert first.hi == last.lo
        assert last.hi == 2**64

    def test_the_second_lattice_is_finer_where_people_are(self) -> None:
        case = load("corner_moons", None, 20_000, 1)
        lines = ask(WAYS["zoom 0.2"], case.points, 4.0, 2, 0).edges[0]
        widths = np.diff(lines)
        assert widths[np.searchsorted(lines, 0.37) - 1] < 0.5 * widths[0]

    def test_where_nothing_is_concentrated_both_rounds_count_as_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        n_reports = []
        true_landscape = zooming.landscape

        def watched(params, encoding, collected):
            n_reports.append(collected.tally.n_reports)
            return true_landscape(params, encoding, collected)

        monkeypatch.setattr(zooming, "landscape", watched)
        even = np.random.default_rng(0).random((4000, 2))
        found = ask(WAYS["warp 0.2 if concentrated"], even, 4.0, 2, 0)
        assert n_reports[0] < 1200
        assert n_reports[1] == 4000
        np.testing.assert_allclose(np.diff(found.edges[0]), np.diff(found.edges[0])[0])

    def test_equal_seeds_give_equal_outcomes(self) -> None:
        points = load("core_and_far", None, 5000, 0).points
        first, again = (ask(WAYS["warp 0.2"], points, 2.0, None, 7) for _ in range(2))
        np.testing.assert_array_equal(first.labels, again.labels)
        np.testing.assert_array_equal(first.density, again.density)


class TestTheMeasures:
    def test_an_even_density_has_no_log_likelihood_and_a_right_one_has_more(self) -> None:
        points = np.random.default_rng(0).random((2000, 2)) * [0.5, 1]
        half, lines = np.array([0, 0.5, 1]), np.array([0.0, 1.0])
        labels = np.zeros((2, 1), dtype=np.int64)
        assert Outcome((half, lines), np.array([[0.5], [0.5]]), labels).log_likelihood(points) == pytest.approx(0)
        right = Outcome((half, lines), np.array([[1.0], [0.0]]), labels).log_likelihood(points)
        assert right == pytest.approx(np.log(2), abs=2e-3)

    def test_cells_of_uneven_lines_do_not_count_by_their_size(self) -> None:
        narrow = Outcome((np.array([0, 0.1, 1]), np.array([0.0, 1.0])), np.array([[0.1], [0.9]]), np.zeros((2, 1), int))
        assert narrow.log_likelihood(np.array([[0.05, 0.5], [0.5, 0.5]])) == pytest.approx(0, abs=1e-12)

    def test_loss_is_to_the_nearest_centre(self) -> None:
        assert loss_of(np.array([[0.0, 0], [1, 0]]), np.array([[0.0, 0.1], [1, 0.2]])) == pytest.approx(0.025)


class TestTheCommand:
    def test_rows_are_made_once_and_tabled(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        out = tmp_path / "rows.csv"
        command = [
            "--out",
            str(out),
            "--sets",
            "core_and_far",
            "--ways",
            "once,warp 0.2",
            "--n",
            "2000",
            "--seeds",
            "1",
        ]
        assert zooming.main(command) == 0
        made = out.read_text(encoding="utf-8")
        header, *found = csv.reader(made.splitlines())
        assert tuple(header) == zooming.FIELDS
        assert len(found) == 2 * 4 * 2  # ways, epsilons, K given and not
        assert zooming.main(command) == 0
        assert out.read_text(encoding="utf-8") == made
        assert "| ari, K auto | seeds | once | warp 0.2 |" in capsys.readouterr().out

    @pytest.mark.parametrize("name", ["city", "nothing", "corner_nothing"])
    def test_a_set_that_is_not_there_is_refused(self, name: str) -> None:
        with pytest.raises(ValueError, match=r"--data names"):
            load(name, None, 100, 0)

    def test_a_set_shrunk_into_a_corner_keeps_its_labels_but_for_who_is_anywhere(self) -> None:
        case = load("corner_moons", None, 4000, 0)
        scored = case.points[case.truth > 0]
        assert np.ptp(scored, axis=0).max() < 0.151
        assert (case.truth == 0).mean() == pytest.approx(0.1, abs=0.03)

    def test_points_nobody_labelled_are_scored_by_exact_counts(self, tmp_path: Path) -> None:
        rng = np.random.default_rng(0)
        places = np.repeat([[0.0, 0.0], [8.0, 9.0], [1.0, 9.0]], 200, axis=0) + rng.normal(0, 0.3, (600, 2))
        write_set(tmp_path / "three.npz", places, np.full(600, -1), "geo")
        case = load("three", tmp_path, 0, 0)
        assert case.clusters == 5
        assert (case.truth > 0).all()
        assert len(np.unique(case.truth)) == 5
        assert case.loss < 0.01

    def test_only_two_features_are_taken(self, tmp_path: Path) -> None:
        write_set(tmp_path / "solid.npz", np.random.default_rng(0).random((50, 3)), np.ones(50), "3-D shapes")
        with pytest.raises(ValueError, match="solid has 3 features"):
            load("solid", tmp_path, 0, 0)
