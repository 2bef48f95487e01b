"""The tally of a closed round: aggregated under a lease, stored once, reports deleted by the retention rule."""

import pytest
from sqlalchemy.orm import Session, undefer

from models import maintenance
from models.collection import aggregation_leases, report_log, rounds
from models.errors import Conflict, NotFound
from models.jobs import lifecycle
from models.tables.rounds import Round, RoundState
from sfumato.privacy.accounting import NANO
from tests.models.world import LEASE, NOW, World, rolled_back, together


def store(session: Session, opened: Round, tally: bytes = b"tally", n_reports: int = 1) -> Round:
    return rounds.store_tally(session, opened.id, tally, n_reports, now=NOW + 7)


class TestClaimAggregation:
    def claim(self, world: World) -> str | None:
        return world.write(
            aggregation_leases.claim_aggregation, now=world.now, lease_microseconds=LEASE, max_attempts=5
        )

    def test_takes_each_closed_standalone_round_once_oldest_first(self, world: World) -> None:
        within = world.new_dataset(epsilon_nano=100 * NANO)
        ids = [world.open_standalone(within).id for _ in range(3)]
        assert self.claim(world) is None
        for round_id in ids[1:]:
            world.close(round_id)

        assert [self.claim(world) for _ in range(3)] == [*sorted(ids[1:]), None]

    def test_expired_lease_is_taken_again_and_a_renewed_one_is_not(self, world: World) -> None:
        opened = world.open_standalone(world.new_dataset())
        world.close(opened.id)
        assert self.claim(world) == opened.id
        world.write(aggregation_leases.renew_aggregation_lease, opened.id, until=NOW + 3 * LEASE)

        taken = []
        for world.now in (NOW + LEASE, NOW + 3 * LEASE - 1, NOW + 3 * LEASE):
            taken.append(self.claim(world))

        assert taken == [None, None, opened.id]

    def test_skips_rounds_of_a_job_until_the_job_ends(self, world: World) -> None:
        queued = world.submit(world.new_dataset())
        opened = world.open_for(world.claimed())
        world.receive(opened.id)
        world.close(opened.id)
        before = self.claim(world)

        world.write(lifecycle.cancel, world.caller, queued.id, now=NOW)

        assert (before, self.claim(world)) == (None, opened.id)

    def test_concurrent_claims_take_each_round_once(self, world: World) -> None:
        within = world.new_dataset(epsilon_nano=100 * NANO)
        ids = [world.open_standalone(within).id for _ in range(4)]
        for round_id in ids:
            world.close(round_id)

        taken = together([lambda: self.claim(world)] * 8)

        assert sorted(filter(None, taken)) == sorted(ids)

    def test_skips_tallied_rounds(self, world: World) -> None:
        opened = world.open_standalone(world.new_dataset())
        world.close(opened.id)
        world.write(store, opened, n_reports=0)

        assert self.claim(world) is None


class TestStoreTally:
    @pytest.fixture
    def closed(self, world: World) -> Round:
        opened = world.open_standalone(world.new_dataset())
        world.receive(opened.id, 2, b"reports")
        return world.close(opened.id)

    def test_stores_the_tally_and_deletes_the_reports_in_one_transaction(self, world: World, closed: Round) -> None:
        with rolled_back(world.database) as session:
            store(session, closed)
        assert (world.log(closed.id), world.round(closed.id).state) == ([b"reports"], RoundState.CLOSED)

        world.write(store, closed, b"tally", 2)

        with world.database.reading() as session:
            found = session.get_one(Round, closed.id, options=[undefer(Round.tally)])
        assert (found.state, found.tally, found.n_reports, found.tallied_at) == (
            RoundState.TALLIED,
            b"tally",
            2,
            NOW + 7,
        )
        assert world.log(closed.id) == []

    def test_first_tally_remains(self, world: World, closed: Round) -> None:
        world.write(store, closed, b"first", 2)
        with world.database.transaction() as session:
            again = store(session, closed, b"second", 1)
            session.refresh(again, ["tally"])

        assert (again.tally, again.n_reports) == (b"first", 2)

    def test_one_of_two_concurrent_tallies_is_stored(self, world: World, closed: Round) -> None:
        def fold(tally: bytes) -> None:
            world.write(store, closed, tally, 2)

        assert together([lambda i=i: fold(b"%d" % i) for i in range(4)]) == [None] * 4

        with world.database.reading() as session:
            found = session.get_one(Round, closed.id, options=[undefer(Round.tally)])
        assert found.tally in (b"0", b"1", b"2", b"3")
        assert world.log(closed.id) == []

    def test_open_or_unknown_round_is_rejected(self, world: World) -> None:
        opened = world.open_standalone(world.new_dataset())
        with world.database.transaction() as session:
            with pytest.raises(Conflict):
                store(session, opened)
            with pytest.raises(NotFound):
                rounds.store_tally(session, "rnd_unknown", b"", 0, now=NOW)

        assert world.round(opened.id).state == RoundState.OPEN

    def test_deleted_reports_are_rejected(self, world: World, closed: Round) -> None:
        world.write(report_log.scrub, closed.id)

        with pytest.raises(Conflict), world.database.transaction() as session:
            store(session, closed, b"of nothing", 0)

        assert world.round(closed.id).state == RoundState.CLOSED

    @pytest.mark.parametrize("keep_reports", [False, True])
    def test_retention_is_fixed_when_the_round_opens(self, world: World, keep_reports: bool) -> None:
        within = world.new_dataset(keep_reports=keep_reports, epsilon_nano=100 * NANO)

        def open_round() -> Round:
            opened = world.open_standalone(within)
            world.receive(opened.id, 1, b"kept")
            return opened

        tallied, closed, still_open = (open_round() for _ in range(3))
        for each in (tallied, closed):
            world.close(each.id)
        world.write(store, tallied)
        changes = {"name": None, "min_reports": None, "keep_reports": not keep_reports}
        within = world.write(maintenance.change_dataset, world.caller, within.id, **changes, now=NOW)
        later = open_round()
        for each in (still_open, later):
            world.close(each.id)
        for each in (closed, still_open, later):
            world.write(store, each)

        earlier = [world.log(each.id) for each in (tallied, closed, still_open)]
        assert earlier == [[b"kept"] if keep_reports else []] * 3
        assert world.log(later.id) == ([] if keep_reports else [b"kept"])
