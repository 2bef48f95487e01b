"""What the machine lets the harness have for itself: a network of its own, a disk that can be full.

With the right to (root on Linux) the harness runs in network and mount namespaces of its own, which
are gone with it. PostgreSQL and Redis live in a second network namespace, joined to the first by a
pair of virtual interfaces, and the data lie in a file system in memory. Without it the relay stands
in for the cut network and a limit on the size of files for the full disk; `Room.means` says which.
"""

import ctypes
import os
import resource
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

INSIDE = "FAULTS_INSIDE"  # set once this process has namespaces of its own

_CLONE_NEWNET = 0x40000000
_HERE, _THERE = "10.213.7.1", "10.213.7.2"  # of the two ends; no other namespace sees them
_SMALL_FILE_BYTES = 8192


def enter(arguments: list[str]) -> None:
    """Begin this program again in namespaces of its own, where that is allowed; else return."""
    if INSIDE in os.environ or sys.platform != "linux" or os.geteuid() != 0:
        return
    if not all(shutil.which(tool) for tool in ("unshare", "ip", "mount")):
        return
    own = ["unshare", "--net", "--mount"]
    if subprocess.run([*own, "ip", "link", "set", "lo", "up"], capture_output=True, check=False).returncode:
        return
    os.environ[INSIDE] = "1"
    os.execvp(own[0], [*own, sys.executable, "-m", "tests.faults", *arguments])  # noqa: S606 - this program


class Room:
    """Where one world of the harness lives.

    Parameters
    ----------
    scratch : Path
    disk_bytes : int
        Size of the disk for data.
    has_far_side : bool
        Whether there is to be a second network namespace.
    """

    def __init__(self, scratch: Path, disk_bytes: int, *, has_far_side: bool) -> None:
        self.disk = scratch / "disk"
        self.disk.mkdir(mode=0o755)
        self.is_own = INSIDE in os.environ
        self._ballast = self.disk / "ballast"
        self._limited: list[tuple[int, tuple[int, int]]] = []
        self._executor: ThreadPoolExecutor | None = None
        self.far_host = "127.0.0.1"
        self.has_mount = self.is_own and self._mounts(disk_bytes)
        if self.is_own:
            _run("ip", "link", "set", "lo", "up")
        if self.is_own and has_far_side:
            self._join()

    @property
    def means(self) -> dict[str, str]:
        """How the network is cut and the disk filled here."""
        return {
            "network": "namespaces" if self._executor else "relay",
            "disk": "file system in memory" if self.has_mount else "limit on the size of files",
        }

    def _mounts(self, n_bytes: int) -> bool:
        options = f"size={n_bytes},mode=0755"
        made = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.disk)], capture_output=True, check=False
        )
        return made.returncode == 0

    def _join(self) -> None:
        self._executor = ThreadPoolExecutor(1, initializer=_enter_new_network)
        for command in (
            ("ip", "link", "set", "lo", "up"),
            ("ip", "link", "add", "far", "type", "veth", "peer", "name", "near", "netns", str(os.getpid())),
            ("ip", "address", "add", f"{_THERE}/30", "dev", "far"),
            ("ip", "link", "set", "far", "up"),
        ):
            self.there(lambda command=command: _run(*command))
        _run("ip", "address", "add", f"{_HERE}/30", "dev", "near")
        _run("ip", "link", "set", "near", "up")
        self.far_host = _THERE

    def there(self, what: Callable[[], Any]) -> Any:
        """What `what()` says on the far side; processes it begins live there."""
        if self._executor is None:
            return what()
        done: Future[Any] = self._executor.submit(what)
        return done.result()

    def run_there(self, target: Callable[[], None]) -> None:
        """Begin a thread on the far side."""
        self.there(lambda: threading.Thread(target=target, daemon=True).start())

    def cut(self, *, is_cut: bool) -> bool:
        """Cut the two sides apart, or join them; False where there is one side only."""
        if self._executor is None:
            return False
        _run("ip", "link", "set", "near", "down" if is_cut else "up")
        return True

    def fill(self, pids: list[int]) -> None:
        """Leave no room on the disk for what these processes write."""
        if self.has_mount:
            ballast = os.open(self._ballast, os.O_WRONLY | os.O_CREAT)
            for n_bytes in (1 << 20, 1 << 12):
                with suppress(OSError):
                    while os.write(ballast, bytes(n_bytes)):
                        pass
            os.close(ballast)
            return
        for pid in _with_children(pids):
            with suppress(OSError):
                before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (_SMALL_FILE_BYTES, before[1]))
                self._limited.append((pid, before))

    def free(self) -> None:
        """Give the room back."""
        self._ballast.unlink(missing_ok=True)
        for pid, before in self._limited:
            with suppress(OSError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
        self._limited = []

    def close(self) -> None:
        """Leave nothing behind."""
        self.free()
        if self._executor is not None:
            self._executor.shutdown()
            with suppress(subprocess.CalledProcessError):
                _run("ip", "link", "delete", "near")
        if self.has_mount:
            subprocess.run(["umount", "--lazy", str(self.disk)], capture_output=True, check=False)


def _enter_new_network() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "unshare")


def _run(*command: str) -> None:
    subprocess.run(command, capture_output=True, check=True)


def _with_children(pids: list[int]) -> list[int]:
    found = list(pids)
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            found += [child.pid for child in psutil.Process(pid).children(recursive=True)]
    return found
