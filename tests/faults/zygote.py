"""`python -m tests.faults.zygote`: loads the service once and forks gateways and workers, a line on stdin each.

A process that is killed every other second cannot spend two seconds on being loaded. What is forked
has no connection and no thread yet; a worker's child is forked likewise, by its supervisor, once that
has given its connections back. All else is as shipped: `tests/faults/test_every_plan.py` and its
neighbours kill processes that were begun in the shipped way.

A line: `{"name": "gateway0", "arguments": ["gateway", "--port", "4711"]}`; the answer is a process id.
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
    """Fork until stdin ends."""
    from models.process import end_with_starter

    end_with_starter()
    import workers.__main__
    import workers.runner  # noqa: F401

    living: set[int] = set()
    os.set_blocking(0, False)
    waiting = b""
    while True:
        ready, _, _ = select.select([0], [], [], REAP_SECONDS)
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG)[0]) != 0:
                living.discard(ended)
        if not ready:
            continue
        got = os.read(0, 1 << 16)
        if not got:
            break
        *lines, waiting = (waiting + got).split(b"\n")
        for line in lines:
            order = json.loads(line)
            pid = os.fork()
            if pid == 0:
                _become(order)
            living.add(pid)
            os.write(1, b"%d\n" % pid)
    for pid in living:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _become(order: dict[str, Any]) -> None:
    """Be the process that was asked for, to its end."""
    status = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)  # what it says goes to the log
        os.environ["FAULTS_NAME"] = order["name"]
        os.environ["SFUMATO_DIE_WITH_PARENT"] = str(os.getppid())
        (_gateway if order["arguments"] else _worker)(order["arguments"])
        status = 0
    except SystemExit as ending:
        status = ending.code if isinstance(ending.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _gateway(arguments: list[str]) -> None:
    from models.process import end_with_starter
    from service.cli import app
    from tests.faults import steps

    end_with_starter()
    steps.in_gateway()
    app(arguments)


def _worker(_arguments: list[str]) -> None:
    import workers.child
    import workers.handle
    from models.db import Database
    from tests.faults import steps
    from workers.__main__ import main as work

    steps.in_supervisor()
    databases: list[Database] = []
    made, compute, spawn = Database.__init__, workers.child.main, workers.handle.ChildHandle._spawn

    def make(self: Database, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        databases.append(self)

    def compute_with_steps(*args: Any) -> None:
        steps.in_child()
        compute(*args)

    def spawn_unconnected(self: workers.handle.ChildHandle) -> None:
        for database in databases:
            database.close()  # no connection crosses a fork
        spawn(self)

    _set(Database, "__init__", make)
    _set(workers.child, "main", compute_with_steps)
    _set(workers.handle.ChildHandle, "_spawn", spawn_unconnected)
    _set(workers.handle, "_SPAWN", multiprocessing.get_context("fork"))
    work()


def _set(owner: Any, name: str, value: Callable[..., Any] | Any) -> None:
    setattr(owner, name, value)


if __name__ == "__main__":
    main()
