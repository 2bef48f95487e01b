"""What is said of a result's reports: numbers that JSON can carry, and sentences."""

import json

import numpy as np
import pytest

from clustering.confidence import confidence
from clustering.decoders import decoder
from sfumato.accounting import DRAW_SPAN
from sfumato.mechanisms import design
from sfumato.specs import GrrMechanism

READING = decoder(design("ss", 64, 10**9))


class TestConfidence:
    def test_is_low_below_ten_thousand_effective_reports(self):
        needed = confidence(1, READING).reports_needed
        assert needed == pytest.approx(1e4 / np.sinh(0.5) ** 2, rel=1e-3)
        assert confidence(needed - 1, READING).low_confidence
        assert not confidence(needed, READING).low_confidence

    def test_of_unperturbed_reports_can_be_written(self):
        told = confidence(10, decoder(GrrMechanism(64, DRAW_SPAN)))
        assert told.diagnostics()["n_eff"] is None
        assert not told.low_confidence
        json.dumps(told.diagnostics(), allow_nan=False)

    def test_a_bump_is_detectable_by_delta_and_by_its_error(self):
        told = confidence(50_000, READING)
        assert told.is_detectable(8.01 * told.delta, 4 * told.delta)
        assert not told.is_detectable(7.99 * told.delta, 0.0)
        assert not told.is_detectable(8.01 * told.delta, 4.1 * told.delta)


class TestWarnings:
    def test_none_where_all_is_well(self):
        assert confidence(10**6, READING).warnings(2, [True, True]) == ()

    def test_say_that_few_reports_are_not_counted_by_or_doubtfully(self):
        few = confidence(100, READING)
        assert "everybody is put in one" in few.warnings(None, [True], refused=True)[0]
        assert "some may be missing" in few.warnings(None, [True])[0]
        assert "steady" in few.warnings(1, [True])[0]

    def test_name_doubtful_clusters_and_missing_ones(self):
        said = confidence(10**6, READING).warnings(4, [True, False, False])
        assert said == (
            "4 clusters were asked for, but only 3 bumps were found.",
            "Clusters that noise could have made, by their excess mass: 1, 2.",
        )
