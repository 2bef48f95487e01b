"""Peers: other libraries in a Python process of their own, which lives through a run so that turns alternate.

    with Peer(threads=1) as peer:
        peer.send("points", points)                            # stays in the process
        result = peer.call("k_means", "points", clusters=8)    # result.seconds, result.value

`peer_loop.py` runs the file in the environment of peers.lock; the file imports nothing of ours. Its functions take
arrays by position and plain values by keyword. They return an array, a tuple of arrays, a plain value or None. The
process measures the seconds of the function alone.
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

from benchmarks.output import MissingTool

PYTHON = Path(__file__).parents[2] / "build" / "peers" / ".venv" / "bin" / "python"
COMMAND = "make build/peers/.ready"
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
END_SECONDS = 10.0

FUNCTIONS = Path(__file__).with_name("peer_functions.py")
_LOOP = Path(__file__).with_name("peer_loop.py")


class PeerFailed(Exception):
    """A function raised an exception, which the message has, or its process ended."""


@dataclass(frozen=True)
class PeerResult:
    """The result of a call.

    Attributes
    ----------
    seconds : float
        Time of the function alone.
    value : object
        An array, a tuple of arrays, a plain value or None.
    """

    seconds: float
    value: Any


class Peer:
    """A process with the functions of a file.

    Parameters
    ----------
    functions : Path, optional
        File of functions.
    threads : int
        Number of threads of its libraries.
    python : Path, optional
        Interpreter; that of peers.lock by default.

    Raises
    ------
    MissingTool
        The environment does not exist.
    """

    def __init__(self, functions: Path = FUNCTIONS, *, threads: int = 1, python: Path = PYTHON) -> None:
        if not python.exists():
            raise MissingTool("the environment of the peers is missing", COMMAND)
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
            assert process.stdin is not None  # opened as a pipe
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
        """Store an array in the process under a name, in place of an earlier one."""
        path = Path(self._folder.name) / "sent.npy"
        np.save(path, array, allow_pickle=False)
        self._request({"send": name, "path": str(path)})
        path.unlink()

    def call(self, function: str, *names: str, **plain: Any) -> PeerResult:
        """Call a function with stored arrays and plain values. Raise PeerFailed if it fails."""
        response = self._request({"call": function, "names": names, "plain": plain})
        arrays = [self._read_array(Path(path)) for path in response["arrays"]]
        value: Any = response["plain"]
        if response["kind"] == "array":
            (value,) = arrays
        elif response["kind"] == "tuple":
            value = tuple(arrays)
        return PeerResult(response["seconds"], value)

    def version(self, package: str) -> str:
        """Return the version of an installed package."""
        return str(self._request({"version": package})["plain"])

    def _read_array(self, path: Path) -> "np.ndarray[Any, Any]":
        array = np.load(path, allow_pickle=False)
        path.unlink()
        return np.asarray(array)

    def _request(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._process is None:
            raise PeerFailed("use a peer within its `with` block")
        assert self._process.stdin is not None  # opened as a pipe
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # the missing response is reported below
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise PeerFailed(f"{self._functions.name} ended with status {self._process.wait()}")
        response: dict[str, Any] = json.loads(line)
        if "error" in response:
            raise PeerFailed(response["error"])
        return response
