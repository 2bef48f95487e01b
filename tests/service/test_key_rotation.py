"""Keys that replace one another: both work while they overlap, afterwards one does, at every gateway."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from models import tenant
from models.db import SECOND, Database
from models.tenant import Scope
from service.auth import HOLD_SECONDS
from tests.service.api import Api, refused, unknown
from tests.service.processes import running

SLACK_SECONDS = 2.0  # for the look-up and the answer, on a machine however busy
POSTGRES = pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)


def user(api: Api, made: dict[str, Any]) -> Api:
    return Api(api.http, api.database, made["secret"])


def key(api: Api, **other: Any) -> dict[str, Any]:
    return api.made("/keys", {"name": "app", "scopes": ["jobs", "ledger"], **other})


def rotated(api: Api, key_id: str, **body: Any) -> dict[str, Any]:
    return api.made(f"/keys/{key_id}/rotate", body)


def listed(api: Api, key_id: str) -> dict[str, Any]:
    (found,) = [item for item in api.get("/keys").json()["items"] if item["id"] == key_id]
    return dict(found)


def seconds_between(one: str, other: str) -> float:
    return (datetime.fromisoformat(other) - datetime.fromisoformat(one)).total_seconds()


class TestARotatedKey:
    def test_is_replaced_by_one_that_may_do_the_same(self, api: Api) -> None:
        old = key(api, dataset_id=api.dataset()["id"], expires_at="2100-01-01T00:00:00Z")
        new = rotated(api, old["id"])
        same = ("name", "scopes", "dataset_id", "expires_at")
        assert {name: new[name] for name in same} == {name: old[name] for name in same}
        assert new["secret"] not in (None, old["secret"])
        assert (new["replaces"], new["replaced_by"]) == (old["id"], None)
        assert listed(api, old["id"])["replaced_by"] == new["id"]

    def test_works_beside_the_new_one_for_as_long_as_was_asked(
        self, api: Api, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        old = key(api)
        new = rotated(api, old["id"], overlap_seconds=3600)
        assert user(api, old).get("/jobs").status_code == user(api, new).get("/jobs").status_code == 200
        assert seconds_between(new["created_at"], listed(api, old["id"])["expires_at"]) == 3600
        assert new["expires_at"] is None
        now = database.clock()
        monkeypatch.setattr(database, "clock", lambda: now + 3601 * SECOND)
        refused(user(api, old).get("/jobs"), 401, "unauthenticated")
        assert user(api, new).get("/jobs").status_code == 200

    def test_ends_at_once_without_an_overlap(self, api: Api) -> None:
        old = key(api)
        assert user(api, old).get("/jobs").status_code == 200  # the gateway holds it now
        new = rotated(api, old["id"], overlap_seconds=0)
        refused(user(api, old).get("/jobs"), 401, "unauthenticated")
        assert user(api, new).get("/jobs").status_code == 200

    def test_does_not_live_longer_for_it(self, api: Api, database: Database) -> None:
        soon = "2099-01-01T00:00:00.000000Z"
        old = key(api, expires_at=soon)
        new = rotated(api, old["id"], overlap_seconds=86_400, expires_at="2100-01-01T00:00:00Z")
        assert listed(api, old["id"])["expires_at"] < soon
        assert new["expires_at"] == "2100-01-01T00:00:00.000000Z"

    def test_may_be_the_one_that_asks(self, api: Api) -> None:
        own = next(item["id"] for item in api.get("/keys").json()["items"])
        new = user(api, rotated(api, own, overlap_seconds=0))
        refused(api.get("/keys"), 401, "unauthenticated")
        assert new.get("/keys").status_code == 200

    def test_is_shown_its_new_secret_once(self, api: Api) -> None:
        old, headers = key(api), {"Idempotency-Key": "rotate"}
        first = api.post(f"/keys/{old['id']}/rotate", {}, headers=headers)
        again = api.post(f"/keys/{old['id']}/rotate", {}, headers=headers)
        assert again.json() == first.json() | {"secret": None}
        assert first.headers["location"] == f"/v1/keys/{first.json()['id']}"

    def test_has_a_line_of_descent(self, api: Api) -> None:
        first = key(api)
        second = rotated(api, first["id"])
        third = rotated(api, second["id"])
        assert [listed(api, one["id"])["replaces"] for one in (first, second, third)] == [
            None,
            first["id"],
            second["id"],
        ]


class TestAKeyThatCannotBeRotated:
    def test_was_replaced_already(self, api: Api) -> None:
        old = key(api)
        rotated(api, old["id"])
        told = refused(api.post(f"/keys/{old['id']}/rotate", {}), 409, "conflict")
        assert "replaced already" in told["detail"]

    def test_is_revoked_or_has_expired(self, api: Api, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        revoked, expired = key(api), key(api, expires_at="2098-01-01T00:00:00Z")
        api.request("DELETE", f"/keys/{revoked['id']}")
        told = refused(api.post(f"/keys/{revoked['id']}/rotate", {}), 409, "conflict")
        assert "revoked or has expired" in told["detail"]
        later = int(datetime.fromisoformat("2099-01-01T00:00:00Z").timestamp()) * SECOND
        monkeypatch.setattr(database, "clock", lambda: later)
        refused(api.post(f"/keys/{expired['id']}/rotate", {}), 409, "conflict")

    def test_is_anothers_or_nobodys(self, api: Api, other: Api) -> None:
        mine = key(api)
        refused(other.post(f"/keys/{mine['id']}/rotate", {}), 404, "not_found")
        refused(api.post(f"/keys/{unknown('key')}/rotate", {}), 404, "not_found")
        assert listed(api, mine["id"])["replaced_by"] is None

    def test_is_its_own_without_admin(self, api: Api) -> None:
        mine = key(api)
        refused(user(api, mine).post(f"/keys/{mine['id']}/rotate", {}), 403, "forbidden")

    @pytest.mark.parametrize(
        "body",
        [
            {"overlap_seconds": -1},
            {"overlap_seconds": 30 * 86_400 + 1},
            {"overlap_seconds": 1.5},
            {"overlap_seconds": "60"},
            {"expires_at": "2001-01-01T00:00:00Z"},
            {"expires_at": "2999-01-01T00:00:00Z"},
            {"expires_at": "tomorrow"},
            {"scopes": ["admin"]},
            [],
        ],
        ids=range(9),
    )
    def test_is_asked_for_with_what_cannot_be(self, api: Api, body: Any) -> None:
        mine = key(api)
        refused(api.post(f"/keys/{mine['id']}/rotate", body), 422, "validation_failed")
        assert listed(api, mine["id"])["replaced_by"] is None


# ---- two gateways, each a process of its own ----


@contextmanager
def two_gateways(url: str, home: Path) -> Iterator[list[httpx.Client]]:
    with ExitStack() as stack:
        names = ("one", "other")
        begun = [
            stack.enter_context(running(home / name, "gateway", "--port", "0", SFUMATO_DATABASE_URL=url))
            for name in names
        ]
        yield [stack.enter_context(httpx.Client(base_url=each.url(), timeout=60)) for each in begun]


def seconds_taken_after(secret: str, http: httpx.Client, end: Callable[[], object]) -> float:
    """From the end of a key, that another gateway saw to, until a busy client of this one asks in vain."""
    headers = {"Authorization": f"Bearer {secret}"}
    assert http.get("/v1/jobs", headers=headers).status_code == 200
    ended_at: list[float] = []

    def see_to_it() -> None:
        time.sleep(0.2)
        end()
        ended_at.append(time.monotonic())

    ending = threading.Thread(target=see_to_it)
    ending.start()
    asked = last_taken = time.monotonic()
    while True:
        asked = time.monotonic()
        if http.get("/v1/jobs", headers=headers).status_code == 401:
            break
        last_taken = asked
        assert asked < (ended_at or [asked])[0] + 60, "never refused"
    ending.join()
    return last_taken - ended_at[0]


@POSTGRES
@pytest.mark.slow
@pytest.mark.ci
def test_an_ended_key_opens_nothing_at_another_gateway_a_second_later(database_url: str, tmp_path: Path) -> None:
    database = Database(database_url)
    with database.transaction() as session:
        owner = tenant.get_or_create_tenant(session, "t", now=database.clock())
        _, secret = tenant.create_key(session, owner.id, name="k", scopes=[Scope.ADMIN], now=database.clock())
    with two_gateways(database_url, tmp_path) as (here, there):
        api = Api(here, database, secret)
        revoked, replaced, within = key(api), key(api), api.dataset()["id"]
        ends: list[tuple[dict[str, Any], Callable[[], object]]] = [
            (revoked, lambda: api.request("DELETE", f"/keys/{revoked['id']}")),
            (replaced, lambda: rotated(api, replaced["id"], overlap_seconds=0)),
        ]
        for made, end in ends:
            assert seconds_taken_after(made["secret"], there, end) < HOLD_SECONDS
        overlapping = key(api)
        before = time.monotonic()
        rotated(api, overlapping["id"], overlap_seconds=3)
        headers = {"Authorization": f"Bearer {overlapping['secret']}"}
        assert there.get("/v1/jobs", headers=headers).status_code == 200
        while there.get("/v1/jobs", headers=headers).status_code == 200:
            assert time.monotonic() < before + 3 + SLACK_SECONDS + 30
        assert time.monotonic() > before + 2.9
        watched = key(api)
        job = api.job(within)
        began = time.monotonic()
        with there.stream(
            "GET", f"/v1/jobs/{job['id']}/events", headers={"Authorization": f"Bearer {watched['secret']}"}
        ) as stream:
            lines = stream.iter_lines()
            assert any(line == "event: job" for line in lines)
            api.request("DELETE", f"/keys/{watched['id']}")
            began = time.monotonic()
            for _ in lines:  # until it ends
                pass
        assert time.monotonic() - began < HOLD_SECONDS + SLACK_SECONDS + 3, "an open stream outlives its key"
    database.close()
    assert json.dumps(secret) not in (tmp_path / "one" / "log").read_text()
