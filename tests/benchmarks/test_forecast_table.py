"""The table of the quality forecast: its amounts of information, its monotone rows, and its module."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.forecast_table import LOG_INFORMATION, PLANS, monotone, sizes_at, text
from benchmarks.reference_shapes import SHAPES
from sfumato.forecast.noise import information
from sfumato.forecast.quality import PLACES, TABLE, TABLE_FILE
from sfumato.privacy.accounting import parse_epsilon
from sfumato.specs import LOCAL_ALGORITHMS


@pytest.mark.parametrize("place", LOG_INFORMATION)
def test_each_place_is_run_with_its_information(place):
    sizes = sizes_at(place)
    assert sizes
    for n_reports, epsilon in sizes:
        assert np.log10(information(n_reports, parse_epsilon(epsilon))) == pytest.approx(place, abs=0.001)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_pooled_values_are_monotone_and_keep_their_mean(values):
    pooled = monotone(values)
    assert all(a <= b + 1e-12 for a, b in pairwise(pooled))
    assert np.mean(pooled) == pytest.approx(np.mean(values))
    assert monotone(sorted(values)) == pytest.approx(sorted(values))


def test_the_file_equals_the_output_of_the_script():
    assert text(TABLE) == TABLE_FILE.read_text()
    assert PLACES == LOG_INFORMATION


def test_measured_algorithms_exist():
    assert set(PLANS) <= set(LOCAL_ALGORITHMS)
    assert {key[0] for key in TABLE} <= set(PLANS)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape.name}-{shape.n_features}")
def test_a_sample_has_its_shape_and_depends_on_the_seed(shape):
    points, labels = shape.sample(500, 3)
    assert points.shape == (500, shape.n_features)
    assert ((points >= 0) & (points <= 1)).all()
    assert set(np.unique(labels)) <= set(range(shape.n_clusters))
    assert len(np.unique(labels)) >= min(shape.n_clusters, 2)
    again, _ = shape.sample(500, 3)
    other, _ = shape.sample(500, 4)
    assert np.array_equal(points, again)
    assert not np.array_equal(points, other)
