"""Datasets: created with a grant, visible to their tenant only, changed within limits."""

import pytest
from sqlalchemy import text

from models import datasets, maintenance
from models.errors import Conflict, LimitExceeded, NotFound
from models.ledger.amounts import Balance
from models.tables.datasets import Dataset, Trust
from tests.databases import on_sqlite
from tests.models.world import FEATURES, NOW, World, together


class TestCreate:
    def test_grants_the_budget_with_the_dataset_as_reference(self, world: World) -> None:
        made = world.new_dataset(epsilon_nano=5)

        assert world.chain(made.id) == [("grant", 5, made.id)]
        assert world.balance(made.id) == Balance(5, 0, 0)
        with world.database.reading() as session:
            found = datasets.get(session, world.caller, made.id)
            assert (found.features, found.trust, found.created_at, found.deleted_at) == (FEATURES, "local", NOW, None)

    def test_concurrent_requests_do_not_exceed_the_limit(self, world: World) -> None:
        outcomes = together([lambda: world.new_dataset(max_datasets=3)] * 8)

        assert sum(isinstance(each, Dataset) for each in outcomes) == 3
        assert {type(each) for each in outcomes} == {Dataset, LimitExceeded}

    def test_limit_counts_datasets_per_tenant(self, world: World) -> None:
        world.new_dataset(max_datasets=1)
        stranger = world.new_caller("stranger")

        assert world.new_dataset(caller=stranger, max_datasets=1).tenant_id == stranger.tenant_id


@on_sqlite
class TestAccess:
    def test_other_tenants_and_keys_of_other_datasets_do_not_find_it(self, world: World) -> None:
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

    def test_pages_list_all_datasets_oldest_first(self, world: World) -> None:
        ids = sorted(world.new_dataset().id for _ in range(5))
        world.new_dataset(caller=world.new_caller("stranger"))

        with world.database.reading() as session:
            first = [d.id for d in datasets.page(session, world.caller, after="", limit=3)]
            rest = [d.id for d in datasets.page(session, world.caller, after=first[-1], limit=3)]

        assert (first, rest) == (ids[:3], ids[3:])

    def test_lock_reads_the_row_afresh(self, world: World) -> None:
        made = world.new_dataset()
        with world.database.transaction() as session:
            known = datasets.get(session, world.caller, made.id)
            session.execute(text("UPDATE datasets SET name = 'now'"))
            found = datasets.get(session, world.caller, made.id, lock=True)

        assert found is known
        assert found.name == "now"


@on_sqlite
class TestChange:
    def test_changes_the_given_fields_only(self, world: World) -> None:
        made = world.new_dataset(name="before", min_reports=7)

        world.write(
            maintenance.change_dataset,
            world.caller,
            made.id,
            name="after",
            min_reports=None,
            keep_reports=None,
            now=NOW,
        )
        world.write(
            maintenance.change_dataset, world.caller, made.id, name=None, min_reports=9, keep_reports=True, now=NOW
        )

        found = world.read(datasets.get, world.caller, made.id)
        assert (found.name, found.min_reports, found.keep_reports) == ("after", 9, True)

    def test_of_another_tenant_raises_not_found(self, world: World) -> None:
        made = world.new_dataset()
        stranger = world.new_caller("stranger")

        with pytest.raises(NotFound), world.database.transaction() as session:
            maintenance.change_dataset(
                session, stranger, made.id, name="theirs", min_reports=None, keep_reports=None, now=NOW
            )

    def test_other_trust_model_is_rejected(self, world: World) -> None:
        central = world.new_dataset(trust=Trust.CENTRAL)

        datasets.require_trust(central, Trust.CENTRAL)
        with pytest.raises(Conflict, match="central"):
            datasets.require_trust(central, Trust.LOCAL)
