"""The supervisor: claims jobs, renews their leases, and delegates the computation to a job process.

The supervisor does not load numba and does no long computation, so it can always renew a lease in time. It kills the
job process if it is frozen, or if the job is canceled, exceeds its deadline, or was claimed by another worker. Between
and during jobs it closes expired rounds, opens the windows of series, aggregates rounds that no job aggregates, and
caps leases after the clock was set back. While the database is unavailable, the supervisor retries. Its leases expire
without a further write.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import structlog
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from connections.log_records import describe
from models.collection import aggregation_leases, rounds
from models.database.engine import Database
from models.database.types import SECOND
from models.errors import StaleFence
from models.identity import tenants
from models.jobs import claims, idempotency, lifecycle
from models.jobs.claims import Claim
from models.records import records
from models.series import windows
from models.tables.jobs import Job, JobState
from runtime.change_publisher import ChangePublisher, NullPublisher
from runtime.job_signal import JobSignal
from runtime.settings import Settings
from sfumato.errors import SfumatoError
from workers.job_process import AggregationTask, JobTask, Reply, RunCentral, StartPlan
from workers.metrics import CONTINUES, DIED, INTERRUPTED, WorkerMetrics
from workers.process_handle import JobProcessDied, JobProcessHandle

ANNOUNCE_SECONDS = 0.1  # a job that ends earlier is not published as running, which saves gateways a query
WATCH_SECONDS = 0.1  # between checks of a running job; bounds the delay of a cancellation
SWEEP_SECONDS = 1.0  # between searches for rounds to close or to aggregate
POLL_SECONDS = 0.5  # between polls of an idle worker; bounds the delay after a lost signal or an expired lease
MAX_STEPS = 1000  # steps of one series in a sweep, as after a long time without a worker
FORGET_SECONDS = 600.0  # between deletions of old idempotency keys
LAST_REPLY_SECONDS = 1.0  # a job process that just ended its claim may not have sent its reply yet
AWAY_SECONDS = 1.0  # between checks of a running job while the database is unavailable
MAX_BACK_OFF_SECONDS = 5.0  # between attempts while the database is unavailable

# Reasons for killing the job process.
CANCEL = "cancel"
DEADLINE_EXCEEDED = "deadline_exceeded"  # also the error code of the job
LOST = "lost"  # another worker claimed the job
STOP = "stop"

log = structlog.get_logger(__name__)


@dataclass
class _Timer:
    """Is due at most once per `seconds`."""

    seconds: float
    due_at: float = 0.0

    def is_due(self) -> bool:
        """Return whether the period has passed, and start the next one if so."""
        now = time.monotonic()
        if now < self.due_at:
            return False
        self.due_at = now + self.seconds
        return True


class _KillProcess(Exception):
    """The supervisor must kill the job process for this reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class _TaskNotDone(Exception):
    """The job process could not do its task but is alive. The supervisor backs off."""


class Supervisor:
    """One worker.

    Parameters
    ----------
    settings : Settings
        Durations of leases and jobs, and the maximum number of attempts.
    database : Database
    job_signal : JobSignal
        Wakes an idle worker.
    stop_with_parent : bool
        Whether to stop when the parent process exits.
    start : callable, optional
        Function that starts the plan of a local algorithm; by default that of the registry.
    run_central : callable, optional
        Function that runs a central algorithm.
    metrics : WorkerMetrics, optional
    publisher : ChangePublisher, optional
        Publishes the ids of changed jobs, and of datasets with open rounds that may have changed.
    """

    def __init__(
        self,
        settings: Settings,
        database: Database,
        job_signal: JobSignal,
        *,
        stop_with_parent: bool = False,
        start: StartPlan | None = None,
        run_central: RunCentral | None = None,
        metrics: WorkerMetrics | None = None,
        publisher: ChangePublisher | None = None,
    ) -> None:
        self._metrics = metrics or WorkerMetrics()
        self._idle_since: int | None = None
        self._settings = settings
        self._database = database
        self._job_signal = job_signal
        self._publisher = publisher or NullPublisher()
        self._process = JobProcessHandle(settings, start, run_central)
        self._lease = int(settings.lease_seconds * SECOND)
        self._parent = os.getppid() if stop_with_parent else None
        self._stopping = False
        self._drained_at = 0.0  # monotonic time until which a stopping worker continues its job
        self._has_signal = False
        self._sweep_timer = _Timer(SWEEP_SECONDS)
        self._aggregation_timer = _Timer(SWEEP_SECONDS)
        self._forget_timer = _Timer(FORGET_SECONDS)

    def stop(self, *, drain: bool = False) -> None:
        """Make `run` return soon. May be called in a signal handler.

        With `drain`, the current job may first take `worker_drain_seconds` to finish. Then it is requeued, and at once
        after a second call.
        """
        seconds = self._settings.worker_drain_seconds if drain and not self._stopping else 0.0
        self._drained_at = time.monotonic() + seconds
        self._stopping = True

    def run(self) -> None:
        """Work until stopped, despite failures of the database, the job signal or the job process."""
        back_off = 0.0
        try:
            while not self.is_stopping:
                try:
                    if not self._run_once():
                        self._has_signal = self._job_signal.wait(POLL_SECONDS)
                    back_off = 0.0
                except JobProcessDied as died:
                    log.error("job_process_died_without_task", exit_status=died.exit_status)
                    self._metrics.job_processes.labels("did_not_start").inc()
                except Exception as error:
                    log.error("iteration_failed", reason=self._database.failure_reason(error), **describe(error))
                    back_off = min(2 * back_off + 0.1, MAX_BACK_OFF_SECONDS)
                    time.sleep(back_off)
        finally:
            self._process.kill()

    @property
    def is_stopping(self) -> bool:
        """Return whether the worker is to stop."""
        return self._stopping or self._has_parent_ended()

    def _has_parent_ended(self) -> bool:
        return self._parent is not None and os.getppid() != self._parent

    def _run_once(self) -> bool:
        """Run at most one job and one aggregation. Return whether the worker stays busy."""
        if not self._process.ensure_ready(WATCH_SECONDS):  # a worker that is not ready leaves jobs to other workers
            self._sweep()
            return True
        is_busy = self._run_job()  # before aggregations, because a client may be waiting
        self._sweep()
        is_busy |= self._run_aggregation()
        self._idle_since = None if is_busy else self._idle_since or self._database.clock()
        return is_busy

    # ---- jobs ----

    def _run_job(self) -> bool:
        if not self._process.ensure_ready(0):
            return False
        job = self._claim_job()
        if job is None:
            return False
        claim = Claim(job.id, job.fence)
        metrics = self._metrics.start_claim(job, claim, now=self._database.clock(), idle_since=self._idle_since)
        log.info("job_claimed", job_id=claim.job_id, fence=claim.fence)
        was_alive = self._process.send(JobTask(claim))  # if not, the process died between the check and the claim
        is_done = False
        try:
            reply = self._process.receive(ANNOUNCE_SECONDS)
            if reply is None:
                self._publisher.publish(claim.job_id)
                reply = self._watch(self._job_check(claim))
        except JobProcessDied as died:
            log.warning("job_process_died", job_id=claim.job_id, exit_status=died.exit_status)
            metrics.end_with_process(DIED)
            self._requeue(claim, is_attempt=was_alive)
        except _KillProcess as kill:
            self._process.kill()
            log.info("job_process_killed", job_id=claim.job_id, reason=kill.reason)
            metrics.end_with_process(kill.reason)
            self._settle(claim, kill.reason)
        else:
            if reply != Reply.DONE:
                metrics.end(INTERRUPTED)
                self._requeue(claim, is_attempt=True)
                raise _TaskNotDone(reply)
            is_done = True
        finally:
            self._publisher.publish(claim.job_id, job.dataset_id)
        if is_done:  # after publishing, because a client may be waiting
            metrics.end(self._outcome(claim))
        return True

    def _claim_job(self) -> Job | None:
        """Claim the next job.

        Without a signal, first run a lock-free check, because an unsuccessful claim takes row locks for nothing.
        """
        database, max_attempts = self._database, self._settings.max_attempts
        has_signal, self._has_signal = self._has_signal, False
        if not has_signal:
            with database.reading() as session:
                if not claims.is_any_waiting(session, now=database.clock()):
                    return None
        return database.run(
            "claim_job",
            lambda session: claims.claim_job(
                session, now=database.clock(), lease_microseconds=self._lease, max_attempts=max_attempts
            ),
        )

    def _outcome(self, claim: Claim) -> str:
        """Return the final state of the job, or CONTINUES."""
        try:
            with self._database.reading() as session:
                job = session.get_one(Job, claim.job_id)
        except SQLAlchemyError:
            return INTERRUPTED  # unknown while the database is unavailable
        return job.state if job.is_final else CONTINUES

    def _job_check(self, claim: Claim) -> Callable[[], None]:
        """Return the periodic check of a running job, which raises _KillProcess or StaleFence."""
        renewal = self._renewal_timer()

        def renew(session: Session) -> Job:
            return claims.renew(session, claim, now=self._database.clock(), lease_microseconds=self._lease)

        def check() -> None:
            if renewal.is_due():
                job = self._database.run("renew_lease", renew)
            else:
                with self._database.reading() as session:
                    job = session.get_one(Job, claim.job_id)
            if job.fence != claim.fence or job.state != JobState.RUNNING:
                raise StaleFence("another worker claimed this job")
            if job.cancel_requested:
                raise _KillProcess(CANCEL)

        return check

    def _renewal_timer(self) -> "_Timer":
        quarter = self._settings.lease_seconds / 4
        return _Timer(quarter, due_at=time.monotonic() + quarter)

    def _settle(self, claim: Claim, reason: str) -> None:
        """Store the consequence of killing the job process, unless the claim had already ended."""
        if reason == STOP:
            self._requeue(claim, is_attempt=False)
            return

        def settle(session: Session) -> None:
            now = self._database.clock()
            if reason == CANCEL:
                lifecycle.cancel_claimed(session, claim, now=now)
            elif reason == DEADLINE_EXCEEDED:
                detail = (
                    f"the job computed for longer than {self._settings.job_seconds:g} s, the limit of the operator: "
                    "submit it with fewer features or clusters, or set a higher SFUMATO_JOB_SECONDS"
                )
                lifecycle.fail(session, claim, JobState.FAILED, code=DEADLINE_EXCEEDED, detail=detail, now=now)

        try:
            self._database.run("settle_claim", settle)
        except StaleFence:
            log.info("claim_already_ended", job_id=claim.job_id)

    def _requeue(self, claim: Claim, *, is_attempt: bool) -> None:
        """Return the job to the queue. If the database is unavailable, the job waits until its lease expires."""
        try:
            self._database.run(
                "requeue_job",
                lambda session: lifecycle.requeue(session, claim, is_attempt=is_attempt, now=self._database.clock()),
            )
        except StaleFence:
            return
        except SQLAlchemyError as error:
            reason = self._database.failure_reason(error)
            log.warning("job_not_requeued", job_id=claim.job_id, reason=reason, **describe(error))
            return
        self._job_signal.notify(claim.job_id)

    # ---- aggregations ----

    def _run_aggregation(self) -> bool:
        if not self._aggregation_timer.is_due() or not self._process.ensure_ready(0):
            return False
        round_id = self._claim_aggregation()
        if round_id is None:
            return False
        self._aggregation_timer.due_at = 0.0  # there may be another round
        self._process.send(AggregationTask(round_id))
        renewal, began = self._renewal_timer(), time.monotonic()

        def renew(session: Session) -> None:
            aggregation_leases.renew_aggregation_lease(session, round_id, until=self._database.clock() + self._lease)

        def release(session: Session) -> None:
            aggregation_leases.release_aggregation(session, round_id, now=self._database.clock())

        def check() -> None:
            if renewal.is_due():
                self._database.run("renew_aggregation", renew)

        try:
            reply = self._watch(check)
        except JobProcessDied as died:  # the lease expires by itself: a round that kills workers is not urgent
            log.warning("job_process_died", round_id=round_id, exit_status=died.exit_status)
            self._metrics.job_processes.labels(DIED).inc()
        except _KillProcess as kill:
            self._process.kill()
            log.info("job_process_killed", round_id=round_id, reason=kill.reason)
            self._metrics.job_processes.labels(kill.reason).inc()
            if kill.reason == STOP:
                self._database.run("release_aggregation", release)
        else:
            if reply == Reply.DATABASE_AWAY:
                raise _TaskNotDone(reply)
            self._metrics.aggregation_seconds.observe(time.monotonic() - began)
        return True

    def _claim_aggregation(self) -> str | None:
        """Claim a round to aggregate. First abandon a round on which `max_attempts` workers were lost."""
        max_attempts = self._settings.max_attempts

        def claim(session: Session) -> tuple[str | None, str | None]:
            now = self._database.clock()
            abandoned = aggregation_leases.fail_aggregation(session, now=now, max_attempts=max_attempts)
            claimed = aggregation_leases.claim_aggregation(
                session, now=now, lease_microseconds=self._lease, max_attempts=max_attempts
            )
            return abandoned, claimed

        abandoned, claimed = self._database.run("claim_aggregation", claim)
        if abandoned is not None:
            log.error("aggregation_abandoned", round_id=abandoned, attempts=max_attempts)
        return claimed

    # ---- while the job process works, and between tasks ----

    def _watch(self, check: Callable[[], None]) -> Reply:
        """Return the reply of the job process. Until it arrives, call `check` and sweep periodically.

        Raises
        ------
        JobProcessDied
        _KillProcess
            The caller must kill the job process.
        """
        deadline = time.monotonic() + self._settings.job_seconds
        pause = WATCH_SECONDS
        while True:
            reply = self._process.receive(pause)
            if reply is not None:
                return reply
            if self._has_parent_ended() or (self._stopping and time.monotonic() >= self._drained_at):
                raise _KillProcess(STOP)
            if time.monotonic() >= deadline:
                raise _KillProcess(DEADLINE_EXCEEDED)
            try:
                check()
                self._sweep()
                pause = WATCH_SECONDS
            except StaleFence:
                reply = self._process.receive(LAST_REPLY_SECONDS)
                if reply is not None:
                    return reply
                raise _KillProcess(LOST) from None
            except SQLAlchemyError as error:  # the job process may still succeed; the fence guards its writes
                log.warning("database_away", reason=self._database.failure_reason(error), **describe(error))
                pause = AWAY_SECONDS

    def _sweep(self) -> None:
        """Close expired rounds, open windows, cap leases that end too late, and delete old idempotency keys."""
        if not self._sweep_timer.is_due():
            return

        def close(session: Session) -> list[str | None]:
            now = self._database.clock()
            aggregation_leases.clamp_leases(session, now=now, lease_microseconds=self._lease)
            return rounds.close_due(session, now=now)

        for job_id in self._database.run("close_rounds", close):
            if job_id is not None:
                self._job_signal.notify(job_id)
                self._publisher.publish(job_id)
        self._advance_series()
        if self._forget_timer.is_due():
            self._database.run("delete_expired", self._delete_expired)

    def _advance_series(self) -> None:
        """Take all steps of series that are due. A window that cannot open now is tried again later."""
        with self._database.reading() as session:
            due = windows.list_due(session, now=self._database.clock())
        for series_id in due:
            try:
                for _ in range(MAX_STEPS):
                    step = self._database.run("advance_series", partial(self._take_step, series_id))
                    if step.job is not None:
                        log.info("window_opened", series_id=series_id, job_id=step.job.id)
                        self._job_signal.notify(step.job.id)
                        self._publisher.publish(step.job.id, step.job.dataset_id)
                    if step.is_done:
                        break
            except SfumatoError as error:
                log.warning("window_not_opened", series_id=series_id, code=error.code)
                self._database.run("postpone_window", partial(self._postpone, series_id, str(error)))

    def _take_step(self, series_id: str, session: Session) -> windows.Step:
        return windows.take_step(session, series_id, find_limits=self._find_limits, now=self._database.clock())

    def _find_limits(self, session: Session, tenant_id: str) -> tenants.TenantLimits:
        return tenants.limits(session, tenant_id, self._settings)

    def _postpone(self, series_id: str, reason: str, session: Session) -> None:
        windows.postpone(session, series_id, reason, now=self._database.clock())

    def _delete_expired(self, session: Session) -> None:
        """Delete stored responses and incomplete uploads after a day."""
        now = self._database.clock()
        idempotency.delete_expired(session, now=now)
        records.delete_expired(session, now=now)
