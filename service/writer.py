"""Group commit: one thread stores reports, all that wait once the last commit has ended.

Nobody waits for a timer. While one commit is under way (a millisecond or so) the next group
gathers, and goes on to until a turn of the event loop brings no more: under load a group is
large and costs each report little, without load it is one report. A request is answered after
its commit, and all of a request is in one commit.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import structlog
from sqlalchemy import Connection

from models import round as rounds
from models.db import Database
from models.doorbell import Doorbell
from models.errors import RoundClosed
from models.round import Received
from models.steady import SteadyConnection
from service.logs import describe
from service.metrics import GatewayMetrics
from service.notices import Notices
from service.problems import Unavailable
from service.reports import Packed

GROUP_BYTES = 16 << 20  # about so much in one commit: workers read a row at a time
APART_BYTES = 1 << 20  # a request of so many has a row of its own
MAX_TURNS = 16  # of the event loop that a group gathers for, while each brings more

log = structlog.get_logger(__name__)

Stored = Callable[[Exception | None], None]


class _Waiting(NamedTuple):
    round_id: str
    packed: Packed
    loop: asyncio.AbstractEventLoop
    stored: Stored


class ReportWriter:
    """The one thread of a gateway that writes reports.

    Parameters
    ----------
    database : Database
    doorbell : Doorbell
        Rung where a round became full, after the commit.
    metrics : GatewayMetrics, optional
        Counts what is stored.
    notices : Notices, optional
        Told of jobs and datasets that changed by it.
    """

    def __init__(
        self,
        database: Database,
        doorbell: Doorbell,
        metrics: GatewayMetrics | None = None,
        notices: Notices | None = None,
    ) -> None:
        self._database, self._connection = database, SteadyConnection(database)
        self._doorbell = doorbell
        self._metrics = metrics or GatewayMetrics()
        self._notices = notices or Notices(None)
        self._changed = threading.Condition()
        self._gathering: dict[asyncio.AbstractEventLoop, list[_Waiting]] = {}  # each loop's own
        self._pending: deque[_Waiting] = deque()
        self._is_ending = False
        self._thread: threading.Thread | None = None

    @property
    def is_alive(self) -> bool:
        """Whether reports that are handed over will be stored."""
        return self._thread is not None and self._thread.is_alive() and not self._is_ending

    def start(self) -> None:
        """Begin to take reports."""
        self._is_ending = False
        self._thread = threading.Thread(target=self._run, name="report-writer", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Store what still waits, then end. Blocks."""
        with self._changed:
            self._is_ending = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    async def store(self, round_id: str, packed: Packed) -> None:
        """Return after the commit that holds these reports.

        Raises
        ------
        RoundClosed
            Nothing of it was stored.
        Unavailable
            The commit failed, or nobody knows; the same reports can be sent again.
        """
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def stored(error: Exception | None) -> None:
            if waiter.done():  # given up
                return
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)

        self.hand_over(round_id, packed, stored)
        await waiter

    def hand_over(self, round_id: str, packed: Packed, stored: Stored) -> None:
        """Have these reports stored, and be told in this event loop: with None, or with what `store` raises."""
        loop = asyncio.get_running_loop()
        waiting = _Waiting(round_id, packed, loop, stored)
        gathered = self._gathering.get(loop)
        if gathered is None:
            self._gathering[loop] = [waiting]
            loop.call_soon(self._gather, loop, 1, 1)
        else:
            gathered.append(waiting)

    def _gather(self, loop: asyncio.AbstractEventLoop, n_before: int, turn: int) -> None:
        """Hand a group to the thread, unless the event loop's last turn brought more."""
        n_now = len(self._gathering[loop])
        if n_now > n_before and turn < MAX_TURNS:
            loop.call_soon(self._gather, loop, n_now, turn + 1)
            return
        group = self._gathering.pop(loop)
        with self._changed:
            is_taken = self._thread is not None and not self._is_ending
            if is_taken:
                self._pending.extend(group)
                self._changed.notify()
        if not is_taken:
            refused = Unavailable("the service is ending")
            _wake(group, {waiting.round_id: refused for waiting in group})

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._pending and not self._is_ending:
                    self._changed.wait()
                group = self._take()
            if not group:
                self._connection.close()
                return
            began = time.perf_counter()
            outcome, received = self._commit(group)
            seconds = time.perf_counter() - began
            self._announce(received)
            _tell(group, outcome)
            n_reports = sum(each.packed.n_reports for each in group if each.round_id not in outcome)
            self._metrics.committed(len(group), n_reports, seconds)
            for round_id, each in received.items():
                if each.is_full:
                    self._doorbell.ring(each.job_id or round_id)

    def _announce(self, received: dict[str, Received]) -> None:
        """Say which rounds are full, before anybody is answered, and whose progress changed, within a second."""
        for each in received.values():
            if each.is_full:
                self._notices.tell(each.dataset_id, *([] if each.job_id is None else [each.job_id]))
            elif each.job_id is not None:
                self._notices.tell_soon(each.job_id)

    def _take(self) -> list[_Waiting]:
        group: list[_Waiting] = []
        n_bytes = 0
        while self._pending and n_bytes < GROUP_BYTES:
            group.append(self._pending.popleft())
            n_bytes += len(group[-1].packed.data)
        return group

    def _commit(self, group: list[_Waiting]) -> tuple[dict[str, Exception], dict[str, Received]]:
        """One transaction; the rounds that took nothing with the reason why, and what it did to the others."""
        of_round: dict[str, list[Packed]] = {}
        for waiting in group:
            of_round.setdefault(waiting.round_id, []).append(waiting.packed)

        def receive(connection: Connection) -> tuple[dict[str, Exception], dict[str, Received]]:
            refused: dict[str, Exception] = {}
            received: dict[str, Received] = {}
            now = self._database.clock()
            for round_id in sorted(of_round):  # every gateway locks rounds in this order
                small = [packed for packed in of_round[round_id] if len(packed.data) < APART_BYTES]
                apart = [packed for packed in of_round[round_id] if len(packed.data) >= APART_BYTES]
                n_reports = sum(packed.n_reports for packed in small)
                data = b"".join(packed.data for packed in small)
                try:
                    received[round_id] = rounds.receive(connection, round_id, n_reports, data, apart=apart, now=now)
                except RoundClosed as closed:  # raised before anything was written
                    refused[round_id] = closed
            return refused, received

        try:
            return self._connection.run("receive_reports", receive)
        except Exception as error:  # a commit that fails must not end the thread
            log.error("commit_failed", n_requests=len(group), **describe(error))
            return dict.fromkeys(of_round, Unavailable("the reports could not be stored; send them again")), {}


def _tell(group: list[_Waiting], refused: dict[str, Exception]) -> None:
    """Wake who waits, in one call a loop."""
    for loop in {waiting.loop for waiting in group}:
        ours = [waiting for waiting in group if waiting.loop is loop]
        try:
            loop.call_soon_threadsafe(_wake, ours, refused)
        except RuntimeError:  # the loop has ended, and with it everyone who waited
            log.warning("nobody_waits", n_requests=len(ours))


def _wake(group: list[_Waiting], refused: dict[str, Exception]) -> None:
    for waiting in group:
        try:
            waiting.stored(refused.get(waiting.round_id))
        except Exception as error:  # one who cannot be told must not leave the others waiting
            log.error("telling_failed", **describe(error))
