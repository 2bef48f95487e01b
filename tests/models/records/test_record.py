"""Records: kept sealed, whole and in order; bounded by user."""

import tracemalloc
from collections import Counter
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sqlalchemy import select, update

from models.encryption import Keyring
from models.errors import LimitExceeded, RecordsKeyMissing, RecordsUnreadable
from models.records import records, user_bounds, user_counts
from models.records.records import RecordCounts
from models.records.user_counts import UserCounts
from models.tables.datasets import Dataset, RecordKey, RecordSegment
from tests.databases import on_sqlite
from tests.models.records import MANY, RING, begin, central, counts, load, some, store, upload
from tests.models.world import World, rolled_back, together


class TestRecords:
    def test_come_back_as_they_were_in_order_of_arrival(self, world: World) -> None:
        within, parts = central(world), [some(n, seed=n) for n in (5, 1, 3000)]
        for part in parts:
            upload(world, within, part)

        points, max_per_user = load(world, within)

        assert points.dtype == np.int32
        assert points.tolist() == np.concatenate(parts).tolist()
        assert max_per_user == 1

    def test_of_one_upload_take_several_segments(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(records, "SEGMENT_BYTES", 600)
        within, points = central(world), some(1000)
        made = begin(world, within)
        for at in range(0, 1000, 70):
            made.add(points[at : at + 70], None, int(at == 140))
        store(world, made)

        assert len(made.segments) == 8
        assert load(world, within).points.tolist() == points.tolist()
        assert counts(world, within) == RecordCounts(1000, 1, 1)
        assert made.n_bytes == 1000 * 6 + 8 * 28

    def test_of_a_dataset_without_any_are_none(self, world: World) -> None:
        for within in (central(world), central(world, user_feature="who")):
            assert load(world, within).points.shape == (0, 2)
            assert counts(world, within) == RecordCounts(0, 0, 0)

    def test_are_counted_by_dataset(self, world: World) -> None:
        first, second = central(world), central(world)
        upload(world, first, some(5), n_clipped=2)
        upload(world, first, some(7), n_clipped=1)
        upload(world, second, some(1))

        assert counts(world, first) == RecordCounts(12, 2, 3)
        assert counts(world, second) == RecordCounts(1, 1, 0)

    def test_stay_within_the_limit_exactly(self, world: World) -> None:
        within = central(world)
        upload(world, within, some(5))
        over, fitting = begin(world, within), begin(world, within)
        over.add(some(6), None, 0)
        fitting.add(some(5), None, 0)
        with pytest.raises(LimitExceeded, match="at most 10 records"):
            store(world, over, max_records=10)
        store(world, fitting, max_records=10)

        assert counts(world, within).n_records == 10

    def test_of_an_upload_that_fails_are_not_there(self, world: World) -> None:
        within = central(world)
        made = begin(world, within)
        made.add(some(5), None, 0)
        with rolled_back(world.database) as session:
            records.append(session, made, max_records=MANY)

        assert counts(world, within) == RecordCounts(0, 0, 0)

    def test_need_the_master_key_that_sealed_them(self, world: World) -> None:
        within = central(world)
        upload(world, within, some(5))
        with pytest.raises(RecordsKeyMissing, match=RING.newest_id):
            load(world, within, Keyring((bytes(32),)))


@on_sqlite
class TestSealedSegments:
    @pytest.fixture
    def within(self, world: World, monkeypatch: pytest.MonkeyPatch) -> Dataset:
        monkeypatch.setattr(records, "SEGMENT_BYTES", 60)
        within = central(world)
        for n in (20, 20):
            made = begin(world, within)
            for _ in range(2):
                made.add(some(n // 2), None, 0)
            store(world, made)
        return within

    def segments(self, world: World, within: Dataset) -> list[RecordSegment]:
        with world.database.reading() as session:
            query = select(RecordSegment).where(RecordSegment.dataset_id == within.id)
            return list(session.scalars(query.order_by(RecordSegment.upload_id, RecordSegment.index)))

    def put(self, world: World, target: RecordSegment, **values: Any) -> None:
        place = (target.dataset_id, target.upload_id, target.index)
        own = (RecordSegment.dataset_id, RecordSegment.upload_id, RecordSegment.index)
        with world.database.transaction() as session:
            session.execute(
                update(RecordSegment).where(*(a == b for a, b in zip(own, place, strict=True))).values(**values)
            )

    @pytest.mark.parametrize(("taken", "target"), [(1, 0), (2, 0), (0, 3)])
    def test_do_not_open_in_each_others_place(self, world: World, within: Dataset, taken: int, target: int) -> None:
        found = self.segments(world, within)
        assert len(found) == 4
        self.put(world, found[target], sealed=found[taken].sealed)
        with pytest.raises(RecordsUnreadable):
            load(world, within)

    def test_do_not_open_in_another_dataset_under_a_copied_key(self, world: World, within: Dataset) -> None:
        other = central(world)
        with world.database.transaction() as session:
            key = session.get_one(RecordKey, within.id)
            session.add(RecordKey(dataset_id=other.id, id=key.id, sealed_by=key.sealed_by, sealed=key.sealed))
        with pytest.raises(RecordsUnreadable):
            load(world, other)
        with pytest.raises(RecordsUnreadable):
            begin(world, other)

    def test_do_not_open_where_a_bit_or_their_number_was_changed(self, world: World, within: Dataset) -> None:
        first = self.segments(world, within)[0]
        self.put(world, first, sealed=first.sealed[:-1] + bytes([first.sealed[-1] ^ 1]))
        with pytest.raises(RecordsUnreadable):
            load(world, within)
        self.put(world, first, sealed=first.sealed, n_records=9)
        with pytest.raises(RecordsUnreadable):
            load(world, within)

    def test_are_as_long_whatever_they_hold(self, world: World) -> None:
        within = central(world)
        alike, mixed = upload(world, within, np.zeros((50, 2))), upload(world, within, some(50))
        lengths = {len(each.sealed) for each in self.segments(world, within)}
        assert alike.n_bytes == mixed.n_bytes == lengths.pop()
        assert lengths == set()


@on_sqlite
class TestParts:
    @pytest.mark.parametrize("limits", [{}, {"user_feature": "who", "max_records_per_user": 2}])
    @pytest.mark.parametrize("n_parts", [1, 2, 3, 7])
    def test_are_together_all_records_in_their_order(self, world: World, limits: dict, n_parts: int) -> None:
        within = central(world, **limits)
        for n in (5, 1, 9, 4):
            upload(world, within, some(n), [f"user {i % 3}".encode() for i in range(n)] if limits else None)

        with world.database.reading() as session:
            parts = [records.load(session, within.id, RING, part=part, n_parts=n_parts) for part in range(n_parts)]
            before = records.digest(session, within.id)

        assert np.concatenate([part.points for part in parts]).tolist() == load(world, within).points.tolist()
        assert {part.max_per_user for part in parts} == {limits.get("max_records_per_user", 1)}
        upload(world, within, some(1), [b"user 1"] if limits else None)
        assert world.read(records.digest, within.id) != before


@on_sqlite
class TestUsers:
    def test_have_their_first_records_used_and_no_more(self, world: World) -> None:
        within = central(world, user_feature="who", max_records_per_user=2)
        upload(world, within, [[1, 1], [2, 2], [3, 3], [4, 4]], [b"a", b"b", b"a", b"a"])
        upload(world, within, [[5, 5], [6, 6], [7, 7]], [b"b", b"c", b"b"])

        points, max_per_user = load(world, within)

        assert points[:, 0].tolist() == [1, 2, 3, 5, 6]
        assert max_per_user == 2
        with world.database.reading() as session:
            assert user_counts.count_users(session, session.get_one(Dataset, within.id), RING) == UserCounts(3, 5)

    @pytest.mark.parametrize(("at_once", "pending"), [(1 << 20, 1 << 18), (40, 7), (1, 1)])
    def test_are_counted_in_bounded_memory(
        self, world: World, monkeypatch: pytest.MonkeyPatch, at_once: int, pending: int
    ) -> None:
        monkeypatch.setattr(records, "SEGMENT_BYTES", 300)
        monkeypatch.setattr(user_counts, "_USERS_AT_ONCE", at_once)
        monkeypatch.setattr(user_counts, "_PENDING_USERS", pending)
        largest = 0
        add = user_counts._add_users

        def watch(*arguments: Any) -> Any:
            nonlocal largest
            users, numbers = add(*arguments)
            largest = max(largest, len(users))
            return users, numbers

        monkeypatch.setattr(user_counts, "_add_users", watch)
        within = central(world, user_feature="who", max_records_per_user=3)
        users = np.random.default_rng(3).integers(0, 150, 900)
        users[:200] = 7  # one user has many records
        made, points = begin(world, within), some(900)
        for at in range(0, 900, 10):
            made.add(points[at : at + 10], [b"%d" % user for user in users[at : at + 10]], 0)
        store(world, made)
        expected = Counter(users.tolist())

        with world.database.reading() as session:
            found = user_counts.count_users(session, session.get_one(Dataset, within.id), RING)

        assert found == UserCounts(len(expected), sum(min(n, 3) for n in expected.values()))
        assert largest <= at_once + pending + 20  # records of a segment

    @pytest.mark.parametrize("part_records", [50, 1])  # the latter means as many parts as there may be
    def test_are_bounded_whatever_others_have(
        self, world: World, monkeypatch: pytest.MonkeyPatch, part_records: int
    ) -> None:
        """One user's records replaced: the others' points stay, and at most m change."""
        monkeypatch.setattr(user_bounds, "_PART_RECORDS", part_records)
        monkeypatch.setattr(records, "SEGMENT_BYTES", 500)
        chance = np.random.default_rng(7)
        users = chance.integers(0, 60, 700)
        points = some(700)
        found = []
        for changed in (points, np.where((users == 17)[:, None], 5, points)):
            within = central(world, user_feature="who", max_records_per_user=3)
            upload(world, within, changed, [b"%d" % user for user in users])
            found.append(load(world, within).points)
        first, second = found
        of_17 = [row for row, user in enumerate(users) if user == 17]

        seen: dict[int, int] = {}
        expected = []
        for row, user in enumerate(users.tolist()):  # the plain way
            seen[user] = seen.get(user, 0) + 1
            if seen[user] <= 3:
                expected.append(row)
        assert first.tolist() == points[expected].tolist()
        assert len(first) == len(second)
        changed_rows = (first != second).any(axis=1)
        assert changed_rows.sum() == 3 < len(of_17)

    def test_are_kept_as_pseudonyms_of_their_dataset_alone(self, world: World) -> None:
        names: list[NDArray[np.uint64]] = []
        for within in (central(world, user_feature="who"), central(world, user_feature="who")):
            upload(world, within, some(3), [b"anna", b"berta", b"anna"])
            with world.database.reading() as session:
                names.append(records._pseudonyms(session, session.get_one(Dataset, within.id), RING))
        first, second = names
        assert first[0].tolist() == first[2].tolist() != first[1].tolist()
        assert not set(first.ravel().tolist()) & set(second.ravel().tolist())

    def test_cost_memory_for_their_pseudonyms_before_the_points(self, world: World) -> None:
        n = 300_000
        within = central(world, user_feature="who", max_records_per_user=2)
        upload(world, within, some(n), [b"%d" % (row // 3) for row in range(n)])
        load(world, central(world))  # imports the modules that are loaded once
        tracemalloc.start()
        points, _ = load(world, within)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(points) == 200_000
        assert peak < 3 * n * (2 * 8 + 16)  # records as they came: doubles, and a pseudonym


class TestAtOnce:
    def test_uploads_to_one_dataset_are_all_there(self, world: World) -> None:
        within = central(world)
        outcomes = together([lambda n=n: upload(world, within, some(n)) for n in range(1, 9)])
        assert not [each for each in outcomes if isinstance(each, Exception)]
        assert counts(world, within) == RecordCounts(36, 8, 0)
        assert len({each.key.records for each in outcomes}) == 1
        assert len(load(world, within).points) == 36
