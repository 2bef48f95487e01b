"""A log that cannot be written: its line is lost, and whoever wrote it goes on."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
import structlog

from models.log_stream import LogStream

ROOT = Path(__file__).parents[2]
FULL = Path("/dev/full")  # every write says that no room is left

SAY_TWICE = """
import os, structlog
{configure}
structlog.get_logger().error("first", text="x" * 100_000)
structlog.get_logger().error("second")
os._exit(0)  # not by way of Python's own flush
"""
CONFIGURE = {
    "gateway": "from service import logs; logs.configure()",
    "worker": "from workers.process import log_to_stderr; log_to_stderr()",
}


class TestAStream:
    def test_hands_on_what_is_written(self) -> None:
        inner = io.StringIO()
        structlog.WriteLogger(LogStream(inner)).msg("said")  # type: ignore[arg-type]
        assert inner.getvalue() == "said\n"

    def test_goes_on_where_the_reader_has_gone(self) -> None:
        reading, writing = os.pipe()
        with os.fdopen(writing, "w", buffering=1) as broken:
            os.close(reading)
            with pytest.raises(BrokenPipeError):
                broken.write("to nobody\n")
            LogStream(broken).write("to nobody\n")
            LogStream(broken).flush()
            os.dup2(os.open(os.devnull, os.O_WRONLY), writing)  # so that closing it can flush

    def test_goes_on_where_it_is_closed(self) -> None:
        closed = io.StringIO()
        closed.close()
        with pytest.raises(ValueError, match="closed"):
            closed.write("to nobody")
        assert LogStream(closed).write("to nobody") == len("to nobody")
        LogStream(closed).flush()


class TestAProcess:
    @pytest.mark.parametrize("who", sorted(CONFIGURE))
    def test_goes_on_where_its_log_is_on_a_full_disk(self, who: str) -> None:
        if not FULL.exists():  # Linux alone has such a file; a broken pipe is the same to us
            reading, writing = os.pipe()
            os.close(reading)
            log = os.fdopen(writing, "wb")
        else:
            log = FULL.open("wb")
        with log:
            script = SAY_TWICE.format(configure=CONFIGURE[who])
            done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, stderr=log, check=False)
        assert done.returncode == 0
