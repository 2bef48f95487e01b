"""The supervisor: claims jobs, holds their leases, and has one child compute them.

It loads no numba and computes nothing, so it is never too busy to renew a lease or to
kill a child: on cancel, on the deadline, when the job is somebody else's by now. Between
and during jobs it sweeps: closes rounds past their time, folds rounds no job will fold, and
sees to it that no dead worker's lease outlasts a clock that was set back.
A database that is away is waited for; what this worker holds meanwhile lapses by itself.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from models import fold as folds
from models import idempotency
from models import job as jobs
from models import lease as leases
from models import round as rounds
from models.bulletin import Bulletin, SilentBulletin
from models.db import SECOND, Database
from models.doorbell import Doorbell
from models.errors import StaleFence
from models.job import Claim, Job, JobState
from models.settings import Settings
from workers.child import FoldTask, JobTask, Reply, RunCentral, StartPlan
from workers.handle import ChildDied, ChildHandle
from workers.metrics import DIED, GOES_ON, UNDONE, WorkerMetrics
from workers.process import describe

SOON_SECONDS = 0.03  # a job that is over by then is not told of as running: nobody need look at it twice
WATCH_SECONDS = 0.1  # how often a job under way is looked at: a cancel is seen within it
SWEEP_SECONDS = 1.0  # how often rounds to close or fold are looked for
LOOK_SECONDS = 0.5  # how often an idle worker looks for jobs without a ring: a lost one, or a lapsed lease, costs that
FORGET_SECONDS = 600.0  # how often old idempotency keys are dropped
LAST_WORD_SECONDS = 1.0  # a child that just ended its claim may still be about to say so
AWAY_SECONDS = 1.0  # between looks at a job under way while the database is away
LONGEST_BACK_OFF_SECONDS = 5.0  # between looks for a database that is away

# Why a child is killed.
CANCEL = "cancel"
DEADLINE_EXCEEDED = "deadline_exceeded"  # also the job's error code
LOST = "lost"  # the lease
STOP = "stop"

log = structlog.get_logger(__name__)


@dataclass
class _Due:
    """Says at most once in `seconds` that it is time."""

    seconds: float
    at: float = 0.0

    def __call__(self) -> bool:
        now = time.monotonic()
        if now < self.at:
            return False
        self.at = now + self.seconds
        return True


class _Kill(Exception):
    """The child's task is to end now, for this reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class _Undone(Exception):
    """The child could not do its task and lives: better wait a little."""


class Supervisor:
    """One worker.

    Parameters
    ----------
    settings : Settings
        Lease, deadline, attempts.
    database : Database
    doorbell : Doorbell
    stop_with_parent : bool
        Whether to stop in good order when the process that started this one is gone.
    start : callable, optional
        Which plan runs which algorithm; the registry's by default.
    run_central : callable, optional
        Runs central algorithms.
    metrics : WorkerMetrics, optional
        Counts what is done.
    bulletin : Bulletin, optional
        Told of jobs that changed, and of datasets whose open rounds may have.
    """

    def __init__(
        self,
        settings: Settings,
        database: Database,
        doorbell: Doorbell,
        *,
        stop_with_parent: bool = False,
        start: StartPlan | None = None,
        run_central: RunCentral | None = None,
        metrics: WorkerMetrics | None = None,
        bulletin: Bulletin | None = None,
    ) -> None:
        self._metrics = metrics or WorkerMetrics()
        self._idle_since: int | None = None
        self._settings = settings
        self._database = database
        self._doorbell = doorbell
        self._bulletin = bulletin or SilentBulletin()
        self._child = ChildHandle(settings.resolved_database_url, start, run_central, warm=settings.warm_kernels)
        self._lease = int(settings.lease_seconds * SECOND)
        self._parent = os.getppid() if stop_with_parent else None
        self._stopping = False
        self._is_rung = False
        self._sweep_is_due = _Due(SWEEP_SECONDS)
        self._fold_is_due = _Due(SWEEP_SECONDS)
        self._forget_is_due = _Due(FORGET_SECONDS)

    def stop(self) -> None:
        """Have `run` return soon; what is under way goes back to the queue. Safe in a signal handler."""
        self._stopping = True

    def run(self) -> None:
        """Work until stopped; no failure of the database, the doorbell or the child ends it."""
        back_off = 0.0
        try:
            while not self._is_stopping():
                try:
                    if not self._turn():
                        self._is_rung = self._doorbell.wait(LOOK_SECONDS)
                    back_off = 0.0
                except ChildDied as died:
                    log.error("child_did_not_start", exit_status=died.exit_status)
                    self._metrics.children.labels("did_not_start").inc()
                except Exception as error:
                    log.error("turn_failed", **describe(error))
                    back_off = min(2 * back_off + 0.1, LONGEST_BACK_OFF_SECONDS)
                    time.sleep(back_off)
        finally:
            self._child.kill()

    def _is_stopping(self) -> bool:
        return self._stopping or (self._parent is not None and os.getppid() != self._parent)

    def _turn(self) -> bool:
        """One job and one fold, where there are; False where there was nothing to do."""
        if not self._child.ensure(WATCH_SECONDS):  # a worker that is not ready leaves jobs to others
            self._sweep()
            return True
        is_busy = self._take_job()  # first: somebody may wait for it
        self._sweep()
        is_busy |= self._take_fold()
        self._idle_since = None if is_busy else self._idle_since or self._database.clock()
        return is_busy

    # ---- jobs ----

    def _take_job(self) -> bool:
        if not self._child.ensure(0):
            return False
        job = self._claim_job()
        if job is None:
            return False
        held = Claim(job.id, job.fence)
        claimed = self._metrics.claimed(job, held, now=self._database.clock(), idle_since=self._idle_since)
        log.info("job_claimed", job_id=held.job_id, fence=held.fence)
        self._child.ask(JobTask(held))
        is_done = False
        try:
            reply = self._child.listen(SOON_SECONDS)
            if reply is None:
                self._bulletin.tell(held.job_id)
                reply = self._watch(self._look_at_job(held))
        except ChildDied as died:
            log.warning("child_died", job_id=held.job_id, exit_status=died.exit_status)
            claimed.child_ended(DIED)
            self._hand_back(held, is_attempt=True)
        except _Kill as kill:
            self._child.kill()
            log.info("child_killed", job_id=held.job_id, reason=kill.reason)
            claimed.child_ended(kill.reason)
            self._settle(held, kill.reason)
        else:
            if reply != Reply.DONE:
                claimed.ended(UNDONE)
                self._hand_back(held, is_attempt=True)
                raise _Undone(reply)
            is_done = True
        finally:
            self._bulletin.tell(held.job_id, job.dataset_id)
        if is_done:  # counted after it was told: somebody may wait for it
            claimed.ended(self._outcome(held))
        return True

    def _claim_job(self) -> Job | None:
        """A job to do. Only who was rung for claims without a look: one that finds nothing has locked for nothing."""
        database, max_attempts = self._database, self._settings.max_attempts
        is_rung, self._is_rung = self._is_rung, False
        if not is_rung:
            with database.reading() as session:
                if not jobs.is_any_waiting(session, now=database.clock()):
                    return None
        return database.run(
            "claim_job",
            lambda session: jobs.claim_job(
                session, now=database.clock(), lease_microseconds=self._lease, max_attempts=max_attempts
            ),
        )

    def _outcome(self, held: Claim) -> str:
        """How a claim ended: the state the job ended in, or that it goes on."""
        try:
            with self._database.reading() as session:
                job = session.get_one(Job, held.job_id)
        except SQLAlchemyError:
            return UNDONE  # nobody knows
        return job.state if job.is_final else GOES_ON

    def _look_at_job(self, held: Claim) -> Callable[[], None]:
        """What to do every so often while the child works on a job; raises _Kill or StaleFence."""
        renewal_is_due = self._renewal()

        def renew(session: Session) -> Job:
            return jobs.renew(session, held, now=self._database.clock(), lease_microseconds=self._lease)

        def look() -> None:
            if renewal_is_due():
                job = self._database.run("renew_lease", renew)
            else:
                with self._database.reading() as session:
                    job = session.get_one(Job, held.job_id)
            if job.fence != held.fence or job.state != JobState.RUNNING:
                raise StaleFence("another worker holds this job")
            if job.cancel_requested:
                raise _Kill(CANCEL)

        return look

    def _renewal(self) -> "_Due":
        quarter = self._settings.lease_seconds / 4
        return _Due(quarter, at=time.monotonic() + quarter)

    def _settle(self, held: Claim, reason: str) -> None:
        """Write down why a child was killed; StaleFence means that it had come to its end before."""
        if reason == STOP:
            self._hand_back(held, is_attempt=False)
            return

        def settle(session: Session) -> None:
            now = self._database.clock()
            if reason == CANCEL:
                jobs.let_go(session, held, now=now)
            elif reason == DEADLINE_EXCEEDED:
                detail = f"computed for longer than {self._settings.job_seconds:g} s"
                jobs.fail(session, held, JobState.FAILED, code=DEADLINE_EXCEEDED, detail=detail, now=now)

        try:
            self._database.run("settle_claim", settle)
        except StaleFence:
            log.info("claim_over", job_id=held.job_id)

    def _hand_back(self, held: Claim, *, is_attempt: bool) -> None:
        """Let another worker have the job at once; where the database is away, when the lease lapses."""
        try:
            self._database.run(
                "hand_back",
                lambda session: jobs.hand_back(session, held, is_attempt=is_attempt, now=self._database.clock()),
            )
        except StaleFence:
            return
        except SQLAlchemyError as error:
            log.warning("not_handed_back", job_id=held.job_id, **describe(error))
            return
        self._doorbell.ring(held.job_id)

    # ---- folds ----

    def _take_fold(self) -> bool:
        if not self._fold_is_due() or not self._child.ensure(0):
            return False
        round_id = self._claim_fold()
        if round_id is None:
            return False
        self._fold_is_due.at = 0.0  # there may be more
        self._child.ask(FoldTask(round_id))
        renewal_is_due, began = self._renewal(), time.monotonic()

        def keep(session: Session) -> None:
            folds.keep_fold(session, round_id, until=self._database.clock() + self._lease)

        def let_go(session: Session) -> None:
            folds.let_go_fold(session, round_id, now=self._database.clock())

        def look() -> None:
            if renewal_is_due():
                self._database.run("renew_fold", keep)

        try:
            reply = self._watch(look)
        except ChildDied as died:  # the claim lapses by itself: a round that kills workers gets no haste
            log.warning("child_died", round_id=round_id, exit_status=died.exit_status)
            self._metrics.children.labels(DIED).inc()
        except _Kill as kill:
            self._child.kill()
            log.info("child_killed", round_id=round_id, reason=kill.reason)
            self._metrics.children.labels(kill.reason).inc()
            if kill.reason == STOP:
                self._database.run("let_go_fold", let_go)
        else:
            if reply == Reply.DATABASE_AWAY:
                raise _Undone(reply)
            self._metrics.fold_seconds.observe(time.monotonic() - began)
        return True

    def _claim_fold(self) -> str | None:
        """A fold to do; first gives one up that too many workers were lost on."""
        max_attempts = self._settings.max_attempts

        def claim(session: Session) -> tuple[str | None, str | None]:
            now = self._database.clock()
            given_up = folds.give_up_fold(session, now=now, max_attempts=max_attempts)
            taken = folds.claim_fold(session, now=now, lease_microseconds=self._lease, max_attempts=max_attempts)
            return given_up, taken

        given_up, round_id = self._database.run("claim_fold", claim)
        if given_up is not None:
            log.error("fold_given_up", round_id=given_up, attempts=max_attempts)
        return round_id

    # ---- while the child works, and between ----

    def _watch(self, look: Callable[[], None]) -> Reply:
        """The child's answer to its task; `look` is called in between.

        Raises ChildDied; _Kill where the child is to be ended.
        """
        deadline = time.monotonic() + self._settings.job_seconds
        pause = WATCH_SECONDS
        while True:
            reply = self._child.listen(pause)
            if reply is not None:
                return reply
            if self._is_stopping():
                raise _Kill(STOP)
            if time.monotonic() >= deadline:
                raise _Kill(DEADLINE_EXCEEDED)
            try:
                look()
                self._sweep()
                pause = WATCH_SECONDS
            except StaleFence:
                reply = self._child.listen(LAST_WORD_SECONDS)
                if reply is not None:
                    return reply
                raise _Kill(LOST) from None
            except SQLAlchemyError as error:  # the child may well get through; the fence guards what it writes
                log.warning("database_away", **describe(error))
                pause = AWAY_SECONDS

    def _sweep(self) -> None:
        """Close rounds past their time and ring for their jobs; shorten leases no clock of now wrote; drop old keys."""
        if not self._sweep_is_due():
            return

        def close(session: Session) -> list[str | None]:
            now = self._database.clock()
            leases.shorten(session, now=now, lease_microseconds=self._lease)
            return rounds.close_due(session, now=now)

        for job_id in self._database.run("close_rounds", close):
            if job_id is not None:
                self._doorbell.ring(job_id)
                self._bulletin.tell(job_id)
        if self._forget_is_due():
            self._database.run(
                "forget_idempotency_keys", lambda session: idempotency.forget(session, now=self._database.clock())
            )
