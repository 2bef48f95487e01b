"""Webhook senders deliver at least once, one sender at a time, despite failing receivers and gateways."""

import asyncio
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr
from sqlalchemy import select
from standardwebhooks.webhooks import Webhook as Verifier

from devservers.loopback import NO_TLS
from models import encryption
from models.database.engine import Database
from models.database.schema import migrate
from models.database.types import SECOND
from models.identity import keys, tenants
from models.tables.identity import Scope
from models.tables.webhooks import Delivery, EventType
from models.webhooks import deliveries, webhooks
from runtime import settings as settings_module
from runtime.settings import Settings
from service.http.metrics import GatewayMetrics
from service.webhooks.sender import WebhookSender
from tests.models.world import World
from tests.service.api import SQLITE_KIND_ONLY
from tests.service.processes import running, until
from tests.service.receivers import Receiver, receiving, respond

KEY = SecretStr(encryption.encode_key(encryption.new_secret()))
KEYRING = encryption.Keyring(settings_module.read_keys(KEY.get_secret_value()))


@pytest.fixture
def world(database_url: str) -> Iterator[World]:
    """Return a world in a new database, because a sender sends all due deliveries."""
    opened = Database(database_url)
    made = World(opened)
    made.now = opened.clock()  # the clock of the sender
    yield made
    opened.close()


@contextmanager
def sending(world: World, **settings: Any) -> Iterator[GatewayMetrics]:
    """Run a sender and yield its metrics."""
    given: dict[str, Any] = {"records_key": KEY, "webhook_networks": "127.0.0.0/8", "webhook_seconds": 30, **settings}
    metrics = GatewayMetrics()
    sender = WebhookSender(Settings(**given), world.database, metrics)
    sender.start()
    try:
        yield metrics
    finally:
        sender.stop()


def subscribe(world: World, receiver: Receiver) -> tuple[str, str]:
    """Create a webhook for all events. Return its id and its secret."""
    given: dict[str, Any] = {"dataset_id": None, "description": "", "max_webhooks": 100}
    with world.database.transaction() as session:
        now, types = world.database.clock(), list(EventType)
        webhook, secret = webhooks.create(
            session, world.caller, KEYRING, url=receiver.url, event_types=types, now=now, **given
        )
    return webhook.id, secret


def ping(world: World, webhook_id: str, n: int = 1) -> None:
    with world.database.transaction() as session:
        for _ in range(n):
            deliveries.ping(session, world.caller, webhook_id, now=world.database.clock())


def all_of(world: World) -> list[Delivery]:
    with world.database.reading() as session:
        return list(session.scalars(select(Delivery).order_by(Delivery.id)))


def over(world: World, n: int = 1) -> list[Delivery] | None:
    found = [each for each in all_of(world) if each.state != "pending"]
    return found if len(found) >= n else None


class TestSender:
    def test_delivers_events_with_a_signature(self, world: World) -> None:
        with receiving(respond("200 OK")) as receiver:
            _, secret = subscribe(world, receiver)
            world.open_standalone(world.new_dataset())
            with sending(world) as metrics:
                (request,) = receiver.wait_for(1)
                (delivered,) = until(lambda: over(world))
        body: Any = Verifier(secret).verify(request.body, request.headers)
        assert body["type"] == "round.opened"
        assert request.headers["webhook-id"] == delivered.id
        assert (delivered.state, delivered.attempts, delivered.last_status) == ("delivered", 1, 200)
        assert metrics.registry.get_sample_value("sfumato_webhook_deliveries_total", {"outcome": "delivered"}) == 1

    def test_retries_with_the_same_id_and_body(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(deliveries, "DELAYS", (0, 0, *deliveries.DELAYS))
        with receiving(respond("500 Error", "302 Found", "200 OK")) as receiver, sending(world) as metrics:
            webhook_id, _ = subscribe(world, receiver)
            ping(world, webhook_id)
            first, *more = receiver.wait_for(3)
            (delivered,) = until(lambda: over(world))
        assert [(each.headers["webhook-id"], each.body) for each in more] == [(delivered.id, first.body)] * 2
        assert delivered.attempts == 3
        counted = metrics.registry.get_sample_value
        assert counted("sfumato_webhook_deliveries_total", {"outcome": "retried"}) == 2

    def test_is_not_blocked_by_a_slow_receiver(self, world: World) -> None:
        with (
            receiving(lambda connection, place: hanging.ending.wait(120) and None) as hanging,
            receiving(respond("200 OK")) as receiver,
        ):
            slow, quick = subscribe(world, hanging)[0], subscribe(world, receiver)[0]
            ping(world, slow, 50)
            ping(world, quick, 5)
            with sending(world, webhook_seconds=60):
                hanging.wait_for(1)
                receiver.wait_for(5)
                n_waiting = len(hanging.requests)
                hanging.stop()
        assert n_waiting <= deliveries.MAX_CONCURRENT

    def test_continues_after_a_database_failure(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        errors: list[Exception] = [ConnectionError()]
        check = deliveries.is_any_due

        def fail_once(*given: Any, **more: Any) -> bool:
            if errors:
                raise errors.pop()
            return check(*given, **more)

        monkeypatch.setattr(deliveries, "is_any_due", fail_once)
        with receiving(respond("200 OK")) as receiver, sending(world):
            ping(world, subscribe(world, receiver)[0])
            receiver.wait_for(1)
        assert errors == []

    def test_without_the_key_of_the_secret_sends_nothing_and_logs_it(self, world: World, tmp_path: Path) -> None:
        with receiving(respond("200 OK")) as receiver:
            ping(world, subscribe(world, receiver)[0])
            with sending(world, records_key=None, home=tmp_path):
                (left,) = until(lambda: [each for each in all_of(world) if each.last_error])
        assert (left.last_error, left.state, left.attempts) == ("secret_unreadable", "pending", 0)
        assert receiver.requests == []

    def test_prunes_old_deliveries(self, world: World) -> None:
        with receiving(respond("200 OK")) as receiver:
            webhook_id, _ = subscribe(world, receiver)
            ping(world, webhook_id, 3)
            with world.database.transaction() as session:
                for each in session.scalars(select(Delivery).limit(2)):
                    each.created_at -= 31 * 86_400 * SECOND
            with sending(world):
                until(lambda: len(all_of(world)) == 1)

    @SQLITE_KIND_ONLY
    def test_loads_no_http_library_before_the_first_delivery(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        checked = threading.Event()
        monkeypatch.setattr(deliveries, "is_any_due", lambda *_given, **_more: checked.set())
        monkeypatch.setattr(asyncio, "run", lambda *_: pytest.fail("a loop was started"))
        with sending(world):
            assert checked.wait(60)


class TestTwoSenders:
    @pytest.mark.slow
    def test_share_deliveries_and_send_each_once(self, world: World) -> None:
        with receiving(respond("200 OK")) as receiver:
            for _ in range(10):
                ping(world, subscribe(world, receiver)[0], 20)
            with ExitStack() as stack:
                counted = [stack.enter_context(sending(world, webhook_seconds=60)) for _ in range(2)]
                until(lambda: over(world, 200))
        sent = [
            each.registry.get_sample_value("sfumato_webhook_deliveries_total", {"outcome": "delivered"}) or 0
            for each in counted
        ]
        assert sum(sent) == 200
        assert set(Counter(receiver.ids()).values()) == {1}
        assert len(receiver.ids()) == 200


@pytest.mark.slow
class TestKilledGateway:
    def test_leaves_its_delivery_to_another_gateway(self, tmp_path: Path, database_url: str) -> None:
        """SIGKILL the gateway while the receiver handles its request."""
        settings = {
            "SFUMATO_DATABASE_URL": database_url,
            "SFUMATO_RECORDS_KEY": KEY.get_secret_value(),
            "SFUMATO_WEBHOOK_NETWORKS": "127.0.0.0/8",
            "SFUMATO_WEBHOOK_SECONDS": "8",
        }
        migrate(database_url)
        database = Database(database_url)
        with database.transaction() as session:
            owner = tenants.get_or_create_tenant(session, "t", now=database.clock())
            _, secret = keys.create_key(session, owner.id, name="k", scopes=[Scope.ADMIN], now=database.clock())

        def answers(connection: Any, place: int) -> None:
            if place == 1:
                receiver.ending.wait(120)  # the gateway is killed during this wait
            else:
                respond("200 OK")(connection, place)

        with receiving(answers) as receiver, ExitStack() as stack:
            first, second = (
                stack.enter_context(running(tmp_path / name, "gateway", "--port", "0", **settings)) for name in "ab"
            )
            urls = [first.url(), second.url()]
            second.process.send_signal(signal.SIGSTOP)  # the first gateway claims the delivery
            try:
                client = httpx.Client(
                    base_url=f"{urls[0]}/v1", headers={"Authorization": f"Bearer {secret}"}, verify=NO_TLS
                )
                stack.callback(client.close)
                made = client.post("/webhooks", json={"url": receiver.url, "event_types": ["job.failed"]}, timeout=60)
                assert made.status_code == 201, made.text
                client.post(f"/webhooks/{made.json()['id']}/test", timeout=60).raise_for_status()
                receiver.wait_for(1)
                os.kill(first.process.pid, signal.SIGKILL)
                first.process.wait(60)
                died_at = time.time()
            finally:
                second.process.send_signal(signal.SIGCONT)
            earlier, later = receiver.wait_for(2)
            world_over = until(lambda: self.delivered(database))
        database.close()
        assert earlier.headers["webhook-id"] == later.headers["webhook-id"] == world_over.id
        assert earlier.body == later.body
        assert (world_over.attempts, world_over.fence) == (2, 2)
        assert later.at - earlier.at > 17  # after the end of the lease of 18 seconds
        assert later.at > died_at
        Verifier(made.json()["secret"]).verify(later.body, later.headers)

    def delivered(self, database: Database) -> Delivery | None:
        with database.reading() as session:
            return session.scalars(select(Delivery).where(Delivery.state == "delivered")).first()
