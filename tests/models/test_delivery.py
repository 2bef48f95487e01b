"""Deliveries: queued with what happened, sent by one at a time, repeated for three days, then given up."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import select

from models import delivery as deliveries
from models import job, removal
from models import webhook as webhooks
from models.dataset import Trust
from models.db import SECOND, Database
from models.delivery import AT_ONCE_OF_A_WEBHOOK, DELAYS, DISABLE_AFTER, Delivery, DeliveryState, Held, Outcome
from models.errors import Conflict, NotFound
from models.job import JobState
from models.round import Collect
from models.sealing import Keyring
from models.webhook import EventType, Webhook
from tests.models.test_webhook import KEYRING, new_webhook
from tests.models.world import World, cancel, rolled_back, submit, succeed, together

OK, DOWN = Outcome(200), Outcome(500, "bad_status")
LEASE = 20 * SECOND
DAY = 86_400 * SECOND


def queued(world: World) -> list[Delivery]:
    with world.database.reading() as session:
        return list(session.scalars(select(Delivery).order_by(Delivery.next_attempt_at, Delivery.id)))


def told(world: World) -> list[dict[str, Any]]:
    return [json.loads(each.payload) for each in queued(world)]


def claim(world: World, *, limit: int = 64, keyring: Keyring = KEYRING) -> list[Held]:
    with world.database.transaction() as session:
        return deliveries.claim(session, keyring, now=world.now, lease_microseconds=LEASE, limit=limit)


def settle(world: World, held: Held, outcome: Outcome, random: Callable[[], float] = lambda: 0.5) -> str | None:
    with world.database.transaction() as session:
        return deliveries.settle(session, held, outcome, now=world.now, random=random)


def ping(world: World, webhook_id: str) -> Delivery:
    with world.database.transaction() as session:
        return deliveries.ping(session, world.caller, webhook_id, now=world.now)


def webhook(world: World, webhook_id: str) -> Webhook:
    with world.database.reading() as session:
        return session.get_one(Webhook, webhook_id)


class TestWhatHappens:
    def test_to_a_job_and_its_rounds_is_told(self, world: World) -> None:
        new_webhook(world)
        within = world.new_dataset()
        submitted = world.submit(within)
        opened = world.open_for(world.claimed(), collect=Collect(1, 1, 3600))
        world.now += SECOND
        world.receive(opened.id)
        world.now += SECOND
        with world.database.transaction() as session:
            held = job.claim(session, now=world.now, lease_microseconds=LEASE, max_attempts=5)
            assert held is not None
        with world.database.transaction() as session:
            job.succeed(session, held, {"model": {}, "rounds": []}, software_version="1", now=world.now)
        of_round = {"id": opened.id, "dataset_id": within.id, "job_id": submitted.id, "index": 0}
        of_job = {"id": submitted.id, "dataset_id": within.id, "error_code": None}
        found = sorted(((each["timestamp"], each["type"], each["data"]) for each in told(world)), key=str)
        assert found == [
            ("2027-01-15T08:00:00.000000Z", "job.collecting", of_job | {"state": "collecting"}),
            ("2027-01-15T08:00:00.000000Z", "round.opened", of_round | {"state": "open"}),
            ("2027-01-15T08:00:01.000000Z", "round.closed", of_round | {"state": "closed"}),
            ("2027-01-15T08:00:02.000000Z", "job.succeeded", of_job | {"state": "succeeded"}),
        ]

    @pytest.mark.parametrize("state", [JobState.FAILED, JobState.EXPIRED])
    def test_to_a_job_that_ends_without_a_result_is_told_with_its_code_and_no_word(
        self, world: World, state: JobState
    ) -> None:
        new_webhook(world, event_types=[EventType(f"job.{state}")])
        world.submit(world.new_dataset())
        held = world.claimed()
        with world.database.transaction() as session:
            job.fail(session, held, state, code="too_few_reports", detail="words 4711", now=world.now)
        (only,) = told(world)
        assert (only["data"]["state"], only["data"]["error_code"]) == (state, "too_few_reports")
        assert "4711" not in json.dumps(only)

    def test_is_told_to_those_who_want_it_and_to_no_other_tenant(self, world: World) -> None:
        within, beside = world.new_dataset(), world.new_dataset()
        wants = new_webhook(world, event_types=[EventType.JOB_CANCELED])[0]
        of_it = new_webhook(world, dataset_id=within.id)[0]
        new_webhook(world, dataset_id=beside.id)
        new_webhook(world, event_types=[EventType.JOB_SUCCEEDED])
        new_webhook(world, caller=world.new_caller("other"))
        disabled = new_webhook(world)[0]
        with world.database.transaction() as session:
            webhooks.change(
                session, world.caller, disabled.id, url=None, event_types=None, description=None, enabled=False, now=1
            )
        cancel(world, world.submit(within).id)
        assert {each.webhook_id for each in queued(world)} == {wants.id, of_it.id}

    def test_is_not_told_where_it_did_not_happen(self, world: World) -> None:
        new_webhook(world)
        submitted = world.submit(world.new_dataset())
        with rolled_back(world.database) as session:
            job.cancel(session, world.caller, submitted.id, now=world.now)
        assert queued(world) == []

    def test_twice_is_told_once(self, world: World) -> None:
        new_webhook(world)
        within = world.new_dataset()
        opened = world.open_standalone(within)
        for _ in range(3):
            world.close(opened.id)
        submitted = world.submit(within)
        for _ in range(3):
            cancel(world, submitted.id)
        assert sorted(each["type"] for each in told(world)) == ["job.canceled", "round.closed", "round.opened"]

    def test_to_a_job_over_records_is_told_with_its_coarse_time_in_payload_and_id(self, world: World) -> None:
        new_webhook(world)
        within = world.new_dataset(trust=Trust.CENTRAL)
        with world.database.transaction() as session:
            made = submit(session, world.caller, within, epsilon_nano=5, now=world.now, collect=Collect(0, 0, 0))
        began, world.now = world.now, world.now + 59 * SECOND + 123_456
        held = world.claimed()
        with world.database.transaction() as session:
            job.succeed(session, held, {"model": {}, "rounds": []}, software_version="1", now=world.now)
        (only,) = queued(world)
        assert json.loads(only.payload)["timestamp"] == "2027-01-15T08:00:00.000000Z"
        assert only.created_at == began == made.created_at
        assert only.next_attempt_at == world.now
        assert only.id[4:14] == made_at(began)

    def test_to_a_deleted_datasets_rounds_is_told_no_more(self, world: World) -> None:
        new_webhook(world)
        within, beside = world.new_dataset(), world.new_dataset()
        for each in (within, beside):
            world.open_standalone(each)
        world.submit(within)
        with world.database.transaction() as session:
            removal.remove(session, world.caller, within.id, now=world.now)
        left = {(each["type"], each["data"]["dataset_id"]) for each in told(world)}
        assert left == {("job.canceled", within.id), ("round.opened", beside.id)}


def made_at(microseconds: int) -> str:
    """The ten characters of a ULID that tell this time."""
    alphabet, value = "0123456789abcdefghjkmnpqrstvwxyz", microseconds // 1000
    return "".join(alphabet[value >> shift & 31] for shift in range(45, -5, -5))


class TestClaiming:
    def test_takes_what_is_due_and_holds_it(self, world: World) -> None:
        made, _ = new_webhook(world)
        for _ in range(2):
            ping(world, made.id)
        with world.database.reading() as session:
            assert deliveries.is_any_due(session, now=world.now)
            assert not deliveries.is_any_due(session, now=world.now - 1)
            assert deliveries.n_pending(session) == 2
        held = claim(world)
        assert [(each.fence, each.url, len(each.secrets)) for each in held] == [(1, made.url, 1)] * 2
        assert claim(world) == []
        with world.database.reading() as session:
            assert not deliveries.is_any_due(session, now=world.now)

    def test_takes_what_a_gateway_that_died_held_once_its_lease_is_over(self, world: World) -> None:
        made, _ = new_webhook(world)
        ping(world, made.id)
        (first,) = claim(world)
        world.now += LEASE
        (second,) = claim(world)
        assert (second.delivery_id, second.payload, second.fence) == (first.delivery_id, first.payload, 2)
        assert settle(world, first, OK) is None  # too late: it is somebody else's
        assert settle(world, second, OK) == "delivered"
        assert settle(world, second, DOWN) is None

    def test_at_once_by_many_takes_each_once(self, world: World) -> None:
        for _ in range(5):
            made, _ = new_webhook(world)
            for _ in range(AT_ONCE_OF_A_WEBHOOK):
                ping(world, made.id)
        taken = [held.delivery_id for each in together([lambda: claim(world, limit=5)] * 6) for held in each]
        taken += [held.delivery_id for held in claim(world)]
        assert len(taken) == len(set(taken)) == 5 * AT_ONCE_OF_A_WEBHOOK

    def test_leaves_room_beside_a_webhook_with_many(self, world: World) -> None:
        slow, other = new_webhook(world)[0], new_webhook(world)[0]
        for _ in range(20):
            ping(world, slow.id)
        world.now += 1
        ping(world, other.id)
        assert len(claim(world, limit=5)) == AT_ONCE_OF_A_WEBHOOK  # of five rows, one too many
        (left,) = claim(world, limit=5)
        assert left.url == other.url
        assert [each.webhook_id for each in queued(world) if each.id == left.delivery_id] == [other.id]

    def test_leaves_what_is_for_a_disabled_webhook_until_it_is_enabled(self, world: World) -> None:
        made, _ = new_webhook(world)
        ping(world, made.id)
        for enabled, n_taken in ((False, 0), (True, 1)):
            with world.database.transaction() as session:
                webhooks.change(
                    session,
                    world.caller,
                    made.id,
                    url="https://new.example/",
                    event_types=None,
                    description=None,
                    enabled=enabled,
                    now=world.now,
                )
            taken = claim(world)
            assert [each.url for each in taken] == ["https://new.example/"] * n_taken

    def test_without_its_key_holds_it_without_a_secret_and_blames_nobody(self, world: World) -> None:
        made, _ = new_webhook(world)
        ping(world, made.id)
        (held,) = claim(world, keyring=Keyring(()))
        assert held.secrets == ()
        assert settle(world, held, Outcome(error=deliveries.SECRET_UNREADABLE)) == "retried"
        (left,) = queued(world)
        assert (left.attempts, left.next_attempt_at) == (0, world.now + 300 * SECOND)
        assert webhook(world, made.id).failing_since is None


class TestAttempts:
    def test_come_later_and_later_over_three_days_and_end(self, world: World) -> None:
        made, _ = new_webhook(world)
        ping(world, made.id)
        began, waited = world.now, []
        for n_attempts in range(1, len(DELAYS) + 2):
            (held,) = claim(world)
            came = settle(world, held, DOWN)
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

    @pytest.mark.parametrize("drawn", [0.0, 0.25, 0.999])
    def test_are_scattered(self, world: World, drawn: float) -> None:
        made, _ = new_webhook(world)
        ping(world, made.id)
        settle(world, claim(world)[0], DOWN, lambda: drawn)
        (left,) = queued(world)
        assert left.next_attempt_at is not None
        assert left.next_attempt_at - world.now == round(DELAYS[0] * (0.9 + 0.2 * drawn))

    @pytest.mark.parametrize(("asked", "given"), [(60, 60), (1, 5), (0, 5), (None, 5), (10**9, 86_400)])
    def test_wait_as_long_as_the_receiver_asks_within_a_day(self, world: World, asked: int | None, given: int) -> None:
        made, _ = new_webhook(world)
        ping(world, made.id)
        settle(world, claim(world)[0], Outcome(503, "bad_status", asked))
        (left,) = queued(world)
        assert left.next_attempt_at == world.now + given * SECOND

    def test_that_succeed_end_it(self, world: World) -> None:
        made, _ = new_webhook(world)
        ping(world, made.id)
        settle(world, claim(world)[0], DOWN)
        assert webhook(world, made.id).failing_since == world.now
        world.now += DAY
        assert settle(world, claim(world)[0], OK) == "delivered"
        (left,) = queued(world)
        assert (left.state, left.attempts, left.next_attempt_at, left.last_error) == ("delivered", 2, None, None)
        assert webhook(world, made.id).failing_since is None

    def test_answered_410_disable_the_webhook(self, world: World) -> None:
        made, _ = new_webhook(world)
        ping(world, made.id)
        assert settle(world, claim(world)[0], Outcome(410, "bad_status")) == "disabled"
        found = webhook(world, made.id)
        assert (found.enabled, queued(world)[0].state) == (False, DeliveryState.FAILED)
        assert "410" in (found.disabled_reason or "")

    def test_that_fail_for_days_disable_the_webhook_and_enabling_begins_anew(self, world: World) -> None:
        made, _ = new_webhook(world)
        ping(world, made.id)
        settle(world, claim(world)[0], DOWN)
        world.now += DISABLE_AFTER - 1
        assert settle(world, claim(world)[0], DOWN) == "retried"
        world.now += 3600 * SECOND
        assert settle(world, claim(world)[0], DOWN) == "disabled"
        assert webhook(world, made.id).disabled_reason == "no delivery succeeded for 5 days"
        with pytest.raises(Conflict):
            ping(world, made.id)
        with world.database.transaction() as session:
            webhooks.change(
                session, world.caller, made.id, url=None, event_types=None, description=None, enabled=True, now=1
            )
        world.now += DAY
        assert settle(world, claim(world)[0], DOWN) == "retried"
        assert webhook(world, made.id).enabled


class TestAskingAgain:
    def again(self, world: World, webhook_id: str, delivery_id: str) -> Delivery:
        with world.database.transaction() as session:
            return deliveries.again(session, world.caller, webhook_id, delivery_id, now=world.now)

    def test_sends_the_same_bytes_under_the_same_id(self, world: World) -> None:
        made, _ = new_webhook(world)
        ping(world, made.id)
        (first,) = claim(world)
        settle(world, first, OK)
        again = self.again(world, made.id, first.delivery_id)
        assert (again.state, again.attempts) == (DeliveryState.PENDING, 0)
        (second,) = claim(world)
        assert (second.delivery_id, second.payload) == (first.delivery_id, first.payload)
        assert settle(world, first, DOWN) is None

    def test_makes_what_waits_due_and_keeps_its_count(self, world: World) -> None:
        made, _ = new_webhook(world)
        ping(world, made.id)
        (held,) = claim(world)
        self.again(world, made.id, held.delivery_id)
        assert claim(world) == []  # it is being sent
        settle(world, held, DOWN)
        assert self.again(world, made.id, held.delivery_id).attempts == 1
        assert len(claim(world)) == 1

    def test_of_another_webhook_or_tenant_finds_nothing(self, world: World, database: Database) -> None:
        made, beside = new_webhook(world)[0], new_webhook(world)[0]
        only = ping(world, made.id)
        with pytest.raises(NotFound):
            self.again(world, beside.id, only.id)
        with pytest.raises(NotFound), database.transaction() as session:
            deliveries.again(session, world.new_caller("other"), made.id, only.id, now=world.now)


class TestForgetting:
    def test_drops_what_is_older_than_the_retention(self, world: World) -> None:
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

    def test_a_webhook_takes_its_deliveries_along_while_one_is_sent(self, world: World) -> None:
        made, _ = new_webhook(world)
        ping(world, made.id)
        (held,) = claim(world)
        with world.database.transaction() as session:
            webhooks.remove(session, world.caller, made.id, now=world.now)
        assert settle(world, held, OK) is None
        assert queued(world) == []

    def test_a_webhook_and_ending_jobs_wait_for_each_other_without_an_error(self, world: World) -> None:
        within = world.new_dataset()
        for _ in range(5):
            made, _ = new_webhook(world)
            submitted = world.submit(within)

            def forget(webhook_id: str = made.id) -> None:
                with world.database.transaction() as session:
                    webhooks.remove(session, world.caller, webhook_id, now=world.now)

            outcomes = together([forget, lambda job_id=submitted.id: cancel(world, job_id)])
            assert not [each for each in outcomes if isinstance(each, Exception)]
        assert queued(world) == []


def test_a_success_of_a_job_is_told_in_its_transaction(world: World) -> None:
    new_webhook(world)
    world.submit(world.new_dataset())
    held = world.claimed()
    with rolled_back(world.database) as session:
        succeed(session, held)
        assert session.scalars(select(Delivery)).first() is not None
    assert queued(world) == []
