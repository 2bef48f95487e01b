"""The overview lists new and active objects and the course of a ledger, as far as the caller may see them."""

import pytest

from models import datasets
from models.errors import NotFound
from models.identity import audit_trail
from models.jobs import lifecycle
from models.ledger import ledger
from models.ledger.amounts import Amounts
from models.tables.jobs import UNFINISHED
from service.console import queries
from tests.databases import on_sqlite
from tests.models.world import NOW, World, charge


class TestJobs:
    def test_come_newest_first(self, world: World) -> None:
        made = world.new_dataset()
        ids = sorted((world.submit(made, epsilon_nano=1).id for _ in range(5)), reverse=True)
        with world.database.reading() as session:
            seen = [row.id for row in queries.newest_jobs(session, world.caller, limit=3)]
            assert seen == ids[:3]

    def test_that_are_over_do_not_move(self, world: World) -> None:
        made = world.new_dataset()
        first, second = (world.submit(made, epsilon_nano=1).id for _ in range(2))
        world.write(lifecycle.cancel, world.caller, first, now=NOW)
        assert [row.id for row in world.read(queries.newest_jobs, world.caller, limit=9, states=UNFINISHED)] == [second]

    def test_of_others_are_not_there(self, world: World) -> None:
        mine, theirs = world.new_dataset(), world.new_dataset()
        world.submit(mine, epsilon_nano=1)
        stranger, bound = world.new_caller("stranger"), world.new_caller("tenant", dataset_id=theirs.id)
        with world.database.reading() as session:
            assert queries.newest_jobs(session, stranger, limit=9) == []
            assert queries.newest_jobs(session, bound, limit=9) == []
            assert len(queries.newest_jobs(session, world.caller, limit=9, dataset_ids=[mine.id])) == 1


@on_sqlite
class TestRoundsAndLedgers:
    def test_of_others_are_not_there(self, world: World) -> None:
        made, stranger = world.new_dataset(), world.new_caller("stranger")
        with world.database.reading() as session:
            assert queries.newest_rounds(session, world.caller, made.id, limit=9) == []
            with pytest.raises(NotFound):
                queries.newest_rounds(session, stranger, made.id, limit=9)
            with pytest.raises(NotFound):
                queries.ledger_course(session, stranger, made.id, limit=9)
            with pytest.raises(NotFound):
                queries.newest_charges(session, stranger, made.id, "job", limit=9)

    def test_charges_are_one_job_s_newest_first_with_what_it_holds(self, world: World) -> None:
        made = world.new_dataset()
        mine, other = (world.submit(made, epsilon_nano=9).id for _ in range(2))
        with world.database.transaction() as session:
            for job_id, amount in ((mine, 2), (other, 5), (mine, 3)):
                charge(session, made.id, "charge", amount, f"{job_id}#{amount}", job_id)
        with world.database.reading() as session:
            entries, left = queries.newest_charges(session, world.caller, made.id, mine, limit=2)
            assert queries.newest_charges(session, world.caller, made.id, "job_of_nobody", limit=2) == ([], Amounts())
        assert [entry.reference for entry in entries] == [f"{mine}#3", f"{mine}#2"]
        assert left == Amounts(4)

    @pytest.mark.parametrize("n_more", [0, 1, 8, 9, 10, 37])
    def test_a_course_has_both_ends_and_no_more_than_was_asked_for(self, world: World, n_more: int) -> None:
        made = world.new_dataset()
        with world.database.transaction() as session:
            for _ in range(n_more):
                datasets.grant(session, world.caller, made.id, epsilon_nano=1, delta_atto=0, now=NOW)
        with world.database.reading() as session:
            course = queries.ledger_course(session, world.caller, made.id, limit=10)
            whole = ledger.page(session, made.id, after_seq=0, limit=100)
        seqs = [entry.seq for entry in course]
        assert (seqs[0], seqs[-1]) == (1, n_more + 1)
        assert len(seqs) == len(set(seqs)) <= 12
        assert seqs == sorted(seqs)
        if n_more < 10:
            assert seqs == [entry.seq for entry in whole]

    def test_an_audit_trail_ends_where_it_ends(self, world: World) -> None:
        world.new_dataset()
        with world.database.reading() as session:
            events = audit_trail.page(session, world.caller.tenant_id, limit=100)
            assert queries.audit_end(session, world.caller.tenant_id) == events[-1].seq
            assert queries.audit_end(session, "ten_nobody") == 0
