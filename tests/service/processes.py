"""Real servers of the tests' own: started, watched, always ended by whoever started them."""

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
START_SECONDS = 180.0  # for what must come, on a machine however busy
STOP_SECONDS = 120.0


def environment(home: Path, **settings: str) -> dict[str, str]:
    """Nobody's settings but these; of a worker's kernels those alone are compiled that a test calls."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SFUMATO_")}
    own = {"SFUMATO_HOME": str(home), "SFUMATO_WARM_KERNELS": "false", "PYTHONPATH": str(ROOT)}
    return inherited | own | settings


def until(condition: Callable[[], Any], seconds: float = START_SECONDS) -> Any:
    """Wait for what must come; what it was."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.02)
    return found


def is_running(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Running:
    """`sfumato <command>` as a child process."""

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
        """The log's lines of JSON, those of its workers among them."""
        return [json.loads(line) for line in self.log.splitlines() if line.startswith("{")]

    def url(self) -> str:
        """Its address, once it listens."""

        def said() -> str | None:
            assert self.process.poll() is None, self.log
            lines = [line for line in self.out.splitlines() if line.startswith("Sfumato listens on ")]
            return lines[0].removeprefix("Sfumato listens on ") if lines else None

        found: str = until(said)
        return found

    def children(self) -> list[int]:
        """Process ids of its children that run."""
        return [child.pid for child in psutil.Process(self.process.pid).children() if is_running(child.pid)]

    def stop(self) -> int:
        """End it in good order; its exit status."""
        self.process.terminate()
        return self.process.wait(STOP_SECONDS)


@contextmanager
def running(home: Path, *arguments: str, **settings: str) -> Iterator[Running]:
    """A command, killed at the end unless it has ended by then."""
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
