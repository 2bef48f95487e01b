"""What a reader has open while they go through a page: one shell and one Python, in a directory of their own."""

import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

from tests.blocks import Block

_PYTHON = """
import os, sys, traceback
given = {"__name__": "__main__"}
for line in sys.stdin:
    path = line.rstrip()
    try:
        exec(compile(open(path).read(), os.path.basename(path), "exec"), given)
    except BaseException:
        traceback.print_exc()
        sys.exit(1)
    os.write(int(sys.argv[1]), b".")
"""


class Interpreter:
    """A program that is told one piece of code after the other, and keeps what they leave."""

    def __init__(self, command: list[str], tell: str, place: Path, environment: dict[str, str], out: IO[bytes]) -> None:
        self._tell = tell
        self._acknowledged, acknowledging = os.pipe()
        self._process = subprocess.Popen(
            [each.replace("{fd}", str(acknowledging)) for each in command],
            cwd=place,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=out,
            pass_fds=[acknowledging],
        )
        self._fd = acknowledging
        os.close(acknowledging)

    def run(self, path: Path, seconds: float) -> bool:
        """Whether the code in a file ran to its end."""
        assert self._process.stdin is not None
        self._process.stdin.write(self._tell.format(path=path, fd=self._fd).encode())
        self._process.stdin.flush()
        ready, _, _ = select.select([self._acknowledged], [], [], seconds)
        return bool(ready and os.read(self._acknowledged, 1))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        os.close(self._acknowledged)


class Session:
    """Runs a page's blocks in order; `said` is all that they printed.

    Parameters
    ----------
    replaced : dict of str to str
        What a page calls things, and what they are here, such as the service's address.
    """

    def __init__(self, place: Path, environment: dict[str, str], replaced: dict[str, str]) -> None:
        self.place = place
        self._replaced = replaced
        self._scratch = place / ".blocks"
        self._scratch.mkdir()
        self._said = (self._scratch / "said").open("wb")
        own = environment | {"HOME": str(place), "PYTHONUNBUFFERED": "1"}
        bash = ["bash", "--noprofile", "--norc", "-euo", "pipefail"]
        self._shell = Interpreter(bash, "source {path} </dev/null\nprintf . >&{fd}\n", place, own, self._said)
        python = [sys.executable, "-c", _PYTHON, "{fd}"]
        self._python = Interpreter(python, "{path}\n", place, own, self._said)

    def run(self, block: Block, seconds: float = 600.0) -> None:
        """Run a block of shell or Python."""
        text = block.text
        for theirs, ours in self._replaced.items():
            text = text.replace(theirs, ours)
        path = self._scratch / f"{block.page.replace('/', '-')}-{block.line}"
        path.write_text("\n" * (block.line - 1) + text)  # so that a traceback has the page's lines
        interpreter = self._python if block.language == "python" else self._shell
        before = len(self.said)
        began = time.monotonic()
        ran = interpreter.run(path, seconds)
        took = time.monotonic() - began
        assert ran, f"{block.name} failed after {took:.0f} s\n{block.text}\nprinted:\n{self.said[before:]}"

    @property
    def said(self) -> str:
        self._said.flush()
        return (self._scratch / "said").read_text()

    def close(self) -> None:
        self._shell.close()
        self._python.close()
        self._said.close()
