"""Sessions of the console end with their key or their time."""

import pytest

from models.database.types import SECOND
from models.identity import console_sessions, keys
from models.identity.console_sessions import MAX_SESSIONS, SESSION_SECONDS
from models.tables.identity import Scope
from tests.databases import on_sqlite
from tests.models.world import NOW, World


@pytest.fixture
def database_kind() -> str:
    """Return SQLite only: these tests check rules that do not depend on the database."""
    return "sqlite"


OVER = NOW + SESSION_SECONDS * SECOND


def begun(world: World, now: int = NOW, expires_at: int | None = None) -> tuple[str, str]:
    """A session of a key of its own; its token and the key's id."""
    with world.database.transaction() as session:
        key, secret = keys.create_key(
            session, world.caller.tenant_id, name="k", scopes=[Scope.JOBS], expires_at=expires_at, now=now
        )
        caller = keys.authenticate(session, keys.hash_secret(secret), now=now)
        assert caller is not None
        return console_sessions.begin(session, caller, now=now), key.id


def found(world: World, token: str, now: int = NOW) -> console_sessions.SessionIdentity | None:
    return world.read(console_sessions.find, token, now=now)


@on_sqlite
class TestSession:
    def test_is_found_by_its_token_until_it_expires(self, world: World) -> None:
        token, key_id = begun(world)
        who = found(world, token, OVER - 1)
        assert who is not None
        assert (who.caller.key_id, who.caller.scopes, who.key_name) == (key_id, {"jobs"}, "k")
        assert who.caller.expires_at == OVER
        assert found(world, token, OVER) is None
        assert found(world, "0" * 64) is None

    def test_ends_with_its_key(self, world: World) -> None:
        revoked, key_id = begun(world)
        world.write(keys.revoke_key, world.caller.tenant_id, key_id, now=NOW)
        assert found(world, revoked) is None
        short, _ = begun(world, expires_at=NOW + 5)
        assert found(world, short, NOW + 4) is not None
        assert found(world, short, NOW + 5) is None

    def test_ends_on_request_and_ending_again_changes_nothing(self, world: World) -> None:
        (token, _), (other, _) = begun(world), begun(world)
        for _ in range(2):
            world.write(console_sessions.end, token)
        assert found(world, token) is None
        assert found(world, other) is not None

    def test_oldest_session_of_a_key_ends_if_there_are_too_many(self, world: World) -> None:
        with world.database.transaction() as session:
            _, secret = keys.create_key(session, world.caller.tenant_id, name="k", scopes=[Scope.JOBS], now=NOW)
            caller = keys.authenticate(session, keys.hash_secret(secret), now=NOW)
            assert caller is not None
            tokens = [console_sessions.begin(session, caller, now=NOW + i) for i in range(MAX_SESSIONS + 2)]
        live = [found(world, token) is not None for token in tokens]
        assert live == [False, False] + [True] * MAX_SESSIONS

    def test_has_its_own_form_token(self, world: World) -> None:
        first, second = (found(world, begun(world)[0]) for _ in range(2))
        assert first is not None
        assert second is not None
        assert first.csrf != second.csrf
