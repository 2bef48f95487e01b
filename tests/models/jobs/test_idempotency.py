"""Idempotency keys: a repeated request receives the stored response and has no effect."""

import threading
from typing import Any

import pytest
from sqlalchemy.orm import Session

from models.errors import IdempotencyKeyReused
from models.jobs import idempotency
from models.jobs.idempotency import KEEP_MICROSECONDS, StoredResponse
from models.ledger import ledger
from models.ledger.amounts import Amounts
from tests.databases import on_postgresql, on_sqlite
from tests.models.world import NOW, Thread, World, rolled_back, together, wait_until_blocked

BODY, OTHER_BODY = b"a" * 32, b"b" * 32
ANSWER = StoredResponse(201, "/v1/datasets/ds_1/grants/led_1", b'{"granted":1}')


def post(
    world: World, dataset_id: str, *, key: str = "key-1", fingerprint: bytes = BODY, now: int = NOW
) -> StoredResponse:
    """Act like a route: claim the key or repeat the response, act, store the response."""
    with world.database.transaction() as session:
        earlier = idempotency.begin(session, world.caller.tenant_id, key, fingerprint, now=now)
        if earlier is not None:
            return earlier
        reference = f"grant_{threading.get_ident()}_{now}"
        ledger.grant(session, dataset_id, Amounts(1), reference=reference, actor="key_test", now=now)
        idempotency.finish(session, world.caller.tenant_id, key, ANSWER)
        return ANSWER


def n_grants(world: World, dataset_id: str) -> int:
    return len(world.chain(dataset_id)) - 1


@on_sqlite
class TestRepetition:
    def test_returns_the_stored_response_without_effect(self, world: World) -> None:
        dataset_id = world.new_dataset().id

        answers = [post(world, dataset_id) for _ in range(3)]

        assert answers == [ANSWER] * 3
        assert n_grants(world, dataset_id) == 1

    def test_with_another_body_is_rejected(self, world: World) -> None:
        dataset_id = world.new_dataset().id
        post(world, dataset_id)

        with pytest.raises(IdempotencyKeyReused):
            post(world, dataset_id, fingerprint=OTHER_BODY)

        assert post(world, dataset_id) == ANSWER
        assert n_grants(world, dataset_id) == 1

    def test_under_another_key_or_tenant_is_a_new_request(self, world: World) -> None:
        dataset_id = world.new_dataset().id
        post(world, dataset_id)
        post(world, dataset_id, key="key-2", now=NOW + 1)
        world.caller = world.new_caller("stranger")
        post(world, dataset_id, fingerprint=OTHER_BODY, now=NOW + 2)

        assert n_grants(world, dataset_id) == 3

    def test_after_a_rollback_is_a_new_request(self, world: World) -> None:
        dataset_id = world.new_dataset().id
        with rolled_back(world.database) as session:
            assert idempotency.begin(session, world.caller.tenant_id, "key-1", OTHER_BODY, now=NOW) is None
            idempotency.finish(session, world.caller.tenant_id, "key-1", ANSWER)

        assert post(world, dataset_id) == ANSWER
        assert n_grants(world, dataset_id) == 1

    def test_a_day_later_is_a_new_request(self, world: World) -> None:
        dataset_id = world.new_dataset().id
        times = (NOW, NOW + KEEP_MICROSECONDS - 1, NOW + KEEP_MICROSECONDS)

        counts = []
        for now in times:
            post(world, dataset_id, fingerprint=BODY if now < times[2] else OTHER_BODY, now=now)
            counts.append(n_grants(world, dataset_id))

        assert counts == [1, 1, 2]


class TestConcurrentRepetition:
    def test_one_has_an_effect_and_all_return_its_response(self, world: World) -> None:
        dataset_id = world.new_dataset().id

        answers = together([lambda: post(world, dataset_id)] * 8)

        assert answers == [ANSWER] * 8
        assert n_grants(world, dataset_id) == 1

    def test_one_of_two_bodies_is_accepted(self, world: World) -> None:
        dataset_id = world.new_dataset().id

        calls = [lambda body=body: post(world, dataset_id, fingerprint=body) for body in (BODY, OTHER_BODY) * 3]
        answers = together(calls)

        assert sum(answer == ANSWER for answer in answers) == 3
        assert sum(isinstance(answer, IdempotencyKeyReused) for answer in answers) == 3
        assert n_grants(world, dataset_id) == 1

    @on_postgresql
    @pytest.mark.parametrize("fails", [True, False])
    def test_waits_for_the_first_request_and_runs_if_it_failed(self, world: World, fails: bool) -> None:
        dataset_id = world.new_dataset().id
        unit = rolled_back(world.database) if fails else world.database.transaction()
        first = StoredResponse(202, None, b"first")
        with unit as session:
            assert idempotency.begin(session, world.caller.tenant_id, "key-1", BODY, now=NOW) is None
            idempotency.finish(session, world.caller.tenant_id, "key-1", first)
            repeat = Thread(lambda: post(world, dataset_id))
            wait_until_blocked(world.database)

        assert repeat.outcome() == (ANSWER if fails else first)
        assert n_grants(world, dataset_id) == int(fails)

    @on_postgresql
    def test_is_a_new_request_if_the_response_expires_meanwhile(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        dataset_id = world.new_dataset().id
        post(world, dataset_id)
        get, seen = Session.get, []

        def get_after_the_sweep(self: Session, *arguments: Any, **options: Any) -> Any:
            if not seen:
                world.write(idempotency.delete_expired, now=NOW + KEEP_MICROSECONDS)
            seen.append(get(self, *arguments, **options))
            return seen[-1]

        monkeypatch.setattr(Session, "get", get_after_the_sweep)
        found = world.write(idempotency.begin, world.caller.tenant_id, "key-1", BODY, now=NOW + 1)

        assert (found, seen) == (None, [None])


@on_sqlite
class TestExpiry:
    def test_deletes_responses_older_than_a_day_only(self, world: World) -> None:
        dataset_id = world.new_dataset().id
        post(world, dataset_id, key="old")
        post(world, dataset_id, key="new", now=NOW + 1)

        world.write(idempotency.delete_expired, now=NOW + KEEP_MICROSECONDS)
        post(world, dataset_id, key="old", now=NOW + 2)
        post(world, dataset_id, key="new", now=NOW + 2)

        assert n_grants(world, dataset_id) == 3
