"""A shuffler that kills itself at a step: python -m tests.shuffler.victim STEP HOME."""

import os
import secrets
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shuffler.__main__ import run
from shuffler.queue import Group, Queue
from shuffler.releases import Releaser


def die(*_args: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_after(call: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*args: Any) -> Any:
        result = call(*args)
        if result != []:  # no round was released
            die()
        return result

    return wrapped


def plant(step: str) -> None:
    """Replace a function by one that ends the process."""
    match step:
        case "before a commit of reports":
            Group.count = die_after(Group.count)  # type: ignore[method-assign]
        case "after a commit of reports":
            Queue.store = die_after(Queue.store)  # type: ignore[method-assign]
        case "inside the release":
            secrets.SystemRandom.shuffle = die  # type: ignore[method-assign, assignment]
        case "after the release":
            Queue.release_due = die_after(Queue.release_due)  # type: ignore[method-assign]
        case "before the batch is sent":
            Releaser._send = die  # type: ignore[method-assign, assignment]
        case "after the batch is sent":
            Releaser._send = die_after(Releaser._send)  # type: ignore[method-assign]
        case "after the batch is deleted":
            Queue.end = die_after(Queue.end)  # type: ignore[method-assign]
        case _:
            raise ValueError(step)


if __name__ == "__main__":
    if sys.argv[1] != "never":
        plant(sys.argv[1])
    run(home=Path(sys.argv[2]), host="127.0.0.1", port=0, release_seconds=1.0)
