"""Files that only their owner can read and write, under any umask and in any directory."""

import os
import stat
from contextlib import suppress
from pathlib import Path

_PRIVATE = 0o600
_SQLITE_SUFFIXES = ("", "-wal", "-shm", "-journal")


def write_private(path: Path, text: str) -> None:
    """Write a file atomically, readable only by its owner. A link stays, and its target is written."""
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE), "w") as file:
        os.fchmod(file.fileno(), _PRIVATE)
        file.write(text)
    temporary.replace(path)


def restrict_to_owner(path: Path) -> None:
    """Set the mode of a file to 0600, unless the file is missing or has another owner."""
    with suppress(FileNotFoundError, PermissionError):
        path.chmod(_PRIVATE)


def prepare_sqlite_files(path: Path) -> None:
    """Create an empty database file unless it exists, and restrict it and its journals to the owner.

    SQLite gives a new journal the mode of the database file. The file is never opened here, because closing a file
    drops the locks that other connections of this process hold on it. Errors are left to the connection that follows.
    """
    with suppress(OSError):
        os.mknod(path, _PRIVATE | stat.S_IFREG)
    for suffix in _SQLITE_SUFFIXES:
        restrict_to_owner(path.with_name(path.name + suffix))
