"""A browser without a screen: it signs in at the console, keeps the cookie, and sends forms as a page would."""

import html
import re
from typing import Any

import httpx

from sfumato.cluster_model import ClusterModel
from tests.service.api import Api

ORIGIN = "http://gateway"
DATASET = {"name": "made", "trust": "local", "epsilon": "3", "features": "x, 0, 1\ny, -1, 1, m"}
ROUND = {"epsilon": "0.5", "target_reports": "1000", "encoding": "grid", "cells": "4"}
UPLOAD = {"name": "people.csv", "content": b"x,y\n0.5,0.25\n0.25,7\n"}
FORM = {"type": "shifted_grid", "epsilon": "0.5", "clusters": "3", "target_reports": "100000"}  # a new job


class Console:
    """One session of one key."""

    def __init__(self, api: Api, *, sign_in: bool = True) -> None:
        self.http, self.secret = api.http, api.secret
        self.token = ""
        if sign_in:
            answer = self.sign_in(api.secret)
            assert answer.status_code == 303, answer.text
            assert answer.headers["location"] == "/console/"

    def sign_in(self, secret: str, **form: str) -> httpx.Response:
        """Send a key; the session it may give is this one's from now on."""
        answer = self.http.post(
            "/console/login", data={"key": secret, **form}, headers={"origin": ORIGIN, "cookie": self.cookie}
        )
        found = re.search(r"sfumato_console=([0-9a-f]{64});", answer.headers.get("set-cookie", ""))
        self.token = found[1] if found else self.token
        self.http.cookies.clear()
        return answer

    @property
    def cookie(self) -> str:
        return f"sfumato_console={self.token}"

    def get(self, path: str, **headers: str) -> httpx.Response:
        """A page below /console."""
        return self.http.get(f"/console{path}", headers={"cookie": self.cookie, **headers})

    def text(self, path: str) -> str:
        """A page that must be there."""
        answer = self.get(path)
        assert answer.status_code == 200, answer.text
        return answer.text

    @property
    def csrf(self) -> str:
        """What this session's forms bring along."""
        found = re.search('name="csrf" value="([0-9a-f]{64})"', self.text("/"))
        assert found is not None
        return found[1]

    def post(self, path: str, data: dict[str, Any] | None = None, **headers: str) -> httpx.Response:
        """A form of a page's own."""
        given = {"origin": ORIGIN, "cookie": self.cookie, **headers}
        return self.http.post(f"/console{path}", data={"csrf": self.csrf} | (data or {}), headers=given)

    def upload(self, path: str, name: str, content: bytes, **fields: str) -> httpx.Response:
        """A form with a file."""
        parts: dict[str, tuple[str | None, bytes]] = {"csrf": (None, self.csrf.encode())}
        parts |= {each: (None, value.encode()) for each, value in fields.items()}
        body, media_type = multipart(parts | {"file": (name, content)})
        given = {"origin": ORIGIN, "cookie": self.cookie, "content-type": media_type}
        return self.http.post(f"/console{path}", content=body, headers=given)


def multipart(parts: dict[str, tuple[str | None, bytes]]) -> tuple[bytes, str]:
    """multipart/form-data as a browser writes it: the body and its media type."""
    mark = "----WebKitFormBoundaryx7Yx"
    body = b""
    for name, (file, content) in parts.items():
        of_file = f'; filename="{file}"\r\nContent-Type: application/octet-stream' if file is not None else ""
        body += (
            f'--{mark}\r\nContent-Disposition: form-data; name="{name}"{of_file}\r\n\r\n'.encode() + content + b"\r\n"
        )
    return body + f"--{mark}--\r\n".encode(), f"multipart/form-data; boundary={mark}"


def words(answer: httpx.Response) -> str:
    """What a page says: its text, unescaped, with single blanks."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", answer.text)).split())


def once(page: str) -> str:
    """The name under which a page's form happens once."""
    found = re.search('name="once" value="([^"]+)"', page)
    assert found is not None
    return found[1]


def vars_of(model: ClusterModel) -> dict[str, Any]:
    """The members of a model, to make another one of."""
    return {name: getattr(model, name) for name in model.__dataclass_fields__}
