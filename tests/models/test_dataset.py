"""Datasets: granted at birth, seen by their tenant alone, changed where nothing depends on it."""

import pytest
from sqlalchemy import text

from models import dataset as datasets
from models.dataset import Dataset, Trust
from models.errors import Conflict, LimitExceeded, NotFound
from models.ledger import Balance
from tests.models.world import FEATURES, NOW, World, together


class TestCreating:
    def test_grants_the_budget_under_the_datasets_own_name(self, world: World) -> None:
        made = world.new_dataset(epsilon_nano=5)

        assert world.chain(made.id) == [("grant", 5, made.id)]
        assert world.balance(made.id) == Balance(5, 0, 0)
        with world.database.reading() as session:
            found = datasets.get(session, world.caller, made.id)
            assert (found.features, found.trust, found.created_at, found.deleted_at) == (FEATURES, "local", NOW, None)

    def test_stops_at_the_limit_though_many_ask_at_once(self, world: World) -> None:
        outcomes = together([lambda: world.new_dataset(max_datasets=3)] * 8)

        assert sum(isinstance(each, Dataset) for each in outcomes) == 3
        assert {type(each) for each in outcomes} == {Dataset, LimitExceeded}

    def test_another_tenants_datasets_count_for_that_tenant(self, world: World) -> None:
        world.new_dataset(max_datasets=1)
        stranger = world.new_caller("stranger")

        assert world.new_dataset(caller=stranger, max_datasets=1).tenant_id == stranger.tenant_id


class TestSeeing:
    def test_another_tenant_or_a_key_bound_elsewhere_does_not_find_it(self, world: World) -> None:
        mine, other = world.new_dataset(), world.new_dataset()
        bound_here, bound_there = (world.new_caller("tenant", each.id) for each in (mine, other))
        stranger = world.new_caller("stranger")

        with world.database.transaction() as session:
            assert datasets.get(session, world.caller, mine.id).id == mine.id
            assert datasets.get(session, bound_here, mine.id, lock=True).id == mine.id
            for caller in (bound_there, stranger):
                for lock in (False, True):
                    with pytest.raises(NotFound):
                        datasets.get(session, caller, mine.id, lock=lock)
            assert [d.id for d in datasets.page(session, bound_here, after="", limit=10)] == [mine.id]
            assert datasets.page(session, stranger, after="", limit=10) == []

    def test_pages_go_through_all_of_a_tenant_oldest_first(self, world: World) -> None:
        ids = sorted(world.new_dataset().id for _ in range(5))
        world.new_dataset(caller=world.new_caller("stranger"))

        with world.database.reading() as session:
            first = [d.id for d in datasets.page(session, world.caller, after="", limit=3)]
            rest = [d.id for d in datasets.page(session, world.caller, after=first[-1], limit=3)]

        assert (first, rest) == (ids[:3], ids[3:])

    def test_under_its_lock_it_is_read_as_it_is_now(self, world: World) -> None:
        made = world.new_dataset()
        with world.database.transaction() as session:
            known = datasets.get(session, world.caller, made.id)
            session.execute(text("UPDATE datasets SET name = 'now'"))
            found = datasets.get(session, world.caller, made.id, lock=True)

        assert found is known
        assert found.name == "now"


class TestChanging:
    def test_changes_what_is_given_and_nothing_else(self, world: World) -> None:
        made = world.new_dataset(name="before", min_reports=7)

        with world.database.transaction() as session:
            datasets.change(session, world.caller, made.id, name="after", min_reports=None, keep_reports=None, now=NOW)
        with world.database.transaction() as session:
            datasets.change(session, world.caller, made.id, name=None, min_reports=9, keep_reports=True, now=NOW)

        with world.database.reading() as session:
            found = datasets.get(session, world.caller, made.id)
        assert (found.name, found.min_reports, found.keep_reports) == ("after", 9, True)

    def test_of_another_tenants_is_not_found(self, world: World) -> None:
        made = world.new_dataset()
        stranger = world.new_caller("stranger")

        with pytest.raises(NotFound), world.database.transaction() as session:
            datasets.change(session, stranger, made.id, name="theirs", min_reports=None, keep_reports=None, now=NOW)

    def test_of_trust_is_refused_to_what_needs_the_other(self, world: World) -> None:
        central = world.new_dataset(trust=Trust.CENTRAL)

        datasets.require_trust(central, Trust.CENTRAL)
        with pytest.raises(Conflict, match="central"):
            datasets.require_trust(central, Trust.LOCAL)
