"""A valid key permits the operations of its scopes within its tenant."""

import json
import time

import httpx
import pytest

from models.database.engine import Database
from models.database.types import SECOND
from models.identity import keys
from models.tables.identity import Scope
from service.http.auth import CACHE_SECONDS
from tests.contract.generated import Objects, operations, request
from tests.contract.test_openapi import COMMITTED
from tests.service.api import GRID, SQLITE_ONLY, UNIFORM, Api, refused, single, unknown


class TestWithoutAValidKey:
    @SQLITE_ONLY
    def test_requests_are_unauthenticated(self, http: httpx.Client) -> None:
        for credentials in (
            b"", b"sfk_x", b"Bearer", b"Bearer ", b"Basic sfk_x", b"Bearer sfk_" + b"0" * 64, b"Bearer \xff\xfe",
            b"Bearer " + b"x" * 10_000,
        ):  # fmt: skip
            response = http.get("/v1/datasets", headers={b"Authorization": credentials} if credentials else {})
            refused(response, 401, "unauthenticated")
            assert response.headers["www-authenticate"].startswith("Bearer")
        response = http.post("/v1/datasets", content=b"{", headers={"content-type": "application/json"})
        refused(response, 401, "unauthenticated")  # before the body is read

    def test_an_expired_key_is_rejected_at_once(
        self, api: Api, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        expires_at = database.clock() + 3600 * SECOND
        key = api.key("admin", expires_at=expires_at)
        assert key.get("/datasets").status_code == 200
        monkeypatch.setattr(database, "clock", lambda: expires_at)  # the key is still cached
        refused(key.get("/datasets"), 401, "unauthenticated")

    def test_a_key_revoked_elsewhere_is_rejected_after_the_cache_time(self, api: Api, database: Database) -> None:
        device = api.key("device")
        assert device.get(f"/rounds/{unknown('rnd')}").status_code == 404
        caller = device.caller()
        with database.transaction() as session:
            keys.revoke_key(session, caller.tenant_id, caller.key_id, now=database.clock())
        time.sleep(CACHE_SECONDS + 0.05)
        refused(device.get(f"/rounds/{unknown('rnd')}"), 401, "unauthenticated")

    @SQLITE_ONLY
    def test_the_scheme_is_case_insensitive(self, api: Api) -> None:
        assert api.http.get("/v1/datasets", headers={"Authorization": f"bearer {api.secret}"}).status_code == 200


DOCUMENT = json.loads(COMMITTED.read_text())


@SQLITE_ONLY
class TestScopes:
    def test_each_permits_exactly_its_operations(self, api: Api) -> None:
        """Send the example request of each operation, about existing objects. The document names the scopes."""
        objects, every = Objects(DOCUMENT, api), {scope.value for scope in Scope}
        clients = {scope: api.key(scope) for scope in every}
        guarded = [operation for operation in operations(DOCUMENT) if operation.path.startswith("/v1")]
        for operation, (method, path, options) in [(each, request(each, objects)) for each in guarded]:
            assert operation.scopes <= every, operation.name
            for scope in sorted(every - operation.scopes - {"admin"}):
                refused(clients[scope].request(method, path, **options), 403, "forbidden")
            for scope in sorted(operation.scopes | {"admin"}):
                # a series grants its own budget, so its key needs a second scope
                is_granting = operation.name in ("createSeries", "createRevision")
                client = api.key(scope, "grants") if is_granting else clients[scope]
                response = client.request(method, path, **options)
                assert response.status_code not in (401, 403), (operation.name, scope, response.text)


@SQLITE_ONLY
class TestDatasetKey:
    def test_sees_only_its_dataset(self, api: Api) -> None:
        mine, hidden = api.dataset()["id"], api.dataset()["id"]
        bound = api.key("admin", dataset_id=mine)
        assert [item["id"] for item in bound.get("/datasets").json()["items"]] == [mine]
        assert bound.get(f"/datasets/{mine}").status_code == 200
        opened, job = f"/rounds/{api.round(hidden)['id']}", f"/jobs/{api.job(hidden)['id']}"
        paths = [f"/datasets/{hidden}{path}" for path in ("", "/budget", "/ledger", "/round", "/rounds")]
        for path in (*paths, opened, job):
            refused(bound.get(path), 404, "not_found")
        body = {"dataset_id": hidden, "algorithm": UNIFORM, "target_reports": 1}
        for path, document in ((f"{opened}/reports", single()), (f"{opened}/close", None), ("/jobs", body)):
            refused(bound.post(path, document), 404, "not_found")
        assert bound.get("/jobs").json()["items"] == []

    def test_has_no_access_beyond_its_dataset(self, api: Api) -> None:
        bound = api.key("admin", dataset_id=api.dataset()["id"])
        dataset = {"name": "d", "trust": "local", "features": [{"name": "x", "lower": 0, "upper": 1}], "epsilon": 1}
        for method, path, body in (
            ("POST", "/datasets", dataset),
            ("POST", "/keys", {"name": "k", "scopes": ["admin"]}),
            ("GET", "/keys", None),
            ("DELETE", f"/keys/{unknown('key')}", None),
            ("POST", f"/keys/{unknown('key')}/rotate", {}),
            ("GET", "/audit", None),
        ):
            refused(bound.request(method, path, json=body), 403, "forbidden")

    def test_does_not_get_the_stored_response_of_another_key(self, api: Api) -> None:
        mine, hidden = api.dataset()["id"], api.dataset()["id"]
        headers = {"Idempotency-Key": "one"}
        body = {"encoding": GRID, "epsilon": 1, "target_reports": 10}
        api.made(f"/datasets/{hidden}/rounds", body, headers=headers)
        response = api.key("datasets", dataset_id=mine).post(f"/datasets/{hidden}/rounds", body, headers=headers)
        refused(response, 422, "idempotency_key_reused")


@SQLITE_ONLY
class TestKeys:
    def test_the_secret_is_shown_once_and_works(self, api: Api) -> None:
        body = {"name": "app", "scopes": ["jobs", "device"], "expires_at": "2100-01-02T03:04:05+01:00"}
        key = api.made("/keys", body)
        assert key["secret"].startswith("sfk_")
        assert key["scopes"] == ["device", "jobs"]
        assert key["expires_at"] == "2100-01-02T02:04:05.000000Z"
        assert Api(api.http, api.database, key["secret"]).get("/jobs").status_code == 200
        listed = api.get("/keys")
        assert key["secret"] not in listed.text
        assert key["id"] in [item["id"] for item in listed.json()["items"]]

    def test_a_revoked_key_is_rejected(self, api: Api) -> None:
        key = api.made("/keys", {"name": "app", "scopes": ["jobs"]})
        user = Api(api.http, api.database, key["secret"])
        assert user.get("/jobs").status_code == 200
        for _ in range(2):
            assert api.delete(f"/keys/{key['id']}").status_code == 204
        refused(user.get("/jobs"), 401, "unauthenticated")
        (listed,) = [item for item in api.get("/keys").json()["items"] if item["id"] == key["id"]]
        assert listed["revoked_at"] is not None

    def test_the_secret_is_not_stored(self, api: Api) -> None:
        body, headers = {"name": "app", "scopes": ["jobs"]}, {"Idempotency-Key": "key-1"}
        first, again = (api.post("/keys", body, headers=headers) for _ in range(2))
        assert again.headers["idempotent-replayed"] == "true"
        assert again.json() == first.json() | {"secret": None}

    def test_a_key_can_be_bound_to_an_existing_dataset(self, api: Api, other: Api) -> None:
        mine, hidden = api.dataset()["id"], other.dataset()["id"]
        body = {"name": "k", "scopes": ["device"]}
        assert api.made("/keys", body | {"dataset_id": mine})["dataset_id"] == mine
        refused(api.post("/keys", body | {"dataset_id": hidden}), 404, "not_found")
