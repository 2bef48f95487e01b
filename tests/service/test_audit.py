"""The audit trail: each act of administration leaves one event, what is refused or changes nothing none."""

import json
import secrets
from collections.abc import Callable
from typing import Any

import pytest

from models import audit, tenant
from models.audit import AuditEvent
from models.db import Database
from models.tenant import Caller
from tests.contract.test_openapi import COMMITTED, operations
from tests.service.api import GRID, UNIFORM, Api, refused, single, unknown

DATASET = {"name": "d", "trust": "local", "features": [{"name": "x", "lower": 0, "upper": 1}], "epsilon": 1}
WEBHOOK = {"url": "https://hooks.example/sfumato", "event_types": ["job.succeeded"]}
RECORDS = {"columns": ["x", "y"], "rows": [[0.5, 0.5]]}

# What no event is kept of, and why.
SILENT = {
    "sendReports": "devices report; nobody administers, and the report log keeps no times",
    "createForecast": "spends nothing, keeps nothing",
    "testWebhook": "changes nothing; its delivery is listed with the webhook's others",
    "redeliverWebhook": "the same",
    "assignPoints": "labels points the caller holds, keeps nothing",
}


class Told:
    """One of everything, made when it is asked for; the path and body of an operation."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.dataset_id = api.dataset()["id"]

    def central(self) -> str:
        made: str = self.api.dataset(trust="central")["id"]
        return made

    def key(self) -> str:
        made: str = self.api.made("/keys", {"name": "k", "scopes": ["device"]})["id"]
        return made

    def round(self) -> str:
        made: str = self.api.round(self.dataset_id)["id"]
        return made

    def webhook(self) -> str:
        made: str = self.api.made("/webhooks", WEBHOOK)["id"]
        return made

    def job(self) -> str:
        made: str = self.api.job(self.dataset_id, algorithm=UNIFORM | {"epsilon": 0.1})["id"]
        return made


# operationId -> what is asked: (path, body), the act it leaves, and what it is done to, where that was there before
ACTS: dict[str, tuple[Callable[[Told], tuple[str, Any]], str]] = {
    "createDataset": (lambda told: ("/datasets", DATASET), "dataset.created"),
    "updateDataset": (lambda told: (f"/datasets/{told.dataset_id}", {"name": "other"}), "dataset.updated"),
    "deleteDataset": (lambda told: (f"/datasets/{told.central()}", None), "dataset.deleted"),
    "createGrant": (lambda told: (f"/datasets/{told.dataset_id}/grants", {"epsilon": 1}), "grant.created"),
    "uploadRecords": (lambda told: (f"/datasets/{told.central()}/records", RECORDS), "records.uploaded"),
    "deleteRecords": (lambda told: (f"/datasets/{told.central()}/records", None), "records.deleted"),
    "createRound": (
        lambda told: (f"/datasets/{told.dataset_id}/rounds", {"encoding": GRID, "epsilon": 0.1, "target_reports": 10}),
        "round.created",
    ),
    "closeRound": (lambda told: (f"/rounds/{told.round()}/close", None), "round.closed"),
    "createJob": (
        lambda told: (
            "/jobs",
            {"dataset_id": told.dataset_id, "algorithm": UNIFORM | {"epsilon": 0.1}, "target_reports": 10},
        ),
        "job.submitted",
    ),
    "cancelJob": (lambda told: (f"/jobs/{told.job()}/cancel", None), "job.canceled"),
    "createKey": (lambda told: ("/keys", {"name": "k", "scopes": ["device"]}), "key.created"),
    "rotateKey": (lambda told: (f"/keys/{told.key()}/rotate", {"overlap_seconds": 60}), "key.rotated"),
    "createWebhook": (lambda told: ("/webhooks", WEBHOOK), "webhook.created"),
    "updateWebhook": (lambda told: (f"/webhooks/{told.webhook()}", {"description": "other"}), "webhook.updated"),
    "rotateWebhookSecret": (lambda told: (f"/webhooks/{told.webhook()}/rotate", {}), "webhook.updated"),
    "deleteWebhook": (lambda told: (f"/webhooks/{told.webhook()}", None), "webhook.deleted"),
    "revokeKey": (lambda told: (f"/keys/{told.key()}", None), "key.revoked"),
}
METHODS = {
    operation["operationId"]: method.upper()
    for method, _, operation in operations(json.loads(COMMITTED.read_text()))
    if method != "get"
}
AGAIN_IS_NEW = {"deleteRecords"}  # whether there were records to delete is private: the act is written down each time


def trail(api: Api, **only: str) -> list[dict[str, Any]]:
    """Every event of the tenant, or those that are asked for, page after page."""
    found: list[dict[str, Any]] = []
    cursor: dict[str, str] = {}
    while True:
        document = api.get("/audit", params={**only, **cursor, "limit": 20}).json()
        found += document["items"]
        if document["next_cursor"] is None:
            return found
        cursor = {"cursor": document["next_cursor"]}


def key_id(api: Api, database: Database) -> str:
    with database.reading() as session:
        caller = tenant.authenticate(session, tenant.hash_secret(api.secret), now=database.clock())
    assert isinstance(caller, Caller)
    return caller.key_id


class TestEveryOperationThatIsNoReading:
    def test_is_either_written_down_or_left_out_for_a_reason(self) -> None:
        assert set(METHODS) == set(ACTS) | set(SILENT)

    @pytest.mark.parametrize("operation", sorted(ACTS))
    def test_leaves_one_event_of_who_did_what(self, api: Api, database: Database, operation: str) -> None:
        ask, act = ACTS[operation]
        path, body = ask(Told(api))
        before = trail(api)
        answer = api.request(METHODS[operation], path, json=body)
        assert answer.status_code < 300, answer.text
        (event,) = trail(api)[len(before) :]
        assert (event["act"], event["actor"]) == (act, key_id(api, database))
        if operation == "uploadRecords":
            assert event["request_id"] is None
            assert event["at"].endswith("T00:00:00.000000Z")
        else:
            assert event["request_id"] == answer.headers["x-request-id"]
        made = answer.json() if answer.content else {}
        named = {made.get("id"), made.get("replaces"), path.split("/")[2] if path.count("/") > 1 else None}
        assert event["subject_id"] in named

    @pytest.mark.parametrize("operation", sorted(ACTS))
    def test_leaves_no_second_one_when_it_is_repeated(self, api: Api, operation: str) -> None:
        ask, _ = ACTS[operation]
        path, body = ask(Told(api))
        headers = {"Idempotency-Key": secrets.token_hex(8)} if METHODS[operation] == "POST" else {}
        api.request(METHODS[operation], path, json=body, headers=headers)
        before = trail(api)
        api.request(METHODS[operation], path, json=body, headers=headers)
        assert len(trail(api)) - len(before) == (operation in AGAIN_IS_NEW)

    @pytest.mark.parametrize("operation", sorted(ACTS))
    def test_leaves_none_when_it_is_refused(self, api: Api, other: Api, operation: str) -> None:
        ask, _ = ACTS[operation]
        path, body = ask(Told(api))
        before, others = trail(api), trail(other)
        powerless = api.key("ledger")
        before = trail(api)
        assert powerless.request(METHODS[operation], path, json=body).status_code == 403
        named = path.count("/") > 1
        stolen = other.request(METHODS[operation], path, json=body)
        assert (stolen.status_code == 404) == (named or operation == "createJob")
        if METHODS[operation] in ("POST", "PATCH") and body is not None:
            assert api.request(METHODS[operation], path, json={"no": "such"}).status_code == 422
        assert trail(api) == before
        assert len(trail(other)) - len(others) == (stolen.status_code < 300)

    def test_that_is_silent_leaves_none(self, api: Api) -> None:
        told = Told(api)
        opened = told.round()
        before = trail(api)
        assert api.post(f"/rounds/{opened}/reports", single()).status_code == 202
        api.made("/forecasts", {"algorithm": UNIFORM, "n_features": 2, "expected_reports": 10})
        api.get(f"/datasets/{told.dataset_id}")
        assert trail(api) == before


class TestWhatChangesNothing:
    def test_leaves_no_event(self, api: Api) -> None:
        told = Told(api)
        opened, job, key = told.round(), told.job(), told.key()
        for path in (f"/rounds/{opened}/close", f"/jobs/{job}/cancel"):
            api.made(path, None)
        api.request("DELETE", f"/keys/{key}")
        before = trail(api)
        for path in (f"/rounds/{opened}/close", f"/jobs/{job}/cancel"):
            api.made(path, None)
        assert api.request("DELETE", f"/keys/{key}").status_code == 204
        for body in ({}, {"name": "d"}, {"min_reports": 1, "keep_reports": False}):
            assert api.request("PATCH", f"/datasets/{told.dataset_id}", json=body).status_code == 200
        assert trail(api) == before


class TestAnEvent:
    def test_names_what_was_changed_and_no_value(self, api: Api) -> None:
        made = api.dataset()
        body = {"name": "the private clinic", "min_reports": 1, "keep_reports": True}
        api.request("PATCH", f"/datasets/{made['id']}", json=body)
        event = trail(api)[-1]
        assert event["details"] == {"changed": ["keep_reports", "name"]}
        assert "clinic" not in json.dumps(trail(api))

    def test_of_a_new_key_tells_its_scopes_and_nothing_of_its_secret(self, api: Api, database: Database) -> None:
        within = api.dataset()["id"]
        made = api.made("/keys", {"name": "app", "scopes": ["jobs", "device"], "dataset_id": within})
        event = trail(api)[-1]
        assert (event["subject_id"], event["dataset_id"]) == (made["id"], within)
        assert event["details"] == {"scopes": ["device", "jobs"]}
        assert made["secret"] not in json.dumps(trail(api))
        assert tenant.hash_secret(made["secret"]).hex() not in json.dumps(trail(api))

    def test_of_uploads_tells_neither_how_many_there_were_nor_how_large(self, api: Api) -> None:
        few, many = api.dataset(trust="central")["id"], api.dataset(trust="central")["id"]
        before = len(trail(api))
        api.made(f"/datasets/{few}/records", RECORDS)
        for _ in range(3):
            api.made(f"/datasets/{many}/records", RECORDS | {"rows": [[0.1, 0.1]] * 40})
        one, other = trail(api)[before:]
        own = {"id", "seq", "subject_id", "dataset_id", "hash", "prev_hash"}
        assert {key: one[key] for key in one.keys() - own} == {key: other[key] for key in other.keys() - own}

    def test_of_uploads_by_another_key_is_another(self, api: Api) -> None:
        within = api.dataset(trust="central")["id"]
        curator = api.key("records")
        before = len(trail(api))
        for each in (api, curator, api, curator):
            each.made(f"/datasets/{within}/records", RECORDS)
        assert len({event["actor"] for event in trail(api)[before:]}) == len(trail(api)[before:]) == 2


class TestTheTrail:
    def test_is_read_in_pages_and_by_dataset_act_and_actor(self, api: Api, database: Database) -> None:
        mine, others = api.dataset()["id"], api.dataset()["id"]
        officer = api.key("datasets")
        for _ in range(23):
            officer.made(f"/datasets/{mine}/grants", {"epsilon": 0.1})
        officer.made(f"/datasets/{others}/grants", {"epsilon": 0.1})
        found = trail(api)
        assert [event["seq"] for event in found] == list(range(1, len(found) + 1))
        assert len(trail(api, dataset_id=mine)) == 24
        assert len(trail(api, act="grant.created")) == 24
        assert len(trail(api, act="grant.created", dataset_id=mine, actor=key_id(officer, database))) == 23
        assert [event["act"] for event in trail(api, actor="operator")] == ["key.created"] * 2
        assert trail(api, act="no.such_act") == []
        refused(api.get("/audit", params={"dataset_id": unknown("ds")}), 404, "not_found")

    @pytest.mark.parametrize(
        "wrong",
        [{"act": "x"}, {"act": "a.\x00"}, {"actor": "sfk_1"}, {"actor": "key_1"}, {"cursor": "?"}, {"limit": "0"}],
        ids=lambda wrong: next(iter(wrong)) + str(len(next(iter(wrong.values())))),
    )
    def test_is_not_asked_for_with_what_cannot_be(self, api: Api, wrong: dict[str, str]) -> None:
        refused(api.get("/audit", params=wrong), 422, "validation_failed")

    def test_is_for_admins_of_the_whole_tenant(self, api: Api, other: Api) -> None:
        bound = api.key("admin", dataset_id=api.dataset()["id"])
        refused(bound.get("/audit"), 403, "forbidden")
        for scope in ("datasets", "records", "jobs", "device", "ledger"):
            refused(api.key(scope).get("/audit"), 403, "forbidden")
        ids = {event["id"] for event in trail(api)}
        assert ids.isdisjoint(event["id"] for event in trail(other))

    def test_holds_as_it_is_read(self, api: Api, database: Database) -> None:
        api.dataset()
        with database.reading() as session:
            (first, *_) = trail(api)
            stored = session.get_one(AuditEvent, first["id"])
            assert (stored.hash, stored.tenant_id) == (first["hash"], first["tenant_id"])
            assert audit.verify(session, first["tenant_id"]).ok

    def test_outlives_the_dataset(self, api: Api) -> None:
        gone = api.dataset()["id"]
        api.request("DELETE", f"/datasets/{gone}")
        assert [event["act"] for event in trail(api, dataset_id=gone)] == ["dataset.created", "dataset.deleted"]
