"""A validator for the part of JSON Schema that the document uses."""

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from math import inf
from typing import Any

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
_KNOWN = {
    "$ref", "additionalProperties", "allOf", "anyOf", "const", "contentEncoding", "default", "description",
    "discriminator", "enum", "exclusiveMaximum", "exclusiveMinimum", "examples", "format", "items", "maxItems",
    "maxLength", "maxProperties", "maximum", "minItems", "minLength", "minProperties", "minimum", "not",
    "oneOf", "pattern", "properties", "required", "title", "type", "uniqueItems", "x-decimals", "x-extensible-enum",
}  # fmt: skip


def resolve(document: dict[str, Any], reference: str) -> Any:
    """Return the target of a reference within the document. Raise KeyError."""
    assert reference.startswith("#/")
    found: Any = document
    for step in reference[2:].split("/"):
        found = found[step]
    return found


def misfits(document: dict[str, Any], schema: dict[str, Any], value: Any, at: str = "") -> Iterator[str]:
    """Yield a description of each place where a value does not fit a schema."""
    assert schema.keys() <= _KNOWN, schema.keys() - _KNOWN
    if "$ref" in schema:
        yield from misfits(document, resolve(document, schema["$ref"]), value, at)
    for part in schema.get("allOf", ()):
        yield from misfits(document, part, value, at)
    if "not" in schema and not list(misfits(document, {"type": "number"} | schema["not"], value, at)):
        yield f"{at}: fits {schema['not']}"
    for branches in (schema.get("anyOf"), schema.get("oneOf")):
        if branches is not None:
            fitting = [branch for branch in branches if not list(misfits(document, branch, value, at))]
            if not fitting or ("oneOf" in schema and len(fitting) > 1):
                yield f"{at}: fits {len(fitting)} of {len(branches)}"
    if "const" in schema and value != schema["const"]:
        yield f"{at}: is not {schema['const']!r}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{at}: is none of {schema['enum']}"
    kind = schema.get("type")
    if kind is None:
        if isinstance(value, dict):
            yield from (f"{at}/{name}: is missing" for name in schema.get("required", ()) if name not in value)
        return
    if not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "boolean"):
        yield f"{at}: is no {kind}"
        return
    yield from _of_kind(document, schema, value, at)


def _of_kind(document: dict[str, Any], schema: dict[str, Any], value: Any, at: str) -> Iterator[str]:
    if isinstance(value, dict):
        if not schema.get("minProperties", 0) <= len(value) <= schema.get("maxProperties", len(value)):
            yield f"{at}: has {len(value)} members"
        properties = schema.get("properties", {})
        yield from (f"{at}/{name}: is missing" for name in schema.get("required", ()) if name not in value)
        for name, member in value.items():
            more = schema.get("additionalProperties", True)
            if name in properties:
                yield from misfits(document, properties[name], member, f"{at}/{name}")
            elif more is False:
                yield f"{at}/{name}: is not known"
            elif isinstance(more, dict):
                yield from misfits(document, more, member, f"{at}/{name}")
    elif isinstance(value, list):
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            yield f"{at}: has {len(value)} items"
        if schema.get("uniqueItems") and len({json.dumps(item) for item in value}) < len(value):
            yield f"{at}: has equal items"
        for place, item in enumerate(value):
            yield from misfits(document, schema.get("items", {}), item, f"{at}/{place}")
    elif isinstance(value, str):
        if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)):
            yield f"{at}: has {len(value)} characters"
        if "pattern" in schema and not re.search(schema["pattern"], value):
            yield f"{at}: does not look like {schema['pattern']}"
    elif isinstance(value, int | float):
        if not schema.get("minimum", value) <= value <= schema.get("maximum", value):
            yield f"{at}: lies outside its bounds"
        if not schema.get("exclusiveMinimum", -inf) < value < schema.get("exclusiveMaximum", inf):
            yield f"{at}: lies outside its open bounds"
        if "x-decimals" in schema and Decimal(str(value)) % Decimal(10) ** -schema["x-decimals"]:
            yield f"{at}: has more than {schema['x-decimals']} decimals"
