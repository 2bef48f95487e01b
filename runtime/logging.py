"""Structured logs on stderr: one event per line, without private values.

A line that cannot be written is lost. The log may share a full disk with the database, and its reader may be slow,
stopped or gone; none of this may end or hold a request or a job.
"""

import logging
import sys
from contextlib import suppress
from typing import TextIO, cast

import structlog

from connections.log_records import log_libraries
from connections.streams import guard_streams

WHOLE_SECONDS = "%Y-%m-%dT%H:%M:%SZ"  # finer times would reveal how long an upload or a job over records took


class LogStream:
    """A text stream with `write` and `flush` that never raise.

    Parameters
    ----------
    stream : TextIO
        Stream to write to. Each line is attempted, even after a failure.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write `text` if the stream accepts it. Return its length."""
        with suppress(OSError, ValueError):  # ValueError: the stream is closed
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush the stream if it accepts it."""
        with suppress(OSError, ValueError):
            self._stream.flush()


def configure_logging() -> None:
    """Configure structlog: readable lines on a terminal, JSON elsewhere. Other libraries log warnings only.

    From here on, no write to a standard stream waits for its reader.
    """
    guard_streams()
    renderer = structlog.dev.ConsoleRenderer() if sys.stderr.isatty() else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt=WHOLE_SECONDS, utc=True),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(cast(TextIO, LogStream(sys.stderr))),
        cache_logger_on_first_use=True,
    )
    log_libraries(sys.stderr, logging.WARNING)
