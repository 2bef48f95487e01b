"""Test what the registry of plans refuses."""

import pytest

from clustering.registry import start
from sfumato.errors import InvalidSpec
from sfumato.specs import Feature, GridEncoding, ShiftedGrid

XY = (Feature("x", 0, 1), Feature("y", 0, 1))


class TestStart:
    def test_rejects_unknown_algorithms(self):
        with pytest.raises(InvalidSpec):
            start(GridEncoding((2, 2)), XY, 1000)  # type: ignore[arg-type]

    def test_rejects_zero_expected_reports(self):
        with pytest.raises(InvalidSpec):
            start(ShiftedGrid(epsilon=1), XY, 0)
