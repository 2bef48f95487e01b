"""The keys of records, sealed anew under another master key."""

import pytest

from models import record_key, sealing
from models.errors import RecordsKeyMissing
from models.record_key import RecordKey
from models.sealing import Keyring
from tests.models.records import RING, begin, central, load, some, store, upload
from tests.models.world import World


class TestRotation:
    def test_seals_keys_anew_and_touches_no_record(self, world: World) -> None:
        within, ring = central(world), Keyring((sealing.new_secret(), *RING.keys))
        upload(world, within, some(5))
        with world.database.transaction() as session:
            assert record_key.outdated(session, ring, after="", limit=9) == [within.id]
            record_key.reseal(session, within.id, ring)
        with world.database.reading() as session:
            assert record_key.outdated(session, ring, after="", limit=9) == []
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
                record_key.reseal(session, each.id, RING)
            assert session.get_one(RecordKey, within.id).sealed == before
            assert session.get(RecordKey, bare.id) is None

    def test_voids_no_upload_that_is_under_way(self, world: World) -> None:
        within, ring = central(world), Keyring((sealing.new_secret(), *RING.keys))
        under_way = begin(world, within)
        under_way.add(some(5), None, 0)
        with world.database.transaction() as session:
            record_key.reseal(session, within.id, ring)
        store(world, under_way)
        assert len(load(world, within, Keyring(ring.keys[:1])).points) == 5
