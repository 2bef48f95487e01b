"""The warning about clusters near a pole, which the results of reports and of records have."""

import numpy as np
import pytest

from clustering.poles import warn_of_poles
from clustering.simulate import simulate, simulate_central
from sfumato.model.cluster_model import ClusterModel
from sfumato.records.encodings import scale_many
from sfumato.specs import Feature, GridKmeans, Place, PrivateKmeans

EARTH = Place().features  # latitude, longitude


def model(*latitudes: float, features: tuple[Feature, ...] = EARTH) -> ClusterModel:
    places, n = np.column_stack([latitudes, np.zeros(len(latitudes))]), len(latitudes)
    return ClusterModel("centroids", features, np.full(n, 1 / n), np.zeros(n), centroids=places, warnings=("Other.",))


class TestWarning:
    def test_names_the_clusters_beyond_75_degrees(self) -> None:
        other, found = warn_of_poles(model(74.9, 80.0, -75.0, 10.0)).warnings
        assert other == "Other."
        assert found.startswith("Near a pole: clusters 1, 2. Beyond 75 degrees")
        assert "by 3.9 or more" in found

    def test_of_many_clusters_is_short(self) -> None:
        assert "clusters 0, 1, 2, 3, 4, 5 and 3 more." in warn_of_poles(model(*[80.0] * 9)).warnings[1]

    def test_does_not_concern_other_features_and_results(self) -> None:
        plain = Feature("y", -90, 90), Feature("x", -180, 180)
        nowhere = ClusterModel("label_map", EARTH, np.zeros(0), np.zeros(0))
        for each in (model(80.0, features=plain), model(10.0, -60.0), nowhere):
            assert warn_of_poles(each) is each


@pytest.mark.parametrize("latitude", [30.0, 84.0])
def test_results_of_reports_and_records_have_it(latitude: float) -> None:
    chance = np.random.default_rng(1)
    places = np.array([[latitude, 0.0], [-30.0, 90.0]])[chance.integers(0, 2, 4000)] + chance.normal(0, 1, (4000, 2))
    points = scale_many(EARTH, places)
    of_reports = simulate(GridKmeans(8.0, 2), points, seed=1, features=EARTH)
    of_records = simulate_central(PrivateKmeans(2.0, 2), points, seed=1, features=EARTH)
    for found in (of_reports, of_records):
        assert [each[:11] for each in found.warnings if "pole" in each] == ["Near a pole"] * (latitude > 75)
