"""Keys open what their scopes say, in their tenant, as long as they live."""

import time

import httpx
import pytest

from models import tenant
from models.db import SECOND, Database
from models.tenant import Caller, Scope
from service.auth import HOLD_SECONDS
from tests.service.api import GRID, UNIFORM, Api, a_model, finish, refused, single, stranger, unknown


class TestWithoutALiveKey:
    @pytest.mark.parametrize(
        "headers",
        [
            {},
            {"Authorization": "sfk_x"},
            {"Authorization": "Bearer"},
            {"Authorization": "Bearer "},
            {"Authorization": "Basic sfk_x"},
            {"Authorization": "Bearer sfk_" + "0" * 64},
            {"Authorization": "Bearer " + "x" * 10_000},
            {"Authorization": b"Bearer \xff\xfe"},
        ],
    )
    def test_nothing_opens(self, http: httpx.Client, headers: dict[str, str]) -> None:
        answer = http.get("/v1/datasets", headers=headers)
        refused(answer, 401, "unauthenticated")
        assert answer.headers["www-authenticate"].startswith("Bearer")

    def test_a_body_is_not_even_read(self, http: httpx.Client) -> None:
        answer = http.post("/v1/datasets", content=b"{", headers={"content-type": "application/json"})
        refused(answer, 401, "unauthenticated")

    def test_an_expired_key_opens_nothing_at_once(
        self, http: httpx.Client, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        api = stranger(http, database)
        with database.transaction() as session:
            caller = tenant.authenticate(session, tenant.hash_secret(api.secret), now=0)
            assert isinstance(caller, Caller)
            expires_at = database.clock() + 3600 * SECOND
            _, secret = tenant.create_key(
                session, caller.tenant_id, name="k", scopes=[Scope.ADMIN], expires_at=expires_at, now=0
            )
        short = Api(http, database, secret)
        assert short.get("/datasets").status_code == 200
        monkeypatch.setattr(database, "clock", lambda: expires_at)  # while the cache still holds it
        refused(short.get("/datasets"), 401, "unauthenticated")

    def test_a_key_revoked_elsewhere_opens_nothing_a_second_later(self, api: Api, database: Database) -> None:
        device = api.key("device")
        assert device.get(f"/rounds/{unknown('rnd')}").status_code == 404
        with database.transaction() as session:
            caller = tenant.authenticate(session, tenant.hash_secret(device.secret), now=database.clock())
            assert caller is not None
            tenant.revoke_key(session, caller.tenant_id, caller.key_id, now=database.clock())
        time.sleep(HOLD_SECONDS + 0.05)
        refused(device.get(f"/rounds/{unknown('rnd')}"), 401, "unauthenticated")

    def test_the_scheme_may_be_written_in_any_case(self, api: Api) -> None:
        assert api.http.get("/v1/datasets", headers={"Authorization": f"bearer {api.secret}"}).status_code == 200


# What each scope opens beside `admin`, which opens everything: (method, path, body) -> scopes.
DATASET = {"name": "d", "trust": "local", "features": [{"name": "x", "lower": 0, "upper": 1}], "epsilon": 1}
WEBHOOK = {"url": "https://hooks.example.invalid/", "event_types": ["job.failed"]}
DOORS = [
    ("GET", "/datasets", None, {"datasets", "records", "jobs", "ledger"}),
    ("POST", "/datasets", DATASET, {"datasets"}),
    ("GET", "/datasets/{ds}", None, {"datasets", "records", "jobs", "ledger"}),
    ("PATCH", "/datasets/{ds}", {}, {"datasets"}),
    ("GET", "/datasets/{ds}/budget", None, {"ledger"}),
    ("GET", "/datasets/{ds}/ledger", None, {"ledger"}),
    ("POST", "/datasets/{ds}/grants", {"epsilon": 1}, {"datasets"}),
    ("POST", "/datasets/{cds}/records", {"columns": ["x", "y"], "rows": [[0.5, 0.5]]}, {"records"}),
    ("GET", "/datasets/{cds}/records", None, {"records"}),
    ("DELETE", "/datasets/{cds}/records", None, {"records"}),
    ("POST", "/datasets/{ds}/rounds", {"encoding": GRID, "epsilon": 0.1, "target_reports": 10}, {"datasets"}),
    ("GET", "/datasets/{ds}/rounds", None, {"datasets", "jobs"}),
    ("GET", "/datasets/{ds}/round", None, {"device", "datasets", "jobs"}),
    ("GET", "/rounds/{rnd}", None, {"device", "datasets", "jobs"}),
    ("POST", "/rounds/{rnd}/reports", single(), {"device", "datasets"}),
    ("POST", "/rounds/{rnd}/close", None, {"datasets", "jobs"}),
    ("GET", "/jobs", None, {"jobs"}),
    ("POST", "/jobs", {"dataset_id": "{ds}", "algorithm": UNIFORM | {"epsilon": 0.1}, "target_reports": 10}, {"jobs"}),
    ("GET", "/jobs/{job}", None, {"jobs"}),
    ("GET", "/jobs/{job}/events", None, {"jobs"}),
    ("GET", "/jobs/{job}/result", None, {"jobs"}),
    ("GET", "/jobs/{job}/labels", None, {"jobs"}),
    ("GET", "/jobs/{job}/plot.svg", None, {"jobs"}),
    ("GET", "/jobs/{job}/plot.png", None, {"jobs"}),
    ("POST", "/jobs/{job}/assign", {"points": []}, {"jobs"}),
    ("POST", "/jobs/{job}/cancel", None, {"jobs"}),
    (
        "POST",
        "/forecasts",
        {"algorithm": UNIFORM | {"epsilon": 0.1}, "n_features": 2, "expected_reports": 10},
        {"jobs"},
    ),
    ("GET", "/keys", None, set()),
    ("POST", "/keys", {"name": "k", "scopes": ["device"]}, set()),
    ("POST", "/keys/{key}/rotate", {}, set()),
    ("DELETE", "/keys/{key}", None, set()),
    ("GET", "/audit", None, set()),
    ("GET", "/webhooks", None, set()),
    ("POST", "/webhooks", WEBHOOK, set()),
    ("GET", "/webhooks/{whk}", None, set()),
    ("PATCH", "/webhooks/{whk}", {}, set()),
    ("POST", "/webhooks/{whk}/rotate", {}, set()),
    ("POST", "/webhooks/{whk}/test", None, set()),
    ("GET", "/webhooks/{whk}/deliveries", None, set()),
    ("GET", "/webhooks/{whk}/deliveries/{msg}", None, set()),
    ("POST", "/webhooks/{whk}/deliveries/{msg}/redeliver", None, set()),
    ("DELETE", "/webhooks/{whk}", None, set()),
    ("GET", "/limits", None, {"datasets", "jobs"}),
    ("DELETE", "/datasets/{ds}", None, {"datasets"}),
]


class TestScopes:
    def test_each_opens_its_doors_and_no_other(self, api: Api, database: Database) -> None:
        made = api.dataset()
        opened = api.round(made["id"])
        job = api.job(made["id"])
        finish(database, job["id"], a_model())
        key_id = api.made("/keys", {"name": "k", "scopes": ["device"]})["id"]
        central = api.dataset(trust="central")
        webhook = api.made("/webhooks", WEBHOOK)["id"]
        message = api.made(f"/webhooks/{webhook}/test", None)["id"]
        ids = {"ds": made["id"], "cds": central["id"], "rnd": opened["id"], "job": job["id"], "key": key_id}
        ids |= {"whk": webhook, "msg": message}
        keys = {scope.value: api.key(scope) for scope in Scope}
        for method, path, body, scopes in DOORS:
            where = path.format(**ids)
            if isinstance(body, dict) and "dataset_id" in body:
                body = body | {"dataset_id": made["id"]}
            for scope in sorted(set(Scope) - {Scope.ADMIN} - {Scope(s) for s in scopes}):
                answer = keys[scope].request(method, where, json=body)
                assert answer.status_code == 403, (method, path, scope, answer.text)
                refused(answer, 403, "forbidden")
            for scope in [*sorted(scopes), "admin"][:1]:
                answer = keys[scope].request(method, where, json=body)
                assert answer.status_code < 300, (method, path, scope, answer.text)

    def test_every_operation_is_in_the_table(self, http: httpx.Client) -> None:
        document = http.get("/openapi.json").json()
        operations = {
            (method.upper(), path.removeprefix("/v1"))
            for path, methods in document["paths"].items()
            for method in methods
            if path.startswith("/v1")
        }
        names = {"ds": "dataset_id", "cds": "dataset_id", "rnd": "round_id", "job": "job_id", "key": "key_id"}
        names |= {"whk": "webhook_id", "msg": "delivery_id"}
        told = {(method, path.format(**{k: f"{{{v}}}" for k, v in names.items()})) for method, path, _, _ in DOORS}
        assert operations == told


class TestAKeyOfOneDataset:
    def test_sees_that_dataset_only(self, api: Api) -> None:
        mine, hidden = api.dataset(), api.dataset()
        bound = api.key("admin", dataset_id=mine["id"])
        assert [item["id"] for item in bound.get("/datasets").json()["items"]] == [mine["id"]]
        assert bound.get(f"/datasets/{mine['id']}").status_code == 200
        for path in ("", "/budget", "/ledger", "/round", "/rounds"):
            refused(bound.get(f"/datasets/{hidden['id']}{path}"), 404, "not_found")
        opened, job = api.round(hidden["id"]), api.job(hidden["id"])
        refused(bound.get(f"/rounds/{opened['id']}"), 404, "not_found")
        refused(bound.report(opened["id"]), 404, "not_found")
        refused(bound.post(f"/rounds/{opened['id']}/close"), 404, "not_found")
        refused(bound.get(f"/jobs/{job['id']}"), 404, "not_found")
        assert bound.get("/jobs").json()["items"] == []
        refused(
            bound.post("/jobs", {"dataset_id": hidden["id"], "algorithm": UNIFORM, "target_reports": 1}),
            404,
            "not_found",
        )

    def test_reaches_nothing_beyond_it(self, api: Api) -> None:
        bound = api.key("admin", dataset_id=api.dataset()["id"])
        refused(bound.post("/datasets", DATASET), 403, "forbidden")
        refused(bound.post("/keys", {"name": "k", "scopes": ["admin"]}), 403, "forbidden")
        refused(bound.get("/keys"), 403, "forbidden")
        refused(bound.request("DELETE", f"/keys/{unknown('key')}"), 403, "forbidden")
        refused(bound.post(f"/keys/{unknown('key')}/rotate", {}), 403, "forbidden")
        refused(bound.get("/audit"), 403, "forbidden")

    def test_is_not_answered_what_another_key_was(self, api: Api) -> None:
        mine, hidden = api.dataset(), api.dataset()
        headers = {"Idempotency-Key": "one"}
        body = {"encoding": GRID, "epsilon": 1, "target_reports": 10}
        api.made(f"/datasets/{hidden['id']}/rounds", body, headers=headers)
        bound = api.key("datasets", dataset_id=mine["id"])
        answer = bound.post(f"/datasets/{hidden['id']}/rounds", body, headers=headers)
        refused(answer, 422, "idempotency_key_reused")


class TestKeys:
    def test_one_is_shown_once_and_works(self, api: Api) -> None:
        made = api.made(
            "/keys", {"name": "app", "scopes": ["jobs", "device"], "expires_at": "2100-01-02T03:04:05+01:00"}
        )
        assert made["secret"].startswith("sfk_")
        assert made["scopes"] == ["device", "jobs"]
        assert made["expires_at"] == "2100-01-02T02:04:05.000000Z"
        assert Api(api.http, api.database, made["secret"]).get("/jobs").status_code == 200
        listed = api.get("/keys")
        assert made["secret"] not in listed.text
        assert made["id"] in [item["id"] for item in listed.json()["items"]]

    def test_a_revoked_one_works_no_more(self, api: Api) -> None:
        made = api.made("/keys", {"name": "app", "scopes": ["jobs"]})
        user = Api(api.http, api.database, made["secret"])
        assert user.get("/jobs").status_code == 200
        for _ in range(2):
            assert api.request("DELETE", f"/keys/{made['id']}").status_code == 204
        refused(user.get("/jobs"), 401, "unauthenticated")
        (listed,) = [item for item in api.get("/keys").json()["items"] if item["id"] == made["id"]]
        assert listed["revoked_at"] is not None

    def test_the_secret_is_kept_nowhere(self, api: Api, database: Database) -> None:
        headers = {"Idempotency-Key": "key-1"}
        first = api.post("/keys", {"name": "app", "scopes": ["jobs"]}, headers=headers)
        again = api.post("/keys", {"name": "app", "scopes": ["jobs"]}, headers=headers)
        assert again.headers["idempotent-replayed"] == "true"
        assert again.json() == first.json() | {"secret": None}

    def test_a_key_may_be_bound_to_a_dataset_that_is_there(self, api: Api, other: Api) -> None:
        made = api.dataset()
        bound = api.made("/keys", {"name": "k", "scopes": ["device"], "dataset_id": made["id"]})
        assert bound["dataset_id"] == made["id"]
        hidden = other.dataset()
        answer = api.post("/keys", {"name": "k", "scopes": ["device"], "dataset_id": hidden["id"]})
        refused(answer, 404, "not_found")
