"""Real server processes for tests, which are always stopped at the end."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]
START_SECONDS = 180.0  # longest wait for expected events on a busy machine
STOP_SECONDS = 120.0


def environment(home: Path, **settings: str) -> dict[str, str]:
    """Return an environment with only these settings. Workers compile kernels when they are first called."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SFUMATO_")}
    own = {
        "SFUMATO_HOME": str(home),
        "SFUMATO_WARM_KERNELS": "false",
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "sdk" / "python"))),
    }
    return inherited | own | settings


def until(condition: Callable[[], Any], seconds: float = START_SECONDS) -> Any:
    """Wait until the condition is true and return its value."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "the condition is still false"
        time.sleep(0.02)
    return found


def is_running(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Running:
    """A child process that runs `sfumato <command>`."""

    def __init__(self, home: Path, *arguments: str, **settings: str) -> None:
        home.mkdir(exist_ok=True)
        self.home = home
        self._out, self._log = home / "out", home / "log"
        with self._out.open("wb") as out, self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "service.cli", *arguments],
                cwd=home,
                env=environment(home, **settings),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
            )

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def log(self) -> str:
        return self._log.read_text()

    def lines(self) -> list[dict[str, Any]]:
        """Return the JSON log lines, including those of its workers."""
        return [json.loads(line) for line in self.log.splitlines() if line.startswith("{")]

    def url(self) -> str:
        """Return its address once it listens."""

        def find_url() -> str | None:
            assert self.process.poll() is None, self.log
            lines = [line for line in self.out.splitlines() if line.startswith("Sfumato listens on ")]
            return lines[0].removeprefix("Sfumato listens on ") if lines else None

        found: str = until(find_url)
        return found

    def children(self) -> list[int]:
        """Return the process ids of its running children."""
        return [child.pid for child in psutil.Process(self.process.pid).children() if is_running(child.pid)]

    def stop(self) -> int:
        """Stop it gracefully and return its exit status."""
        self.process.terminate()
        return self.process.wait(STOP_SECONDS)


@contextmanager
def running(home: Path, *arguments: str, **settings: str) -> Iterator[Running]:
    """Run a command and kill it at the end if it still runs."""
    started = Running(home, *arguments, **settings)
    try:
        yield started
    finally:
        children = started.children() if started.process.poll() is None else []
        if started.process.poll() is None:
            started.process.terminate()
        try:
            started.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            started.process.kill()
            started.process.wait()
        until(lambda: not any(is_running(child) for child in children))
