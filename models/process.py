"""How a process of the service ends with the one that started it."""

import ctypes
import os
import signal
import sys

PARENT_VARIABLE = "SFUMATO_DIE_WITH_PARENT"  # the parent's process id, or 1 for whoever is the parent at the start

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def end_with_parent(parent: int, how: signal.Signals) -> None:
    """Have the kernel send this process `how` as soon as its parent has ended.

    `parent` is the process id it is to have now; where it ended before the kernel was
    asked, this process ends here. The kernel means the thread that started this process,
    which has to stay. Other systems than Linux know no such thing.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(how), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def end_with_starter() -> bool:
    """End in good order (SIGTERM) with the process that started this one, where that wishes so; whether it does."""
    parent = int(os.environ.get(PARENT_VARIABLE) or 0)
    if parent:
        end_with_parent(parent if parent > 1 else os.getppid(), signal.SIGTERM)
    return bool(parent)
