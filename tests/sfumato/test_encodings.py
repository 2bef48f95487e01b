"""From records to symbols: bounds, edges, and the definition of the shifted grid."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.encodings import cell, cells, scale, scale_many, shift_of, symbol, symbols, unscale_many
from sfumato.errors import InvalidPoint
from sfumato.specs import Encoding, Feature, GridEncoding, ShiftedGridEncoding
from tests.sfumato import specs_given

LON_LAT = (Feature("longitude", -180, 180), Feature("latitude", -90, 90))
coordinates = st.floats(0, 1)


def plain_symbol(encoding: Encoding, point: list[float], slot: int) -> int:
    """The definition (STATISTICS 3.2), one feature after the other, spelled out."""
    if isinstance(encoding, GridEncoding):
        parts = [min(math.floor(x * n), n - 1) for x, n in zip(point, encoding.cells, strict=True)]
        return int(np.ravel_multi_index(parts, encoding.cells))
    s, w, d = encoding.cells, encoding.shifts, encoding.n_features
    shift = list(itertools.product(range(w), repeat=d))[slot]
    fine = [min(math.floor(x * s * w), s * w - 1) for x in point]
    coarse = [(x + a) // w for x, a in zip(fine, shift, strict=True)]
    return int(np.ravel_multi_index(coarse, (s + 1,) * d))


class TestScale:
    @settings(deadline=None)
    @given(st.data(), st.integers(1, 4))
    def test_one_record_is_scaled_as_many_are(self, data: st.DataObject, n_features: int) -> None:
        features = data.draw(specs_given.features(n_features))
        values = st.floats(allow_nan=False, allow_infinity=False)
        record = data.draw(st.lists(values, min_size=n_features, max_size=n_features))
        point = scale(features, record)
        assert scale_many(features, [record]).tolist() == [point]
        assert all(0 <= x <= 1 for x in point)

    def test_bounds_are_the_ends_and_what_lies_beyond_is_clipped(self) -> None:
        assert scale(LON_LAT, [-180, 90]) == [0, 1]
        assert scale(LON_LAT, [-1e308, 1e308]) == [0, 1]
        assert scale(LON_LAT, [0, -45]) == [0.5, 0.25]
        assert scale((Feature("x", 0, 1),), [-0.0]) == [0.0]

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), "secret-77", None, 10**400, object()])
    def test_what_is_no_finite_number_is_refused_and_not_repeated(self, value: object) -> None:
        for attempt in (
            lambda: scale(LON_LAT, [1.5, value]),  # type: ignore[list-item]
            lambda: scale_many(LON_LAT, [[1.5, value]]),
        ):
            with pytest.raises(InvalidPoint) as refused:
                attempt()
            assert str(value) not in str(refused.value)
            assert refused.value.__cause__ is None
            assert refused.value.__suppress_context__ or refused.value.__context__ is None

    @pytest.mark.parametrize("record", [[], [1.0], [1.0, 2.0, 3.0]])
    def test_another_number_of_features_is_refused(self, record: list[float]) -> None:
        with pytest.raises(InvalidPoint, match="2"):
            scale(LON_LAT, record)
        with pytest.raises(InvalidPoint, match="2"):
            scale_many(LON_LAT, [record])

    def test_a_ragged_table_is_refused(self) -> None:
        with pytest.raises(InvalidPoint):
            scale_many(LON_LAT, [[1.0, 2.0], [3.0]])

    def test_unscaling_brings_points_back(self) -> None:
        records = np.array([[-180.0, 90.0], [12.5, 41.75]])
        assert np.allclose(unscale_many(LON_LAT, scale_many(LON_LAT, records)), records, rtol=0, atol=1e-12)


class TestCells:
    @settings(deadline=None)
    @given(st.lists(coordinates, min_size=1, max_size=20), st.integers(1, 2**20))
    def test_one_coordinate_has_the_cell_that_many_have(self, points: list[float], n_cells: int) -> None:
        many = cells(np.array(points)[:, None], [n_cells])[:, 0]
        assert many.tolist() == [cell(x, n_cells) for x in points]
        assert 0 <= many.min() <= many.max() < n_cells

    def test_the_upper_bound_is_of_the_last_cell(self) -> None:
        assert [cell(x, 4) for x in (0.0, 0.2499, 0.25, 0.75, 1.0)] == [0, 0, 1, 3, 3]


class TestSymbol:
    @settings(deadline=None, max_examples=300)
    @given(st.data(), specs_given.encodings)
    def test_it_is_what_the_definition_says_one_by_one_and_all_at_once(
        self, data: st.DataObject, encoding: Encoding
    ) -> None:
        d = encoding.n_features
        points = data.draw(st.lists(st.lists(coordinates, min_size=d, max_size=d), min_size=1, max_size=5))
        slots = [data.draw(st.integers(0, encoding.n_slots - 1)) for _ in points]
        plain = [plain_symbol(encoding, p, slot) for p, slot in zip(points, slots, strict=True)]
        assert [symbol(encoding, p, slot) for p, slot in zip(points, slots, strict=True)] == plain
        assert symbols(encoding, np.array(points), np.array(slots)).tolist() == plain
        assert all(0 <= index < encoding.n_symbols for index in plain)

    def test_under_all_shifts_a_point_meets_each_neighbour_as_often_as_the_triangle_says(self) -> None:
        encoding = ShiftedGridEncoding(n_features=1, cells=5, shifts=4)
        middles = (np.arange(20) + 0.5) / 20
        together = np.zeros(8)
        for slot in range(4):
            index = symbols(encoding, middles[:, None], np.full(20, slot))
            together += index[8:16] == index[8]
        assert together.tolist() == [4, 3, 2, 1, 0, 0, 0, 0]

    def test_every_slot_is_another_shift(self) -> None:
        encoding = ShiftedGridEncoding(n_features=2, cells=3, shifts=4)
        shifts = [shift_of(encoding, slot) for slot in range(encoding.n_slots)]
        assert shifts == list(itertools.product(range(4), repeat=2))
