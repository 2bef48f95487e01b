"""HTTP/1.1 on one connection: uvicorn's, that waits for no client without end and knows the fast path of reports."""

import asyncio
from functools import partial
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from service.fast_path import FastPath
from service.middleware import PACE_BYTES

MAX_HEAD_BYTES = 32 << 10  # request line and headers
REST_SECONDS = 0.1  # many clients send head and body apart: for so long the body of a report may be on its way
SMALL_BYTES = 1 << 10  # of an answer: the system takes as much from us for any client


class Protocol(HttpToolsProtocol):
    """HTTP/1.1 that waits for no client without end: closes the connection instead.

    Not for a head, from the connection's beginning or the head's first byte; not for the rest of
    a body that nobody needs, since it was answered already; not for a client that does not read
    its answer. Bodies that are needed are `BodyLimit`'s.
    """

    slow_seconds = 20.0  # for a head; for each PACE_BYTES of an answer
    fast_path: FastPath | None = None

    _in_head = True
    _in_body = False
    _head_bytes = 0
    _patience: asyncio.TimerHandle | None = None
    _unsent_bytes = 0  # of answers, when that was looked at last
    _look: asyncio.TimerHandle | None = None
    _idle_since: float | None = None  # by the loop's clock; None while a request is under way
    _idle_look: asyncio.TimerHandle | None = None
    _plain: bytes | None = None  # the body so far of a request that the fast path may take
    _rest: asyncio.TimerHandle | None = None  # while the rest of it is on its way

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there."""
        super().connection_made(transport)
        self._patience = self.loop.call_later(self.slow_seconds, transport.close)

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        self._idle_since = None
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._plain is not None and self._rest is None:
            self._rest = self.loop.call_later(REST_SECONDS, self._go_ordinary_way)
        if self._in_head:
            if self._head_bytes > MAX_HEAD_BYTES:
                self.transport.close()
            elif self._patience is None:
                self._patience = self.loop.call_later(self.slow_seconds, self.transport.close)
        elif not self._in_body and self._idle_since is None and self.cycle.response_complete:
            self._be_idle()  # empty lines came, which begin no request

    def on_message_begin(self) -> None:
        """The first byte of a head."""
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The last byte of a head."""
        self._in_head, self._in_body = False, True
        self._be_patient()
        if self._is_plain():
            self._plain = b""
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Some of a body."""
        if self._plain is None:
            super().on_body(body)
            return
        self._plain += body
        if self.fast_path is None or len(self._plain) > self.fast_path.max_bytes:
            self._go_ordinary_way()

    def on_message_complete(self) -> None:
        """The last byte of a body."""
        self._in_body = False
        if self._plain is not None:
            if self._take():
                return
            self._go_ordinary_way()
        super().on_message_complete()
        if self.cycle.response_complete:  # its bytes made the connection look busy
            self._be_patient()
            self._be_idle()

    def _is_plain(self) -> bool:
        """Whether the fast path may take this request, by its head; nothing is under way before it."""
        return (
            self.fast_path is not None
            and (self.cycle is None or self.cycle.response_complete)
            and not self.flow.write_paused
            and not self.expect_100_continue
            and self.parser.get_method() == b"POST"
            and self.parser.get_http_version() == "1.1"
            and self.fast_path.may_take(self.url)
        )

    def _take(self) -> bool:
        """Have the fast path take this request; False where it does not."""
        assert self.fast_path is not None  # noqa: S101 - for the type checker
        assert self._plain is not None  # noqa: S101 - for the type checker
        direct = Direct(self.scope, self.url, self._plain, keep_alive=self.parser.should_keep_alive())
        if not self.fast_path.take(self.url, self.headers, self._plain, partial(self._answer, direct)):
            return False
        self.cycle = cast(RequestResponseCycle, direct)
        self._decide()
        return True

    def _decide(self) -> None:
        """Whether this request is plain is known."""
        self._plain = None
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None

    def _go_ordinary_way(self) -> None:
        """Go on with this request as if there were no fast path."""
        body = self._plain
        self._decide()
        super().on_headers_complete()
        if body:
            super().on_body(body)

    def _answer(self, direct: "Direct", answer: bytes | None) -> None:
        """Write what the fast path answers; None has the request go the ordinary way."""
        if direct.disconnected or self.transport.is_closing():
            return
        if answer is None:
            self._begin_ordinary(direct)
            return
        told = [b"%s: %s\r\n" % header for header in self.server_state.default_headers]
        if not direct.keep_alive:
            told.append(b"connection: close\r\n")
        self.transport.write(b"".join((STATUS_LINE[202], *told, answer)))
        direct.response_complete = True
        if not direct.keep_alive:
            self.transport.close()
        self.on_response_complete()

    def _begin_ordinary(self, direct: "Direct") -> None:
        """As uvicorn begins a request; the parser may be at a later one."""
        direct.scope["method"], direct.scope["path"] = "POST", direct.url.decode("ascii")
        direct.scope["raw_path"], direct.scope["query_string"] = direct.url, b""
        cycle = RequestResponseCycle(
            scope=direct.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=False,
            keep_alive=direct.keep_alive,
            on_response=self.on_response_complete,
        )
        cycle.body, cycle.more_body = bytearray(direct.body), False
        cycle.message_event.set()
        if cast(object, self.cycle) is direct:
            self.cycle = cycle
        self._start_asgi_task(cycle, self.app)

    def on_response_complete(self) -> None:
        """An answer is written, not yet sent. As uvicorn's, but for one timer a connection, not one an answer."""
        self.server_state.total_requests += 1
        if not self.transport.is_closing():
            self.flow.resume_reading()
            if self.pipeline:
                self._start_asgi_task(*self.pipeline.pop())
            else:
                self._be_idle()
        self._watch_reader()
        if self._in_body and self.cycle.response_complete and self._patience is None:
            self._patience = self.loop.call_later(self.slow_seconds, self.transport.close)

    def _be_idle(self) -> None:
        """Wait for the next request, not without end."""
        self._idle_since = self.loop.time()
        if self._idle_look is None:
            self._idle_look = self.loop.call_later(self.timeout_keep_alive, self._look_whether_idle)

    def _look_whether_idle(self) -> None:
        self._idle_look = None
        if self._idle_since is None or self.transport.is_closing():
            return
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self._idle_look = self.loop.call_later(left, self._look_whether_idle)
        elif self.transport.get_write_buffer_size():
            self.transport.abort()  # to close would wait for who does not read
        else:
            self.transport.close()

    def pause_writing(self) -> None:
        """The client reads slower than it is answered."""
        super().pause_writing()
        self._watch_reader()

    def shutdown(self) -> None:
        """The server is to end: what has begun is answered."""
        if self._plain is not None:
            self._go_ordinary_way()
        super().shutdown()

    def connection_lost(self, error: Exception | None) -> None:
        """The client left."""
        self._be_patient()
        self._decide()
        self._watch_no_more()
        if self._idle_look is not None:
            self._idle_look.cancel()
        super().connection_lost(error)

    def _watch_reader(self) -> None:
        """See to it that what is unsent gets less; where that is one small answer, whoever is idle too long does."""
        self._watch_no_more()
        self._unsent_bytes = self.transport.get_write_buffer_size()
        if self._unsent_bytes > SMALL_BYTES:
            self._look = self.loop.call_later(self.slow_seconds, self._look_at_reader)

    def _look_at_reader(self) -> None:
        left = self.transport.get_write_buffer_size()
        if left and self._unsent_bytes - left < PACE_BYTES:
            self.transport.abort()  # to close would wait for the reader first
        else:
            self._watch_reader()

    def _watch_no_more(self) -> None:
        if self._look is not None:
            self._look.cancel()
            self._look = None

    def _be_patient(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


class _Nobody:
    """Who waits for the event that a client left, where nobody does."""

    def set(self) -> None:
        """Told in vain."""


class Direct:
    """A request that the fast path has, in the place of uvicorn's own record of it."""

    __slots__ = ("body", "disconnected", "keep_alive", "response_complete", "scope", "url")
    message_event = _Nobody()

    def __init__(self, scope: Any, url: bytes, body: bytes, *, keep_alive: bool) -> None:
        self.scope, self.url, self.body, self.keep_alive = scope, url, body, keep_alive
        self.response_complete = self.disconnected = False


def protocol_of(slow_seconds: float, fast_path: FastPath) -> type[Protocol]:
    """The protocol that waits for so long, and has such reports go the fast path."""
    return type("GatewayProtocol", (Protocol,), {"slow_seconds": slow_seconds, "fast_path": fast_path})
