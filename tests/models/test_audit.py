"""The audit trail: numbered without a gap under any concurrency, append-only, and every change shows."""

import pytest
from sqlalchemy import delete, select, text, update
from sqlalchemy.exc import DBAPIError

from models import audit, dataset, removal, tenant
from models.audit import OPERATOR, Act, AuditEvent, AuditHead
from models.db import SECOND, Database
from models.restored import close_budget
from models.tenant import Caller, Scope
from tests.models.world import NOW, World, rolled_back, together

DAY = 86_400 * SECOND


def trail(world: World, caller: Caller | None = None) -> list[AuditEvent]:
    with world.database.reading() as session:
        return audit.page(session, (caller or world.caller).tenant_id, limit=1000)


def acts(world: World) -> list[str]:
    return [event.act for event in trail(world)]


def grant(world: World, dataset_id: str, caller: Caller | None = None) -> None:
    with world.database.transaction() as session:
        dataset.grant(session, caller or world.caller, dataset_id, epsilon_nano=1, delta_atto=0, now=NOW)


def verified(world: World) -> audit.Verification:
    with world.database.reading() as session:
        return audit.verify(session, world.caller.tenant_id)


@pytest.fixture
def chained(world: World) -> str:
    """A dataset whose tenant has seven events."""
    made = world.new_dataset()
    for _ in range(5):
        grant(world, made.id)
    return made.id


class TestAnAct:
    def test_that_is_rolled_back_leaves_no_event(self, world: World) -> None:
        made = world.new_dataset()
        before = acts(world)
        with rolled_back(world.database) as session:
            dataset.grant(session, world.caller, made.id, epsilon_nano=1, delta_atto=0, now=NOW)
        assert acts(world) == before == ["key.created", "dataset.created"]

    def test_of_the_command_line_is_the_operators(self, world: World) -> None:
        with world.database.transaction() as session:
            made, _ = tenant.create_key(session, world.caller.tenant_id, name="k", scopes=[Scope.JOBS], now=NOW)
            tenant.revoke_key(session, world.caller.tenant_id, made.id, now=NOW)
        assert [(e.act, e.actor, e.subject_id) for e in trail(world)[-2:]] == [
            ("key.created", OPERATOR, made.id),
            ("key.revoked", OPERATOR, made.id),
        ]

    def test_of_closing_a_budget_after_a_restore_is_written_down_once(self, world: World) -> None:
        made = world.new_dataset()
        for _ in range(2):
            with world.database.transaction() as session:
                close_budget(session, made.id, now=NOW)
        assert acts(world).count("budget.closed") == 1

    def test_that_ends_jobs_and_rounds_on_the_way_is_one_event(self, world: World) -> None:
        made = world.new_dataset()
        world.submit(made)
        world.open_standalone(made)
        before = len(trail(world))
        with world.database.transaction() as session:
            removal.remove(session, world.caller, made.id, now=NOW)
        assert acts(world)[before:] == ["dataset.deleted"]

    def test_of_a_worker_or_the_clock_is_no_event(self, world: World) -> None:
        made = world.new_dataset()
        world.submit(made)
        before = acts(world)
        held = world.claimed()
        opened = world.open_for(held)
        world.receive(opened.id, 100)  # the round is full now
        assert world.round(opened.id).state == "closed"
        assert acts(world) == before


class TestUploads:
    def test_are_told_once_a_day_of_each_key_and_dataset(self, world: World) -> None:
        first, second = world.new_dataset().id, world.new_dataset().id
        before = len(trail(world))
        for now in (NOW, NOW + 1, NOW + DAY, NOW + DAY + 9):
            for within in (first, second):
                with world.database.transaction() as session:
                    dataset.get(session, world.caller, within, lock=True)
                    audit.record_day(session, world.caller, Act.RECORDS_UPLOADED, within, now=now)
        told = trail(world)[before:]
        assert [(event.dataset_id, event.at % DAY) for event in told] == [(first, 0), (second, 0)] * 2
        assert told[2].at - told[0].at == DAY

    def test_that_come_first_at_once_are_told_once(self, world: World) -> None:
        within = world.new_dataset().id

        def upload() -> None:
            with world.database.transaction() as session:
                dataset.get(session, world.caller, within, lock=True)
                audit.record_day(session, world.caller, Act.RECORDS_UPLOADED, within, now=NOW)

        assert together([upload] * 8) == [None] * 8
        assert acts(world).count("records.uploaded") == 1


class TestTheChain:
    def test_has_no_gap_however_many_write_at_once(self, world: World) -> None:
        within = [world.new_dataset().id for _ in range(4)]
        stranger = world.new_caller("stranger")

        def work(dataset_id: str) -> None:
            for _ in range(5):
                grant(world, dataset_id)
                job = world.submit(world.new_dataset(caller=world.caller))
                with world.database.transaction() as session:
                    removal.remove(session, world.caller, job.dataset_id, now=NOW)

        outcomes = together([lambda each=each: work(each) for each in within])
        assert outcomes == [None] * 4
        assert [event.seq for event in trail(world)] == list(range(1, 1 + 1 + 4 + 4 * 5 * 4))
        assert [event.seq for event in trail(world, stranger)] == [1]
        assert verified(world).ok

    def test_begins_once_though_many_begin_it(self, database: Database) -> None:
        def begin() -> str:
            with database.transaction() as session:
                owner = tenant.get_or_create_tenant(session, "new", now=NOW)
                tenant.create_key(session, owner.id, name="k", scopes=[Scope.ADMIN], now=NOW)
                return owner.id

        (tenant_id,) = set(together([begin] * 6))
        with database.reading() as session:
            assert audit.verify(session, tenant_id) == audit.Verification(6, _head(session, tenant_id), None)

    def test_of_nobody_is_empty_and_holds(self, world: World) -> None:
        with world.database.reading() as session:
            assert audit.verify(session, "ten_nobody") == audit.Verification(0, audit.GENESIS_HASH, None)

    def test_holds(self, world: World, chained: str) -> None:
        assert (verified(world).n_events, verified(world).ok) == (7, True)


def _head(session: object, tenant_id: str) -> str:
    found = session.get(AuditHead, tenant_id)  # type: ignore[attr-defined]
    assert found is not None
    return str(found.hash)


class TestAnEvent:
    @pytest.mark.parametrize("change", ["UPDATE audit_events SET actor = 'x'", "DELETE FROM audit_events"])
    def test_can_be_neither_changed_nor_removed(self, world: World, chained: str, change: str) -> None:
        with pytest.raises(DBAPIError, match="append-only"), world.database.transaction() as session:
            session.execute(text(change))
        assert verified(world).ok

    @pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
    def test_does_not_go_with_all_the_others_either(self, world: World, chained: str) -> None:
        with pytest.raises(DBAPIError, match="append-only"), world.database.transaction() as session:
            session.execute(text("TRUNCATE audit_events"))


class TestTampering:
    """By somebody with the database in hand, who drops the trigger first."""

    @pytest.fixture(autouse=True)
    def _without_triggers(self, world: World, chained: str) -> None:
        with world.database.transaction() as session:
            if world.database.is_sqlite:
                for change in ("update", "delete"):
                    session.execute(text(f"DROP TRIGGER audit_append_only_{change}"))
            else:
                session.execute(text("ALTER TABLE audit_events DISABLE TRIGGER USER"))

    @pytest.mark.parametrize(
        ("column", "value"),
        [
            ("actor", OPERATOR),
            ("at", 1),
            ("act", "key.created"),
            ("subject_id", "ds_other"),
            ("dataset_id", None),
            ("request_id", "x"),
            ("details", {"changed": []}),
            ("id", "aud_other"),
            ("prev_hash", "0" * 64),
            ("hash", "0" * 64),
        ],
        ids=lambda value: value if isinstance(value, str) and value.islower() and "_" not in value else "",
    )
    def test_with_any_column_shows_where(self, world: World, column: str, value: object) -> None:
        with world.database.transaction() as session:
            assert getattr(session.scalars(select(AuditEvent).where(AuditEvent.seq == 4)).one(), column) != value
            session.execute(update(AuditEvent).where(AuditEvent.seq == 4).values({column: value}))
        assert (verified(world).broken_at, verified(world).reason) == (4, "an event was changed")

    @pytest.mark.parametrize(("seq", "reason"), [(4, "an event is missing"), (7, "the last events are missing")])
    def test_by_removal_shows_where(self, world: World, seq: int, reason: str) -> None:
        with world.database.transaction() as session:
            session.execute(delete(AuditEvent).where(AuditEvent.seq == seq))
        assert (verified(world).broken_at, verified(world).reason) == (seq, reason)

    def test_with_the_end_shows(self, world: World) -> None:
        with world.database.transaction() as session:
            session.execute(text("UPDATE audit_heads SET seq = 6"))
        assert not verified(world).ok
