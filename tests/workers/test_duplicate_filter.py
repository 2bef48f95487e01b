"""Which ids came twice: in memory, in a file, in shares, and against ids that are chosen to do harm."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from clustering.rounds.tally import Tally
from sfumato.mechanisms import design
from sfumato.specs import Feature, GridEncoding, RoundSpec
from tests.workers.processes import ROOT
from workers.aggregation.aggregate import aggregate, count_threads
from workers.aggregation.duplicate_filter import (
    BUCKET_IDS,
    BucketRange,
    Fingerprints,
    RepeatDetector,
    ScratchFileUnavailable,
    bucket_range,
    new_keys,
)
from workers.aggregation.duplicate_filter_kernels import find_repeated
from workers.aggregation.id_set import REPEATED

SPEC = RoundSpec((Feature("x", 0, 1),), GridEncoding((7,)), design("grr", 7, 10**9))
WIDTH = 21
FEW = 2000  # ids in memory at once: the rest goes to the file


def records_of(ids: np.ndarray) -> np.ndarray:
    """Reports to SPEC with these ids, each of which names the last digit of its place."""
    records = np.zeros((len(ids), WIDTH), dtype=np.uint8)
    records[:, :16] = np.ascontiguousarray(ids, dtype="<u8").view(np.uint8).reshape(-1, 16)
    records[:, 20] = np.arange(len(ids)) % 7
    records.flags.writeable = False
    return records


def rows_of(ids: np.ndarray, n_rows: int = 30) -> list[bytes]:
    return [part.tobytes() for part in np.array_split(records_of(ids), n_rows)]


def different_ids(n: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1 << 63, size=(n, 2), dtype=np.uint64)


def expected_tally(ids: np.ndarray) -> Tally:
    _, first = np.unique(ids, axis=0, return_index=True)
    counts = np.bincount(first % 7, minlength=7).astype(np.int64)
    return Tally(counts[None, :], np.array([len(first)]))


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of files without a name."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def filled(records: np.ndarray, **more: int | bool) -> Fingerprints:
    given = {"n_expected": len(records), "max_in_memory": FEW, **more}
    ids = Fingerprints(bucket_range(0, 1, new_keys(), n_expected=len(records)), **given)
    for begin in range(0, len(records), 5000):
        some = records[begin : begin + 5000]
        ids.add_packed(some, np.zeros(len(some), dtype=np.uint8))
    return ids


class TestAFile:
    N = 60_000

    @pytest.mark.parametrize("n_threads", [1, 2])
    @pytest.mark.parametrize("n_expected", [0, N, 10 * N])
    def test_of_fingerprints_changes_nothing(self, scratch: Path, n_threads: int, n_expected: int) -> None:
        ids = different_ids(self.N)
        ids[self.N // 2 :: 3] = ids[: self.N // 2 : 3]  # they come again far from where they came first
        log = rows_of(ids)
        aggregation = aggregate(SPEC, lambda: log, n_expected=n_expected, max_ids_in_memory=FEW, n_threads=n_threads)
        assert aggregation.tally == expected_tally(ids)
        assert aggregation.n_repeated == self.N // 6

    def test_is_written_where_there_are_many_and_has_no_name(self, scratch: Path) -> None:
        records = records_of(different_ids(self.N))
        with closing(filled(records)) as ids:
            assert ids._scratch is not None
            size = os.fstat(ids._scratch.fileno()).st_size
            assert self.N * 8 // 2 < size <= self.N * 8
            assert os.fstat(ids._scratch.fileno()).st_nlink == 0
            assert list(scratch.iterdir()) == []
            content = os.pread(ids._scratch.fileno(), size, 0)
        words = set(np.frombuffer(content, dtype="<u8").tolist())
        assert words.isdisjoint(records[:, :16].copy().view("<u8").reshape(-1).tolist())  # no id is in it
        assert ids._scratch is None

    def test_is_gone_after_a_kill(self, tmp_path: Path) -> None:
        command = [sys.executable, "-c", KILLED, str(tmp_path)]
        paths = os.pathsep.join([str(ROOT), str(ROOT / "sdk" / "python")])
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": paths}) as it:
            assert it.stdout is not None
            assert it.stdout.readline() == b"spilled\n"
            it.kill()
            assert it.wait() == -signal.SIGKILL
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("n_repeated", [0, 5000])
    def test_that_cannot_be_written_costs_readings_and_nothing_else(
        self, scratch: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], n_repeated: int
    ) -> None:
        def full(self: Fingerprints) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(Fingerprints, "_spill", full)
        ids = different_ids(self.N)
        ids[self.N - n_repeated :] = ids[:n_repeated]
        log = [*rows_of(ids), b"cut"]
        aggregation = aggregate(SPEC, lambda: log, n_expected=self.N, max_ids_in_memory=self.N // 4)
        assert aggregation.tally == expected_tally(ids)
        assert (aggregation.n_repeated, aggregation.n_malformed) == (n_repeated, 1)
        assert "aggregated_without_scratch_file" in "".join(capsys.readouterr())

    def test_that_lost_its_end_is_noticed(self, scratch: Path) -> None:
        with closing(filled(records_of(different_ids(self.N)))) as ids:
            assert ids._scratch is not None
            os.ftruncate(ids._scratch.fileno(), 800)
            with pytest.raises(ScratchFileUnavailable):
                list(ids.repeated(FEW))


KILLED = """
import sys, tempfile, time
import numpy as np
from tests.workers.test_duplicate_filter import different_ids, filled, records_of
tempfile.tempdir = sys.argv[1]
ids = filled(records_of(different_ids(60_000)))
assert ids._scratch is not None
print("spilled", flush=True)
time.sleep(600)
"""


class TestMemory:
    N = 400_000

    def test_is_what_is_allowed_whatever_the_log(self, scratch: Path) -> None:
        """Above it: a block for each bucket, and what one call may fill."""
        with closing(filled(records_of(different_ids(self.N)), max_in_memory=self.N // 8)) as ids:
            n_buckets = ids.buckets.end - ids.buckets.begin
            assert ids._pool.nbytes <= 8 * (self.N // 8 + (2 * n_buckets + 200) * 256)
            (found,) = ids.repeated(FEW)
            assert found[1].size == 0

    def test_one_id_sent_for_ever_takes_room_for_two(self, scratch: Path) -> None:
        ids = np.repeat(different_ids(1), 20 * BUCKET_IDS, axis=0)
        with closing(filled(records_of(ids), max_in_memory=4 * BUCKET_IDS)) as found:
            assert found._scratch is not None
            assert os.fstat(found._scratch.fileno()).st_size <= 8 * 2 * len(found._runs)
            ((_, suspected),) = found.repeated(FEW)
            assert suspected.size == 1

    @pytest.mark.slow
    def test_very_many_repeats_are_told_in_several_parts(self, scratch: Path) -> None:
        n_different = 70 * BUCKET_IDS  # more buckets than are looked through at once
        ids = np.concatenate([different_ids(n_different), different_ids(n_different)])
        log = rows_of(ids)
        n_readings = 0

        def read() -> list[bytes]:
            nonlocal n_readings
            n_readings += 1
            return log

        aggregation = aggregate(SPEC, read, n_expected=len(ids), max_ids_in_memory=n_different, n_threads=1)
        assert aggregation.tally == expected_tally(ids)
        assert (aggregation.n_repeated, aggregation.n_malformed) == (n_different, 0)
        assert n_readings == 1 + 3


class TestLookingTwice:
    def test_finds_what_came_before_and_little_else(self) -> None:
        rng = np.random.default_rng(3)
        words = rng.integers(0, 1 << 63, size=20_000, dtype=np.uint64)
        words[15_000:] = words[rng.integers(0, 15_000, size=5000)]
        came = Counter(words.tolist())
        found = np.empty_like(words)
        n_found = find_repeated(words, np.empty(1 << 16, dtype=np.uint32), found)
        assert {word for word, times in came.items() if times > 1} <= set(found[:n_found].tolist())
        assert 5000 <= n_found < 5010

    def test_fingerprints_of_one_place_are_told_apart(self) -> None:
        words = np.arange(1, 200, dtype=np.uint64) << np.uint64(23)  # all want the first place
        found = np.empty(2 * words.size, dtype=np.uint64)
        tags = np.empty(1 << 10, dtype=np.uint32)
        assert find_repeated(words, tags, found) == 0
        assert find_repeated(np.concatenate([words, words[:50]]), tags, found) == 50


class TestAFingerprintOfTwoIds:
    def test_is_suspected_and_counts_twice(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Every fingerprint is suspected here: only ids that are equal are repeats."""
        ids = different_ids(3000)
        ids[2000:] = ids[:1000]
        ids[1500:1600, 0] = ids[0, 0]  # one half alone
        everything = RepeatDetector(bucket_range(0, 1, (1, 2, 3), n_expected=0), np.empty(0, dtype=np.uint64))
        everything._filter[:] = np.uint64(0xFFFFFFFFFFFFFFFF)
        said = np.zeros(len(ids), dtype=np.uint8)
        everything.mark_repeats(records_of(ids), said)
        _, first = np.unique(ids, axis=0, return_index=True)
        assert np.flatnonzero(said != REPEATED).tolist() == sorted(first.tolist())

    def test_what_is_not_suspected_is_not_looked_at(self) -> None:
        nothing = RepeatDetector(bucket_range(0, 1, (1, 2, 3), n_expected=0), np.empty(0, dtype=np.uint64))
        said = np.array([0, 255, 0], dtype=np.uint8)
        nothing.mark_repeats(records_of(np.ones((3, 2), dtype=np.uint64)), said)
        assert said.tolist() == [0, 255, 0]


class TestShares:
    def test_hold_every_id_once(self) -> None:
        records, keys = records_of(different_ids(20_000)), new_keys()
        shares = [bucket_range(number, 4, keys, n_expected=20_000) for number in range(4)]
        shares += shares.pop().split(3)
        picked = [share.pick(records) for share in shares]
        assert sorted(map(bytes, np.concatenate(picked))) == sorted(map(bytes, records))
        assert [len(some) > 4500 for some in picked[:3]] == [True] * 3
        assert [len(some) > 1300 for some in picked[3:]] == [True] * 3

    def test_keep_the_order(self) -> None:
        records = records_of(np.stack([different_ids(500)[:, 0], np.arange(500, dtype=np.uint64)], axis=1))
        for number in range(2):
            places = bucket_range(number, 2, new_keys(), n_expected=500).pick(records)[:, 8:16].copy().view("<u8")[:, 0]
            assert (np.diff(places.astype(np.int64)) > 0).all()

    def test_of_the_whole_are_the_same_rows(self) -> None:
        records = records_of(different_ids(5))
        assert bucket_range(0, 1, new_keys(), n_expected=5).pick(records) is records

    def test_never_show_their_keys(self) -> None:
        assert "123456789" not in repr(BucketRange(0, 1, 1, (123456789, 0, 0)))


class TestIdsChosenToDoHarm:
    @pytest.mark.parametrize("shift", [0, 20, 40, 56])
    def test_that_differ_in_few_bits_spread_over_all_buckets(self, shift: int) -> None:
        counting = np.zeros((200_000, 2), dtype=np.uint64)
        counting[:, shift % 2] = np.arange(200_000, dtype=np.uint64) << np.uint64(shift % 41)
        records = records_of(counting)
        with closing(filled(records, max_in_memory=1 << 24)) as ids:
            sizes = np.bincount(ids._owner[: ids._n_blocks])
            assert sizes.max() < 1.2 * sizes.mean() + 2
            began = time.process_time()
            ((_, suspected),) = ids.repeated(FEW)
            assert suspected.size == 0
        assert time.process_time() - began < 5  # a thousandth of it; crowded into few places it would be minutes


class TestThreads:
    def test_are_no_more_than_cores(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3}, raising=False)
        assert count_threads() == 1
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
        assert count_threads() == 2
