"""Process-wide settings: the end of the parent, garbage collection, freed memory and core dumps."""

import ctypes
import gc
import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

PARENT_VARIABLE = "SFUMATO_DIE_WITH_PARENT"  # process id of the parent; 1 means the parent at start-up

GATEWAY_KEPT_BYTES = 32 << 20  # a body of 100,000 reports needs five blocks of 2 MB
WORKER_KEPT_BYTES = 64 << 20  # per arena of the allocator

_PR_SET_PDEATHSIG = 1  # from linux/prctl.h
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # from glibc's malloc.h


def end_with_parent(parent: int, how: signal.Signals) -> None:
    """Request that the kernel sends `how` to this process when its parent ends (Linux only).

    The kernel watches the thread that started this process, so that thread must stay alive. If the parent has already
    ended, this process exits at once.

    Parameters
    ----------
    parent : int
        Process id that the parent must have now.
    how : signal.Signals
        Signal to send.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(how), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def end_with_starter() -> bool:
    """Request SIGTERM at the end of the parent if `PARENT_VARIABLE` is set. Return whether it is set."""
    parent = int(os.environ.get(PARENT_VARIABLE) or 0)
    if parent:
        end_with_parent(parent if parent > 1 else os.getppid(), signal.SIGTERM)
    return bool(parent)


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause garbage collection while modules are imported, then exempt the loaded objects from later collections.

    Modules, classes and schemas live as long as the process. Scanning them takes an eighth of a gateway's start-up
    time, and causes a pause at every later full collection.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def leave_no_core() -> None:
    """Disable core dumps for this process and its children, because their memory contains records."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def return_memory() -> None:
    """Collect garbage, and return freed memory of glibc to the system. Another allocator keeps it."""
    gc.collect()  # the reader of a body refers to itself
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def keep_freed_memory(kept_bytes: int, max_arenas: int | None = None) -> bool:
    """Configure glibc to keep freed memory in the process instead of returning it to the system.

    The system clears every page that it hands to a process, at the cost of a page fault. Checking and packing 100,000
    reports takes 0.4 ms in memory that the process already has, and 2 ms in new memory.

    Parameters
    ----------
    kept_bytes : int
        Bytes to keep per arena.
    max_arenas : int, optional
        Most arenas of all threads together. `return_memory` returns the end of the first arena only.

    Returns
    -------
    bool
        False if the allocator does not support the setting.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    mallopt.argtypes, mallopt.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    # glibc accepts at most 32 MiB as the threshold above which it maps blocks separately
    options = [(_MMAP_THRESHOLD, min(kept_bytes, 32 << 20)), (_TRIM_THRESHOLD, kept_bytes)]
    if max_arenas is not None:
        options.append((_ARENA_MAX, max_arenas))
    return all(mallopt(*option) for option in options)
