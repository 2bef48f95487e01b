"""A small production deployment on loopback: private PostgreSQL and Redis servers, gateways and workers."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from signal import SIGTERM
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx

from devservers.loopback import NO_TLS
from devservers.servers import PostgresServer, ProcessFailed, RedisServer, die_with_parent

START_SECONDS = 240.0  # the first start of a worker compiles all kernels
STOP_SECONDS = 60.0
PAUSE_SECONDS = 0.05
LOG_LINES_SHOWN = 15
_LISTENS = "Sfumato listens on "
_KEY = re.compile(r"sfk_[A-Za-z0-9_-]+")

T = TypeVar("T")


@dataclass
class Member:
    """One process of the service: a gateway, a worker, or both."""

    name: str
    process: "subprocess.Popen[bytes]"
    log: Path  # standard output and standard error
    url: str = ""

    @property
    def is_running(self) -> bool:
        """Return whether the process has not ended."""
        return self.process.poll() is None

    def check(self) -> None:
        """Raise ProcessFailed if the process has ended."""
        if not self.is_running:
            raise ProcessFailed(f"{self.name} ended with status {self.process.returncode}.{self._last_lines()}")

    def kill(self) -> None:
        """End the process with SIGKILL."""
        self.process.kill()
        self.process.wait(STOP_SECONDS)

    def stop(self) -> None:
        """Terminate the process; kill it after a timeout."""
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def log_events(self, event: str) -> list[dict[str, Any]]:
        """Return the log lines with this event."""
        return [line for line in map(_parse_line, self._lines()) if line.get("event") == event]

    def wait_for_url(self, pause_seconds: float = PAUSE_SECONDS) -> str:
        """Wait until the process listens, and return its URL."""

        def read_url() -> str | None:
            lines = [line for line in self._lines() if line.startswith(_LISTENS)]
            return lines[0].removeprefix(_LISTENS) if lines else None

        self.url = self.wait_until(read_url, "does not listen", pause_seconds)
        return self.url

    def wait_for_gateway(self) -> None:
        """Wait until the gateway is ready. Ignore proxies of the environment, because it is on this machine."""
        url = self.wait_for_url()
        with httpx.Client(timeout=5.0, trust_env=False, verify=NO_TLS) as client:

            def is_ready() -> bool:
                with suppress(httpx.TransportError):
                    return client.get(f"{url}/readyz").status_code == httpx.codes.OK
                return False

            self.wait_until(is_ready, "was not ready")

    def wait_for_worker(self) -> None:
        """Wait until the job process of the worker is ready."""
        self.wait_until(lambda: self.log_events("job_process_ready"), "was not ready")

    def wait_until(self, condition: Callable[[], T | None], failure: str, pause_seconds: float = PAUSE_SECONDS) -> T:
        """Poll `condition`; return its first true value. Raise ProcessFailed if the process ends or after a timeout."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if value := condition():
                return value
            self.check()
            time.sleep(pause_seconds)
        raise ProcessFailed(f"{self.name} {failure} within {START_SECONDS:g} s.{self._last_lines()}")

    def _lines(self) -> list[str]:
        return self.log.read_text(encoding="utf-8", errors="replace").splitlines()

    def _last_lines(self) -> str:
        shown = _KEY.sub("sfk_…", "\n".join(self._lines()[-LOG_LINES_SHOWN:]))
        return f" Its last lines:\n{shown}" if shown else " It wrote nothing."


def make_environment(home: Path, **settings: str) -> dict[str, str]:
    """Return the environment with these settings only, so that a process cannot touch another database."""
    inherited = {name: value for name, value in os.environ.items() if not name.upper().startswith("SFUMATO_")}
    own = {f"SFUMATO_{name.upper()}": value for name, value in settings.items()}
    return inherited | {"SFUMATO_HOME": str(home)} | own


def start(
    home: Path,
    name: str,
    *arguments: str,
    environment: Mapping[str, str],
    module: str = "service.cli",
    prefix: Sequence[str] = (),
) -> Member:
    """Start `sfumato ARGUMENTS`, or another module, with its log in a folder; `prefix` starts the command."""
    log = home / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*prefix, *_command(module, *arguments)],
            env=dict(environment),
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches the parent only, which then stops the process
            preexec_fn=die_with_parent(SIGTERM),
        )
    return Member(name, process, log)


def run(home: Path, *arguments: str, environment: Mapping[str, str]) -> str:
    """Return the output of `sfumato ARGUMENTS`. Raise ProcessFailed if it fails."""
    done = subprocess.run(
        _command("service.cli", *arguments), env=environment, cwd=home, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ProcessFailed(f"`sfumato {arguments[0]}` ended with {done.returncode}: {done.stderr[-1000:]}")
    return done.stdout.strip()


def create_schema(home: Path, environment: Mapping[str, str]) -> str:
    """Migrate the database, and return a new admin key."""
    run(home, "migrate", environment=environment)
    return run(home, "keys", "create", "the first", "--scope", "admin", environment=environment).splitlines()[-1]


class Fleet:
    """Servers, gateways and workers as a context manager.

    The thread that enters the context must stay alive, because the kernel ends the processes with it.

    Parameters
    ----------
    home : Path
        Empty directory for logs.
    n_gateways, n_workers : int
    durable : bool
        Whether PostgreSQL waits for the disk at each commit, as in production.
    settings : mapping
        Additional `SFUMATO_*` variables of all processes.

    Attributes
    ----------
    key : str
        An admin key.
    gateways, workers : list of Member
    """

    key: str

    def __init__(
        self,
        home: Path,
        *,
        n_gateways: int,
        n_workers: int,
        durable: bool = False,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._home = home
        self._n_gateways, self._n_workers = n_gateways, n_workers
        self.postgres = PostgresServer(durable=durable)
        self.redis = RedisServer()
        self.gateways: list[Member] = []
        self.workers: list[Member] = []
        self._settings = dict(settings or {})
        self._opened = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._opened.callback(self.redis.stop)
            self._opened.callback(self.postgres.stop)
            self.redis.start()
            self.postgres.start()
            environment = make_environment(self._home, database_url=self.database_url, redis_url=self.redis.url())
            environment |= self._settings
            self.key = create_schema(self._home, environment)
            self._opened.callback(self._end)
            for n in range(self._n_gateways):
                arguments = ("gateway", "--host", "127.0.0.1", "--port", "0")
                self.gateways.append(start(self._home, f"gateway-{n + 1}", *arguments, environment=environment))
            for n in range(self._n_workers):
                self.workers.append(start(self._home, f"worker-{n + 1}", "worker", environment=environment))
            for gateway in self.gateways:
                gateway.wait_for_gateway()
            for worker in self.workers:
                worker.wait_for_worker()
        except BaseException:
            self._opened.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._opened.close()

    @property
    def database_url(self) -> str:
        """Return the SQLAlchemy URL of the database."""
        return self.postgres.url()

    @property
    def urls(self) -> list[str]:
        """Return the URL of each gateway."""
        return [gateway.url for gateway in self.gateways]

    def check(self) -> None:
        """Raise ProcessFailed if a process has ended that `kill_member` did not kill."""
        for member in (*self.gateways, *self.workers):
            member.check()

    def kill_member(self, member: Member) -> None:
        """Kill a gateway or worker and remove it from the fleet."""
        (self.gateways if member in self.gateways else self.workers).remove(member)
        member.kill()

    def _end(self) -> None:
        members = [*self.gateways, *self.workers]
        for member in members:
            member.process.terminate()
        for member in members:
            member.stop()


def _command(module: str, *arguments: str) -> list[str]:
    # -P: do not import a folder `service` of the current directory
    return [sys.executable, "-P", "-m", module, *arguments]


def _parse_line(line: str) -> dict[str, Any]:
    with suppress(ValueError):
        found = json.loads(line)
        return found if isinstance(found, dict) else {}
    return {}
