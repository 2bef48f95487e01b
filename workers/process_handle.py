"""The supervisor's handle of its job process: start, send a task, receive a reply, watch the heartbeat, kill."""

import multiprocessing
import os
import time
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from runtime.settings import Settings
from workers import job_process
from workers.job_process import HEARTBEAT_SECONDS, Reply, RunCentral, StartPlan, Task
from workers.kernels import cache

_SPAWN = multiprocessing.get_context("spawn")  # a forked process would inherit the database connections
_MAX_RESTART_DELAY_SECONDS = 30.0  # after a job process died without a task
_EXIT_SECONDS = 5.0  # timeout from the end of the pipe to the exit of the process
_START_SECONDS = 120.0  # longest time from the start to the first heartbeat
# A shorter silence may be a long call of a C library or a busy machine.
_MIN_SILENCE_SECONDS = 5.0

# Read when numpy and scipy are imported. The vectors of a fit are short, so more BLAS threads only wait for each other:
# on two busy cores, a step of L-BFGS takes 25 ms instead of 16 ms. Workers scale by processes instead.
BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


class JobProcessDied(Exception):
    """The job process ended by itself, or was killed because it was frozen.

    It ends by itself because of a signal, a crash or a lack of memory. `exit_status` is None if it was frozen.
    """

    def __init__(self, exit_status: int | None) -> None:
        super().__init__("frozen" if exit_status is None else f"exit status {exit_status}")
        self.exit_status = exit_status


class JobProcessHandle:
    """Handle of at most one job process. `ensure_ready` replaces a process that died, froze or was killed.

    A process is frozen if its heartbeat has not changed for the lease of a job. A stopped process (SIGSTOP) could
    otherwise keep its locks in the database without limit.
    """

    def __init__(
        self, settings: Settings, start: StartPlan | None = None, run_central: RunCentral | None = None
    ) -> None:
        self._settings = settings
        self._start = start
        self._run_central = run_central
        self._heartbeat = _SPAWN.RawValue("Q", 0)
        self._last_heartbeat = 0
        self._silent_since = 0.0
        self._process: SpawnProcess | None = None
        self._pipe: Connection | None = None
        self._is_ready = False
        self._is_busy = False
        self._restart_delay_seconds = 0.0
        self._not_before = 0.0

    @property
    def pid(self) -> int | None:
        """Return the process id of the job process, or None."""
        return self._process.pid if self._process else None

    def ensure_ready(self, timeout_seconds: float) -> bool:
        """Start a job process if there is none, and return whether it is ready for a task within the timeout.

        Raises
        ------
        JobProcessDied
            The process ended without a task: before it was ready, or while it compiled kernels. This costs no job an
            attempt. The delay before the next start grows each time, until a process does a task.
        """
        if self._is_busy:
            self.kill()  # its task was given up
        if self._is_ready and self._process is not None and (not self._process.is_alive() or self._is_frozen()):
            exit_status = self._process.exitcode
            self.kill()
            self._delay_start()
            raise JobProcessDied(exit_status)
        if self._process is None:
            if time.monotonic() < self._not_before:
                time.sleep(max(0.0, min(timeout_seconds, self._not_before - time.monotonic())))
                return False
            self._spawn()
        if not self._is_ready:
            try:
                self._is_ready = self.receive(timeout_seconds) == Reply.READY
            except JobProcessDied:
                self._delay_start()
                raise
        return self._is_ready

    def _delay_start(self) -> None:
        self._restart_delay_seconds = min(2 * self._restart_delay_seconds + 1, _MAX_RESTART_DELAY_SECONDS)
        self._not_before = time.monotonic() + self._restart_delay_seconds

    def send(self, task: Task) -> bool:
        """Send a task to the job process, and return whether it was alive. If not, the next `receive` reports it."""
        assert self._pipe is not None  # noqa: S101 - `ensure_ready` returned True
        self._is_busy = True
        with suppress(OSError):
            self._pipe.send(task)
            return True
        return False

    def receive(self, timeout_seconds: float) -> Reply | None:
        """Return the next reply of the job process, or None after the timeout.

        Raises
        ------
        JobProcessDied
        """
        assert self._pipe is not None  # noqa: S101 - `ensure_ready` was called
        assert self._process is not None  # noqa: S101
        if not wait([self._pipe, self._process.sentinel], timeout_seconds):
            if not self._is_frozen():
                return None
            self.kill()
            raise JobProcessDied(None)
        with suppress(EOFError, OSError):
            if self._pipe.poll():  # a last reply counts even if the process died after sending it
                reply: Reply = self._pipe.recv()
                if self._is_busy:
                    self._restart_delay_seconds = 0.0
                self._is_busy = False
                return reply
        self._process.join(_EXIT_SECONDS)
        exit_status = self._process.exitcode
        self.kill()
        raise JobProcessDied(exit_status)

    def _is_frozen(self) -> bool:
        """Return whether the heartbeat of the process has not changed for too long."""
        has_begun = self._last_heartbeat > 0
        limit = max(self._settings.lease_seconds, _MIN_SILENCE_SECONDS) if has_begun else _START_SECONDS
        if self._has_new_heartbeat() or time.monotonic() < self._silent_since + limit:
            return False
        time.sleep(2 * HEARTBEAT_SECONDS)  # a pause of the whole machine stops both processes
        return not self._has_new_heartbeat()

    def _has_new_heartbeat(self) -> bool:
        latest = self._heartbeat.value
        if latest == self._last_heartbeat:
            return False
        self._last_heartbeat, self._silent_since = latest, time.monotonic()
        return True

    def kill(self) -> None:
        """Kill the job process at once, even during a task."""
        if self._process is not None and self._pipe is not None:
            self._process.kill()
            self._process.join()
            self._process.close()
            self._pipe.close()
        self._process = self._pipe = None
        self._is_ready = self._is_busy = False

    def _spawn(self) -> None:
        for library in BLAS_THREADS:
            os.environ.setdefault(library, "1")
        cache.install_kernels(os.environ)
        self._heartbeat = _SPAWN.RawValue("Q", 0)
        self._last_heartbeat, self._silent_since = 0, time.monotonic()
        ours, theirs = _SPAWN.Pipe()
        process = _SPAWN.Process(
            target=job_process.main,
            args=(theirs, self._heartbeat, self._settings, os.getpid(), self._start, self._run_central),
            name="sfumato-job",
            daemon=True,
        )
        process.start()
        theirs.close()  # the job process has the only copy of its end, so its death closes the pipe
        self._process, self._pipe = process, ours
