"""Records that are deleted: gone from every file, with the key that sealed them."""

from pathlib import Path

import pytest
from sqlalchemy import select

from models import datasets, maintenance
from models.database.engine import Database
from models.errors import Conflict, NotFound
from models.records import records
from models.records.records import RecordCounts
from models.tables.datasets import Dataset, RecordKey, RecordSegment
from tests.databases import on_postgresql, on_sqlite
from tests.models.records import MANY, begin, central, counts, load, some, store, upload
from tests.models.world import NOW, Thread, World, wait_until_blocked


class TestDeleting:
    def drop(self, world: World, within: Dataset) -> None:
        world.write(maintenance.delete_records, world.caller, within.id, now=NOW)

    def test_takes_records_and_key_and_leaves_the_dataset_and_its_ledger(self, world: World) -> None:
        within, other = central(world), central(world)
        for each in (within, other):
            upload(world, each, some(5))
        before = world.chain(within.id)

        self.drop(world, within)
        self.drop(world, within)  # again changes nothing

        assert (counts(world, within), load(world, within).points.shape) == (RecordCounts(0, 0, 0), (0, 2))
        with world.database.reading() as session:
            assert session.get(RecordKey, within.id) is None
            assert session.get(RecordKey, other.id) is not None
        assert world.chain(within.id) == before
        assert len(load(world, other).points) == 5

    def test_gives_later_records_another_key(self, world: World) -> None:
        within = central(world)
        first = upload(world, within, some(5))
        self.drop(world, within)
        second = upload(world, within, some(4))
        assert (first.key.id, first.key.records) != (second.key.id, second.key.records)
        assert first.key.pseudonyms != second.key.pseudonyms
        assert len(load(world, within).points) == 4

    def test_of_the_dataset_takes_them_along(self, world: World) -> None:
        within = central(world)
        upload(world, within, some(5))
        world.write(maintenance.delete_dataset, world.caller, within.id, now=NOW)
        with world.database.reading() as session:
            assert session.scalars(select(RecordSegment)).all() == []
            assert session.scalars(select(RecordKey)).all() == []

    def test_of_local_or_foreign_datasets_is_refused(self, world: World) -> None:
        with pytest.raises(Conflict):
            self.drop(world, world.new_dataset())
        within = central(world)
        with pytest.raises(NotFound), world.database.transaction() as session:
            maintenance.delete_records(session, world.new_caller("stranger"), within.id, now=NOW)

    def test_voids_an_upload_that_is_under_way(self, world: World) -> None:
        within = central(world)
        under_way = begin(world, within)
        under_way.add(some(5), None, 0)
        self.drop(world, within)
        with pytest.raises(Conflict, match="send it again"):
            store(world, under_way)
        upload(world, within, some(1))  # under another key by now
        with pytest.raises(Conflict):
            store(world, under_way)
        assert counts(world, within).n_records == 1

    @on_postgresql
    def test_waits_for_an_upload_that_is_being_stored(self, world: World) -> None:
        within = central(world)
        made = begin(world, within)
        made.add(some(5), None, 0)
        with world.database.transaction() as session:
            datasets.get(session, world.caller, within.id, lock=True)
            records.append(session, made, max_records=MANY)
            dropping = Thread(lambda: self.drop(world, within))
            wait_until_blocked(world.database)
        dropping.outcome()
        assert counts(world, within) == RecordCounts(0, 0, 0)

    @on_sqlite
    def test_leaves_no_byte_of_them_in_any_file(self, world: World) -> None:
        within = central(world)
        made = [upload(world, within, some(n, seed=n)) for n in (2, 3000)]
        with world.database.reading() as session:
            sealed_key = session.get_one(RecordKey, within.id).sealed
        checkpoint = world.database.engine.raw_connection()
        checkpoint.execute("PRAGMA wal_checkpoint(PASSIVE)")
        checkpoint.close()
        made.append(upload(world, within, some(4)))
        needles = [bytes(each.segments[0]["sealed"])[:24] for each in made] + [sealed_key[:24]]  # type: ignore[call-overload]
        assert [bool(files_with(world.database, needle)) for needle in needles] == [True] * 4

        self.drop(world, within)

        assert [files_with(world.database, needle) for needle in needles] == [set()] * 4


def files_with(database: Database, needle: bytes) -> set[str]:
    """Which of the database's files hold these bytes."""
    path = Path(str(database.engine.url.database))
    return {found.name for found in path.parent.glob(f"{path.name}*") if needle in found.read_bytes()}
