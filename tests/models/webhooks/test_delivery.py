"""Deliveries: queued in the transaction of their event, claimed by one gateway, and retried for three days."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import select

from models import maintenance
from models.database.engine import Database
from models.database.types import SECOND
from models.encryption import Keyring
from models.errors import Conflict, NotFound
from models.jobs import claims, lifecycle
from models.tables.datasets import Trust
from models.tables.jobs import JobState
from models.tables.rounds import CollectionTarget
from models.tables.webhooks import Delivery, DeliveryState, EventType, Webhook
from models.webhooks import deliveries, webhooks
from models.webhooks.deliveries import DELAYS, DISABLE_AFTER, MAX_CONCURRENT, DeliveryLease, DeliveryOutcome
from tests.databases import on_sqlite
from tests.models.webhooks.test_webhook import KEYRING, new_webhook
from tests.models.world import World, cancel, rolled_back, submit, succeed, together

OK, DOWN = DeliveryOutcome(200), DeliveryOutcome(500, "bad_status")
LEASE = 20 * SECOND
DAY = 86_400 * SECOND


def queued(world: World) -> list[Delivery]:
    with world.database.reading() as session:
        return list(session.scalars(select(Delivery).order_by(Delivery.next_attempt_at, Delivery.id)))


def payloads(world: World) -> list[dict[str, Any]]:
    return [json.loads(each.payload) for each in queued(world)]


def claim(world: World, *, limit: int = 64, keyring: Keyring = KEYRING) -> list[DeliveryLease]:
    return world.write(deliveries.claim, keyring, now=world.now, lease_microseconds=LEASE, limit=limit)


def settle(
    world: World, lease: DeliveryLease, outcome: DeliveryOutcome, random: Callable[[], float] = lambda: 0.5
) -> str | None:
    return world.write(deliveries.settle, lease, outcome, now=world.now, random=random)


def ping(world: World, webhook_id: str) -> Delivery:
    return world.write(deliveries.ping, world.caller, webhook_id, now=world.now)


def change(world: World, webhook_id: str, *, enabled: bool, url: str | None = None) -> None:
    unchanged = {"event_types": None, "description": None}
    world.write(webhooks.change, world.caller, webhook_id, url=url, enabled=enabled, now=world.now, **unchanged)


def webhook(world: World, webhook_id: str) -> Webhook:
    with world.database.reading() as session:
        return session.get_one(Webhook, webhook_id)


@pytest.fixture
def pinged(world: World) -> Webhook:
    """A webhook with one queued delivery."""
    created, _ = new_webhook(world)
    ping(world, created.id)
    return created


@on_sqlite
class TestQueue:
    def test_contains_the_events_of_a_job_and_of_its_rounds(self, world: World) -> None:
        new_webhook(world)
        within = world.new_dataset()
        submitted = world.submit(within)
        opened = world.open_for(world.claimed(), collect=CollectionTarget(1, 1, 3600))
        world.now += SECOND
        world.receive(opened.id)
        world.now += SECOND
        with world.database.transaction() as session:
            lease = claims.claim(session, now=world.now, lease_microseconds=LEASE, max_attempts=5)
            assert lease is not None
        world.write(lifecycle.succeed, lease, {"model": {}, "rounds": []}, software_version="1", now=world.now)
        of_round = {"id": opened.id, "dataset_id": within.id, "job_id": submitted.id, "index": 0}
        of_job = {"id": submitted.id, "dataset_id": within.id, "error_code": None}
        found = sorted(((each["timestamp"], each["type"], each["data"]) for each in payloads(world)), key=str)
        assert found == [
            ("2027-01-15T08:00:00.000000Z", "job.collecting", of_job | {"state": "collecting"}),
            ("2027-01-15T08:00:00.000000Z", "round.opened", of_round | {"state": "open"}),
            ("2027-01-15T08:00:01.000000Z", "round.closed", of_round | {"state": "closed"}),
            ("2027-01-15T08:00:02.000000Z", "job.succeeded", of_job | {"state": "succeeded"}),
        ]

    @pytest.mark.parametrize("state", [JobState.FAILED, JobState.EXPIRED])
    def test_names_the_error_code_of_a_failed_job_and_not_its_detail(self, world: World, state: JobState) -> None:
        new_webhook(world, event_types=[EventType(f"job.{state}")])
        world.submit(world.new_dataset())
        lease = world.claimed()
        world.write(lifecycle.fail, lease, state, code="too_few_reports", detail="private-4711", now=world.now)
        (only,) = payloads(world)
        assert (only["data"]["state"], only["data"]["error_code"]) == (state, "too_few_reports")
        assert "private-4711" not in json.dumps(only)

    def test_goes_to_subscribed_and_enabled_webhooks_of_the_tenant(self, world: World) -> None:
        within, beside = world.new_dataset(), world.new_dataset()
        wants = new_webhook(world, event_types=[EventType.JOB_CANCELED])[0]
        of_it = new_webhook(world, dataset_id=within.id)[0]
        new_webhook(world, dataset_id=beside.id)
        new_webhook(world, event_types=[EventType.JOB_SUCCEEDED])
        new_webhook(world, caller=world.new_caller("other"))
        change(world, new_webhook(world)[0].id, enabled=False)
        cancel(world, world.submit(within).id)
        assert {each.webhook_id for each in queued(world)} == {wants.id, of_it.id}

    def test_is_part_of_the_transaction_of_the_event(self, world: World) -> None:
        new_webhook(world)
        within = world.new_dataset()
        world.submit(within)
        claimed, canceled = world.claimed(), world.submit(within)
        with rolled_back(world.database) as session:
            succeed(session, claimed)
            lifecycle.cancel(session, world.caller, canceled.id, now=world.now)
            assert len(session.scalars(select(Delivery)).all()) == 2
        assert queued(world) == []

    def test_has_one_delivery_for_repeated_actions(self, world: World) -> None:
        new_webhook(world)
        within = world.new_dataset()
        opened = world.open_standalone(within)
        for _ in range(3):
            world.close(opened.id)
        submitted = world.submit(within)
        for _ in range(3):
            cancel(world, submitted.id)
        assert sorted(each["type"] for each in payloads(world)) == ["job.canceled", "round.closed", "round.opened"]

    def test_has_the_coarse_time_of_a_central_job_in_payload_and_id(self, world: World) -> None:
        new_webhook(world)
        within = world.new_dataset(trust=Trust.CENTRAL)
        made = world.write(
            submit, world.caller, within, epsilon_nano=5, now=world.now, collect=CollectionTarget(0, 0, 0)
        )
        began, world.now = world.now, world.now + 59 * SECOND + 123_456
        lease = world.claimed()
        world.write(lifecycle.succeed, lease, {"model": {}, "rounds": []}, software_version="1", now=world.now)
        (only,) = queued(world)
        assert json.loads(only.payload)["timestamp"] == "2027-01-15T08:00:00.000000Z"
        assert only.created_at == began == made.created_at
        assert only.next_attempt_at == world.now
        assert only.id[4:14] == made_at(began)

    def test_omits_the_rounds_of_a_deleted_dataset(self, world: World) -> None:
        new_webhook(world)
        within, beside = world.new_dataset(), world.new_dataset()
        for each in (within, beside):
            world.open_standalone(each)
        world.submit(within)
        world.write(maintenance.delete_dataset, world.caller, within.id, now=world.now)
        left = {(each["type"], each["data"]["dataset_id"]) for each in payloads(world)}
        assert left == {("job.canceled", within.id), ("round.opened", beside.id)}


def made_at(microseconds: int) -> str:
    """Return the ten characters of a ULID that encode this time."""
    alphabet, value = "0123456789abcdefghjkmnpqrstvwxyz", microseconds // 1000
    return "".join(alphabet[value >> shift & 31] for shift in range(45, -5, -5))


class TestClaim:
    def test_takes_due_deliveries_and_leases_them(self, world: World) -> None:
        made, _ = new_webhook(world)
        for _ in range(2):
            ping(world, made.id)
        with world.database.reading() as session:
            assert deliveries.is_any_due(session, now=world.now)
            assert not deliveries.is_any_due(session, now=world.now - 1)
            assert deliveries.count_pending(session) == 2
        lease = claim(world)
        assert [(each.fence, each.url, len(each.secrets)) for each in lease] == [(1, made.url, 1)] * 2
        assert claim(world) == []
        assert not world.read(deliveries.is_any_due, now=world.now)

    def test_takes_a_delivery_after_its_lease_expired(self, world: World, pinged: Webhook) -> None:
        (first,) = claim(world)
        world.now += LEASE
        (second,) = claim(world)
        assert (second.delivery_id, second.payload, second.fence) == (first.delivery_id, first.payload, 2)
        assert settle(world, first, OK) is None  # another gateway has the lease
        assert settle(world, second, OK) == "delivered"
        assert settle(world, second, DOWN) is None

    def test_by_concurrent_gateways_takes_each_delivery_once(self, world: World) -> None:
        for _ in range(5):
            made, _ = new_webhook(world)
            for _ in range(MAX_CONCURRENT):
                ping(world, made.id)
        taken = [lease.delivery_id for each in together([lambda: claim(world, limit=5)] * 6) for lease in each]
        taken += [lease.delivery_id for lease in claim(world)]
        assert len(taken) == len(set(taken)) == 5 * MAX_CONCURRENT

    def test_takes_few_deliveries_of_one_webhook(self, world: World) -> None:
        slow, other = new_webhook(world)[0], new_webhook(world)[0]
        for _ in range(20):
            ping(world, slow.id)
        world.now += 1
        ping(world, other.id)
        assert len(claim(world, limit=5)) == MAX_CONCURRENT  # five rows are due
        (left,) = claim(world, limit=5)
        assert left.url == other.url
        assert [each.webhook_id for each in queued(world) if each.id == left.delivery_id] == [other.id]

    def test_skips_a_disabled_webhook_until_it_is_enabled(self, world: World, pinged: Webhook) -> None:
        for enabled, n_taken in ((False, 0), (True, 1)):
            change(world, pinged.id, enabled=enabled, url="https://new.example/")
            taken = claim(world)
            assert [each.url for each in taken] == ["https://new.example/"] * n_taken

    def test_without_the_key_counts_no_attempt(self, world: World, pinged: Webhook) -> None:
        (lease,) = claim(world, keyring=Keyring(()))
        assert lease.secrets == ()
        assert settle(world, lease, DeliveryOutcome(error=deliveries.SECRET_UNREADABLE)) == "retried"
        (left,) = queued(world)
        assert (left.attempts, left.next_attempt_at) == (0, world.now + 300 * SECOND)
        assert webhook(world, pinged.id).failing_since is None


@on_sqlite
class TestAttempts:
    def test_have_growing_delays_over_three_days_and_end(self, world: World, pinged: Webhook) -> None:
        began, waited = world.now, []
        for n_attempts in range(1, len(DELAYS) + 2):
            (lease,) = claim(world)
            came = settle(world, lease, DOWN)
            (left,) = queued(world)
            assert left.attempts == n_attempts
            if left.next_attempt_at is not None:
                assert came == "retried"
                waited.append(left.next_attempt_at - world.now)
                world.now = left.next_attempt_at
        assert came == "given_up"
        assert (left.state, left.last_status, left.last_error) == (DeliveryState.FAILED, 500, "bad_status")
        assert waited == list(DELAYS) == sorted(DELAYS)
        assert 2.9 * DAY < world.now - began < 3.1 * DAY

    @pytest.mark.parametrize("drawn", [0.0, 0.999])
    def test_have_random_delays(self, world: World, pinged: Webhook, drawn: float) -> None:
        settle(world, claim(world)[0], DOWN, lambda: drawn)
        (left,) = queued(world)
        assert left.next_attempt_at is not None
        assert left.next_attempt_at - world.now == round(DELAYS[0] * (0.9 + 0.2 * drawn))

    @pytest.mark.parametrize(("requested", "expected"), [(60, 60), (1, 5), (None, 5), (10**9, 86_400)])
    def test_wait_for_the_retry_time_of_the_receiver_up_to_a_day(
        self, world: World, pinged: Webhook, requested: int | None, expected: int
    ) -> None:
        settle(world, claim(world)[0], DeliveryOutcome(503, "bad_status", requested))
        (left,) = queued(world)
        assert left.next_attempt_at == world.now + expected * SECOND

    def test_end_after_a_success(self, world: World, pinged: Webhook) -> None:
        settle(world, claim(world)[0], DOWN)
        assert webhook(world, pinged.id).failing_since == world.now
        world.now += DAY
        assert settle(world, claim(world)[0], OK) == "delivered"
        (left,) = queued(world)
        assert (left.state, left.attempts, left.next_attempt_at, left.last_error) == ("delivered", 2, None, None)
        assert webhook(world, pinged.id).failing_since is None

    def test_with_status_410_disable_the_webhook(self, world: World, pinged: Webhook) -> None:
        assert settle(world, claim(world)[0], DeliveryOutcome(410, "bad_status")) == "disabled"
        found = webhook(world, pinged.id)
        assert (found.enabled, queued(world)[0].state) == (False, DeliveryState.FAILED)
        assert "410" in (found.disabled_reason or "")

    def test_that_fail_for_days_disable_the_webhook_until_it_is_enabled(self, world: World, pinged: Webhook) -> None:
        began = world.now
        while world.now < began + DISABLE_AFTER:
            if not (leases := claim(world)):  # the first delivery was given up
                ping(world, pinged.id)
                leases = claim(world)
            outcomes = {settle(world, lease, DOWN) for lease in leases}
            assert outcomes <= {"retried", "given_up"}
            world.now += DAY
        ping(world, pinged.id)
        assert settle(world, claim(world)[0], DOWN) == "disabled"
        assert webhook(world, pinged.id).disabled_reason == "all attempts of 5 days failed"
        with pytest.raises(Conflict):
            ping(world, pinged.id)
        change(world, pinged.id, enabled=True)
        world.now += DAY
        assert settle(world, claim(world)[0], DOWN) == "retried"
        assert webhook(world, pinged.id).enabled

    def test_after_a_quiet_time_count_anew(self, world: World, pinged: Webhook) -> None:
        while (due := queued(world)[0].next_attempt_at) is not None:
            world.now = due
            settle(world, claim(world)[0], DOWN)
        world.now += 57 * DAY
        ping(world, pinged.id)
        assert settle(world, claim(world)[0], DOWN) == "retried"
        found = webhook(world, pinged.id)
        assert (found.enabled, found.failing_since) == (True, world.now)

    def test_after_an_outage_of_all_gateways_count_anew(self, world: World, pinged: Webhook) -> None:
        settle(world, claim(world)[0], DOWN)
        world.now += 30 * DAY
        assert settle(world, claim(world)[0], DOWN) == "retried"
        assert webhook(world, pinged.id).enabled

    def test_of_a_delivery_that_was_given_up_are_not_stored_twice(self, world: World, pinged: Webhook) -> None:
        (lease,) = claim(world)
        assert settle(world, lease, DeliveryOutcome(410, "bad_status")) == "disabled"
        assert settle(world, lease, OK) is None


@on_sqlite
class TestRedelivery:
    def again(self, world: World, webhook_id: str, delivery_id: str) -> Delivery:
        return world.write(deliveries.redeliver, world.caller, webhook_id, delivery_id, now=world.now)

    def test_sends_the_same_bytes_under_the_same_id(self, world: World, pinged: Webhook) -> None:
        (first,) = claim(world)
        settle(world, first, OK)
        again = self.again(world, pinged.id, first.delivery_id)
        assert (again.state, again.attempts) == (DeliveryState.PENDING, 0)
        (second,) = claim(world)
        assert (second.delivery_id, second.payload) == (first.delivery_id, first.payload)
        assert settle(world, first, DOWN) is None

    def test_makes_a_pending_delivery_due_and_keeps_its_attempts(self, world: World, pinged: Webhook) -> None:
        (lease,) = claim(world)
        self.again(world, pinged.id, lease.delivery_id)
        assert claim(world) == []  # it is being sent
        settle(world, lease, DOWN)
        assert self.again(world, pinged.id, lease.delivery_id).attempts == 1
        assert len(claim(world)) == 1

    def test_of_another_webhook_or_tenant_finds_nothing(self, world: World, database: Database) -> None:
        made, beside = new_webhook(world)[0], new_webhook(world)[0]
        only = ping(world, made.id)
        with pytest.raises(NotFound):
            self.again(world, beside.id, only.id)
        with pytest.raises(NotFound), database.transaction() as session:
            deliveries.redeliver(session, world.new_caller("other"), made.id, only.id, now=world.now)


class TestDeletion:
    def test_of_deliveries_older_than_the_retention(self, world: World) -> None:
        made, _ = new_webhook(world)
        old = [ping(world, made.id) for _ in range(5)]
        world.now += DAY
        fresh = ping(world, made.id)
        assert self.prune(world, keep=DAY + 1) == (False, 0)
        assert self.prune(world, keep=DAY) == (True, 3)
        assert self.prune(world, keep=DAY) == (True, 2)
        assert [each.id for each in queued(world)] == [fresh.id]
        assert fresh.id not in [each.id for each in old]

    def prune(self, world: World, keep: int) -> tuple[bool, int]:
        with world.database.transaction() as session:
            is_any = deliveries.is_any_old(session, now=world.now, keep_microseconds=keep)
            return is_any, deliveries.prune(session, now=world.now, keep_microseconds=keep, limit=3)

    def test_of_a_webhook_deletes_its_deliveries_while_one_is_sent(self, world: World, pinged: Webhook) -> None:
        (lease,) = claim(world)
        world.write(webhooks.remove, world.caller, pinged.id, now=world.now)
        assert settle(world, lease, OK) is None
        assert queued(world) == []

    def test_of_a_webhook_and_ending_jobs_do_not_deadlock(self, world: World) -> None:
        within = world.new_dataset()
        for _ in range(5):
            made, _ = new_webhook(world)
            submitted = world.submit(within)

            def forget(webhook_id: str = made.id) -> None:
                world.write(webhooks.remove, world.caller, webhook_id, now=world.now)

            outcomes = together([forget, lambda job_id=submitted.id: cancel(world, job_id)])
            assert not [each for each in outcomes if isinstance(each, Exception)]
        assert queued(world) == []
