"""One request of a browser: whose session it is, and what its form holds.

The cookie goes to the console's pages alone, so the API cannot be called with it. A form is
taken from the console's own pages only: the browser has to say so (`Origin`, and
`Sec-Fetch-Site` where it sends that), and the form has to bring what follows from the
session's token.
"""

import hmac
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from email import message_from_string
from email.message import Message
from functools import cached_property
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from models import console_session
from models.console_session import SESSION_SECONDS, SignedIn
from models.tenant import Caller, Scope
from service.console import PATH
from service.console.inner import Api
from service.problems import BadRequest, Forbidden, PayloadTooLarge
from service.services import Services

COOKIE = "sfumato_console"
MAX_FORM_BYTES = 64 << 10
MAX_FILE_BYTES = 8 << 20  # held in memory; more goes by the API, which reads as it comes
MAX_FORM_FIELDS = 200

Files = dict[str, tuple[str, bytes]]

_TOKEN = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class Visit:
    """One request, of whoever signed in.

    Attributes
    ----------
    request : Request
    services : Services
    gateway : FastAPI
    signed_in : SignedIn
    form : dict of str to list of str
        What was posted; empty for a GET.
    files : dict of str to (name, content)
        What was posted as files.
    """

    request: Request
    services: Services
    gateway: FastAPI
    signed_in: SignedIn
    form: dict[str, list[str]]
    files: Files = field(default_factory=dict)

    @property
    def caller(self) -> Caller:
        """Who asks, as the models know it."""
        return replace(self.signed_in.caller, request_id=self.request.scope["state"]["request_id"])

    @cached_property
    def api(self) -> Api:
        """The API, as this caller."""
        return Api(self.gateway, self.request.scope, self.caller)

    def may(self, *scopes: Scope) -> bool:
        """Whether the key has one of the scopes: for what a page offers; routes check for themselves."""
        return any(self.caller.may(scope) for scope in scopes)

    def id(self, name: str) -> str:
        """An id of the path."""
        return str(self.request.path_params[name])

    def said(self, name: str) -> str:
        """A field of the form, without blanks around it; empty where it was left out."""
        return self.form.get(name, [""])[0].strip()

    def asked(self, name: str) -> str:
        """A member of the query; empty where it was left out."""
        return self.request.query_params.get(name, "")

    def page(self, n_pages: int) -> int:
        """Which of so many pages is asked for; the first where that is no number."""
        asked = self.asked("page")
        return min(max(int(asked), 1), n_pages) if asked.isascii() and asked.isdigit() and len(asked) < 10 else 1


Page = tuple[str, str, Callable[[Visit], Awaitable[Response]]]  # method, path, what answers


async def signed_in(request: Request, services: Services) -> SignedIn | None:
    """Whose session a request brings; None where it brings none that is live."""
    token = token_of(request)
    if token is None:
        return None
    return await run_in_threadpool(_find, services, token)


def _find(services: Services, token: str) -> SignedIn | None:
    with services.database.reading() as session:
        return console_session.find(session, token, now=services.database.clock())


def token_of(request: Request) -> str | None:
    """The token of the cookie, where it could be one."""
    try:
        found = SimpleCookie(request.headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return None
    return found.value if found is not None and _TOKEN.fullmatch(found.value) else None


def cookie(request: Request, token: str) -> dict[str, Any]:
    """How the token is given to the browser; an empty one takes it back."""
    return {
        "key": COOKIE,
        "value": token,
        "max_age": SESSION_SECONDS if token else 0,
        "path": PATH,
        "httponly": True,
        "samesite": "strict",
        "secure": not _is_loopback(request),
    }


def _is_loopback(request: Request) -> bool:
    """Whether the browser is on this machine: only there it does without TLS."""
    name = request.url.hostname or ""
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


# ---- forms ----


async def read_form(request: Request, *, takes_files: bool = False) -> tuple[dict[str, list[str]], Files]:
    """What was posted, and where that is taken the files; raises PayloadTooLarge, BadRequest."""
    most = MAX_FORM_BYTES + (MAX_FILE_BYTES if takes_files else 0)
    pieces, size = [], 0
    async for piece in request.stream():
        size += len(piece)
        if size > most:
            raise PayloadTooLarge(f"a form holds {most} bytes at most")
        pieces.append(piece)
    body = b"".join(pieces)
    sent = Message()
    sent["content-type"] = request.headers.get("content-type", "")
    if takes_files and sent.get_content_type() == "multipart/form-data":
        return _parts(body, str(sent.get_param("boundary", "")).encode("ascii", "replace"))
    if sent.get_content_type() != "application/x-www-form-urlencoded":
        raise BadRequest("a form is needed")
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MAX_FORM_FIELDS, errors="strict")
    except ValueError:
        raise BadRequest("this is no form that can be read") from None
    form: dict[str, list[str]] = {}
    for name, value in pairs:
        form.setdefault(name, []).append(value)
    return form, {}


def _parts(body: bytes, boundary: bytes) -> tuple[dict[str, list[str]], Files]:
    """The fields and files of multipart/form-data (RFC 7578), as browsers write it."""
    unreadable = BadRequest("this is no form that can be read")
    first, *parts = (b"\r\n" + body).split(b"\r\n--" + boundary)
    if not boundary or first or not parts or not parts.pop().startswith(b"--") or len(parts) > MAX_FORM_FIELDS:
        raise unreadable
    form: dict[str, list[str]] = {}
    files: Files = {}
    for part in parts:
        head, blank, content = part.partition(b"\r\n\r\n")
        try:
            told = message_from_string(head.decode().lstrip("\r\n"))
            name, file = told.get_param("name", header="content-disposition"), told.get_filename()
            if not blank or not isinstance(name, str):
                raise unreadable
            if file is None:
                form.setdefault(name, []).append(content.decode())
            else:
                files[name] = (file, content)
        except UnicodeDecodeError:
            raise unreadable from None
    return form, files


def check_origin(request: Request, public_url: str | None) -> None:
    """Raise Forbidden unless a page of this console sent the form."""
    hosts = {request.headers.get("host", ""), urlsplit(public_url or "").netloc} - {""}
    origin = urlsplit(request.headers.get("origin", ""))
    beside = request.headers.get("sec-fetch-site", "same-origin")
    if origin.scheme not in ("http", "https") or origin.netloc not in hosts or beside != "same-origin":
        raise Forbidden("this form was not sent by a page of this console")


def check_csrf(form: dict[str, list[str]], who: SignedIn) -> None:
    """Raise Forbidden unless the form was made for this session."""
    brought = form.get("csrf", [""])[0]
    if not hmac.compare_digest(brought.encode(), who.csrf.encode()):
        raise Forbidden("this form is of another session: load its page again")
