"""What the processes hold while the load runs: memory, database connections, the machine's load."""

import os
import statistics
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Self

import psutil  # type: ignore[import-untyped]
import psycopg

from demo.fleet import Fleet

EVERY_SECONDS = 5.0
MEGABYTE = 1 << 20


class Watch:
    """A thread that looks every few seconds, from entering to leaving."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
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

    def begin_anew(self) -> None:
        """Forget what was seen so far."""
        self.memory_mb, self.connections, self.load = {}, [], []

    def growth_mb(self) -> dict[str, float]:
        """By process: the last quarter's median less the second quarter's; the first is for warming up."""
        grown = {}
        for name, seen in self.memory_mb.items():
            quarter = len(seen) // 4
            if quarter:
                middle, last = seen[quarter : 2 * quarter], seen[-quarter:]
                grown[name] = statistics.median(last) - statistics.median(middle)
        return grown

    def _run(self) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            with suppress(psutil.NoSuchProcess, psycopg.OperationalError):
                self._look()
            self._stop.wait(max(0.0, EVERY_SECONDS - (time.monotonic() - began)))

    def _look(self) -> None:
        self.load.append(os.getloadavg()[0])
        fleet = self._fleet
        for member in (*fleet.gateways, *fleet.workers):
            process = psutil.Process(member.process.pid)
            self._note(member.name, process)
            for child in process.children():
                if "spawn_main" in " ".join(child.cmdline()):
                    self._note(f"{member.name}'s child", child)
        if fleet.redis.process is not None:
            self._note("redis", psutil.Process(fleet.redis.process.pid))
        with psycopg.connect(fleet.database_url.replace("+psycopg", "")) as connection:
            found = connection.execute(
                "SELECT count(*) FROM pg_stat_activity"
                " WHERE backend_type = 'client backend' AND pid != pg_backend_pid()"
            ).fetchone()
        self.connections.append(int(found[0]) if found else 0)

    def _note(self, name: str, process: psutil.Process) -> None:
        self.memory_mb.setdefault(name, []).append(process.memory_info().rss / MEGABYTE)
