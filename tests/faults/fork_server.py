"""`python -m tests.faults.fork_server`: load the service once and fork gateways and workers on request.

Loading the service takes two seconds, which is too long for processes that are killed every other second. A forked
process has no connection and no thread yet. A supervisor forks its job process likewise, after it closes its
connections. Everything else is as shipped; `tests/faults/test_every_plan.py` and its neighbours kill processes that
start in the shipped way.

A request is a line on stdin: `{"name": "gateway0", "arguments": ["gateway", "--port", "4711"]}`. The response is a
process id.
"""

import json
import multiprocessing
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

REAP_SECONDS = 0.02


def main() -> None:
    """Fork processes until stdin ends."""
    from runtime.process import end_with_starter

    end_with_starter()
    import workers.job_runner  # noqa: F401

    pids: set[int] = set()
    os.set_blocking(0, False)
    buffer = b""
    while True:
        ready, _, _ = select.select([0], [], [], REAP_SECONDS)
        with suppress(ChildProcessError):
            while (pid_ended := os.waitpid(-1, os.WNOHANG)[0]) != 0:
                pids.discard(pid_ended)
        if not ready:
            continue
        data = os.read(0, 1 << 16)
        if not data:
            break
        *lines, buffer = (buffer + data).split(b"\n")
        for line in lines:
            order = json.loads(line)
            pid = os.fork()
            if pid == 0:
                _run_process(order)
            pids.add(pid)
            os.write(1, b"%d\n" % pid)
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _run_process(order: dict[str, Any]) -> None:
    """Run the requested process until it ends."""
    status = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)  # standard output goes to the log
        os.environ["FAULTS_NAME"] = order["name"]
        os.environ["SFUMATO_DIE_WITH_PARENT"] = str(os.getppid())
        (_gateway if order["arguments"] else _worker)(order["arguments"])
        status = 0
    except SystemExit as exit_error:
        status = exit_error.code if isinstance(exit_error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _gateway(arguments: list[str]) -> None:
    from runtime.process import end_with_starter
    from service.cli.main import app
    from tests.faults import steps

    end_with_starter()
    steps.prepare_gateway()
    app(arguments)


def _worker(_arguments: list[str]) -> None:
    import workers.job_process
    import workers.process_handle
    from models.database.engine import Database
    from tests.faults import steps
    from workers.__main__ import main as run_worker

    steps.prepare_supervisor()
    databases: list[Database] = []
    original_init, compute, spawn = (
        Database.__init__,
        workers.job_process.main,
        workers.process_handle.JobProcessHandle._spawn,
    )

    def record_database(self: Database, *args: Any, **kwargs: Any) -> None:
        original_init(self, *args, **kwargs)
        databases.append(self)

    def compute_with_steps(*args: Any) -> None:
        steps.prepare_child()
        compute(*args)

    def spawn_without_connections(self: workers.process_handle.JobProcessHandle) -> None:
        for database in databases:
            database.close()  # connections must not be shared with a forked process
        spawn(self)

    _set(Database, "__init__", record_database)
    _set(workers.job_process, "main", compute_with_steps)
    _set(workers.process_handle.JobProcessHandle, "_spawn", spawn_without_connections)
    _set(workers.process_handle, "_SPAWN", multiprocessing.get_context("fork"))
    run_worker()


def _set(owner: Any, name: str, value: Callable[..., Any] | Any) -> None:
    setattr(owner, name, value)


if __name__ == "__main__":
    main()
