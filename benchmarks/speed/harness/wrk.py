"""Load generator `wrk`, with a script that gives each report its own id."""

import base64
import json
import os
import secrets
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from benchmarks.output import MissingTool
from benchmarks.speed.harness.serving import on_core

SCRIPT = Path(__file__).with_name("reports.lua")
COMMAND = "apt-get install wrk"
PATIENCE_SECONDS = 30
MICROSECONDS = 1e6


class LoadFailed(Exception):
    """A request was cut short or refused, so the run is invalid."""


@dataclass(frozen=True)
class Load:
    """Requests that are sent.

    Attributes
    ----------
    key : str
    media_type : str
    connections : int
        Open connections; each waits for its response.
    file : Path or None
        Body of every request; None sends single reports.
    value : bytes
        Value of each single report.
    """

    key: str
    media_type: str = "application/json"
    connections: int = 64
    file: Path | None = None
    value: bytes = b"\0"


@dataclass(frozen=True)
class LoadResult:
    """Number of responses, and percentiles of their time."""

    requests: int
    seconds: float
    p50_seconds: float
    p99_seconds: float

    @property
    def per_second(self) -> float:
        """Return the rate of responses."""
        return self.requests / self.seconds


def command() -> str:
    """Return the path of wrk. Raise MissingTool if it is not installed."""
    found = shutil.which("wrk")
    if found is None:
        raise MissingTool("the load generator wrk is missing", COMMAND)
    return found


def run(load: Load, url: str, seconds: float, *, core: int | None = None) -> LoadResult:
    """Send for some seconds. Raise LoadFailed if a request fails."""
    return end(begin(load, url, seconds, core=core))


def begin(load: Load, url: str, seconds: float, *, core: int | None = None) -> "subprocess.Popen[str]":
    """Start to send; several processes may run at once."""
    given = {
        "SPEED_KEY": load.key,  # all users can read arguments, only the same user the environment
        "SPEED_MEDIA_TYPE": load.media_type,
        "SPEED_VALUE": base64.b64encode(load.value).decode(),
        "SPEED_PREFIX": secrets.token_hex(8),
    }
    if load.file is not None:
        given["SPEED_FILE"] = str(load.file)
    sizes = ["--threads", "1", "--connections", str(load.connections), "--duration", f"{max(1, round(seconds))}s"]
    return subprocess.Popen(
        [*on_core(core), command(), *sizes, "--timeout", f"{PATIENCE_SECONDS}s", "--script", str(SCRIPT), url],
        env=os.environ | given,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(process: "subprocess.Popen[str]") -> LoadResult:
    """Wait for a run and return its result. Raise LoadFailed if a request failed."""
    out, error = process.communicate()
    lines = [line for line in out.splitlines() if line.startswith("{")]
    if process.returncode or not lines:
        raise LoadFailed(f"wrk ended with {process.returncode}: {(error or out)[-500:]}")
    result = json.loads(lines[-1])
    if result["broken"] or result["refused"]:
        raise LoadFailed(
            f"of {result['requests']} requests {result['refused']} were refused, {result['broken']} were cut short"
        )
    seconds, p50, p99 = (result[name] / MICROSECONDS for name in ("microseconds", "p50", "p99"))
    return LoadResult(result["requests"], seconds, p50, p99)
