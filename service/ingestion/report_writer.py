"""Group commit of reports: one thread stores all queued reports in one transaction, then takes the next batch.

Reports that arrive during a commit (about a millisecond) are queued. A batch is closed when one iteration of the
event loop adds no report; there is no timer. Under load a batch is large and each report is cheap. Without load a
batch is one report. A request is answered after its commit, and all reports of a request are in one commit.
"""

import asyncio
import threading
import time
from collections import deque
from typing import Any

import structlog
from sqlalchemy import Connection

from connections.log_records import describe
from models.collection import report_intake
from models.collection.distinct_reports import DistinctReports
from models.collection.report_intake import Received
from models.database.engine import Database, DedicatedConnection
from models.errors import RoundClosed
from runtime.job_signal import JobSignal
from service.http.metrics import GatewayMetrics
from service.http.problems import Unavailable
from service.ingestion.report_formats import PackedReports
from service.live.change_feed import ChangeFeed

GROUP_BYTES = 16 << 20  # approximate bytes per commit; workers read one row at a time
APART_BYTES = 1 << 20  # size from which a request is stored as a row of its own
MAX_COUNTED = 64  # rounds with a kept count of distinct reports, of 8 bytes per report
MAX_TURNS = 16  # iterations of the event loop after which a batch is closed in any case

log = structlog.get_logger(__name__)


class Commit(asyncio.Future[dict[str, Exception]]):
    """The error of each rejected round, once a batch is committed. All requests of the batch wait for it."""

    def cancel(self, msg: Any = None) -> bool:  # noqa: ARG002 - required by the base class
        """Do nothing, because a request that is cancelled must not cancel the others."""
        return False


class _Batch:
    """Reports of one event loop that are stored together."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop, self.commit = loop, Commit(loop=loop)
        self.by_round: dict[str, list[PackedReports]] = {}
        self.n_requests = self.n_bytes = 0


class ReportWriter:
    """The thread of a gateway that stores reports.

    Parameters
    ----------
    database : Database
    job_signal : JobSignal
        Wakes a worker after the commit that filled a round.
    metrics : GatewayMetrics, optional
        Counts commits and stored reports.
    change_feed : ChangeFeed, optional
        Publishes the jobs and datasets that changed.
    """

    def __init__(
        self,
        database: Database,
        job_signal: JobSignal,
        metrics: GatewayMetrics | None = None,
        change_feed: ChangeFeed | None = None,
    ) -> None:
        self._database, self._connection = database, DedicatedConnection(database)
        self._job_signal = job_signal
        self._metrics = metrics or GatewayMetrics()
        self._change_feed = change_feed or ChangeFeed(None)
        self._changed = threading.Condition()
        self._open_batches: dict[asyncio.AbstractEventLoop, _Batch] = {}
        self._pending: deque[_Batch] = deque()
        self._is_stopping = False
        self._thread: threading.Thread | None = None
        self._distinct: dict[str, DistinctReports] = {}  # counts of open rounds with too few distinct reports
        self._counting: set[str] = set()  # rounds with a large log that is read now

    @property
    def is_alive(self) -> bool:
        """Return whether the writer accepts reports."""
        return self._thread is not None and self._thread.is_alive() and not self._is_stopping

    def start(self) -> None:
        """Start the thread."""
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="report-writer", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Store the queued reports, then stop the thread. Blocks."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    async def store(self, round_id: str, packed: PackedReports) -> None:
        """Store reports and return after their commit.

        Raises
        ------
        RoundClosed
            None of them was stored.
        Unavailable
            The commit failed or its outcome is unknown; the client can send the same reports again.
        """
        if (errors := await self.enqueue(round_id, packed)) and round_id in errors:
            raise errors[round_id]

    def enqueue(self, round_id: str, packed: PackedReports) -> Commit:
        """Queue reports for the next commit. Return its outcome."""
        loop = asyncio.get_running_loop()
        batch = self._open_batches.get(loop)
        if batch is None:
            batch = self._open_batches[loop] = _Batch(loop)
            loop.call_soon(self._close_batch, batch, 1, 1)
        requests = batch.by_round.get(round_id)
        if requests is None:
            requests = batch.by_round[round_id] = []
        requests.append(packed)
        batch.n_requests += 1
        batch.n_bytes += len(packed.data)
        if batch.n_bytes >= GROUP_BYTES:
            del self._open_batches[loop]
        return batch.commit

    def _close_batch(self, batch: _Batch, n_before: int, turn: int) -> None:
        """Pass the batch to the thread, unless the last iteration of the event loop added reports."""
        n_now = batch.n_requests
        is_open = self._open_batches.get(batch.loop) is batch
        if is_open and n_now > n_before and turn < MAX_TURNS:
            batch.loop.call_soon(self._close_batch, batch, n_now, turn + 1)
            return
        if is_open:
            del self._open_batches[batch.loop]
        with self._changed:
            is_accepted = self._thread is not None and not self._is_stopping
            if is_accepted:
                self._pending.append(batch)
                self._changed.notify()
        if not is_accepted:
            error = Unavailable("the service is stopping: send the reports again")
            batch.commit.set_result(dict.fromkeys(batch.by_round, error))

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._pending and not self._is_stopping:
                    self._changed.wait()
                group = self._next_group()
            if not group:
                self._connection.close()
                return
            start = time.perf_counter()
            by_round = _merge(group)
            errors, received = self._commit(by_round)
            seconds = time.perf_counter() - start
            self._publish_changes(received)
            for batch in group:
                try:
                    batch.loop.call_soon_threadsafe(batch.commit.set_result, errors)
                except RuntimeError:  # the event loop has ended, and its requests with it
                    log.warning("event_loop_closed", n_requests=batch.n_requests)
            n_requests = sum(batch.n_requests for batch in group)
            n_reports = sum([packed.n_reports for round_id in received for packed in by_round[round_id]])
            self._metrics.count_commit(n_requests, n_reports, seconds)
            for round_id, each in received.items():
                self._note_end(round_id, each)

    def _note_end(self, round_id: str, received: Received) -> None:
        """Wake a worker for a full round. Start the count of a large log, and keep the outcome of a count."""
        if received.is_full:
            self._job_signal.notify(received.job_id or round_id)
        if received.is_full or received.distinct is None:
            self._distinct.pop(round_id, None)
        else:
            if len(self._distinct) >= MAX_COUNTED:
                self._distinct.clear()
            self._distinct[round_id] = received.distinct
        if received.must_count and round_id not in self._counting:
            self._counting.add(round_id)
            threading.Thread(target=self._count, args=[round_id], name="report-counter", daemon=True).start()

    def _count(self, round_id: str) -> None:
        """Count the distinct reports of a large log, and close the round if it is full."""
        try:
            received = report_intake.close_if_full(self._database, round_id, self._distinct.get(round_id))
        except Exception as error:  # the next report starts another count
            log.error("count_failed", round_id=round_id, **describe(error))
            return
        finally:
            self._counting.discard(round_id)
        if received is not None:
            self._publish_changes({round_id: received})
            self._note_end(round_id, received)

    def _publish_changes(self, received: dict[str, Received]) -> None:
        """Publish full rounds now, before their requests are answered, and progress of others within a second."""
        for each in received.values():
            if each.is_full:
                self._change_feed.publish(each.dataset_id, *([] if each.job_id is None else [each.job_id]))
            elif each.job_id is not None:
                self._change_feed.publish_debounced(each.job_id)

    def _next_group(self) -> list[_Batch]:
        group: list[_Batch] = []
        n_bytes = 0
        while self._pending and n_bytes < GROUP_BYTES:
            group.append(self._pending.popleft())
            n_bytes += group[-1].n_bytes
        return group

    def _commit(self, by_round: dict[str, list[PackedReports]]) -> tuple[dict[str, Exception], dict[str, Received]]:
        """Store reports in one transaction. Return the error of each rejected round and the state of the others."""

        def receive(connection: Connection) -> tuple[dict[str, Exception], dict[str, Received]]:
            errors: dict[str, Exception] = {}
            received: dict[str, Received] = {}
            now = self._database.clock()
            for round_id in sorted(by_round):  # the same lock order in every gateway prevents deadlocks
                requests = by_round[round_id]
                apart = [packed for packed in requests if len(packed.data) >= APART_BYTES]
                small = [packed for packed in requests if len(packed.data) < APART_BYTES] if apart else requests
                n_reports = sum([packed.n_reports for packed in small])
                data = b"".join([packed.data for packed in small])
                try:
                    received[round_id] = report_intake.receive(
                        connection,
                        round_id,
                        n_reports,
                        data,
                        apart=apart,
                        distinct=self._distinct.get(round_id),
                        now=now,
                    )
                except RoundClosed as closed:  # raised before anything was written
                    errors[round_id] = closed
            return errors, received

        try:
            return self._connection.run("receive_reports", receive)
        except Exception as error:  # a failed commit must not end the thread
            reason = self._database.failure_reason(error)
            log.error("commit_failed", n_requests=sum(map(len, by_round.values())), reason=reason, **describe(error))
            return dict.fromkeys(by_round, Unavailable("the reports could not be stored: send them again")), {}


def _merge(group: list[_Batch]) -> dict[str, list[PackedReports]]:
    if len(group) == 1:
        return group[0].by_round
    by_round: dict[str, list[PackedReports]] = {}
    for batch in group:
        for round_id, requests in batch.by_round.items():
            by_round.setdefault(round_id, []).extend(requests)
    return by_round
