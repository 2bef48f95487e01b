"""A private Dask scheduler and its workers, as processes on 127.0.0.1."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.workers.processes import ROOT

START_SECONDS = 120.0
QUIET = ("--no-dashboard", "--dashboard-address", "127.0.0.1:0")


class DaskCluster:
    """A scheduler and its workers, for `workers.distributed.dask_client.Scheduler(cluster.address)`."""

    def __init__(self, folder: Path, environment: Mapping[str, str], options: Sequence[str]) -> None:
        self._folder, self._options = folder, options
        paths = os.pathsep.join([str(ROOT), str(ROOT / "sdk" / "python")])
        self._environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": paths, **environment}
        self.workers: list[subprocess.Popen[bytes]] = []
        file = folder / "scheduler.json"
        self._scheduler = self._start(
            "scheduler", ["--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(file)]
        )
        deadline = time.monotonic() + START_SECONDS
        while not (file.exists() and file.read_text().endswith("}")):
            assert self._scheduler.poll() is None, self.logged()
            assert time.monotonic() < deadline, self.logged()
            time.sleep(0.05)
        self.address = str(json.loads(file.read_text())["address"])

    def add_worker(self, *options: str) -> subprocess.Popen[bytes]:
        """Start a worker, which connects after a second or two."""
        always = ["--nthreads", "1", "--no-nanny", "--host", "127.0.0.1", "--local-directory", str(self._folder)]
        process = self._start("worker", [self.address, *always, *(options or ("--memory-limit", "0"))])
        self.workers.append(process)
        return process

    def logged(self) -> str:
        """Return the logs of all processes."""
        return "".join(path.read_text(errors="replace") for path in sorted(self._folder.glob("*.log")))

    def stop(self) -> None:
        for process in (*self.workers, self._scheduler):
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait(timeout=30)

    def _start(self, kind: str, more: Sequence[str]) -> "subprocess.Popen[bytes]":
        n_logs = len(list(self._folder.glob("*.log")))
        with (self._folder / f"{n_logs}-{kind}.log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", f"distributed.cli.dask_{kind}", *more, *QUIET, *self._options],
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )


@contextmanager
def dask_cluster(
    folder: Path, environment: Mapping[str, str], *, n_workers: int = 2, options: Sequence[str] = ()
) -> Iterator[DaskCluster]:
    """Run a scheduler and `n_workers` workers with this environment."""
    cluster = DaskCluster(folder, environment, options)
    try:
        for _ in range(n_workers):
            cluster.add_worker()
        yield cluster
    finally:
        cluster.stop()
