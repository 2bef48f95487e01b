"""Test GeoJSON documents of clusters with shapely: regions equal their cells, are valid, and are cut at 180°."""

import json
from typing import Any

import numpy as np
import pytest
import shapely
from numpy.typing import NDArray
from shapely.geometry import shape

from sfumato.errors import InvalidSpec
from sfumato.model.cluster_model import ClusterModel
from sfumato.model.precision import Verdict
from sfumato.plotting.geojson import to_geojson
from sfumato.specs import Feature, Place

PINCHED = np.array([[1, 1, 1, 0], [1, 0, 1, 0], [1, 1, 0, 1], [0, 0, 1, 1]])  # a ring that meets itself in a corner
NESTED = np.pad(np.pad(np.pad(np.ones((1, 1), dtype=int), 1), 1, constant_values=1), 1)  # an island in a hole


def a_map(
    labels: NDArray[np.int64],
    longitudes: tuple[float, float] = (0.0, 40.0),
    latitudes: tuple[float, float] = (-20.0, 60.0),
    **changes: Any,
) -> ClusterModel:
    """Return a map with longitude as its first feature."""
    n_clusters = int(labels.max()) + 1
    middle = np.mean([longitudes, latitudes], axis=1)
    given: dict[str, Any] = {
        "type": "label_map",
        "features": (Feature("longitude", *longitudes, "deg"), Feature("latitude", *latitudes, "deg")),
        "sizes": np.full(n_clusters, 1 / n_clusters),
        "size_errors": np.full(n_clusters, 0.01),
        "centroids": np.tile(middle, (n_clusters, 1)),
        "centroid_errors": np.full((n_clusters, 2), 0.5),
        "label_map": labels,
        "density": np.full(labels.shape, 1 / labels.size),
        "verdict": Verdict.UNCERTAIN,
        "warnings": ("a warning",),
    }
    return ClusterModel(**given | changes)


def sphere_area(polygons: shapely.MultiPolygon) -> float:
    """Return the area of polygons with edges along meridians and parallels, for a sphere with the radius 1."""
    area = 0.0
    for polygon in polygons.geoms:
        for ring in (polygon.exterior, *polygon.interiors):
            longitudes, latitudes = np.radians(np.array(ring.coords)).T
            area -= float((np.sin(latitudes[:-1]) * np.diff(longitudes)).sum())
    return area


def of_kind(document: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [each for each in document["features"] if each["properties"]["kind"] == kind]


def regions(document: dict[str, Any]) -> dict[int, shapely.MultiPolygon]:
    return {each["properties"]["cluster"]: shape(each["geometry"]) for each in of_kind(document, "region")}


def boxes(model: ClusterModel, cluster: int) -> shapely.Geometry:
    """Return the union of a cluster's cells by shapely, between -180 and 180 degrees."""
    assert model.label_map is not None
    across, up = model.features
    meridians = np.linspace(across.lower, across.upper, model.label_map.shape[0] + 1)
    parallels = np.linspace(up.lower, up.upper, model.label_map.shape[1] + 1)
    parts = [
        shapely.box(meridians[x], parallels[y], meridians[x + 1], parallels[y + 1])
        for x, y in np.argwhere(model.label_map == cluster)
    ]
    whole = shapely.union_all(parts)
    turned = [
        shapely.intersection(shapely.affinity.translate(whole, turn), shapely.box(-180, -90, 180, 90))
        for turn in (-360, 0, 360)
    ]
    return shapely.union_all([part for part in turned if part.area > 0])


class TestRegions:
    @pytest.mark.parametrize("bounds", [(0.0, 40.0), (-180.0, 180.0), (0.0, 360.0), (165.0, 198.0), (-200.0, 160.0)])
    @pytest.mark.parametrize(
        "labels",
        [PINCHED, NESTED, np.random.default_rng(3).integers(0, 3, size=(12, 9))],
        ids=["pinched", "nested", "any"],
    )
    def test_are_the_cells_of_the_clusters(self, labels: NDArray[np.int64], bounds: tuple[float, float]) -> None:
        model = a_map(labels, bounds)
        document = to_geojson(model)
        found = regions(document)
        assert set(found) == set(range(model.n_clusters))
        for cluster, region in found.items():
            assert region.is_valid, shapely.is_valid_reason(region)
            assert region.symmetric_difference(boxes(model, cluster)).area < 1e-9 * region.area
            assert max(map(abs, (region.bounds[0], region.bounds[2]))) <= 180
        total = sum(each.area for each in found.values())
        assert total == pytest.approx((bounds[1] - bounds[0]) * 80)

    def test_have_closed_rings_with_counterclockwise_exteriors_and_clockwise_holes(self) -> None:
        for labels in (PINCHED, NESTED):
            for each in of_kind(to_geojson(a_map(labels)), "region"):
                assert each["geometry"]["type"] == "MultiPolygon"
                for polygon in each["geometry"]["coordinates"]:
                    assert all(ring[0] == ring[-1] for ring in polygon)
                    turns = [shapely.LinearRing(ring).is_ccw for ring in polygon]
                    assert turns == [True] + [False] * (len(polygon) - 1)
        holes = [len(part.interiors) for part in regions(to_geojson(a_map(NESTED)))[1].geoms]
        assert sorted(holes) == [0, 1]

    def test_of_three_features_show_the_cluster_with_most_people(self) -> None:
        labels = np.zeros((2, 2, 2), dtype=np.int64)
        labels[1] = 1
        density = np.where(labels == 1, [[[0.0, 0.0]], [[0.2, 0.3]]], 0.0)
        hour = Feature("hour", 0.0, 24.0, "h")
        place = Feature("lat", 0.0, 10.0, "deg"), Feature("lon", 170.0, 190.0, "deg")
        model = a_map(
            labels, features=(place[0], hour, place[1]), density=density / density.sum(),
            centroids=np.full((2, 3), 5.0), centroid_errors=np.full((2, 3), np.inf),
        )  # fmt: skip
        document = to_geojson(model)
        found = regions(document)
        assert found[0].bounds == (-180, 0, 180, 5)
        assert found[1].area == found[0].area == 100
        centre = of_kind(document, "centre")[0]["properties"]
        assert centre["centre"] == {"lat": 5.0, "hour": 5.0, "lon": 5.0}
        assert centre["centre_errors"] == {"lat": None, "hour": None, "lon": None}
        assert centre["error_km"] is None


class TestDocument:
    def test_states_shares_errors_and_the_verdict_as_json(self) -> None:
        model = a_map(PINCHED, names=("North", ""), centroids=np.array([[20.0, 60.0], [10.0, 0.0]]))
        document = json.loads(json.dumps(to_geojson(model), allow_nan=False))
        assert document["bbox"] == [0.0, -20.0, 40.0, 60.0]
        assert document["verdict"] == "uncertain"
        assert document["warnings"] == ["a warning"]
        north, south = of_kind(document, "centre")
        assert north["geometry"] == {"type": "Point", "coordinates": [20.0, 60.0]}
        assert north["properties"]["name"] == "North"
        assert (north["properties"]["size"], north["properties"]["size_error"]) == (0.5, 0.01)
        # At 60° north half a degree of longitude is half as long as at the equator.
        assert south["properties"]["error_km"] == pytest.approx(0.5 * 2**0.5 * 111.195, rel=1e-4)
        assert north["properties"]["error_km"] == pytest.approx(0.5 * 1.25**0.5 * 111.195, rel=1e-4)
        assert len({each["id"] for each in document["features"]}) == 4

    @pytest.mark.parametrize(
        ("bounds", "ends", "centre"),
        [
            ((165.0, 198.0), (165.0, -162.0), -178.5),
            ((0.0, 360.0), (-180.0, 180.0), 180.0),
            ((190.0, 200.0), (-170.0, -160.0), -165.0),
            ((170.0, 180.0), (170.0, 180.0), 175.0),
        ],
    )
    def test_has_longitudes_within_180_degrees(
        self, bounds: tuple[float, float], ends: tuple[float, float], centre: float
    ) -> None:
        document = to_geojson(a_map(PINCHED, bounds))
        assert (document["bbox"][0], document["bbox"][2]) == ends
        assert of_kind(document, "centre")[0]["geometry"]["coordinates"][0] == centre

    def test_of_centroids_has_points_alone(self) -> None:
        model = a_map(PINCHED, type="centroids", label_map=None, density=None, centroid_errors=None)
        document = to_geojson(model)
        assert [each["geometry"]["type"] for each in document["features"]] == ["Point", "Point"]
        assert document["features"][0]["properties"]["error_km"] is None

    def test_needs_longitude_and_latitude(self) -> None:
        model = a_map(PINCHED, features=(Feature("east", 0.0, 1.0), Feature("north", 0.0, 1.0)))
        with pytest.raises(InvalidSpec, match="needs the features longitude and latitude in degrees"):
            to_geojson(model)


class TestPlace:
    def test_regions_have_the_areas_of_their_cells(self) -> None:
        latitude, longitude = Place(58.0, 5.0, 71.2, 31.2).features
        labels = np.random.default_rng(1).integers(0, 3, (12, 12))
        model = a_map(labels, features=(longitude, latitude))
        whole = np.radians(26.2) * (np.sin(np.radians(71.2)) - np.sin(np.radians(58.0)))
        for cluster, polygons in regions(to_geojson(model)).items():
            assert sphere_area(polygons) / whole == pytest.approx((labels == cluster).mean(), rel=1e-6)
        plain = regions(to_geojson(a_map(labels, (5.0, 31.2), (58.0, 71.2))))
        northern = np.zeros((12, 12), dtype=int)
        northern[:, 6:] = 1
        (_, north) = regions(to_geojson(a_map(northern, (5.0, 31.2), (58.0, 71.2)))).values()
        assert sphere_area(north) / whole < 0.45  # the northern half of the degrees has less than half of the area
        assert len(plain) == 3

    def test_a_region_over_the_antimeridian_is_cut(self) -> None:
        latitude, longitude = Place(-21.0, 177.0, -12.0, -178.0).features
        model = a_map(
            np.zeros((10, 10), dtype=int), features=(longitude, latitude), centroids=np.array([[181.0, -15.0]])
        )
        document = to_geojson(model)
        assert document["bbox"] == [177.0, -21.0, -178.0, -12.0]
        (found,) = regions(document).values()
        assert found.bounds == (-180.0, -21.0, 180.0, -12.0)
        assert of_kind(document, "centre")[0]["geometry"]["coordinates"] == [-179.0, -15.0]
