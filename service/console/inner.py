"""The API as a page asks it: the gateway's own routes, called in this process as the key that signed in.

A page can so show and do nothing that its key could not by itself, and what is refused is
refused in the same words.
"""

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from fastapi import FastAPI
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from starlette.types import Message, Receive, Scope, Send

from models.db import canonical_json
from models.tenant import Caller
from service.problems import Forbidden, NotFound, from_exception

Json = dict[str, Any]


class Answer:
    """What a route answered: its status, headers and whole body."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""

    async def take(self, message: Message) -> None:
        """One message of it."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in message["headers"]}
        else:
            self.body += message.get("body", b"")

    def json(self) -> Json:
        """The body, where there is one."""
        document: Json = json.loads(self.body) if self.body else {}
        return document


class Api:
    """One caller's way to the routes, within one request of a browser.

    Parameters
    ----------
    app : FastAPI
    scope : dict
        The browser's request.
    caller : Caller
    """

    def __init__(self, app: FastAPI, scope: Scope, caller: Caller) -> None:
        self._app = app
        self._outer = scope
        self._caller = caller

    async def get(self, path: str, **query: object) -> Json:
        """GET below `/v1`; raises Problem."""
        return (await self._ask("GET", path, query=query)).json()

    async def get_allowed(self, path: str, **query: object) -> Json | None:
        """The same; None where the key's scopes do not go so far."""
        try:
            return await self.get(path, **query)
        except Forbidden:
            return None

    async def get_there(self, path: str) -> Json | None:
        """The same; None where there is no such thing any more as well."""
        try:
            return await self.get_allowed(path)
        except NotFound:
            return None

    async def post(self, path: str, body: Json | None = None, *, once: str = "") -> Json:
        """POST below `/v1`, once for each `once`; raises Problem."""
        headers = {"idempotency-key": once} if once else {}
        return (await self._ask("POST", path, body=body, headers=headers)).json()

    async def post_bytes(self, path: str, content: bytes, media_type: str, *, once: str = "") -> Json:
        """POST a file below `/v1`, once for each `once`; raises Problem."""
        headers = {"content-type": media_type} | ({"idempotency-key": once} if once else {})
        return (await self._ask("POST", path, content=content, headers=headers)).json()

    async def patch(self, path: str, body: Json) -> Json:
        """PATCH below `/v1`; raises Problem."""
        return (await self._ask("PATCH", path, body=body)).json()

    async def delete(self, path: str) -> None:
        """DELETE below `/v1`; raises Problem."""
        await self._ask("DELETE", path)

    async def file(self, path: str) -> Answer:
        """GET below `/v1`, as it was answered; raises Problem."""
        return await self._ask("GET", path)

    async def stream(self, path: str, receive: Receive, send: Send) -> None:
        """GET below `/v1`, handed on as it comes; raises Problem before it begins."""
        last = [pair for pair in self._outer["headers"] if pair[0] == b"last-event-id"]
        await self._call(self._scope("GET", path, {}, last), receive, send)

    async def _ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        body: Json | None = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        raw = [(name.encode(), value.encode("latin-1", "replace")) for name, value in (headers or {}).items()]
        if body is not None:
            content = canonical_json(body).encode()
            raw.append((b"content-type", b"application/json"))
        if content is not None:
            raw.append((b"content-length", b"%d" % len(content)))
        messages = iter([{"type": "http.request", "body": content or b"", "more_body": False}])

        async def receive() -> Message:
            return next(messages, {"type": "http.disconnect"})

        answer = Answer()
        await self._call(self._scope(method, path, query or {}, raw), receive, answer.take)
        return answer

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
