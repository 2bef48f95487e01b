"""Places on Earth: latitudes on a scale of equal areas, and longitudes that are moved by whole turns.

A region of the cylindrical equal-area projection (Lambert 1772) has the area of its place on Earth: the longitude is
linear, and the latitude is scaled by its sine. The sine is a polynomial with a fixed order of operations. So devices in
all languages compute the same double, which no standard library promises for its own sine.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import InvalidPoint
from sfumato.specs import Coordinate, Feature

# Coefficients of sin(90° x) in odd powers of x, ascending: (π/2)^(2k+1) / (2k+1)!, with alternating signs.
SINE_COEFFICIENTS = (
    1.5707963267948966,
    -0.6459640975062463,
    0.07969262624616703,
    -0.004681754135318688,
    0.00016044118478735983,
    -3.598843235212085e-06,
    5.692172921967927e-08,
    -6.688035109811468e-10,
    6.0669357311061955e-12,
    -4.377065467313742e-14,
    2.571422892860474e-16,
)

# Largest degrees that are a place. Numbers beyond them are another unit, another order, or stand for a missing value.
LIMITS: dict[Coordinate, int] = {"latitude": 90, "longitude": 360}


def sine(latitude: float) -> float:
    """Return the sine of a latitude in [-90, 90] degrees, within 4e-16, and equal on all devices."""
    share = latitude / 90
    square = share * share
    total = SINE_COEFFICIENTS[-1]
    for coefficient in reversed(SINE_COEFFICIENTS[:-1]):
        total = total * square + coefficient
    return total * share


def sines(latitudes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sines of latitudes in [-90, 90] degrees as `sine` does."""
    shares = latitudes / 90
    squares = shares * shares
    totals = np.full_like(shares, SINE_COEFFICIENTS[-1])
    for coefficient in reversed(SINE_COEFFICIENTS[:-1]):
        totals = totals * squares + coefficient
    return np.asarray(totals * shares, dtype=np.float64)


def latitudes_of(sines_of: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the latitudes in degrees of sines."""
    return np.asarray(np.degrees(np.arcsin(np.clip(sines_of, -1.0, 1.0))), dtype=np.float64)


def turn_longitude(feature: Feature, value: float) -> float:
    """Return a longitude, moved by whole turns to within 180 degrees of the middle of the bounds.

    A value beyond the bounds is then on the side of its nearest bound.
    """
    return value - 360 * math.floor((value - ((feature.lower + feature.upper) / 2 - 180)) / 360)


def to_place(features: Sequence[Feature], values: list[float]) -> list[float]:
    """Return one record with the longitude of its place moved. Raise InvalidPoint for degrees beyond `LIMITS`."""
    for index, feature in enumerate(features):
        if feature.coordinate is not None and abs(values[index]) > LIMITS[feature.coordinate]:
            raise InvalidPoint(describe_limits(feature))
        if feature.coordinate == "longitude":
            values[index] = turn_longitude(feature, values[index])
    return values


def to_places(features: Sequence[Feature], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return records of shape (n, d) as `to_place` does; records without a place are returned unchanged."""
    beyond = are_beyond(features, values)
    if beyond is not None and beyond.any():
        row, column = np.argwhere(beyond)[0].tolist()
        raise InvalidPoint(f"record {row + 1} (counted from 1): {describe_limits(features[column])}")
    return turn_longitudes(features, values)


def are_beyond(features: Sequence[Feature], values: NDArray[np.float64]) -> NDArray[np.bool_] | None:
    """Return which values of shape (n, d) are degrees beyond `LIMITS`, or None without a place."""
    if not any(feature.coordinate for feature in features):
        return None
    limits = [np.inf if feature.coordinate is None else LIMITS[feature.coordinate] for feature in features]
    return np.asarray(np.abs(values) > limits, dtype=np.bool_)


def turn_longitudes(features: Sequence[Feature], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return records of shape (n, d) with longitudes of a place moved as by `turn_longitude`."""
    moved = values
    for index, feature in enumerate(features):
        if feature.coordinate == "longitude":
            moved = moved.copy() if moved is values else moved
            start = (feature.lower + feature.upper) / 2 - 180
            with np.errstate(invalid="ignore"):  # values that are not finite are refused later
                moved[:, index] -= 360 * np.floor((moved[:, index] - start) / 360)
    return moved


def describe_limits(feature: Feature) -> str:
    """Return what the degrees of a place must be."""
    most = LIMITS[feature.coordinate or "latitude"]
    order = ". Latitude and longitude may be in the wrong order: pass them by name" if most == 90 else ""
    return f"{feature.name} must be from -{most} to {most} degrees{order}"
