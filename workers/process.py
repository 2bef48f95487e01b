"""What a worker's processes do before all else: end with their parent, and log to stderr."""

import ctypes
import logging
import os
import signal
import sys
import traceback

import structlog

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def end_with_parent(parent: int, how: signal.Signals) -> None:
    """Have the kernel send this process `how` as soon as its parent has ended.

    `parent` is the process id it is to have now; where it ended before the kernel was
    asked, this process ends here. Other systems than Linux know no such thing.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(how), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def log_to_stderr() -> None:
    """One line a happening: for people on a terminal, JSON elsewhere."""
    lines = structlog.dev.ConsoleRenderer() if sys.stderr.isatty() else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            lines,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
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
