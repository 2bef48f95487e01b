"""Request headers, read so that the changes of proxies between client and gateway have no effect.

A proxy may change the case of names and of case-insensitive values, add or remove spaces, split a list into several
fields or join fields with commas (RFC 9110, section 5.3). It may append ports to addresses, and weaken or mark entity
tags when it compresses a response. All headers that the gateway compares or parses are read here, except the framing
of requests, which `connections` checks.
"""

import hashlib
import re
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any
from urllib.parse import urlsplit

from starlette.types import Scope

from connections import headers
from service.http.problems import BadRequest

JSON = b"application/json"
_PORT = re.compile(r"\[([^\]]*)\](?::\d{1,5})?|([0-9.]+):\d{1,5}")
_COMPRESSED_TAG = re.compile(r"(?:-|;|--)(?:gzip|br|zstd|deflate)(?=\"?$)")  # marks of proxies on compressed responses
_DEFAULT_PORTS = {"http": 80, "https": 443}


def header(scope: Scope, name: bytes) -> bytes | None:
    """Return a header by its lower-case name, with all its fields joined by commas, or None if there is none."""
    found = [value for key, value in scope["headers"] if key == name]
    return b", ".join(found) if found else None


def header_text(scope: Scope, name: bytes) -> str:
    """Return a header as text; empty if there is none."""
    return (header(scope, name) or b"").decode("latin-1")


def single(scope: Scope, name: bytes) -> str | None:
    """Return a header with one value, or None. Repetitions of the value count once. Raise BadRequest for others."""
    try:
        field = headers.one_field(scope["headers"], name)
    except headers.SeveralValues as error:
        raise BadRequest(str(error)) from None
    if field is None:
        return None
    parts = {part.strip() for part in field.split(",")}  # joined by a proxy
    return parts.pop() if len(parts) == 1 else field


def media_type(scope: Scope) -> bytes:
    """Return the media type of the body in lower case, without parameters; empty if several are stated."""
    kinds = {part.partition(";")[0].strip(" \t").lower() for part in header_text(scope, b"content-type").split(",")}
    kinds = {kind for kind in kinds if "/" in kind}  # a comma in a parameter does not end the type
    return kinds.pop().encode("latin-1") if len(kinds) == 1 else b""


def content_codings(scope: Scope) -> list[bytes]:
    """Return the codings of the body in the order in which they were applied, without `identity`."""
    names = (part.strip(b" \t").lower() for part in (header(scope, b"content-encoding") or b"").split(b","))
    return [name.removeprefix(b"x-") for name in names if name not in (b"", b"identity")]


def bearer_secret(authorization: bytes | None) -> str | None:
    """Return the key of an `Authorization` header, or None if it has none. Raise BadRequest for several keys."""
    try:
        return headers.bearer_secret((authorization or b"").decode("latin-1"))
    except headers.SeveralValues as error:
        raise BadRequest(str(error)) from None


def normalise(scope: Scope) -> None:
    """Replace the headers that routes read by what `header`, `single` and `media_type` make of them."""
    key = single(scope, b"idempotency-key")
    values = {
        b"content-type": media_type(scope) or None,
        b"idempotency-key": None if key is None else key.encode("latin-1"),
        b"if-match": header(scope, b"if-match"),
        b"if-none-match": header(scope, b"if-none-match"),
    }
    others = [(name, value) for name, value in scope["headers"] if name not in values]
    scope["headers"] = others + [(name, value) for name, value in values.items() if value is not None]


# ---- entity tags ----


def etag(body: bytes) -> str:
    """Return a strong entity tag for a response body."""
    return f'"{hashlib.sha256(body).hexdigest()[:32]}"'


def etag_matches(tag: str, given: str) -> bool:
    """Return whether `If-Match` or `If-None-Match` contains the tag.

    Weak tags, and tags that a proxy marked as compressed, are compared as the tag of the response that it changed.
    """
    tags = [
        _COMPRESSED_TAG.sub("", part.strip(" \t").removeprefix("W/").removeprefix("w/")) for part in given.split(",")
    ]
    return tag in tags or "*" in tags


# ---- addresses ----


def parse_address(text: Any) -> IPv4Address | IPv6Address | None:
    """Return the address of a hop, which may have a port, brackets or quotes; None if it is no address."""
    text = str(text).strip(' \t"')
    if found := _PORT.fullmatch(text):
        text = found[1] or found[2] or ""
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


def authority(scheme: str, host: str) -> tuple[str, int | None] | None:
    """Return the lower-case name and the port of a host, with the default port of the scheme; None if it has none."""
    try:
        found = urlsplit(f"//{host.strip()}")
        port = found.port
    except ValueError:
        return None
    name = found.hostname
    return None if not name else (name.rstrip("."), port or _DEFAULT_PORTS.get(scheme))
