"""The OpenAPI document's links: what was made or listed can be asked for, by the id in the answer.

None is written by hand: an answer's `id` and an operation's path parameter belong together where they have the same
pattern, so that a new route is linked by itself.
"""

from collections.abc import Iterator
from typing import Any


def add(document: dict[str, Any]) -> None:
    """Add to every answer that holds an id the operations which take that id in their path."""
    takers = list(_takers(document))
    for methods in document["paths"].values():
        for operation in methods.values():
            for status, response in operation["responses"].items():
                if status.startswith("2") and (links := _links(document, response, takers)):
                    response["links"] = links


def _takers(document: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Operation, name and pattern of each path parameter."""
    for methods in document["paths"].values():
        for operation in methods.values():
            for parameter in operation.get("parameters", ()):
                if parameter["in"] == "path" and "pattern" in parameter["schema"]:
                    yield operation["operationId"], parameter["name"], parameter["schema"]["pattern"]


def _links(document: dict[str, Any], response: dict[str, Any], takers: list[tuple[str, str, str]]) -> dict[str, Any]:
    schema = _members(document, response.get("content", {}).get("application/json", {}).get("schema", {}))
    if "items" in schema:
        where, made = "#/items/0/id", _members(document, schema["items"].get("items", {}))
    elif "Location" in response.get("headers", {}):
        where, made = "#/id", schema
    else:
        return {}
    pattern = made.get("id", {}).get("pattern")
    return {
        operation_id: {
            "operationId": operation_id,
            "parameters": {name: f"$response.body{where}"},
            "description": f"The `id` answered here is the `{name}` there.",
        }
        for operation_id, name, wanted in sorted(takers)
        if wanted == pattern
    }


def _members(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    members: dict[str, Any] = schema.get("properties", {})
    return members
