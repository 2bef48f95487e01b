"""Builds the packages once for all processes of a test run, and starts the service."""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
TYPESCRIPT = ROOT / "sdk" / "typescript"
PYTHON = ROOT / "sdk" / "python"
BUILD_SECONDS = 600
RUN_SECONDS = 600


def run(*arguments: str | Path, cwd: Path, **environment: str) -> str:
    """Return the output of a command. Fail with the complete output if the command fails."""
    done = subprocess.run(
        [str(argument) for argument in arguments],
        cwd=cwd,
        env=inherited() | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
    )
    assert done.returncode == 0, f"{arguments[0]} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def inherited() -> dict[str, str]:
    """Return an environment without settings of Sfumato and with only the given Python."""
    own = ("SFUMATO_", "PYTHON", "VIRTUAL_ENV", "NODE_", "npm_")
    return {name: value for name, value in os.environ.items() if not name.startswith(own)}


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Hold a lock that excludes all other processes of this machine."""
    with lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def made_once(shared: Path, name: str, make: Callable[[Path], Path]) -> Path:
    """Return a directory that one process creates and the other processes of the run reuse."""
    with alone(shared / f"{name}.lock"):
        told = shared / f"{name}.path"
        if not told.exists():
            directory = shared / name
            directory.mkdir()
            told.write_text(str(make(directory)))
        return Path(told.read_text())


def typescript_package(directory: Path) -> Path:
    """Build the npm tarball in a copy of the package, next to its sources and tests."""
    copy = directory / "sdk" / "typescript"
    ignored = shutil.ignore_patterns("node_modules", "dist", "generated", "*.tgz")
    shutil.copytree(TYPESCRIPT, copy, ignore=ignored)
    shutil.copytree(ROOT / "openapi", directory / "openapi", ignore=shutil.ignore_patterns("node_modules"))
    run("npm", "ci", cwd=copy)
    run("npm", "run", "build", cwd=copy)
    run("npm", "pack", "--ignore-scripts", "--pack-destination", directory, cwd=copy)
    (tarball,) = directory.glob("*.tgz")
    return tarball


def wheel(directory: Path) -> Path:
    """Build the wheel of sdk/python in a copy."""
    copy = directory / "python"
    shutil.copytree(PYTHON, copy, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    python = ROOT / ".venv" / "bin" / "python"
    run(
        python,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        directory,
        copy,
        cwd=directory,
    )
    (made,) = directory.glob("*.whl")
    return made


def generator(home: Path) -> Path:
    """Return the Python of a new environment that has the generators of the clients."""
    uv, python = Path(sys.executable).parent / "uv", home / "venv" / "bin" / "python"
    run(uv, "venv", "--quiet", "--python", sys.executable, python.parents[1], cwd=ROOT)
    lock = ROOT / "openapi" / "generators" / "requirements.lock"
    run(uv, "pip", "install", "--quiet", "--python", python, "--require-hashes", "--requirement", lock, cwd=ROOT)
    return python


def block_after(readme: Path, heading: str, language: str) -> str:
    """Return the first code block of a section."""
    section = re.split(rf"^## {re.escape(heading)}$", readme.read_text(), flags=re.MULTILINE)[1].split("\n## ")[0]
    found = re.search(rf"```{language}\n(.*?)```", section, flags=re.DOTALL)
    assert found is not None, f"{readme} has no {language} under {heading}"
    return found[1]


def names_in(tarball: Path) -> list[str]:
    """Return the names of the files in a tarball."""
    with tarfile.open(tarball) as opened:
        return sorted(opened.getnames())
