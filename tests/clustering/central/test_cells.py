"""Test that cells are disjoint, equal their plain twins and depend on one record only."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from clustering.central.cells import (
    GAP_BINS,
    GapCells,
    GridCells,
    HashedCells,
    NearestCells,
    PairCells,
    ShellCells,
    WholeBox,
    from_places,
    to_places,
)
from clustering.central.privtree import halve, whole_box
from sfumato.specs import LATTICE
from tests import naive

places = st.integers(0, LATTICE - 1) | st.sampled_from([0, LATTICE // 2 - 1, LATTICE // 2, LATTICE - 1])


def points_of(d):
    return arrays(np.int32, st.tuples(st.integers(0, 12), st.just(d)), elements=places)


class TestShells:
    def test_border_belongs_to_the_inner_shell(self) -> None:
        cells = ShellCells(np.array([100, 100]), np.array([5, 10]))
        points = np.array([[100, 100], [103, 104], [103, 105], [106, 108], [106, 109]], dtype=np.int32)
        assert cells.index(points).tolist() == [0, 0, 1, 1, 2]
        assert (cells.n_cells, WholeBox().n_cells) == (3, 1)
        assert WholeBox().index(points).tolist() == [0] * 5


class TestGrid:
    @given(st.data(), st.lists(st.integers(1, 1000), min_size=1, max_size=4))
    def test_cells_are_even_and_row_major(self, data: st.DataObject, shape: list[int]) -> None:
        points = data.draw(points_of(len(shape)))
        cells = GridCells(tuple(shape))
        index = cells.index(points)
        along = np.array(np.unravel_index(index, shape)).T
        assert ((along * LATTICE <= points.astype(np.int64) * shape).all(axis=1)).all()
        assert (points.astype(np.int64) * shape < (along + 1) * LATTICE).all()
        assert cells.n_cells == np.prod(shape)


class TestGaps:
    @given(st.data(), st.integers(1, 4), st.integers(2, 6))
    def test_bins_are_those_of_exact_fractions(self, data: st.DataObject, d: int, k: int) -> None:
        points = data.draw(points_of(d))
        centres = data.draw(arrays(np.int64, (k, d), elements=places))
        cells = GapCells(centres)
        assert cells.index(points).tolist() == [naive.gap_cell(centres, point, GAP_BINS) for point in points]
        assert cells.n_cells == GAP_BINS * k * (k - 1) // 2

    def test_border_and_centre(self) -> None:
        cells = GapCells(np.array([[100, 0], [300, 0]]))
        points = np.array([[200, 0], [219, 0], [220, 50], [181, 0], [100, 0], [0, 0], [500, 7]], dtype=np.int32)
        assert cells.index(points).tolist() == [0, 0, 1, 0, 5, 5, 5]


class TestNearest:
    @given(st.data(), st.integers(1, 4) | st.sampled_from([17, 40]), st.integers(1, 6))
    def test_selects_the_first_nearest_centre(self, data: st.DataObject, d: int, k: int) -> None:
        points = data.draw(points_of(d))
        centres = data.draw(arrays(np.int64, (k, d), elements=places))
        expected = [naive.nearest_centre(centres, point) for point in points]
        assert NearestCells(centres).index(points).tolist() == expected

    def test_label_depends_on_the_record_only(self) -> None:
        """Matrix products of blocks are exact, so blocks of other sizes give the same labels at near ties."""
        rng = np.random.default_rng(0)
        points = rng.integers(0, LATTICE, (300, 40)).astype(np.int32)
        centres = points[0] + rng.integers(-1, 2, (20, 40))  # all nearly equally far
        cells = NearestCells(np.clip(centres, 0, LATTICE - 1))
        assert cells.index(points).tolist() == [int(cells.index(point[None])[0]) for point in points]

    def test_equal_centres_give_the_first(self) -> None:
        points = np.array([[5, 5], [LATTICE - 1, 0]], dtype=np.int32)
        assert NearestCells(np.full((3, 2), 77)).index(points).tolist() == [0, 0]


class TestPairs:
    # the root, its children, and the children of the second one
    FIRST = np.array([1, -1, 3, -1, -1])

    @given(st.data(), st.integers(1, 3))
    def test_record_descends_to_its_leaf(self, data: st.DataObject, d: int) -> None:
        points = data.draw(points_of(d))
        centres = data.draw(arrays(np.int64, (5, d), elements=places))
        leaves = [naive.pair_leaf(centres, self.FIRST, point) for point in points]
        cells = PairCells(centres, self.FIRST, np.array([3, 1]))
        assert cells.n_cells == 2
        assert cells.index(points).tolist() == [{3: 0, 1: 1, 4: -1}[leaf] for leaf in leaves]

    def test_root_alone_is_one_cell(self) -> None:
        cells = PairCells(np.zeros((1, 2), dtype=np.int64), np.array([-1]), np.array([0]))
        assert cells.index(np.zeros((3, 2), dtype=np.int32)).tolist() == [0, 0, 0]


class TestBoxes:
    @given(st.data(), st.integers(1, 3))
    def test_record_lies_in_its_box(self, data: st.DataObject, d: int) -> None:
        tree = whole_box(d)
        for _ in range(data.draw(st.integers(0, 5))):
            chosen = data.draw(st.lists(st.sampled_from(tree.leaves.tolist()), unique=True))
            tree = halve(tree, np.array(sorted(chosen), dtype=np.int64), data.draw(st.integers(0, d - 1)))
        points, leaves = data.draw(points_of(d)), tree.leaves
        boxes = list(zip(tree.lows[leaves].tolist(), tree.highs[leaves].tolist(), strict=True))
        index = tree.cells(leaves).index(points)
        assert index.tolist() == [naive.box_cell(boxes, point) for point in points]
        some = tree.cells(leaves[::2]).index(points)
        assert some.tolist() == [place // 2 if place % 2 == 0 else -1 for place in index]


class TestHashed:
    @given(st.data(), st.integers(1, 4), st.integers(1, 256), st.integers(0, 2**32 - 1))
    def test_equals_its_plain_twin(self, data: st.DataObject, d: int, k: int, seed: int) -> None:
        points = data.draw(points_of(d))
        index = HashedCells(k, seed).index(points)
        assert index.tolist() == [naive.hashed_cell(seed, k, point) for point in points]
        assert ((index >= 0) & (index < k)).all()

    def test_subsets_are_even_and_depend_on_the_seed(self) -> None:
        points = np.random.default_rng(0).integers(0, LATTICE, (30_000, 2)).astype(np.int32)
        one, other = HashedCells(3, 1).index(points), HashedCells(3, 2).index(points)
        assert np.bincount(one) == pytest.approx(10_000, rel=0.05)
        assert (one == other).mean() == pytest.approx(1 / 3, abs=0.02)

    def test_cell_depends_on_the_record_only(self) -> None:
        points = np.random.default_rng(0).integers(0, LATTICE, (50, 2)).astype(np.int32)
        cells = HashedCells(5, 1)
        assert cells.index(points[1:]).tolist() == cells.index(points)[1:].tolist()


class TestPlaces:
    @given(arrays(np.float64, (4, 2), elements=st.floats(-0.5, 1.5)))
    def test_place_is_within_half_a_step_of_its_point(self, points: np.ndarray) -> None:
        kept = to_places(points)
        assert ((kept >= 0) & (kept < LATTICE)).all()
        assert np.abs(from_places(kept) - np.clip(points, 0, 1)).max() <= 0.5 / LATTICE + 1e-12
        assert to_places(from_places(kept)).tolist() == kept.tolist()
