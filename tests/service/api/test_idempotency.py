"""A POST with an idempotency key takes effect once."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.contract.generated import Objects, Operation, operations, request
from tests.contract.test_openapi import COMMITTED
from tests.service.api import FEATURES, SQLITE_ONLY, UNIFORM, Api, refused

DATASET = {"name": "d", "trust": "local", "features": FEATURES, "epsilon": 8, "min_reports": 1}
DOCUMENT = json.loads(COMMITTED.read_text())
CREATING = [each for each in operations(DOCUMENT) if "Idempotency-Key" in [one["name"] for one in each.parameters]]


class TestRepeatedKey:
    @SQLITE_ONLY
    @pytest.mark.parametrize("operation", CREATING, ids=lambda operation: operation.name)
    def test_gets_the_first_response_again(self, api: Api, operation: Operation) -> None:
        method, path, options = request(operation, Objects(DOCUMENT, api))
        if operation.name == "closeRound":  # the round of `Objects` is empty
            path += "?allow_empty=true"
        first, second = (api.request(method, path, headers={"Idempotency-Key": "1"}, **options) for _ in range(2))
        assert first.status_code == second.status_code < 300, first.text
        for name in ("location", "retry-after"):
            assert first.headers.get(name) == second.headers.get(name)
        assert "idempotent-replayed" not in first.headers
        assert second.headers["idempotent-replayed"] == "true"
        if "secret" not in first.json():  # a secret is shown once
            assert first.content == second.content

    def test_has_no_second_effect_and_needs_the_same_request(self, api: Api, other: Api) -> None:
        dataset_id, second = api.dataset()["id"], api.dataset()["id"]
        grant, key = {"Idempotency-Key": "g"}, {"Idempotency-Key": "d"}
        for _ in range(3):
            api.made(f"/datasets/{dataset_id}/grants", {"epsilon": 1}, headers=grant)
            created = api.made("/datasets", DATASET, headers=key)
        refused(api.post("/datasets", DATASET | {"name": "e"}, headers=key), 422, "idempotency_key_reused")
        response = api.post(f"/datasets/{second}/grants", {"epsilon": 1}, headers=grant)
        refused(response, 422, "idempotency_key_reused")
        assert [api.budget(each)["granted"] for each in (dataset_id, second)] == [9, 8]
        assert len(api.get("/datasets").json()["items"]) == 3
        assert other.made("/datasets", DATASET, headers=key)["id"] != created["id"]  # independent of other tenants

    @SQLITE_ONLY
    def test_needs_the_same_query_in_any_spelling(self, api: Api) -> None:
        round_id, headers = api.round(api.dataset()["id"])["id"], {"Idempotency-Key": "c"}
        path = f"/rounds/{round_id}/close"
        first = api.made(f"{path}?allow_empty=true", None, headers=headers)
        refused(api.post(path, headers=headers), 422, "idempotency_key_reused")
        assert api.made(f"{path}?allow%5Fempty=tru%65", None, headers=headers) == first

    @SQLITE_ONLY
    def test_can_be_used_again_after_a_refusal(self, api: Api) -> None:
        dataset_id, headers = api.dataset(epsilon=1)["id"], {"Idempotency-Key": "j"}
        body = {"dataset_id": dataset_id, "algorithm": UNIFORM | {"epsilon": 2}, "target_reports": 10}
        refused(api.post("/jobs", body, headers=headers), 409, "budget_exhausted")
        api.made(f"/datasets/{dataset_id}/grants", {"epsilon": 1})
        assert api.made("/jobs", body, headers=headers)["state"] == "queued"

    def test_in_concurrent_requests_takes_effect_once(self, api: Api) -> None:
        dataset_id = api.dataset(epsilon=32)["id"]
        body = {"dataset_id": dataset_id, "algorithm": UNIFORM, "target_reports": 10}
        with ThreadPoolExecutor(8) as pool:
            responses = list(pool.map(lambda _: api.post("/jobs", body, headers={"Idempotency-Key": "j"}), range(8)))
        assert {(each.status_code, each.json()["id"]) for each in responses} == {(202, responses[0].json()["id"])}
        assert len(api.get("/jobs").json()["items"]) == 1
        assert api.budget(dataset_id)["reserved"] == 1
