"""A complete deployment of the service, with processes that the harness can kill, stop and restart.

Embedded: SQLite, one gateway, two workers. Production: its own PostgreSQL (fsync on) and Redis, two gateways, two
workers. Clients reach gateways, and the service its servers, through relays, so that addresses stay the same.
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
from functools import partial
from pathlib import Path
from typing import IO, Any

import psutil
import redis
from sqlalchemy.engine import make_url

from devservers.loopback import NO_TLS
from models import encryption
from models.database.engine import Database
from models.database.schema import migrate
from models.identity import keys, tenants
from models.tables.identity import Scope
from tests.faults.isolation import Isolation
from tests.faults.relay import Relay
from tests.servers import PostgresServer, RedisServer, free_port

ROOT = Path(__file__).parents[2]
BACKENDS = ("sqlite", "postgresql")
LEASE_SECONDS = 1.0
DISK_BYTES = {"sqlite": 96 << 20, "postgresql": 640 << 20}
MASTER_KEY = bytes(range(32))
START_SECONDS = 180.0
STOP_SECONDS = 20.0


class Deployment:
    """The processes of the service, and the faults that can be injected.

    Parameters
    ----------
    backend : {'sqlite', 'postgresql'}
    scratch : Path
    planted : str
        One of `steps.PLANTED`, or empty.
    """

    def __init__(self, backend: str, scratch: Path, *, planted: str = "") -> None:
        self.backend, self.is_sqlite = backend, backend == "sqlite"
        self.isolation = Isolation(scratch, DISK_BYTES[backend], has_far_side=not self.is_sqlite)
        self.steps = scratch / "steps"
        self.steps.mkdir()
        self.log = scratch / "log"
        self._planted = planted
        self._relays: list[Relay] = []
        self._fork_server: subprocess.Popen[bytes] | None = None
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
            owner = tenants.get_or_create_tenant(session, tenants.FIRST_TENANT, now=now)
            _, self.secret = keys.create_key(session, owner.id, name="faults", scopes=[Scope.ADMIN], now=now)
        self.entry = self._relay(lambda: [("127.0.0.1", self._ports[name]) for name in self._gateway_names])
        self.start()

    def _relay(self, upstreams: Callable[[], list[tuple[str, int]]], *, is_far: bool = False) -> Relay:
        relay = (
            Relay(upstreams, self.isolation.far_host, self.isolation.start_far_thread) if is_far else Relay(upstreams)
        )
        self._relays.append(relay)
        return relay

    def _settings(self, scratch: Path) -> dict[str, str]:
        url = f"sqlite:///{self.isolation.disk / 'sfumato.db'}" if self.is_sqlite else self._start_servers()
        self.url = url
        migrate(url)
        return {
            "SFUMATO_DATABASE_URL": url,
            "SFUMATO_HOME": str(scratch),
            "SFUMATO_RECORDS_KEY": encryption.encode_key(MASTER_KEY),
            "SFUMATO_LEASE_SECONDS": "3600" if self._planted == "long_lease" else str(LEASE_SECONDS),
            "SFUMATO_MAX_ATTEMPTS": "100",  # jobs lose their workers very often here
            "SFUMATO_RATE_PER_KEY": "0",
            "SFUMATO_WARM_KERNELS": "false",
            "SFUMATO_SOURCE_LIMIT": "none",  # the datasets of a campaign have one name
            "SFUMATO_DIE_WITH_PARENT": str(os.getpid()),
            "OPENBLAS_NUM_THREADS": "1",
            "FAULTS_DIRECTORY": str(self.steps),
            "FAULTS_PLANTED": self._planted,
            "PYTHONPATH": f"{ROOT}:{ROOT / 'sdk' / 'python'}",
        } | ({} if self.is_sqlite else {"SFUMATO_REDIS_URL": self._redis_url})

    def _start_servers(self) -> str:
        postgres, redis_server = PostgresServer(durable=True), RedisServer()
        self.postgres, self.redis = postgres, redis_server
        before, tempfile.tempdir = (
            tempfile.tempdir,
            str(self.isolation.disk),
        )  # PostgreSQL's data is on the disk that is filled
        try:
            self.isolation.run_far(postgres.start)
        finally:
            tempfile.tempdir = before
        self.isolation.run_far(redis_server.start)
        self._postgres_relay = self._relay(lambda: [("127.0.0.1", postgres.port)], is_far=True)
        self._redis_relay = self._relay(lambda: [("127.0.0.1", redis_server.port)], is_far=True)
        self._redis_url = _replace_address(redis_server.url(), self._redis_relay)
        return _replace_address(postgres.url(), self._postgres_relay)

    # ---- processes ----

    @property
    def gateways(self) -> list[str]:
        """Return the names of the gateways."""
        return self._gateway_names

    @property
    def workers(self) -> list[str]:
        """Return the names of the workers."""
        return self._worker_names

    def start(self) -> None:
        """Start every process that does not run."""
        for name in self._gateway_names:
            if name not in self.running:
                self._start_process(name, "gateway", "--port", str(self._ports[name]))
        for name in self._worker_names:
            if name not in self.running:
                self._start_process(name)

    def _start_process(self, name: str, *arguments: str) -> None:
        if self._fork_server is None:
            self._fork_server = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.fork_server"],
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,  # a file would be subject to the limit on file sizes
            )
            threading.Thread(target=self._copy_log, args=(self._fork_server.stderr,), daemon=True).start()
        requests, responses = self._fork_server.stdin, self._fork_server.stdout
        assert requests is not None
        assert responses is not None
        requests.write(json.dumps({"name": name, "arguments": arguments}).encode() + b"\n")
        requests.flush()
        self.running[name] = int(responses.readline())

    def _copy_log(self, lines_read: IO[bytes]) -> None:
        with lines_read, self.log.open("ab") as log, suppress(ValueError):
            for line in lines_read:
                log.write(line)
                log.flush()

    def kill(self, name: str) -> None:
        """Kill a process with SIGKILL; a worker's job process ends with it."""
        pid = self.running.pop(name)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        while is_alive(pid):
            time.sleep(0.002)

    def find_name(self, pid: int) -> str | None:
        """Return the name of the process, or of the worker of a job process; None if it has ended."""
        with suppress(psutil.NoSuchProcess):
            ancestors = {pid, *(parent.pid for parent in psutil.Process(pid).parents())}
            for name, own_pid in self.running.items():
                if own_pid in ancestors:
                    return name
        return None

    def children(self, name: str) -> list[psutil.Process]:
        """Return a worker's job process, if there is one."""
        with suppress(psutil.NoSuchProcess, KeyError):
            return [child for child in psutil.Process(self.running[name]).children() if is_alive(child.pid)]
        return []

    def remove_ended(self) -> list[str]:
        """Return the names of processes that ended by themselves, so that `start` restarts them."""
        ended = [name for name, pid in self.running.items() if not is_alive(pid)]
        for name in ended:
            del self.running[name]
        return ended

    def is_ready(self) -> bool:
        """Return whether every gateway is ready and every worker has a job process."""
        import httpx

        for name in self._gateway_names:
            with suppress(httpx.TransportError):
                url = f"http://127.0.0.1:{self._ports[name]}/readyz"
                if httpx.get(url, timeout=30, verify=NO_TLS).status_code == 200:
                    continue
            return False
        ready = {line["pid"] for line in self.find_log_lines("job_process_ready")}
        return all({child.pid for child in self.children(name)} & ready for name in self._worker_names)

    def find_log_lines(self, event: str) -> list[dict[str, Any]]:
        """Return the log lines of one event."""
        marked = f'"{event}"'
        return [json.loads(line) for line in self.read_log().splitlines() if marked in line and line.startswith("{")]

    def read_log(self) -> str:
        """Return the log."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    # ---- servers ----

    def restart_postgres(self, signal_number: int, seconds: float = 0.0) -> None:
        """End PostgreSQL with a signal, and start it some seconds later."""
        assert self.postgres is not None
        self.isolation.run_far(partial(self.postgres.kill, signal_number))
        time.sleep(seconds)
        self.isolation.run_far(self.postgres.start)

    def start_postgres(self) -> bool:
        """Start PostgreSQL if it ended, for example on a full disk. Return whether it had."""
        server = self.postgres
        if server is None or server.process is None or server.process.poll() is None:
            return False
        self.isolation.run_far(server.start)
        return True

    def stop_server(self, name: str, seconds: float) -> None:
        """Stop all processes of PostgreSQL or Redis for some seconds."""
        server = self.postgres if name == "postgres" else self.redis
        assert server is not None
        assert server.process is not None
        process = psutil.Process(server.process.pid)
        process.suspend()  # first, so that it starts no more processes
        family = [process, *process.children()]
        for each in family[1:]:
            with suppress(psutil.NoSuchProcess):
                each.suspend()
        time.sleep(seconds)
        for each in reversed(family):
            with suppress(psutil.NoSuchProcess):
                each.resume()

    def slow_redis(self, delay_seconds: float, seconds: float) -> None:
        """Delay all data to and from Redis for some seconds."""
        self._redis_relay.delay_seconds = delay_seconds
        time.sleep(seconds)
        self._redis_relay.delay_seconds = 0.0

    def kill_redis(self) -> None:
        """Kill Redis with SIGKILL and restart it empty."""
        assert self.redis is not None
        process = self.redis.process
        assert process is not None
        process.kill()
        process.wait()
        self.isolation.run_far(self.redis.start)

    def flush_redis(self) -> None:
        """Delete all data in Redis."""
        client = redis.Redis.from_url(self._redis_url)
        client.flushall()
        client.close()

    def cut_network(self, seconds: float) -> None:
        """Interrupt the network between the service and its servers for some seconds."""
        if self.isolation.set_network(is_cut=True):
            time.sleep(seconds)
            self.isolation.set_network(is_cut=False)
            return
        relays = [self._postgres_relay, self._redis_relay]
        for relay in relays:
            relay.pause_all(paused=True)
        time.sleep(seconds)
        for relay in relays:
            relay.pause_all(paused=False)

    def fill_disk(self, seconds: float) -> None:
        """Fill the disk for data for some seconds."""
        pids = list(self.running.values())
        if self.postgres is not None and self.postgres.process is not None:
            pids = [self.postgres.process.pid]
        self.isolation.fill_disk(pids)
        time.sleep(seconds)
        self.isolation.free_disk()
        if self.postgres is not None:
            time.sleep(0.2)  # PostgreSQL may be about to exit
            self.start_postgres()

    def shift_clock(self, name: str, seconds: float) -> None:
        """Set the offset of the clock of a process's machine, which replaces earlier offsets.

        With SQLite, all processes share one machine and one clock.
        """
        for each in [*self.gateways, *self.workers] if self.is_sqlite else [name]:
            new_file = self.steps / f"fresh.{each}"
            new_file.write_text(str(int(seconds * 1_000_000)))
            new_file.rename(self.steps / f"clock.{each}")

    def release_all(self) -> None:
        """Disarm all steps and continue all paused processes."""
        for pattern in ("arm.*", "paused.*"):
            for each in self.steps.glob(pattern):
                each.unlink(missing_ok=True)

    def close(self) -> None:
        """End all processes."""
        self.release_all()
        for pid in self.running.values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
                os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        while any(is_alive(pid) for pid in self.running.values()) and time.monotonic() < deadline:
            time.sleep(0.02)
        if self._fork_server is not None and self._fork_server.stdin is not None:
            self._fork_server.stdin.close()  # the fork server kills remaining processes
            try:
                self._fork_server.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._fork_server.kill()  # its processes end with it
        if self._fork_server is not None and self._fork_server.stdout is not None:
            self._fork_server.stdout.close()
        self.database.close()
        for relay in self._relays:
            relay.close()
        for server in (self.postgres, self.redis):
            if server is not None:
                self.isolation.run_far(server.stop)
        self.isolation.close()


def is_alive(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _replace_address(url: str, relay: Relay) -> str:
    """Return the URL of a server through its relay."""
    return make_url(url).set(host=relay.host, port=relay.port).render_as_string(hide_password=False)
