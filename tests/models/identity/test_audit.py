"""The audit trail: numbered without gaps, append-only, and verification detects every change."""

import pytest
from sqlalchemy import delete, select, text, update
from sqlalchemy.exc import DBAPIError

from models import datasets, maintenance
from models.database.engine import Database
from models.database.types import SECOND
from models.hash_chain import ChainVerification
from models.identity import audit_trail, keys, tenants
from models.identity.caller import OPERATOR, Caller
from models.maintenance import close_budget
from models.tables.identity import Act, AuditEvent, AuditHead, Scope
from sfumato.privacy.ledger import GENESIS_HASH
from tests.databases import on_postgresql, on_sqlite
from tests.models.world import NOW, World, rolled_back, together

DAY = 86_400 * SECOND


def trail(world: World, caller: Caller | None = None) -> list[AuditEvent]:
    return world.read(audit_trail.page, (caller or world.caller).tenant_id, limit=1000)


def acts(world: World) -> list[str]:
    return [event.act for event in trail(world)]


def grant(world: World, dataset_id: str, caller: Caller | None = None) -> None:
    world.write(datasets.grant, caller or world.caller, dataset_id, epsilon_nano=1, delta_atto=0, now=NOW)


def verified(world: World) -> ChainVerification:
    return world.read(audit_trail.verify, world.caller.tenant_id)


@pytest.fixture
def chained(world: World) -> str:
    """A dataset of a tenant with seven events."""
    made = world.new_dataset()
    for _ in range(5):
        grant(world, made.id)
    return made.id


@on_sqlite
class TestAction:
    def test_rolled_back_action_writes_no_event(self, world: World) -> None:
        made = world.new_dataset()
        before = acts(world)
        with rolled_back(world.database) as session:
            datasets.grant(session, world.caller, made.id, epsilon_nano=1, delta_atto=0, now=NOW)
        assert acts(world) == before == ["key.created", "dataset.created"]

    def test_actor_of_the_command_line_is_the_operator(self, world: World) -> None:
        with world.database.transaction() as session:
            made, _ = keys.create_key(session, world.caller.tenant_id, name="k", scopes=[Scope.JOBS], now=NOW)
            keys.revoke_key(session, world.caller.tenant_id, made.id, now=NOW)
        assert [(e.act, e.actor, e.subject_id) for e in trail(world)[-2:]] == [
            ("key.created", OPERATOR, made.id),
            ("key.revoked", OPERATOR, made.id),
        ]

    def test_closing_a_budget_writes_one_event(self, world: World) -> None:
        made = world.new_dataset()
        for _ in range(2):
            world.write(close_budget, made.id, now=NOW)
        assert acts(world).count("budget.closed") == 1

    def test_action_that_ends_jobs_and_rounds_writes_one_event(self, world: World) -> None:
        made = world.new_dataset()
        world.submit(made)
        world.open_standalone(made)
        before = len(trail(world))
        world.write(maintenance.delete_dataset, world.caller, made.id, now=NOW)
        assert acts(world)[before:] == ["dataset.deleted"]

    def test_workers_and_timeouts_write_no_event(self, world: World) -> None:
        made = world.new_dataset()
        world.submit(made)
        before = acts(world)
        held = world.claimed()
        opened = world.open_for(held)
        world.receive(opened.id, 100)  # the round is full now
        assert world.round(opened.id).state == "closed"
        assert acts(world) == before


class TestUploads:
    def test_write_one_event_per_day_key_and_dataset(self, world: World) -> None:
        first, second = world.new_dataset().id, world.new_dataset().id
        before = len(trail(world))
        for now in (NOW, NOW + 1, NOW + DAY, NOW + DAY + 9):
            for within in (first, second):
                with world.database.transaction() as session:
                    datasets.get(session, world.caller, within, lock=True)
                    audit_trail.record_day(session, world.caller, Act.RECORDS_UPLOADED, within, now=now)
        told = trail(world)[before:]
        assert [(event.dataset_id, event.at % DAY) for event in told] == [(first, 0), (second, 0)] * 2
        assert told[2].at - told[0].at == DAY

    def test_concurrent_first_uploads_write_one_event(self, world: World) -> None:
        within = world.new_dataset().id

        def upload() -> None:
            with world.database.transaction() as session:
                datasets.get(session, world.caller, within, lock=True)
                audit_trail.record_day(session, world.caller, Act.RECORDS_UPLOADED, within, now=NOW)

        assert together([upload] * 8) == [None] * 8
        assert acts(world).count("records.uploaded") == 1


class TestChain:
    def test_has_no_gap_after_concurrent_writes(self, world: World) -> None:
        within = [world.new_dataset().id for _ in range(4)]
        stranger = world.new_caller("stranger")

        def work(dataset_id: str) -> None:
            for _ in range(5):
                grant(world, dataset_id)
                job = world.submit(world.new_dataset(caller=world.caller))
                world.write(maintenance.delete_dataset, world.caller, job.dataset_id, now=NOW)

        outcomes = together([lambda each=each: work(each) for each in within])
        assert outcomes == [None] * 4
        assert [event.seq for event in trail(world)] == list(range(1, 1 + 1 + 4 + 4 * 5 * 4))
        assert [event.seq for event in trail(world, stranger)] == [1]
        assert verified(world).ok

    def test_concurrent_first_events_create_one_head(self, database: Database) -> None:
        def begin() -> str:
            with database.transaction() as session:
                owner = tenants.get_or_create_tenant(session, "new", now=NOW)
                keys.create_key(session, owner.id, name="k", scopes=[Scope.ADMIN], now=NOW)
                return owner.id

        (tenant_id,) = set(together([begin] * 6))
        with database.reading() as session:
            assert audit_trail.verify(session, tenant_id) == ChainVerification(6, _head(session, tenant_id), None)

    def test_empty_chain_is_valid(self, world: World) -> None:
        assert world.read(audit_trail.verify, "ten_nobody") == ChainVerification(0, GENESIS_HASH, None)

    def test_unchanged_chain_is_valid(self, world: World, chained: str) -> None:
        assert (verified(world).n_entries, verified(world).ok) == (7, True)


def _head(session: object, tenant_id: str) -> str:
    found = session.get(AuditHead, tenant_id)  # type: ignore[attr-defined]
    assert found is not None
    return str(found.hash)


class TestTrigger:
    @pytest.mark.parametrize("change", ["UPDATE audit_events SET actor = 'x'", "DELETE FROM audit_events"])
    def test_rejects_changes_and_deletions(self, world: World, chained: str, change: str) -> None:
        with pytest.raises(DBAPIError, match="append-only"), world.database.transaction() as session:
            session.execute(text(change))
        assert verified(world).ok

    @on_postgresql
    def test_rejects_truncation(self, world: World, chained: str) -> None:
        with pytest.raises(DBAPIError, match="append-only"), world.database.transaction() as session:
            session.execute(text("TRUNCATE audit_events"))


@on_sqlite
class TestTampering:
    """Each test drops the triggers first, as an attacker with access to the database could."""

    @pytest.fixture(autouse=True)
    def _without_triggers(self, world: World, chained: str) -> None:
        with world.database.transaction() as session:
            for change in ("update", "delete"):
                session.execute(text(f"DROP TRIGGER audit_events_reject_{change}"))

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
    def test_changed_column_is_detected(self, world: World, column: str, value: object) -> None:
        with world.database.transaction() as session:
            assert getattr(session.scalars(select(AuditEvent).where(AuditEvent.seq == 4)).one(), column) != value
            session.execute(update(AuditEvent).where(AuditEvent.seq == 4).values({column: value}))
        assert (verified(world).broken_at, verified(world).reason) == (4, "an entry was changed")

    @pytest.mark.parametrize(("seq", "reason"), [(4, "an entry is missing"), (7, "the last entries are missing")])
    def test_deleted_event_is_detected(self, world: World, seq: int, reason: str) -> None:
        with world.database.transaction() as session:
            session.execute(delete(AuditEvent).where(AuditEvent.seq == seq))
        assert (verified(world).broken_at, verified(world).reason) == (seq, reason)

    def test_changed_head_is_detected(self, world: World) -> None:
        with world.database.transaction() as session:
            session.execute(text("UPDATE audit_heads SET seq = 6"))
        assert not verified(world).ok
