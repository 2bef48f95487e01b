"""A log that cannot be written loses its lines, and the process continues."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
import structlog

from runtime.logging import LogStream

ROOT = Path(__file__).parents[2]
FULL = Path("/dev/full")  # every write fails with ENOSPC

LOG_TWICE = """
import os, structlog
from runtime.logging import configure_logging
configure_logging()
structlog.get_logger().error("first", text="x" * 100_000)
structlog.get_logger().error("second")
os._exit(0)  # skips Python's own flush
"""

LOG_OF_A_LIBRARY = """
import logging
from runtime.logging import configure_logging
configure_logging()
try:
    raise ValueError("the private value Zw9-4711")
except ValueError:
    logging.getLogger("library.pool").error("Error closing cursor", exc_info=True)
logging.getLogger("library.pool").error("without one", exc_info=(None, None, None))
"""


def test_an_exception_of_a_library_is_logged_without_its_message() -> None:
    command = [sys.executable, "-c", LOG_OF_A_LIBRARY]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == [
        "ERROR library.pool: Error closing cursor",
        '{"error": "ValueError", "cause": null, "frames": ["<string>:6 <module>"]}',
        "ERROR library.pool: without one",
    ]


class TestLogStream:
    def test_writes_to_the_inner_stream(self) -> None:
        inner = io.StringIO()
        structlog.WriteLogger(LogStream(inner)).msg("line")  # type: ignore[arg-type]
        assert inner.getvalue() == "line\n"

    def test_does_not_raise_without_a_reader(self) -> None:
        reading, writing = os.pipe()
        with os.fdopen(writing, "w", buffering=1) as broken:
            os.close(reading)
            with pytest.raises(BrokenPipeError):
                broken.write("lost\n")
            LogStream(broken).write("lost\n")
            LogStream(broken).flush()
            os.dup2(os.open(os.devnull, os.O_WRONLY), writing)  # closing it can flush then

    def test_does_not_raise_on_a_closed_stream(self) -> None:
        closed = io.StringIO()
        closed.close()
        with pytest.raises(ValueError, match="closed"):
            closed.write("lost")
        assert LogStream(closed).write("lost") == len("lost")
        LogStream(closed).flush()

    def test_process_survives_a_full_disk(self) -> None:
        if not FULL.exists():  # only Linux has this file; elsewhere a broken pipe fails in the same way
            reading, writing = os.pipe()
            os.close(reading)
            log = os.fdopen(writing, "wb")
        else:
            log = FULL.open("wb")
        with log:
            done = subprocess.run([sys.executable, "-c", LOG_TWICE], cwd=ROOT, stderr=log, check=False)
        assert done.returncode == 0
