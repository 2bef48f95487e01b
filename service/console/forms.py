"""Conversion of form input to API values, and of API errors to messages next to form fields."""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from service.http.problems import Problem
from service.schemas.algorithms import JOB_SCHEMAS, SCHEMAS
from service.schemas.datasets import NewDataset
from service.schemas.jobs import NewJob
from sfumato.settings import all_settings
from sfumato.specs import ALGORITHMS, Auto, of_trust

Json = dict[str, Any]

FIRST = ("epsilon", "delta", "clusters")  # shown first; other parameters are in a collapsed section


def parse_number(text: str) -> Any:
    """Parse a number. Return other text unchanged, so that the API rejects it with its own message."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        return text
    return number if math.isfinite(number) else text


def parse_seconds(text: str, unit_seconds: int) -> Any:
    """Parse a number of days or hours as whole seconds. Return other text unchanged, as `parse_number` does."""
    number = parse_number(text)
    seconds = number * unit_seconds if isinstance(number, int | float) else math.nan
    return round(seconds) if math.isfinite(seconds) else text


def collect_errors(problem: Problem | None) -> dict[str, str]:
    """Return error messages by field name. Messages without a field have an empty name.

    The field of an item in a list is the list.
    """
    if problem is None:
        return {}
    words: dict[str, list[str]] = {}
    for error in problem.more.get("errors", ()) or ({"pointer": "", "message": str(problem.detail)},):
        words.setdefault(_field_of(error), []).append(error["message"])
    return {name: "; ".join(dict.fromkeys(each)) for name, each in words.items()}


def collect_item_errors(
    problem: Problem | None, items: Mapping[str, str], within: Sequence[str] = ()
) -> dict[str, str]:
    """Return error messages by field name.

    Errors in items of a list contain the noun of `items` for the list, and the number of the item. A member of an
    object in `within` is the field `object_member`.
    """
    words: dict[str, list[str]] = {}
    for error in problem.more.get("errors", ()) if problem is not None else ():
        steps = error["pointer"].split("/")
        if len(steps) > 2 and steps[1] in items and steps[2].isdigit():
            where = " ".join([items[steps[1]], str(int(steps[2]) + 1), *steps[3:]])
            words.setdefault(steps[1], []).append(f"{where}: {error['message']}")
        else:
            name = "_".join(steps[1:]) if steps[1:2] and steps[1] in within else _field_of(error)
            words.setdefault(name, []).append(error["message"])
    return {name: "; ".join(dict.fromkeys(each)) for name, each in words.items()} or collect_errors(problem)


def _field_of(error: Mapping[str, Any]) -> str:
    """Return the innermost member of the body, or the query parameter, that an error of the API is about.

    An error of the whole body or algorithm belongs to the member that begins its message, if one does.
    """
    steps = [step for step in error["pointer"].split("/") if step and not step.isdigit()]
    name = steps[-1] if steps else str(error.get("parameter", ""))
    first = str(error["message"]).partition(" ")[0]
    return first if name in ("", "algorithm") and first in _members() else name


@lru_cache(maxsize=1)
def _members() -> frozenset[str]:
    """Return the names of all members of datasets, jobs and algorithms."""
    schemas: list[type[BaseModel]] = [NewDataset, NewJob, *JOB_SCHEMAS.values()]
    return frozenset(name for schema in schemas for name in schema.model_fields)


# ---- algorithms ----


def describe_algorithms(trust: str) -> dict[str, str]:
    """Return the description of each algorithm for a trust model, `auto` first."""
    tags = sorted(of_trust(ALGORITHMS, trust), key=lambda tag: (tag != Auto.type, tag))
    return {tag: " ".join((SCHEMAS[tag].__doc__ or "").split()) for tag in tags}


def group_algorithms(tags: Iterable[str]) -> dict[str, list[str]]:
    """Return the algorithms besides `auto` by what they find. Published methods are for comparison."""
    groups: dict[str, list[str]] = {"shapes": [], "centroids": [], "comparators": []}
    for tag in tags:
        if tag != Auto.type:
            groups[ALGORITHMS[tag].definition.group].append(tag)
    return groups


def fields(tag: str) -> list[Json]:
    """Return the parameters of an algorithm as form fields."""
    schema = JOB_SCHEMAS[tag].model_json_schema()
    found = []
    for name, shape in schema["properties"].items():
        if name != "type":
            info: FieldInfo = JOB_SCHEMAS[tag].model_fields[name]
            found.append(_field(name, shape, is_needed=info.is_required()))
    return sorted(found, key=lambda field: (field["name"] not in FIRST, not field["is_needed"]))


def _field(name: str, shape: Json, *, is_needed: bool) -> Json:
    kinds = [shape, *shape.get("anyOf", ())]
    of = next((kind for kind in kinds if "type" in kind or "enum" in kind), shape)
    return {
        "name": name,
        "label": name.replace("_", " ").capitalize(),
        "about": shape.get("description", ""),
        "kind": of.get("type", "string"),
        "choices": of.get("enum", []),
        "default": shape.get("default"),
        "is_needed": is_needed,
        "is_first": name in FIRST,
    }


# ---- settings of datasets ----


def setting_fields() -> list[Json]:
    """Return the settings of datasets that are single values as form fields, with the trust models that have them."""
    schema = NewDataset.model_json_schema()
    found = []
    for name, setting in all_settings().items():
        if not setting.parameter.is_object:
            shape = schema["properties"][name]
            reference = next((each["$ref"] for each in [shape, *shape.get("anyOf", ())] if "$ref" in each), None)
            shape = shape | (schema["$defs"][reference.rpartition("/")[2]] if reference else {})
            field = _field(name, shape, is_needed=False) | {"trusts": setting.trusts, "label": setting.parameter.label}
            found.append(field | {"about": setting.parameter.description})
    return found


def settings_body(trust: str, values: Mapping[str, str]) -> Json:
    """Return the settings that a form describes, without empty ones and without those of other trust models."""
    body: Json = {}
    for field in setting_fields():
        name, text = field["name"], values.get(field["name"], "")
        if trust in field["trusts"]:
            if field["kind"] == "boolean":
                body[name] = text == "true"
            elif text:
                body[name] = parse_number(text) if field["kind"] in ("integer", "number") else text
    return body


def describe_settings(dataset: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings of a dataset that are single values as texts, by label."""
    shown = {}
    for field in setting_fields():
        if dataset["trust"] in field["trusts"]:
            value = dataset[field["name"]]
            text = "none" if value is None else str(value)
            shown[field["label"]] = ("yes" if value else "no") if field["kind"] == "boolean" else text
    return shown


def algorithm(tag: str, values: dict[str, str]) -> Json:
    """Return the algorithm that a form describes, without empty parameters."""
    body: Json = {"type": tag}
    for field in fields(tag) if tag in SCHEMAS else []:
        text = values.get(field["name"], "")
        if field["kind"] == "boolean":
            body[field["name"]] = text == "true"
        elif text:
            body[field["name"]] = text if field["choices"] else parse_number(text)
    return body
