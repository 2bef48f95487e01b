"""Specification of a round, with its features and its participation interval."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sfumato.errors import InvalidSpec
from sfumato.limits import MAX_RECORD_FEATURES
from sfumato.mechanisms import DiscreteLaplaceMechanism, Mechanism, design
from sfumato.privacy.accounting import DRAW_SPAN
from sfumato.specs.attributes import DEFAULT_BINS, Attribute, Numeric
from sfumato.specs.encodings import (
    CentroidSignEncoding,
    Encoding,
    LatticeEncoding,
    attributes_of,
    require_circles,
)
from sfumato.specs.phases import PhaseEncoding
from sfumato.validation import is_int, require, require_int, show, to_finite

SPEC_VERSION = 1
MAX_NORM = 1e300  # largest norm that an embedding may declare

# Treatment of a record outside of the bounds on a device: counted as outside, or moved to the bounds.
RoundBounds = Literal["count", "clip"]

# Part of a place on Earth that a feature is.
Coordinate = Literal["longitude", "latitude"]
_NAMES_OF_DEGREES = frozenset(("", "°", "deg", "degree", "degrees", "degrees_east", "degrees_north"))

# Full turns of a circle by unit, without white space and in lower case. Directions have one, axes without a sense half.
_TURNS: dict[str, tuple[float, ...]] = {
    **dict.fromkeys(("°", "deg", "degree", "degrees", "degrees_east", "degrees_north"), (360.0, 180.0)),
    **dict.fromkeys(("rad", "radian", "radians"), (2 * math.pi, math.pi)),
    **dict.fromkeys(("h", "hour", "hours"), (12.0, 24.0, 168.0)),
    **dict.fromkeys(("min", "minute", "minutes"), (60.0, 1440.0, 10080.0)),
}


@dataclass(frozen=True, slots=True)
class Feature:
    """One feature of a record, with its public bounds in its own unit.

    Parameters
    ----------
    name : str
        1 to 64 characters.
    lower, upper : float
        The public bounds.
    unit : str
        As text, at most 64 characters.
    periodic : bool
        Whether the values lie on a circle, such as longitudes, hours of the day, weekdays, angles and hues. The bounds
        are one period: `upper` is the same place as `lower`. For a unit of degrees, radians, hours or minutes, the
        range must be a full turn in this unit.
    coordinate : 'longitude' or 'latitude', optional
        The part of a place on Earth that the feature is, in degrees; see `Place`. Equal areas have equal shares of the
        scaled range: a latitude is scaled by its sine. Longitudes are moved by whole turns towards the bounds. An
        `upper` longitude west of `lower`, such as -170 after 170, means the same meridian a turn further east. With
        bounds 360 degrees apart, a longitude is periodic.

    Raises
    ------
    InvalidSpec

    Examples
    --------
    >>> from sfumato import Feature
    >>> Feature("hour", 0, 24, "h", periodic=True).period
    24.0
    """

    name: str
    lower: float
    upper: float
    unit: str = ""
    periodic: bool = False
    coordinate: Coordinate | None = None

    def __post_init__(self) -> None:
        require(
            isinstance(self.name, str) and 0 < len(self.name) <= 64,
            "the name of a feature must have 1 to 64 characters",
        )
        require(
            isinstance(self.unit, str) and len(self.unit) <= 64,
            f"{self.name}: the unit must be text of at most 64 characters",
        )
        for bound in ("lower", "upper"):  # convert to floats, so that all code scales with the same numbers
            object.__setattr__(self, bound, to_finite(getattr(self, bound), f"{self.name}: {bound}"))
        if self.coordinate is not None:
            self._check_coordinate()
        require(self.lower < self.upper, f"{self.name}: lower must lie below upper: {self.lower:g} and {self.upper:g}")
        require(
            math.isfinite(self.upper - self.lower),
            f"{self.name}: the range from {self.lower:g} to {self.upper:g} must be finite",
        )
        require(isinstance(self.periodic, bool), f"{self.name}: periodic must be true or false")
        turns = _TURNS.get(self.unit.strip().lower(), ()) if self.periodic else ()
        require(
            not turns or any(math.isclose(self.period, turn, rel_tol=1e-9) for turn in turns),
            f"{self.name}: the bounds of a periodic feature must be one period, {' or '.join(f'{x:g}' for x in turns)} "
            f"{self.unit} apart, not {self.period:g}",
        )

    def _check_coordinate(self) -> None:
        require(
            self.coordinate in ("longitude", "latitude"),
            f"{self.name}: coordinate must be longitude or latitude, not {show(self.coordinate)}",
        )
        require(
            self.unit.strip().lower() in _NAMES_OF_DEGREES,
            f"{self.name}: a {self.coordinate} must have the unit degrees, not {self.unit!r}",
        )
        if self.coordinate == "latitude":
            require(not self.periodic, f"{self.name}: a latitude must not be periodic: it ends at the poles")
            require(
                self.lower >= -90 and self.upper <= 90,
                f"{self.name}: the bounds of a latitude must be from -90 to 90 degrees, not {self.lower:g} to "
                f"{self.upper:g}. Latitude and longitude may be in the wrong order.",
            )
            return
        if -180 <= self.upper <= self.lower <= 180:
            object.__setattr__(self, "upper", self.upper + 360)
        require(
            self.lower >= -360 and self.upper <= 540 and self.upper - self.lower <= 360,
            f"{self.name}: the bounds of a longitude must be at most 360 degrees apart, within -360 to 540, not "
            f"{self.lower:g} to {self.upper:g}",
        )
        is_turn = self.period == 360
        require(
            not self.periodic or is_turn,
            f"{self.name}: the bounds of a periodic longitude must be 360 degrees apart, not {self.period:g}",
        )
        object.__setattr__(self, "periodic", is_turn)

    @property
    def shape(self) -> str:
        """Return the shape of the range: `line`, `circle`, `longitude` or `latitude`."""
        return self.coordinate or ("circle" if self.periodic else "line")

    @property
    def period(self) -> float:
        """Return the range between the bounds, which is the period of a periodic feature."""
        return self.upper - self.lower


def circles_of(features: Sequence[Feature]) -> tuple[int, ...]:
    """Return the indices of the periodic features, ascending."""
    return tuple(place for place, feature in enumerate(features) if feature.periodic)


def endless_of(features: Sequence[Feature]) -> tuple[int, ...]:
    """Return the indices of features with no values beyond their bounds: circles, and latitudes from pole to pole."""
    ends = ("latitude", -90.0, 90.0)
    return tuple(
        place
        for place, each in enumerate(features)
        if each.periodic or (each.coordinate, each.lower, each.upper) == ends
    )


def bin_feature(feature: Feature) -> Numeric:
    """Return a feature as an attribute of eight equal bins between its bounds."""
    step = (feature.upper - feature.lower) / DEFAULT_BINS
    edges = [feature.lower + place * step for place in range(DEFAULT_BINS)]
    return Numeric(feature.name, (*edges, feature.upper), unit=feature.unit)


@dataclass(frozen=True, slots=True)
class Place:
    """A latitude and a longitude in degrees within a region of the Earth, as two features of a dataset.

    Parameters
    ----------
    south, west, north, east : float
        Bounds of the region. It crosses the antimeridian if `west` is greater than `east`. The default is the Earth.

    Examples
    --------
    >>> from sfumato import Place
    >>> norway = Place(58.0, 5.0, 71.2, 31.2)
    >>> [(each.name, each.lower, each.upper) for each in norway.features]
    [('latitude', 58.0, 71.2), ('longitude', 5.0, 31.2)]
    >>> Place(-21.0, 177.0, -12.0, -178.0).features[1].upper
    182.0
    """

    south: float = -90.0
    west: float = -180.0
    north: float = 90.0
    east: float = 180.0

    def __post_init__(self) -> None:
        _ = self.features  # validates the bounds

    @property
    def features(self) -> tuple[Feature, Feature]:
        """Return the features `latitude` and `longitude`."""
        return (
            Feature("latitude", self.south, self.north, "degrees", coordinate="latitude"),
            Feature("longitude", self.west, self.east, "degrees", coordinate="longitude"),
        )


def check_place(features: Sequence[Feature]) -> None:
    """Raise InvalidSpec unless the features have one latitude and one longitude of a place, or none of both."""
    found = [feature.coordinate for feature in features if feature.coordinate is not None]
    require(
        len(found) == len(set(found)) != 1,
        f"a place must have one latitude and one longitude; the features have {found.count('latitude')} and "
        f"{found.count('longitude')}",
    )


@dataclass(frozen=True, slots=True)
class Embedding:
    """Vectors in an L2 ball around the origin, as the public bound of all features at once.

    Parameters
    ----------
    dimensions : int
        Number of features, 1 to 1,536.
    norm : float
        Largest L2 norm of a vector. Positive, at most 1e300.

    Examples
    --------
    >>> from sfumato import Embedding
    >>> Embedding(768).features[0]
    Feature(name='x0', lower=-1.0, upper=1.0, unit='', periodic=False, coordinate=None)
    """

    dimensions: int
    norm: float = 1.0

    def __post_init__(self) -> None:
        most = MAX_RECORD_FEATURES
        require_int(self.dimensions, 1, most, "dimensions")
        object.__setattr__(self, "norm", to_finite(self.norm, "norm"))
        require(0 < self.norm <= MAX_NORM, f"norm must be positive and at most {MAX_NORM:g}, not {self.norm:g}")

    @property
    def features(self) -> tuple[Feature, ...]:
        """Return the features `x0`, `x1`, …, each with the bounds of the box around the ball."""
        return tuple(Feature(f"x{index}", -self.norm, self.norm) for index in range(self.dimensions))


@dataclass(frozen=True, slots=True)
class Participation:
    """The interval [lo, hi) of a device's secret 64-bit draw that answers a round."""

    lo: int = 0
    hi: int = DRAW_SPAN

    def __post_init__(self) -> None:
        require(is_int(self.lo) and is_int(self.hi), "lo and hi of a participation must be integers")
        require(0 <= self.lo < self.hi <= DRAW_SPAN, "lo and hi of a participation must satisfy 0 <= lo < hi <= 2**64")

    @classmethod
    def between(cls, lo: float, hi: float) -> "Participation":
        """Return the interval of the fractions [lo, hi) of all draws.

        Examples
        --------
        >>> from sfumato import Participation
        >>> Participation.between(0, 0.5).hi == 2**63
        True
        """
        return cls(math.floor(lo * DRAW_SPAN), math.floor(hi * DRAW_SPAN))

    def holds(self, draw: int) -> bool:
        """Return whether a device with this draw participates."""
        return self.lo <= draw < self.hi


@dataclass(frozen=True, slots=True)
class RoundSpec:
    """The specification of a round: all that a device needs to answer it. It is equal for all devices.

    With `out_of_bounds` "count", a record with a value outside of its bounds is reported as outside, perturbed like
    all others; see `sfumato.records.outside`. With "clip", each value is moved to its nearest bound, or by whole
    periods if its feature is periodic.
    """

    features: tuple[Feature, ...]
    encoding: Encoding
    mechanism: Mechanism
    participation: Participation = Participation()
    out_of_bounds: RoundBounds = "clip"

    def __post_init__(self) -> None:
        require(self.out_of_bounds in ("count", "clip"), "out_of_bounds must be count or clip")
        require(
            len(self.features) == self.encoding.n_features,
            f"the encoding must be for {len(self.features)} features, not {self.encoding.n_features}",
        )
        require_circles(self.encoding, circles_of(self.features))
        own = set(self.attributes)
        plain = {feature.name for feature in self.features if not feature.periodic}
        require(
            all(
                each in own or (isinstance(each, Numeric) and each.name in plain)
                for each in attributes_of(self.encoding)
            ),
            "an attribute with the name of a feature must be numeric, and the feature must not be periodic",
        )
        lattice = (
            (self.encoding.n_features, self.encoding.steps) if isinstance(self.encoding, LatticeEncoding) else None
        )
        require(
            lattice == self.mechanism.lattice,
            "discrete_laplace must be over the lattice of the encoding, and a lattice needs it",
        )
        require(
            self.n_symbols == self.mechanism.n_symbols,
            f"the mechanism must be for {self.n_symbols} symbols, as the encoding: {self.mechanism.n_symbols}",
        )
        if lattice is not None:
            has_mark = self.mechanism.n_numbers > self.encoding.n_features
            require(
                has_mark == self.counts_outside,
                "vectors must have a mark if and only if the round counts records outside",
            )

    @property
    def attributes(self) -> tuple[Attribute, ...]:
        """Return the attributes that the record of the round has in addition to its features."""
        names = {each.name for each in self.features}
        return tuple(each for each in attributes_of(self.encoding) if each.name not in names)

    @property
    def counts_outside(self) -> bool:
        """Return whether records outside of the bounds are reported as such."""
        return self.out_of_bounds == "count"

    @property
    def has_outside_symbol(self) -> bool:
        """Return whether one more symbol, the last one, stands for records outside."""
        return self.counts_outside and adds_symbol(self.encoding)

    @property
    def n_symbols(self) -> int:
        """Return the number of symbols that the mechanism perturbs."""
        return self.encoding.n_symbols + self.has_outside_symbol


def adds_symbol(encoding: Encoding) -> bool:
    """Return whether records outside have a symbol of their own: in all encodings except phases, signs and lattices.

    Phases and signs are symmetric: a uniformly random one adds nothing to any estimate. Vectors have a mark.
    """
    return not isinstance(encoding, PhaseEncoding | CentroidSignEncoding | LatticeEncoding)


def design_for(encoding: Encoding, kind: str, epsilon_nano: int) -> Mechanism:
    """Return the mechanism of a kind for an encoding's symbols with a cost of at most `epsilon_nano`.

    Parameters
    ----------
    encoding : Encoding
    kind : str
        As for `sfumato.mechanisms.design`. For a lattice 'discrete_laplace', which 'auto' also selects.
    epsilon_nano : int

    Raises
    ------
    InvalidSpec
        As for `design`, or the kind does not perturb the encoding's symbols.
    """
    if isinstance(encoding, LatticeEncoding) != (kind == DiscreteLaplaceMechanism.type) and kind != "auto":
        raise InvalidSpec(
            f"{kind} cannot perturb {encoding.type}: discrete_laplace is for lattices, and the others for symbols"
        )
    if isinstance(encoding, LatticeEncoding):
        return DiscreteLaplaceMechanism.design(encoding.n_features, encoding.steps, epsilon_nano)
    return design(kind, encoding.n_symbols, epsilon_nano)
