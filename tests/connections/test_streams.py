"""Standard streams hold no process if their reader is stopped, slow or gone, or if they are closed or full."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from connections.streams import EXIT_SECONDS, MAX_WAITING_BYTES
from devservers.loopback import NO_TLS
from models.database.schema import migrate
from runtime.settings import sqlite_url
from tests.servers import free_port
from tests.service import processes

LOG = """
import sys
from connections.streams import guard_streams
guard_streams()
for number in range(int(sys.argv[1])):
    print(f"{number:06d}" + 93 * "x", file=sys.stderr)
"""
OPEN = """
import os, sys
from connections.streams import guard_streams
guard_streams()
print("lost"); print("lost", file=sys.stderr)
sys.exit(0 if os.open(os.devnull, os.O_RDONLY) > 2 else 1)
"""


def start(script: str, *arguments: str, **streams: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", script, *arguments], cwd=processes.ROOT, **streams)


@pytest.fixture
def full_pipe() -> Iterator[int]:
    """Return the writing end of a pipe that accepts nothing more and has no reader."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETFL, os.O_NONBLOCK)
    for piece in (b"x" * 4096, b"x"):
        with suppress(BlockingIOError):
            while True:
                os.write(writing, piece)
    fcntl.fcntl(writing, fcntl.F_SETFL, 0)
    yield writing
    os.close(reading)
    os.close(writing)


class TestStalledReader:
    def test_does_not_hold_a_process_or_its_exit(self, full_pipe: int) -> None:
        began = time.monotonic()
        process = start(LOG, "50000", stderr=full_pipe)
        assert process.wait(60) == 0
        assert time.monotonic() - began < 30 + EXIT_SECONDS

    def test_gets_all_waiting_lines_and_the_number_of_lost_ones(self) -> None:
        reading, writing = os.pipe()
        n_lines = 3 * MAX_WAITING_BYTES // 100
        gate_reading, gate_writing = os.pipe()
        script = LOG + "\nsys.stdin.read()\nimport time; time.sleep(0.5); print('end', file=sys.stderr)"
        process = start(script, str(n_lines), stderr=writing, stdin=gate_reading)
        os.close(writing)
        os.close(gate_reading)
        time.sleep(2)  # all lines are written or lost by now, because the pipe is not read
        os.close(gate_writing)
        with os.fdopen(reading, "rb") as pipe:
            lines = pipe.read().decode().splitlines()
        assert process.wait(60) == 0
        numbers = [int(line[:6]) for line in lines if line[0].isdigit()]
        assert numbers[:5000] == list(range(5000))
        assert numbers == sorted(set(numbers))
        (lost,) = (line for line in lines if "log_lines_lost" in line)
        assert f'"n_lines": {n_lines - len(numbers)}' in lost
        assert len(numbers) < n_lines
        assert lines[-1] == "end"

    def test_gets_all_lines_at_the_exit(self) -> None:
        done = subprocess.run([sys.executable, "-c", LOG, "2000"], cwd=processes.ROOT, capture_output=True, check=True)
        assert len(done.stderr.splitlines()) == 2000


class TestClosedStreams:
    @pytest.mark.parametrize("closed", [(2,), (1,), (0, 1, 2)])
    def test_are_replaced_so_that_no_other_file_takes_their_place(self, closed: tuple[int, ...]) -> None:
        redirect = " ".join(f"{number}>&-" for number in closed)
        done = subprocess.run(
            ["/bin/sh", "-c", f'exec "$0" -c "$1" {redirect}', sys.executable, OPEN], cwd=processes.ROOT, check=False
        )
        assert done.returncode == 0


class TestServers:
    @pytest.mark.parametrize("command", ["gateway", "worker", "shuffler"])
    def test_work_and_stop_while_nobody_reads_their_log(self, command: str, full_pipe: int, tmp_path: Path) -> None:
        migrate(sqlite_url(tmp_path / "sfumato.db"))
        port = free_port()
        arguments = {
            "gateway": ["gateway", "--port", str(port)],
            "worker": ["worker"],
            "shuffler": ["shuffler", "run", "--home", str(tmp_path / "shuffler"), "--port", str(port)],
        }[command]
        settings = {"SFUMATO_METRICS_PORT": str(port)} if command == "worker" else {}
        settings |= {"SFUMATO_URL": "http://127.0.0.1:9", "SFUMATO_KEY": "sfk_x", "SFUMATO_DRAIN_SECONDS": "0"}
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "service.cli", *arguments],
            cwd=tmp_path,
            env=processes.environment(tmp_path, **settings),
            stdin=subprocess.DEVNULL,
            stdout=full_pipe,
            stderr=full_pipe,
        )
        try:
            path = "/metrics" if command == "worker" else "/healthz"
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, verify=NO_TLS) as client:
                processes.until(lambda: _status(client, path) == 200)
                for _ in range(20):
                    _status(client, "/v1/unknown")  # a line in the log of a gateway
                assert _status(client, path) == 200
            process.send_signal(signal.SIGTERM)
            process.wait(60)
        finally:
            process.kill()
            process.wait()


def _status(client: httpx.Client, path: str) -> int | None:
    try:
        return client.get(path).status_code
    except httpx.TransportError:
        return None
