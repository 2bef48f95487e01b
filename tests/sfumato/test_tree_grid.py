"""Dyadic cells of different levels: what tiles the box, and which cell a point is in."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.encodings import symbol, symbols, tree_starts, z_place, z_places
from sfumato.errors import InvalidSpec
from sfumato.specs import MAX_TREE_CELLS, TreeGridEncoding, encoding_from_wire, to_wire


@st.composite
def tree_grids(draw: st.DrawFn) -> TreeGridEncoding:
    """Cells split at random, from the whole box down."""
    n_features = draw(st.integers(1, 3))
    levels = [0]
    for _ in range(draw(st.integers(1, 6))):
        place = draw(st.integers(0, len(levels) - 1))
        levels[place : place + 1] = [levels[place] + 1] * 2**n_features
    return TreeGridEncoding(n_features, tuple(levels))


def boxes(n_features: int, levels: tuple[int, ...]) -> list[tuple[tuple[float, ...], float]]:
    """The definition: lower corner and side of each cell, by walking the tree."""
    left = list(levels)
    found: list[tuple[tuple[float, ...], float]] = []

    def walk(corner: tuple[float, ...], level: int) -> None:
        if left[0] == level:
            found.append((corner, 0.5**level))
            left.pop(0)
            return
        for half in np.ndindex((2,) * n_features):
            walk(tuple(c + h * 0.5 ** (level + 1) for c, h in zip(corner, half, strict=True)), level + 1)

    walk((0.0,) * n_features, 0)
    return found


class TestSymbol:
    @settings(deadline=None)
    @given(st.data(), tree_grids())
    def test_is_the_cell_that_holds_the_point_one_by_one_and_all_at_once(
        self, data: st.DataObject, encoding: TreeGridEncoding
    ) -> None:
        d = encoding.n_features
        points = data.draw(st.lists(st.lists(st.floats(0, 1), min_size=d, max_size=d), min_size=1, max_size=5))
        cells = boxes(d, encoding.levels)
        assert len(cells) == encoding.n_symbols
        for point in points:
            corner, side = cells[symbol(encoding, point, 0)]
            assert all(low <= x < low + side or x == low + side == 1 for x, low in zip(point, corner, strict=True))
        many = symbols(encoding, np.array(points), np.zeros(len(points), dtype=np.int64))
        assert many.tolist() == [symbol(encoding, point, 0) for point in points]

    def test_the_first_feature_is_the_slowest(self) -> None:
        encoding = TreeGridEncoding(2, (1, 1, 1, 1))
        assert [symbol(encoding, point, 0) for point in ([0, 0], [0, 0.9], [0.9, 0], [1, 1])] == [0, 1, 2, 3]

    def test_the_walk_interleaves_the_bits_of_the_finest_box(self) -> None:
        assert z_place([0b101, 0b011], 3) == 0b100111
        assert z_places(np.array([[0b101, 0b011]]), 3).tolist() == [0b100111]

    def test_starts_are_counted_in_finest_boxes(self) -> None:
        assert tree_starts(TreeGridEncoding(1, (1, 2, 3, 3))) == (0, 4, 6, 7)


class TestTiling:
    @pytest.mark.parametrize(
        ("n_features", "levels"),
        [
            (1, (1,)),  # half of the box
            (1, (0,)),  # one cell says nothing
            (1, (1, 1, 1)),  # more than the box
            (1, (2, 1, 2)),  # all of its volume, but one lies across
            (2, (1, 1, 1)),
            (2, (1, 1, 1, 2)),
            (2, (2, 2, 1, 2, 2, 1, 1)),
            (1, (-1, 1)),
            (1, (1, 1.0)),
            (1, (1, True)),
            (9, (1,) * 512),
            (0, (1, 1)),
            (8, (7,) * 4),
            (1, (17,) * (2 * MAX_TREE_CELLS)),
        ],
    )
    def test_what_does_not_tile_the_box_cannot_be_made(self, n_features: int, levels: tuple[int, ...]) -> None:
        with pytest.raises(InvalidSpec):
            TreeGridEncoding(n_features, levels)

    @settings(deadline=None)
    @given(st.data(), tree_grids())
    def test_one_level_changed_is_refused(self, data: st.DataObject, encoding: TreeGridEncoding) -> None:
        levels = list(encoding.levels)
        levels[data.draw(st.integers(0, len(levels) - 1))] += data.draw(st.sampled_from([-1, 1]))
        with pytest.raises(InvalidSpec):
            TreeGridEncoding(encoding.n_features, tuple(levels))

    def test_as_many_cells_as_may_be(self) -> None:
        assert TreeGridEncoding(2, (8,) * MAX_TREE_CELLS).n_symbols == MAX_TREE_CELLS

    @settings(deadline=None)
    @given(tree_grids())
    def test_it_comes_back_equal_through_json(self, encoding: TreeGridEncoding) -> None:
        assert encoding_from_wire(json.loads(json.dumps(to_wire(encoding)))) == encoding

    @pytest.mark.parametrize("levels", [None, 1, "11", [[1], [1]], [1, None]])
    def test_levels_of_another_kind_are_refused(self, levels: object) -> None:
        with pytest.raises(InvalidSpec):
            encoding_from_wire({"type": "tree_grid", "n_features": 1, "levels": levels})
