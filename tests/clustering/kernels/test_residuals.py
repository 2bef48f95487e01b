"""Test the kernels of residuals and squares against their plain twins."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from clustering.central.curator import SQUARE_BITS
from clustering.kernels.residuals import (
    add_clipped_squares,
    add_l1_residuals,
    add_residuals,
    add_squares,
    find_shells,
    sort_residuals,
)
from sfumato.specs import LATTICE
from tests import naive

places = st.integers(0, LATTICE - 1)


@given(st.data(), st.integers(1, 5), st.integers(1, 4))
def test_sums_equal_those_of_the_plain_twins(data: st.DataObject, d: int, k: int) -> None:
    points = data.draw(arrays(np.int32, st.tuples(st.integers(0, 8), st.just(d)), elements=places))
    centres = data.draw(arrays(np.int64, (k, d), elements=places))
    radii = data.draw(arrays(np.int64, k, elements=st.integers(1, 1 << 22)))
    labels = data.draw(arrays(np.int64, len(points), elements=st.integers(-1, k - 1)))
    sums, sizes = np.zeros((k, d), np.int64), np.zeros(k, np.int64)
    add_l1_residuals(points, labels, centres, radii, sums, sizes)
    for point, c in zip(points, labels, strict=True):
        if c >= 0:
            residual, size = naive.clipped_l1_residual(centres[c], int(radii[c]), point)
            sums[c] -= residual
            sizes[c] -= size
    assert not sums.any()
    assert not sizes.any()
    squares = np.zeros(k, np.int64)
    add_squares(points, labels, centres, SQUARE_BITS, squares)
    for point, c in zip(points, labels, strict=True):
        if c >= 0:
            squares[c] -= naive.shifted_square(centres[c], SQUARE_BITS, point)
    assert not squares.any()


@given(st.data(), st.integers(1, 5), st.integers(1, 4))
def test_moments_equal_those_of_the_plain_twins(data: st.DataObject, d: int, k: int) -> None:
    wide = st.integers(-(1 << 27), 1 << 27)  # coordinates of a projection
    points = data.draw(arrays(np.int32, st.tuples(st.integers(0, 8), st.just(d)), elements=wide))
    centres = data.draw(arrays(np.int64, (k, d), elements=wide))
    radii = data.draw(arrays(np.int64, k, elements=st.integers(1, 1 << 27)))
    labels = data.draw(arrays(np.int64, len(points), elements=st.integers(-1, k - 1)))
    parts = 1 << 15
    sums, squares = np.zeros((k, d), np.int64), np.zeros(k, np.int64)
    add_residuals(points, labels, centres, radii, float(parts), sums)
    add_clipped_squares(points, labels, centres, radii, float(parts**2), squares)
    for point, c in zip(points, labels, strict=True):
        if c >= 0:
            residual, square = naive.clipped_residual(centres[c], int(radii[c]), parts, point)
            sums[c] -= residual
            squares[c] -= square
    assert not any(part.any() for part in (sums, squares))
    order = np.argsort(labels, kind="stable")[np.sum(labels < 0) :]
    starts, rows = np.searchsorted(labels[order], np.arange(k)), np.empty((len(order), d))
    sort_residuals(points, labels, centres, radii, float(parts), starts, rows)
    assert starts.tolist() == np.searchsorted(labels[order], np.arange(k), side="right").tolist()
    expected = [naive.clipped_residual(centres[labels[i]], int(radii[labels[i]]), parts, points[i])[0] for i in order]
    assert rows.tolist() == [[float(r) for r in residual] for residual in expected]


@given(st.data(), st.integers(1, 40), st.integers(1, 1 << 27), st.sampled_from([1, 1 << 15, 1 << 20]))
def test_clipped_residual_is_within_its_radius_exactly(data: st.DataObject, d: int, radius: int, parts: int) -> None:
    point = data.draw(arrays(np.int32, (1, d), elements=places))
    centre = data.draw(arrays(np.int64, (1, d), elements=places))
    sums, squares, label = np.zeros((1, d), np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64)
    add_residuals(point, label, centre, np.array([radius]), float(parts), sums)
    add_clipped_squares(point, label, centre, np.array([radius]), float(parts**2), squares)
    assert sum(int(value) ** 2 for value in sums[0]) <= parts**2
    assert 0 <= squares[0] <= parts**2
    inside = sum((int(x) - int(c)) ** 2 for x, c in zip(point[0], centre[0], strict=True)) <= radius**2
    if inside:  # a residual within the radius keeps its length, to a part
        assert np.abs(sums[0] - (point[0] - centre[0]) * (parts / radius)).max() < 1.01


@given(st.data(), st.integers(1, 4))
def test_shells_equal_their_plain_twin(data: st.DataObject, d: int) -> None:
    points = data.draw(arrays(np.int32, st.tuples(st.integers(0, 8), st.just(d)), elements=places))
    centre = data.draw(arrays(np.int64, d, elements=places))
    squares = np.sort(data.draw(arrays(np.int64, st.integers(0, 5), elements=st.integers(0, 1 << 42))))
    shells = np.empty(len(points), np.int64)
    find_shells(points, centre, squares, shells)
    for point, shell in zip(points, shells, strict=True):
        square = sum((int(x) - int(c)) ** 2 for x, c in zip(point, centre, strict=True))
        assert shell == sum(int(each) < square for each in squares)
