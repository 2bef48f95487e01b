"""The table behind forecasts of quality: what its rows stand for, that they rise, and how they are written."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.forecast_table import LOG_INFORMATION, PLANS, rising, sizes_at, text
from benchmarks.reference_shapes import SHAPES
from sfumato.accounting import parse_epsilon
from sfumato.forecast.limits import information
from sfumato.forecast.table import PLACES, TABLE
from sfumato.specs import LOCAL_ALGORITHMS


@pytest.mark.parametrize("place", LOG_INFORMATION)
def test_each_row_is_run_with_the_information_it_stands_for(place):
    sizes = sizes_at(place)
    assert sizes
    for n_reports, epsilon in sizes:
        assert np.log10(information(n_reports, parse_epsilon(epsilon))) == pytest.approx(place, abs=0.001)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_pooled_values_rise_and_keep_their_mean(values):
    made = rising(values)
    assert all(a <= b + 1e-12 for a, b in pairwise(made))
    assert np.mean(made) == pytest.approx(np.mean(values))
    assert rising(sorted(values)) == sorted(values)


def test_the_module_is_what_the_script_writes_of_it():
    names: dict[str, object] = {}
    exec(text(TABLE), names)  # noqa: S102 - our own text
    assert (names["PLACES"], names["TABLE"]) == (PLACES, TABLE)
    assert PLACES == LOG_INFORMATION


def test_what_is_measured_exists():
    assert set(PLANS) <= set(LOCAL_ALGORITHMS)
    assert {key[0] for key in TABLE} <= set(PLANS)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape.name}-{shape.n_features}")
def test_a_shape_is_what_it_says_and_the_same_for_the_same_seed(shape):
    points, labels = shape.sample(500, 3)
    assert points.shape == (500, shape.n_features)
    assert ((points >= 0) & (points <= 1)).all()
    assert set(np.unique(labels)) <= set(range(shape.n_clusters))
    assert len(np.unique(labels)) >= min(shape.n_clusters, 2)
    again, _ = shape.sample(500, 3)
    other, _ = shape.sample(500, 4)
    assert np.array_equal(points, again)
    assert not np.array_equal(points, other)
