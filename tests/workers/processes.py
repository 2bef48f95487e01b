"""Worker processes that end with the test."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import psutil

from tests.workers.toy import PATIENCE_SECONDS, wait_for

ROOT = Path(__file__).parents[2]


class WorkerProcess:
    """A running worker and its log."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process, self._log = process, log

    @property
    def pid(self) -> int:
        return self.process.pid

    def logged(self, event: str) -> list[dict]:
        """Return the log lines with this event."""
        lines = self._log.read_text().splitlines()
        return [line for line in map(_parsed, lines) if line.get("event") == event]

    def child(self) -> psutil.Process:
        """Return the job process."""
        found = [p for p in psutil.Process(self.pid).children() if "spawn_main" in " ".join(p.cmdline())]
        assert len(found) == 1
        return found[0]

    def wait_until_ready(self, n_children: int = 1) -> None:
        """Wait until that many job processes have been ready."""
        wait_for(lambda: len(self.logged("job_process_ready")) >= n_children or self.process.poll() is not None)
        assert self.process.poll() is None, self._log.read_text()

    def send(self, order: signal.Signals) -> None:
        self.process.send_signal(order)

    def freeze(self, path: str) -> None:
        """Stop the process while it does not hold the write lock of this SQLite file, so that others can write."""
        while True:
            self.send(signal.SIGSTOP)
            wait_for(lambda: psutil.Process(self.pid).status() == psutil.STATUS_STOPPED)
            with closing(sqlite3.connect(path, timeout=0.1, isolation_level=None)) as other, suppress(sqlite3.Error):
                other.execute("BEGIN IMMEDIATE")
                other.execute("ROLLBACK")
                return
            self.send(signal.SIGCONT)
            time.sleep(0.05)


def _parsed(line: str) -> dict:
    with suppress(ValueError):
        return dict(json.loads(line))
    return {}


@contextmanager
def worker(
    log: Path, database_url: str, *, module: str = "tests.workers.toy_worker", **more: object
) -> Iterator[WorkerProcess]:
    """Run a worker on this database; `more` are environment variables.

    It does not warm up, because the toy plans call few kernels.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SFUMATO_")}
    environment |= {"SFUMATO_DATABASE_URL": database_url, "SFUMATO_WARM_KERNELS": "false"}
    environment |= {name: str(value) for name, value in more.items()}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", module], cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
    started = WorkerProcess(process, log)
    family: list[psutil.Process] = []
    try:
        yield started
    finally:
        with suppress(psutil.NoSuchProcess):
            family = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait()
        psutil.wait_procs(family, timeout=30)
        for left in family:
            if left.is_running():
                left.kill()


def is_gone(pid: int) -> bool:
    """Return whether a process has ended, reaped or not."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def seconds_until(condition, timeout: float = PATIENCE_SECONDS) -> float:
    """Return the seconds until `condition()` is true."""
    began = time.monotonic()
    wait_for(condition, timeout=timeout, every=0.005)
    return time.monotonic() - began
