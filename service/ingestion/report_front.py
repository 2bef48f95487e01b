"""Answers simple uploads of reports without the web framework, see `connections.connection.Shortcut`.

Most devices send one report in one piece, with a cached key, to a round that is known to be open. The front validates
such a request, waits for its commit and answers 202. All other requests and all errors are left to the application,
which gets the same bytes. If the outcome of a commit is unknown, the application stores the report again; the report
counts once.
"""

import asyncio
import re
import time

from connections.connection import Finish
from connections.problems import new_request_id
from models.identity.caller import Caller
from models.tables.identity import Scope as KeyScope
from runtime.settings import Settings
from service.http.auth import KeyCache
from service.http.metrics import GatewayMetrics
from service.http.middleware import NO_SNIFF, NO_STORE
from service.http.rate_limits import RateLimits
from service.http.route_table import REPORTS
from service.ingestion.report_endpoint import INLINE_BYTES, READERS, REQUEST_BYTES, Reader, ReportEndpoint
from service.ingestion.report_formats import PackedReports, ReportFormat, do_nothing
from service.ingestion.report_writer import ReportWriter
from service.schemas.fields import ULID

_SCOPES = frozenset({KeyScope.DEVICE, KeyScope.DATASETS, KeyScope.ADMIN})

# A head that every parser reads alike: fields without folded lines, and values of printable ASCII.
_HEAD = re.compile(
    rb"POST /v1/rounds/(rnd_%b)/reports HTTP/1\.1((?:\r\n[-!#$%%&'*+.^_`|~0-9A-Za-z]++:[\t\x20-\x7e]*+)++)"
    % ULID.encode()
)
# Fields that may leave the request to the application. Values keep their spaces at the end.
_DECIDING = re.compile(
    rb"\r\n(authorization|connection|content-encoding|content-type|expect|origin|upgrade):[ \t]*([^\r]*)", re.IGNORECASE
)


class ReportFront:
    """Shortcut for uploads of reports.

    Parameters
    ----------
    endpoint : ReportEndpoint
        The endpoint of the application; its cached rounds and its memory limit are shared.
    settings : Settings
    key_cache : KeyCache
    writer : ReportWriter
    metrics : GatewayMetrics
    rate_limits : RateLimits
        If one of them applies to reports, the application handles all requests.
    stopping : Event
        Once it is set, the application handles all requests, because it closes connections.
    """

    def __init__(
        self,
        endpoint: ReportEndpoint,
        settings: Settings,
        key_cache: KeyCache,
        writer: ReportWriter,
        metrics: GatewayMetrics,
        rate_limits: RateLimits,
        stopping: asyncio.Event,
    ) -> None:
        self._endpoint, self._key_cache, self._writer = endpoint, key_cache, writer
        self._memory, self._metrics, self._stopping = endpoint.memory, metrics, stopping
        self._max_bytes = min(INLINE_BYTES, settings.max_body_bytes)
        self._rate_limits = rate_limits
        self._is_enabled = not rate_limits.counts_reports
        self._has_cors = bool(settings.allowed_origins)
        vary = [(b"vary", b"Origin")] if self._has_cors and "*" not in settings.allowed_origins else []
        self._headers = b"".join(b"%b: %b\r\n" % header for header in (NO_SNIFF, NO_STORE, *vary))

    def __call__(self, head: bytes, body: bytes, client: tuple[str, int] | None, finish: Finish) -> bool:
        """Return whether the front answers a request, which it does after the commit of its reports."""
        start = time.perf_counter()
        if not self._is_enabled or self._stopping.is_set() or len(body) > self._max_bytes:
            return False
        found = self._read_head(head)
        if found is None:
            return False
        report_format, read, caller = found
        packed = self._pack(report_format, read, body, self._endpoint.max_reports(caller))
        n_bytes = REQUEST_BYTES + len(body)
        if packed is None or (caller.is_device_only and not self._is_allowed(head, client, caller, packed.n_reports)):
            return False
        if not self._memory.try_reserve(n_bytes):
            return False
        receipt = report_format.receipt(packed.n_reports)

        def answer(commit: asyncio.Future[dict[str, Exception]]) -> None:
            self._memory.release(n_bytes)
            errors = commit.result()
            if errors and report_format.round_id in errors:
                finish(None)
                return
            finish(self._response(receipt))
            self._metrics.count_request("POST", REPORTS.template, 202, time.perf_counter() - start)

        self._writer.enqueue(report_format.round_id, packed).add_done_callback(answer)
        return True

    def _response(self, receipt: bytes) -> bytes:
        """Return the headers and the body of a response."""
        return b"content-type: application/json\r\ncontent-length: %d\r\nx-request-id: %b\r\n%b\r\n%b" % (
            len(receipt),
            new_request_id().encode(),
            self._headers,
            receipt,
        )

    def _read_head(self, head: bytes) -> tuple[ReportFormat, Reader, Caller] | None:
        """Return the format, the reader of the body and the caller, if the head qualifies."""
        matched = _HEAD.fullmatch(head)
        if matched is None:
            return None
        authorization = media_type = None
        for name, value in _DECIDING.findall(head, matched.start(2)):
            match name.lower():
                case b"authorization" if authorization is None:
                    authorization = value.rstrip(b" \t")
                case b"content-type" if media_type is None:
                    media_type = value.rstrip(b" \t")
                case b"connection" if value.rstrip(b" \t").lower() == b"keep-alive":
                    pass
                case b"origin" if not self._has_cors:
                    pass
                case _:
                    return None
        read = READERS.get(media_type or b"")
        report_format = self._endpoint.cached_format(matched[1].decode())
        caller = self._key_cache.cached_caller(authorization)
        if read is None or report_format is None or caller is None or not _may_report(caller, report_format):
            return None
        return report_format, read, caller

    def _is_allowed(self, head: bytes, client: tuple[str, int] | None, caller: Caller, n_reports: int) -> bool:
        """Return whether the rate limits of a device allow its reports."""
        fields = [line.partition(b":") for line in head.split(b"\r\n")[1:]]
        headers = [(name.lower(), value.strip(b" \t")) for name, _, value in fields]
        return self._rate_limits.allows_reports({"client": client, "headers": headers}, caller, n_reports)

    def _pack(self, report_format: ReportFormat, read: Reader, body: bytes, most: int) -> PackedReports | None:
        """Return the reports of a body if they are valid."""
        try:
            return read(report_format, body, most, do_nothing)
        except Exception:  # the application raises the same error and reports it
            return None


def _may_report(caller: Caller, report_format: ReportFormat) -> bool:
    return (
        not caller.scopes.isdisjoint(_SCOPES)
        and caller.tenant_id == report_format.tenant_id
        and caller.sees(report_format.dataset_id)
    )
