"""The job process: imports `clustering`, performs one task at a time, and compiles kernels while it has none.

The supervisor spawns this process, sends tasks over a pipe, and kills it without warning to stop a job. Each write of
the process is therefore a single transaction, guarded by the fence of the claim.
"""

import gc
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import structlog

from connections.log_records import describe
from connections.streams import drain_streams
from models.database.engine import Database
from models.database.failures import is_database_unavailable
from models.jobs.claims import Claim
from runtime.logging import configure_logging
from runtime.process import WORKER_KEPT_BYTES, end_with_parent, keep_freed_memory
from runtime.settings import Settings
from workers.kernels import cache

if TYPE_CHECKING:
    from ctypes import c_ulonglong

# The supervisor imports this module and must not load numba, so `clustering` is imported inside functions.

log = structlog.get_logger(__name__)

StartPlan = Callable[..., Any]  # workers.job_runner.StartPlan, which cannot be imported here
RunCentral = Callable[..., Any]  # workers.central_job.RunCentral

HEARTBEAT_SECONDS = 0.5
_OUT_OF_MEMORY = 70  # exit status


@dataclass(frozen=True, slots=True)
class JobTask:
    """Task: run a claimed job up to its next open round or its end."""

    claim: Claim


@dataclass(frozen=True, slots=True)
class AggregationTask:
    """Task: aggregate a closed round that no job aggregates."""

    round_id: str


Task = JobTask | AggregationTask


class Reply(StrEnum):
    """Replies of the job process to the supervisor."""

    READY = "ready"  # sent once, when the process can receive tasks
    DONE = "done"  # the claim of the task has ended
    DATABASE_AWAY = "database_away"  # the task has not changed anything
    FAILED = "failed"  # an aggregation failed; the log has the error


def main(
    pipe: Connection,
    heartbeat: "c_ulonglong",
    settings: Settings,
    parent: int,
    start: StartPlan | None = None,
    run_central: RunCentral | None = None,
) -> None:
    """Perform tasks until the supervisor exits.

    Parameters
    ----------
    pipe : Connection
        Receives tasks and sends replies.
    heartbeat : c_ulonglong
        Shared memory with a number that grows while the process is alive.
    settings : Settings
        Database, lease, and whether to compile the kernels of all algorithms between tasks.
    parent : int
        Process id of the supervisor.
    start : callable, optional
        Function that starts the plan of a local algorithm; by default that of the registry.
    run_central : callable, optional
        Function that runs a central algorithm.
    """
    end_with_parent(parent, signal.SIGKILL)
    for ignored in (signal.SIGINT, signal.SIGTERM):  # the terminal signals the whole group; the supervisor decides
        signal.signal(ignored, signal.SIG_IGN)
    configure_logging()
    keep_freed_memory(WORKER_KEPT_BYTES)
    tasks: queue.SimpleQueue[Task] = queue.SimpleQueue()
    threading.Thread(target=_receive_tasks, args=(pipe, tasks), daemon=True).start()
    threading.Thread(target=_beat, args=(heartbeat,), daemon=True).start()
    _load_algorithms()
    database = Database.from_settings(settings)
    database.truncate_wal()  # a killed job process may have left deleted reports in the log
    pipe.send(Reply.READY)
    kernels = _compile_kernels() if settings.warm_kernels else iter(())
    while True:
        pipe.send(_perform(database, _await_task(tasks, kernels), start, run_central))


def _receive_tasks(pipe: Connection, tasks: "queue.SimpleQueue[Task]") -> None:
    """Queue the received tasks. Exit the process when the supervisor closes the pipe, even during a task."""
    while True:
        try:
            tasks.put(pipe.recv())
        except (EOFError, OSError):
            os._exit(1)


def _await_task(tasks: "queue.SimpleQueue[Task]", kernels: Iterator[str]) -> Task:
    """Return the next task. Until it arrives, compile kernels, so that a task waits for one algorithm at most."""
    while tasks.empty() and next(kernels, None) is not None:
        pass
    return tasks.get()


def _beat(heartbeat: "c_ulonglong") -> None:
    """Increase the heartbeat until the process ends."""
    while True:
        heartbeat.value += 1
        time.sleep(HEARTBEAT_SECONDS)


def _perform(database: Database, task: Task, start: StartPlan | None, run_central: RunCentral | None) -> Reply:
    from clustering import registry
    from clustering.central import run
    from workers import job_runner

    try:
        if isinstance(task, JobTask):
            outcome = job_runner.run(
                database, task.claim, start=start or registry.start, run_central=run_central or run.run
            )
            log.info("claim_ended", job_id=task.claim.job_id, outcome=outcome.value)
        else:
            job_runner.aggregate_without_job(database, task.round_id)
    except MemoryError as error:
        log.error("out_of_memory", **describe(error))
        drain_streams()
        os._exit(_OUT_OF_MEMORY)  # the heap is fragmented; a new process makes the next attempt
    except Exception as error:
        if is_database_unavailable(error):
            log.warning("database_away", reason=database.failure_reason(error), **describe(error))
            return Reply.DATABASE_AWAY
        log.error("task_crashed", **describe(error))
        return Reply.FAILED
    return Reply.DONE


def _load_algorithms() -> None:
    """Import the modules that jobs need."""
    began = time.monotonic()
    try:
        cache.compile_in_memory_without_cache()
        from workers import job_runner  # noqa: F401 - loads the modules that jobs need
    except Exception as error:  # a job that needs the broken module reports the error under its own id
        log.error("import_failed", **describe(error))
    _freeze_objects()
    log.info("job_process_ready", pid=os.getpid(), seconds=round(time.monotonic() - began, 2))


def _compile_kernels() -> Iterator[str]:
    """Compile the kernels of one mechanism or algorithm after the other, and yield its name."""
    began = time.monotonic()
    warmed: list[str] = []
    try:
        from workers.kernels import warmup

        for name, is_warm in warmup.warm_up_each():
            if is_warm:
                warmed.append(name)
            yield name
    except Exception as error:  # a job that needs the broken module reports the error under its own id
        log.error("warmup_failed", **describe(error))
    _freeze_objects()
    log.info("kernels_compiled", pid=os.getpid(), seconds=round(time.monotonic() - began, 2), warmed=sorted(warmed))


def _freeze_objects() -> None:
    """Exempt the loaded objects from later collections, which would delay jobs."""
    gc.collect()
    gc.freeze()
