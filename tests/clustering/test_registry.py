"""Test that every local algorithm has a plan."""

import inspect

import pytest

from clustering.registry import start
from sfumato.errors import InvalidSpec
from sfumato.specs import LOCAL_ALGORITHMS, Feature, GridEncoding, ShiftedGrid

XY = (Feature("x", 0, 1), Feature("y", 0, 1))


class TestStart:
    @pytest.mark.parametrize("algorithm", LOCAL_ALGORITHMS.values())
    def test_knows_every_algorithm(self, algorithm):
        plan = start(algorithm(epsilon=1, clusters=2), XY, 1000)  # some algorithms require the number
        assert inspect.getgeneratorstate(plan) == "GEN_CREATED"
        assert next(plan).features == XY

    def test_rejects_unknown_algorithms(self):
        with pytest.raises(InvalidSpec):
            start(GridEncoding((2, 2)), XY, 1000)  # type: ignore[arg-type]

    def test_rejects_zero_expected_reports(self):
        with pytest.raises(InvalidSpec):
            start(ShiftedGrid(epsilon=1), XY, 0)
