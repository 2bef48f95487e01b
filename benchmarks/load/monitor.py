"""Monitor of a run: memory of processes, database connections, and load average."""

import os
import statistics
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Self

import psutil  # type: ignore[import-untyped]
import psycopg

from devservers.fleet import Fleet

EVERY_SECONDS = 5.0
MEGABYTE = 1 << 20


class Monitor:
    """A thread that takes a sample every few seconds while its context is open."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="monitor", daemon=True)
        self.memory_mb: dict[str, list[float]] = {}
        self.connections: list[int] = []
        self.load: list[float] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def reset(self) -> None:
        """Discard all samples."""
        self.memory_mb, self.connections, self.load = {}, [], []

    def growth_mb(self) -> dict[str, float]:
        """Return the growth by process: median of the last quarter minus that of the second, after a warm-up."""
        grown = {}
        for name, samples in self.memory_mb.items():
            quarter = len(samples) // 4
            if quarter:
                middle, last = samples[quarter : 2 * quarter], samples[-quarter:]
                grown[name] = statistics.median(last) - statistics.median(middle)
        return grown

    def _run(self) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            with suppress(psutil.NoSuchProcess, psycopg.OperationalError):
                self._sample()
            self._stop.wait(max(0.0, EVERY_SECONDS - (time.monotonic() - began)))

    def _sample(self) -> None:
        self.load.append(os.getloadavg()[0])
        fleet = self._fleet
        for member in (*fleet.gateways, *fleet.workers):
            process = psutil.Process(member.process.pid)
            self._add(member.name, process)
            for child in process.children():
                if "spawn_main" in " ".join(child.cmdline()):
                    self._add(f"{member.name}'s child", child)
        if fleet.redis.process is not None:
            self._add("redis", psutil.Process(fleet.redis.process.pid))
        with psycopg.connect(fleet.database_url.replace("+psycopg", "")) as connection:
            found = connection.execute(
                "SELECT count(*) FROM pg_stat_activity"
                " WHERE backend_type = 'client backend' AND pid != pg_backend_pid()"
            ).fetchone()
        self.connections.append(int(found[0]) if found else 0)

    def _add(self, name: str, process: psutil.Process) -> None:
        self.memory_mb.setdefault(name, []).append(process.memory_info().rss / MEGABYTE)
