"""Sessions that run the code blocks of a page: one shell and one Python process in a temporary directory."""

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
    """An interpreter process that runs blocks of code one after another and keeps its state."""

    def __init__(
        self, command: list[str], template: str, place: Path, environment: dict[str, str], out: IO[bytes]
    ) -> None:
        self._template = template
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
        """Run the code in a file. Return whether it succeeded."""
        assert self._process.stdin is not None
        self._process.stdin.write(self._template.format(path=path, fd=self._fd).encode())
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
    """Runs the blocks of a page in order; `output` contains what they printed.

    Parameters
    ----------
    replaced : dict of str to str
        Texts of a page, and their replacements in this test, such as the address of the service.
    """

    def __init__(self, place: Path, environment: dict[str, str], replaced: dict[str, str]) -> None:
        self.place = place
        self._replaced = replaced
        self._scratch = place / ".blocks"
        self._scratch.mkdir()
        self._output = (self._scratch / "output").open("wb")
        own = environment | {"HOME": str(place), "PYTHONUNBUFFERED": "1"}
        bash = ["bash", "--noprofile", "--norc", "-euo", "pipefail"]
        self._shell = Interpreter(bash, "source {path} </dev/null\nprintf . >&{fd}\n", place, own, self._output)
        python = [sys.executable, "-c", _PYTHON, "{fd}"]
        self._python = Interpreter(python, "{path}\n", place, own, self._output)

    def run(self, block: Block, seconds: float = 600.0) -> None:
        """Run a block of shell or Python."""
        text = block.text
        for old, new in self._replaced.items():
            text = text.replace(old, new)
        path = self._scratch / f"{block.page.replace('/', '-')}-{block.line}"
        path.write_text("\n" * (block.line - 1) + text)  # gives tracebacks the line numbers of the page
        interpreter = self._python if block.language == "python" else self._shell
        before = len(self.output)
        began = time.monotonic()
        ran = interpreter.run(path, seconds)
        took = time.monotonic() - began
        assert ran, f"{block.name} failed after {took:.0f} s\n{block.text}\nprinted:\n{self.output[before:]}"

    @property
    def output(self) -> str:
        self._output.flush()
        return (self._scratch / "output").read_text()

    def close(self) -> None:
        self._shell.close()
        self._python.close()
        self._output.close()
