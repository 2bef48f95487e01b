"""Sfumato as it runs in production, small: PostgreSQL, Redis, gateways and workers of one's own on loopback."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from signal import SIGTERM
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx

from demo.errors import ServiceFailed
from demo.servers import PostgresServer, RedisServer, die_with_parent

START_SECONDS = 240.0  # a worker's first one compiles every kernel
STOP_SECONDS = 60.0
PAUSE_SECONDS = 0.05
LOG_LINES_SHOWN = 15
_LISTENS = "Sfumato listens on "
_POSTGRES_DATABASE = "postgres"  # the cluster is nobody else's

T = TypeVar("T")


@dataclass
class Member:
    """One process of the fleet: a gateway or a worker."""

    name: str
    process: "subprocess.Popen[bytes]"
    log: Path
    url: str = ""

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        """SIGKILL: it has no last word."""
        self.process.kill()
        self.process.wait(STOP_SECONDS)

    def said(self, event: str) -> list[dict[str, Any]]:
        """Lines of its log that tell of one kind of event."""
        return [line for line in map(_parsed, self._lines()) if line.get("event") == event]

    def last_lines(self) -> str:
        """For people: how its log ends."""
        return "\n".join(self._lines()[-LOG_LINES_SHOWN:])

    def _lines(self) -> list[str]:
        return self.log.read_text(encoding="utf-8", errors="replace").splitlines()


class Fleet:
    """Servers, gateways and workers, from entering to leaving; entered by a thread that stays until then.

    Parameters
    ----------
    home : Path
        A directory of its own, for logs.
    n_gateways, n_workers : int
    durable : bool
        Whether PostgreSQL waits for the disk at each commit, as it does in production.
    settings : mapping
        More `SFUMATO_*` variables for each process.

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
            self._run("migrate")
            self.key = self._run("keys", "create", "the first", "--scope", "admin").splitlines()[-1]
            self._opened.callback(self._end)
            for n in range(self._n_gateways):
                self.gateways.append(self._begin(f"gateway-{n + 1}", "gateway", "--host", "127.0.0.1", "--port", "0"))
            for n in range(self._n_workers):
                self.workers.append(self._begin(f"worker-{n + 1}", "worker"))
            with ThreadPoolExecutor(len(self.gateways)) as pool:
                list(pool.map(self._wait_for_gateway, self.gateways))
            for worker in self.workers:
                self.await_worker(worker)
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
        """SQLAlchemy URL of the database."""
        return self.postgres.url(_POSTGRES_DATABASE)

    @property
    def urls(self) -> list[str]:
        """Where each gateway listens."""
        return [gateway.url for gateway in self.gateways]

    def check(self) -> None:
        """Raise ServiceFailed if a process that nobody killed has ended."""
        for member in (*self.gateways, *self.workers):
            if not member.is_running:
                status = member.process.returncode
                raise ServiceFailed(f"{member.name} ended with status {status}. Its last lines:\n{member.last_lines()}")

    def lose(self, member: Member) -> None:
        """Kill a member; what is left is the fleet from now on."""
        (self.gateways if member in self.gateways else self.workers).remove(member)
        member.kill()

    def await_worker(self, worker: Member) -> None:
        """Wait until its computing process is warm."""
        until(lambda: worker.said("child_ready"), f"{worker.name} was not ready", self.check)

    def _wait_for_gateway(self, gateway: Member) -> None:
        out = gateway.log.with_suffix(".out")

        def told() -> str | None:
            lines = [line for line in out.read_text().splitlines() if line.startswith(_LISTENS)]
            return lines[0].removeprefix(_LISTENS) if lines else None

        gateway.url = until(told, f"{gateway.name} does not listen", self.check)
        with httpx.Client(timeout=5.0) as client:

            def is_ready() -> bool:
                with suppress(httpx.TransportError):
                    return client.get(f"{gateway.url}/readyz").status_code == httpx.codes.OK
                return False

            until(is_ready, f"{gateway.name} was not ready", self.check)

    def _begin(self, name: str, *arguments: str) -> Member:
        log = self._home / f"{name}.log"
        with log.open("wb") as err, log.with_suffix(".out").open("wb") as out:
            process = subprocess.Popen(
                _command(*arguments),
                env=self._environment(),
                cwd=self._home,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,  # Ctrl-C is for who began the fleet, who then ends it in order
                preexec_fn=die_with_parent(SIGTERM),
            )
        return Member(name, process, log)

    def _run(self, *arguments: str) -> str:
        done = subprocess.run(
            _command(*arguments), env=self._environment(), cwd=self._home, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise ServiceFailed(f"`sfumato {arguments[0]}` ended with {done.returncode}: {done.stderr[-1000:]}")
        return done.stdout.strip()

    def _environment(self) -> dict[str, str]:
        """The environment without anybody's settings: no real service's database is to be touched."""
        inherited = {name: value for name, value in os.environ.items() if not name.upper().startswith("SFUMATO_")}
        own = {
            "SFUMATO_HOME": str(self._home),
            "SFUMATO_DATABASE_URL": self.database_url,
            "SFUMATO_REDIS_URL": self.redis.url(),
        }
        return inherited | own | self._settings

    def _end(self) -> None:
        members = [*self.gateways, *self.workers]
        for member in members:
            if member.is_running:
                member.process.terminate()
        for member in members:
            try:
                member.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                member.kill()


def until(what: Callable[[], T | None], otherwise: str, check: Callable[[], None], seconds: float = START_SECONDS) -> T:
    """What `what()` says as soon as it says anything; ServiceFailed with the sentence `otherwise` after `seconds`.

    `check` is called in between, and may raise.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if said := what():
            return said
        check()
        time.sleep(PAUSE_SECONDS)
    raise ServiceFailed(f"{otherwise} within {seconds:g} s")


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "service.cli", *arguments]  # -P: as in `own_service`


def _parsed(line: str) -> dict[str, Any]:
    with suppress(ValueError):
        found = json.loads(line)
        return found if isinstance(found, dict) else {}
    return {}
