"""A whole service of the harness's own, whose every process may be killed, stopped and begun again.

Embedded: SQLite, one gateway, two workers. Production: PostgreSQL (fsync on) and Redis of its own, two
gateways, two workers. Clients reach gateways, and the service its servers, through relays, so that
addresses stay while processes come and go.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import psutil
import redis
from sqlalchemy.engine import make_url

from models import sealing, tenant
from models.db import Database, migrate
from models.tenant import Scope
from tests.faults.relay import Relay
from tests.faults.room import Room
from tests.servers import PostgresServer, RedisServer, free_port

ROOT = Path(__file__).parents[2]
BACKENDS = ("sqlite", "postgresql")
LEASE_SECONDS = 1.0
DISK_BYTES = {"sqlite": 96 << 20, "postgresql": 640 << 20}
MASTER_KEY = bytes(range(32))
START_SECONDS = 180.0
STOP_SECONDS = 20.0


class World:
    """The processes, and what may be done to them.

    Parameters
    ----------
    backend : {'sqlite', 'postgresql'}
    scratch : Path
    planted : str
        One of `steps.PLANTED`, or nothing.
    """

    def __init__(self, backend: str, scratch: Path, *, planted: str = "") -> None:
        self.backend, self.is_sqlite = backend, backend == "sqlite"
        self.room = Room(scratch, DISK_BYTES[backend], has_far_side=not self.is_sqlite)
        self.steps = scratch / "steps"
        self.steps.mkdir()
        self.log = scratch / "log"
        self._planted = planted
        self._relays: list[Relay] = []
        self._zygote: subprocess.Popen[bytes] | None = None
        self.postgres: PostgresServer | None = None
        self.redis: RedisServer | None = None
        self.running: dict[str, int] = {}  # process ids
        self._gateway_names = ["gateway0"] if self.is_sqlite else ["gateway0", "gateway1"]
        self._worker_names = ["worker0", "worker1"]
        self._ports = {name: free_port() for name in self._gateway_names}
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("SFUMATO_")}
        self._environment |= self._settings(scratch)
        self.database = Database(self.url, pool_size=2)
        with self.database.transaction() as session:
            now = self.database.clock()
            owner = tenant.get_or_create_tenant(session, tenant.FIRST_TENANT, now=now)
            _, self.secret = tenant.create_key(session, owner.id, name="faults", scopes=[Scope.ADMIN], now=now)
        self.door = self._relay(lambda: [("127.0.0.1", self._ports[name]) for name in self._gateway_names])
        self.start()

    def _relay(self, upstreams: Callable[[], list[tuple[str, int]]], *, is_far: bool = False) -> Relay:
        made = Relay(upstreams, self.room.far_host, self.room.run_there) if is_far else Relay(upstreams)
        self._relays.append(made)
        return made

    def _settings(self, scratch: Path) -> dict[str, str]:
        url = f"sqlite:///{self.room.disk / 'sfumato.db'}" if self.is_sqlite else self._begin_servers()
        self.url = url
        migrate(url)
        return {
            "SFUMATO_DATABASE_URL": url,
            "SFUMATO_HOME": str(scratch),
            "SFUMATO_RECORDS_KEY": sealing.write_key(MASTER_KEY),
            "SFUMATO_LEASE_SECONDS": str(LEASE_SECONDS),
            "SFUMATO_MAX_ATTEMPTS": "100",  # a job dies here more often than any should elsewhere
            "SFUMATO_RATE_PER_KEY": "0",
            "SFUMATO_WARM_KERNELS": "false",
            "SFUMATO_DIE_WITH_PARENT": str(os.getpid()),
            "OPENBLAS_NUM_THREADS": "1",
            "FAULTS_DIRECTORY": str(self.steps),
            "FAULTS_PLANTED": self._planted,
            "PYTHONPATH": f"{ROOT}:{ROOT / 'sdk' / 'python'}",
        } | ({} if self.is_sqlite else {"SFUMATO_REDIS_URL": self._redis_url})

    def _begin_servers(self) -> str:
        postgres, bell = PostgresServer(durable=True), RedisServer()
        self.postgres, self.redis = postgres, bell
        before, tempfile.tempdir = tempfile.tempdir, str(self.room.disk)  # its data lie on the disk that may be full
        try:
            self.room.there(postgres.start)
        finally:
            tempfile.tempdir = before
        self.room.there(bell.start)
        self._postgres_relay = self._relay(lambda: [("127.0.0.1", postgres.port)], is_far=True)
        self._redis_relay = self._relay(lambda: [("127.0.0.1", bell.port)], is_far=True)
        self._redis_url = _readdressed(bell.url(), self._redis_relay)
        return _readdressed(postgres.url(), self._postgres_relay)

    # ---- processes ----

    @property
    def gateways(self) -> list[str]:
        """Names of the gateways."""
        return self._gateway_names

    @property
    def workers(self) -> list[str]:
        """Names of the workers."""
        return self._worker_names

    def start(self) -> None:
        """Begin every process that does not run."""
        for name in self._gateway_names:
            if name not in self.running:
                self._begin(name, "gateway", "--port", str(self._ports[name]))
        for name in self._worker_names:
            if name not in self.running:
                self._begin(name)

    def _begin(self, name: str, *arguments: str) -> None:
        if self._zygote is None:
            self._zygote = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.zygote"],
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,  # a file would have its size limited with the others'
            )
            threading.Thread(target=self._copy, args=(self._zygote.stderr,), daemon=True).start()
        asks, answers = self._zygote.stdin, self._zygote.stdout
        assert asks is not None
        assert answers is not None
        asks.write(json.dumps({"name": name, "arguments": arguments}).encode() + b"\n")
        asks.flush()
        self.running[name] = int(answers.readline())

    def _copy(self, said: IO[bytes]) -> None:
        with self.log.open("ab") as log, suppress(ValueError):
            for line in said:
                log.write(line)
                log.flush()

    def kill(self, name: str) -> None:
        """SIGKILL; a worker takes its child along."""
        pid = self.running.pop(name)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        while is_alive(pid):
            time.sleep(0.002)

    def name_of(self, pid: int) -> str | None:
        """Whose process this is; a child is its worker's. None where it has gone."""
        with suppress(psutil.NoSuchProcess):
            above = {pid, *(parent.pid for parent in psutil.Process(pid).parents())}
            for name, ours in self.running.items():
                if ours in above:
                    return name
        return None

    def children(self, name: str) -> list[psutil.Process]:
        """A worker's computing process, where there is one."""
        with suppress(psutil.NoSuchProcess, KeyError):
            return [child for child in psutil.Process(self.running[name]).children() if is_alive(child.pid)]
        return []

    def forget_ended(self) -> list[str]:
        """Names of processes that ended by themselves; `start` begins them again."""
        ended = [name for name, pid in self.running.items() if not is_alive(pid)]
        for name in ended:
            del self.running[name]
        return ended

    def readies(self) -> bool:
        """Whether every gateway says that it is ready, and every worker has its child."""
        import httpx

        for name in self._gateway_names:
            with suppress(httpx.TransportError):
                if httpx.get(f"http://127.0.0.1:{self._ports[name]}/readyz", timeout=5).status_code == 200:
                    continue
            return False
        ready = {line["pid"] for line in self.lines("child_ready")}
        return all({child.pid for child in self.children(name)} & ready for name in self._worker_names)

    def lines(self, event: str) -> list[dict[str, Any]]:
        """The log's lines of one kind."""
        marked = f'"{event}"'
        return [json.loads(line) for line in self.text().splitlines() if marked in line and line.startswith("{")]

    def text(self) -> str:
        """The log."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    # ---- servers ----

    def kill_postgres(self) -> None:
        """End PostgreSQL as a crash would, and begin it again."""
        assert self.postgres is not None
        self.room.there(self.postgres.kill)
        self.room.there(self.postgres.start)

    def revive_postgres(self) -> bool:
        """Begin PostgreSQL again where a full disk has ended it; whether it had."""
        server = self.postgres
        if server is None or server.process is None or server.process.poll() is None:
            return False
        self.room.there(server.start)
        return True

    def kill_redis(self) -> None:
        """SIGKILL to Redis; it begins again with nothing."""
        assert self.redis is not None
        process = self.redis.process
        assert process is not None
        process.kill()
        process.wait()
        self.room.there(self.redis.start)

    def flush_redis(self) -> None:
        """Forget everything in Redis."""
        client = redis.Redis.from_url(self._redis_url)
        client.flushall()
        client.close()

    def cut_network(self, seconds: float) -> None:
        """Keep everything between the service and its servers from arriving for a while."""
        if self.room.cut(is_cut=True):
            time.sleep(seconds)
            self.room.cut(is_cut=False)
            return
        relays = [self._postgres_relay, self._redis_relay]
        for relay in relays:
            relay.hold_all(held=True)
        time.sleep(seconds)
        for relay in relays:
            relay.hold_all(held=False)

    def fill_disk(self, seconds: float) -> None:
        """Leave no room for data for a while."""
        pids = list(self.running.values())
        if self.postgres is not None and self.postgres.process is not None:
            pids = [self.postgres.process.pid]
        self.room.fill(pids)
        time.sleep(seconds)
        self.room.free()
        if self.postgres is not None:
            time.sleep(0.2)  # it may be about to give up
            self.revive_postgres()

    def turn_clock(self, name: str, seconds: float) -> None:
        """Have the clock of a process's machine be so far ahead; every earlier turn is forgotten.

        With SQLite all processes are on one machine, and have one clock.
        """
        for each in [*self.gateways, *self.workers] if self.is_sqlite else [name]:
            fresh = self.steps / f"fresh.{each}"
            fresh.write_text(str(int(seconds * 1_000_000)))
            fresh.rename(self.steps / f"clock.{each}")

    def release(self) -> None:
        """Hold nobody, anywhere."""
        for pattern in ("arm.*", "held.*"):
            for each in self.steps.glob(pattern):
                each.unlink(missing_ok=True)

    def close(self) -> None:
        """End everything."""
        self.release()
        for pid in self.running.values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
                os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        while any(is_alive(pid) for pid in self.running.values()) and time.monotonic() < deadline:
            time.sleep(0.02)
        if self._zygote is not None and self._zygote.stdin is not None:
            self._zygote.stdin.close()  # it kills who is left
            self._zygote.wait(STOP_SECONDS)
        self.database.close()
        for relay in self._relays:
            relay.close()
        for server in (self.postgres, self.redis):
            if server is not None:
                self.room.there(server.stop)
        self.room.close()


def is_alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _readdressed(url: str, relay: Relay) -> str:
    """The same server, by its relay."""
    return make_url(url).set(host=relay.host, port=relay.port).render_as_string(hide_password=False)
