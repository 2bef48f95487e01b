"""Rejection of input that an operation does not read: unknown query parameters, and a body where none belongs.

An ignored parameter changes what a request does: a deletion that a client wants to limit would delete everything.
"""

import json
from collections.abc import Collection, Iterator

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.types import Scope

from service.http.problems import ValidationFailed
from sfumato.errors import MAX_NAMED
from sfumato.transport.parameters import explain_unknown, printable_name, query_errors

_NO_BODY = "this operation has no body: send none"

_parameters_of: dict[str, tuple[str, ...]] = {}  # operation id to its query parameters


def check_query(
    scope: Scope, known: Collection[str] = (), repeatable: Collection[str] = (), *, allow_empty: bool = False
) -> None:
    """Raise ValidationFailed if a query parameter is unknown, repeated or empty."""
    query: bytes = scope.get("query_string", b"")
    if query and (errors := query_errors(query, known, repeatable, allow_empty=allow_empty)):
        raise ValidationFailed(errors=[{"pointer": "", **each} for each in errors])


def has_unread_input(scope: Scope) -> bool:
    """Return whether a request without parameters and without a body has a query or a body."""
    return bool(scope.get("query_string", b"")) or has_body(scope)


def has_body(scope: Scope) -> bool:
    """Return whether the head of a request announces a body."""
    for name, value in scope["headers"]:
        if name == b"transfer-encoding" or (name == b"content-length" and value.strip() != b"0"):
            return True
    return False


async def reject_unread_input(request: Request) -> None:
    """Raise ValidationFailed for what the route does not read. It is a dependency of every route."""
    route: APIRoute = request.scope["route"]
    known = _parameters_of.get(route.unique_id)
    if known is None:
        known = tuple(dict.fromkeys(_query_parameters(route.dependant)))
        _parameters_of[route.unique_id] = known
    check_query(request.scope, known)
    takes_body = route.body_field is not None or "requestBody" in (route.openapi_extra or {})
    if not takes_body and has_body(request.scope) and (body := await request.body()):
        raise ValidationFailed(errors=_body_errors(body, known))


def _query_parameters(dependant: Dependant) -> Iterator[str]:
    """Yield the names of the query parameters of a route and its dependencies."""
    for field in dependant.query_params:
        yield field.alias
    for each in dependant.dependencies:
        yield from _query_parameters(each)


def _body_errors(body: bytes, known: Collection[str]) -> list[dict[str, str]]:
    """Return the error of each member of a body that is not read."""
    try:
        members = json.loads(body)
    except (ValueError, RecursionError):
        members = None
    if not isinstance(members, dict) or not members:
        return [{"pointer": "", "message": _NO_BODY}]
    errors = []
    for name in list(members)[:MAX_NAMED]:
        if name in known:
            message = f"this operation has no body: send `{name}` as a query parameter"
        else:
            message = f"{_NO_BODY}. {explain_unknown(name, known).capitalize()}"
        errors.append({"pointer": f"/{printable_name(name)}", "message": message})
    return errors
