"""Forms: what people type as the API takes it, and what the API refuses as words beside their fields."""

import math
from typing import Any, get_args

from pydantic.fields import FieldInfo

from service import algorithm_schemas
from service.problems import Problem
from sfumato.specs import CENTRAL_ALGORITHMS

Json = dict[str, Any]

FIRST = ("epsilon", "delta", "clusters")  # asked for by every algorithm that has them; the rest is for who knows


def numeric(text: str) -> Any:
    """A number as it was meant; whatever is none goes on as it is, for the API to refuse in its own words."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        return text
    return number if math.isfinite(number) else text


def refused(problem: Problem | None) -> dict[str, str]:
    """The words of a refusal by the last step of their pointers; those without a place under the empty name."""
    if problem is None:
        return {}
    words: dict[str, list[str]] = {}
    for error in problem.more.get("errors", ()):
        words.setdefault(error["pointer"].rpartition("/")[2], []).append(error["message"])
    if not words:
        words[""] = [str(problem.detail)]
    return {name: "; ".join(dict.fromkeys(each)) for name, each in words.items()}


def refused_within(problem: Problem | None, of: str, item: str) -> dict[str, str]:
    """The same; what is refused in a list's items stands under the list's name, with the item's number."""
    words: dict[str, list[str]] = {}
    for error in problem.more.get("errors", ()) if problem is not None else ():
        steps = error["pointer"].split("/")
        if len(steps) > 2 and steps[1] == of and steps[2].isdigit():
            where = " ".join([item, str(int(steps[2]) + 1), *steps[3:]])
            words.setdefault(of, []).append(f"{where}: {error['message']}")
        else:
            words.setdefault(steps[-1], []).append(error["message"])
    return {name: "; ".join(dict.fromkeys(each)) for name, each in words.items()} or refused(problem)


# ---- algorithms ----

# The members of the union on the wire, by their tags.
SCHEMAS: dict[str, Any] = {
    get_args(kind.model_fields["type"].annotation)[0]: kind
    for kind in get_args(get_args(algorithm_schemas.Algorithm.__value__)[0])
}


def offered(trust: str) -> list[Json]:
    """The algorithms that work on such a dataset, `auto` first, each with what it says of itself."""
    # `auto` is of both
    tags = [tag for tag in SCHEMAS if tag == "auto" or (tag in CENTRAL_ALGORITHMS) == (trust == "central")]
    tags.sort(key=lambda tag: (tag != "auto", tag))
    return [{"tag": tag, "about": " ".join((SCHEMAS[tag].__doc__ or "").split())} for tag in tags]


def fields(tag: str) -> list[Json]:
    """The parameters of an algorithm as fields of a form."""
    schema = SCHEMAS[tag].model_json_schema()
    found = []
    for name, shape in schema["properties"].items():
        if name != "type":
            info: FieldInfo = SCHEMAS[tag].model_fields[name]
            found.append(_field(name, shape, is_needed=info.is_required()))
    return sorted(found, key=lambda field: (field["name"] not in FIRST, not field["is_needed"]))


def _field(name: str, shape: Json, *, is_needed: bool) -> Json:
    kinds = [shape, *shape.get("anyOf", ())]
    of = next((kind for kind in kinds if "type" in kind or "enum" in kind), shape)
    return {
        "name": name,
        "label": name.replace("_", " "),
        "about": shape.get("description", ""),
        "kind": of.get("type", "string"),
        "choices": of.get("enum", []),
        "default": shape.get("default"),
        "is_needed": is_needed,
        "is_first": name in FIRST,
    }


def algorithm(tag: str, said: dict[str, str]) -> Json:
    """The algorithm a form describes; what was left empty is left out."""
    made: Json = {"type": tag}
    for field in fields(tag) if tag in SCHEMAS else []:
        text = said.get(field["name"], "")
        if field["kind"] == "boolean":
            made[field["name"]] = text == "true"
        elif text:
            made[field["name"]] = text if field["choices"] else numeric(text)
    return made
