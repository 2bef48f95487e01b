"""How the packages are built for the tests: once for all of a run's processes, and the service they talk to."""

import fcntl
import os
import re
import shutil
import subprocess
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
    """What a command says; its whole output where it fails."""
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
    """Nobody's settings, and no Python but the one that is named."""
    own = ("SFUMATO_", "PYTHON", "VIRTUAL_ENV", "NODE_", "npm_")
    return {name: value for name, value in os.environ.items() if not name.startswith(own)}


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """No other process of this machine does what this one does under the same lock."""
    with lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def made_once(shared: Path, name: str, make: Callable[[Path], Path]) -> Path:
    """What one of a run's processes makes and the others find."""
    with alone(shared / f"{name}.lock"):
        told = shared / f"{name}.path"
        if not told.exists():
            directory = shared / name
            directory.mkdir()
            told.write_text(str(make(directory)))
        return Path(told.read_text())


def typescript_package(directory: Path) -> Path:
    """The tarball that npm would publish, made in a copy, with its sources and tests beside it."""
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
    """The wheel of sdk/python, built in a copy."""
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


def block_after(readme: Path, heading: str, language: str) -> str:
    """The first code block of a section."""
    section = re.split(rf"^## {re.escape(heading)}$", readme.read_text(), flags=re.MULTILINE)[1].split("\n## ")[0]
    found = re.search(rf"```{language}\n(.*?)```", section, flags=re.DOTALL)
    assert found is not None, f"{readme} has no {language} under {heading}"
    return found[1]


def names_in(tarball: Path) -> list[str]:
    """What a tarball holds."""
    with tarfile.open(tarball) as opened:
        return sorted(opened.getnames())
