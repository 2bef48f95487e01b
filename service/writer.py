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
from dataclasses import dataclass

import structlog
from sqlalchemy.orm import Session

from models import round as rounds
from models.db import Database
from models.doorbell import Doorbell
from models.errors import RoundClosed
from models.round import Received
from service.logs import describe
from service.metrics import GatewayMetrics
from service.notices import Notices
from service.problems import Unavailable
from service.reports import Packed

GROUP_BYTES = 16 << 20  # about so much in one commit: workers read a row at a time
MAX_TURNS = 16  # of the event loop that a group gathers for, while each brings more

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    round_id: str
    packed: Packed
    loop: asyncio.AbstractEventLoop
    stored: "asyncio.Future[None]"


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
        self._database = database
        self._doorbell = doorbell
        self._metrics = metrics or GatewayMetrics()
        self._notices = notices or Notices(None)
        self._changed = threading.Condition()
        self._pending: deque[_Waiting] = deque()
        self._is_handed_over = False  # what is pending is a group: nothing more came
        self._gathering_loop: asyncio.AbstractEventLoop | None = None
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
        loop = asyncio.get_running_loop()
        waiting = _Waiting(round_id, packed, loop, loop.create_future())
        with self._changed:
            if self._thread is None or self._is_ending:
                raise Unavailable("the service is ending")
            self._pending.append(waiting)
            is_first, self._gathering_loop = self._gathering_loop is not loop, loop
        if is_first:
            loop.call_soon(self._gather, loop, 1, 1)
        await waiting.stored

    def _gather(self, loop: asyncio.AbstractEventLoop, n_before: int, turn: int) -> None:
        """Hand over what waits, unless the event loop's last turn brought more."""
        n_now = len(self._pending)
        if n_now > n_before and turn < MAX_TURNS:
            loop.call_soon(self._gather, loop, n_now, turn + 1)
            return
        with self._changed:
            self._gathering_loop, self._is_handed_over = None, bool(self._pending)
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._is_handed_over and self._pending) and not self._is_ending:
                    self._changed.wait()
                group = self._take()
                self._is_handed_over = bool(self._pending)  # more than one commit takes
            if not group:
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

        def receive(session: Session) -> tuple[dict[str, Exception], dict[str, Received]]:
            refused: dict[str, Exception] = {}
            received: dict[str, Received] = {}
            now = self._database.clock()
            for round_id in sorted(of_round):  # every gateway locks rounds in this order
                reports = of_round[round_id]
                n_reports = sum(packed.n_reports for packed in reports)
                data = b"".join(packed.data for packed in reports)
                try:
                    received[round_id] = rounds.receive(session, round_id, n_reports, data, now=now)
                except RoundClosed as closed:  # raised before anything was written
                    refused[round_id] = closed
            return refused, received

        try:
            return self._database.run("receive_reports", receive)
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
        if waiting.stored.done():  # given up
            continue
        error = refused.get(waiting.round_id)
        if error is None:
            waiting.stored.set_result(None)
        else:
            waiting.stored.set_exception(error)
