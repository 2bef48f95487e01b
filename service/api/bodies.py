"""Documents in request bodies: checked for the key's scope before they are read, and bounded before they are parsed.

FastAPI parses the body of a request before it calls the dependencies of the route. It parses and validates in the event
loop, where a long parse delays all other requests. So a document has a limited number of values, and one of each name.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from fastapi import Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from service.http.auth import Requirement
from service.http.headers import normalise
from service.http.problems import BadRequest, PayloadTooLarge

MAX_VALUES = 150_000  # values and members of a document; a tree grid, the largest one, has 65,536 levels
MAX_MEMBERS = 20_000  # in the objects of a document together; unknown members cost the most
_IDENTIFIER = re.compile("[A-Za-z_][A-Za-z_0-9]{0,39}")


class DocumentRoute(APIRoute):
    """A route of the API."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler, with the checks that precede the body."""
        handle, required = super().get_route_handler(), list(_requirements(self.dependant))

        async def handle_checked(request: Request) -> Response:
            for requirement in required:
                await requirement(request)
            normalise(request.scope)
            return await handle(_DocumentRequest(request.scope, request.receive))

        return handle_checked


class _DocumentRequest(Request):
    """A request with a body that is parsed within limits."""

    async def json(self) -> Any:
        """Return the document. Raise BadRequest or PayloadTooLarge."""
        body = await self.body()
        if sum(map(body.count, (b",", b"[", b"{"))) > MAX_VALUES:
            raise PayloadTooLarge(f"the document has too many values: at most {MAX_VALUES}")
        if body.count(b":") > MAX_MEMBERS:
            raise PayloadTooLarge(f"the document has too many members: at most {MAX_MEMBERS}")
        return json.loads(body, object_pairs_hook=_unique)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object. Raise BadRequest if a member occurs twice, because parsers differ in which one they take."""
    members = dict(pairs)
    if len(members) < len(pairs):
        (twice, _), *_others = Counter(name for name, _ in pairs).most_common(1)
        name = f"`{twice}`" if _IDENTIFIER.fullmatch(twice) else "a member"
        raise BadRequest(f"the body has {name} twice in one object: send each member once")
    return members


def _requirements(dependant: Dependant) -> Iterator[Requirement]:
    """Yield the requirements on the key of all dependencies."""
    if isinstance(dependant.call, Requirement):
        yield dependant.call
    for each in dependant.dependencies:
        yield from _requirements(each)
