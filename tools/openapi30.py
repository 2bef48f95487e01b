"""The API description as OpenAPI 3.0.3, for generators that read 3.1 but warn that they may not read it right.

What 3.1 says in JSON Schema's words is said in 3.0's: null as `nullable`, `const` as an `enum` of one, base64 as the
format `byte`, the first of several examples. Unions that stand within another schema get names, which a generator would
make up otherwise. A keyword this file does not know is refused, so nothing is lost unseen.

    python tools/openapi30.py openapi/openapi.json build/sdks/openapi.json
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Json = dict[str, Any]

# Schemas whose name means something else in a language that is generated.
RENAMED = {"Progress": "JobProgress"}  # Foundation has a Progress

_SAME = frozenset(
    {
        "$ref", "additionalProperties", "anyOf", "default", "description", "discriminator", "enum", "format", "items",
        "maxItems", "maxLength", "maximum", "minItems", "minLength", "minimum", "oneOf", "pattern", "properties",
        "required", "title", "type", "x-extensible-enum",
    }
)  # fmt: skip
_NULL = {"type": "null"}
_METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
_PREFIX = "#/components/schemas/"


class Unknown(Exception):
    """A keyword that has no word in 3.0, or none here."""


def down_converted(document: Json) -> Json:
    """The same description in 3.0.3.

    Raises
    ------
    Unknown
        A keyword of a schema that this file does not know, or another version of OpenAPI.
    """
    if not str(document.get("openapi", "")).startswith("3.1."):
        raise Unknown(f"OpenAPI {document.get('openapi')}")
    told: Json = json.loads(json.dumps(document))
    told["openapi"] = "3.0.3"
    told["info"].get("license", {}).pop("identifier", None)
    told["info"].pop("summary", None)
    named: Json = {}
    for name, schema in told["components"]["schemas"].items():
        own = RENAMED.get(name, name)
        made = _schema(schema, own, named, is_named=True)
        if own in named:
            raise Unknown(f"two schemas would be called {own}")
        named[own] = made
    told["components"]["schemas"] = named
    for name, place in _in_components(told["components"]):
        _convert_place(place, name, named)
    for name, place in _in_operations(told["paths"]):
        _convert_place(place, name, named)
    return told


def _convert_place(place: Json, name: str, named: Json) -> None:
    """A parameter, a header or a media type: what has a schema."""
    if "schema" in place:
        place["schema"] = _schema(place["schema"], name, named)


def _in_components(components: Json) -> Iterator[tuple[str, Json]]:
    for kind in ("parameters", "headers"):
        for name, place in components.get(kind, {}).items():
            yield _pascal(name), place
    for kind in ("responses", "requestBodies"):
        for name, place in components.get(kind, {}).items():
            yield from _in_message(_pascal(name), place)


def _in_operations(paths: Json) -> Iterator[tuple[str, Json]]:
    for path in paths.values():
        for operation in (path[method] for method in _METHODS if method in path):
            own = _pascal(operation["operationId"])
            for parameter in operation.get("parameters", ()):
                yield own + _pascal(parameter["name"]), parameter
            if "requestBody" in operation:
                yield from _in_message(f"{own}Body", operation["requestBody"])
            for answer in operation["responses"].values():
                yield from _in_message(f"{own}Answer", answer)


def _in_message(name: str, message: Json) -> Iterator[tuple[str, Json]]:
    for header, place in message.get("headers", {}).items():
        yield name + _pascal(header), place
    for media in message.get("content", {}).values():
        yield name, media


def _schema(schema: Any, name: str, named: Json, *, is_named: bool = False) -> Any:
    """A schema in 3.0's words; unions within it move to `named`."""
    if not isinstance(schema, Mapping):  # additionalProperties may be true or false
        return schema
    told: Json = {}
    for word, value in schema.items():
        told |= _word(word, value, name, named)
    told = _without_null(told)
    if "$ref" in told and len(told) > 1:
        told = {"allOf": [{"$ref": told.pop("$ref")}], **told}
    if is_named or not {"anyOf", "oneOf"} & told.keys():
        return told
    if named.setdefault(name, told) != told:
        raise Unknown(f"two unions would be called {name}")
    return {"$ref": _PREFIX + name}


def _word(word: str, value: Any, name: str, named: Json) -> Json:
    """One keyword of a schema."""
    if word == "properties":
        return {word: {field: _schema(each, name + _pascal(field), named) for field, each in value.items()}}
    if word in ("items", "additionalProperties"):
        return {word: _schema(value, f"{name}Item", named)}
    if word in ("anyOf", "oneOf"):
        return {word: _branches(value, name, named)}
    if word == "$ref":
        return {word: _reference(value)}
    if word == "discriminator":
        return {word: value | {"mapping": {tag: _reference(to) for tag, to in value.get("mapping", {}).items()}}}
    if word == "const":
        return {"enum": [value]}
    if word == "examples":
        return {"example": value[0]} if value else {}
    if word == "contentEncoding" and value == "base64":
        return {"format": "byte"}
    if word not in _SAME or (word == "type" and not isinstance(value, str)):
        raise Unknown(f"{name}: {word}")
    return {word: value}


def _branches(branches: list[Any], name: str, named: Json) -> list[Any]:
    """The branches of a union; of several each has a name, which is a number's or a text's, too."""
    told = [_schema(each, name, named) if each != _NULL else each for each in branches]
    if len([each for each in told if each != _NULL]) < 2:
        return told
    for place, branch in enumerate(told):
        if branch != _NULL and "$ref" not in branch:
            own = name + _pascal(str(branch.get("type", place)))
            if named.setdefault(own, branch) != branch:
                raise Unknown(f"two schemas would be called {own}")
            told[place] = {"$ref": _PREFIX + own}
    return told


def _without_null(schema: Json) -> Json:
    """A union with null is `nullable`; of one branch that is left, that branch."""
    for union in ("anyOf", "oneOf"):
        branches = schema.get(union, [])
        if _NULL not in branches:
            continue
        kept = [branch for branch in branches if branch != _NULL]
        rest = {word: value for word, value in schema.items() if word != union} | {"nullable": True}
        return {**kept[0], **rest} if len(kept) == 1 else {union: kept, **rest}
    return schema


def _reference(to: str) -> str:
    name = to.removeprefix(_PREFIX)
    return to if name == to else _PREFIX + RENAMED.get(name, name)


def _pascal(name: str) -> str:
    parts = name.replace("-", "_").split("_")
    return "".join(part[:1].upper() + part[1:] for part in parts)


def main(source: str, target: str) -> int:
    """Write the description anew."""
    told = down_converted(json.loads(Path(source).read_text()))
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    Path(target).write_text(json.dumps(told, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
