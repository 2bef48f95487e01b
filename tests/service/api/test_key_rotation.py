"""Key rotation: both keys work during the overlap, and only the new key works afterwards, at every gateway."""

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

from devservers.loopback import NO_TLS
from models.database.engine import Database
from models.database.types import SECOND
from models.identity import keys, tenants
from models.tables.identity import Scope
from service.http.auth import CACHE_SECONDS
from tests.service.api import SQLITE_ONLY, Api, refused, unknown
from tests.service.processes import running

SLACK_SECONDS = 2.0  # maximum time of a request on a busy machine


def user(api: Api, created: dict[str, Any]) -> Api:
    return Api(api.http, api.database, created["secret"])


def create_key(api: Api, **other: Any) -> dict[str, Any]:
    return api.made("/keys", {"name": "app", "scopes": ["jobs", "ledger"], **other})


def rotate(api: Api, key: dict[str, Any], **body: Any) -> dict[str, Any]:
    return api.made(f"/keys/{key['id']}/rotate", body)


def find_key(api: Api, key: dict[str, Any]) -> dict[str, Any]:
    """Return the current document of a key."""
    (found,) = [item for item in api.get("/keys").json()["items"] if item["id"] == key["id"]]
    return dict(found)


class TestRotatedKey:
    def test_is_replaced_by_a_key_with_the_same_permissions(self, api: Api) -> None:
        old = create_key(api, dataset_id=api.dataset()["id"], expires_at="2100-01-01T00:00:00Z")
        new = rotate(api, old)
        same = ("name", "scopes", "dataset_id", "expires_at")
        assert {name: new[name] for name in same} == {name: old[name] for name in same}
        assert new["secret"] not in (None, old["secret"])
        third = rotate(api, new)
        links = [(each["replaces"], each["replaced_by"]) for each in (find_key(api, key) for key in (old, new, third))]
        assert links == [(None, new["id"]), (old["id"], third["id"]), (new["id"], None)]

    def test_works_until_the_overlap_ends(self, api: Api, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        old = create_key(api)
        new = rotate(api, old, overlap_seconds=3600)
        assert user(api, old).get("/jobs").status_code == user(api, new).get("/jobs").status_code == 200
        created_at, expires_at = (
            datetime.fromisoformat(at) for at in (new["created_at"], find_key(api, old)["expires_at"])
        )
        assert (expires_at - created_at).total_seconds() == 3600
        assert new["expires_at"] is None
        now = database.clock()
        monkeypatch.setattr(database, "clock", lambda: now + 3601 * SECOND)
        refused(user(api, old).get("/jobs"), 401, "unauthenticated")
        assert user(api, new).get("/jobs").status_code == 200

    def test_ends_at_once_without_an_overlap(self, api: Api) -> None:
        old = create_key(api)
        assert user(api, old).get("/jobs").status_code == 200  # the gateway caches the key
        new = rotate(api, old, overlap_seconds=0)
        refused(user(api, old).get("/jobs"), 401, "unauthenticated")
        assert user(api, new).get("/jobs").status_code == 200
        own = user(api, rotate(api, {"id": api.caller().key_id}, overlap_seconds=0))  # a key can rotate itself
        refused(api.get("/keys"), 401, "unauthenticated")
        assert own.get("/keys").status_code == 200

    @SQLITE_ONLY
    def test_keeps_an_earlier_expiry(self, api: Api) -> None:
        soon = "2099-01-01T00:00:00.000000Z"
        old = create_key(api, expires_at=soon)
        new = rotate(api, old, overlap_seconds=86_400, expires_at="2100-01-01T00:00:00Z")
        assert find_key(api, old)["expires_at"] < soon
        assert new["expires_at"] == "2100-01-01T00:00:00.000000Z"

    @SQLITE_ONLY
    def test_has_a_new_secret_that_is_shown_once(self, api: Api) -> None:
        path, headers = f"/keys/{create_key(api)['id']}/rotate", {"Idempotency-Key": "rotate"}
        first, again = (api.post(path, {}, headers=headers) for _ in range(2))
        assert again.json() == first.json() | {"secret": None}
        assert first.headers["location"] == f"/v1/keys/{first.json()['id']}"


@SQLITE_ONLY
class TestUnrotatableKey:
    def test_was_replaced_or_revoked_or_has_expired(
        self, api: Api, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        old, revoked, expired = create_key(api), create_key(api), create_key(api, expires_at="2098-01-01T00:00:00Z")
        rotate(api, old)
        api.delete(f"/keys/{revoked['id']}")
        for key, message in ((old, "already rotated"), (revoked, "revoked or expired")):
            problem = refused(api.post(f"/keys/{key['id']}/rotate", {}), 409, "conflict")
            assert message in problem["detail"]
        later = int(datetime.fromisoformat("2099-01-01T00:00:00Z").timestamp()) * SECOND
        monkeypatch.setattr(database, "clock", lambda: later)
        refused(api.post(f"/keys/{expired['id']}/rotate", {}), 409, "conflict")

    def test_belongs_to_another_tenant_or_does_not_exist(self, api: Api, other: Api) -> None:
        mine = create_key(api)
        refused(other.post(f"/keys/{mine['id']}/rotate", {}), 404, "not_found")
        refused(api.post(f"/keys/{unknown('key')}/rotate", {}), 404, "not_found")
        refused(user(api, mine).post(f"/keys/{mine['id']}/rotate", {}), 403, "forbidden")  # not an admin

    def test_has_an_invalid_request(self, api: Api) -> None:
        key = create_key(api)
        seconds = (-1, 30 * 86_400 + 1, 1.5, "60")
        times = ("2001-01-01T00:00:00Z", "2999-01-01T00:00:00Z", "tomorrow")
        invalid = [{"overlap_seconds": each} for each in seconds] + [{"expires_at": each} for each in times]
        for body in (*invalid, {"scopes": ["admin"]}, []):
            refused(api.post(f"/keys/{key['id']}/rotate", body), 422, "validation_failed")
        assert find_key(api, key)["replaced_by"] is None


# ---- two gateways as processes ----


@contextmanager
def two_gateways(url: str, home: Path) -> Iterator[list[httpx.Client]]:
    with ExitStack() as stack:
        names = ("one", "other")
        begun = [
            stack.enter_context(running(home / name, "gateway", "--port", "0", SFUMATO_DATABASE_URL=url))
            for name in names
        ]
        yield [stack.enter_context(httpx.Client(base_url=each.url(), timeout=60, verify=NO_TLS)) for each in begun]


def seconds_until_rejected(secret: str, http: httpx.Client, end: Callable[[], object]) -> float:
    """Return the seconds from the end of a key at one gateway until another gateway rejects it."""
    headers = {"Authorization": f"Bearer {secret}"}
    assert http.get("/v1/jobs", headers=headers).status_code == 200
    ended_at: list[float] = []

    def end_key() -> None:
        time.sleep(0.2)
        end()
        ended_at.append(time.monotonic())

    ending = threading.Thread(target=end_key)
    ending.start()
    sent_at = last_accepted = time.monotonic()
    while http.get("/v1/jobs", headers=headers).status_code != 401:
        last_accepted, sent_at = sent_at, time.monotonic()
        assert sent_at < (ended_at or [sent_at])[0] + 60, "the key is never rejected"
    ending.join()
    return last_accepted - ended_at[0]


@pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
@pytest.mark.slow
def test_every_gateway_rejects_an_ended_key_within_a_second(database_url: str, tmp_path: Path) -> None:
    database = Database(database_url)
    with database.transaction() as session:
        owner = tenants.get_or_create_tenant(session, "t", now=database.clock())
        _, secret = keys.create_key(session, owner.id, name="k", scopes=[Scope.ADMIN], now=database.clock())
    with two_gateways(database_url, tmp_path) as (here, there):
        api = Api(here, database, secret)
        revoked, replaced, within = create_key(api), create_key(api), api.dataset()["id"]
        ends: list[tuple[dict[str, Any], Callable[[], object]]] = [
            (revoked, lambda: api.request("DELETE", f"/keys/{revoked['id']}")),
            (replaced, lambda: rotate(api, replaced, overlap_seconds=0)),
        ]
        for created, end in ends:
            assert seconds_until_rejected(created["secret"], there, end) < CACHE_SECONDS
        overlapping = create_key(api)
        before = time.monotonic()
        rotate(api, overlapping, overlap_seconds=3)
        headers = {"Authorization": f"Bearer {overlapping['secret']}"}
        assert there.get("/v1/jobs", headers=headers).status_code == 200
        while there.get("/v1/jobs", headers=headers).status_code == 200:
            assert time.monotonic() < before + 3 + SLACK_SECONDS + 30
        assert time.monotonic() > before + 2.9
        watched = create_key(api)
        job = api.job(within)
        began = time.monotonic()
        with there.stream(
            "GET", f"/v1/jobs/{job['id']}/events", headers={"Authorization": f"Bearer {watched['secret']}"}
        ) as stream:
            lines = stream.iter_lines()
            assert any(line == "event: job" for line in lines)
            api.request("DELETE", f"/keys/{watched['id']}")
            began = time.monotonic()
            for _ in lines:  # read until the stream ends
                pass
        assert time.monotonic() - began < CACHE_SECONDS + SLACK_SECONDS + 3, "an open stream outlives its key"
    database.close()
    assert json.dumps(secret) not in (tmp_path / "one" / "log").read_text()
