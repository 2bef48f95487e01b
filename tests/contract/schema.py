"""As much of JSON Schema as the document uses, to hold answers against it."""

import re
from collections.abc import Iterator
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
    "$ref", "additionalProperties", "anyOf", "const", "contentEncoding", "default", "description", "discriminator",
    "enum", "examples", "format", "items", "maxItems", "maxLength", "maximum", "minItems", "minLength", "minimum",
    "oneOf", "pattern", "properties", "required", "title", "type", "x-extensible-enum",
}  # fmt: skip


def resolve(document: dict[str, Any], reference: str) -> Any:
    """What a reference within the document points to; raises KeyError."""
    assert reference.startswith("#/")
    found: Any = document
    for step in reference[2:].split("/"):
        found = found[step]
    return found


def misfits(document: dict[str, Any], schema: dict[str, Any], value: Any, at: str = "") -> Iterator[str]:
    """Where a value does not fit a schema."""
    assert schema.keys() <= _KNOWN, schema.keys() - _KNOWN
    if "$ref" in schema:
        yield from misfits(document, resolve(document, schema["$ref"]), value, at)
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
        return
    if not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "boolean"):
        yield f"{at}: is no {kind}"
        return
    yield from _of_kind(document, schema, value, at)


def _of_kind(document: dict[str, Any], schema: dict[str, Any], value: Any, at: str) -> Iterator[str]:
    if isinstance(value, dict):
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
        for place, item in enumerate(value):
            yield from misfits(document, schema.get("items", {}), item, f"{at}/{place}")
    elif isinstance(value, str):
        if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)):
            yield f"{at}: has {len(value)} characters"
        if "pattern" in schema and not re.search(schema["pattern"], value):
            yield f"{at}: does not look like {schema['pattern']}"
    elif isinstance(value, int | float) and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        yield f"{at}: lies outside its bounds"
