"""The load generator: `wrk`, with a script that gives each report an id of its own."""

import base64
import json
import os
import secrets
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from benchmarks.speed.row import Missing
from benchmarks.speed.serving import on_core

SCRIPT = Path(__file__).with_name("reports.lua")
COMMAND = "apt-get install wrk"
PATIENCE_SECONDS = 30
MICROSECONDS = 1e6


class LoadFailed(Exception):
    """A request broke off or was refused, so the run means nothing."""


@dataclass(frozen=True)
class Load:
    """What is sent, by whom.

    Attributes
    ----------
    key : str
    media_type : str
    connections : int
        Open at once; each waits for its answer.
    file : Path or None
        The body of every request; None sends single reports.
    value : bytes
        Of each single report.
    """

    key: str
    media_type: str = "application/json"
    connections: int = 64
    file: Path | None = None
    value: bytes = b"\0"


@dataclass(frozen=True)
class Told:
    """What came of it: requests that were answered, and in what time the middle and the slowest were."""

    requests: int
    seconds: float
    p50_seconds: float
    p99_seconds: float
    refused: int

    @property
    def per_second(self) -> float:
        return self.requests / self.seconds


def command() -> str:
    """Where it is. Raises Missing."""
    found = shutil.which("wrk")
    if found is None:
        raise Missing("the load generator wrk is not there", COMMAND)
    return found


def run(load: Load, url: str, seconds: float, *, core: int | None = None, may_refuse: bool = False) -> Told:
    """Send for so long. Raises LoadFailed."""
    return end(begin(load, url, seconds, core=core), may_refuse=may_refuse)


def begin(load: Load, url: str, seconds: float, *, core: int | None = None) -> "subprocess.Popen[str]":
    """Begin to send; several may run at once."""
    given = {
        "SPEED_KEY": load.key,  # the environment is for the same user alone, arguments are for everybody
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


def end(process: "subprocess.Popen[str]", *, may_refuse: bool = False) -> Told:
    """What came of a run; waits for it. Raises LoadFailed."""
    out, error = process.communicate()
    lines = [line for line in out.splitlines() if line.startswith("{")]
    if process.returncode or not lines:
        raise LoadFailed(f"wrk ended with {process.returncode}: {(error or out)[-500:]}")
    told = json.loads(lines[-1])
    if told["broken"] or (told["refused"] and not may_refuse):
        raise LoadFailed(f"of {told['requests']} requests {told['refused']} were refused, {told['broken']} broke off")
    return Told(
        told["requests"],
        told["microseconds"] / MICROSECONDS,
        told["p50"] / MICROSECONDS,
        told["p99"] / MICROSECONDS,
        told["refused"],
    )
