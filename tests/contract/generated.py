"""Requests derived from the document: its examples, with ids of objects that were created from its examples."""

import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from service.schemas.base import EXAMPLE_ULID
from tests.contract.schema import resolve
from tests.service.api import Api, a_model, finish
from tests.service.followed import follow

_ID = re.compile(r"\^(\w+)_\[0-9a-hjkmnp-tv-z\]\{26\}\$")
_NAMED_ID = re.compile(r"(\w*_)?ids?")
CHANGES_BY_ITSELF = {"listWebhookDeliveries", "getWebhookDelivery"}  # change without requests
NOT_OBJECT_IDS = {"report_id", "report_ids"}  # 128 random bits that only the device knows

Document = dict[str, Any]


@dataclass(frozen=True)
class Operation:
    """An operation of the document, with references resolved on demand."""

    document: Document = field(repr=False, compare=False)
    method: str
    path: str
    definition: dict[str, Any] = field(repr=False, compare=False)

    @property
    def name(self) -> str:
        return str(self.definition["operationId"])

    @property
    def parameters(self) -> list[dict[str, Any]]:
        return list(self.definition.get("parameters", ()))

    @property
    def json_body(self) -> dict[str, Any] | None:
        """Return the description of the JSON body."""
        found: dict[str, Any] | None = self.definition.get("requestBody", {}).get("content", {}).get("application/json")
        return found

    @property
    def scopes(self) -> set[str]:
        """Return the alternative scopes named in the description; empty if the operation needs no key."""
        scopes = re.search(r"the scopes?((?: `\w+`,?)+)", self.definition["description"].replace("\n", " "))
        return set(re.findall(r"`(\w+)`", scopes[1])) if scopes else set()

    def bodies(self) -> list[Any]:
        """Return the examples of the body. Raise LookupError if there is a body without an example."""
        content = self.json_body
        if content is None:
            return [None]
        examples = [shown["value"] for shown in content.get("examples", {}).values()]
        examples = examples or list(self._followed(content["schema"]).get("examples", ()))
        if not examples:
            raise LookupError(f"{self.name} has no example of its body")
        return copy.deepcopy(examples)

    def id_places(self) -> Iterator[tuple[str, tuple[str | int, ...], str]]:
        """Yield (location, way, prefix) of each id in the path, the query or the body.

        Raises
        ------
        LookupError
            The pattern of a member named like an id, or of a parameter of the path without an example, has no prefix.
        """
        for parameter in self.parameters:
            prefix = self._prefix(parameter["name"], parameter["schema"])
            if prefix:
                yield parameter["in"], (parameter["name"],), prefix
            elif parameter["in"] == "path" and "examples" not in parameter:
                raise LookupError(f"{self.name}: the pattern of {{{parameter['name']}}} has no prefix of an id")
        if self.json_body is not None:
            for way, prefix in self._ids_within(self.json_body["schema"], ()):
                yield "body", way, prefix

    def _ids_within(self, schema: dict[str, Any], way: tuple[str | int, ...]) -> Iterator[tuple[Any, str]]:
        if len(way) > 8:
            raise LookupError(f"{self.name}: its body is nested too deeply at {way}")
        schema = self._followed(schema)
        for branch in [*schema.get("anyOf", ()), *schema.get("oneOf", ())]:
            yield from self._ids_within(branch, way)
        if "items" in schema:
            yield from self._ids_within(schema["items"], (*way, 0))
        name = next((str(step) for step in reversed(way) if isinstance(step, str)), "")
        if schema.get("type") == "string" and (prefix := self._prefix(name, schema)):
            yield way, prefix
        for member, inner in schema.get("properties", {}).items():
            yield from self._ids_within(inner, (*way, member))

    def _prefix(self, name: str, schema: dict[str, Any]) -> str | None:
        found = _ID.fullmatch(schema.get("pattern", ""))
        if found is None and _NAMED_ID.fullmatch(name) and name not in NOT_OBJECT_IDS:
            raise LookupError(f"{self.name}: the pattern of {name} has no prefix of an id")
        return found[1] if found else None

    def _followed(self, schema: dict[str, Any]) -> dict[str, Any]:
        while "$ref" in schema:
            schema = resolve(self.document, schema["$ref"])
        return schema

    def created_prefix(self) -> str | None:
        """Return the prefix of the id that the operation creates, or None."""
        for status in ("201", "202"):
            response = self.definition["responses"].get(status, {})
            schema = self._followed(response.get("content", {}).get("application/json", {}).get("schema", {}))
            created = _ID.fullmatch(schema.get("properties", {}).get("id", {}).get("pattern", ""))
            taken = {prefix for where, _, prefix in self.id_places() if where == "path"}
            if created and created[1] not in taken and "Location" in response.get("headers", {}):
                return created[1]
        return None


def operations(document: Document) -> list[Operation]:
    """Return all operations of the document."""
    return [
        Operation(document, method, path, definition)
        for path, methods in document["paths"].items()
        for method, definition in methods.items()
    ]


CHOICES: dict[str, dict[str, str]] = {"deleteRecords": {"all": "true"}}  # one of several parameters is needed


def request(operation: Operation, objects: "Objects | None", **replaced: Any) -> tuple[str, str, dict[str, Any]]:
    """Return method, path below /v1 and options of the example request, with ids of existing objects.

    Parameters
    ----------
    operation : Operation
    objects : Objects or None
        Source of ids; None keeps the ids of the examples.
    replaced : dict
        `at`, the place of an id, and `by`, its replacement.
    """
    bodies, query, path = operation.bodies(), {}, {}
    at = replaced.get("at", ("", ()))
    body = next((one for one in bodies if at[0] == "body" and _holds(one, at[1])), bodies[0])
    for parameter in operation.parameters:
        if parameter["in"] == "path" and "examples" in parameter:
            path[parameter["name"]] = next(iter(parameter["examples"].values()))["value"]
    for where, way, prefix in operation.id_places():
        replacement = replaced["by"] if at == (where, way) else None
        if replacement is None and (where == "query" or (where == "body" and not _holds(body, way))):
            continue
        own = replacement or (objects.id(prefix, operation) if objects else f"{prefix}_{EXAMPLE_ULID}")
        if where == "body":
            _put(body, way, own)
            if way[0] == "round_ids":
                body.pop("target_reports", None)  # a job over earlier rounds collects nothing
            if operation.name == "createSeriesForecast":
                body.pop("n_features", None)  # those of the dataset
        else:
            (path if where == "path" else query)[str(way[0])] = own
    query |= CHOICES.get(operation.name, {})
    options: dict[str, Any] = {"params": query} if query else {}
    if body is not None:
        options["json"] = body
    return operation.method.upper(), operation.path.removeprefix("/v1").format(**path), options


def _holds(body: Any, way: tuple[str | int, ...]) -> bool:
    for step in way:
        if (isinstance(body, dict) and step in body) or (
            isinstance(body, list) and isinstance(step, int) and step < len(body)
        ):
            body = body[step]
        else:
            return False
    return True


def _put(body: Any, way: tuple[str | int, ...], value: str) -> None:
    for step, coming in zip(way, (*way[1:], None), strict=True):
        if coming is None:
            if isinstance(body, list):
                body[:] = [value]
            else:
                body[step] = value
        elif isinstance(body, dict):
            body = body.setdefault(step, [] if isinstance(coming, int) else {})
        else:
            body = body[step]


class Objects:
    """Objects of a tenant, one of each kind, created on first use by the operations of the document."""

    def __init__(self, document: Document, api: Api) -> None:
        self.api = api
        self._creators = {prefix: one for one in operations(document) if (prefix := one.created_prefix())}
        self._ids: dict[tuple[str, bool], str] = {}

    def id(self, prefix: str, operation: Operation) -> str:
        """Return the id of an object that the operation accepts."""
        is_central = operation.definition["tags"] == ["records"]
        kind = (prefix, is_central)
        if kind not in self._ids:
            self._ids[kind] = self._create(prefix, operation, is_central=is_central)
        return self._ids[kind]

    def _create(self, prefix: str, operation: Operation, *, is_central: bool) -> str:
        if prefix == "clu":
            return follow(self.api, self.id("ser", operation))[0]
        if prefix not in self._creators:
            raise LookupError(f"{operation.name}: no operation creates an id {prefix}_")
        method, path, options = request(self._creators[prefix], self)
        if prefix == "ds":
            options["json"] |= {"trust": "central" if is_central else "local", "epsilon": 32}
        answer = self.api.request(method, path, **options)
        assert answer.status_code in (201, 202), answer.text
        id_ = str(answer.json()["id"])
        if prefix == "job":
            finish(self.api.database, id_, a_model())
        return id_

    def readable(self, document: Document) -> list[Any]:
        """Return all responses that the tenant can read about the objects created so far."""
        shown = []
        for operation in operations(document):
            if operation.method != "get" or not operation.path.startswith("/v1"):
                continue
            if operation.name in CHANGES_BY_ITSELF:
                continue
            is_central = operation.definition["tags"] == ["records"]
            prefixes = {(prefix, is_central) for where, _, prefix in operation.id_places() if where == "path"}
            if prefixes <= self._ids.keys():
                method, path, options = request(operation, self)
                answer = self.api.request(method, path, **options)
                shown.append((operation.name, answer.status_code, _content(answer)))
        return shown


def _content(answer: httpx.Response) -> Any:
    return answer.json() | {"request_id": ""} if "json" in answer.headers.get("content-type", "") else answer.text
