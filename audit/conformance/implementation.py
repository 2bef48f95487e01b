"""Implementation under test: a process that answers one line of JSON with one line of JSON."""

import json
import os
import resource
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from typing import IO, Any, cast

PROTOCOL = 1
START_SECONDS = 120.0  # limit for the first answer, which includes the start of the process
ANSWER_SECONDS = 60.0  # limit for each other answer


class ProtocolError(Exception):
    """An answer that is missing, late or not in the protocol."""


def _keep_alive() -> None:
    """Let a write above the limit of `fill_disk` fail. Otherwise it ends the process."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


class Implementation:
    """A running implementation.

    Parameters
    ----------
    command : sequence of str
        Program and arguments.
    disk_full : bool
        Let each write to a file fail, as on a full disk.
    """

    def __init__(self, command: Sequence[str], *, disk_full: bool = False) -> None:
        self._process = subprocess.Popen(
            [*command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            preexec_fn=_keep_alive,
        )
        self._input, self._output = cast(IO[bytes], self._process.stdin), cast(IO[bytes], self._process.stdout)
        if disk_full:
            self.fill_disk()
        self._n_calls = 0
        self._unread = b""

    def __enter__(self) -> "Implementation":
        return self

    def __exit__(self, *_error: object) -> None:
        self.kill()

    def fill_disk(self) -> None:
        """Let each later write to a file fail, as on a full disk."""
        resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (0, 0))  # a larger limit would shorten files

    def kill(self) -> None:
        """End the process with SIGKILL."""
        self._process.kill()
        self._process.communicate()

    def call(self, name: str, **members: Any) -> dict[str, Any]:
        """Send a request and return the answer: an object with `result` or `error`. Raise ProtocolError."""
        return self.receive(self.send(name, **members))

    def send(self, name: str, **members: Any) -> int:
        """Send a request. Return its number for `receive`."""
        self._n_calls += 1
        line = json.dumps({"id": self._n_calls, "call": name, **members})
        try:
            self._input.write(line.encode() + b"\n")
            self._input.flush()
        except BrokenPipeError:
            raise ProtocolError(f"the implementation ended before the call {name}") from None
        return self._n_calls

    def receive(self, number: int) -> dict[str, Any]:
        """Return the answer to a request."""
        line = self._read_line(START_SECONDS if number == 1 else ANSWER_SECONDS)
        try:
            answer = json.loads(line)
        except ValueError:
            raise ProtocolError(f"an answer is not JSON: {line[:200]!r}") from None
        if not isinstance(answer, dict) or answer.get("id") != number or ("result" in answer) == ("error" in answer):
            raise ProtocolError(f"an answer must have the id {number}, and a result or an error: {line[:200]!r}")
        return answer

    def _read_line(self, seconds: float) -> bytes:
        output, deadline = self._output.fileno(), time.monotonic() + seconds
        while b"\n" not in self._unread:
            if not select.select([output], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise ProtocolError(f"the implementation did not answer within {seconds:g} s")
            chunk = os.read(output, 1 << 16)
            if not chunk:
                raise ProtocolError(f"the implementation ended with status {self._process.wait()}")
            self._unread += chunk
        line, self._unread = self._unread.split(b"\n", 1)
        return line
