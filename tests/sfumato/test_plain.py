"""Numbers of numpy, pandas and pyarrow are numbers wherever a parameter or a member of a request is one."""

import json
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from sfumato import Feature, ShiftedGrid
from sfumato.errors import InvalidSpec
from sfumato.plain import to_json
from sfumato.privacy.accounting import parse_epsilon
from tests.sfumato.answers import DATASET, JOB, ok, serving

HALVES = [
    0.5, np.float64(0.5), np.float32(0.5), np.float16(0.5), np.longdouble(0.5), Decimal("0.5"), Fraction(1, 2),
    pa.scalar(0.5), pa.scalar(Decimal("0.5")), pd.array([0.5], dtype="Float32")[0], np.array(0.5),
]  # fmt: skip
THREES = [3, np.int8(3), np.uint64(3), pa.scalar(3), pd.array([3], dtype="Int16")[0], np.array(3)]


@pytest.mark.parametrize("half", HALVES)
def test_a_number_of_any_type_is_a_parameter(half: Any) -> None:
    assert parse_epsilon(half) == 500_000_000
    feature, algorithm = Feature("x", 0, half), ShiftedGrid(epsilon=half, clusters=3)
    assert (type(feature.upper), feature.upper) == (float, 0.5)
    assert (isinstance(algorithm.epsilon, float), algorithm.epsilon) == (True, 0.5)


def test_a_short_float_is_read_as_it_prints() -> None:
    assert parse_epsilon(np.float32(0.1)) == 100_000_000
    assert Feature("x", 0, np.float32(0.1)).upper == 0.1


@pytest.mark.parametrize("three", THREES)
def test_a_whole_number_of_any_type_is_a_count(three: Any) -> None:
    clusters = ShiftedGrid(epsilon=1, clusters=three).clusters
    assert (type(clusters), clusters) == (int, 3)


@pytest.mark.parametrize("other", [True, np.True_, pa.scalar(True), "3", np.datetime64("2026-01-02"), [3], 3.5])
def test_other_values_are_no_counts(other: Any) -> None:
    with pytest.raises(InvalidSpec):
        ShiftedGrid(epsilon=1, clusters=other)


def test_requests_contain_plain_numbers() -> None:
    service, client = serving({"POST datasets": ok(DATASET, 201), "POST datasets/ds_1/jobs": ok(JOB, 202)})
    bounds = pd.DataFrame({"x": [1, 9]}).agg(["min", "max"])["x"]
    client.create_dataset("n", [Feature("x", *bounds)], epsilon=np.float32(0.5), min_reports=np.int64(7))
    body = json.loads(service.requests[-1].content)
    assert (body["epsilon"], body["min_reports"], body["features"][0]["upper"]) == (0.5, 7, 9)


def test_a_value_without_a_form_in_json_is_refused() -> None:
    assert [to_json(each) for each in (Decimal(7), Decimal("0.25"))] == [7, 0.25]
    with pytest.raises(TypeError, match="no form in JSON"):
        to_json({1})
