"""The store of a device: durable writes, and refusal of a damaged file."""

import json
import os
import stat
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sfumato.device.store import FileStore, Memo, Memory, MemoryStore, Store
from sfumato.errors import StoreUnusable
from sfumato.privacy.accounting import DRAW_SPAN

MEMO = Memo("rnd_1", "job_1", 10**9, "ab" * 32, "pending", "cd" * 16, 3, "ff00", 20_000)


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return MemoryStore() if request.param == "memory" else FileStore(tmp_path / "deep" / "device.json")


def _remember(store: Store) -> None:
    with store.changing("ds_1") as memory:
        memory.draws["job_1"] = DRAW_SPAN - 1
        memory.memos["rnd_1"] = MEMO


class TestAnyStore:
    def test_stores_a_change_per_dataset(self, store: Store) -> None:
        _remember(store)
        assert store.read("ds_1") == Memory({"job_1": DRAW_SPAN - 1}, {"rnd_1": MEMO})
        assert store.read("ds_2") == Memory()

    def test_discards_a_failed_change(self, store: Store) -> None:
        _remember(store)

        def fail() -> None:
            with store.changing("ds_1") as memory:
                memory.memos.clear()
                memory.draws["job_1"] = 5
                raise RuntimeError

        with pytest.raises(RuntimeError):
            fail()
        assert store.read("ds_1") == Memory({"job_1": DRAW_SPAN - 1}, {"rnd_1": MEMO})

    def test_returns_a_copy(self, store: Store) -> None:
        _remember(store)
        store.read("ds_1").memos.clear()
        assert list(store.read("ds_1").memos) == ["rnd_1"]

    def test_counts_the_cost_in_every_state(self, store: Store) -> None:
        with store.changing("ds_1") as memory:
            for index, state in enumerate(("acknowledged", "closed", "refused")):
                memo = replace(MEMO, round_id=f"rnd_{index}", state=state, slot=None, value=None)  # type: ignore[arg-type]
                memory.memos[memo.round_id] = memo
            memory.memos["rnd_p"] = replace(MEMO, round_id="rnd_p")
        assert store.read("ds_1").spent_nano == 4 * 10**9

    def test_serialises_concurrent_changes(self, store: Store) -> None:
        def add() -> None:
            for _ in range(20):
                with store.changing("ds_1") as memory:
                    memory.draws["count"] = memory.draws.get("count", 0) + 1

        threads = [threading.Thread(target=add) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert store.read("ds_1").draws["count"] == 80


class TestFileStore:
    def test_a_new_object_reads_the_same_file(self, tmp_path: Path) -> None:
        path = tmp_path / "device.json"
        with FileStore(path).changing("ds_1"):
            pass
        assert not path.exists()  # nothing changed
        store = FileStore(path)
        _remember(store)
        assert FileStore(str(path)).read("ds_1").memos == {"rnd_1": MEMO}
        assert repr(store) == f"FileStore({str(path)!r})"

    def test_only_the_owner_may_read_the_file(self, tmp_path: Path) -> None:
        before = os.umask(0)
        try:
            _remember(FileStore(tmp_path / "device.json"))
        finally:
            os.umask(before)
        for name in ("device.json", "device.json.lock"):
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600

    def test_syncs_a_change_and_replaces_the_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        calls = []
        for name in ("fsync", "replace"):
            real = getattr(os, name)
            monkeypatch.setattr(os, name, lambda *a, _name=name, _real=real: (calls.append(_name), _real(*a))[1])
        _remember(FileStore(tmp_path / "device.json"))
        assert calls == ["fsync", "replace", "fsync"]  # the file, its name, the directory

    def test_a_crash_before_the_replacement_leaves_the_old_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = FileStore(tmp_path / "device.json")
        _remember(store)

        def crash(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", crash)
            with pytest.raises(KeyboardInterrupt), store.changing("ds_1") as memory:
                memory.draws["job_2"] = 1
        assert store.read("ds_1").draws == {"job_1": DRAW_SPAN - 1}
        with store.changing("ds_1") as memory:  # the temporary file of the crash is no obstacle
            memory.draws["job_2"] = 2
        assert store.read("ds_1").draws["job_2"] == 2


def _edit(change: Callable[[dict[str, Any]], object]) -> Callable[[bytes], bytes]:
    def damage(raw: bytes) -> bytes:
        document = json.loads(raw)
        change(document)
        return json.dumps(document).encode()

    return damage


class TestDamagedFile:
    @pytest.mark.parametrize(
        "damage",
        [
            lambda raw: b"",
            lambda raw: raw[:-20],
            lambda raw: b"\0" * len(raw),
            lambda raw: raw.replace(b"rnd_1", b"rnd_2"),
            lambda raw: raw.replace(b"1000000000", b"1000000"),
            lambda raw: b"[]",
            _edit(lambda d: d.update(version=2)),
            _edit(lambda d: d.update(datasets={})),
            _edit(lambda d: d.pop("sha256")),
            _edit(lambda d: d["datasets"]["ds_1"]["rounds"].clear()),
        ],
    )
    def test_is_refused_and_stays_unchanged(self, tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
        path = tmp_path / "device.json"
        store = FileStore(path)
        _remember(store)
        path.write_bytes(damage(path.read_bytes()))
        left = path.read_bytes()
        with pytest.raises(StoreUnusable, match="damaged"):
            store.read("ds_1")
        with pytest.raises(StoreUnusable, match="damaged"), store.changing("ds_1"):
            pytest.fail("a damaged memory was handed out")
        assert path.read_bytes() == left

    def test_refuses_a_place_that_it_cannot_write(self, tmp_path: Path) -> None:
        (tmp_path / "device.json").mkdir()
        with pytest.raises(StoreUnusable):
            _remember(FileStore(tmp_path / "device.json"))
        (tmp_path / "file").write_text("")
        with pytest.raises(StoreUnusable):
            _remember(FileStore(tmp_path / "file" / "device.json"))
