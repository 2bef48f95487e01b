"""The round of a profile: its clusters are those of the model, and the forecast of its errors."""

from dataclasses import replace

import numpy as np
import pytest

from sfumato.errors import InvalidSpec
from sfumato.forecast import (
    forecast_profile,
    forecast_reported_profile,
    profile_forecast_from_wire,
    profile_forecast_to_wire,
)
from sfumato.model.cluster_model import ClusterModel
from sfumato.profiles.profile_round import profile_round
from sfumato.records.encodings import scale_many, symbols
from sfumato.specs import Feature, Profile
from sfumato.specs.attributes import Categorical

PLAN = Categorical("plan", ["free", "pro"])
PARAMETERS = Profile(of="job_1", attributes=["plan"], epsilon=2)
FEATURES = (Feature("x", 0, 10), Feature("hour", 0, 24, "h"))


def model_of(*, is_map: bool, periodic: bool = False) -> ClusterModel:
    features = (FEATURES[0], replace(FEATURES[1], periodic=periodic))
    sizes, centroids = np.full(3, 1 / 3), np.array([[2.0, 3.0], [5.0, 20.0], [9.0, 9.0]])
    labels = np.random.default_rng(1).permutation(np.arange(48) % 3).reshape(6, 8) if is_map else None
    kind = "label_map" if is_map else "centroids"
    return ClusterModel(kind, features, sizes, sizes, centroids, label_map=labels)  # type: ignore[arg-type]


class TestRound:
    @pytest.mark.parametrize("is_map", [False, True])
    def test_has_the_labels_of_the_model(self, is_map: bool) -> None:
        model = model_of(is_map=is_map)
        spec = profile_round(PARAMETERS, model, (PLAN,), counts_outside=True)
        points = np.random.default_rng(2).uniform((0, 0), (10, 24), (2_000, 2))
        first = symbols(spec.encoding, scale_many(spec.features, points), np.zeros(2_000, dtype=np.int64))
        assert (first // 2).tolist() == model.assign(points).tolist()
        assert (spec.n_symbols, spec.mechanism.n_symbols, spec.counts_outside) == (7, 7, True)
        assert spec.mechanism.epsilon_nano() <= PARAMETERS.epsilon_nano

    def test_with_a_periodic_feature_needs_a_map(self) -> None:
        spec = profile_round(PARAMETERS, model_of(is_map=True, periodic=True), (PLAN,), counts_outside=False)
        assert spec.features[1].periodic
        with pytest.raises(InvalidSpec, match="needs a label map if a feature is periodic"):
            profile_round(PARAMETERS, model_of(is_map=False, periodic=True), (PLAN,), counts_outside=False)


class TestForecast:
    @pytest.mark.parametrize(
        ("epsilon", "needed"), [(1.0, 1_085_000), (2.0, 206_000), (4.0, 14_700)]
    )  # five attributes of eight values, a cluster of 20 %
    def test_states_the_reports_for_an_error_of_two_points(self, epsilon: float, needed: int) -> None:
        params = Profile(of="job_1", attributes=["a", "b", "c", "d", "e"], epsilon=epsilon)
        given = {"n_values": 8, "counts_outside": False}
        made = forecast_reported_profile(params, [0.2] * 5, expected_reports=needed, **given)  # type: ignore[arg-type]
        assert made.reports_needed[0] == pytest.approx(needed, rel=0.01)
        assert made.share_errors[0] == pytest.approx(0.02, rel=0.01)
        assert profile_forecast_from_wire(profile_forecast_to_wire(made)) == made

    def test_warns_of_clusters_with_large_errors(self) -> None:
        params = Profile(of="job_1", attributes=["plan", "age"], epsilon=1)
        made = forecast_reported_profile(params, [0.6, 0.3, 0.1, 0.0001], expected_reports=8_000)
        assert made.too_small == (2, 3)
        assert "above 5% at this epsilon: 1." in made.warnings[1]

    @pytest.mark.parametrize(
        ("sizes", "expected", "n_values", "message"),
        [
            ([0.6, 0.4], 0, 8, "must be at least 1, not 0"),
            ([0.6, 0.4], 9, 1, "n_values must be at least 2, not 1"),
            ([], 9, 8, "sizes must name at least one cluster"),
        ],
    )
    def test_refuses_impossible_numbers(self, sizes: list[float], expected: int, n_values: int, message: str) -> None:
        with pytest.raises(InvalidSpec, match=message):
            forecast_reported_profile(PARAMETERS, sizes, expected_reports=expected, n_values=n_values)
        with pytest.raises(InvalidSpec, match=message):
            forecast_profile(PARAMETERS, sizes, expected_records=expected, n_values=n_values)
