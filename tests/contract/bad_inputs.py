"""Thousands of invalid requests, derived from the examples of the document; the same ones in every run."""

import gzip
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import httpx

from tests.contract.generated import Objects, Operation, request

# Part of submitted values; no refusal may contain it. It is no identifier, because an error names unknown members.
MARK = "zq7-marker-3fx"
N_GARBLED = 12  # garbled copies of each body

_ODD: tuple[Any, ...] = (
    None, True, -1, 0, 2**31, 2**53, 2**63, 2**64, -(2**63) - 1, 1.5, -0.0, 5e-324, 1e308, "", MARK, f"\x00{MARK}",
    f"\ud800{MARK}", f"{MARK}\u202e\u0301", "é" * 300, MARK * 2_000, "1e400", "NaN", [], {}, [[]], [MARK], {MARK: MARK},
    [None] * 100, "../../etc/passwd", "'; DROP TABLE datasets; --", "{{7*7}}", "%s%n", "2020-13-45T99:99:99Z",
)  # fmt: skip
_NUMBERS = (b"1e400", b"-1e400", b"NaN", b"Infinity", b"-Infinity", b"9" * 5_000, b"0x10", b"01", b"1_0", b"--1", b"+1")
_BODIES = (
    b"", b" ", b"null", b"true", b"0", b"[]", b"{}", b'""', f'"{MARK}"'.encode(), f"[{MARK}]".encode(), b"{",
    b"}", b"[" * 100_000, b'{"a":' * 20_000, b"[" * 400 + b"]" * 400, b"\xef\xbb\xbf{}", '{"a": 1}'.encode("utf-16"),
    b"\xff\xfe\xfd", b'{"a": "\xc3("}', f"{{'a': '{MARK}'}}".encode(), b'{"a": 1,}', b"{} {}", b"/**/{}",
    f'{{"unknown": "{MARK}"}}'.encode(), b"\x00" * 100, b"PK\x03\x04" + MARK.encode(), f"<a>{MARK}</a>".encode(),
)  # fmt: skip
_CONTENT_TYPES = (
    "text/plain", "application/xml", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded", "", "/",
    "application", f"{MARK}/{MARK}", "application/json; charset=utf-16", "application/jsonx", "a/b, text/csv",
    "x" * 65_536, "application/octet-stream", "text/csv", "application/x-npy", "application/vnd.apache.arrow.stream",
)  # fmt: skip
_HEADERS: tuple[tuple[tuple[str, str], ...], ...] = (
    (("X-Long", "x" * 65_536),), (("X-HTTP-Method-Override", "DELETE"),), (("X-HTTP-Method", "PUT"),),
    (("X-Original-URL", "/v1/keys"),), (("X-Forwarded-For", MARK),), (("X-Forwarded-Host", MARK), ("Host", MARK)),
    (("Content-Length", "-1"),), (("Content-Length", "99999999999999999999"),), (("Content-Length", MARK),),
    (("Content-Length", "5"), ("Content-Length", "6")), (("Transfer-Encoding", "chunked"), ("Content-Length", "3")),
    (("Transfer-Encoding", MARK),), (("Accept", f"{MARK}/*"),), (("Accept-Encoding", MARK),), (("Range", "bytes=0-0"),),
    (("Expect", MARK),), (("Cookie", f"session={MARK}"),), (("Upgrade", "h2c"), ("Connection", "Upgrade")),
    (("Idempotency-Key", ""),), (("Idempotency-Key", MARK * 100),), (("Idempotency-Key", "a b"),),
    (("Idempotency-Key", "é"),), (("Idempotency-Key", "a"), ("Idempotency-Key", "b")), (("If-Match", MARK),),
    (("If-Match", '"' * 1_000),), (("If-None-Match", MARK),), (("If-None-Match", ",".join("x" * 2_000)),),
    (("Last-Event-ID", MARK),), (("Last-Event-ID", "-1"),),
)  # fmt: skip
_CREDENTIALS = (
    "", "Bearer", "Bearer ", "Basic Zm86YmFy", f"Bearer sfk_{MARK}", f"Bearer {'x' * 65_536}", MARK, "Bearer \u00e9",
)  # fmt: skip
_PATHS = (
    "%00", "..", "../keys", "%2e%2e%2f%2e%2e", ".", "%ff", "%", "", " ", "null", "0", "-1", MARK, MARK * 1_000,
    "{id}", "%F0%9F%98%80", "%D8%00", "*", "a%2Fb", ";", "?", "%0d%0aSet-Cookie:%20a=b",
)  # fmt: skip
_QUERIES = (
    "", "-1", "0", "1e400", "-1e400", "nan", "inf", "9" * 400, "1.5", "true", "null", "[]", "%00", "%ff", MARK,
    MARK * 400, "1&{name}=2", "%D8%00", "' OR 1=1", "0x10", "1_000", "+1", "%E0%A4%A", "-0",
)  # fmt: skip
_CURSORS = (
    "", "0", "1.2", "1.2.3", "-1", "9" * 40, "ds_", "job_" + "0" * 26, "unknown", MARK, "1." + "9" * 20, "\x00",
)  # fmt: skip
_METHODS = ("PUT", "PATCH", "DELETE", "POST", "GET", "HEAD", "OPTIONS", "TRACE", "CONNECT", "PROPFIND", "X" * 500)


@dataclass(frozen=True)
class Case:
    """An invalid request, its name, and the valid statuses besides the documented ones."""

    what: str
    method: str
    path: str
    query: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    content: bytes | None = field(default=None, repr=False)
    credentials: str | None = None
    also: frozenset[int] = frozenset()

    def send(self, client: httpx.Client, secret: str) -> httpx.Response:
        """Send the request with this key, unless the case has its own credentials."""
        credentials = f"Bearer {secret}" if self.credentials is None else self.credentials
        headers = [("Authorization", credentials), *self.headers]
        raw = [(name.encode(), value.encode("utf-8")) for name, value in headers]
        url = f"/v1{self.path}" + (f"?{self.query}" if self.query else "")
        return client.send(client.build_request(self.method, url, headers=raw, content=self.content))


def cases(operation: Operation, objects: Objects) -> Iterator[Case]:
    """Yield every invalid request to one operation."""
    method, path, options = request(operation, objects)
    body = options.get("json")
    content = None if body is None else json.dumps(body).encode()
    as_json = (("Content-Type", "application/json"),) if body is not None else ()
    good = Case("", method, path, headers=as_json, content=content)

    def of(what: str, **changed: Any) -> Case:
        return Case(**{**vars(good), "what": what, **changed})

    for n, headers in enumerate(_HEADERS):
        also = {400} if len({value for _, value in headers}) > len({name for name, _ in headers}) else set[int]()
        yield of(f"header {n}", headers=(*as_json, *headers), also=frozenset(also))  # 400: one header, two values
    for n, credentials in enumerate(_CREDENTIALS):
        yield of(f"credentials {n}", credentials=credentials)
    yield from _bodies(operation, body, of)
    yield from _paths(operation, path, of)
    yield from _queries(operation, of)
    known = set(operation.document["paths"][operation.path])
    if "get" in known:
        known.add("head")  # a valid request
    for other in _METHODS:
        if other.lower() not in known:
            yield of(f"method {other[:9]}", method=other, also=frozenset({405}))


def _bodies(operation: Operation, body: Any, of: Callable[..., Case]) -> Iterator[Case]:
    named = (("Content-Type", "application/json"),)
    for n, content in enumerate(_BODIES):
        yield of(f"body {n}", content=content, headers=named)
    if body is None:
        return
    good = json.dumps(body).encode()
    for n, kind in enumerate(_CONTENT_TYPES):
        yield of(f"content type {n}", headers=(("Content-Type", kind),))
    yield of("no content type", headers=())
    for kind in operation.definition["requestBody"]["content"]:  # each documented media type, with invalid content
        for n, content in enumerate((*_BODIES, good)):
            yield of(f"{kind} body {n}", content=content, headers=(("Content-Type", kind),))
    for coding, content in (("gzip", gzip.compress(good)), ("gzip", b"\x1f\x8b" + good), ("br", good), (MARK, good)):
        yield of(f"coding {coding}", content=content, headers=(*named, ("Content-Encoding", coding)))
    for cut in range(1, len(good), max(1, len(good) // 12)):
        yield of(f"cut at {cut}", content=good[:cut])
    for n, content in enumerate(_garbled(good, operation.name)):
        yield of(f"garbled {n}", content=content)
    yield of("twice the same member", content=b"{" + good[1:-1] + b"," + good[1:-1] + b"}")
    for way in _ways(body):
        for n, odd in enumerate(_ODD):
            yield of(f"{way} odd {n}", content=json.dumps(_replaced(body, way, odd)).encode())
        marked = json.dumps(_replaced(body, way, MARK)).encode()
        for number in _NUMBERS:
            yield of(f"{way} {number[:9]!r}", content=marked.replace(f'"{MARK}"'.encode(), number))
        yield of(f"{way} left out", content=json.dumps(_replaced(body, way, ...)).encode())


def _garbled(good: bytes, seed: str) -> Iterator[bytes]:
    """Yield copies with bytes changed, inserted and removed at random."""
    chance = random.Random(seed)  # noqa: S311
    for _ in range(N_GARBLED):
        content = bytearray(good)
        for _ in range(chance.randint(1, 6)):
            place = chance.randrange(len(content))
            content[place : place + chance.randint(0, 3)] = chance.randbytes(chance.randint(0, 3))
        yield bytes(content)


def _ways(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if way:
        yield way
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _ways(item, (*way, name))
    elif isinstance(value, list) and value:
        yield from _ways(value[0], (*way, 0))


def _replaced(value: Any, way: tuple[Any, ...], odd: Any) -> Any:
    """Return the value with `odd` at the path `way`; `...` removes the item."""
    if not way:
        return odd
    changed = dict(value) if isinstance(value, dict) else list(value)
    inner = _replaced(value[way[0]], way[1:], odd)
    if inner is ...:
        del changed[way[0]]
    else:
        changed[way[0]] = inner
    return changed


def _paths(operation: Operation, path: str, of: Callable[..., Case]) -> Iterator[Case]:
    template = operation.path.removeprefix("/v1").split("/")
    there = path.split("/")
    for place, step in enumerate(template):
        if step.startswith("{"):
            own = there[place]
            for n, odd in enumerate((*_PATHS, own.upper(), own + "x", own[:-1], own + "%20", own + "%0a", own + "/")):
                odd_path = "/".join([*there[:place], odd, *there[place + 1 :]])
                yield of(f"path {n}", path=odd_path, also=frozenset({404, 405}))
    yield of("path with another slash", path=f"{path}/", also=frozenset({404, 405}))
    yield of("path with two slashes", path=path.replace("/", "//"), also=frozenset({404, 405}))
    yield of("path in capitals", path=path.upper(), also=frozenset({404, 405}))


def _queries(operation: Operation, of: Callable[..., Case]) -> Iterator[Case]:
    yield of("unknown parameter", query=f"unknown={MARK}")  # the answer names the parameter
    yield of("no parameters", query="&&&===%%%&")
    yield of("ten thousand parameters", query="a=1&" * 10_000)
    for parameter in operation.parameters:
        if parameter["in"] != "query":
            continue
        name = parameter["name"]
        for n, odd in enumerate(_QUERIES):
            yield of(f"{name} {n}", query=f"{name}={odd.replace('{name}', name)}")
        yield of(f"{name} twice", query=f"{name}=1&{name}={MARK}")
        yield of(f"{name} as a list", query=f"{name}[]=1&{name}[a]=2")
        if name == "cursor":
            for n, place in enumerate(_CURSORS):
                yield of(f"cursor of {n}", query=f"cursor={quote(place)}")
                yield of(f"cursor of {n}, cut", query=f"cursor={quote(place[:-2])}")
                yield of(f"cursor of {n}, longer", query=f"cursor={quote(place)}%0A")
