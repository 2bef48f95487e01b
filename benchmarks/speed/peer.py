"""Other people's libraries, in a Python of their own that lives through a run, so that turns alternate with ours.

    with Peer(Path(__file__).parent / "kernels_peers.py", threads=1) as peer:
        peer.send("points", points)                            # once; it stays there
        answer = peer.call("k_means", "points", clusters=8)    # answer.seconds, answer.value

The file is run by `peer_loop.py` in the environment of peers.lock and imports nothing of ours. Its functions take
arrays by position and plain values by keyword, and return an array, a tuple of arrays, a plain value or None. Seconds
are those of the function alone, measured in that process.
"""

import json
import os
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from benchmarks.speed.row import Missing

ROOT = Path(__file__).parent.parent.parent
PYTHON = ROOT / "build" / "peers" / ".venv" / "bin" / "python"
COMMAND = "make build/peers/.ready"
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
END_SECONDS = 10.0

_LOOP = Path(__file__).with_name("peer_loop.py")


class PeerFailed(Exception):
    """The function raised, or its process ended; carries the traceback."""


@dataclass(frozen=True)
class Answer:
    """What a call came to.

    Attributes
    ----------
    seconds : float
        Of the function alone.
    value : object
        An array, a tuple of arrays, a plain value or None.
    """

    seconds: float
    value: Any


class Peer:
    """A process that has a file's functions.

    Parameters
    ----------
    functions : Path
        The file.
    threads : int
        What its libraries may use.
    python : Path, optional
        Another environment's interpreter.

    Raises
    ------
    Missing
        The environment was not made.
    """

    def __init__(self, functions: Path, *, threads: int = 1, python: Path = PYTHON) -> None:
        if not python.exists():
            raise Missing("the environment of the peers is not there", COMMAND)
        self._functions, self._python, self._threads = functions, python, threads
        self._folder = tempfile.TemporaryDirectory(prefix="sfumato-peer-")
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        environment = os.environ | dict.fromkeys(THREAD_VARIABLES, str(self._threads)) | {"MPLBACKEND": "Agg"}
        environment.pop("PYTHONPATH", None)
        self._process = subprocess.Popen(
            [str(self._python), "-P", "-W", "ignore", str(_LOOP), str(self._functions), self._folder.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        process = self._process
        if process is not None:
            assert process.stdin is not None  # it was asked for
            assert process.stdout is not None
            with suppress(OSError):
                process.stdin.close()
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()
        self._process = None
        self._folder.cleanup()

    def send(self, name: str, array: "np.ndarray[Any, Any]") -> None:
        """Have the process hold an array under a name; one sent before under it is gone."""
        path = Path(self._folder.name) / "sent.npy"
        np.save(path, array, allow_pickle=False)
        self._ask({"send": name, "path": str(path)})
        path.unlink()

    def call(self, function: str, *names: str, **plain: Any) -> Answer:
        """Call a function with arrays that were sent and plain values. Raises PeerFailed."""
        told = self._ask({"call": function, "names": names, "plain": plain})
        arrays = [self._taken(Path(path)) for path in told["arrays"]]
        value: Any = told["plain"]
        if told["kind"] == "array":
            (value,) = arrays
        elif told["kind"] == "tuple":
            value = tuple(arrays)
        return Answer(told["seconds"], value)

    def version(self, package: str) -> str:
        """Of a package it has, by its name in the registry."""
        return str(self._ask({"version": package})["plain"])

    def _taken(self, path: Path) -> "np.ndarray[Any, Any]":
        array = np.load(path, allow_pickle=False)
        path.unlink()
        return np.asarray(array)

    def _ask(self, order: dict[str, Any]) -> dict[str, Any]:
        if self._process is None:
            raise PeerFailed("a peer is used within its `with`")
        assert self._process.stdin is not None  # it was asked for
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # how it ended is said below
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise PeerFailed(f"{self._functions.name} ended with status {self._process.wait()}")
        told: dict[str, Any] = json.loads(line)
        if "error" in told:
            raise PeerFailed(told["error"])
        return told
