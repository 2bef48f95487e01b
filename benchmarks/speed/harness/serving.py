"""Processes of the service for a measurement, on a core and a database of their own."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import psutil  # type: ignore[import-untyped]

from benchmarks.output import MissingTool
from devservers.fleet import Member, create_schema, make_environment, start
from devservers.loopback import NO_TLS
from devservers.servers import PostgresServer

SERVER_CORE, LOAD_CORE = 0, 1  # the load generator and PostgreSQL share the second core
SLOW_DISK_SECONDS = 0.005
GATEWAY = ("gateway", "--host", "127.0.0.1", "--port", "0")
PATIENCE_SECONDS = 60.0

_SHIM = Path(__file__).with_name("slow_disk.c")


def can_pin() -> bool:
    """Return whether processes can be pinned to cores."""
    return shutil.which("taskset") is not None and len(os.sched_getaffinity(0)) > 1


def on_core(core: int | None) -> list[str]:
    """Return the prefix of a command that pins it to a core; empty if pinning is impossible."""
    return ["taskset", "--cpu-list", str(core)] if core is not None and can_pin() else []


@contextmanager
def pinned(core: int) -> Iterator[None]:
    """Pin this thread, and the threads it starts, to one core."""
    if not can_pin():
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def cpu_seconds(member: Member) -> float:
    """Return the CPU time of a process so far, including that of the kernel."""
    times = psutil.Process(member.process.pid).cpu_times()
    return float(times.user + times.system)


def peak_memory_mb(pid: int | str = "self") -> float:
    """Return the peak memory of a process in mebibytes, without that of its parent, which `ru_maxrss` includes."""
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) / 1024


@dataclass
class Served:
    """Gateways over one database, and a key."""

    key: str
    gateways: list[Member]
    database_url: str | None

    def client(self) -> httpx.Client:
        """Return a client of the first gateway, with the key."""
        return client_of(self.gateways[0].url, self.key)


def client_of(url: str, key: str) -> httpx.Client:
    """Return a client with a key."""
    return httpx.Client(
        base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=PATIENCE_SECONDS, verify=NO_TLS
    )


def document(response: httpx.Response) -> dict[str, Any]:
    """Return the JSON object of a response. Raise HTTPStatusError if the service refused."""
    found: dict[str, Any] = response.raise_for_status().json()
    return found


@contextmanager
def serving(
    database: str, *, n_gateways: int = 1, slow_disk: bool = False, core: int | None = SERVER_CORE, **settings: str
) -> Iterator[Served]:
    """Run gateways over a durable database of their own.

    Parameters
    ----------
    database : {'SQLite', 'PostgreSQL'}
    n_gateways : int
    slow_disk : bool
        Whether each flush of a commit takes SLOW_DISK_SECONDS longer.
    core : int or None
        Core of the gateways; PostgreSQL uses the other one. None pins nothing.
    settings : str
        Further settings `SFUMATO_*`.
    """
    with ExitStack() as opened:
        home = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="sfumato-speed-")))
        home.chmod(0o755)  # the user of PostgreSQL loads the shim
        slow = _slow_disk(home) if slow_disk else {}
        url: str | None = None
        if database == "PostgreSQL":
            postgres = PostgresServer(durable=True)
            opened.callback(postgres.stop)
            with patch.dict(os.environ, slow), pinned(LOAD_CORE) if core is not None else ExitStack():
                postgres.start()
            url = postgres.url()
        if url is not None:
            settings["database_url"] = url
        ours = make_environment(home, rate_per_key="0", **settings)
        key = create_schema(home, ours)
        gateways = []
        for number in range(n_gateways):
            theirs = ours | (slow if url is None else {})
            gateways.append(start(home, f"gateway-{number}", *GATEWAY, environment=theirs, prefix=on_core(core)))
            opened.callback(gateways[-1].stop)
        for gateway in gateways:
            gateway.wait_for_url()
        yield Served(key, gateways, url)


@contextmanager
def baseline_app(core: int | None = SERVER_CORE) -> Iterator[Member]:
    """Run the baseline application (`benchmarks.speed.harness.baseline_app`) on a core."""
    with tempfile.TemporaryDirectory(prefix="sfumato-speed-") as folder:
        environment = make_environment(Path(folder)) | {"PYTHONPATH": str(Path(__file__).parents[3])}
        module = "benchmarks.speed.harness.baseline_app"
        member = start(Path(folder), "baseline", environment=environment, module=module, prefix=on_core(core))
        try:
            member.wait_for_url()
            yield member
        finally:
            member.stop()


def _slow_disk(home: Path) -> dict[str, str]:
    """Compile the shim of a slow disk; return the environment that loads it. Raise MissingTool without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise MissingTool("a C compiler for the slow disk is missing", "apt-get install gcc")
    library = home / "slow_disk.so"
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(_SHIM), "-ldl"], check=True)
    library.chmod(0o755)
    return {"LD_PRELOAD": str(library), "SLOW_DISK_MICROSECONDS": str(round(SLOW_DISK_SECONDS * 1e6))}
