"""Tests of the programs that the checks need, with stand-ins for the programs of the machine."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.test_house import ROOT

STAND_INS = {
    "java": "echo 'openjdk version \"17.0.15\" 2025-04-15' >&2",
    "node": "echo v20.20.2",
    "npm": "true",
    "chromium": "true",
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a folder that is the whole path of the script, with the tools that it uses itself."""
    for tool in ("sed", "head", "cat", "chmod"):
        found = next(folder for folder in ("/usr/bin", "/bin") if Path(folder, tool).exists())
        (tmp_path / tool).symlink_to(Path(found, tool))
    return tmp_path


def add(path: Path, name: str, body: str) -> None:
    """Add a program."""
    (path / name).write_text(f"#!/bin/sh\n{body}\n")
    (path / name).chmod(0o755)


def preflight(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the script."""
    command = ["/bin/sh", str(ROOT / "tools" / "preflight.sh"), *arguments]
    return subprocess.run(
        command, env=os.environ | {"PATH": str(path)}, capture_output=True, text=True, check=False, timeout=60
    )


class TestPreflight:
    def test_accepts_a_machine_that_has_everything(self, path: Path) -> None:
        for name, body in STAND_INS.items():
            add(path, name, body)
        done = preflight(path, *STAND_INS)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    def test_names_each_missing_program_and_its_package(self, path: Path) -> None:
        add(path, "npm", "true")
        done = preflight(path, "chromium", "java", "node", "npm")
        assert done.returncode == 1
        assert done.stderr.splitlines() == [
            "chromium is missing: apt-get install chromium",
            "java is missing: apt-get install default-jre-headless",
            "node is missing: apt-get install nodejs",
        ]

    def test_names_a_version_that_is_too_old(self, path: Path) -> None:
        add(path, "node", "echo v18.1.0")
        done = preflight(path, "node")
        assert (done.returncode, done.stderr) == (1, "node 18 is too old: version 20 or newer is required\n")

    def test_installs_the_packages_of_the_missing_programs(self, path: Path) -> None:
        add(path, "npm", "true")
        package = 'for each in "$@"; do last=$each; done; [ "$last" = chromium ] || exit 0'
        add(path, "apt-get", f'{package}; echo "#!/bin/sh" >{path}/chromium; chmod 755 {path}/chromium')
        done = preflight(path, "--install", "npm", "chromium")
        assert (done.returncode, done.stdout) == (0, "installing Debian packages: chromium\n")

    def test_says_what_is_missing_if_the_installation_fails(self, path: Path) -> None:
        add(path, "apt-get", "echo 'E: no network' >&2; exit 100")
        done = preflight(path, "--install", "chromium")
        assert done.returncode == 1
        assert "E: no network" in done.stderr
        assert "chromium is missing: apt-get install chromium" in done.stderr
