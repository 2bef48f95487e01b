"""Test the confidence of a result: low confidence, detectable bumps and warnings."""

import json

import numpy as np
import pytest

from clustering.density.confidence import confidence
from clustering.rounds.decoders import decoder
from sfumato.mechanisms import design
from sfumato.privacy.accounting import DRAW_SPAN
from sfumato.specs import GrrMechanism

READING = decoder(design("ss", 64, 10**9))


class TestConfidence:
    def test_is_low_below_ten_thousand_effective_reports(self):
        needed = confidence(1, READING).reports_needed
        assert needed == pytest.approx(1e4 / np.sinh(0.5) ** 2, rel=1e-3)
        assert confidence(needed - 1, READING).low_confidence
        assert not confidence(needed, READING).low_confidence

    def test_of_unperturbed_reports_is_valid_json(self):
        found = confidence(10, decoder(GrrMechanism(64, DRAW_SPAN)))
        assert found.diagnostics()["n_eff"] is None
        assert not found.low_confidence
        json.dumps(found.diagnostics(), allow_nan=False)

    def test_a_bump_is_detectable_by_delta_and_by_its_error(self):
        found = confidence(50_000, READING)
        assert found.is_detectable(8.01 * found.delta, 4 * found.delta)
        assert not found.is_detectable(7.99 * found.delta, 0.0)
        assert not found.is_detectable(8.01 * found.delta, 4.1 * found.delta)


class TestWarnings:
    def test_are_absent_for_a_reliable_result(self):
        assert confidence(10**6, READING).warnings(2, [True, True]) == ()

    def test_mention_few_reports(self):
        few = confidence(100, READING)
        assert "there is one cluster" in few.warnings(None, [True], refused=True)[0]
        assert "some may be missing" in few.warnings(None, [True])[0]
        assert "stable" in few.warnings(1, [True])[0]

    def test_name_doubtful_and_missing_clusters(self):
        warnings = confidence(10**6, READING).warnings(4, [True, False, False])
        assert warnings == (
            "4 clusters were requested, but only 3 bumps were found.",
            "Clusters that may be noise, by their excess of mass: 1, 2.",
        )
