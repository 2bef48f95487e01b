"""What a worker's processes do before all else: leave no core, keep freed memory at hand, and log to stderr."""

import ctypes
import logging
import os
import resource
import sys
import traceback
from contextlib import suppress
from typing import TextIO, cast

import structlog

from models.log_stream import LogStream

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_KEPT_BYTES = 64 << 20

WHOLE_SECONDS = "%Y-%m-%dT%H:%M:%SZ"  # finer times would tell how long a job over records took


def leave_no_core() -> None:
    """Have this process, and those it starts, write no memory to disk should they crash: records are in it."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def keep_freed_memory() -> None:
    """Have glibc keep some freed memory for the next page of a log; nothing where there is another allocator.

    It gives megabytes back to the system at once otherwise, always where Dask started the process, and each page
    read is then waited for again, while the system empties memory for it.
    """
    with suppress(OSError, AttributeError):
        allocator = ctypes.CDLL(None)
        allocator.mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
        allocator.mallopt(_MMAP_THRESHOLD, _KEPT_BYTES // 2)


def log_to_stderr() -> None:
    """One line a happening: for people on a terminal, JSON elsewhere."""
    lines = structlog.dev.ConsoleRenderer() if sys.stderr.isatty() else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt=WHOLE_SECONDS, utc=True),
            lines,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(cast(TextIO, LogStream(sys.stderr))),
        cache_logger_on_first_use=True,
    )


def describe(error: BaseException) -> dict[str, object]:
    """An exception for the log: its type and where it came from, without its message or any value.

    A message may quote what was being worked on (a statement's parameters, a key not found).
    """
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames[:-1] if "site-packages" not in frame.filename]
    return {
        "error": type(error).__name__,
        "cause": type(error.__cause__).__name__ if error.__cause__ else None,
        "frames": [f"{os.path.basename(f.filename)}:{f.lineno} {f.name}" for f in (*ours, *frames[-1:])],
    }
