"""Cold start: time until the gateway, the command line and the worker are usable."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import httpx
import psutil  # type: ignore[import-untyped]

from benchmarks.speed.harness import serving
from benchmarks.speed.harness.measurement import Measurement, Setting, alternate, compare
from devservers.fleet import make_environment, run, start
from devservers.loopback import NO_TLS

IMPORT_SECONDS, MEMORY_MB, HELP_SECONDS = 1.0, 120.0, 0.3
LISTEN_PAUSE_SECONDS = 0.005
NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"  # with it, each process would compile our modules, which an installation has

# Imports of `sfumato gateway` before it listens, without the start of the interpreter.
_IMPORT = """
import time
began = time.perf_counter()
import service.cli.main
from runtime.process import gc_paused
with gc_paused():
    import service.app, runtime.logging, service.server.server
print(time.perf_counter() - began)
"""
_WARM = """
import time
began = time.perf_counter()
from workers import job_runner
from workers.kernels import warmup
warmup.warm_up()
print(time.perf_counter() - began)
"""


def rows(setting: Setting) -> Iterator[Measurement]:
    """Yield the gateway, the command line and the worker."""
    turns = setting.turns
    yield _against_limit("gateway, import", _seconds_of(_IMPORT), IMPORT_SECONDS, turns)
    setting.progress("a gateway's start")
    yield from _start(turns)
    yield _against_limit("`sfumato --help`", _help, HELP_SECONDS, turns)
    if not setting.quick:
        setting.progress("a worker's kernels, compiled and from the cache")
        yield _warm_up()


def _against_limit(name: str, ours: Callable[[], float], limit: float, turns: int) -> Measurement:
    ours()  # compiles the modules, and loads the files into the page cache
    return compare(name, f"{limit:g} s", alternate(ours, lambda: limit, turns), bar=1.0)


def _with_bytecode(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name != NO_BYTECODE}


def _seconds_of(code: str, environment: dict[str, str] | None = None) -> Callable[[], float]:
    return lambda: float(_python("-c", code, environment=environment))


def _python(*arguments: str, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        env=_with_bytecode(environment or os.environ),
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def _help() -> float:
    began = time.perf_counter()
    _python("-P", "-m", "service.cli", "--help")
    return time.perf_counter() - began


def _start(turns: int) -> Iterator[Measurement]:
    """Yield the time from the command to the first response, and the memory of the process then."""
    with tempfile.TemporaryDirectory(prefix="sfumato-speed-") as folder:
        home = Path(folder)
        environment = _with_bytecode(make_environment(home, rate_per_key="0"))
        run(home, "migrate", environment=environment)
        memory: list[float] = []

        def start_once() -> float:
            began = time.perf_counter()
            gateway = start(home, "gateway", *serving.GATEWAY, environment=environment)
            try:
                url = gateway.wait_for_url(LISTEN_PAUSE_SECONDS)
                httpx.get(f"{url}/readyz", timeout=serving.PATIENCE_SECONDS, verify=NO_TLS).raise_for_status()
                took = time.perf_counter() - began
                memory.append(psutil.Process(gateway.process.pid).memory_info().rss / (1 << 20))
            finally:
                gateway.stop()
            return took

        start_once()
        measured = alternate(start_once, _interpreter, turns)
        yield compare("gateway, from the command to its first response", "an empty Python", measured)
        limits = (memory[-turns:], [MEMORY_MB] * turns)
        yield compare("gateway, memory after its first response", f"{MEMORY_MB:g} MB", limits, unit="MB", bar=1.0)


def _interpreter() -> float:
    began = time.perf_counter()
    _python("-c", "")
    return time.perf_counter() - began


def _warm_up() -> Measurement:
    """Compare the first start of a worker, which compiles kernels, with later ones, which load them from a cache."""
    with tempfile.TemporaryDirectory(prefix="sfumato-speed-") as cache:
        environment = os.environ | {"NUMBA_CACHE_DIR": cache}
        warm_up = _seconds_of(_WARM, environment)
        compiled, cached = warm_up(), warm_up()
    return compare("worker, warm-up from the cache", "the same, everything compiled", ([cached], [compiled]))
