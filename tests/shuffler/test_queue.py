"""The queue: one report of each sender, one release, and nothing that links after it."""

import json
import sqlite3
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sfumato.device.sealing import wrap
from sfumato.errors import InvalidSpec
from shuffler import queue as queue_module
from shuffler.queue import Queue, QueueUnusable, Released, Sender, State, Submission, Verdict
from shuffler.rounds import Round, parse_listing, parse_round
from tests.shuffler.parties import DATASET, numbers, outer_key, parsed, published, sealed_for, wrapped_for

NOW = 1_000.0


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    with closing(Queue(tmp_path / "shuffler.db")) as opened:
        yield opened


def backend(queue: Queue, name: str = "app", dataset_id: str = DATASET) -> str:
    key = queue.add_sender(Sender(name, dataset_id, True))
    assert key is not None
    return key


def sent(queue: Queue, found: Round, number: int) -> bytes:
    return wrapped_for(found, number, outer_key(queue, found))


class TestRounds:
    @pytest.mark.parametrize(
        "changes",
        [
            {"min_batch": 0},
            {"min_batch": 6},
            {"min_batch": None},
            {"closes_at": "2030-01-01T00:00:00"},
            {"closes_at": 5},
            {"spec": {}},
            {"id": ["rnd_1"]},
            {"target_reports": float("inf")},
            {"min_batch": 3.5},
            {"min_batch": "3"},
            {"min_batch": True},
            {"closes_at": "9" * 5000},
        ],
    )
    def test_with_bad_terms_are_refused(self, changes: dict[str, Any]) -> None:
        with pytest.raises(InvalidSpec):
            parse_round(published(**changes))

    @pytest.mark.parametrize(
        "listing",
        [
            {},
            {"rounds": {}},
            {"rounds": [1]},
            {"rounds": [{"id": "rnd_1"}]},
            {"rounds": [{}] * 65},
            {"rounds": [json.loads(published()) | {"x": float("nan")}]},
            {"rounds": [json.loads(published()) | {"x": float("inf")}]},
            {"rounds": [json.loads(published()) | {"x": "\ud800"}]},
        ],
    )
    def test_bad_listings_are_refused(self, listing: dict[str, Any]) -> None:
        with pytest.raises(InvalidSpec):
            parse_listing(listing)

    def test_keep_the_first_published_bytes(self, queue: Queue) -> None:
        first, second = parsed(), parsed(min_batch=2)
        assert queue.add_round(DATASET, first) == queue.add_round(DATASET, second) == first.document
        assert queue.find_announced("rnd_1", "ds_2") is None


class TestStore:
    def test_each_bad_submission_has_its_outcome(self, queue: Queue) -> None:
        found, app, other = parsed(), backend(queue), backend(queue, "other", "ds_2")
        queue.add_round(DATASET, found)
        device = queue.add_sender(Sender("phone", DATASET, False))
        assert device is not None
        sealed = sent(queue, found, 1)
        submissions = {
            Submission(app, "ann", "rnd_1", sealed): Verdict.STORED,
            Submission(app, "ann", "rnd_1", sealed[::-1]): Verdict.NOT_WRAPPED,
            Submission(app, "ann", "rnd_1", sealed_for(found, 1)): Verdict.WRONG_LENGTH,
            Submission(app, "ann", "rnd_1", sealed_for(found, 1).ljust(len(sealed))): Verdict.NOT_WRAPPED,
            Submission(app, "ann", "rnd_1", sent(queue, found, 3)): Verdict.ALREADY_REPORTED,
            Submission(device, None, "rnd_1", sent(queue, found, 2)): Verdict.STORED,
            Submission(device, "ann", "rnd_1", sealed): Verdict.SENDER_MISSING,
            Submission(app, None, "rnd_1", sealed): Verdict.SENDER_MISSING,
            Submission(app, "bob", "rnd_1", sealed[:-1]): Verdict.WRONG_LENGTH,
            Submission(app, "bob", "rnd_1", sealed + b"0"): Verdict.WRONG_LENGTH,
            Submission(app, "bob", "rnd_2", sealed): Verdict.NOT_FOUND,
            Submission(other, "bob", "rnd_1", sealed): Verdict.NOT_FOUND,
            Submission("sfs_guess", "bob", "rnd_1", sealed): Verdict.UNAUTHENTICATED,
        }
        assert queue.store(list(submissions), NOW) == list(submissions.values())
        assert queue.store(list(submissions), NOW) == list(submissions.values())  # a repetition changes nothing

    def test_a_new_key_is_the_same_sender(self, queue: Queue) -> None:
        found, old = parsed(), backend(queue)
        queue.add_round(DATASET, found)
        sealed = sent(queue, found, 1)
        assert queue.store([Submission(old, "ann", "rnd_1", sealed)], NOW) == [Verdict.STORED]
        new = queue.replace_key("app")
        assert new is not None
        outcomes = queue.store([Submission(key, "ann", "rnd_1", sent(queue, found, 2)) for key in (old, new)], NOW)
        assert outcomes == [Verdict.UNAUTHENTICATED, Verdict.ALREADY_REPORTED]
        assert queue.add_sender(Sender("app", DATASET, True)) is queue.replace_key("unknown") is None

    def test_a_full_or_expired_round_accepts_only_repetitions(self, queue: Queue) -> None:
        found, app = parsed(), backend(queue)
        queue.add_round(DATASET, found)
        reports = [Submission(app, str(each), "rnd_1", sent(queue, found, each)) for each in range(6)]
        assert queue.store(reports, NOW) == [Verdict.STORED] * 5 + [Verdict.CLOSED]
        assert queue.store(reports[:1], found.closes_at) == [Verdict.STORED]
        assert queue.list_open(DATASET, NOW) == []
        queue.add_round(DATASET, late := parsed("rnd_2"))
        assert queue.list_open(DATASET, NOW) == ["rnd_2"]
        outcome = queue.store([Submission(app, "1", "rnd_2", sent(queue, late, 1))], late.closes_at)
        assert outcome == [Verdict.CLOSED]

    def test_files_are_private_and_contain_neither_sender_key_nor_time(self, queue: Queue, tmp_path: Path) -> None:
        found, app = parsed(), backend(queue)
        queue.add_round(DATASET, found)
        queue.store([Submission(app, "ann-of-the-test", "rnd_1", sent(queue, found, 1))], time.time())
        (path,) = tmp_path.iterdir()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        octets = path.read_bytes()
        assert b"ann-of-the-test" not in octets
        assert app.encode() not in octets
        with closing(sqlite3.connect(path)) as database:
            columns = {row[1] for table in ("reports", "rounds", "batches") for row in
                       database.execute(f"PRAGMA table_info({table})")}  # fmt: skip
            is_rowid_free = next(row for row in database.execute("PRAGMA table_list") if row[1] == "reports")[4]
        assert columns == {
            "id",
            "dataset_id",
            "document",
            "state",
            "n_reports",
            "secret",
            "round_id",
            "place",
            "sealed",
            "outer_key",
            "phase",
        }
        assert is_rowid_free == 1


class TestRelease:
    def fill(self, queue: Queue, n: int, **changes: Any) -> Any:
        found, app = parsed(target_reports=1_000, **changes), backend(queue)
        queue.add_round(DATASET, found)
        reports = [Submission(app, str(each), found.id, sent(queue, found, each)) for each in range(n)]
        assert set(queue.store(reports, NOW)) == {Verdict.STORED}
        return found

    def test_is_whole_and_once_and_in_random_order(self, queue: Queue) -> None:
        found = self.fill(queue, 200)
        assert queue.release_due(NOW, 0) == []
        assert queue.release_due(found.closes_at, 600) == [("rnd_1", State.RELEASED, 200)]
        order = numbers(queue.load_batch(found), found)
        assert sorted(order) == list(range(200))
        correlation = np.corrcoef(order, range(200))[0, 1]  # its standard deviation is 1 / sqrt(199)
        assert abs(correlation) < 0.35
        assert queue.release_due(found.closes_at, 600) == []
        assert numbers(queue.load_batch(found), found) == order

    def test_is_denied_below_min_batch_and_the_reports_are_deleted(self, queue: Queue, tmp_path: Path) -> None:
        found = self.fill(queue, 20, min_batch=21)
        assert queue.release_due(found.closes_at, 600) == [("rnd_1", State.DISCARDED, 0)]
        assert queue.load_batch(found) == queue.list_waiting() == []
        with closing(sqlite3.connect(tmp_path / "shuffler.db")) as database:
            assert database.execute("SELECT count(*) FROM reports").fetchone() == (0,)
        assert queue.list_released() == [Released("rnd_1", State.DISCARDED, 0)]

    def test_leaves_no_report_and_no_secret_in_the_file(self, queue: Queue, tmp_path: Path) -> None:
        found, app = parsed(), backend(queue)
        queue.add_round(DATASET, found)
        sealed = [sealed_for(found, each) for each in range(5)]
        wrapped = [wrap(each, "rnd_1", outer_key(queue, found)) for each in sealed]
        queue.store([Submission(app, str(at), "rnd_1", each) for at, each in enumerate(wrapped)], NOW)
        path = tmp_path / "shuffler.db"
        assert all(each in path.read_bytes() for each in sealed)
        assert not any(each in path.read_bytes() for each in wrapped)
        queue.release_due(NOW, 0)
        queue.end("rnd_1", State.ACKNOWLEDGED)
        octets = path.read_bytes()
        assert not any(each in octets for each in sealed)
        with closing(sqlite3.connect(path)) as database:
            assert database.execute("SELECT state, n_reports, secret, outer_key FROM rounds").fetchall() == [
                ("acknowledged", 5, None, None)
            ]
        assert queue.store([Submission(app, "0", "rnd_1", wrapped[0])], NOW) == [Verdict.CLOSED]
        announced = queue.find_announced("rnd_1", DATASET)
        assert announced is not None
        assert announced.outer_public_key is None

    def test_of_a_full_round_waits_for_a_time_that_no_report_determines(
        self, queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The phase is a quarter of the interval of 600 s, so the release times are 150 s after its multiples."""
        monkeypatch.setattr(queue_module.secrets, "randbelow", lambda n: n // 4)
        found = self.fill_whole(queue)
        start = 600.0 * 100
        assert queue.list_open(DATASET, start) == []
        for seconds in (0.0, 100.0, 149.0):
            assert queue.release_due(start + seconds, 600) == []
        assert queue.release_due(start + 151, 600) == [("rnd_1", State.RELEASED, 5)]
        assert len(queue.load_batch(found)) == 5

    def test_delay_is_not_shortened_by_a_restart_or_by_the_clock(
        self, queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(queue_module.secrets, "randbelow", lambda n: n // 4)
        self.fill_whole(queue)
        start = 600.0 * 100
        assert queue.release_due(start + 100, 600) == []
        queue.close()
        with closing(Queue(tmp_path / "shuffler.db")) as again:
            assert again.release_due(start + 149, 600) == []
            assert again.release_due(start - 6000, 600) == []  # the clock goes back
            assert again.release_due(start - 6000 + 149, 600) == []
            assert again.release_due(start - 6000 + 151, 600) == [("rnd_1", State.RELEASED, 5)]

    def test_comes_at_closes_at_at_the_latest(self, queue: Queue) -> None:
        found = self.fill_whole(queue)
        assert queue.release_due(found.closes_at - 1, 1e9) == []
        assert queue.release_due(found.closes_at, 1e9) == [("rnd_1", State.RELEASED, 5)]

    def test_times_differ_between_rounds(self, queue: Queue) -> None:
        for number in range(8):
            queue.add_round(DATASET, parsed(f"rnd_{number}"))
        phases = queue._database.execute("SELECT DISTINCT phase FROM rounds").fetchall()
        assert len(phases) == 8
        assert all(0 <= phase < queue_module.PHASES for (phase,) in phases)

    def fill_whole(self, queue: Queue) -> Round:
        found, app = parsed(), backend(queue)
        queue.add_round(DATASET, found)
        reports = [Submission(app, str(each), "rnd_1", sent(queue, found, each)) for each in range(5)]
        assert set(queue.store(reports, NOW)) == {Verdict.STORED}
        return found


class TestFailures:
    def test_a_failed_commit_ends_its_transaction(self, queue: Queue, tmp_path: Path, monkeypatch: Any) -> None:
        """A reader holds the file, so a commit fails. The next one succeeds when the reader has ended."""
        queue._database.execute("PRAGMA busy_timeout = 50")
        found, app = parsed(), backend(queue)
        queue.add_round(DATASET, found)
        report = Submission(app, "ann", "rnd_1", sent(queue, found, 1))
        with closing(sqlite3.connect(tmp_path / "shuffler.db", isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM reports").fetchone()
            for _ in range(2):
                with pytest.raises(sqlite3.OperationalError, match="locked"):
                    queue.store([report], NOW)
                with pytest.raises(sqlite3.OperationalError, match="locked"):
                    queue.check_write()
            reader.execute("COMMIT")
        queue.check_write()
        assert queue.store([report], NOW) == [Verdict.STORED]

    def test_another_version_of_the_file_is_named(self, queue: Queue, tmp_path: Path) -> None:
        for version, age in ((1, "an unreleased"), (9, "a newer")):
            queue._database.execute(f"PRAGMA user_version = {version}")
            with pytest.raises(QueueUnusable, match=f"written by {age} version: use that version, or"):
                Queue(tmp_path / "shuffler.db")


class TestForwarders:
    def test_resends_count_once_and_look_new(self, queue: Queue) -> None:
        found, app = parsed(), backend(queue)
        queue.add_round(DATASET, found)
        sealed = sealed_for(found, 1)
        sent_bytes = [wrap(sealed, "rnd_1", outer_key(queue, found)) for _ in range(3)]
        assert len(set(sent_bytes)) == 3
        outcomes = queue.store([Submission(app, "ann", "rnd_1", each) for each in sent_bytes], NOW)
        assert outcomes == [Verdict.STORED] * 3
        queue.release_due(found.closes_at, 0)
        assert queue.list_released() == [Released("rnd_1", State.DISCARDED, 0)]

    def test_a_copy_under_another_name_is_in_the_batch_once(self, queue: Queue) -> None:
        """A forwarder would recognise a report by its number of copies. The device of the report notices nothing."""
        found, app = parsed(), backend(queue)
        queue.add_round(DATASET, found)
        wrapped = sent(queue, found, 1)
        names = ["fake-1", "fake-2", "ann", "fake-3"]
        assert queue.store([Submission(app, each, "rnd_1", wrapped) for each in names], NOW) == [Verdict.STORED] * 4
        others = [Submission(app, f"p{each}", "rnd_1", sent(queue, found, each)) for each in range(2, 6)]
        assert queue.store(others, NOW) == [Verdict.STORED] * 4
        queue.release_due(NOW, 0)
        assert sorted(numbers(queue.load_batch(found), found)) == [1, 2, 3, 4, 5]

    def test_a_layer_of_another_round_is_refused(self, queue: Queue) -> None:
        found, other, app = parsed(), parsed("rnd_2"), backend(queue)
        queue.add_round(DATASET, found)
        queue.add_round(DATASET, other)
        assert outer_key(queue, found) != outer_key(queue, other)
        wrapped = wrap(sealed_for(found, 1), "rnd_1", outer_key(queue, other))
        assert queue.store([Submission(app, "ann", "rnd_1", wrapped)], NOW) == [Verdict.NOT_WRAPPED]


class Machine(RuleBasedStateMachine):
    """Senders that report and repeat, a clock, releases, and a process that starts again."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "shuffler.db"
        self.queue = Queue(self.path)
        self.key = backend(self.queue)
        self.found = parsed(seconds=50)
        self.queue.add_round(DATASET, self.found)
        self.outer_key = outer_key(self.queue, self.found)
        self.now = self.found.closes_at - 50
        self.sealed: dict[tuple[int, int], bytes] = {}
        self.stored: dict[int, bytes] = {}
        self.released: list[bytes] | None = None
        self.is_over = False

    @rule(sender=st.integers(0, 7), version=st.integers(0, 1))
    def report(self, sender: int, version: int) -> None:
        sealed = bytes([sender, version]) * 40
        sealed = (sealed + bytes(self.found.sealed_bytes))[: self.found.sealed_bytes]
        wrapped = wrap(sealed, "rnd_1", self.outer_key)
        (verdict,) = self.queue.store([Submission(self.key, str(sender), "rnd_1", wrapped)], self.now)
        is_due = len(self.stored) >= 5 or self.now >= self.found.closes_at
        if self.is_over:
            expected = Verdict.CLOSED
        elif sender in self.stored:
            expected = Verdict.STORED if self.stored[sender] == sealed else Verdict.ALREADY_REPORTED
        else:
            expected = Verdict.CLOSED if is_due else Verdict.STORED
        assert verdict == expected
        if verdict == Verdict.STORED:
            self.stored[sender] = sealed

    @rule(seconds=st.integers(1, 30))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @rule()
    def release(self) -> None:
        is_due = len(self.stored) >= 5 or self.now >= self.found.closes_at
        changed = self.queue.release_due(self.now, 0)
        assert len(changed) == (is_due and not self.is_over)
        if changed:
            self.is_over = True
            if len(self.stored) >= 3:
                self.released = self.queue.load_batch(self.found)
                assert sorted(self.released) == sorted(self.stored.values())

    @rule()
    def start_again(self) -> None:
        self.queue.close()
        self.queue = Queue(self.path)

    @precondition(lambda self: self.released is not None)
    @rule()
    def acknowledge(self) -> None:
        self.queue.end("rnd_1", State.ACKNOWLEDGED)
        self.released = []

    @invariant()
    def the_batch_is_the_one_that_was_released(self) -> None:
        assert self.queue.load_batch(self.found) == (self.released or [])
        assert bool(self.queue.list_waiting()) == bool(self.released)

    @invariant()
    def no_number_is_public_before_the_release(self) -> None:
        (only,) = self.queue.list_released()
        assert only.n_reports == (len(self.stored) if self.released is not None else 0)

    def teardown(self) -> None:
        self.queue.close()
        self.folder.cleanup()


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=15, stateful_step_count=25)
TestMachine.pytestmark = pytest.mark.slow
