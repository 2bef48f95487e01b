"""Test the published model: shares of noisy counts, standard errors and warnings."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from clustering.central.model import (
    MAX_RATIO,
    NO_BETTER,
    NoisyCount,
    build_centroid_model,
    build_warnings,
    compare_with_one_mean,
    compute_achieved_ratio,
    is_clear,
)
from clustering.centroids.partition_agreement import PartitionAgreement
from clustering.simulate import simulate_central
from sfumato.model.cluster_model import model_from_wire
from sfumato.model.precision import ExpectedLoss, Verdict
from sfumato.privacy.accounting import NANO
from sfumato.specs import (
    DpBisectingKmeans,
    DpDensityPeaks,
    DpKmeans,
    DpQuadtreeKmeans,
    DpUniformGridKmeans,
    Feature,
    PrivateKmeans,
)

FEATURES = (Feature("x", -10.0, 30.0), Feature("y", 0.0, 1.0))
SAME = PartitionAgreement("cells", 1.0, 0.0)
LOSS = ExpectedLoss(1.01, 1.0, 1.02)
CENTRES = np.array([[0.25, 0.5], [0.75, 1.0], [0.0, 0.0]])


def made(counts, variances=(4.0, 4.0, 4.0), **more):
    more = {"centre_errors": np.zeros((3, 2)), "agreement": SAME, "grounds": (), **more}
    return build_centroid_model(FEATURES, CENTRES, np.array(counts), np.array(variances), diagnostics={}, **more)


class TestCentroidModel:
    def test_sorts_by_count_in_feature_units(self) -> None:
        errors, spreads = np.full((3, 2), 0.1) * [[1], [2], [20]], np.array([0.1, 0.2, np.nan])
        model = made([100.0, 300.0, -5.0], centre_errors=errors, spreads=spreads)
        assert model.centroids.tolist() == [[20, 1], [0, 0.5], [-10, 0]]
        assert model.centroid_errors.tolist() == [[8, 0.2], [4, 0.1], [40, 1]]  # no larger than the range
        assert model.diagnostics["noisy_counts"] == [300, 100, -5]
        assert model.diagnostics["spreads"] == [0.2, 0.1, None]
        assert model.sizes.sum() == pytest.approx(1)
        assert model.sizes[2] == 0
        assert model.sizes[0] - model.sizes[1] == pytest.approx(200 / 395)

    def test_size_errors_match_repeated_noise(self) -> None:
        random = np.random.default_rng(0)
        truth, variances = np.array([5000.0, 3000.0, 2000.0]), np.array([900.0, 100.0, 400.0])
        drawn = [made(truth + random.normal(0, np.sqrt(variances)), variances) for _ in range(2000)]
        seen = np.std([model.sizes for model in drawn], axis=0)
        assert made(truth, variances).size_errors == pytest.approx(seen, rel=0.07)

    @given(
        arrays(np.float64, 3, elements=st.floats(-(2.0**60), 2.0**60)),
        arrays(np.float64, 3, elements=st.floats(0, 2.0**120)),
    )
    def test_document_is_finite_for_any_noise(self, counts: np.ndarray, variances: np.ndarray) -> None:
        model = made(counts, variances)
        assert model_from_wire(json.loads(json.dumps(model.to_wire(), allow_nan=False))).n_clusters == 3
        assert (model.sizes >= 0).all()
        assert model.sizes.sum() == pytest.approx(1)
        assert ((model.size_errors >= 0) & (model.size_errors <= 1)).all()

    def test_each_field_has_a_privacy_status(self) -> None:
        model = made([1.0, 2.0, 3.0])
        assert set(model.privacy) == set(model.to_wire())
        assert model.privacy["diagnostics"] == "dp"


class TestOneMean:
    @given(*(arrays(np.float64, 3, elements=st.floats(0, 2.0**60)) for _ in range(3)))
    def test_ratios_are_bounded(self, noise: np.ndarray, counts: np.ndarray, spreads: np.ndarray) -> None:
        assert 1 <= compute_achieved_ratio(noise, counts, spreads) <= MAX_RATIO
        errors = np.minimum(noise, 1.0)[:, None] * np.ones(2)
        ratio, _ = compare_with_one_mean(CENTRES, counts, counts, errors, spreads)
        assert ratio is not None
        assert 1 / MAX_RATIO <= ratio <= MAX_RATIO

    def test_ratio_is_that_of_the_mean_squared_distances(self) -> None:
        spreads, counts = np.full(3, 0.1), np.full(3, 1000.0)
        between = ((CENTRES - CENTRES.mean(axis=0)) ** 2).sum(axis=1).mean()
        found = compare_with_one_mean(CENTRES, counts, np.zeros(3), np.zeros((3, 2)), spreads)
        assert found.ratio == pytest.approx(1 + between / 0.01)
        assert found.is_beaten

    def test_centres_of_noise_are_doubtful(self) -> None:
        counts, spreads = [1000.0] * 3, np.full(3, 0.1)
        clear = made(counts, centre_errors=np.full((3, 2), 0.05), spreads=spreads, loss=LOSS)
        noisy = made(counts, centre_errors=np.full((3, 2), 0.4), spreads=spreads, loss=LOSS)
        assert (clear.verdict, clear.warnings) == (Verdict.RELIABLE, ())
        assert (noisy.verdict, noisy.warnings) == (Verdict.DOUBTFUL, (NO_BETTER,))
        assert noisy.diagnostics["low_confidence"]
        assert made(counts, spreads=spreads, loss=ExpectedLoss(99.0, 1.0, 99.0)).warnings == (NO_BETTER,)
        assert made(counts, [1e8] * 3).verdict is Verdict.DOUBTFUL

    @pytest.mark.parametrize(
        "algorithm",
        [PrivateKmeans, DpKmeans, DpBisectingKmeans, DpUniformGridKmeans, DpQuadtreeKmeans, DpDensityPeaks],
    )
    def test_each_algorithm_compares_itself_with_one_mean(self, algorithm) -> None:
        random = np.random.default_rng(1)
        blob = np.clip(random.normal(0.5, 0.1, (400, 2)), 0, 1)
        ends = np.where(random.random((4000, 1)) < 0.5, [0.25, 0.75], [0.75, 0.25])
        two = ends + random.normal(0, 0.02, (4000, 2))
        poor, good = (simulate_central(algorithm(epsilon, 2), x, seed=3) for epsilon, x in ((0.01, blob), (4, two)))
        assert poor.verdict is Verdict.DOUBTFUL
        # Centres alone do not show whether clusters are separate, so such results are doubtful for another reason.
        assert (good.verdict is Verdict.DOUBTFUL) == (good.diagnostics["refits"]["source"] == "centres")
        assert NO_BETTER in poor.warnings or poor.n_clusters == 1
        assert NO_BETTER not in good.warnings


class TestCautions:
    def test_warns_about_few_records_with_the_number_needed(self) -> None:
        (warning,) = build_warnings(NoisyCount(100.0, 0.0), NANO // 10, 4, 4)
        assert "About 100 records" in warning
        assert "About 1200 would" in warning
        assert build_warnings(NoisyCount(1200.0, 0.0), NANO // 10, 4, 4) == ()

    def test_warning_uses_the_lower_bound_of_the_count(self) -> None:
        assert is_clear(NoisyCount(1200.0, 0.0), NANO // 10, 4)
        assert not is_clear(NoisyCount(1500.0, 200.0**2), NANO // 10, 4)

    def test_warns_about_missing_clusters(self) -> None:
        (warning,) = build_warnings(1e6, NANO, 4, 3)
        assert "Only 3 places" in warning
        assert build_warnings(1e6, NANO, 4, 1) == ("Only one place stands out from noise, so there is one cluster.",)
