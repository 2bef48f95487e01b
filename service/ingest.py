"""The hot path: `POST /v1/rounds/{round_id}/reports`, raw ASGI beside the framework.

A request is authenticated, its round found (both from memory, mostly), its body read,
checked and packed; then it waits for the commit that holds it, and only then is answered.
A body that breaks off stores nothing; a client that leaves after its body has its reports
stored all the same, and may send them again.
"""

import re
import time
from collections.abc import Callable

from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from models import round as rounds
from models.errors import NotFound, RoundClosed
from models.tenant import Caller
from models.tenant import Scope as KeyScope
from service import reports
from service.auth import check
from service.metrics import REPORTS_ROUTE
from service.middleware import header, send_body
from service.problems import MethodNotAllowed, Unavailable, UnsupportedMediaType
from service.reports import Packed, Shape
from service.resources import ULID
from service.services import Services

PATH = re.compile("/v1/rounds/([^/]+)/reports")
_ROUND_ID = re.compile(f"rnd_{ULID}")
INLINE_BYTES = 16 << 10  # larger bodies are checked in a thread, so that small ones do not wait
REQUEST_BYTES = 4096  # what a waiting request takes beside its body
_MAX_SHAPES = 4096
_CLOSED_SECONDS = 1.0  # many devices come late; a closed round never opens again

Reader = Callable[[Shape, bytes, int], Packed]

READERS: dict[bytes, Reader] = {
    b"application/json": reports.from_json,
    b"application/octet-stream": reports.from_octets,
    b"application/vnd.apache.arrow.stream": reports.from_arrow,
}


class ReportIngest:
    """Takes reports: an application for the paths of `PATH` alone."""

    def __init__(self, *, services: Services) -> None:
        self._services = services
        self.max_pending_bytes = services.settings.max_pending_bytes
        self.max_batch_reports = services.settings.max_batch_reports
        self._shapes: dict[str, Shape] = {}
        self._closed: dict[str, float] = {}  # rounds that took nothing, and until when that is not asked again
        self.pending_bytes = 0  # held by requests that are not answered yet
        services.metrics.watch(
            "sfumato_pending_bytes",
            "Memory of reports that wait for their commit.",
            lambda: {"": self.pending_bytes},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        path = PATH.fullmatch(scope["path"])
        assert path is not None  # noqa: S101 - for the type checker: the gateway hands on no other
        if scope["method"] != "POST":
            raise MethodNotAllowed(headers=[("allow", "POST")])
        scope["state"]["route"] = REPORTS_ROUTE
        caller: Caller = scope["state"]["caller"]
        check(caller, KeyScope.DEVICE, KeyScope.DATASETS)
        shape = await self._shape(caller, path[1])
        if self._is_closed(shape):
            raise RoundClosed("this round takes no more reports")
        read = _reader(scope)
        held = _Held(self)
        try:
            body = await _body(receive, held)
            if body is None:
                return  # cut short: nothing is stored
            if len(body) <= INLINE_BYTES:
                packed = read(shape, body, self.max_batch_reports)
            else:
                packed = await run_in_threadpool(read, shape, body, self.max_batch_reports)
            await self._store(caller, shape, packed)
        finally:
            held.give_back()
        await send_body(send, 202, b"application/json", shape.receipt(packed.n_reports))

    def known(self, round_id: bytes) -> Shape | None:
        """A round that took reports lately, without a look into the database."""
        shape = self._shapes.get(round_id.decode("latin-1"))
        return None if shape is None or self._is_closed(shape) else shape

    def has_room(self, n_bytes: int) -> bool:
        """Whether so much more may wait to be stored."""
        return self.pending_bytes + n_bytes <= self.max_pending_bytes

    def _is_closed(self, shape: Shape) -> bool:
        return bool(self._closed) and self._closed.get(shape.round_id, 0) > time.monotonic()

    async def _store(self, caller: Caller, shape: Shape, packed: Packed) -> None:
        try:
            await self._services.writer.store(shape.round_id, packed)
        except RoundClosed:
            self._shapes.pop(shape.round_id, None)
            await self._shape(caller, shape.round_id)  # NotFound, where its dataset was deleted
            if len(self._closed) >= _MAX_SHAPES:
                self._closed.clear()
            self._closed[shape.round_id] = time.monotonic() + _CLOSED_SECONDS
            raise

    async def _shape(self, caller: Caller, round_id: str) -> Shape:
        """What the round's reports look like; raises NotFound for what the caller may not see."""
        found = self._shapes.get(round_id)
        if found is None:
            if not _ROUND_ID.fullmatch(round_id):
                raise NotFound("round")
            found = await run_in_threadpool(self._look_up, caller, round_id)
            if len(self._shapes) >= _MAX_SHAPES:
                self._shapes.clear()
            self._shapes[round_id] = found
        if found.tenant_id != caller.tenant_id or not caller.sees(found.dataset_id):
            raise NotFound("round")
        return found

    def _look_up(self, caller: Caller, round_id: str) -> Shape:
        with self._services.database.reading() as session:
            return Shape.of(rounds.get(session, caller, round_id), caller.tenant_id)


class _Held:
    """The memory one request takes."""

    def __init__(self, ingest: ReportIngest) -> None:
        self._ingest = ingest
        self._n_bytes = 0
        self.take(REQUEST_BYTES)

    def take(self, n_bytes: int) -> None:
        """Take more; raises Unavailable where all requests together would take too much."""
        if not self._ingest.has_room(n_bytes):
            raise Unavailable("too many reports wait to be stored; send them again")
        self._ingest.pending_bytes += n_bytes
        self._n_bytes += n_bytes

    def give_back(self) -> None:
        """The request is over."""
        self._ingest.pending_bytes -= self._n_bytes


async def _body(receive: Receive, held: _Held) -> bytes | None:
    """The whole body; None where the client left before its end."""
    chunks = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        chunk: bytes = message.get("body", b"")
        held.take(len(chunk))
        chunks.append(chunk)
        if not message.get("more_body", False):
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _reader(scope: Scope) -> Reader:
    media_type = (header(scope, b"content-type") or b"").split(b";", 1)[0].strip().lower()
    if media_type not in READERS:
        raise UnsupportedMediaType(f"this path reads {', '.join(kind.decode() for kind in READERS)}")
    return READERS[media_type]
