"""From a closed round to its tally: folded by one, stored once, its reports gone by the retention rule."""

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, undefer

from models import dataset as datasets
from models import fold as folds
from models import job, report
from models import round as rounds
from models.errors import Conflict, NotFound
from models.round import Round, RoundState
from sfumato.accounting import NANO
from tests.models.world import LEASE, NOW, Thread, World, rolled_back, together, wait_until_blocked

POSTGRES = pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)


def store(session: Session, opened: Round, tally: bytes = b"tally", n_reports: int = 1) -> Round:
    return rounds.store_tally(session, opened.id, tally, n_reports, now=NOW + 7)


class TestClaimingAFold:
    def claim(self, world: World) -> str | None:
        with world.database.transaction() as session:
            return folds.claim_fold(session, now=world.now, lease_microseconds=LEASE, max_attempts=5)

    def test_takes_closed_rounds_of_their_own_oldest_first_and_each_once(self, world: World) -> None:
        within = world.new_dataset(epsilon_nano=100 * NANO)
        ids = [world.open_standalone(within).id for _ in range(3)]
        assert self.claim(world) is None
        for round_id in ids[1:]:
            world.close(round_id)

        assert [self.claim(world) for _ in range(3)] == [*sorted(ids[1:]), None]

    def test_a_lapsed_claim_is_taken_again_and_a_kept_one_is_not(self, world: World) -> None:
        opened = world.open_standalone(world.new_dataset())
        world.close(opened.id)
        assert self.claim(world) == opened.id
        with world.database.transaction() as session:
            folds.keep_fold(session, opened.id, until=NOW + 3 * LEASE)

        taken = []
        for world.now in (NOW + LEASE, NOW + 3 * LEASE - 1, NOW + 3 * LEASE):
            taken.append(self.claim(world))

        assert taken == [None, None, opened.id]

    def test_leaves_alone_what_a_job_will_fold_until_the_job_is_over(self, world: World) -> None:
        queued = world.submit(world.new_dataset())
        opened = world.open_for(world.claimed())
        world.receive(opened.id)
        world.close(opened.id)
        before = self.claim(world)

        with world.database.transaction() as session:
            job.cancel(session, world.caller, queued.id, now=NOW)

        assert (before, self.claim(world)) == (None, opened.id)

    def test_of_many_at_once_each_round_goes_to_one(self, world: World) -> None:
        within = world.new_dataset(epsilon_nano=100 * NANO)
        ids = [world.open_standalone(within).id for _ in range(4)]
        for round_id in ids:
            world.close(round_id)

        taken = together([lambda: self.claim(world)] * 8)

        assert sorted(filter(None, taken)) == sorted(ids)

    def test_a_tallied_round_is_not_folded_again(self, world: World) -> None:
        opened = world.open_standalone(world.new_dataset())
        world.close(opened.id)
        with world.database.transaction() as session:
            store(session, opened, n_reports=0)

        assert self.claim(world) is None


class TestTheTally:
    @pytest.fixture
    def closed(self, world: World) -> Round:
        opened = world.open_standalone(world.new_dataset())
        world.receive(opened.id, 2, b"reports")
        return world.close(opened.id)

    def test_is_stored_and_the_reports_go_in_one_transaction(self, world: World, closed: Round) -> None:
        with rolled_back(world.database) as session:
            store(session, closed)
        assert (world.log(closed.id), world.round(closed.id).state) == ([b"reports"], RoundState.CLOSED)

        with world.database.transaction() as session:
            store(session, closed, b"tally", 2)

        with world.database.reading() as session:
            found = session.get_one(Round, closed.id, options=[undefer(Round.tally)])
        assert (found.state, found.tally, found.n_reports, found.tallied_at) == (
            RoundState.TALLIED,
            b"tally",
            2,
            NOW + 7,
        )
        assert world.log(closed.id) == []

    def test_that_is_stored_first_stays(self, world: World, closed: Round) -> None:
        with world.database.transaction() as session:
            store(session, closed, b"first", 2)
        with world.database.transaction() as session:
            again = store(session, closed, b"second", 1)
            session.refresh(again, ["tally"])

        assert (again.tally, again.n_reports) == (b"first", 2)

    def test_of_two_folds_at_once_one_is_kept(self, world: World, closed: Round) -> None:
        def fold(tally: bytes) -> None:
            with world.database.transaction() as session:
                store(session, closed, tally, 2)

        assert together([lambda i=i: fold(b"%d" % i) for i in range(4)]) == [None] * 4

        with world.database.reading() as session:
            found = session.get_one(Round, closed.id, options=[undefer(Round.tally)])
        assert found.tally in (b"0", b"1", b"2", b"3")
        assert world.log(closed.id) == []

    def test_of_an_open_or_unknown_round_is_refused(self, world: World) -> None:
        opened = world.open_standalone(world.new_dataset())
        with world.database.transaction() as session:
            with pytest.raises(Conflict):
                store(session, opened)
            with pytest.raises(NotFound):
                rounds.store_tally(session, "rnd_unknown", b"", 0, now=NOW)

        assert world.round(opened.id).state == RoundState.OPEN

    def test_of_reports_that_went_before_they_were_counted_is_refused(self, world: World, closed: Round) -> None:
        with world.database.transaction() as session:
            report.scrub(session, closed.id)

        with pytest.raises(Conflict), world.database.transaction() as session:
            store(session, closed, b"of nothing", 0)

        assert world.round(closed.id).state == RoundState.CLOSED

    def test_leaves_the_reports_where_the_dataset_keeps_them_until_it_does_not(self, world: World) -> None:
        within = world.new_dataset(keep_reports=True, epsilon_nano=100 * NANO)
        kept, uncounted = world.open_standalone(within), world.open_standalone(within)
        for opened in (kept, uncounted):
            world.receive(opened.id, 1, b"kept")
            world.close(opened.id)
        with world.database.transaction() as session:
            store(session, kept)
        before = world.log(kept.id)

        with world.database.transaction() as session:
            datasets.change(session, world.caller, within.id, name=None, min_reports=None, keep_reports=False, now=NOW)

        assert (before, world.log(kept.id), world.log(uncounted.id)) == ([b"kept"], [], [b"kept"])

    def test_obeys_the_retention_rule_as_it_is_now(self, world: World, closed: Round) -> None:
        with world.database.transaction() as session:
            known = session.get_one(datasets.Dataset, closed.dataset_id)
            session.execute(text("UPDATE datasets SET keep_reports = :yes"), {"yes": True})
            store(session, closed)

        assert not known.keep_reports  # what the session had read before
        assert world.log(closed.id) == [b"reports"]

    @POSTGRES
    def test_that_is_stored_while_the_retention_rule_changes_keeps_no_report(self, world: World) -> None:
        within = world.new_dataset(keep_reports=True)
        opened = world.open_standalone(within)
        world.receive(opened.id)
        world.close(opened.id)

        def keep_no_longer() -> None:
            with world.database.transaction() as session:
                datasets.change(
                    session, world.caller, within.id, name=None, min_reports=None, keep_reports=False, now=NOW
                )

        with world.database.transaction() as session:
            store(session, opened)
            changing = Thread(keep_no_longer)
            wait_until_blocked(world.database)
        changing.outcome()

        assert world.round(opened.id).state == RoundState.TALLIED
        assert world.log(opened.id) == []
