"""The keys of records are sealed again under another master key."""

import pytest

from models import encryption
from models.encryption import Keyring
from models.errors import RecordsKeyMissing
from models.tables.datasets import RecordKey
from tests.models.records import RING, begin, central, load, some, store, upload
from tests.models.world import World


@pytest.fixture
def database_kind() -> str:
    """Return SQLite only: these tests check rules that do not depend on the database."""
    return "sqlite"


class TestRotation:
    def test_seals_keys_anew_and_touches_no_record(self, world: World) -> None:
        within, ring = central(world), Keyring((encryption.new_secret(), *RING.keys))
        upload(world, within, some(5))
        with world.database.transaction() as session:
            assert encryption.list_outdated(session, RecordKey, ring, after="", limit=9) == [within.id]
            encryption.reseal(session, RecordKey, within.id, ring)
        assert world.read(encryption.list_outdated, RecordKey, ring, after="", limit=9) == []
        alone = Keyring(ring.keys[:1])
        assert load(world, within, alone).points.tolist() == some(5).tolist()
        with pytest.raises(RecordsKeyMissing):
            load(world, within, RING)

    def test_of_what_is_gone_or_done_does_nothing(self, world: World) -> None:
        within, bare = central(world), central(world)
        upload(world, within, some(5))
        with world.database.transaction() as session:
            before = session.get_one(RecordKey, within.id).sealed
            for each in (within, bare):
                encryption.reseal(session, RecordKey, each.id, RING)
            assert session.get_one(RecordKey, within.id).sealed == before
            assert session.get(RecordKey, bare.id) is None

    def test_voids_no_upload_that_is_under_way(self, world: World) -> None:
        within, ring = central(world), Keyring((encryption.new_secret(), *RING.keys))
        under_way = begin(world, within)
        under_way.add(some(5), None, 0)
        world.write(encryption.reseal, RecordKey, within.id, ring)
        store(world, under_way)
        assert len(load(world, within, Keyring(ring.keys[:1])).points) == 5
