"""Reports that need nothing but a look into memory: no task, no ASGI, one write of the answer.

Most devices send one report in one piece, with a key that was live a moment ago, to a round that
is known to be open. Such a request is checked and handed to the writer as its last byte arrives,
and answered from the commit. Whatever is not so plain, and whatever fails, goes the ordinary way
(`service.app`) from its beginning, with every answer but 202: a report that was stored although
nobody could say so is stored twice then, and counted once.
"""

import time
from collections.abc import Callable

from models.tenant import Caller
from models.tenant import Scope as KeyScope
from service.ingest import INLINE_BYTES, READERS, REQUEST_BYTES, ReportIngest
from service.metrics import REPORTS_ROUTE
from service.middleware import new_request_id
from service.reports import Shape
from service.services import Services

_BEFORE, _AFTER = b"/v1/rounds/", b"/reports"
# What these ask for is not done here: pages of other origins, bodies that wait to be asked for or tell no length.
_ORDINARY = frozenset({b"origin", b"expect", b"transfer-encoding", b"upgrade"})

Done = Callable[[bytes | None], None]


class FastPath:
    """Takes plain reports.

    Parameters
    ----------
    ingest : ReportIngest
        The ordinary way's, whose rounds, readers and bound on memory are shared.
    services : Services
    """

    def __init__(self, ingest: ReportIngest, services: Services) -> None:
        self._ingest, self._services = ingest, services
        self._keys, self._writer, self._metrics = services.keys, services.writer, services.metrics
        self.max_bytes = min(INLINE_BYTES, services.settings.max_body_bytes)
        self._is_open = not services.limits.counts_reports

    def may_take(self, url: bytes) -> bool:
        """Whether a POST to this address is worth waiting for the rest of what has arrived of it."""
        return (
            self._is_open
            and url.startswith(_BEFORE)
            and url.endswith(_AFTER)
            and not self._services.stopping.is_set()  # the ordinary answer sends clients elsewhere
        )

    def take(self, url: bytes, headers: list[tuple[bytes, bytes]], body: bytes, done: Done) -> bool:
        """Hand reports to the writer; False where the ordinary way is to have them, from the beginning.

        Parameters
        ----------
        url : bytes
            That `may_take` accepted.
        headers : list of (name, value)
            Names in lower case.
        body : bytes
            All of it, `max_bytes` at most.
        done : callable
            If this returns True, called once, in the event loop: with the rest of the answer, behind the server's own
            headers, or with None where the ordinary way is to answer.
        """
        began = time.perf_counter()
        authorization = media_type = None
        for name, value in headers:
            if name == b"authorization":
                authorization = authorization or value
            elif name == b"content-type":
                media_type = media_type or value
            elif name in _ORDINARY:
                return False
        ingest, n_bytes = self._ingest, REQUEST_BYTES + len(body)
        shape, read = ingest.known(url[len(_BEFORE) : -len(_AFTER)]), READERS.get(media_type or b"")
        caller = self._keys.held(authorization)
        if shape is None or read is None or caller is None or not _may(caller, shape) or not ingest.has_room(n_bytes):
            return False
        try:
            packed = read(shape, body, ingest.max_batch_reports)
        except Exception:  # whatever it is: the ordinary way comes to it too, and says so
            return False
        ingest.pending_bytes += n_bytes

        def stored(error: Exception | None) -> None:
            ingest.pending_bytes -= n_bytes
            if error is None:
                self._metrics.answered("POST", REPORTS_ROUTE, 202, time.perf_counter() - began)
            done(_answer(shape.receipt(packed.n_reports)) if error is None else None)

        self._writer.hand_over(shape.round_id, packed, stored)
        return True


def _may(caller: Caller, shape: Shape) -> bool:
    return (
        (caller.may(KeyScope.DEVICE) or caller.may(KeyScope.DATASETS))
        and caller.tenant_id == shape.tenant_id
        and caller.sees(shape.dataset_id)
    )


def _answer(receipt: bytes) -> bytes:
    """As `RequestContext` has it answered."""
    return (
        b"content-type: application/json\r\ncontent-length: %d\r\nx-request-id: %s\r\n"
        b"x-content-type-options: nosniff\r\ncache-control: no-store\r\n\r\n%s"
        % (len(receipt), new_request_id().encode(), receipt)
    )
