"""A Sfumato service of the demo's own: in a temporary home, on loopback, ended with the demo however that ends."""

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from demo.errors import ServiceFailed

START_SECONDS = 120.0  # a slow disk may take its time; what fails says so at once
STOP_SECONDS = 30.0  # it gives its worker 20
LOG_LINES_SHOWN = 15

_KEY = re.compile(r"sfk_[A-Za-z0-9_-]+")


class OwnService:
    """A `Stage`: `sfumato serve` as a child process, from entering to leaving.

    Attributes
    ----------
    url : str
        Where it listens: a free port of 127.0.0.1.
    key : str
        Its first admin key.
    """

    url: str
    key: str

    def __enter__(self) -> Self:
        self._directory = tempfile.TemporaryDirectory(prefix="sfumato-demo-")
        home = Path(self._directory.name)
        self._log = home / "serve.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                # -P: a folder `service` where the user happens to be is not taken for ours
                [sys.executable, "-P", "-m", "service.cli", "serve", "--host", "127.0.0.1", "--port", "0"],
                env=_environment(home),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches the demo alone, which then ends the service in good order
            )
        try:
            self._wait_until_ready(home / "url")
            self.key = _admin_key(home)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end()

    @property
    def pid(self) -> int:
        """Of the child process."""
        return self._process.pid

    def check(self) -> None:
        """Raise ServiceFailed if the service has ended."""
        if self._process.poll() is not None:
            raise ServiceFailed(f"the service ended with status {self._process.returncode}.{self._last_lines()}")

    def network(self) -> httpx.BaseTransport:
        """See `Stage`."""
        return httpx.HTTPTransport()

    def reported(self, n_reports: int) -> None:
        """See `Stage`: nothing happens on the way."""

    def submitted(self, job_id: str) -> None:
        """See `Stage`."""

    def ended(self, job_id: str) -> None:
        """See `Stage`."""

    def _wait_until_ready(self, address_file: Path) -> None:
        deadline = time.monotonic() + START_SECONDS
        with httpx.Client(timeout=5.0) as client:
            while time.monotonic() < deadline:
                self.check()
                try:
                    self.url = address_file.read_text(encoding="ascii").strip()
                    if client.get(f"{self.url}/readyz").status_code == httpx.codes.OK:
                        return
                except (FileNotFoundError, httpx.TransportError):
                    pass  # not listening yet
                time.sleep(0.05)
        raise ServiceFailed(f"the service was not ready within {START_SECONDS:g} s.{self._last_lines()}")

    def _last_lines(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES_SHOWN:]
        shown = _KEY.sub("sfk_…", "\n".join(lines))
        return f" Its last lines:\n{shown}" if shown else " It wrote nothing."

    def _end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._directory.cleanup()


def _environment(home: Path) -> dict[str, str]:
    """The environment without anybody's settings: the demo must not touch a real service's database."""
    inherited = {name: value for name, value in os.environ.items() if not name.upper().startswith("SFUMATO_")}
    return {**inherited, "SFUMATO_HOME": str(home), "SFUMATO_DIE_WITH_PARENT": str(os.getpid())}


def _admin_key(home: Path) -> str:
    try:
        return (home / "admin.key").read_text(encoding="ascii").strip()
    except OSError:
        raise ServiceFailed("the service left no admin key in its home") from None
