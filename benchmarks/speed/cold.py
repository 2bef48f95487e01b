"""Cold start: what it takes until the gateway, the command line and the worker can be used."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx

from benchmarks.speed import serving
from benchmarks.speed.row import Row, Setting, compare, in_turns

GROUP = "cold"
IMPORT_SECONDS, MEMORY_MB, HELP_SECONDS = 1.0, 120.0, 0.3
LISTEN_PAUSE_SECONDS = 0.005

# What `sfumato gateway` imports before it listens, timed without the interpreter's own start.
_IMPORT = """
import time
began = time.perf_counter()
import service.cli
from models.loading import loading
with loading():
    import service.app, service.logs, service.server
print(time.perf_counter() - began)
"""
_WARM = """
import time
began = time.perf_counter()
from workers import runner, warm
warm.warm_up()
print(time.perf_counter() - began)
"""


def rows(setting: Setting) -> Iterator[Row]:
    """The gateway, the command line, the worker."""
    turns = setting.turns
    yield _held_to("gateway, import", _seconds_of(_IMPORT), IMPORT_SECONDS, turns, bar=1.0)
    setting.progress("a gateway's start")
    yield from _start(turns)
    yield _held_to("`sfumato --help`", _help, HELP_SECONDS, turns, bar=1.0)
    if not setting.quick:
        setting.progress("a worker's kernels, compiled and from the cache")
        yield _warm_up()


def _held_to(name: str, ours: Callable[[], float], limit: float, turns: int, *, bar: float | None) -> Row:
    ours()  # the files are in the page cache from now on
    return compare(GROUP, name, f"{limit:g} s", in_turns(ours, lambda: limit, turns), bar=bar)


def _seconds_of(code: str, environment: dict[str, str] | None = None) -> Callable[[], float]:
    return lambda: float(_python("-c", code, environment=environment))


def _python(*arguments: str, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        env=environment or dict(os.environ),
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


def _start(turns: int) -> Iterator[Row]:
    """From the command to the first answer, and what the process holds then."""
    with tempfile.TemporaryDirectory(prefix="sfumato-speed-") as folder:
        home = Path(folder)
        environment = serving.environment(home)
        serving.command(environment, home, "migrate")
        held: list[float] = []

        def answer() -> float:
            began = time.perf_counter()
            process = serving.begin(
                home, "gateway", ["service.cli", "gateway", "--host", "127.0.0.1", "--port", "0"], environment
            )
            try:
                url = _listens(process)
                assert httpx.get(f"{url}/readyz", timeout=serving.PATIENCE_SECONDS).status_code == httpx.codes.OK
                took = time.perf_counter() - began
                held.append(process.memory_mb())
            finally:
                process.stop()
            return took

        answer()
        measured = in_turns(answer, _interpreter, turns)
        yield compare(GROUP, "gateway, from the command to its first answer", "an empty Python", measured)
        limits = (held[-turns:], [MEMORY_MB] * turns)
        yield compare(GROUP, "gateway, memory after its first answer", f"{MEMORY_MB:g} MB", limits, unit="MB", bar=1.0)


def _listens(process: serving.Process) -> str:
    """Its address; looked for more often than `await_url` does."""
    while not process.out.read_text().endswith("\n"):
        assert process.process.poll() is None, process.log()
        time.sleep(LISTEN_PAUSE_SECONDS)
    return process.await_url()


def _interpreter() -> float:
    began = time.perf_counter()
    _python("-c", "")
    return time.perf_counter() - began


def _warm_up() -> Row:
    """A worker's first start on a machine against its later ones: what is compiled stays in a cache."""
    with tempfile.TemporaryDirectory(prefix="sfumato-speed-") as cache:
        environment = os.environ | {"NUMBA_CACHE_DIR": cache}
        warm_up = _seconds_of(_WARM, environment)
        compiled, cached = warm_up(), warm_up()
    return compare(GROUP, "worker, warm-up from the cache", "the same, everything compiled", ([cached], [compiled]))
