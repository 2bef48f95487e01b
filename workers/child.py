"""The computing process: imports clustering, keeps its kernels warm, works on one task at a time.

It is spawned, told what to do over a pipe, and killed without warning when a job is to
end: whatever it writes is one fenced transaction or nothing.
"""

import gc
import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from multiprocessing.connection import Connection
from typing import Any

import structlog
from sqlalchemy.exc import InterfaceError, OperationalError

from models.db import Database
from models.job import Claim
from models.process import end_with_parent
from workers.process import describe, keep_freed_memory, log_to_stderr

# Nothing at the head of this file imports clustering: the supervisor imports this file, and never loads numba.

log = structlog.get_logger(__name__)

StartPlan = Callable[..., Any]  # workers.runner.StartPlan, which cannot be imported here
RunCentral = Callable[..., Any]  # workers.central.RunCentral

_OUT_OF_MEMORY = 70  # exit status


@dataclass(frozen=True, slots=True)
class JobTask:
    """Take a claimed job as far as it goes."""

    held: Claim


@dataclass(frozen=True, slots=True)
class FoldTask:
    """Tally a closed round that no job will fold."""

    round_id: str


Task = JobTask | FoldTask


class Reply(StrEnum):
    """What the child says."""

    READY = "ready"  # it waits for tasks; once, at its start
    DONE = "done"  # the task's claim has ended
    DATABASE_AWAY = "database_away"  # the task is as it was
    FAILED = "failed"  # a fold went wrong; it is logged


def main(
    pipe: Connection,
    database_url: str,
    parent: int,
    start: StartPlan | None = None,
    run_central: RunCentral | None = None,
    warm: bool = True,
) -> None:
    """Work until the supervisor is gone.

    Parameters
    ----------
    pipe : Connection
        Tasks in, replies out.
    database_url : str
    parent : int
        The supervisor's process id.
    start : callable, optional
        Which plan runs which algorithm; the registry's by default.
    run_central : callable, optional
        Runs central algorithms.
    warm : bool
        Whether to compile every algorithm before the first task.
    """
    end_with_parent(parent, signal.SIGKILL)
    for ignored in (signal.SIGINT, signal.SIGTERM):  # sent to the whole group; the supervisor decides
        signal.signal(ignored, signal.SIG_IGN)
    log_to_stderr()
    keep_freed_memory()
    tasks: queue.SimpleQueue[Task] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(pipe, tasks), daemon=True).start()
    _warm(warm)
    database = Database(database_url, pool_size=2)
    pipe.send(Reply.READY)
    while True:
        pipe.send(_perform(database, tasks.get(), start, run_central))


def _listen(pipe: Connection, tasks: "queue.SimpleQueue[Task]") -> None:
    """Pass tasks on; end the process when the supervisor's end of the pipe is gone, even in mid-task."""
    while True:
        try:
            tasks.put(pipe.recv())
        except (EOFError, OSError):
            os._exit(1)


def _perform(database: Database, task: Task, start: StartPlan | None, run_central: RunCentral | None) -> Reply:
    from clustering import registry
    from clustering.central import run as central_run
    from workers import runner

    try:
        if isinstance(task, JobTask):
            outcome = runner.run(
                database, task.held, start=start or registry.start, run_central=run_central or central_run.run
            )
            log.info("claim_ended", job_id=task.held.job_id, outcome=outcome.value)
        else:
            runner.fold_alone(database, task.round_id)
    except (OperationalError, InterfaceError) as error:
        log.warning("database_away", **describe(error))
        return Reply.DATABASE_AWAY
    except MemoryError as error:
        log.error("out_of_memory", **describe(error))
        os._exit(_OUT_OF_MEMORY)  # its heap is in shreds: a fresh process takes the next attempt
    except Exception as error:
        log.error("task_crashed", **describe(error))
        return Reply.FAILED
    return Reply.DONE


def _warm(kernels: bool = True) -> None:
    """Load what jobs will run, and have its kernels compiled, unless those are left to the jobs."""
    began = time.monotonic()
    warmed: list[str] = []
    try:
        from workers import runner, warm  # noqa: F401 - the runner, for the jobs

        if kernels:
            warmed = sorted(warm.warm_up())
    except Exception as error:  # a job that needs what is broken will say so under its own name
        log.error("warming_failed", **describe(error))
    gc.collect()
    gc.freeze()  # what is loaded by now stays: no job is to wait while it is all gone through for garbage
    log.info("child_ready", pid=os.getpid(), seconds=round(time.monotonic() - began, 2), warmed=warmed)
