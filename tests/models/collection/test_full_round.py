"""A round is full when it has enough distinct reports."""

import secrets
from random import Random

import pytest

from models.collection import report_intake
from models.collection.distinct_reports import DistinctReports
from models.tables.rounds import CollectionTarget, RoundState
from tests.models.world import World

WIDTH = 21  # bytes of a report: an id, a slot and a value of one byte


def reports(ids: list[int]) -> bytes:
    """Return packed reports with these ids."""
    return b"".join(each.to_bytes(16, "little") + bytes(5) for each in ids)


class TestFull:
    def test_is_reached_by_distinct_reports_as_a_set_counts_them(self, world: World) -> None:
        random = Random(7)  # noqa: S311 - a sequence to repeat
        for target in (1, 3, 40):
            opened = world.open_standalone(world.new_dataset(min_reports=1), collect=CollectionTarget(target, 1, 3600))
            seen: set[int] = set()
            counted: DistinctReports | None = None
            is_full = False
            while not is_full:
                ids = [random.randrange(2 * target) for _ in range(random.randint(1, 4))]
                seen.update(ids)
                received = world.write(
                    report_intake.receive,
                    opened.id,
                    len(ids),
                    reports(ids),
                    distinct=counted if random.random() < 0.7 else None,  # another gateway has no earlier count
                    now=world.now,
                )
                counted, is_full = received.distinct, received.is_full
                assert is_full == (len(seen) >= target)
                state = RoundState.CLOSED if is_full else RoundState.OPEN
                assert world.round(opened.id).state == state

    def test_needs_few_reads_of_the_log(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        opened = world.open_standalone(world.new_dataset(min_reports=1), collect=CollectionTarget(100, 1, 3600))
        calls = []
        advance = DistinctReports.advance
        monkeypatch.setattr(DistinctReports, "advance", lambda *given: calls.append(1) or advance(*given))
        for _ in range(300):
            world.receive(opened.id, 1, reports([5]))
        assert world.round(opened.id).n_received == 300
        assert len(calls) == 3  # at 100, 199 and 298

    def test_ids_that_differ_in_one_bit_are_distinct(self, world: World) -> None:
        ids = sorted({0, *(1 << bit for bit in range(128)), *(secrets.randbits(128) for _ in range(5000))})
        opened = world.open_standalone(world.new_dataset(min_reports=1), collect=CollectionTarget(10**6, 1, 3600))
        for part in (ids[:4000], ids[2000:], ids[::-1]):
            world.receive(opened.id, len(part), reports(part))
        with world.database.reading() as session:
            found = DistinctReports().advance(session, opened.id, WIDTH)
            assert (found.count, found.n_read) == (len(ids), 4000 + len(ids) - 2000 + len(ids))
            assert found.advance(session, opened.id, WIDTH).n_read == found.n_read
