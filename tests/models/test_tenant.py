"""Tenants and keys: a secret is shown once, a key ends when it says, tenants do not meet."""

import pytest
from sqlalchemy import event, text

from models import tenant
from models.db import Database
from models.errors import NotFound
from models.tenant import Caller, Key, Scope
from tests.models.world import NOW, World, together


def authenticate(world: World, secret: str, *, now: int = NOW) -> Caller | None:
    with world.database.reading() as session:
        return tenant.authenticate(session, tenant.hash_secret(secret), now=now)


def create(world: World, tenant_id: str | None = None, **given: object) -> tuple[Key, str]:
    parts: dict[str, object] = {"name": "phone app", "scopes": [Scope.DEVICE, Scope.JOBS], "now": NOW, **given}
    with world.database.transaction() as session:
        return tenant.create_key(session, tenant_id or world.caller.tenant_id, **parts)  # type: ignore[arg-type]


class TestAKey:
    def test_opens_what_its_scopes_say(self, world: World) -> None:
        key, secret = create(world)

        caller = authenticate(world, secret)

        assert caller == Caller(key.id, world.caller.tenant_id, frozenset({"device", "jobs"}), None, None)
        allowed = {scope for scope in Scope if caller is not None and caller.may(scope)}
        assert allowed == {Scope.DEVICE, Scope.JOBS}

    def test_with_admin_may_do_everything(self, world: World) -> None:
        assert all(world.caller.may(scope) for scope in Scope)

    def test_that_nobody_made_opens_nothing(self, world: World) -> None:
        _, secret = create(world)

        assert authenticate(world, secret[:-1] + ("0" if secret[-1] != "0" else "1")) is None
        assert authenticate(world, "") is None

    def test_ends_at_the_instant_it_expires(self, world: World) -> None:
        _, secret = create(world, expires_at=NOW + 10)

        assert [authenticate(world, secret, now=NOW + i) is not None for i in (0, 9, 10, 11)] == [
            True,
            True,
            False,
            False,
        ]

    def test_ends_when_it_is_revoked_and_stays_revoked(self, world: World) -> None:
        key, secret = create(world)
        for now in (NOW + 1, NOW + 2):
            with world.database.transaction() as session:
                revoked = tenant.revoke_key(session, world.caller.tenant_id, key.id, now=now)

        assert revoked.revoked_at == NOW + 1
        assert authenticate(world, secret) is None

    def test_that_is_bound_sees_one_dataset_only(self, world: World) -> None:
        _, secret = create(world, dataset_id="ds_mine")

        caller = authenticate(world, secret)

        assert caller is not None
        assert (caller.sees("ds_mine"), caller.sees("ds_other"), world.caller.sees("ds_other")) == (True, False, True)

    def test_of_another_tenant_is_not_found_and_stays_alive(self, world: World) -> None:
        stranger = world.new_caller("stranger")
        key, secret = create(world)

        for tenant_id, key_id in ((stranger.tenant_id, key.id), (world.caller.tenant_id, "key_unknown")):
            with pytest.raises(NotFound), world.database.transaction() as session:
                tenant.revoke_key(session, tenant_id, key_id, now=NOW)

        assert authenticate(world, secret) is not None
        with world.database.reading() as session:
            listed = [each.id for each in tenant.list_keys(session, stranger.tenant_id)]
        assert listed == [stranger.key_id]

    def test_that_the_session_read_before_is_revoked_as_it_is_now(self, world: World) -> None:
        key, _ = create(world)
        with world.database.transaction() as session:
            known = session.get_one(Key, key.id)
            session.execute(text("UPDATE keys SET revoked_at = 7 WHERE id = :id"), {"id": key.id})
            revoked = tenant.revoke_key(session, world.caller.tenant_id, key.id, now=NOW)

        assert revoked is known
        assert revoked.revoked_at == 7


class TestASecret:
    def test_has_256_bits_and_says_what_it_is(self, world: World) -> None:
        secrets = {create(world)[1] for _ in range(5)}

        assert len(secrets) == 5
        assert all(secret.startswith("sfk_") and len(bytes.fromhex(secret[4:])) == 32 for secret in secrets)

    def test_is_in_no_table_and_in_no_repr(self, world: World) -> None:
        key, secret = create(world)
        caller = authenticate(world, secret)
        with world.database.reading() as session:
            kept = session.execute(text("SELECT * FROM keys WHERE id = :id"), {"id": key.id}).one()

        shown = "".join(map(repr, (*kept, key, caller)))

        assert bytes(kept.secret_hash) == tenant.hash_secret(secret)
        for part in (secret, secret[4:], secret[4:20]):
            assert part not in shown
        assert key.secret_hash.hex() not in repr(key) + repr(caller)


class TestListing:
    def test_pages_go_through_all_keys_oldest_first(self, world: World) -> None:
        ids = sorted([world.caller.key_id, *(create(world)[0].id for _ in range(4))])

        with world.database.reading() as session:
            first = [key.id for key in tenant.list_keys(session, world.caller.tenant_id, limit=3)]
            rest = [key.id for key in tenant.list_keys(session, world.caller.tenant_id, after=first[-1])]

        assert (first, rest) == (ids[:3], ids[3:])


class TestATenant:
    def test_of_one_name_is_made_once_though_many_ask_at_once(self, database: Database) -> None:
        def make() -> str:
            with database.transaction() as session:
                return tenant.get_or_create_tenant(session, tenant.FIRST_TENANT, now=NOW).id

        assert len(set(together([make] * 6))) == 1

    def test_is_found_by_its_name(self, world: World) -> None:
        with world.database.reading() as session:
            found = tenant.find_tenant(session, "tenant")
            assert found is not None
            assert found.id == world.caller.tenant_id
            assert tenant.find_tenant(session, "nobody") is None

    def test_has_a_first_key_or_not(self, database: Database) -> None:
        with database.reading() as session:
            before = tenant.has_any_key(session)
        World(database)
        with database.reading() as session:
            assert (before, tenant.has_any_key(session)) == (False, True)


class TestALookUp:
    def test_asks_one_thing_by_the_hash_alone_whatever_comes_of_it(self, world: World) -> None:
        """So its time tells nothing of a secret: nobody can choose one whose hash begins like another's."""
        _, live = create(world)
        _, expired = create(world, expires_at=NOW)
        key, revoked = create(world)
        with world.database.transaction() as session:
            tenant.revoke_key(session, world.caller.tenant_id, key.id, now=NOW)
        asked: list[tuple[str, str]] = []

        def hear(_c: object, _cursor: object, statement: str, given: object, _context: object, _many: bool) -> None:
            asked.append((statement, repr(given)))

        event.listen(world.database.engine, "before_cursor_execute", hear)
        secrets = [live, expired, revoked, "sfk_" + "0" * 64]
        found = [authenticate(world, secret) is not None for secret in secrets]
        event.remove(world.database.engine, "before_cursor_execute", hear)

        selects = [each for each in asked if "FROM keys" in each[0]]
        assert found == [True, False, False, False]
        assert len(selects) == len(secrets)
        assert len({statement for statement, _ in selects}) == 1
        assert not any(secret in given for secret in secrets for _, given in asked)
