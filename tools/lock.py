"""Read requirements.lock: the packages, their pins, and why each of them is there.

    python tools/lock.py [--extra NAME ...] [--package NAME ...]

Prints the part of the lock for the server with the named extras, or for the named packages, as a requirements file. The
image is built from it. The script needs only the standard library, because it also runs in the image's build stage.

The lock names the parents of each package, but not their extras. A package that a parent needs for one of its extras
therefore counts as needed by the parent.
"""

import argparse
import re
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements.lock"
PROJECTS = (ROOT / "pyproject.toml", ROOT / "sdk" / "python" / "pyproject.toml")

PIN = re.compile(r"(?P<name>[a-z0-9-]+)==(?P<version>[^ ]+)(?: ; (?P<marker>.*))? \\")
HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(?:\[(?P<extras>[^]]*)\])?")


@dataclass(frozen=True)
class Package:
    """A pinned package of the lock."""

    name: str
    version: str
    marker: str | None  # condition on platform and Python version under which it is installed
    hashes: tuple[str, ...]  # SHA-256 of each of its files, in hexadecimal
    parents: frozenset[str]  # names of the packages that need it
    text: str  # its lines in the lock


def read_lock(text: str) -> dict[str, Package]:
    """Return the packages of a lock by name, in the lock's order."""
    packages = {}
    for block in re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]:
        pin = PIN.match(block)
        if pin is None:
            raise ValueError(f"not a pinned package: {block.splitlines()[0]}")
        _, _, via = block.partition("# via")
        packages[pin["name"]] = Package(
            name=pin["name"],
            version=pin["version"],
            marker=pin["marker"],
            hashes=tuple(HASH.findall(block)),
            parents=frozenset(re.findall(r"[a-z0-9-]+(?= \(pyproject\.toml\)$)|[a-z0-9-]+$", via, re.MULTILINE)),
            text=block,
        )
    return packages


def read_projects() -> dict[str, dict[str, list[str]]]:
    """Return the requirements of each of our projects by extra. The empty extra names those that are always needed."""
    projects = {}
    for path in PROJECTS:
        table = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        projects[table["name"]] = {"": table["dependencies"], **table["optional-dependencies"]}
    return projects


def direct_names(extras: Iterable[str]) -> set[str]:
    """Return the names of the packages that the server with these extras requires itself."""
    projects = read_projects()
    todo = [("sfumato-server", extra) for extra in ("", *extras)]
    found = set()
    while todo:
        project, extra = todo.pop()
        for requirement in projects[project][extra]:
            match = REQUIREMENT.match(requirement)
            if match is None:
                raise ValueError(f"not a requirement: {requirement}")
            name = match["name"].lower().replace("_", "-").replace(".", "-")
            if name in projects:
                todo += [(name, ""), *((name, each.strip()) for each in (match["extras"] or "").split(",") if each)]
            else:
                found.add(name)
    return found


def select(packages: dict[str, Package], names: Iterable[str]) -> list[Package]:
    """Return the named packages and all that they need, in the lock's order."""
    needed = set()
    todo = set(names)
    while todo:
        needed |= todo
        todo = {package.name for package in packages.values() if package.parents & todo} - needed
    return [package for package in packages.values() if package.name in needed]


def main() -> None:
    """Print the selected part of the lock."""
    parser = argparse.ArgumentParser(description="Print a part of requirements.lock.")
    parser.add_argument("--extra", action="append", default=[], help="Extra of the server, for example demo.")
    parser.add_argument("--package", action="append", default=[], help="Package to select instead of the server.")
    arguments = parser.parse_args()
    packages = read_lock(LOCK.read_text(encoding="utf-8"))
    chosen = select(packages, arguments.package or direct_names(arguments.extra))
    sys.stdout.write("".join(package.text for package in chosen))


if __name__ == "__main__":
    main()
