"""Requests made from the document alone: from its examples, with ids of things made from its examples as well."""

import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from service.schemas import EXAMPLE_ULID
from tests.contract.schema import resolve
from tests.service.api import Api, a_model, finish

_ID = re.compile(r"\^(\w+)_\[0-9a-hjkmnp-tv-z\]\{26\}\$")
_NAMED_ID = re.compile(r"(\w*_)?ids?")
ON_THEIR_OWN = {"listWebhookDeliveries", "getWebhookDelivery"}  # these change while nobody asks for anything
NO_NAMES_OF_THINGS = {"report_id", "report_ids"}  # the device's own, 128 random bits: nobody is told of them

Document = dict[str, Any]


@dataclass(frozen=True)
class Operation:
    """One operation of the document, its references followed as they are met."""

    document: Document = field(repr=False, compare=False)
    method: str
    path: str
    told: dict[str, Any] = field(repr=False, compare=False)

    @property
    def name(self) -> str:
        return str(self.told["operationId"])

    @property
    def parameters(self) -> list[dict[str, Any]]:
        return list(self.told.get("parameters", ()))

    @property
    def json_body(self) -> dict[str, Any] | None:
        """What it says of a body of JSON."""
        found: dict[str, Any] | None = self.told.get("requestBody", {}).get("content", {}).get("application/json")
        return found

    @property
    def scopes(self) -> set[str]:
        """The scopes one of which it needs, as its description says; none where it needs no key."""
        said = re.search(r"the scopes?((?: `\w+`,?)+)", self.told["description"].replace("\n", " "))
        return set(re.findall(r"`(\w+)`", said[1])) if said else set()

    def bodies(self) -> list[Any]:
        """The examples of its body; raises LookupError where it has a body and no example."""
        content = self.json_body
        if content is None:
            return [None]
        examples = [shown["value"] for shown in content.get("examples", {}).values()]
        examples = examples or list(self._followed(content["schema"]).get("examples", ()))
        if not examples:
            raise LookupError(f"{self.name} has no example of its body")
        return copy.deepcopy(examples)

    def id_places(self) -> Iterator[tuple[str, tuple[str | int, ...], str]]:
        """Where ids go: in its path, its query or its body; the way to each; its prefix.

        Raises
        ------
        LookupError
            What is named like an id has no pattern that says of what.
        """
        for parameter in self.parameters:
            prefix = self._prefix(parameter["name"], parameter["schema"])
            if prefix:
                yield parameter["in"], (parameter["name"],), prefix
            elif parameter["in"] == "path":
                raise LookupError(f"{self.name}: nobody knows what {{{parameter['name']}}} is the id of")
        if self.json_body is not None:
            for way, prefix in self._ids_within(self.json_body["schema"], ()):
                yield "body", way, prefix

    def _ids_within(self, schema: dict[str, Any], way: tuple[str | int, ...]) -> Iterator[tuple[Any, str]]:
        if len(way) > 8:
            raise LookupError(f"{self.name}: its body has no end at {way}")
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
        if found is None and _NAMED_ID.fullmatch(name) and name not in NO_NAMES_OF_THINGS:
            raise LookupError(f"{self.name}: nobody knows what {name} is the id of")
        return found[1] if found else None

    def _followed(self, schema: dict[str, Any]) -> dict[str, Any]:
        while "$ref" in schema:
            schema = resolve(self.document, schema["$ref"])
        return schema

    def makes(self) -> str | None:
        """Prefix of the id of what it makes out of other things; none where it makes nothing."""
        for status in ("201", "202"):
            response = self.told["responses"].get(status, {})
            schema = self._followed(response.get("content", {}).get("application/json", {}).get("schema", {}))
            made = _ID.fullmatch(schema.get("properties", {}).get("id", {}).get("pattern", ""))
            taken = {prefix for where, _, prefix in self.id_places() if where == "path"}
            if made and made[1] not in taken and "Location" in response.get("headers", {}):
                return made[1]
        return None


def operations(document: Document) -> list[Operation]:
    """All of them."""
    return [
        Operation(document, method, path, told)
        for path, methods in document["paths"].items()
        for method, told in methods.items()
    ]


def request(operation: Operation, things: "Things | None", **replaced: Any) -> tuple[str, str, dict[str, Any]]:
    """Method, path below /v1 and options of the example's request about somebody's things.

    Parameters
    ----------
    operation : Operation
    things : Things or None
        Whose; without, the example's ids stay.
    replaced : dict
        `at`, a place, and `by`, the id to put there.
    """
    bodies, query, path = operation.bodies(), {}, {}
    at = replaced.get("at", ("", ()))
    body = next((one for one in bodies if at[0] == "body" and _holds(one, at[1])), bodies[0])
    for where, way, prefix in operation.id_places():
        wanted = replaced["by"] if at == (where, way) else None
        if wanted is None and (where == "query" or (where == "body" and not _holds(body, way))):
            continue
        own = wanted or (things.id(prefix, operation) if things else f"{prefix}_{EXAMPLE_ULID}")
        if where == "body":
            _put(body, way, own)
        else:
            (path if where == "path" else query)[str(way[0])] = own
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


class Things:
    """What a tenant has one of, made as somebody asks for its id, by the operations that make such things."""

    def __init__(self, document: Document, api: Api) -> None:
        self.api = api
        self._makers = {made: one for one in operations(document) if (made := one.makes())}
        self._made: dict[tuple[str, bool], str] = {}

    def id(self, prefix: str, operation: Operation) -> str:
        """The id of a thing the operation can be about."""
        is_central = operation.told["tags"] == ["records"]
        kind = (prefix, is_central)
        if kind not in self._made:
            self._made[kind] = self._make(prefix, operation, is_central=is_central)
        return self._made[kind]

    def _make(self, prefix: str, operation: Operation, *, is_central: bool) -> str:
        if prefix not in self._makers:
            raise LookupError(f"{operation.name}: no operation makes a {prefix}_")
        method, path, options = request(self._makers[prefix], self)
        if prefix == "ds":
            options["json"] |= {"trust": "central" if is_central else "local", "epsilon": 32}
        answer = self.api.request(method, path, **options)
        assert answer.status_code in (201, 202), answer.text
        made = str(answer.json()["id"])
        if prefix == "job":
            finish(self.api.database, made, a_model())
        return made

    def seen(self, document: Document) -> list[Any]:
        """All that the tenant can read of what was made so far."""
        shown = []
        for operation in operations(document):
            if operation.method != "get" or not operation.path.startswith("/v1"):
                continue
            if operation.name in ON_THEIR_OWN:
                continue
            prefixes = {(prefix, operation.told["tags"] == ["records"]) for where, _, prefix in operation.id_places()
                        if where == "path"}  # fmt: skip
            if prefixes <= self._made.keys():
                method, path, options = request(operation, self)
                answer = self.api.request(method, path, **options)
                shown.append((operation.name, answer.status_code, _told(answer)))
        return shown


def _told(answer: httpx.Response) -> Any:
    return answer.json() | {"request_id": ""} if "json" in answer.headers.get("content-type", "") else answer.text
