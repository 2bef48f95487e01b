"""What a device must never forget: its draws, and what it answered to which round.

A device that forgets would perturb the same record anew for the same round (averaging
takes the noise away) and would not know what it has spent. So every change is on the disk
before anything is sent, and a memory that cannot be read is refused, not begun anew.
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

from sfumato.accounting import DRAW_SPAN
from sfumato.errors import StoreUnusable

if sys.platform != "win32":
    import fcntl

STORE_VERSION = 1

MemoState = Literal["pending", "acknowledged", "closed", "refused"]


@dataclass(frozen=True, slots=True)
class Memo:
    """One round this device answered; kept for ever, because what it cost stays spent.

    Attributes
    ----------
    round_id, collection_id : str
    epsilon_nano : int
        What the answer cost: the realised epsilon, rounded up.
    spec_hash : str
        SHA-256 of the round's spec as it was answered, in hex.
    state : {'pending', 'acknowledged', 'closed', 'refused'}
        Whether the service has the report: not known yet; yes; no, the round had closed;
        no, it did not take it.
    report_id : str
        32 hex digits.
    slot : int or None
    value : str or None
        The perturbed value in hex. Both are dropped once the state is final.
    """

    round_id: str
    collection_id: str
    epsilon_nano: int
    spec_hash: str
    state: MemoState
    report_id: str
    slot: int | None
    value: str | None


@dataclass(slots=True)
class Memory:
    """What a device remembers of one dataset."""

    draws: dict[str, int] = field(default_factory=dict)  # the secret draw of each collection
    memos: dict[str, Memo] = field(default_factory=dict)  # by round

    @property
    def spent_nano(self) -> int:
        """What this device has answered for so far, in nano-epsilon."""
        return sum(memo.epsilon_nano for memo in self.memos.values())


class Store(Protocol):
    """Where a device keeps its memories; one store may serve several datasets."""

    def read(self, dataset_id: str) -> Memory:
        """A copy of the memory; an empty one for a dataset not seen before. Raises StoreUnusable."""

    def changing(self, dataset_id: str) -> AbstractContextManager[Memory]:
        """A context that yields the memory to change, alone, and makes the change last.

        When the context ends the change is durable; on an exception there is none. Raises
        StoreUnusable.
        """


class MemoryStore:
    """Forgets when the process ends: for tests, and for devices that answer once and go."""

    def __init__(self) -> None:
        self._memories: dict[str, Memory] = {}
        self._lock = threading.Lock()

    def read(self, dataset_id: str) -> Memory:
        """See `Store.read`."""
        with self._lock:
            return copy.deepcopy(self._memories.get(dataset_id, Memory()))

    @contextmanager
    def changing(self, dataset_id: str) -> Iterator[Memory]:
        """See `Store.changing`."""
        with self._lock:
            memory = copy.deepcopy(self._memories.get(dataset_id, Memory()))
            yield memory
            self._memories[dataset_id] = memory


class FileStore:
    """One JSON file, replaced whole and synced at every change, readable by its owner alone.

    A lock file beside it keeps two processes of one app apart. The draws in it are
    secret: whoever knows them knows which rounds the device was asked in. Copying the file to
    a second device, or putting an old backup back, lets one record be perturbed twice.

    Parameters
    ----------
    path : str or Path
        The file; made at the first change, with its directory.

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
            raise StoreUnusable("FileStore needs POSIX file locks; give the device a store of your own")
        self._path = Path(path)
        self._lock_path = self._path.with_name(self._path.name + ".lock")
        self._new_path = self._path.with_name(self._path.name + ".new")

    def __repr__(self) -> str:
        return f"FileStore({str(self._path)!r})"

    def read(self, dataset_id: str) -> Memory:
        """See `Store.read`."""
        return self._load().get(dataset_id, Memory())  # replaced whole, so there is nothing to wait for

    @contextmanager
    def changing(self, dataset_id: str) -> Iterator[Memory]:
        """See `Store.changing`."""
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
            os.close(lock)  # which lets go of it

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
                f"{self._path} is damaged or of another version: "
                "not knowing what it answered, this device answers nothing"
            ) from None

    def _save(self, memories: Mapping[str, Memory]) -> None:
        try:
            self._new_path.unlink(missing_ok=True)  # what a crash may have left
            new = os.open(self._new_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(new, "wb") as file:
                file.write(_pack(memories))
                file.flush()
                os.fsync(file.fileno())
            os.replace(self._new_path, self._path)
            directory = os.open(self._path.parent, os.O_RDONLY)
            try:
                os.fsync(directory)  # or a power cut could bring the old file back
            finally:
                os.close(directory)
        except OSError as error:
            raise StoreUnusable(f"{self._path} cannot be written: {error.strerror}") from None


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
        raise ValueError("not as it was written")
    return {dataset_id: _memory(wire) for dataset_id, wire in document["datasets"].items()}


def _memory(wire: Mapping[str, Any]) -> Memory:
    draws = {collection: int(draw) for collection, draw in wire["draws"].items()}
    memos = [_memo(memo) for memo in wire["rounds"]]
    if not all(0 <= draw < DRAW_SPAN for draw in draws.values()):
        raise ValueError("a draw is a word of 64 bits")
    return Memory(draws, {memo.round_id: memo for memo in memos})


def _memo(wire: Mapping[str, Any]) -> Memo:
    memo = Memo(**{name.name: wire[name.name] for name in fields(Memo)})
    if memo.state not in get_args(MemoState) or (memo.state == "pending") != (memo.value is not None):
        raise ValueError("not a memo")
    if not isinstance(cast(object, memo.epsilon_nano), int) or memo.epsilon_nano < 0:
        raise ValueError("not a cost")
    return memo
