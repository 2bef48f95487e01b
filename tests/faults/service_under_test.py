"""The shipped service in separate processes that a test kills and restarts at the same address."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import psutil
import pytest

from devservers.loopback import NO_TLS
from models.database.engine import Database
from models.identity import keys, tenants
from models.tables.identity import Scope

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 240.0


def few_and_many_kills(database_kind: str) -> pytest.MarkDecorator:
    """Run a test with three kills on this kind of database, and with 20 kills on each kind before a release."""
    few = pytest.param(database_kind, 3, marks=pytest.mark.slow)
    release = [pytest.mark.release, pytest.mark.timeout(2400)]
    many = [pytest.param(kind, 20, marks=release) for kind in ("sqlite", "postgresql")]
    return pytest.mark.parametrize(("database_kind", "n_kills"), [few, *many], indirect=["database_kind"])


class ServiceUnderTest:
    """One gateway and some workers on a migrated database, with an admin key."""

    def __init__(self, database_url: str, scratch: Path, *, n_workers: int) -> None:
        self._port_socket = socket.socket()  # reserves the port while the gateway is down
        self._port_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._port_socket.bind(("127.0.0.1", 0))
        self.port: int = self._port_socket.getsockname()[1]
        self._log = scratch / "service.log"
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("SFUMATO_")}
        self._environment |= {
            "SFUMATO_DATABASE_URL": database_url,
            "SFUMATO_HOME": str(scratch),
            "SFUMATO_LEASE_SECONDS": "1",
            "SFUMATO_WARM_KERNELS": "false",
            "SFUMATO_SOURCE_LIMIT": "none",  # the datasets of a test have one name
            "SFUMATO_DIE_WITH_PARENT": str(os.getpid()),
        }
        self.database = Database(database_url, pool_size=2)
        with self.database.transaction() as session:
            now = self.database.clock()
            owner = tenants.get_or_create_tenant(session, tenants.FIRST_TENANT, now=now)
            _, secret = keys.create_key(session, owner.id, name="test", scopes=[Scope.ADMIN], now=now)
        self._http = self.client(secret)
        self.secret = secret
        self.gateway: subprocess.Popen[bytes] | None = None
        self.workers: list[subprocess.Popen[bytes]] = []
        self._n_workers = n_workers

    def client(self, secret: str) -> httpx.Client:
        """Return an HTTP client of the gateway."""
        headers = {"Authorization": f"Bearer {secret}"}
        return httpx.Client(base_url=f"http://127.0.0.1:{self.port}", headers=headers, timeout=60, verify=NO_TLS)

    def start(self) -> None:
        """Start all processes that do not run."""
        if self.gateway is None:
            self.gateway = self._start_process("service.cli", "gateway", "--port", str(self.port))
            wait_until(self._is_ready)
        while len(self.workers) < self._n_workers:
            self.workers.append(self._start_process("workers"))

    def _start_process(self, *command: str) -> "subprocess.Popen[bytes]":
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", *command], cwd=ROOT, env=self._environment, stdout=log, stderr=log
            )

    def _is_ready(self) -> bool:
        with suppress(httpx.TransportError):
            return self._http.get("/readyz").status_code == 200
        assert self.gateway is not None
        assert self.gateway.poll() is None, self._log.read_text()
        return False

    def kill_gateway(self) -> None:
        """Kill the gateway with SIGKILL."""
        assert self.gateway is not None
        self.gateway.kill()
        self.gateway.wait()
        self.gateway = None

    def kill_workers(self) -> None:
        """Kill all supervisors and job processes with SIGKILL."""
        family = [psutil.Process(worker.pid) for worker in self.workers]
        family += [child for worker in family for child in worker.children()]
        for member in family:
            with suppress(psutil.NoSuchProcess):
                member.kill()
        for worker in self.workers:
            worker.wait()
        self.workers = []

    def kill_supervisor(self) -> None:
        """Kill one supervisor with SIGKILL; the kernel ends its job process."""
        worker = self.workers.pop()
        worker.kill()
        worker.wait()

    def children(self) -> list[psutil.Process]:
        """Return the job processes."""
        processes = [child for worker in self.workers for child in psutil.Process(worker.pid).children()]
        return [child for child in processes if _is_job_process(child)]

    def ready_children(self) -> list[psutil.Process]:
        """Return the job processes if every worker has a warm one, else none."""
        lines = [json.loads(line) for line in self._log.read_text().splitlines() if '"job_process_ready"' in line]
        warm = {line["pid"] for line in lines}
        children = [child for child in self.children() if child.pid in warm]
        return children if len(children) == self._n_workers else []

    def stop(self) -> None:
        """Stop all processes."""
        for process in (self.gateway, *self.workers):
            if process is not None:
                process.send_signal(signal.SIGTERM)
        for process in (self.gateway, *self.workers):
            if process is not None:
                process.wait()
        self._http.close()
        self._port_socket.close()
        self.database.close()

    def call(self, method: str, path: str, **body: Any) -> Any:
        """Return the JSON of a successful request. Repeat it with one idempotency key until there is a response."""
        headers = {"Idempotency-Key": uuid4().hex} if method == "POST" else {}

        def try_request() -> httpx.Response | None:
            with suppress(httpx.TransportError):
                response = self._http.request(method, path, headers=headers, json=body or None)
                return None if response.status_code >= 500 else response
            return None

        response: httpx.Response = wait_until(try_request)
        assert response.is_success, response.text
        return response.json()


def _is_job_process(child: psutil.Process) -> bool:
    """Return whether a process is a running job process."""
    with suppress(psutil.NoSuchProcess):  # also raised for a zombie
        return "spawn_main" in " ".join(child.cmdline())
    return False


@contextmanager
def service(database_url: str, scratch: Path, *, n_workers: int = 1) -> Iterator[ServiceUnderTest]:
    """Run a service during a test."""
    under_test = ServiceUnderTest(database_url, scratch, n_workers=n_workers)
    try:
        under_test.start()
        yield under_test
    finally:
        under_test.stop()


def wait_until(condition: Any, timeout: float = PATIENCE_SECONDS) -> Any:
    """Return the first true result of `condition()`."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if result := condition():
            return result
        time.sleep(0.05)
    raise AssertionError(f"the condition was not met within {timeout} s")
