"""The queue: one report of each sender, one release, and nothing that links after it."""

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

from sfumato.errors import InvalidSpec
from shuffler.queue import Queue, Released, Sender, State, Submission, Verdict
from shuffler.rounds import parse_listing, parse_round
from tests.shuffler.parties import DATASET, numbers, parsed, published, sealed_for

NOW = 1_000.0


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    with closing(Queue(tmp_path / "shuffler.db")) as opened:
        yield opened


def backend(queue: Queue, name: str = "app", dataset_id: str = DATASET) -> str:
    key = queue.add_sender(Sender(name, dataset_id, True))
    assert key is not None
    return key


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
        ],
    )
    def test_with_bad_terms_are_refused(self, changes: dict[str, Any]) -> None:
        with pytest.raises(InvalidSpec):
            parse_round(published(**changes))

    @pytest.mark.parametrize("listing", [{}, {"rounds": {}}, {"rounds": [1]}, {"rounds": [{"id": "rnd_1"}]}])
    def test_bad_listings_are_refused(self, listing: dict[str, Any]) -> None:
        with pytest.raises(InvalidSpec):
            parse_listing(listing)

    def test_keep_the_first_published_bytes(self, queue: Queue) -> None:
        first, second = parsed(), parsed(min_batch=2)
        assert queue.add_round(DATASET, first) == queue.add_round(DATASET, second) == first.document
        assert queue.find_document("rnd_1", "ds_2") is None


class TestStore:
    def test_each_bad_submission_has_its_outcome(self, queue: Queue) -> None:
        found, app, other = parsed(), backend(queue), backend(queue, "other", "ds_2")
        queue.add_round(DATASET, found)
        device = queue.add_sender(Sender("phone", DATASET, False))
        assert device is not None
        sealed = sealed_for(found, 1)
        submissions = {
            Submission(app, "ann", "rnd_1", sealed): Verdict.STORED,
            Submission(app, "ann", "rnd_1", sealed[::-1]): Verdict.ALREADY_REPORTED,
            Submission(device, None, "rnd_1", sealed_for(found, 2)): Verdict.STORED,
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
        sealed = sealed_for(found, 1)
        assert queue.store([Submission(old, "ann", "rnd_1", sealed)], NOW) == [Verdict.STORED]
        new = queue.replace_key("app")
        assert new is not None
        outcomes = queue.store([Submission(key, "ann", "rnd_1", sealed_for(found, 2)) for key in (old, new)], NOW)
        assert outcomes == [Verdict.UNAUTHENTICATED, Verdict.ALREADY_REPORTED]
        assert queue.add_sender(Sender("app", DATASET, True)) is queue.replace_key("unknown") is None

    def test_a_full_or_expired_round_accepts_only_repetitions(self, queue: Queue) -> None:
        found, app = parsed(), backend(queue)
        queue.add_round(DATASET, found)
        sent = [Submission(app, str(each), "rnd_1", sealed_for(found, each)) for each in range(6)]
        assert queue.store(sent, NOW) == [Verdict.STORED] * 5 + [Verdict.CLOSED]
        assert queue.store(sent[:1], found.closes_at) == [Verdict.STORED]
        assert queue.list_open(DATASET, NOW) == []
        queue.add_round(DATASET, late := parsed("rnd_2"))
        assert queue.list_open(DATASET, NOW) == ["rnd_2"]
        outcome = queue.store([Submission(app, "1", "rnd_2", sealed_for(late, 1))], late.closes_at)
        assert outcome == [Verdict.CLOSED]

    def test_files_are_private_and_contain_neither_sender_key_nor_time(self, queue: Queue, tmp_path: Path) -> None:
        found, app = parsed(), backend(queue)
        queue.add_round(DATASET, found)
        queue.store([Submission(app, "ann-of-the-test", "rnd_1", sealed_for(found, 1))], time.time())
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
        }
        assert is_rowid_free == 1


class TestRelease:
    def fill(self, queue: Queue, n: int, **changes: Any) -> Any:
        found, app = parsed(target_reports=1_000, **changes), backend(queue)
        queue.add_round(DATASET, found)
        sent = [Submission(app, str(each), found.id, sealed_for(found, each)) for each in range(n)]
        assert set(queue.store(sent, NOW)) == {Verdict.STORED}
        return found

    def test_is_whole_and_once_and_in_random_order(self, queue: Queue) -> None:
        found = self.fill(queue, 200)
        assert queue.release_due(NOW) == []
        assert queue.release_due(found.closes_at) == [("rnd_1", State.RELEASED, 200)]
        order = numbers(queue.load_batch(found), found)
        assert sorted(order) == list(range(200))
        correlation = np.corrcoef(order, range(200))[0, 1]  # its standard deviation is 1 / sqrt(199)
        assert abs(correlation) < 0.35
        assert queue.release_due(found.closes_at) == []
        assert numbers(queue.load_batch(found), found) == order

    def test_is_denied_below_min_batch_and_the_reports_are_deleted(self, queue: Queue, tmp_path: Path) -> None:
        found = self.fill(queue, 20, min_batch=21)
        sealed = sealed_for(found, 7)
        assert queue.release_due(found.closes_at) == [("rnd_1", State.DISCARDED, 0)]
        assert queue.load_batch(found) == queue.list_waiting() == []
        assert sealed[32:48] not in (tmp_path / "shuffler.db").read_bytes()
        assert queue.list_released() == [Released("rnd_1", State.DISCARDED, 0)]

    def test_leaves_no_report_and_no_secret_in_the_file(self, queue: Queue, tmp_path: Path) -> None:
        found, app = parsed(), backend(queue)
        queue.add_round(DATASET, found)
        sealed = [sealed_for(found, each) for each in range(5)]
        queue.store([Submission(app, str(at), "rnd_1", each) for at, each in enumerate(sealed)], NOW)
        path = tmp_path / "shuffler.db"
        assert all(each in path.read_bytes() for each in sealed)
        queue.release_due(NOW)
        queue.end("rnd_1", State.ACKNOWLEDGED)
        octets = path.read_bytes()
        assert not any(each in octets for each in sealed)
        with closing(sqlite3.connect(path)) as database:
            assert database.execute("SELECT state, n_reports, secret FROM rounds").fetchall() == [
                ("acknowledged", 5, None)
            ]
        assert queue.store([Submission(app, "0", "rnd_1", sealed[0])], NOW) == [Verdict.CLOSED]


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
        self.now = self.found.closes_at - 50
        self.sealed: dict[tuple[int, int], bytes] = {}
        self.stored: dict[int, bytes] = {}
        self.released: list[bytes] | None = None
        self.is_over = False

    @rule(sender=st.integers(0, 7), version=st.integers(0, 1))
    def report(self, sender: int, version: int) -> None:
        sealed = bytes([sender, version]) * 40
        sealed = (sealed + bytes(self.found.sealed_bytes))[: self.found.sealed_bytes]
        (verdict,) = self.queue.store([Submission(self.key, str(sender), "rnd_1", sealed)], self.now)
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
        changed = self.queue.release_due(self.now)
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
