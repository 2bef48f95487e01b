"""The report log: in order of arrival, read page by page, and gone for good when it is scrubbed."""

import time
from pathlib import Path

import pytest

from models.collection import report_intake, report_log, rounds
from models.database.engine import Database
from models.tables.rounds import CollectionTarget
from sfumato.privacy.accounting import NANO
from tests.databases import on_sqlite
from tests.models.world import NOW, World

SECRET = b"DISTINCTIVE-PAYLOAD-OF-A-REPORT-"


class TestBatches:
    def test_come_in_order_of_arrival_and_of_one_round_only(self, world: World) -> None:
        within = world.new_dataset(epsilon_nano=100 * NANO)
        mine, other = (world.open_standalone(within, collect=CollectionTarget(10_000, 1, 3600)).id for _ in range(2))
        with world.database.transaction() as session:
            for i in range(50):
                report_intake.receive(session, mine, 1, b"%d" % i, now=NOW)
                report_intake.receive(session, other, 1, b"other", now=NOW)

        assert world.log(mine) == [b"%d" % i for i in range(50)]
        with world.database.reading() as session:
            numbers = [number for number, _ in report_log.batches(session, mine)]
            rest = [packed for _, packed in report_log.batches(session, mine, after=numbers[46])]
            assert report_log.count(session, mine) == 50
        assert numbers == sorted(numbers)
        assert rest == [b"47", b"48", b"49"]

    def test_are_read_whole_whatever_the_page_holds(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        opened = world.open_standalone(world.new_dataset(), collect=CollectionTarget(10_000, 1, 3600)).id
        sent = [bytes([i]) * (1 + 37 * i % 300) for i in range(60)]
        sent += [b"a" * 64 * 1024, b"b" * 64 * 1024 + b"c", b"d" * 200_000, b"e"]  # long ones are read as blobs
        with world.database.transaction() as session:
            for packed in sent:
                report_intake.receive(session, opened, 1, packed, now=NOW)

        for page_bytes in (1, 100, 1000, 1 << 20):
            for name in ("_PAGE_BYTES", "_STREAM_BYTES"):
                monkeypatch.setattr(report_log, name, page_bytes)
            assert world.log(opened) == sent

    def test_keep_every_byte(self, world: World) -> None:
        opened = world.open_standalone(world.new_dataset()).id
        world.receive(opened, 1, bytes(range(256)))

        assert world.log(opened) == [bytes(range(256))]

    def test_of_large_requests_have_a_row_each(self, world: World) -> None:
        opened = world.open_standalone(world.new_dataset(), collect=CollectionTarget(7, 1, 3600)).id
        with world.database.transaction() as session:
            apart = [(2, memoryview(b"22")), (3, b"333")]
            assert not report_intake.receive(session, opened, 1, b"1", apart=apart, now=NOW).is_full
            assert report_intake.receive(session, opened, 0, b"", apart=[(1, b"4")], now=NOW).is_full

        assert world.log(opened) == [b"1", b"22", b"333", b"4"]
        assert (world.n_logged(opened), world.round(opened).n_received) == (7, 7)

    def test_of_no_report_are_none(self, world: World) -> None:
        opened = world.open_standalone(world.new_dataset()).id

        assert world.log(opened) == []
        assert world.n_logged(opened) == 0


@on_sqlite
class TestMarks:
    def test_stand_behind_each_row_that_reaches_another_so_many_reports(self, world: World) -> None:
        within = world.new_dataset(epsilon_nano=100 * NANO)
        mine, other = (world.open_standalone(within, collect=CollectionTarget(10_000, 1, 3600)).id for _ in range(2))
        lengths = [3, 6, 3, 7, 0, 3, 24, 3, 6, 2, 9, 3]  # reports have 3 bytes; 7 and 2 were truncated
        with world.database.transaction() as session:
            for length in lengths:
                report_intake.receive(session, other, 1, b"o" * 30, now=NOW)
                report_intake.receive(session, mine, 1, b"r" * length, now=NOW)

        with world.database.reading() as session:
            rows = [row for row, _ in report_log.batches(session, mine)]
            found = {every: report_log.marks(session, mine, 3, every=every) for every in (1, 4, 5, 100)}
        behind = dict(zip(rows, [1, 3, 4, 4, 4, 5, 13, 14, 16, 16, 19, 20], strict=True))
        assert found[4] == [(rows[i], behind[rows[i]]) for i in (2, 6, 8, 11)]
        assert found[5] == [(rows[i], behind[rows[i]]) for i in (5, 6, 8, 11)]
        assert found[1] == [(rows[i], behind[rows[i]]) for i in (0, 1, 2, 5, 6, 7, 8, 10, 11)]
        assert found[100] == []


def files_with_secret(database: Database) -> set[str]:
    """Which of the database's files hold the payload."""
    path = Path(str(database.engine.url.database))
    return {found.name for found in path.parent.glob(f"{path.name}*") if SECRET in found.read_bytes()}


@on_sqlite
class TestScrubbing:
    @pytest.fixture
    def filled(self, world: World) -> str:
        """A closed round with long and short rows, which are in the log and in the file alike."""
        opened = world.open_standalone(world.new_dataset()).id
        for n in (1, 500, 3):
            world.receive(opened, 1, SECRET * n)
        checkpoint = world.database.engine.raw_connection()
        checkpoint.execute("PRAGMA wal_checkpoint(PASSIVE)")
        checkpoint.close()
        world.receive(opened, 1, SECRET)
        world.close(opened)
        assert files_with_secret(world.database) == {"sfumato.db", "sfumato.db-wal"}
        return opened

    def store_tally(self, world: World, round_id: str) -> None:
        world.write(rounds.store_tally, round_id, b"tally", 1, now=NOW)

    def test_leaves_no_byte_of_a_report_in_any_file(self, world: World, filled: str) -> None:
        self.store_tally(world, filled)

        assert files_with_secret(world.database) == set()

    def test_that_is_rolled_back_leaves_the_reports(self, world: World, filled: str) -> None:
        with pytest.raises(ZeroDivisionError):
            self.store_and_fail(world, filled)

        assert len(world.log(filled)) == 4

    def store_and_fail(self, world: World, round_id: str) -> None:
        with world.database.transaction() as session:
            rounds.store_tally(session, round_id, b"tally", 1, now=NOW)
            raise ZeroDivisionError

    def test_is_made_up_for_where_somebody_was_reading(
        self, world: World, filled: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("models.database.engine._WAL_RETRY_SECONDS", 0.05)
        with world.database.reading() as session:
            assert report_log.count(session, filled) == 4
            self.store_tally(world, filled)
            assert report_log.count(session, filled) == 4  # the reader still sees them: they cannot be gone yet
            assert files_with_secret(world.database) != set()

        deadline = time.monotonic() + 120  # a thread repeats the truncation
        while files_with_secret(world.database) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert files_with_secret(world.database) == set()
