"""The sender in its gateways: at least once, by one at a time, whatever ends and whoever hangs."""

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

from models import delivery as deliveries
from models import sealing, tenant
from models.db import SECOND, Database, migrate
from models.delivery import Delivery
from models.settings import Settings
from models.tenant import Scope
from service.metrics import GatewayMetrics
from service.webhooks import WebhookSender
from tests.models.world import World
from tests.service.processes import running, until
from tests.service.receivers import Receiver, receiving, says

KEY = SecretStr(sealing.write_key(sealing.new_secret()))
KEYRING = sealing.Keyring(sealing.read_keys(KEY.get_secret_value()))


@pytest.fixture
def world(database_url: str) -> Iterator[World]:
    """A database of the test's own: a sender takes whatever is due in it."""
    opened = Database(database_url)
    made = World(opened)
    made.now = opened.clock()  # the sender goes by it
    yield made
    opened.close()


@contextmanager
def sending(world: World, **settings: Any) -> Iterator[GatewayMetrics]:
    """A sender as its gateway has it; what it counts."""
    given: dict[str, Any] = {"records_key": KEY, "webhook_networks": "127.0.0.0/8", "webhook_seconds": 30, **settings}
    metrics = GatewayMetrics()
    sender = WebhookSender(Settings(**given), world.database, metrics)
    sender.start()
    try:
        yield metrics
    finally:
        sender.stop()


def subscribe(world: World, receiver: Receiver) -> tuple[str, str]:
    """A webhook of everything, and its secret."""
    from models import webhook as webhooks
    from models.webhook import EventType

    with world.database.transaction() as session:
        made, secret = webhooks.create(
            session,
            world.caller,
            KEYRING,
            url=receiver.url,
            event_types=list(EventType),
            dataset_id=None,
            description="",
            max_webhooks=100,
            now=world.database.clock(),
        )
    return made.id, secret


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


class TestASender:
    def test_delivers_what_happened_signed(self, world: World) -> None:
        with receiving(says("200 OK")) as receiver:
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

    def test_tries_again_with_the_same_id_and_bytes(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(deliveries, "DELAYS", (0, 0, *deliveries.DELAYS))
        with receiving(says("500 Error", "302 Found", "200 OK")) as receiver, sending(world) as metrics:
            webhook_id, _ = subscribe(world, receiver)
            ping(world, webhook_id)
            first, *more = receiver.wait_for(3)
            (delivered,) = until(lambda: over(world))
        assert [(each.headers["webhook-id"], each.body) for each in more] == [(delivered.id, first.body)] * 2
        assert delivered.attempts == 3
        counted = metrics.registry.get_sample_value
        assert counted("sfumato_webhook_deliveries_total", {"outcome": "retried"}) == 2

    def test_signs_by_both_secrets_while_they_overlap(self, world: World) -> None:
        from models import webhook as webhooks

        with receiving(says("200 OK")) as receiver:
            webhook_id, old = subscribe(world, receiver)
            with world.database.transaction() as session:
                _, new = webhooks.rotate_secret(
                    session, world.caller, webhook_id, KEYRING, overlap_seconds=3600, now=world.database.clock()
                )
            ping(world, webhook_id)
            with sending(world):
                (request,) = receiver.wait_for(1)
        for secret in (old, new):
            Verifier(secret).verify(request.body, request.headers)

    def test_is_not_held_up_by_a_receiver_that_hangs(self, world: World) -> None:
        with (
            receiving(lambda connection, place: hanging.ending.wait(120) and None) as hanging,
            receiving(says("200 OK")) as receiver,
        ):
            slow, quick = subscribe(world, hanging)[0], subscribe(world, receiver)[0]
            ping(world, slow, 50)
            ping(world, quick, 5)
            with sending(world, webhook_seconds=60):
                hanging.wait_for(1)
                receiver.wait_for(5)
                n_waiting = len(hanging.requests)
                hanging.stop()
        assert n_waiting <= deliveries.AT_ONCE_OF_A_WEBHOOK

    def test_outlives_a_database_that_is_away(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        failed = threading.Event()
        look = deliveries.is_any_due

        def away(*given: Any, **more: Any) -> bool:
            if not failed.is_set():
                failed.set()
                raise ConnectionError
            return look(*given, **more)

        monkeypatch.setattr(deliveries, "is_any_due", away)
        with receiving(says("200 OK")) as receiver, sending(world):
            ping(world, subscribe(world, receiver)[0])
            receiver.wait_for(1)
        assert failed.is_set()

    def test_without_its_key_sends_nothing_and_says_so(self, world: World, tmp_path: Path) -> None:
        with receiving(says("200 OK")) as receiver:
            ping(world, subscribe(world, receiver)[0])
            with sending(world, records_key=None, home=tmp_path):
                (left,) = until(lambda: [each for each in all_of(world) if each.last_error])
        assert (left.last_error, left.state, left.attempts) == ("secret_unreadable", "pending", 0)
        assert receiver.requests == []

    def test_prunes_what_is_old(self, world: World) -> None:
        with receiving(says("200 OK")) as receiver:
            webhook_id, _ = subscribe(world, receiver)
            ping(world, webhook_id, 3)
            with world.database.transaction() as session:
                for each in session.scalars(select(Delivery).limit(2)):
                    each.created_at -= 31 * 86_400 * SECOND
            with sending(world):
                until(lambda: len(all_of(world)) == 1)

    def test_loads_no_http_and_starts_no_loop_while_nothing_is_due(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        looked = threading.Event()
        look = deliveries.is_any_due

        def watched(*given: Any, **more: Any) -> bool:
            looked.set()
            return look(*given, **more)

        monkeypatch.setattr(deliveries, "is_any_due", watched)
        monkeypatch.setattr(asyncio, "run", lambda *_: pytest.fail("a loop was started"))
        with sending(world):
            assert looked.wait(60)


class TestTwoSenders:
    @pytest.mark.slow
    @pytest.mark.ci
    def test_share_two_hundred_deliveries_and_send_each_once(self, world: World) -> None:
        with receiving(says("200 OK")) as receiver:
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
@pytest.mark.ci
class TestAGatewayThatDies:
    def test_in_the_middle_leaves_its_delivery_to_another(self, tmp_path: Path, database_url: str) -> None:
        """SIGKILL while the receiver has the request and no answer was written down."""
        settings = {
            "SFUMATO_DATABASE_URL": database_url,
            "SFUMATO_RECORDS_KEY": KEY.get_secret_value(),
            "SFUMATO_WEBHOOK_NETWORKS": "127.0.0.0/8",
            "SFUMATO_WEBHOOK_SECONDS": "8",
        }
        migrate(database_url)
        database = Database(database_url)
        with database.transaction() as session:
            owner = tenant.get_or_create_tenant(session, "t", now=database.clock())
            _, secret = tenant.create_key(session, owner.id, name="k", scopes=[Scope.ADMIN], now=database.clock())

        def answers(connection: Any, place: int) -> None:
            if place == 1:
                receiver.ending.wait(120)  # the sender dies meanwhile
            else:
                says("200 OK")(connection, place)

        with receiving(answers) as receiver, ExitStack() as stack:
            first, second = (
                stack.enter_context(running(tmp_path / name, "gateway", "--port", "0", **settings)) for name in "ab"
            )
            urls = [first.url(), second.url()]
            second.process.send_signal(signal.SIGSTOP)  # so that the first has it
            try:
                client = httpx.Client(base_url=f"{urls[0]}/v1", headers={"Authorization": f"Bearer {secret}"})
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
        assert later.at - earlier.at > 17  # after the lease of 18 seconds, and not while it lasts
        assert later.at > died_at
        Verifier(made.json()["secret"]).verify(later.body, later.headers)

    def delivered(self, database: Database) -> Delivery | None:
        with database.reading() as session:
            return session.scalars(select(Delivery).where(Delivery.state == "delivered")).first()
