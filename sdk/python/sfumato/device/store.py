"""Memory of a device: its draws and its reports.

Without this memory a device would perturb the same record again for the same round, and averaging
the reports would remove the noise. It would also not know its spent epsilon. Every change is
therefore durable before a report is sent, and an unreadable memory is an error.
"""

import copy
import hashlib
import json
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Protocol, cast, get_args

from sfumato.device.periods import LAST_DAY
from sfumato.errors import StoreUnusable
from sfumato.privacy.accounting import DRAW_SPAN

if sys.platform != "win32":
    import fcntl

STORE_VERSION = 1

MemoState = Literal["pending", "acknowledged", "closed", "refused"]


@dataclass(frozen=True, slots=True)
class Memo:
    """A round that the device answered. It is never deleted, because its cost remains spent.

    Attributes
    ----------
    round_id, collection_id : str
    epsilon_nano : int
        Cost of the report: the realised epsilon, rounded up.
    spec_hash : str
        SHA-256 of the round's specification at that time, in hex.
    state : {'pending', 'acknowledged', 'closed', 'refused'}
        Whether the service has the report: unknown; yes; no, because the round was closed; no,
        because the service rejected it.
    report_id : str
        32 hex digits; empty for a sealed report.
    slot : int or None
    value : str or None
        The perturbed value, or the outer key and the sealed report, in hex. Slot and value are deleted in a final
        state.
    day : int
        UTC day of the answer by the device's clock, in days since 1970-01-01; see `sfumato.device.periods`.
    """

    round_id: str
    collection_id: str
    epsilon_nano: int
    spec_hash: str
    state: MemoState
    report_id: str
    slot: int | None
    value: str | None
    day: int = 0


@dataclass(slots=True)
class Memory:
    """A device's memory of one dataset."""

    draws: dict[str, int] = field(default_factory=dict)  # secret draw of each collection
    memos: dict[str, Memo] = field(default_factory=dict)  # round id to memo

    @property
    def spent_nano(self) -> int:
        """Return the spent nano-epsilon."""
        return self.spent_nano_since(0)

    def spent_nano_since(self, day: int) -> int:
        """Return the nano-epsilon of the answers since a day."""
        return sum(memo.epsilon_nano for memo in self.memos.values() if memo.day >= day)


class Store(Protocol):
    """A device's store of memories, one for each dataset."""

    def read(self, dataset_id: str) -> Memory:
        """Return a copy of the memory, which is empty for a new dataset. Raise StoreUnusable."""

    def changing(self, dataset_id: str) -> AbstractContextManager[Memory]:
        """Return a context that yields the memory for exclusive changes. Raise StoreUnusable.

        The changes are durable when the context ends. An exception discards them.
        """


class MemoryStore:
    """A store in memory, for tests and for processes that answer once."""

    def __init__(self) -> None:
        self._memories: dict[str, Memory] = {}
        self._lock = threading.Lock()

    def read(self, dataset_id: str) -> Memory:
        """Return a copy of the memory; see `Store.read`."""
        with self._lock:
            return copy.deepcopy(self._memories.get(dataset_id, Memory()))

    @contextmanager
    def changing(self, dataset_id: str) -> Iterator[Memory]:
        """Yield the memory for changes; see `Store.changing`."""
        with self._lock:
            memory = copy.deepcopy(self._memories.get(dataset_id, Memory()))
            yield memory
            self._memories[dataset_id] = memory


class FileStore:
    """A store in one JSON file, which each change replaces atomically and syncs. Only its owner can read it.

    A lock file excludes other processes of the same app. The draws are secret, because they reveal
    the rounds that select the device. Copying the file to a second device, or restoring an old
    backup, allows a second report for the same record and round.

    Parameters
    ----------
    path : str or Path
        The file. The first change creates it and its directory. The store keeps to the file that the path names now,
        through links, also if the working directory changes later.

    Raises
    ------
    StoreUnusable
        The path cannot name a file or is a circle of links, or the platform has no file locks.

    Examples
    --------
    >>> import tempfile
    >>> from sfumato import FileStore
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     store = FileStore(f"{directory}/device.json")
    ...     with store.changing("ds_1") as memory:
    ...         memory.draws["rnd_1"] = 2**63
    ...     store.read("ds_1").draws
    {'rnd_1': 9223372036854775808}
    """

    def __init__(self, path: str | Path) -> None:
        if sys.platform == "win32":
            raise StoreUnusable("FileStore needs POSIX file locks. Pass another Store to the device.")
        self._path = _resolve(path)
        self._lock_path = self._path.with_name(self._path.name + ".lock")
        self._new_path = self._path.with_name(self._path.name + ".new")

    @property
    def path(self) -> Path:
        """Return the absolute path of the file, without links."""
        return self._path

    def __repr__(self) -> str:
        return f"FileStore({str(self._path)!r})"

    def read(self, dataset_id: str) -> Memory:
        """Return a copy of the memory; see `Store.read`."""
        return self._load().get(dataset_id, Memory())  # needs no lock, because the file is replaced atomically

    @contextmanager
    def changing(self, dataset_id: str) -> Iterator[Memory]:
        """Yield the memory for changes; see `Store.changing`."""
        with self._locked():
            memories = self._load()
            memory = memories.setdefault(dataset_id, Memory())
            before = copy.deepcopy(memory)
            yield memory
            if memory != before:
                self._save(memories)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreUnusable(f"{self._lock_path} cannot be opened: {error.strerror}") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)  # releases the lock

    def _load(self) -> dict[str, Memory]:
        try:
            raw = self._path.read_bytes()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise StoreUnusable(f"{self._path} cannot be read: {error.strerror}") from None
        try:
            return _unpack(raw)
        except (KeyError, TypeError, ValueError):
            raise StoreUnusable(
                f"{self._path} is damaged or has another version. "
                "The device sends no report, because its earlier reports are unknown."
            ) from None

    def _save(self, memories: Mapping[str, Memory]) -> None:
        try:
            if self._path.exists() and self._path.stat().st_nlink > 1:
                raise StoreUnusable(
                    f"{self._path} has several hard links, and a change would reach only one of them: keep one name"
                )
            self._new_path.unlink(missing_ok=True)  # left by a crash
            new = os.open(self._new_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(new, "wb") as file:
                file.write(_pack(memories))
                file.flush()
                os.fsync(file.fileno())
            os.replace(self._new_path, self._path)
            directory = os.open(self._path.parent, os.O_RDONLY)
            try:
                os.fsync(directory)  # otherwise a power failure could restore the old file
            finally:
                os.close(directory)
        except OSError as error:
            raise StoreUnusable(f"{self._path} cannot be written: {error.strerror}") from None


def _resolve(path: str | Path) -> Path:
    """Return the absolute path of a file, without links. Raise StoreUnusable for a circle of links or a directory."""
    try:
        resolved = Path(path).resolve()
    except (OSError, RuntimeError, ValueError):
        raise StoreUnusable(f"{path!r} cannot be resolved: check its links and characters") from None
    if not resolved.name:
        raise StoreUnusable(f"{path} is a directory: pass the path of a file")
    return resolved


# ---- the file: {"version", "datasets", "sha256" of the datasets' canonical JSON} ----


def _digest(datasets: object) -> str:
    text = json.dumps(datasets, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _pack(memories: Mapping[str, Memory]) -> bytes:
    datasets = {
        dataset_id: {
            "draws": {collection: str(draw) for collection, draw in memory.draws.items()},
            "rounds": [asdict(memo) for memo in memory.memos.values()],
        }
        for dataset_id, memory in memories.items()
    }
    return json.dumps({"version": STORE_VERSION, "datasets": datasets, "sha256": _digest(datasets)}, indent=1).encode()


def _unpack(raw: bytes) -> dict[str, Memory]:
    document = json.loads(raw)
    if document["version"] != STORE_VERSION or document["sha256"] != _digest(document["datasets"]):
        raise ValueError("wrong version or digest")
    return {dataset_id: _memory(wire) for dataset_id, wire in document["datasets"].items()}


def _memory(wire: Mapping[str, Any]) -> Memory:
    draws = {collection: int(draw) for collection, draw in wire["draws"].items()}
    memos = [_memo(memo) for memo in wire["rounds"]]
    if not all(0 <= draw < DRAW_SPAN for draw in draws.values()):
        raise ValueError("a draw must be a 64-bit word")
    return Memory(draws, {memo.round_id: memo for memo in memos})


def _memo(wire: Mapping[str, Any]) -> Memo:
    memo = Memo(**{name.name: wire[name.name] for name in fields(Memo)})
    if memo.state not in get_args(MemoState) or (memo.state == "pending") != (memo.value is not None):
        raise ValueError("inconsistent memo")
    if not isinstance(cast(object, memo.epsilon_nano), int) or memo.epsilon_nano < 0:
        raise ValueError("invalid cost")
    if not isinstance(cast(object, memo.day), int) or not 0 <= memo.day <= LAST_DAY:
        raise ValueError("invalid day")
    return memo
