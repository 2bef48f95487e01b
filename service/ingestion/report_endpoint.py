"""The endpoint `POST /v1/rounds/{round_id}/reports`, as raw ASGI without the web framework.

A request is authenticated, its round is looked up (usually in a cache), and its body is read, validated and packed.
The response is sent after the commit that stores the reports. An incomplete body stores nothing. If the client
disconnects after its body, its reports are stored; it may send them again, because a report id counts once.
"""

import re
import time
from collections.abc import AsyncIterator, Callable

from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from models.collection import rounds
from models.database.engine import Database
from models.errors import Conflict, NotFound, RoundClosed
from models.identity.caller import Caller
from models.tables.identity import Scope as KeyScope
from runtime.settings import Settings
from service.http.auth import check
from service.http.headers import header, media_type
from service.http.metrics import GatewayMetrics
from service.http.middleware import send_body
from service.http.problems import MethodNotAllowed, PayloadTooLarge, Problem, UnsupportedMediaType
from service.http.rate_limits import RateLimits
from service.http.route_table import REPORTS, path_id
from service.http.unread_input import check_query
from service.ingestion import report_formats
from service.ingestion.report_formats import ColumnsReader, PackedReports, ReportFormat, Reserve
from service.ingestion.report_writer import ReportWriter
from service.ingestion.upload_memory import MemoryLimit, MemoryReservation, run_parser
from service.schemas.fields import ULID

_ROUND_ID = re.compile(f"rnd_{ULID}")
PIECE_BYTES = 256 << 10  # JSON that is passed to the parser at once
INLINE_BYTES = 16 << 10  # larger bodies are validated in a thread, so that they do not delay small ones
REQUEST_BYTES = 4096  # memory of a waiting request in addition to its body
_MAX_CACHED = 4096  # rounds
_CLOSED_SECONDS = 1.0  # cache time of closed rounds, for late devices; a closed round never opens again

Reader = Callable[[ReportFormat, bytes, int, Reserve], PackedReports]

READERS: dict[bytes, Reader] = {
    b"application/json": report_formats.parse_json,
    b"application/octet-stream": report_formats.parse_octets,
    b"application/vnd.apache.arrow.stream": report_formats.parse_arrow,
    b"application/vnd.apache.arrow.file": report_formats.parse_arrow,
}


class ReportEndpoint:
    """ASGI application that accepts reports, at the path `REPORTS` of the route table.

    Parameters
    ----------
    settings : Settings
    database : Database
    writer : ReportWriter
    metrics : GatewayMetrics
    memory : MemoryLimit
        Limit on the memory of all bodies with reports or points together.
    limits : RateLimits
    """

    def __init__(
        self,
        settings: Settings,
        database: Database,
        writer: ReportWriter,
        metrics: GatewayMetrics,
        memory: MemoryLimit,
        limits: RateLimits,
    ) -> None:
        self._database = database
        self._writer = writer
        self.max_batch_reports = settings.max_batch_reports
        self._device_batch = min(settings.device_batch, settings.max_batch_reports)
        self.memory, self._limits = memory, limits
        self._formats: dict[str, ReportFormat] = {}
        self._closed: dict[str, float] = {}  # closed round to the end of its cache time, monotonic seconds
        metrics.add_gauge(
            "sfumato_pending_bytes",
            "Memory of reports that wait for their commit.",
            lambda: {"": self.memory.n_bytes},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["method"] != "POST":
            raise MethodNotAllowed(headers=[("allow", "POST")])
        scope["state"]["route"] = REPORTS.template
        caller: Caller = scope["state"]["caller"]
        check(caller, KeyScope.DEVICE, KeyScope.DATASETS)
        check_query(scope)
        report_format = await self._format(caller, path_id(scope))
        if self._is_closed(report_format):
            raise RoundClosed("this round no longer accepts reports")
        read = _reader(scope)
        with MemoryReservation(self.memory) as reservation:
            reservation.grow(REQUEST_BYTES)
            most = self.max_reports(caller)
            if read is report_formats.parse_json:
                packed = await _read_json(receive, report_format, most, reservation)
            else:
                most_bytes = report_formats.max_bytes(report_format, read, most)
                if (
                    header(scope, b"content-encoding") is None
                    and int(header(scope, b"content-length") or 0) > most_bytes
                ):
                    raise _too_long(most_bytes, most)
                packed = await _read_whole(receive, report_format, read, most, reservation, most_bytes)
            if packed is None:
                return  # incomplete: nothing is stored
            self._limits.count_reports(scope, caller, packed.n_reports)
            await self._store(caller, report_format, packed)
        await send_body(send, 202, b"application/json", report_format.receipt(packed.n_reports))

    def max_reports(self, caller: Caller) -> int:
        """Return the most reports in one request of a caller."""
        return self._device_batch if caller.is_device_only else self.max_batch_reports

    def cached_format(self, round_id: str) -> ReportFormat | None:
        """Return the format of a cached round that is not known to be closed, without a database query."""
        report_format = self._formats.get(round_id)
        is_closed = self._closed and report_format is not None and self._is_closed(report_format)
        return None if is_closed else report_format

    def _is_closed(self, report_format: ReportFormat) -> bool:
        return bool(self._closed) and self._closed.get(report_format.round_id, 0) > time.monotonic()

    async def _store(self, caller: Caller, report_format: ReportFormat, packed: PackedReports) -> None:
        try:
            await self._writer.store(report_format.round_id, packed)
        except RoundClosed:
            self._formats.pop(report_format.round_id, None)
            await self._format(caller, report_format.round_id)  # raises NotFound if the dataset was deleted
            if len(self._closed) >= _MAX_CACHED:
                self._closed.clear()
            self._closed[report_format.round_id] = time.monotonic() + _CLOSED_SECONDS
            raise

    async def _format(self, caller: Caller, round_id: str) -> ReportFormat:
        """Return the format of the round's reports. Raise NotFound if the caller may not see the round."""
        found = self._formats.get(round_id)
        if found is None:
            if not _ROUND_ID.fullmatch(round_id):
                raise NotFound("round")
            found = await run_in_threadpool(self._read_format, caller, round_id)
            if len(self._formats) >= _MAX_CACHED:
                self._formats.clear()
            self._formats[round_id] = found
        if found.tenant_id != caller.tenant_id or not caller.sees(found.dataset_id):
            raise NotFound("round")
        return found

    def _read_format(self, caller: Caller, round_id: str) -> ReportFormat:
        with self._database.reading() as session:
            found = rounds.get(session, caller, round_id)
        if found.release is not None:
            raise Conflict("this round accepts no reports from devices: send sealed reports to the dataset's shuffler")
        return ReportFormat.from_round(found, caller.tenant_id)


async def _read_whole(
    receive: Receive,
    report_format: ReportFormat,
    read: Reader,
    max_reports: int,
    reservation: MemoryReservation,
    max_bytes: int,
) -> PackedReports | None:
    """Return the reports of a body that is parsed when it has arrived, or None if the client disconnected before.

    The rest of a body that is too long is read and dropped, because a client that still sends would not read the
    response.
    """
    chunks: list[bytes] = []
    n_bytes = 0
    async for chunk in _chunks(receive):
        if chunk is None:
            return None
        n_bytes += len(chunk)
        if n_bytes > max_bytes:
            chunks.clear()
            continue
        reservation.grow(len(chunk))
        chunks.append(chunk)
    if n_bytes > max_bytes:
        raise _too_long(max_bytes, max_reports)
    body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
    if len(body) <= INLINE_BYTES:
        return read(report_format, body, max_reports, reservation.grow)
    return await run_parser(read, report_format, body, max_reports, reservation.grow)


async def _read_json(
    receive: Receive, report_format: ReportFormat, max_reports: int, reservation: MemoryReservation
) -> PackedReports | None:
    """Return the reports of a body that is parsed as it arrives, or None if the client disconnected before its end.

    After an error the rest is read and dropped, because a client that still sends would not read the response.
    """
    piece, reader = bytearray(), None
    chunks = _chunks(receive)
    try:
        async for chunk in chunks:
            if chunk is None:
                return None
            piece += chunk
            if reader is None:
                reservation.grow(len(chunk))
            if len(piece) > PIECE_BYTES:
                if reader is None:
                    reader = ColumnsReader(report_format, max_reports, reservation.grow)
                await run_parser(reader.feed, bytes(piece))
                piece.clear()
        if reader is not None:
            await run_parser(reader.feed, bytes(piece))
            return await run_parser(reader.finish_reports)
    except Problem:
        async for chunk in chunks:
            if chunk is None:
                return None
        raise
    parse = report_formats.parse_json
    if len(piece) <= INLINE_BYTES:
        return parse(report_format, bytes(piece), max_reports)
    return await run_parser(parse, report_format, bytes(piece), max_reports, reservation.grow)


def _too_long(max_bytes: int, max_reports: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"the body is too long: at most {max_bytes} bytes, for at most {max_reports} reports; send several requests"
    )


async def _chunks(receive: Receive) -> AsyncIterator[bytes | None]:
    """Yield the pieces of a body, and None if the client disconnects."""
    has_more = True
    while has_more:
        message = await receive()
        if message["type"] == "http.disconnect":
            yield None
            return
        has_more = message.get("more_body", False)
        yield message.get("body", b"")


def _reader(scope: Scope) -> Reader:
    kind = media_type(scope)
    if kind not in READERS:
        accepted = ", ".join(each.decode() for each in READERS)
        raise UnsupportedMediaType(f"the content type is not supported: send one of {accepted}")
    return READERS[kind]
