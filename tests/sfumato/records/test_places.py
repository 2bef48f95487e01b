"""Test places on Earth: equal areas of cells, longitudes over the antimeridian, and what is refused."""

import math

import numpy as np
import pytest

from sfumato.errors import InvalidPoint, InvalidSpec
from sfumato.records.encodings import (
    cells,
    edges_of,
    flatten,
    scale,
    scale_errors,
    scale_many,
    unscale_errors,
    unscale_many,
)
from sfumato.records.inputs import to_record, to_values
from sfumato.records.outside import are_outside, outside_features
from sfumato.records.places import sine, sines, turn_longitude
from sfumato.specs import (
    Feature,
    Place,
    check_place,
    features_from_wire,
    to_features,
    to_wire,
)

NORWAY = Place(58.0, 5.0, 71.2, 31.2)
FIJI = Place(-21.0, 177.0, -12.0, -178.0)


class TestSine:
    def test_is_that_of_mathematics_and_ascends(self) -> None:
        latitudes = np.linspace(-90, 90, 100_001)
        found = sines(latitudes)
        assert np.abs(found - np.sin(np.radians(latitudes))).max() < 4e-16
        assert (np.diff(found) > 0).all()

    def test_is_the_same_for_one_and_many(self) -> None:
        latitudes = np.random.default_rng(1).uniform(-90, 90, 2000)
        assert [sine(each) for each in latitudes.tolist()] == sines(latitudes).tolist()


class TestScale:
    @pytest.mark.parametrize("place", [NORWAY, FIJI, Place()])
    def test_cells_have_equal_areas(self, place: Place) -> None:
        latitude, longitude = place.features
        south_north, west_east = edges_of(latitude, 12), edges_of(longitude, 8)
        areas = np.diff(np.sin(np.radians(south_north)))[:, None] * np.diff(west_east)
        assert areas.max() / areas.min() == pytest.approx(1, abs=1e-9)
        middles = np.column_stack([(south_north[:-1] + south_north[1:]) / 2, np.full(12, west_east[3] + 0.1)])
        assert cells(scale_many(place.features, middles), [12, 8]).tolist() == [[row, 3] for row in range(12)]

    def test_people_spread_over_norway_are_spread_over_the_range(self) -> None:
        south, north = np.sin(np.radians([58.0, 71.2]))
        rng = np.random.default_rng(2)
        people = np.column_stack(
            [np.degrees(np.arcsin(rng.uniform(south, north, 200_000))), rng.uniform(5.0, 31.2, 200_000)]
        )
        shares = np.bincount(cells(scale_many(NORWAY.features, people), [10, 1])[:, 0]) / 200_000
        assert shares == pytest.approx(0.1, rel=0.02 + 4 * 0.0067 / 2)

    @pytest.mark.parametrize("place", [NORWAY, FIJI, Place()])
    def test_one_and_many_records_are_scaled_alike_and_back(self, place: Place) -> None:
        latitude, longitude = place.features
        rng = np.random.default_rng(3)
        records = np.column_stack([rng.uniform(each.lower, each.upper, 200) for each in (latitude, longitude)])
        points = scale_many(place.features, records)
        assert points.tolist() == [scale(place.features, each) for each in records.tolist()]
        assert unscale_many(place.features, points) == pytest.approx(records, abs=1e-6)
        assert flatten(latitude, records[:, 0]) == pytest.approx(
            latitude.lower + points[:, 0] * (latitude.upper - latitude.lower), abs=1e-9
        )

    def test_the_upper_bounds_are_one(self) -> None:
        for place in (NORWAY, FIJI):
            assert scale(place.features, [each.upper for each in place.features]) == [1.0, 1.0]
            assert scale(place.features, [each.lower for each in place.features]) == [0.0, 0.0]

    def test_errors_are_those_of_small_steps(self) -> None:
        values = np.array([[60.0, 10.0], [70.0, 30.0]])
        errors = np.full((2, 2), 1e-4)
        found = unscale_errors(NORWAY.features, values, errors)
        points = scale_many(NORWAY.features, values)
        steps = unscale_many(NORWAY.features, points + 1e-4) - values
        assert found == pytest.approx(steps, rel=1e-3)
        assert scale_errors(NORWAY.features, values, found) == pytest.approx(errors)

    def test_an_error_at_the_pole_is_finite(self) -> None:
        (found,) = unscale_errors(Place().features, np.array([[90.0, 0.0]]), np.full((1, 2), 0.01))
        assert np.isfinite(found).all()


class TestLongitude:
    def test_is_moved_by_whole_turns_to_the_bounds(self) -> None:
        longitude = FIJI.features[1]
        assert (longitude.lower, longitude.upper) == (177.0, 182.0)
        assert [turn_longitude(longitude, each) for each in (-179.0, 181.0, 179.5)] == [181.0, 181.0, 179.5]
        assert to_record(FIJI.features, [-15.0, -179.0]) == [-15.0, 181.0]
        assert scale(FIJI.features, {"longitude": -179.0, "latitude": -15.0})[1] == pytest.approx(0.8)

    def test_beyond_a_region_is_on_the_side_of_the_nearest_bound(self) -> None:
        assert scale(NORWAY.features, [60.0, -10.0])[1] == 0
        assert scale(NORWAY.features, [60.0, 170.0])[1] == 1
        assert outside_features(NORWAY.features, [60.0, -10.0]) == ("longitude",)

    def test_of_a_whole_turn_is_a_circle_without_an_outside(self) -> None:
        world = Place().features
        assert world[1].periodic
        assert scale(world, [0.0, 181.0]) == scale(world, [0.0, -179.0])
        assert outside_features(world, [0.0, 181.0]) == ()
        values = to_values(world, [[0.0, 181.0], [10.0, -360.0]])
        assert values.tolist() == [[0.0, -179.0], [10.0, 0.0]]
        assert not are_outside(world, values).any()

    def test_does_not_change_the_array_of_the_caller(self) -> None:
        records = np.array([[0.0, 200.0]])
        to_values(Place().features, records)
        assert records[0, 1] == 200.0


class TestRefusals:
    @pytest.mark.parametrize(
        ("record", "message"),
        [
            ([90.1, 10.0], "latitude must be from -90 to 90 degrees.*wrong order"),
            ([139.7, 35.7], "latitude must be from -90 to 90"),
            ([60.0, 999.0], "longitude must be from -360 to 360"),
            ([60.0, -9999.0], "longitude must be from -360 to 360"),
        ],
    )
    def test_degrees_that_are_no_place(self, record: list[float], message: str) -> None:
        with pytest.raises(InvalidPoint, match=message) as raised:
            to_record(NORWAY.features, record)
        assert str(record[0]) not in str(raised.value)
        with pytest.raises(InvalidPoint, match=f"record 2 .counted from 1.: {message}"):
            to_values(NORWAY.features, [[60.0, 10.0], record])

    @pytest.mark.parametrize(
        ("bounds", "message"),
        [
            ((58.0, 5.0, 91.0, 31.2), "from -90 to 90 degrees"),
            ((30.0, 139.0, 140.0, 46.0), "wrong order"),
            ((71.2, 5.0, 58.0, 31.2), "lower must lie below upper"),
            ((0.0, -400.0, 10.0, 10.0), "at most 360 degrees apart"),
            ((0.0, math.nan, 10.0, 10.0), "finite"),
        ],
    )
    def test_bounds_that_are_no_region(self, bounds: tuple[float, float, float, float], message: str) -> None:
        with pytest.raises(InvalidSpec, match=message):
            Place(*bounds)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"coordinate": "height"}, "longitude or latitude"),
            ({"unit": "rad", "coordinate": "longitude"}, "unit degrees"),
            ({"coordinate": "latitude", "periodic": True}, "poles"),
            ({"coordinate": "longitude", "periodic": True}, "360 degrees apart, not 10"),
        ],
    )
    def test_features_that_are_no_part_of_a_place(self, changes: dict[str, object], message: str) -> None:
        with pytest.raises(InvalidSpec, match=message):
            Feature("a", 0, 10, **{"unit": "deg", **changes})  # type: ignore[arg-type]

    def test_half_a_place(self) -> None:
        latitude, longitude = NORWAY.features
        for features in ([latitude], [longitude, Feature("x", 0, 1)], [latitude, latitude, longitude]):
            with pytest.raises(InvalidSpec, match="one latitude and one longitude"):
                check_place(features)
        check_place([])
        check_place([longitude, Feature("x", 0, 1), latitude])


class TestWire:
    def test_a_place_is_two_features(self) -> None:
        features = to_features([NORWAY, ("hour", 0, 24, "h", True)])
        assert [each.name for each in features] == ["latitude", "longitude", "hour"]
        assert [each.shape for each in features] == ["latitude", "longitude", "circle"]
        assert to_features(FIJI) == FIJI.features
        wire = [to_wire(each) for each in features]
        assert [each.get("coordinate") for each in wire] == ["latitude", "longitude", None]
        assert features_from_wire(wire) == features
