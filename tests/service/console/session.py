"""A minimal HTTP client of the console that signs in, stores the cookie and submits forms."""

import html
import re
from typing import Any

import httpx

from tests.service.api import Api

ORIGIN = "http://gateway"
DATASET = {"name": "made", "trust": "local", "epsilon": "3", "features": "x, 0, 1\ny, -1, 1, m"}
ROUND = {"epsilon": "0.5", "target_reports": "1000", "encoding": "grid", "cells": "4"}
UPLOAD = {"name": "people.csv", "content": b"x,y\n0.5,0.25\n0.25,7\n"}
FORM = {"type": "shifted_grid", "epsilon": "0.5", "clusters": "3", "target_reports": "100000"}  # a new job


class Console:
    """A session of one key."""

    def __init__(self, api: Api, *, sign_in: bool = True) -> None:
        self.http, self.secret = api.http, api.secret
        self.token = ""
        if sign_in:
            response = self.sign_in(api.secret)
            assert (response.status_code, response.headers.get("location")) == (303, "/console/"), response.text

    def sign_in(self, secret: str, **form: str) -> httpx.Response:
        """Sign in with a key and use the new session."""
        response = self.http.post(
            "/console/login", data={"key": secret, **form}, headers={"origin": ORIGIN, "cookie": self.cookie}
        )
        found = re.search(r"sfumato_console=([0-9a-f]{64});", response.headers.get("set-cookie", ""))
        self.token = found[1] if found else self.token
        self.http.cookies.clear()
        return response

    @property
    def cookie(self) -> str:
        return f"sfumato_console={self.token}"

    def get(self, path: str, **headers: str) -> httpx.Response:
        """Send GET to a path below /console."""
        return self.http.get(f"/console{path}", headers={"cookie": self.cookie, **headers})

    def text(self, path: str) -> str:
        """Return the text of an existing page."""
        response = self.get(path)
        assert response.status_code == 200, response.text
        return response.text

    @property
    def csrf(self) -> str:
        """Return the form token of this session."""
        found = re.search('name="csrf" value="([0-9a-f]{64})"', self.text("/"))
        assert found is not None
        return found[1]

    def post(self, path: str, data: dict[str, Any] | None = None, **headers: str) -> httpx.Response:
        """Submit a form."""
        given = {"origin": ORIGIN, "cookie": self.cookie, **headers}
        return self.http.post(f"/console{path}", data={"csrf": self.csrf} | (data or {}), headers=given)

    def location(self, path: str, data: dict[str, Any]) -> str:
        """Submit a valid form and return the path that the response redirects to."""
        response = self.post(path, data)
        assert response.status_code == 303, response.text
        return response.headers["location"].removeprefix("/console")

    def send(self, path: str, body: bytes, media_type: str) -> httpx.Response:
        """Send any body to a path below /console."""
        headers = {"origin": ORIGIN, "cookie": self.cookie, "content-type": media_type}
        return self.http.post(f"/console{path}", content=body, headers=headers)

    def upload(self, path: str, name: str, content: bytes, **fields: str) -> httpx.Response:
        """Submit a form with a file."""
        parts: dict[str, tuple[str | None, bytes]] = {"csrf": (None, self.csrf.encode())}
        parts |= {each: (None, value.encode()) for each, value in fields.items()}
        body, media_type = multipart(parts | {"file": (name, content)})
        return self.send(path, body, media_type)


def multipart(parts: dict[str, tuple[str | None, bytes]]) -> tuple[bytes, str]:
    """Return the body and media type of multipart/form-data as written by a browser."""
    mark = "----WebKitFormBoundaryx7Yx"
    body = b""
    for name, (file, content) in parts.items():
        of_file = f'; filename="{file}"\r\nContent-Type: application/octet-stream' if file is not None else ""
        body += (
            f'--{mark}\r\nContent-Disposition: form-data; name="{name}"{of_file}\r\n\r\n'.encode() + content + b"\r\n"
        )
    return body + f"--{mark}--\r\n".encode(), f"multipart/form-data; boundary={mark}"


def words(response: httpx.Response) -> str:
    """Return the text of a page, unescaped and with single blanks."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", response.text)).split())


def once(page: str) -> str:
    """Return the idempotency key of the form on a page."""
    found = re.search('name="once" value="([^"]+)"', page)
    assert found is not None
    return found[1]
