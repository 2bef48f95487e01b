"""Conversion of specifications to and from JSON values. 64-bit integers are decimal strings."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, cast, get_args

from sfumato.errors import InvalidSpec
from sfumato.limits import MAX_RECORD_FEATURES
from sfumato.mechanisms import MECHANISMS, Mechanism
from sfumato.specs.algorithms import Algorithm, Auto, ShiftedGrid
from sfumato.specs.attributes import Attribute, attribute_to_wire
from sfumato.specs.central import CentralAlgorithm, DensityMap, Profile
from sfumato.specs.encodings import Encoding
from sfumato.specs.rounds import (
    SPEC_VERSION,
    Embedding,
    Feature,
    Participation,
    Place,
    RoundBounds,
    RoundSpec,
    check_place,
)
from sfumato.validation import is_int, parameters_of, require, show, times

ENCODINGS: dict[str, type[Encoding]] = {kind.type: kind for kind in get_args(Encoding)}

AnyAlgorithm = Algorithm | CentralAlgorithm  # local or central; `Auto` is both
SeriesAlgorithm = ShiftedGrid | DensityMap  # over reports, and over records
AnyJob = AnyAlgorithm | Profile  # parameters of a job: an algorithm that finds clusters, or their profile

LOCAL_ALGORITHMS: dict[str, type[Algorithm]] = {kind.type: kind for kind in get_args(Algorithm)}
CHOSEN_ALGORITHMS: dict[str, type[CentralAlgorithm]] = {kind.type: kind for kind in get_args(CentralAlgorithm)}
CENTRAL_ALGORITHMS: dict[str, type[CentralAlgorithm | Auto]] = {**CHOSEN_ALGORITHMS, Auto.type: Auto}
ALGORITHMS: dict[str, type[AnyAlgorithm]] = {**LOCAL_ALGORITHMS, **CENTRAL_ALGORITHMS}
JOB_TYPES: dict[str, type[AnyJob]] = {**ALGORITHMS, Profile.type: Profile}

# members that rounds of earlier versions lack, with the value that they then have; written only if it differs
_LATER_MEMBERS: dict[str, Any] = {
    "out_of_bounds": "clip",
    "mark": 0,
    "periodic": False,
    "circles": (),
    "attributes": (),
    "characters": (),
    "coordinate": None,
}
_MISSING = object()

# 64-bit members, which are decimal strings in JSON because its numbers are exact up to 2**53 only
_WORD_FIELDS = {"lo", "hi"} | {
    name for kind in MECHANISMS.values() for name, each in parameters_of(kind).items() if each.is_word
}


def to_wire(spec: Any) -> dict[str, Any]:
    """Return a specification as JSON values, with the member `type` if it belongs to a union."""
    out: dict[str, Any] = {}
    if hasattr(spec, "type"):
        out["type"] = spec.type
    if isinstance(spec, RoundSpec):
        out["version"] = SPEC_VERSION
    for field in fields(spec):
        value = getattr(spec, field.name)
        if _LATER_MEMBERS.get(field.name, _MISSING) == value:
            continue
        if field.name == "features":
            value = [to_wire(feature) for feature in value]
        elif hasattr(value, "__dataclass_fields__"):
            value = to_wire(value)
        elif isinstance(value, tuple):
            value = _lists(value)
        elif field.name in _WORD_FIELDS:
            value = str(value)
        out[field.name] = value
    return out


def _lists(value: tuple[Any, ...]) -> list[Any]:
    return [
        _lists(item) if isinstance(item, tuple) else attribute_to_wire(item) if isinstance(item, Attribute) else item
        for item in value
    ]


def _tuples(value: list[Any]) -> tuple[Any, ...]:
    return tuple(_tuples(item) if isinstance(item, list) else item for item in value)


def _build(cls: type[Any], wire: object) -> Any:
    """Return an instance of `cls` from JSON values. Raise InvalidSpec for unknown members."""
    require(isinstance(wire, Mapping), f"{cls.__name__} must be an object, not {show(wire)}")
    wire = cast(Mapping[str, Any], wire)
    names = {field.name for field in fields(cls)}
    unknown = set(wire) - names
    require(
        not unknown,
        f"{cls.__name__}: unknown {', '.join(sorted(map(str, unknown)))}: "
        f"use {', '.join(field.name for field in fields(cls))}",
    )
    values: dict[str, Any] = {}
    for name in names & set(wire):
        value = wire[name]
        if name in _WORD_FIELDS:
            require(
                isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 20,
                f"{cls.__name__}: {name} must be a string of at most 20 decimal digits",
            )
            value = int(value)
        elif isinstance(value, list):
            value = _tuples(value)
        values[name] = value
    try:
        return cls(**values)
    except TypeError:
        raise InvalidSpec(f"{cls.__name__}: a field is missing or of the wrong type") from None


def _tagged(kinds: Mapping[str, type[Any]], what: str, wire: object) -> Any:
    require(isinstance(wire, Mapping), f"the {what} must be an object, not {show(wire)}")
    wire = cast(Mapping[str, Any], wire)
    tag = wire.get("type")
    require(isinstance(tag, str) and tag in kinds, f"unknown {what}; this version knows {', '.join(kinds)}")
    return _build(kinds[cast(str, tag)], {k: v for k, v in wire.items() if k != "type"})


def encoding_from_wire(wire: object) -> Encoding:
    """Return an encoding from JSON values. Raise InvalidSpec."""
    return cast(Encoding, _tagged(ENCODINGS, "encoding", wire))


def mechanism_from_wire(wire: object) -> Mechanism:
    """Return a mechanism from JSON values. Raise InvalidSpec."""
    return cast(Mechanism, _tagged(MECHANISMS, "mechanism", wire))


def job_from_wire(wire: object) -> AnyJob:
    """Return the parameters of an algorithm or of a profile from JSON values. Raise InvalidSpec."""
    return cast(AnyJob, _tagged(JOB_TYPES, "algorithm", wire))


def profile_from_wire(wire: object) -> Profile:
    """Return the parameters of a profile from JSON values. Raise InvalidSpec."""
    return cast(Profile, _tagged({Profile.type: Profile}, "profile", wire))


def to_job(given: object) -> AnyJob:
    """Return the parameters of an algorithm or a profile, given as such or as a mapping. Raise InvalidSpec."""
    return cast(AnyJob, _to_parameters(JOB_TYPES, given))


def to_algorithm(given: object) -> AnyAlgorithm:
    """Return the parameters of an algorithm, given as such or as a mapping with a type. Raise InvalidSpec."""
    return cast(AnyAlgorithm, _to_parameters(ALGORITHMS, given))


def to_series_algorithm(given: object) -> SeriesAlgorithm:
    """Return the parameters of the algorithm of a series, given as such or as a mapping. Raise InvalidSpec."""
    algorithm = to_algorithm(given)
    if not isinstance(algorithm, SeriesAlgorithm):
        raise InvalidSpec(
            f"a series must have an algorithm whose windows share one grid, not {algorithm.type}: use shifted_grid "
            "over reports, or density_map over records"
        )
    return algorithm


def _to_parameters(kinds: Mapping[str, type[Any]], given: object) -> Any:
    if isinstance(given, Mapping):
        return _tagged(kinds, "algorithm", given)
    require(
        type(given) in kinds.values(),
        "algorithm must be parameters such as PrivateKmeans(epsilon=1, clusters=4), or a mapping such as "
        "{'type': 'private_kmeans', 'epsilon': 1, 'clusters': 4}",
    )
    return given


def to_features(given: object) -> tuple[Feature, ...]:
    """Return features, each a Feature, a tuple (name, lower, upper[, unit[, periodic]]), or a Place for two.

    A Place alone is accepted, too. Raise InvalidSpec.
    """
    if isinstance(given, Place):
        return given.features
    require(isinstance(given, Iterable) and not isinstance(given, str), "features must be a list of features")
    features: list[Feature] = []
    for each in cast(Iterable[object], given):
        features += each.features if isinstance(each, Place) else [_to_feature(each)]
    check_place(features)
    return tuple(features)


def _to_feature(given: object) -> Feature:
    if isinstance(given, Feature):
        return given
    require(
        isinstance(given, tuple) and 3 <= len(given) <= 6,
        "a feature must be a Feature or a tuple (name, lower, upper), because its bounds are required",
    )
    return Feature(*cast(tuple[Any, ...], given))


def check_periodic(algorithm: AnyAlgorithm, features: Sequence[Feature]) -> None:
    """Raise InvalidSpec if a feature is periodic, and the algorithm does not take periodic features.

    The bounds of a periodic feature are one period, so that private bounds do not exist for it. Neither do they for a
    place, which has a public region.
    """
    names = [feature.name for feature in features if feature.periodic]
    places = [feature.name for feature in features if feature.coordinate is not None]
    require(
        not places or getattr(algorithm, "bounds", "declared") == "declared",
        f"private bounds do not take places, and {', '.join(places)} are one: use the declared bounds",
    )
    require(
        not names or getattr(algorithm, "bounds", "declared") == "declared",
        f"private bounds do not take periodic features, and {', '.join(names)} is periodic: use the declared bounds",
    )
    if algorithm.definition.periodic:
        if names:
            algorithm.on_circles()
        return
    trusts = set(algorithm.definition.trust)
    takers = [
        tag
        for tag, kind in ALGORITHMS.items()
        if kind.definition.periodic
        and kind.definition.max_features >= len(features)
        and trusts & {*kind.definition.trust}
    ]
    require(
        not names,
        f"{algorithm.type} does not take periodic features, and {', '.join(names)} is periodic: "
        f"use {' or '.join(takers)}",
    )


def local_algorithm_from_wire(wire: object) -> Algorithm:
    """Return the parameters of a local algorithm from JSON values. Raise InvalidSpec."""
    return cast(Algorithm, _tagged(LOCAL_ALGORITHMS, "algorithm over reports", wire))


def central_algorithm_from_wire(wire: object) -> CentralAlgorithm | Auto:
    """Return the parameters of a central algorithm from JSON values. Raise InvalidSpec."""
    return cast(CentralAlgorithm | Auto, _tagged(CENTRAL_ALGORITHMS, "algorithm over records", wire))


def chosen_algorithm_from_wire(wire: object) -> CentralAlgorithm:
    """Return the parameters of a central algorithm other than `auto` from JSON values. Raise InvalidSpec."""
    return cast(CentralAlgorithm, _tagged(CHOSEN_ALGORITHMS, "algorithm over records", wire))


def features_from_wire(wire: object) -> tuple[Feature, ...]:
    """Return features from a JSON list, or from the object of an embedding. Raise InvalidSpec."""
    if isinstance(wire, Mapping):
        return cast(Embedding, _build(Embedding, wire)).features
    most = MAX_RECORD_FEATURES
    require(isinstance(wire, list) and 0 < len(wire) <= most, f"features must be a list of 1 to {most} features")
    features = tuple(cast(Feature, _build(Feature, item)) for item in cast(list[object], wire))
    names = [feature.name for feature in features]
    repeated = next((name for name, number in Counter(names).items() if number > 1), "")
    require(not repeated, f"feature names must be unique: {repeated!r} occurs {times(names.count(repeated))}")
    return features


def round_spec_from_wire(wire: object) -> RoundSpec:
    """Return a round specification from JSON values. Raise InvalidSpec if this version does not support it."""
    require(isinstance(wire, Mapping), f"a round spec must be an object, not {show(wire)}")
    wire = cast(Mapping[str, Any], wire)
    version = wire.get("version")
    require(
        is_int(version) and version == SPEC_VERSION,
        f"the version of a round spec must be {SPEC_VERSION}, not {show(version)}: update the SDK",
    )
    parts = {"version", "features", "encoding", "mechanism", "participation"}
    require(parts <= set(wire), f"a round spec must have {', '.join(sorted(parts - set(wire)))}")
    require(isinstance(wire["features"], list), "the features of a round spec must be a list")
    unknown = set(wire) - parts - {"out_of_bounds"}
    require(not unknown, f"RoundSpec: unknown {', '.join(sorted(map(str, unknown)))}")
    bounds = {"lo", "hi"}
    interval = wire["participation"]
    require(
        isinstance(interval, Mapping) and bounds <= set(interval), "the participation of a round must have lo and hi"
    )
    return RoundSpec(
        features=features_from_wire(wire["features"]),
        encoding=encoding_from_wire(wire["encoding"]),
        mechanism=mechanism_from_wire(wire["mechanism"]),
        participation=cast(Participation, _build(Participation, interval)),
        out_of_bounds=cast(RoundBounds, wire.get("out_of_bounds", "clip")),
    )
