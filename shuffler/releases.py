"""Thread that releases due rounds and sends their batches to the service until it has them.

The permuted reports are stored before they are sent, so all attempts send the same bytes. The batch is signed when it
is sent: a corrected key signs a batch that the service refused.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sfumato.errors import ApiProblem, SfumatoError
from sfumato.transport.batches import MEDIA_TYPE, sign_release
from sfumato.transport.exchange import Request
from sfumato.transport.receipts import check_receipt
from shuffler.queue import Queue, State
from shuffler.rounds import Round

if TYPE_CHECKING:
    from sfumato.transport.http import Http

RELEASE_SECONDS = 600.0  # default of the longest delay of a full round
CHECK_SECONDS = 1.0  # seconds between two checks for rounds that are due
FIRST_RETRY_SECONDS = 1.0
MAX_RETRY_SECONDS = 60.0
KEEP_SECONDS = 86_400.0  # seconds after `closes_at` at which an unsent batch is deleted
FINAL = {"round_closed", "conflict"}  # problem codes after which the service accepts no batch of the round

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Retry:
    """The next attempt to send a batch."""

    at: float  # on the monotonic clock, seconds
    wait_seconds: float


class Releaser:
    """The thread.

    Parameters
    ----------
    queue : Queue
    service : Http
        Connection to the service, without retries.
    signing_key : bytes
        Ed25519 private key of the shuffler.
    clock : callable
        Seconds since the epoch.
    interval_seconds : float
        Longest delay between the last report of a full round and its release.
    """

    def __init__(
        self,
        queue: Queue,
        service: "Http",
        signing_key: bytes,
        clock: Callable[[], float],
        interval_seconds: float = RELEASE_SECONDS,
    ) -> None:
        self._queue, self._service, self._signing_key = queue, service, signing_key
        self._clock, self._interval_seconds = clock, interval_seconds
        self._retries: dict[str, _Retry] = {}
        self._wake, self._is_stopping = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="releases", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the current attempt."""
        self._is_stopping = True
        self._wake.set()
        self._thread.join()

    def wake(self) -> None:
        """Check for due rounds now."""
        self._wake.set()

    def _run(self) -> None:
        while not self._is_stopping:
            self._wake.clear()
            try:
                self.step()
            except Exception:
                logger.exception("the releases failed and will be tried again")
            self._wake.wait(CHECK_SECONDS)

    def step(self) -> None:
        """Release due rounds, then send each batch of which an attempt is due."""
        for released in self._queue.release_due(self._clock(), self._interval_seconds):
            logger.info("round %s: %s, %d reports", *released)
        for found in self._queue.list_waiting():
            retry = self._retries.setdefault(found.id, _Retry(0.0, FIRST_RETRY_SECONDS))
            if self._is_stopping or time.monotonic() < retry.at:
                continue
            end = self._send(found)
            if end is not None:
                self._queue.end(found.id, end)
                del self._retries[found.id]
                logger.info("round %s: %s, its batch is deleted", found.id, end)
            else:
                retry.at = time.monotonic() + retry.wait_seconds
                retry.wait_seconds = min(2 * retry.wait_seconds, MAX_RETRY_SECONDS)

    def _send(self, found: Round) -> State | None:
        """Send the batch once. Return the final state, or None if another attempt is needed."""
        batch = sign_release(found.id, self._queue.load_batch(found), self._signing_key)
        headers = {"Content-Type": MEDIA_TYPE}
        try:
            request = Request("POST", f"rounds/{found.id}/batches", content=batch.body, headers=headers)
            check_receipt(self._service.send(request), found.id, batch.count)
        except SfumatoError as error:
            logger.warning("round %s: the service does not accept the batch: %s", found.id, error)
            is_final = isinstance(error, ApiProblem) and error.code in FINAL
            is_final = is_final or self._clock() >= found.closes_at + KEEP_SECONDS
            return State.REFUSED if is_final else None
        return State.ACKNOWLEDGED
