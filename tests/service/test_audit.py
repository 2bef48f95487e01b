"""The audit trail: one event for each change by an administrator, none for refused or ineffective requests."""

import json
import re
import secrets
from typing import Any

import pytest

from models.database.engine import Database
from models.identity import audit_trail, keys
from models.tables.identity import AuditEvent
from tests.contract.generated import Objects, operations, request
from tests.contract.test_openapi import COMMITTED
from tests.service.api import SQLITE_ONLY, UNIFORM, Api, refused, unknown

RECORDS = {"columns": ["x", "y"], "rows": [[0.5, 0.5]]}

# Operations without an event, with the reason.
SILENT = {
    "sendReports": "sent by devices; the report log stores no times",
    "releaseRound": "sent by the shuffler; a release that leaves too few reports writes `tally.withheld`",
    "createForecast": "spends nothing, keeps nothing",
    "createProfileForecast": "the same",
    "createSeriesForecast": "the same",
    "testWebhook": "changes nothing; its delivery is listed with the webhook's others",
    "redeliverWebhook": "the same",
    "assignPoints": "labels points the caller holds, keeps nothing",
}


ACTS = {
    "createDataset": "dataset.created",
    "updateDataset": "dataset.updated",
    "deleteDataset": "dataset.deleted",
    "createGrant": "grant.created",
    "uploadRecords": "records.uploaded",
    "deleteRecords": "records.deleted",
    "createRound": "round.created",
    "closeRound": "round.closed",
    "createJob": "job.submitted",
    "cancelJob": "job.canceled",
    "updateResult": "clusters.named",
    "createSeries": "series.created",
    "updateSeries": "series.updated",
    "createRevision": "series.revised",
    "updateSeriesCluster": "clusters.named",
    "createKey": "key.created",
    "rotateKey": "key.rotated",
    "revokeKey": "key.revoked",
    "createWebhook": "webhook.created",
    "updateWebhook": "webhook.updated",
    "rotateWebhookSecret": "webhook.updated",
    "deleteWebhook": "webhook.deleted",
}
DOCUMENT = json.loads(COMMITTED.read_text())
WRITING = {operation.name: operation for operation in operations(DOCUMENT) if operation.method != "get"}
AGAIN_IS_NEW = {"deleteRecords"}  # writes an event each time, because the existence of records is private


def list_events(api: Api, **filters: str) -> list[dict[str, Any]]:
    """Return every event of the tenant, or those that match the filters."""
    return api.list_all("/audit", limit=20, **filters)


class TestWritingOperations:
    def test_are_all_audited_or_excluded_for_a_reason(self) -> None:
        assert set(WRITING) == set(ACTS) | set(SILENT)

    @SQLITE_ONLY
    @pytest.mark.parametrize("name", sorted(ACTS))
    def test_write_one_event_and_none_when_refused_or_repeated(self, api: Api, other: Api, name: str) -> None:
        method, path, options = request(WRITING[name], Objects(DOCUMENT, api))
        if name == "cancelJob":  # the job of `Objects` has ended
            path = f"/jobs/{api.job(api.dataset()['id'])['id']}/cancel"
        if name == "closeRound":  # the round of `Objects` is empty
            path += "?allow_empty=true"
        if name == "deleteRecords":
            path += "?all=true"
        if name == "updateWebhook":  # the example changes nothing
            options["json"] = {"description": "other"}
        powerless = api.key("ledger")
        before, others = list_events(api), list_events(other)

        refused(powerless.request(method, path, **options), 403, "forbidden")
        has_id = re.search("[a-z]+_[0-9a-z]{26}", path + json.dumps(options)) is not None
        foreign = other.request(method, path, **options)
        assert (foreign.status_code == 404) == has_id
        if method in ("POST", "PATCH") and "json" in options:
            refused(api.request(method, path, json={"no": "such"}), 422, "validation_failed")
        assert list_events(api) == before
        assert len(list_events(other)) - len(others) == (foreign.status_code < 300)

        headers = {"Idempotency-Key": secrets.token_hex(8)} if method == "POST" else {}
        response = api.request(method, path, headers=headers, **options)
        assert response.status_code < 300, response.text
        (event,) = list_events(api)[len(before) :]
        assert (event["act"], event["actor"]) == (ACTS[name], api.caller().key_id)
        if name == "uploadRecords":
            assert event["request_id"] is None
            assert event["at"].endswith("T00:00:00.000000Z")
        else:
            assert event["request_id"] == response.headers["x-request-id"]
        created = response.json() if response.content else {}
        assert event["subject_id"] in {created.get("id"), created.get("replaces"), *path.split("/")[2:3]}

        api.request(method, path, headers=headers, **options)
        assert len(list_events(api)) - len(before) == 1 + (name in AGAIN_IS_NEW)

    @SQLITE_ONLY
    def test_that_are_excluded_or_change_nothing_write_no_event(self, api: Api) -> None:
        dataset_id = api.dataset()["id"]
        reported, closed, job = api.round(dataset_id), api.round(dataset_id), api.job(dataset_id)
        key = f"/keys/{api.made('/keys', {'name': 'k', 'scopes': ['device']})['id']}"
        ends = (f"/rounds/{closed['id']}/close?allow_empty=true", f"/jobs/{job['id']}/cancel")
        for path in ends:
            api.made(path, None)
        api.delete(key)
        before = list_events(api)
        assert api.report(reported["id"]).status_code == 202
        api.made("/forecasts", {"algorithm": UNIFORM, "n_features": 2, "expected_reports": 10})
        api.get(f"/datasets/{dataset_id}")
        for path in ends:
            api.made(path, None)
        assert api.delete(key).status_code == 204
        for body in ({}, {"name": "d"}, {"min_reports": 1, "keep_reports": False}):
            assert api.patch(f"/datasets/{dataset_id}", body).status_code == 200
        assert list_events(api) == before


@SQLITE_ONLY
class TestEvent:
    def test_names_the_changed_members_without_values(self, api: Api) -> None:
        body = {"name": "the private clinic", "min_reports": 1, "keep_reports": True}
        api.patch(f"/datasets/{api.dataset()['id']}", body)
        events = list_events(api)
        assert events[-1]["details"] == {"changed": ["keep_reports", "name"]}
        assert "clinic" not in json.dumps(events)

    def test_of_a_new_key_has_its_scopes_but_not_its_secret(self, api: Api) -> None:
        dataset_id = api.dataset()["id"]
        key = api.made("/keys", {"name": "app", "scopes": ["jobs", "device"], "dataset_id": dataset_id})
        events = list_events(api)
        assert (events[-1]["subject_id"], events[-1]["dataset_id"]) == (key["id"], dataset_id)
        assert events[-1]["details"] == {"scopes": ["device", "jobs"]}
        for secret in (key["secret"], keys.hash_secret(key["secret"]).hex()):
            assert secret not in json.dumps(events)

    def test_of_uploads_reveals_neither_their_number_nor_their_size(self, api: Api) -> None:
        few, many = (api.dataset(trust="central")["id"] for _ in range(2))
        before = len(list_events(api))
        api.made(f"/datasets/{few}/records", RECORDS)
        for _ in range(3):
            api.made(f"/datasets/{many}/records?allow_duplicates=true", RECORDS | {"rows": [[0.1, 0.1]] * 40})
        one, other = list_events(api)[before:]
        own = {"id", "seq", "subject_id", "dataset_id", "hash", "prev_hash"}
        assert {key: one[key] for key in one.keys() - own} == {key: other[key] for key in other.keys() - own}

    def test_of_uploads_is_separate_for_each_key(self, api: Api) -> None:
        dataset_id = api.dataset(trust="central")["id"]
        curator = api.key("records")
        before = len(list_events(api))
        for each in (api, curator, api, curator):
            each.made(f"/datasets/{dataset_id}/records?allow_duplicates=true", RECORDS)
        events = list_events(api)[before:]
        assert len({event["actor"] for event in events}) == len(events) == 2


class TestTrail:
    def test_is_listed_in_pages_and_filtered_by_dataset_act_and_actor(self, api: Api) -> None:
        mine, others = api.dataset()["id"], api.dataset()["id"]
        officer = api.key("grants")
        for dataset_id in (*[mine] * 23, others):
            officer.made(f"/datasets/{dataset_id}/grants", {"epsilon": 0.1})
        events = list_events(api)
        assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
        assert len(list_events(api, dataset_id=mine)) == 24
        assert len(list_events(api, action="grant.created")) == 24
        actor = officer.caller().key_id
        assert len(list_events(api, action="grant.created", dataset_id=mine, actor=actor)) == 23
        assert [event["act"] for event in list_events(api, actor="operator")] == ["key.created"] * 2
        refused(api.get("/audit", params={"dataset_id": unknown("ds")}), 404, "not_found")
        for wrong in ("action=x", "action=a.%00", "object=x", "actor=sfk_1", "actor=key_1", "cursor=?", "limit=0"):
            refused(api.get(f"/audit?{wrong}"), 422, "validation_failed")

    @SQLITE_ONLY
    def test_is_visible_to_unbound_admin_keys_only(self, api: Api, other: Api) -> None:
        bound = api.key("admin", dataset_id=api.dataset()["id"])
        for each in (bound, *map(api.key, ("datasets", "grants", "records", "jobs", "device", "ledger"))):
            refused(each.get("/audit"), 403, "forbidden")
        ids = {event["id"] for event in list_events(api)}
        assert ids.isdisjoint(event["id"] for event in list_events(other))

    def test_verifies_against_the_published_hash_rule(self, api: Api, database: Database) -> None:
        api.dataset()
        (first, *_) = list_events(api)
        with database.reading() as session:
            stored = session.get_one(AuditEvent, first["id"])
            assert (stored.hash, stored.tenant_id) == (first["hash"], first["tenant_id"])
            assert audit_trail.verify(session, first["tenant_id"]).ok

    @SQLITE_ONLY
    def test_outlives_the_dataset(self, api: Api) -> None:
        dataset_id = api.dataset()["id"]
        api.delete(f"/datasets/{dataset_id}")
        acts = [event["act"] for event in list_events(api, dataset_id=dataset_id)]
        assert acts == ["dataset.created", "dataset.deleted"]
