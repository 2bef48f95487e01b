"""The records of one person that are deleted from encrypted segments."""

from typing import Any

import numpy as np
import pytest
from sqlalchemy import select

from models import maintenance
from models.errors import Conflict
from models.identity import audit_trail
from models.records import records
from models.records.user_counts import count_users
from models.tables.datasets import Dataset, RecordSegment
from models.tables.identity import Act
from tests.models.records import RING, begin, central, counts, load, some, store, upload
from tests.models.world import NOW, World


def people(*names: str) -> list[bytes]:
    return [name.encode() for name in names]


def remove(world: World, within: Dataset, name: str) -> None:
    world.write(maintenance.delete_person, world.caller, within.id, name.encode(), RING, now=NOW)


def by_user(world: World) -> Dataset:
    return central(world, user_feature="user", max_records_per_user=100)


class TestDeleting:
    def test_leaves_exactly_the_records_of_the_others(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(records, "SEGMENT_BYTES", 60)  # a few records in each of many segments
        within, random = by_user(world), np.random.default_rng(5)
        names = [f"p{random.integers(6)}" for _ in range(40)]
        points = some(40)
        for start in (0, 13, 30):
            stop = {0: 13, 13: 30, 30: 40}[start]
            made = begin(world, within)
            for at in range(start, stop):
                made.add(points[at : at + 1], people(names[at]), 0)
            store(world, made)
        for gone in ("p3", "p0", "p3", "nobody"):
            remove(world, within, gone)
        left = [at for at in range(40) if names[at] not in ("p3", "p0")]
        assert load(world, within).points.tolist() == points[left].tolist()
        assert counts(world, within).n_records == len(left)
        with world.database.reading() as session:
            found = count_users(session, session.get_one(Dataset, within.id), RING)
            assert (found.n_users, found.n_used) == (len({names[at] for at in left}), len(left))

    def test_forgets_the_hash_of_an_upload_with_them(self, world: World) -> None:
        within = by_user(world)
        upload(world, within, some(3), people("a", "b", "a"))
        remove(world, within, "a")
        rest = upload(world, within, some(3)[1:2], people("b"))
        with world.database.reading() as session:
            kept = session.scalars(select(RecordSegment.content).where(RecordSegment.dataset_id == within.id)).all()
        assert kept == [rest.content, rest.content]  # the hash of an upload of the other person alone

    def test_of_the_only_person_leaves_a_dataset_without_records(self, world: World) -> None:
        within = by_user(world)
        upload(world, within, some(5), people(*"aaaaa"), n_clipped=4)
        remove(world, within, "a")
        assert counts(world, within) == (0, 0, 0)
        assert load(world, within).points.shape == (0, 2)
        upload(world, within, some(2), people("b", "c"))
        assert len(load(world, within).points) == 2

    def test_changes_neither_the_ledger_nor_names_the_person_in_the_audit_trail(self, world: World) -> None:
        within = by_user(world)
        upload(world, within, some(2), people("somebody", "else"))
        before = world.chain(within.id)
        for name in ("somebody", "nobody"):
            remove(world, within, name)
        assert world.chain(within.id) == before
        events = world.read(audit_trail.page, world.caller.tenant_id, limit=100, act=Act.PERSON_DELETED.value)
        assert [(event.subject_id, event.details) for event in events] == [(within.id, {})] * 2

    def test_does_the_same_work_whether_or_not_the_person_has_records(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        within = by_user(world)
        for seed in range(4):
            upload(world, within, some(3, seed), people("a" if seed == 1 else "c", "b", "b"))
        work: list[str] = []
        for name in ("seal", "unseal"):
            original = getattr(records.encryption, name)

            def counted(*given: Any, name: str = name, original: Any = original) -> Any:
                work.append(name)
                return original(*given)

            monkeypatch.setattr(records.encryption, name, counted)
        done = []
        for person in ("nobody", "a"):
            work.clear()
            remove(world, within, person)
            done.append((work.count("seal"), work.count("unseal")))
        assert done[0] == done[1] == (1, 5)  # four segments and the data key

    def test_needs_a_central_dataset_with_users(self, world: World) -> None:
        for within in (world.new_dataset(), central(world)):
            with pytest.raises(Conflict):
                remove(world, within, "a")
