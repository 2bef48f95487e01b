"""Tenants and keys: secrets, expiry, revocation, and the separation of tenants."""

import pytest
from sqlalchemy import event, text

from models.database.engine import Database
from models.errors import NotFound
from models.identity import keys, tenants
from models.identity.caller import Caller
from models.tables.identity import Key, Scope
from tests.databases import on_sqlite
from tests.models.world import NOW, World, together


def authenticate(world: World, secret: str, *, now: int = NOW) -> Caller | None:
    return world.read(keys.authenticate, keys.hash_secret(secret), now=now)


def create(world: World, tenant_id: str | None = None, **given: object) -> tuple[Key, str]:
    parts: dict[str, object] = {"name": "phone app", "scopes": [Scope.DEVICE, Scope.JOBS], "now": NOW, **given}
    return world.write(keys.create_key, tenant_id or world.caller.tenant_id, **parts)  # type: ignore[arg-type]


@on_sqlite
class TestKey:
    def test_has_the_permissions_of_its_scopes(self, world: World) -> None:
        key, secret = create(world)

        caller = authenticate(world, secret)

        assert caller == Caller(key.id, world.caller.tenant_id, frozenset({"device", "jobs"}), None, None)
        allowed = {scope for scope in Scope if caller is not None and caller.may(scope)}
        assert allowed == {Scope.DEVICE, Scope.JOBS}

    def test_with_admin_has_all_permissions(self, world: World) -> None:
        assert all(world.caller.may(scope) for scope in Scope)

    def test_unknown_secret_is_rejected(self, world: World) -> None:
        _, secret = create(world)

        assert authenticate(world, secret[:-1] + ("0" if secret[-1] != "0" else "1")) is None
        assert authenticate(world, "") is None

    def test_is_invalid_from_its_expiry(self, world: World) -> None:
        _, secret = create(world, expires_at=NOW + 10)

        assert [authenticate(world, secret, now=NOW + i) is not None for i in (0, 9, 10, 11)] == [
            True,
            True,
            False,
            False,
        ]

    def test_is_invalid_after_its_revocation(self, world: World) -> None:
        key, secret = create(world)
        for now in (NOW + 1, NOW + 2):
            revoked = world.write(keys.revoke_key, world.caller.tenant_id, key.id, now=now)

        assert revoked.revoked_at == NOW + 1
        assert authenticate(world, secret) is None

    def test_of_one_dataset_sees_no_other(self, world: World) -> None:
        _, secret = create(world, dataset_id="ds_mine")

        caller = authenticate(world, secret)

        assert caller is not None
        assert (caller.sees("ds_mine"), caller.sees("ds_other"), world.caller.sees("ds_other")) == (True, False, True)

    def test_of_another_tenant_cannot_be_revoked(self, world: World) -> None:
        stranger = world.new_caller("stranger")
        key, secret = create(world)

        for tenant_id, key_id in ((stranger.tenant_id, key.id), (world.caller.tenant_id, "key_unknown")):
            with pytest.raises(NotFound), world.database.transaction() as session:
                keys.revoke_key(session, tenant_id, key_id, now=NOW)

        assert authenticate(world, secret) is not None
        listed = [each.id for each in world.read(keys.list_keys, stranger.tenant_id)]
        assert listed == [stranger.key_id]

    def test_revocation_reads_the_row_afresh(self, world: World) -> None:
        key, _ = create(world)
        with world.database.transaction() as session:
            known = session.get_one(Key, key.id)
            session.execute(text("UPDATE keys SET revoked_at = 7 WHERE id = :id"), {"id": key.id})
            revoked = keys.revoke_key(session, world.caller.tenant_id, key.id, now=NOW)

        assert revoked is known
        assert revoked.revoked_at == 7


@on_sqlite
class TestSecret:
    def test_has_256_bits_and_a_recognisable_prefix(self, world: World) -> None:
        secrets = {create(world)[1] for _ in range(5)}

        assert len(secrets) == 5
        assert all(secret.startswith("sfk_") and len(bytes.fromhex(secret[4:])) == 32 for secret in secrets)

    def test_is_stored_nowhere(self, world: World) -> None:
        key, secret = create(world)
        caller = authenticate(world, secret)
        with world.database.reading() as session:
            kept = session.execute(text("SELECT * FROM keys WHERE id = :id"), {"id": key.id}).one()

        shown = "".join(map(repr, (*kept, key, caller)))

        assert bytes(kept.secret_hash) == keys.hash_secret(secret)
        for part in (secret, secret[4:], secret[4:20]):
            assert part not in shown
        assert key.secret_hash.hex() not in repr(key) + repr(caller)


@on_sqlite
class TestList:
    def test_pages_list_all_keys_oldest_first(self, world: World) -> None:
        ids = sorted([world.caller.key_id, *(create(world)[0].id for _ in range(4))])

        with world.database.reading() as session:
            first = [key.id for key in keys.list_keys(session, world.caller.tenant_id, limit=3)]
            rest = [key.id for key in keys.list_keys(session, world.caller.tenant_id, after=first[-1])]

        assert (first, rest) == (ids[:3], ids[3:])


class TestTenant:
    def test_concurrent_requests_create_one_tenant_per_name(self, database: Database) -> None:
        def make() -> str:
            with database.transaction() as session:
                return tenants.get_or_create_tenant(session, tenants.FIRST_TENANT, now=NOW).id

        assert len(set(together([make] * 6))) == 1

    def test_is_found_by_its_name(self, world: World) -> None:
        with world.database.reading() as session:
            found = tenants.find_tenant(session, "tenant")
            assert found is not None
            assert found.id == world.caller.tenant_id
            assert tenants.find_tenant(session, "nobody") is None

    def test_has_any_key_reports_the_first_key(self, database: Database) -> None:
        with database.reading() as session:
            before = keys.has_any_key(session)
        World(database)
        with database.reading() as session:
            assert (before, keys.has_any_key(session)) == (False, True)


class TestAuthenticate:
    def test_runs_one_query_by_the_hash_in_every_case(self, world: World) -> None:
        """The time is independent of the secret, because a caller cannot choose the prefix of a hash."""
        _, live = create(world)
        _, expired = create(world, expires_at=NOW)
        key, revoked = create(world)
        world.write(keys.revoke_key, world.caller.tenant_id, key.id, now=NOW)
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
