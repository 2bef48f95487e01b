"""Maps of longitude and latitude: recognition of the features, coastlines, graticule and scale.

The coastline is that of Natural Earth (1:110m land, public domain). `tools/coastline.py` writes
`coastline.json`.
"""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sfumato.specs import Feature

COASTLINE = Path(__file__).with_name("coastline.json")
EARTH_RADIUS_KM = 6371.0
KM_PER_DEGREE = EARTH_RADIUS_KM * math.pi / 180
COAST_DEGREES = 15.0  # minimum width of a map with coasts; narrower ones would show coarse polygons

_LONGITUDES = frozenset({"longitude", "lon", "lng", "long"})
_LATITUDES = frozenset({"latitude", "lat"})
_UNITS = frozenset({"", "deg", "degree", "degrees", "°", "degrees_east", "degrees_north"})
_STEPS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0)  # degrees


@dataclass(frozen=True)
class Scale:
    """A scale bar of a map.

    Attributes
    ----------
    kilometres : float
        1, 2 or 5 times a power of ten.
    degrees : float
        Length of the bar in degrees of longitude, at the middle latitude.
    latitude : float
        The middle latitude, in degrees. The scale is valid only there.
    """

    kilometres: float
    degrees: float
    latitude: float

    @property
    def text(self) -> str:
        """Return the text of the bar."""
        return f"{self.kilometres:,g} km at {degrees(round(self.latitude, 1), 'S', 'N')}"


def is_place(across: Feature, up: Feature) -> bool:
    """Return whether the features are declared as longitude and latitude of a place."""
    return (across.coordinate, up.coordinate) == ("longitude", "latitude")


def is_map(across: Feature, up: Feature) -> bool:
    """Return whether names, units and bounds are those of longitude and latitude in degrees, or they are declared."""
    return is_place(across, up) or (
        across.name.strip().lower() in _LONGITUDES
        and up.name.strip().lower() in _LATITUDES
        and {across.unit.strip().lower(), up.unit.strip().lower()} <= _UNITS
        and -360 <= across.lower < across.upper <= 360
        and across.upper - across.lower <= 360
        and -90 <= up.lower < up.upper <= 90
    )


def place_of(features: Sequence[Feature]) -> tuple[int, int] | None:
    """Return the indices of longitude and latitude of a declared place, or None if there is none."""
    found = {feature.coordinate: index for index, feature in enumerate(features) if feature.coordinate}
    return (found["longitude"], found["latitude"]) if len(found) == 2 else None


def errors_in_km(centres: NDArray[np.float64], errors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the standard errors of places as distances: (n,).

    Parameters
    ----------
    centres, errors : ndarray of shape (n, 2)
        Longitudes and latitudes, and their standard errors, in degrees.
    """
    east = errors[:, 0] * np.cos(np.radians(centres[:, 1]))
    return np.asarray(KM_PER_DEGREE * np.hypot(east, errors[:, 1]), dtype=np.float64)


def degrees(value: float, negative: str, positive: str) -> str:
    """Return degrees as on maps, such as 20°S."""
    return f"{abs(value):g}°{negative if value < 0 else positive if value > 0 else ''}"


def turns_of(longitude: float) -> int:
    """Return how many turns a longitude is away from [-180, 180]."""
    return math.ceil((abs(longitude) - 180) / 360) * (1 if longitude > 0 else -1) if abs(longitude) > 180 else 0


def turn(longitude: float) -> float:
    """Return a longitude in [-180, 180]."""
    return longitude - 360 * turns_of(longitude)


def shown_values(features: Sequence[Feature], values: Iterable[float]) -> list[float]:
    """Return one value of each feature as texts show it: the longitude of a place is in [-180, 180]."""
    return [
        turn(value) if feature.coordinate == "longitude" else value
        for feature, value in zip(features, values, strict=True)
    ]


def meridian(value: float) -> str:
    """Return a longitude as on maps; 190°E is 170°W."""
    return degrees(turn(value), "W", "E")


def parallel(value: float) -> str:
    """Return a latitude as on maps."""
    return degrees(value, "S", "N")


def middle_latitude(up: Feature) -> float:
    """Return the latitude of the scale, in degrees."""
    return (up.lower + up.upper) / 2


def graticule(lower: float, upper: float, most: int) -> list[float]:
    """Return the positions of meridians or parallels: round multiples, at most `most` + 1."""
    step = next((each for each in _STEPS if (upper - lower) / each <= most), _STEPS[-1])
    return [round(index * step, 6) for index in range(math.ceil(lower / step), math.floor(upper / step) + 1)]


def scale(across: Feature, up: Feature) -> Scale | None:
    """Return a bar of at most a quarter of a map's width, or None at a pole, where longitudes have no length."""
    latitude = middle_latitude(up)
    km_per_degree = KM_PER_DEGREE * math.cos(math.radians(latitude))
    longest = (across.upper - across.lower) / 4 * km_per_degree
    if longest < 1e-3:
        return None
    power = 10.0 ** math.floor(math.log10(longest))
    kilometres = max(factor * power for factor in (1, 2, 5) if factor * power <= longest)
    return Scale(kilometres, kilometres / km_per_degree, latitude)


def coastline(across: Feature, up: Feature) -> list[NDArray[np.float64]]:
    """Return the coasts within the bounds, or none on narrow maps, for which they are too coarse.

    Returns
    -------
    list of ndarray of shape (n, 2), float64
        Lines of longitude and latitude in degrees. Their ends can lie outside the bounds.
    """
    if across.upper - across.lower < COAST_DEGREES:
        return []
    found = []
    for turn in (-360.0, 0.0, 360.0):  # bounds such as 0 to 360 contain coasts that are shifted by a turn
        for line in world():
            moved = line + np.array([turn, 0.0])
            low, high = np.minimum(moved[1:], moved[:-1]), np.maximum(moved[1:], moved[:-1])
            inside = (high >= (across.lower, up.lower)) & (low <= (across.upper, up.upper))
            found += _runs(moved, np.asarray(inside.all(axis=1)))
    return found


def _runs(line: NDArray[np.float64], kept: NDArray[np.bool_]) -> list[NDArray[np.float64]]:
    """Return the parts of a line with kept segments."""
    steps = np.diff(np.pad(kept.astype(np.int8), 1))
    begins, ends = np.flatnonzero(steps == 1), np.flatnonzero(steps == -1)
    return [line[begin : end + 1] for begin, end in zip(begins, ends, strict=True)]


@lru_cache(maxsize=1)
def world() -> Sequence[NDArray[np.float64]]:
    """Return all coasts, in degrees.

    Rings are opened along the 180th meridian and along the poles, which are edges of the map and not coasts.
    """
    lines = []
    for flat in json.loads(COASTLINE.read_text(encoding="utf-8"))["rings"]:
        ring = np.array(flat, dtype=np.float64).reshape(-1, 2) / 10
        at_edge = np.abs(ring) >= (179.9, 89.9)
        along = (at_edge[1:] & at_edge[:-1]).any(axis=1)
        crosses = np.abs(np.diff(ring[:, 0])) > 180
        lines += [part for part in np.split(ring, np.flatnonzero(along | crosses) + 1) if len(part) > 1]
    for line in lines:
        line.flags.writeable = False
    return tuple(lines)
