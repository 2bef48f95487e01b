"""The gateway's log: one line a happening on stderr, with nothing private in it."""

import logging
import os
import sys
import traceback
from typing import TextIO, cast

import structlog

from models.log_stream import LogStream

WHOLE_SECONDS = "%Y-%m-%dT%H:%M:%SZ"  # finer times would tell how long an upload or a job over records took


def configure() -> None:
    """For people on a terminal, JSON elsewhere; of the server's own log only warnings."""
    lines = structlog.dev.ConsoleRenderer() if sys.stderr.isatty() else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt=WHOLE_SECONDS, utc=True),
            lines,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(cast(TextIO, LogStream(sys.stderr))),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")


def describe(error: BaseException) -> dict[str, object]:
    """An exception for the log: its type and where it came from, without its message or any value.

    A message may quote what was being worked on.
    """
    frames = traceback.extract_tb(error.__traceback__)[-20:]
    return {
        "error": type(error).__name__,
        "cause": type(error.__cause__).__name__ if error.__cause__ else None,
        "frames": [f"{os.path.basename(frame.filename)}:{frame.lineno} {frame.name}" for frame in frames],
    }
