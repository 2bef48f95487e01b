"""Specs as plain JSON values, and back; 64-bit integers travel as decimal strings, since JSON numbers stop at 2**53."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, cast, get_args

from sfumato.errors import InvalidSpec
from sfumato.specs.algorithms import Algorithm, Auto
from sfumato.specs.central import CentralAlgorithm
from sfumato.specs.checks import is_int, require
from sfumato.specs.encodings import MAX_FEATURES, Encoding
from sfumato.specs.mechanisms import Mechanism
from sfumato.specs.rounds import SPEC_VERSION, Draw, Feature, RoundSpec

ENCODINGS: dict[str, type[Encoding]] = {kind.type: kind for kind in get_args(Encoding)}
MECHANISMS: dict[str, type[Mechanism]] = {kind.type: kind for kind in get_args(Mechanism)}

AnyAlgorithm = Algorithm | CentralAlgorithm  # of devices' reports, or of records; `Auto` of either

LOCAL_ALGORITHMS: dict[str, type[Algorithm]] = {kind.type: kind for kind in get_args(Algorithm)}
CENTRAL_ALGORITHMS: dict[str, type[CentralAlgorithm | Auto]] = {
    **{kind.type: kind for kind in get_args(CentralAlgorithm)},
    Auto.type: Auto,
}
ALGORITHMS: dict[str, type[AnyAlgorithm]] = {**LOCAL_ALGORITHMS, **CENTRAL_ALGORITHMS}

# Decimal strings on the wire.
_WORD_FIELDS = {"lo", "hi", "keep_threshold", "hold_threshold", "other_threshold", "inside_threshold"}


def to_wire(spec: Any) -> dict[str, Any]:
    """A spec as plain JSON values: a tag `type` where it is one of a union."""
    out: dict[str, Any] = {}
    if hasattr(spec, "type"):
        out["type"] = spec.type
    if isinstance(spec, RoundSpec):
        out["version"] = SPEC_VERSION
    for field in fields(spec):
        value = getattr(spec, field.name)
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
    return [_lists(item) if isinstance(item, tuple) else item for item in value]


def _tuples(value: list[Any]) -> tuple[Any, ...]:
    return tuple(_tuples(item) if isinstance(item, list) else item for item in value)


def _build(cls: type[Any], wire: object) -> Any:
    """Make `cls` from JSON values, refusing what it does not know."""
    require(isinstance(wire, Mapping), f"{cls.__name__}: this is an object")
    wire = cast(Mapping[str, Any], wire)
    names = {field.name for field in fields(cls)}
    unknown = set(wire) - names
    require(not unknown, f"{cls.__name__}: unknown {', '.join(sorted(map(str, unknown)))}")
    values: dict[str, Any] = {}
    for name in names & set(wire):
        value = wire[name]
        if name in _WORD_FIELDS:
            require(
                isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 20,
                f"{cls.__name__}: {name} is a decimal string",
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
    require(isinstance(wire, Mapping), f"the {what} is an object")
    wire = cast(Mapping[str, Any], wire)
    tag = wire.get("type")
    require(isinstance(tag, str) and tag in kinds, f"unknown {what}; this version knows {', '.join(kinds)}")
    return _build(kinds[cast(str, tag)], {k: v for k, v in wire.items() if k != "type"})


def encoding_from_wire(wire: object) -> Encoding:
    """Read an encoding; raises InvalidSpec."""
    return cast(Encoding, _tagged(ENCODINGS, "encoding", wire))


def mechanism_from_wire(wire: object) -> Mechanism:
    """Read a mechanism; raises InvalidSpec."""
    return cast(Mechanism, _tagged(MECHANISMS, "mechanism", wire))


def algorithm_from_wire(wire: object) -> AnyAlgorithm:
    """Read an algorithm's parameters, of either trust model; raises InvalidSpec."""
    return cast(AnyAlgorithm, _tagged(ALGORITHMS, "algorithm", wire))


def local_algorithm_from_wire(wire: object) -> Algorithm:
    """Read the parameters of an algorithm over devices' reports; raises InvalidSpec."""
    return cast(Algorithm, _tagged(LOCAL_ALGORITHMS, "algorithm over reports", wire))


def central_algorithm_from_wire(wire: object) -> CentralAlgorithm | Auto:
    """Read the parameters of an algorithm over records; raises InvalidSpec."""
    return cast(CentralAlgorithm | Auto, _tagged(CENTRAL_ALGORITHMS, "algorithm over records", wire))


def features_from_wire(wire: object) -> tuple[Feature, ...]:
    """Read a list of features; raises InvalidSpec."""
    require(isinstance(wire, list) and 0 < len(wire) <= MAX_FEATURES, "features is a list of 1 to 64")
    features = tuple(cast(Feature, _build(Feature, item)) for item in cast(list[object], wire))
    require(len({feature.name for feature in features}) == len(features), "feature names differ from one another")
    return features


def round_spec_from_wire(wire: object) -> RoundSpec:
    """Read a round spec; raises InvalidSpec for one this version cannot answer."""
    require(isinstance(wire, Mapping), "a round spec is an object")
    wire = cast(Mapping[str, Any], wire)
    version = wire.get("version")
    require(is_int(version) and version == SPEC_VERSION, f"this version answers round specs of version {SPEC_VERSION}")
    parts = {"version", "features", "encoding", "mechanism", "draw"}
    require(parts <= set(wire), "a round spec lacks a part")
    require(set(wire) <= parts, f"RoundSpec: unknown {', '.join(sorted(map(str, set(wire) - parts)))}")
    return RoundSpec(
        features=features_from_wire(wire["features"]),
        encoding=encoding_from_wire(wire["encoding"]),
        mechanism=mechanism_from_wire(wire["mechanism"]),
        draw=cast(Draw, _build(Draw, wire["draw"])),
    )
