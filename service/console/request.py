"""A request of a browser with its session and form.

The browser sends the session cookie to the console only, so it gives no access to the API. The console accepts forms of
its own pages only. It checks the headers `Origin` and `Sec-Fetch-Site` and a form token that depends on the session.
"""

import hmac
import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from email.message import Message
from functools import cached_property
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from fastapi import FastAPI
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import Field, File, FormParser
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from models.identity import console_sessions
from models.identity.caller import Caller
from models.identity.console_sessions import SESSION_SECONDS, SessionIdentity
from models.tables.identity import Scope
from service.console import PATH
from service.console.api_client import Api
from service.console.forms import parse_number
from service.context import GatewayContext
from service.http.headers import authority
from service.http.problems import BadRequest, Forbidden, PayloadTooLarge

COOKIE = "sfumato_console"
MAX_FORM_BYTES = 64 << 10
MAX_FILE_BYTES = 8 << 20  # limit of a file in memory; the API accepts larger files as a stream
MAX_FORM_FIELDS = 200

Files = dict[str, tuple[str, bytes]]

_TOKEN = re.compile("[0-9a-f]{64}")

logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # its warnings quote bytes of the form


@dataclass(frozen=True)
class Visit:
    """A request of a signed-in key.

    Attributes
    ----------
    request : Request
    services : GatewayContext
    gateway : FastAPI
    signed_in : SessionIdentity
    form : dict of str to list of str
        Fields of the form. Empty for GET.
    files : dict of str to (name, content)
        Uploaded files.
    """

    request: Request
    services: GatewayContext
    gateway: FastAPI
    signed_in: SessionIdentity
    form: dict[str, list[str]]
    files: Files = field(default_factory=dict)

    @property
    def caller(self) -> Caller:
        """Return the caller for functions of `models`."""
        return replace(self.signed_in.caller, request_id=self.request.scope["state"]["request_id"])

    @cached_property
    def api(self) -> Api:
        """Return a client of the API for this caller."""
        return Api(self.gateway, self.request.scope, self.caller)

    def may(self, *scopes: Scope) -> bool:
        """Return whether the key has one of the scopes. Pages use this for links; routes check scopes again."""
        return any(self.caller.may(scope) for scope in scopes)

    def id(self, name: str) -> str:
        """Return an id from the path."""
        return str(self.request.path_params[name])

    def form_value(self, name: str) -> str:
        """Return a form field without surrounding blanks, or an empty text."""
        return self.form.get(name, [""])[0].strip()

    def filled(self, *names: str) -> dict[str, str]:
        """Return the form fields of these names that are not empty."""
        return {name: value for name in names if (value := self.form_value(name))}

    def numbers(self, *names: str) -> dict[str, Any]:
        """Return the form fields of these names that are not empty, as numbers."""
        return {name: parse_number(value) for name, value in self.filled(*names).items()}

    def query_value(self, name: str) -> str:
        """Return a query parameter, or an empty text."""
        return self.request.query_params.get(name, "")

    def filters(self, *names: str) -> dict[str, str]:
        """Return the given query parameters of these names that are not empty."""
        return {name: value for name in names if (value := self.query_value(name).strip())}

    def query_id(self, name: str) -> str:
        """Return a query parameter that may be an id and is safe as part of a path, or an empty text."""
        return _id(self.query_value(name))

    def query_ids(self, name: str) -> list[str]:
        """Return the given values of a query parameter as ids. Values that cannot be ids become "-"."""
        return [_id(value) or "-" for value in self.request.query_params.getlist(name) if value.strip()]

    async def newest_first(self, path: str, last: int, size: int) -> dict[str, Any]:
        """Return the requested page of a list that the API numbers from 1 to `last`. Page 1 has the last items.

        The page is 1 if the parameter is not a number.
        """
        size = min(size, self.services.settings.max_page)
        n_pages = max(1, -(-last // size))
        number = self.query_value("page")
        is_number = number.isascii() and number.isdigit() and len(number) < 10
        page = min(max(int(number), 1), n_pages) if is_number else 1
        before = last - size * (page - 1)
        after = max(0, before - size)
        found = await self.api.get(path, cursor=str(after), limit=max(1, before - after), order="oldest")
        return {"items": found["items"][::-1], "page": page, "n_pages": n_pages, "n_entries": last}


class Page(NamedTuple):
    """A page of the console."""

    method: str
    path: str
    handler: Callable[[Visit], Awaitable[Response]]
    parameters: tuple[str, ...] = ()  # names of its query parameters
    takes_files: bool = False


async def find_session(request: Request, services: GatewayContext) -> SessionIdentity | None:
    """Return the session of a request, or None if it has no valid session."""
    token = read_token(request)
    if token is None:
        return None
    return await run_in_threadpool(_find, services, token)


def _id(text: str) -> str:
    """Return a text that may be an id and is safe as part of a path, or an empty text."""
    text = text.strip()
    return text if text.isascii() and text.replace("_", "").isalnum() else ""


def _find(services: GatewayContext, token: str) -> SessionIdentity | None:
    with services.database.reading() as session:
        return console_sessions.find(session, token, now=services.database.clock())


def read_token(request: Request) -> str | None:
    """Return the session token of the cookie, or None if it has no valid form."""
    try:
        found = SimpleCookie("; ".join(request.headers.getlist("cookie"))).get(COOKIE)
    except CookieError:
        return None
    return found.value if found is not None and _TOKEN.fullmatch(found.value) else None


def cookie(request: Request, token: str, public_url: str | None) -> dict[str, Any]:
    """Return the cookie with a session token. An empty token deletes the cookie.

    Behind a proxy that rewrites `Host` to a loopback address, the public URL shows that browsers use TLS.
    """
    return {
        "key": COOKIE,
        "value": token,
        "max_age": SESSION_SECONDS if token else 0,
        "path": PATH,
        "httponly": True,
        "samesite": "strict",
        "secure": (public_url or "").lower().startswith("https:") or not _is_loopback(request),
    }


def _is_loopback(request: Request) -> bool:
    """Return whether the browser uses a loopback address. Only there the cookie works without TLS."""
    name = request.url.hostname or ""
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


# ---- forms ----


async def read_form(request: Request, *, takes_files: bool = False) -> tuple[dict[str, list[str]], Files]:
    """Return the fields and, with `takes_files`, the files of a form. Raise PayloadTooLarge or BadRequest."""
    most = MAX_FORM_BYTES + (MAX_FILE_BYTES if takes_files else 0)
    pieces, size = [], 0
    async for piece in request.stream():
        size += len(piece)
        if size > most:
            raise PayloadTooLarge(f"a form may have at most {most} bytes")
        pieces.append(piece)
    body = b"".join(pieces)
    sent = Message()
    sent["content-type"] = request.headers.get("content-type", "")
    if takes_files and sent.get_content_type() == "multipart/form-data":
        return _parts(body, str(sent.get_param("boundary", "")))
    if sent.get_content_type() != "application/x-www-form-urlencoded":
        raise BadRequest("the body must be a form")
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MAX_FORM_FIELDS, errors="strict")
    except ValueError:
        raise BadRequest("the form cannot be parsed") from None
    form: dict[str, list[str]] = {}
    for name, value in pairs:
        form.setdefault(name, []).append(value)
    return form, {}


def _parts(body: bytes, boundary: str) -> tuple[dict[str, list[str]], Files]:
    """Parse multipart/form-data (RFC 7578). A file stays in memory, because a disk would keep its records."""
    fields: list[Field] = []
    sent_files: list[File] = []
    ends: list[bool] = []
    try:
        parser = FormParser(
            "multipart/form-data",
            fields.append,
            sent_files.append,
            lambda: ends.append(True),
            boundary,
            config={"MAX_MEMORY_FILE_SIZE": len(body), "UPLOAD_ERROR_ON_BAD_CTE": True},
        )
        parser.write(body)
        after = body.partition(f"\r\n--{boundary}--".encode())[2].strip()
        if not ends or after or len(fields) + len(sent_files) > MAX_FORM_FIELDS:
            raise BadRequest("the form cannot be parsed")
        form: dict[str, list[str]] = {}
        for each in fields:
            form.setdefault((each.field_name or b"").decode(), []).append((each.value or b"").decode())
        files = {
            (each.field_name or b"").decode(): ((each.file_name or b"").decode(), _content(each)) for each in sent_files
        }
    except (FormParserError, UnicodeDecodeError):
        raise BadRequest("the form cannot be parsed") from None
    return form, files


def _content(file: File) -> bytes:
    file.file_object.seek(0)
    return file.file_object.read()


def check_origin(request: Request, public_url: str | None) -> None:
    """Raise Forbidden unless a page of this console sent the form."""
    origin = urlsplit(request.headers.get("origin", ""))
    own = [request.headers.get("host", ""), urlsplit(public_url or "").netloc]
    hosts = {authority(origin.scheme, host) for host in own} - {None}
    beside = request.headers.get("sec-fetch-site", "same-origin").strip().lower()
    is_own = authority(origin.scheme, origin.netloc) in hosts
    if origin.scheme not in ("http", "https") or not is_own or beside != "same-origin":
        raise Forbidden(_foreign_form(request, origin.netloc, beside))


def _foreign_form(request: Request, sender: str, beside: str) -> str:
    """Return why a form is refused. A proxy that rewrites `Host` looks like another site."""
    reason = "the form was not sent by a page of this console"
    if not sender or beside != "same-origin":
        return f"{reason}: open the console and send the form again"
    host = request.headers.get("host", "")
    return (
        f"{reason}: the browser uses {sender[:200]!r}, and the request names {host[:200]!r}; if a proxy in front of "
        "the gateway rewrites the header Host, let it pass Host on, or set SFUMATO_PUBLIC_URL to the browser's address"
    )


def check_csrf(form: dict[str, list[str]], session: SessionIdentity) -> None:
    """Raise Forbidden unless the form contains the form token of this session."""
    token = form.get("csrf", [""])[0]
    if not hmac.compare_digest(token.encode(), session.csrf.encode()):
        raise Forbidden("the form belongs to another session; reload the page")
