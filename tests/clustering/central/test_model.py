"""The published model: shares of noisy counts, errors of both kinds, and what a reader is told."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from clustering.central.model import NoisyCount, cautions, centroid_model, is_clear
from sfumato.accounting import NANO
from sfumato.cluster_model import model_from_wire
from sfumato.specs import Feature

FEATURES = (Feature("x", -10.0, 30.0), Feature("y", 0.0, 1.0))
CENTRES = np.array([[0.25, 0.5], [0.75, 1.0], [0.0, 0.0]])


def made(counts, variances=(4.0, 4.0, 4.0), **more):
    return centroid_model(FEATURES, CENTRES, np.array(counts), np.array(variances), diagnostics={}, **more)


class TestCentroidModel:
    def test_goes_by_descending_count_in_the_features_units(self) -> None:
        errors, spreads = np.full((3, 2), 0.1) * [[1], [2], [20]], np.array([0.1, 0.2, np.nan])
        model = made([100.0, 300.0, -5.0], centre_errors=errors, spreads=spreads)
        assert model.centroids.tolist() == [[20, 1], [0, 0.5], [-10, 0]]
        assert model.centroid_errors.tolist() == [[8, 0.2], [4, 0.1], [40, 1]]  # no larger than the range
        assert model.diagnostics["noisy_counts"] == [300, 100, -5]
        assert model.diagnostics["spreads"] == [0.2, 0.1, None]
        assert model.sizes.sum() == pytest.approx(1)
        assert model.sizes[2] == 0
        assert model.sizes[0] - model.sizes[1] == pytest.approx(200 / 395)

    def test_size_errors_are_those_of_a_share_of_noisy_counts(self) -> None:
        random = np.random.default_rng(0)
        truth, variances = np.array([5000.0, 3000.0, 2000.0]), np.array([900.0, 100.0, 400.0])
        drawn = [made(truth + random.normal(0, np.sqrt(variances)), variances) for _ in range(2000)]
        seen = np.std([model.sizes for model in drawn], axis=0)
        assert made(truth, variances).size_errors == pytest.approx(seen, rel=0.07)

    @given(
        arrays(np.float64, 3, elements=st.floats(-(2.0**60), 2.0**60)),
        arrays(np.float64, 3, elements=st.floats(0, 2.0**120)),
    )
    def test_whatever_noise_says_the_document_is_sound(self, counts: np.ndarray, variances: np.ndarray) -> None:
        model = made(counts, variances)
        assert model_from_wire(json.loads(json.dumps(model.to_wire(), allow_nan=False))).n_clusters == 3
        assert (model.sizes >= 0).all()
        assert model.sizes.sum() == pytest.approx(1)
        assert ((model.size_errors >= 0) & (model.size_errors <= 1)).all()

    def test_every_field_says_what_it_is(self) -> None:
        model = made([1.0, 2.0, 3.0])
        assert set(model.privacy) == set(model.to_wire())
        assert model.privacy["diagnostics"] == "dp"


class TestCautions:
    def test_few_records_are_told_with_the_number_that_would_do(self) -> None:
        (said,) = cautions(NoisyCount(100.0, 0.0), NANO // 10, 4, 4)
        assert "About 100 records" in said
        assert "About 1200 would" in said
        assert cautions(NoisyCount(1200.0, 0.0), NANO // 10, 4, 4) == ()

    def test_a_count_that_may_be_noise_is_not_believed(self) -> None:
        assert is_clear(NoisyCount(1200.0, 0.0), NANO // 10, 4)
        assert not is_clear(NoisyCount(1500.0, 200.0**2), NANO // 10, 4)

    def test_fewer_clusters_than_asked_for_are_told(self) -> None:
        (said,) = cautions(1e6, NANO, 4, 3)
        assert "Only 3 places" in said
        assert cautions(1e6, NANO, 4, 1) == ("Only one place stands out from noise, so there is one cluster.",)
