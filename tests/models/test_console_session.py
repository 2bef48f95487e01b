"""Sessions of the console live as long as their key and no longer than their time."""

from models import console_session, tenant
from models.console_session import MAX_SESSIONS, SESSION_SECONDS
from models.db import SECOND
from models.tenant import Scope
from tests.models.world import NOW, World

OVER = NOW + SESSION_SECONDS * SECOND


def begun(world: World, now: int = NOW, expires_at: int | None = None) -> tuple[str, str]:
    """A session of a key of its own; its token and the key's id."""
    with world.database.transaction() as session:
        key, secret = tenant.create_key(
            session, world.caller.tenant_id, name="k", scopes=[Scope.JOBS], expires_at=expires_at, now=now
        )
        caller = tenant.authenticate(session, tenant.hash_secret(secret), now=now)
        assert caller is not None
        return console_session.begin(session, caller, now=now), key.id


def found(world: World, token: str, now: int = NOW) -> console_session.SignedIn | None:
    with world.database.reading() as session:
        return console_session.find(session, token, now=now)


class TestASession:
    def test_is_found_by_its_token_alone_until_it_is_over(self, world: World) -> None:
        token, key_id = begun(world)
        who = found(world, token, OVER - 1)
        assert who is not None
        assert (who.caller.key_id, who.caller.scopes, who.key_name) == (key_id, {"jobs"}, "k")
        assert who.caller.expires_at == OVER
        assert found(world, token, OVER) is None
        assert found(world, "0" * 64) is None

    def test_ends_with_its_key(self, world: World) -> None:
        revoked, key_id = begun(world)
        with world.database.transaction() as session:
            tenant.revoke_key(session, world.caller.tenant_id, key_id, now=NOW)
        assert found(world, revoked) is None
        short, _ = begun(world, expires_at=NOW + 5)
        assert found(world, short, NOW + 4) is not None
        assert found(world, short, NOW + 5) is None

    def test_ends_by_hand_and_again_changes_nothing(self, world: World) -> None:
        (token, _), (other, _) = begun(world), begun(world)
        for _ in range(2):
            with world.database.transaction() as session:
                console_session.end(session, token)
        assert found(world, token) is None
        assert found(world, other) is not None

    def test_gives_way_where_its_key_has_too_many(self, world: World) -> None:
        with world.database.transaction() as session:
            _, secret = tenant.create_key(session, world.caller.tenant_id, name="k", scopes=[Scope.JOBS], now=NOW)
            caller = tenant.authenticate(session, tenant.hash_secret(secret), now=NOW)
            assert caller is not None
            tokens = [console_session.begin(session, caller, now=NOW + i) for i in range(MAX_SESSIONS + 2)]
        live = [found(world, token) is not None for token in tokens]
        assert live == [False, False] + [True] * MAX_SESSIONS

    def test_has_a_form_s_word_of_its_own(self, world: World) -> None:
        first, second = (found(world, begun(world)[0]) for _ in range(2))
        assert first is not None
        assert second is not None
        assert first.csrf != second.csrf
