"""Isolation of the harness: its own network namespaces and a disk that can be filled.

As root on Linux, the harness runs in its own network and mount namespaces, which end with it. PostgreSQL and Redis run
in a second network namespace, connected to the first by a pair of virtual interfaces, and data is on a file system in
memory. Otherwise, a relay interrupts the network and a limit on file sizes replaces the full disk. `Isolation.methods`
names the methods in use.
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

NAMESPACES_VARIABLE = "FAULTS_INSIDE"  # set in a process with its own namespaces

_CLONE_NEWNET = 0x40000000
_NEAR_ADDRESS, _FAR_ADDRESS = (
    "10.213.7.1",
    "10.213.7.2",
)  # addresses of the two interfaces, visible only in these namespaces
_SMALL_FILE_BYTES = 8192


def enter_namespaces(arguments: list[str]) -> None:
    """Restart this program in its own namespaces if that is allowed; otherwise return."""
    if NAMESPACES_VARIABLE in os.environ or sys.platform != "linux" or os.geteuid() != 0:
        return
    if not all(shutil.which(tool) for tool in ("unshare", "ip", "mount")):
        return
    command = ["unshare", "--net", "--mount"]
    if subprocess.run([*command, "ip", "link", "set", "lo", "up"], capture_output=True, check=False).returncode:
        return
    os.environ[NAMESPACES_VARIABLE] = "1"
    os.execvp(command[0], [*command, sys.executable, "-m", "tests.faults", *arguments])  # noqa: S606 - restarts this program


class Isolation:
    """The network and the disk of one deployment.

    Parameters
    ----------
    scratch : Path
    disk_bytes : int
        Size of the disk for data.
    has_far_side : bool
        Whether to create a second network namespace.
    """

    def __init__(self, scratch: Path, disk_bytes: int, *, has_far_side: bool) -> None:
        self.disk = scratch / "disk"
        self.disk.mkdir(mode=0o755)
        self.has_namespaces = NAMESPACES_VARIABLE in os.environ
        self._ballast = self.disk / "ballast"
        self._limited: list[tuple[int, tuple[int, int]]] = []
        self._executor: ThreadPoolExecutor | None = None
        self.far_host = "127.0.0.1"
        self.has_mount = self.has_namespaces and self._mount_disk(disk_bytes)
        if self.has_namespaces:
            _run("ip", "link", "set", "lo", "up")
        if self.has_namespaces and has_far_side:
            self._create_far_network()

    @property
    def methods(self) -> dict[str, str]:
        """Return the methods that interrupt the network and fill the disk."""
        return {
            "network": "namespaces" if self._executor else "relay",
            "disk": "file system in memory" if self.has_mount else "limit on the size of files",
        }

    def _mount_disk(self, n_bytes: int) -> bool:
        options = f"size={n_bytes},mode=0755"
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.disk)], capture_output=True, check=False
        )
        return mounted.returncode == 0

    def _create_far_network(self) -> None:
        self._executor = ThreadPoolExecutor(1, initializer=_enter_new_network)
        for command in (
            ("ip", "link", "set", "lo", "up"),
            ("ip", "link", "add", "far", "type", "veth", "peer", "name", "near", "netns", str(os.getpid())),
            ("ip", "address", "add", f"{_FAR_ADDRESS}/30", "dev", "far"),
            ("ip", "link", "set", "far", "up"),
        ):
            self.run_far(lambda command=command: _run(*command))
        _run("ip", "address", "add", f"{_NEAR_ADDRESS}/30", "dev", "near")
        _run("ip", "link", "set", "near", "up")
        self.far_host = _FAR_ADDRESS

    def run_far(self, function: Callable[[], Any]) -> Any:
        """Return the result of a function in the far namespace. Processes that it starts stay there."""
        if self._executor is None:
            return function()
        done: Future[Any] = self._executor.submit(function)
        return done.result()

    def start_far_thread(self, target: Callable[[], None]) -> None:
        """Start a thread in the far namespace."""
        self.run_far(lambda: threading.Thread(target=target, daemon=True).start())

    def set_network(self, *, is_cut: bool) -> bool:
        """Disconnect or reconnect the two namespaces; return false if there is only one."""
        if self._executor is None:
            return False
        _run("ip", "link", "set", "near", "down" if is_cut else "up")
        return True

    def fill_disk(self, pids: list[int]) -> None:
        """Fill the disk for these processes."""
        if self.has_mount:
            ballast = os.open(self._ballast, os.O_WRONLY | os.O_CREAT)
            for n_bytes in (1 << 20, 1 << 12):
                with suppress(OSError):
                    while os.write(ballast, bytes(n_bytes)):
                        pass
            os.close(ballast)
            return
        for pid in _add_children(pids):
            with suppress(OSError):
                limits = resource.prlimit(pid, resource.RLIMIT_FSIZE)
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (_SMALL_FILE_BYTES, limits[1]))
                self._limited.append((pid, limits))

    def free_disk(self) -> None:
        """Free the disk."""
        self._ballast.unlink(missing_ok=True)
        for pid, limits in self._limited:
            with suppress(OSError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)
        self._limited = []

    def close(self) -> None:
        """Remove all interfaces, limits and mounts."""
        self.free_disk()
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


def _add_children(pids: list[int]) -> list[int]:
    all_pids = list(pids)
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            all_pids += [child.pid for child in psutil.Process(pid).children(recursive=True)]
    return all_pids
