"""In-process client of the gateway's own API, which calls the routes with the key of the session.

Therefore a page can show and do only what its key permits, and errors have the messages of the API.
"""

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from fastapi import FastAPI
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from starlette.types import Message, Receive, Scope, Send

from models.database.types import canonical_json
from models.identity.caller import Caller
from service.http.problems import Forbidden, NotFound, from_exception

Json = dict[str, Any]


class Response:
    """The response of a route: status, headers and complete body."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""

    async def receive(self, message: Message) -> None:
        """Add one ASGI message to the response."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in message["headers"]}
        else:
            self.body += message.get("body", b"")

    def json(self) -> Json:
        """Return the parsed body, or an empty object if there is no body."""
        document: Json = json.loads(self.body) if self.body else {}
        return document


class Api:
    """The API for one caller, within one request of a browser.

    Parameters
    ----------
    app : FastAPI
    scope : dict
        ASGI scope of the browser's request.
    caller : Caller
    """

    def __init__(self, app: FastAPI, scope: Scope, caller: Caller) -> None:
        self._app = app
        self._outer = scope
        self._caller = caller

    async def get(self, path: str, **query: object) -> Json:
        """Send GET to a path below `/v1`. Raise Problem."""
        return (await self._request("GET", path, query=query)).json()

    async def get_allowed(self, path: str, **query: object) -> Json | None:
        """Send GET. Return None if the scopes of the key do not permit it."""
        try:
            return await self.get(path, **query)
        except Forbidden:
            return None

    async def get_existing(self, path: str) -> Json | None:
        """Send GET. Return None if the object does not exist or the scopes of the key do not permit it."""
        try:
            return await self.get_allowed(path)
        except NotFound:
            return None

    async def post(self, path: str, body: Json | None = None, *, once: str = "", **query: object) -> Json:
        """Send POST to a path below `/v1` with the idempotency key `once`. Raise Problem."""
        headers = {"idempotency-key": once} if once else {}
        return (await self._request("POST", path, query=query, body=body, headers=headers)).json()

    async def post_bytes(self, path: str, content: bytes, media_type: str, *, once: str = "", **query: object) -> Json:
        """Send a file with POST and the idempotency key `once`. Raise Problem."""
        headers = {"content-type": media_type} | ({"idempotency-key": once} if once else {})
        return (await self._request("POST", path, query=query, content=content, headers=headers)).json()

    async def patch(self, path: str, body: Json) -> Json:
        """Send PATCH to a path below `/v1`. Raise Problem."""
        return (await self._request("PATCH", path, body=body)).json()

    async def delete(self, path: str, **query: object) -> None:
        """Send DELETE to a path below `/v1`. Raise Problem."""
        await self._request("DELETE", path, query=query)

    async def file(self, path: str) -> Response:
        """Send GET and return the unparsed response. Raise Problem."""
        return await self._request("GET", path)

    async def stream(self, path: str, receive: Receive, send: Send) -> None:
        """Send GET and forward the response as it arrives. Raise Problem only before the response starts."""
        last = [pair for pair in self._outer["headers"] if pair[0] == b"last-event-id"]
        await self._call(self._scope("GET", path, {}, last), receive, send)

    async def _request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        body: Json | None = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        raw = [(name.encode(), value.encode("latin-1", "replace")) for name, value in (headers or {}).items()]
        if body is not None:
            content = canonical_json(body).encode()
            raw.append((b"content-type", b"application/json"))
        if content is not None:
            raw.append((b"content-length", b"%d" % len(content)))
        messages = iter([{"type": "http.request", "body": content or b"", "more_body": False}])

        async def receive() -> Message:
            return next(messages, {"type": "http.disconnect"})

        response = Response()
        await self._call(self._scope(method, path, query or {}, raw), receive, response.receive)
        return response

    async def _call(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await AsyncExitStackMiddleware(self._app.router)(scope, receive, send)
        except Exception as error:
            raise from_exception(error) from error

    def _scope(self, method: str, path: str, query: Mapping[str, object], headers: list[tuple[bytes, bytes]]) -> Scope:
        given = {name: value for name, value in query.items() if value is not None}
        state = {"caller": self._caller, "request_id": self._outer["state"]["request_id"]}
        return {
            "type": "http",
            "asgi": self._outer["asgi"],
            "http_version": "1.1",
            "method": method,
            "scheme": self._outer["scheme"],
            "path": f"/v1{path}",
            "raw_path": f"/v1{path}".encode(),
            "query_string": urlencode(given).encode(),
            "root_path": "",
            "headers": headers,
            "client": self._outer.get("client"),
            "server": self._outer.get("server"),
            "app": self._app,
            "state": state,
        }
