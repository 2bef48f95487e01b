"""Webhooks: made, changed, forgotten; secrets that are sealed, and overlap while they are replaced."""

from base64 import b64decode
from typing import Any

import pytest
from sqlalchemy import select

from models import encryption
from models.database.engine import Database
from models.database.types import SECOND
from models.encryption import Keyring, new_secret
from models.errors import LimitExceeded, NotFound, RecordsKeyMissing, RecordsUnreadable
from models.tables.webhooks import EventType, Webhook, WebhookSecret
from models.webhooks import webhooks
from tests.databases import on_sqlite
from tests.models.world import World, together

KEYRING = Keyring((new_secret(),))
URL = "https://hooks.example.com/"


def new_webhook(world: World, **other: Any) -> tuple[Webhook, str]:
    given: dict[str, Any] = {
        "url": URL,
        "event_types": list(EventType),
        "dataset_id": None,
        "description": "",
        "max_webhooks": 10,
        "now": world.now,
        **other,
    }
    caller = given.pop("caller", world.caller)
    return world.write(webhooks.create, caller, given.pop("keyring", KEYRING), **given)


def live(world: World, webhook_id: str, keyring: Keyring = KEYRING) -> list[bytes]:
    return world.read(webhooks.live_secrets, webhook_id, keyring, now=world.now)


def plain(secret: str) -> bytes:
    return b64decode(secret.removeprefix("whsec_"), validate=True)


class TestCreating:
    def test_keeps_the_secret_sealed(self, world: World) -> None:
        made, secret = new_webhook(world)
        assert secret.startswith("whsec_")
        assert len(plain(secret)) == 32
        assert live(world, made.id) == [plain(secret)]
        with world.database.reading() as session:
            (stored,) = session.scalars(select(WebhookSecret))
        assert plain(secret) not in stored.sealed
        assert stored.sealed_by == KEYRING.newest_id

    def test_stops_at_the_limit_however_many_come_at_once(self, world: World) -> None:
        outcomes = together([lambda: new_webhook(world, max_webhooks=3) for _ in range(6)])
        assert sum(isinstance(each, LimitExceeded) for each in outcomes) == 3
        new_webhook(world, caller=world.new_caller("other"), max_webhooks=1)

    def test_needs_the_datasets_tenant(self, world: World) -> None:
        hidden = world.new_dataset(caller=world.new_caller("other"))
        with pytest.raises(NotFound):
            new_webhook(world, dataset_id=hidden.id)


@on_sqlite
class TestSecrets:
    def rotate(self, world: World, webhook_id: str, overlap_seconds: int = 60) -> str:
        return world.write(
            webhooks.rotate_secret, world.caller, webhook_id, KEYRING, overlap_seconds=overlap_seconds, now=world.now
        )[1]

    def test_overlap_until_the_older_expires(self, world: World) -> None:
        made, first = new_webhook(world)
        second = self.rotate(world, made.id)
        assert live(world, made.id) == [plain(second), plain(first)]
        world.now += 60 * SECOND - 1
        assert len(live(world, made.id)) == 2
        world.now += 1
        assert live(world, made.id) == [plain(second)]

    def test_are_two_at_most_and_one_without_an_overlap(self, world: World) -> None:
        made, _ = new_webhook(world)
        second, third = self.rotate(world, made.id), self.rotate(world, made.id)
        assert live(world, made.id) == [plain(third), plain(second)]
        last = self.rotate(world, made.id, overlap_seconds=0)
        assert live(world, made.id) == [plain(last)]
        with world.database.reading() as session:
            assert len(list(session.scalars(select(WebhookSecret)))) == 1

    def test_open_by_no_other_key_and_in_no_other_place(self, world: World) -> None:
        (one, _), (other, _) = new_webhook(world), new_webhook(world)
        with pytest.raises(RecordsKeyMissing):
            live(world, one.id, Keyring((new_secret(),)))
        with world.database.transaction() as session:
            first, second = (
                session.scalars(select(WebhookSecret).where(WebhookSecret.webhook_id == each.id)).one()
                for each in (one, other)
            )
            first.sealed = second.sealed
        with pytest.raises(RecordsUnreadable):
            live(world, one.id)

    def test_are_sealed_anew_by_a_newer_key(self, world: World) -> None:
        made, secret = new_webhook(world)
        newest = new_secret()
        both = Keyring((newest, *KEYRING.keys))
        with world.database.transaction() as session:
            assert encryption.list_master_keys(session, WebhookSecret) == {KEYRING.newest_id}
            (outdated,) = encryption.list_outdated(session, WebhookSecret, both, after="", limit=10)
            encryption.reseal(session, WebhookSecret, outdated, both)
            encryption.reseal(session, WebhookSecret, outdated, both)
            encryption.reseal(session, WebhookSecret, "whs_gone", both)
        with world.database.reading() as session:
            assert encryption.list_outdated(session, WebhookSecret, both, after="", limit=10) == []
            assert encryption.list_master_keys(session, WebhookSecret) == {both.newest_id}
        assert live(world, made.id, Keyring((newest,))) == [plain(secret)]


class TestForgetting:
    def test_takes_the_secrets_along(self, world: World, database: Database) -> None:
        made, _ = new_webhook(world)
        with database.transaction() as session:
            webhooks.remove(session, world.caller, made.id, now=world.now)
        with database.reading() as session:
            assert list(session.scalars(select(WebhookSecret))) == []
            with pytest.raises(NotFound):
                webhooks.get(session, world.caller, made.id)

    def test_is_for_the_tenant_alone(self, world: World, database: Database) -> None:
        made, _ = new_webhook(world)
        with pytest.raises(NotFound), database.transaction() as session:
            webhooks.remove(session, world.new_caller("other"), made.id, now=world.now)
        assert live(world, made.id)
