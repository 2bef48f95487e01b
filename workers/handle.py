"""The supervisor's hold on its child: start, ask, listen, kill."""

import multiprocessing
import os
import time
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from workers import child, kernel_cache
from workers.child import Reply, RunCentral, StartPlan, Task

_SPAWN = multiprocessing.get_context("spawn")  # a fork would take the database's connections along
_LONGEST_PAUSE_SECONDS = 30.0  # between starts of a child that dies before it is ready
_DYING_SECONDS = 5.0  # from the end of its pipe to the end of its process

# Read as the child loads them. A fit's vectors are short: threads for them only wait for one another
# (two cores that others use too: 16 to 25 ms a step of L-BFGS), and a worker scales by processes.
BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


class ChildDied(Exception):
    """The child ended by itself: a signal, a crash, no memory left."""

    def __init__(self, exit_status: int | None) -> None:
        super().__init__(f"exit status {exit_status}")
        self.exit_status = exit_status


class ChildHandle:
    """One child at a time; a dead or killed one is followed by another at the next `ensure`."""

    def __init__(
        self,
        database_url: str,
        start: StartPlan | None = None,
        run_central: RunCentral | None = None,
        *,
        warm: bool = True,
    ) -> None:
        self._database_url = database_url
        self._start = start
        self._run_central = run_central
        self._warm = warm
        self._process: SpawnProcess | None = None
        self._pipe: Connection | None = None
        self._is_ready = False
        self._is_busy = False
        self._pause_seconds = 0.0
        self._not_before = 0.0

    @property
    def pid(self) -> int | None:
        """The child's process id, where there is one."""
        return self._process.pid if self._process else None

    def ensure(self, timeout_seconds: float) -> bool:
        """Have a child that waits for a task; False where it is not so far within this time.

        Raises ChildDied where one ended before it was ready; the next start waits, longer
        each time.
        """
        if self._is_busy or (self._is_ready and self._process is not None and not self._process.is_alive()):
            self.kill()  # its task was given up, or it died idle and no job is to pay an attempt for it
        if self._process is None:
            if time.monotonic() < self._not_before:
                time.sleep(max(0.0, min(timeout_seconds, self._not_before - time.monotonic())))
                return False
            self._spawn()
        if not self._is_ready:
            try:
                self._is_ready = self.listen(timeout_seconds) == Reply.READY
            except ChildDied:
                self._pause_seconds = min(2 * self._pause_seconds + 1, _LONGEST_PAUSE_SECONDS)
                self._not_before = time.monotonic() + self._pause_seconds
                raise
        if self._is_ready:
            self._pause_seconds = 0.0
        return self._is_ready

    def ask(self, task: Task) -> None:
        """Hand the child a task. A dead child shows at the next `listen`."""
        assert self._pipe is not None  # noqa: S101 - `ensure` said it waits
        self._is_busy = True
        with suppress(OSError):
            self._pipe.send(task)

    def listen(self, timeout_seconds: float) -> Reply | None:
        """The child's next word, or None after this time. Raises ChildDied."""
        assert self._pipe is not None  # noqa: S101 - there is a child
        assert self._process is not None  # noqa: S101
        if not wait([self._pipe, self._process.sentinel], timeout_seconds):
            return None
        with suppress(EOFError, OSError):
            if self._pipe.poll():  # its last word counts, even where it has died since
                reply: Reply = self._pipe.recv()
                self._is_busy = False
                return reply
        self._process.join(_DYING_SECONDS)
        exit_status = self._process.exitcode
        self.kill()
        raise ChildDied(exit_status)

    def kill(self) -> None:
        """End the child now, whatever it is doing."""
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
        kernel_cache.use(os.environ)
        ours, theirs = _SPAWN.Pipe()
        process = _SPAWN.Process(
            target=child.main,
            args=(theirs, self._database_url, os.getpid(), self._start, self._run_central, self._warm),
            name="sfumato-child",
            daemon=True,
        )
        process.start()
        theirs.close()  # so that the child's end is the only one, and its death ends the pipe
        self._process, self._pipe = process, ours
