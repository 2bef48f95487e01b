"""The real service in processes of its own, killed and begun again at the same address."""

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

from models import tenant
from models.db import Database
from models.tenant import Scope

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 240.0


class ServiceUnderTest:
    """One gateway and some workers over a migrated database, with an admin key."""

    def __init__(self, database_url: str, scratch: Path, *, n_workers: int) -> None:
        self._held = socket.socket()  # bound and never listening: nobody is given the port while the gateway is down
        self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._held.bind(("127.0.0.1", 0))
        self.port: int = self._held.getsockname()[1]
        self._log = scratch / "service.log"
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("SFUMATO_")}
        self._environment |= {
            "SFUMATO_DATABASE_URL": database_url,
            "SFUMATO_HOME": str(scratch),
            "SFUMATO_LEASE_SECONDS": "1",
            "SFUMATO_WARM_KERNELS": "false",
            "SFUMATO_DIE_WITH_PARENT": str(os.getpid()),
        }
        self.database = Database(database_url, pool_size=2)
        with self.database.transaction() as session:
            now = self.database.clock()
            owner = tenant.get_or_create_tenant(session, tenant.FIRST_TENANT, now=now)
            _, secret = tenant.create_key(session, owner.id, name="test", scopes=[Scope.ADMIN], now=now)
        self._http = self.client(secret)
        self.secret = secret
        self.gateway: subprocess.Popen[bytes] | None = None
        self.workers: list[subprocess.Popen[bytes]] = []
        self._n_workers = n_workers

    def client(self, secret: str) -> httpx.Client:
        """An HTTP client of it."""
        headers = {"Authorization": f"Bearer {secret}"}
        return httpx.Client(base_url=f"http://127.0.0.1:{self.port}", headers=headers, timeout=60)

    def start(self) -> None:
        """Begin what does not run."""
        if self.gateway is None:
            self.gateway = self._begin("service.cli", "gateway", "--port", str(self.port))
            until(self._answers)
        while len(self.workers) < self._n_workers:
            self.workers.append(self._begin("workers"))

    def _begin(self, *command: str) -> "subprocess.Popen[bytes]":
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", *command], cwd=ROOT, env=self._environment, stdout=log, stderr=log
            )

    def _answers(self) -> bool:
        with suppress(httpx.TransportError):
            return self._http.get("/readyz").status_code == 200
        assert self.gateway is not None
        assert self.gateway.poll() is None, self._log.read_text()
        return False

    def kill_gateway(self) -> None:
        """SIGKILL."""
        assert self.gateway is not None
        self.gateway.kill()
        self.gateway.wait()
        self.gateway = None

    def kill_workers(self) -> None:
        """SIGKILL to every worker and every child, in one breath."""
        family = [psutil.Process(worker.pid) for worker in self.workers]
        family += [child for worker in family for child in worker.children()]
        for member in family:
            with suppress(psutil.NoSuchProcess):
                member.kill()
        for worker in self.workers:
            worker.wait()
        self.workers = []

    def kill_supervisor(self) -> None:
        """SIGKILL to one supervisor; the kernel ends its child."""
        worker = self.workers.pop()
        worker.kill()
        worker.wait()

    def children(self) -> list[psutil.Process]:
        """The computing processes."""
        found = [child for worker in self.workers for child in psutil.Process(worker.pid).children()]
        return [child for child in found if _computes(child)]

    def ready_children(self) -> list[psutil.Process]:
        """The computing processes, once every worker's is warm; none before."""
        lines = [json.loads(line) for line in self._log.read_text().splitlines() if '"child_ready"' in line]
        warm = {line["pid"] for line in lines}
        children = [child for child in self.children() if child.pid in warm]
        return children if len(children) == self._n_workers else []

    def stop(self) -> None:
        """End everything."""
        for process in (self.gateway, *self.workers):
            if process is not None:
                process.send_signal(signal.SIGTERM)
        for process in (self.gateway, *self.workers):
            if process is not None:
                process.wait()
        self._http.close()
        self._held.close()
        self.database.close()

    def call(self, method: str, path: str, **body: Any) -> Any:
        """The JSON of a request that succeeded, sent again under one idempotency key while nobody answers."""
        headers = {"Idempotency-Key": uuid4().hex} if method == "POST" else {}

        def answered() -> httpx.Response | None:
            with suppress(httpx.TransportError):
                response = self._http.request(method, path, headers=headers, json=body or None)
                return None if response.status_code >= 500 else response
            return None

        response: httpx.Response = until(answered)
        assert response.is_success, response.text
        return response.json()


def _computes(child: psutil.Process) -> bool:
    """Whether a worker's child is its computing process, and not one that was just killed."""
    with suppress(psutil.NoSuchProcess):  # a zombie, too
        return "spawn_main" in " ".join(child.cmdline())
    return False


@contextmanager
def service(database_url: str, scratch: Path, *, n_workers: int = 1) -> Iterator[ServiceUnderTest]:
    """A running service, ended with the test."""
    under_test = ServiceUnderTest(database_url, scratch, n_workers=n_workers)
    try:
        under_test.start()
        yield under_test
    finally:
        under_test.stop()


def until(what: Any, timeout: float = PATIENCE_SECONDS) -> Any:
    """What `what()` says as soon as that is true."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if said := what():
            return said
        time.sleep(0.05)
    raise AssertionError(f"not within {timeout} s")
