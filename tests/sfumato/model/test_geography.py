"""Maps: recognition of their features, and positions of coasts, meridians and scales."""

import json
import math

import numpy as np
import pytest

from sfumato.model import geography
from sfumato.specs import Feature, Place


def lonlat(west: float = -180, east: float = 180, south: float = -90, north: float = 90) -> tuple[Feature, Feature]:
    return Feature("longitude", west, east, "degrees"), Feature("latitude", south, north, "degrees")


class TestIsMap:
    @pytest.mark.parametrize(
        ("across", "up"), [("longitude", "latitude"), ("lon", "lat"), ("LNG", "Lat"), ("long", "lat")]
    )
    @pytest.mark.parametrize("unit", ["", "degrees", "°"])
    def test_recognises_names_and_units(self, across: str, up: str, unit: str) -> None:
        assert geography.is_map(Feature(across, -10, 30, unit), Feature(up, 35, 60, unit))

    @pytest.mark.parametrize(
        ("across", "up"),
        [
            (Feature("x", -10, 30), Feature("y", 35, 60)),
            (Feature("latitude", -10, 30), Feature("longitude", 35, 60)),
            (Feature("longitude", -10, 30, "km"), Feature("latitude", 35, 60, "km")),
            (Feature("longitude", 0, 5000), Feature("latitude", 0, 60)),
            (Feature("longitude", -10, 30), Feature("latitude", 0, 100)),
            (Feature("longitude", -360, 360), Feature("latitude", 0, 60)),
        ],
    )
    def test_rejects_other_features(self, across: Feature, up: Feature) -> None:
        assert not geography.is_map(across, up)


class TestCoastline:
    def test_is_small_and_names_its_source(self) -> None:
        assert geography.COASTLINE.stat().st_size <= 60_000
        source = json.loads(geography.COASTLINE.read_text())["source"]
        assert "Natural Earth" in source
        assert "public domain" in source
        assert "world-atlas" in geography.COASTLINE.with_suffix(".LICENSE").read_text()

    def test_is_lines_on_the_globe_without_jumps(self) -> None:
        lines = geography.coastline(*lonlat())
        assert sum(len(line) for line in lines) > 3000
        for line in lines:
            assert line.shape[1] == 2
            assert np.abs(line[:, 1]).max() <= 90
        assert max(np.abs(line[:, 0]).max() for line in geography.world()) <= 180
        assert max(np.abs(np.diff(line, axis=0)).max() for line in geography.world()) < 30

    @pytest.mark.parametrize(
        ("west", "east", "south", "north", "place"),
        [(-10, 30, 35, 60, (-5.6, 36.0)), (100, 180, -50, 0, (153.6, -28.6)), (-90, -30, -60, 15, (-34.8, -7.2))],
    )
    def test_of_a_part_contains_known_capes(
        self, west: float, east: float, south: float, north: float, place: tuple[float, float]
    ) -> None:
        points = np.concatenate(geography.coastline(*lonlat(west, east, south, north)))
        assert np.hypot(*(points - place).T).min() < 1.0

    def test_of_a_part_is_small(self) -> None:
        assert len(np.concatenate(geography.coastline(*lonlat(-10, 30, 35, 60)))) < 600

    def test_continues_beyond_the_date_line(self) -> None:
        points = np.concatenate(geography.coastline(*lonlat(0, 360)))
        assert np.hypot(*(points - (288.5, -18.0)).T).min() < 2  # Arica, 71.5 degrees west

    def test_is_absent_from_a_town_and_an_ocean(self) -> None:
        assert geography.coastline(*lonlat(2, 3, 48, 49)) == []
        assert geography.coastline(*lonlat(-135, -110, -45, -35)) == []


class TestGraticule:
    @pytest.mark.parametrize(
        ("lower", "upper", "lines"),
        [
            (-180, 180, [-180, -120, -60, 0, 60, 120, 180]),
            (-90, 90, [-90, -60, -30, 0, 30, 60, 90]),
            (-10, 30, [-10, 0, 10, 20, 30]),
            (2.1, 2.9, [2.2, 2.4, 2.6, 2.8]),
        ],
    )
    def test_has_round_values(self, lower: float, upper: float, lines: list[float]) -> None:
        assert geography.graticule(lower, upper, 6) == lines

    def test_has_the_labels_of_maps(self) -> None:
        assert [geography.meridian(value) for value in (-60, 0, 60, 190)] == ["60°W", "0°", "60°E", "170°W"]
        assert [geography.parallel(value) for value in (-30, 0, 30)] == ["30°S", "0°", "30°N"]


class TestShownValues:
    @pytest.mark.parametrize(
        ("longitude", "shown"), [(187.25, -172.75), (180.0, 180.0), (-180.0, -180.0), (-200.0, 160.0), (541.0, -179.0)]
    )
    def test_have_longitudes_of_a_place_within_180_degrees(self, longitude: float, shown: float) -> None:
        features = Place(-21.0, 170.0, 0.0, -160.0).features
        assert geography.shown_values(features, [-18.0, longitude]) == [-18.0, shown]

    def test_of_other_features_are_unchanged(self) -> None:
        assert geography.shown_values(lonlat(170, 200), [187.25, -18.0]) == [187.25, -18.0]


class TestScale:
    def test_has_the_length_of_its_label(self) -> None:
        across, up = lonlat(-10, 30, 35, 60)
        bar = geography.scale(across, up)
        assert bar is not None
        assert (bar.kilometres, bar.latitude) == (500, 47.5)
        assert bar.text == "500 km at 47.5°N"
        metres = bar.degrees * math.pi / 180 * geography.EARTH_RADIUS_KM * math.cos(math.radians(47.5))
        assert metres == pytest.approx(500)

    @pytest.mark.parametrize("wide", [0.001, 0.1, 3, 77, 360])
    def test_is_at_most_a_fourth_of_the_map(self, wide: float) -> None:
        bar = geography.scale(*lonlat(-wide / 2, wide / 2, 10, 20))
        assert bar is not None
        assert wide / 12 < bar.degrees <= wide / 4

    def test_is_absent_at_a_pole(self) -> None:
        assert geography.scale(*lonlat(0, 1e-4, 89.9999, 90)) is None
