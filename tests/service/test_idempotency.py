"""A POST with an idempotency key happens once."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.service.api import FEATURES, GRID, UNIFORM, Api, refused

DATASET = {"name": "d", "trust": "local", "features": FEATURES, "epsilon": 8, "min_reports": 1}


def paths(api: Api) -> dict[str, tuple[str, Any]]:
    made = api.dataset()
    opened, job = api.round(made["id"]), api.job(made["id"])
    webhook = {"url": "https://hooks.example.invalid/", "event_types": ["job.failed"]}
    at = f"/webhooks/{api.made('/webhooks', webhook)['id']}"
    ping = api.made(f"{at}/test", None)["id"]
    return {
        "webhook": ("/webhooks", webhook),
        "rotation": (f"{at}/rotate", {"overlap_seconds": 60}),
        "ping": (f"{at}/test", None),
        "redelivery": (f"{at}/deliveries/{ping}/redeliver", None),
        "dataset": ("/datasets", DATASET),
        "grant": (f"/datasets/{made['id']}/grants", {"epsilon": 1}),
        "round": (f"/datasets/{made['id']}/rounds", {"encoding": GRID, "epsilon": 1, "target_reports": 10}),
        "close": (f"/rounds/{opened['id']}/close", None),
        "job": ("/jobs", {"dataset_id": made["id"], "algorithm": UNIFORM, "target_reports": 10}),
        "cancel": (f"/jobs/{job['id']}/cancel", None),
        "key": ("/keys", {"name": "k", "scopes": ["device"]}),
    }


class TestARepeatedKey:
    @pytest.mark.parametrize(
        "what",
        ["dataset", "grant", "round", "close", "job", "cancel", "key", "webhook", "rotation", "ping", "redelivery"],
    )
    def test_is_answered_what_it_was_the_first_time(self, api: Api, what: str) -> None:
        path, body = paths(api)[what]
        headers = {"Idempotency-Key": f"{what}-1"}
        first, second = (api.post(path, body, headers=headers) for _ in range(2))
        assert first.status_code == second.status_code < 300
        assert first.headers.get("location") == second.headers.get("location")
        assert first.headers.get("retry-after") == second.headers.get("retry-after")
        assert "idempotent-replayed" not in first.headers
        assert second.headers["idempotent-replayed"] == "true"
        if what not in ("key", "webhook", "rotation"):  # whose secrets are shown once
            assert first.content == second.content

    def test_does_nothing_a_second_time(self, api: Api) -> None:
        made = api.dataset()
        for _ in range(3):
            api.made(f"/datasets/{made['id']}/grants", {"epsilon": 1}, headers={"Idempotency-Key": "g"})
            api.made("/datasets", DATASET, headers={"Idempotency-Key": "d"})
        assert api.get(f"/datasets/{made['id']}/budget").json()["granted"] == 9
        assert len(api.get("/datasets").json()["items"]) == 2

    def test_with_another_body_is_refused(self, api: Api) -> None:
        headers = {"Idempotency-Key": "d"}
        api.made("/datasets", DATASET, headers=headers)
        refused(api.post("/datasets", DATASET | {"name": "e"}, headers=headers), 422, "idempotency_key_reused")
        assert len(api.get("/datasets").json()["items"]) == 1

    def test_on_another_path_is_refused(self, api: Api) -> None:
        first, second = api.dataset(), api.dataset()
        headers = {"Idempotency-Key": "g"}
        api.made(f"/datasets/{first['id']}/grants", {"epsilon": 1}, headers=headers)
        answer = api.post(f"/datasets/{second['id']}/grants", {"epsilon": 1}, headers=headers)
        refused(answer, 422, "idempotency_key_reused")

    def test_of_another_tenant_is_another_key(self, api: Api, other: Api) -> None:
        headers = {"Idempotency-Key": "d"}
        mine, theirs = (each.made("/datasets", DATASET, headers=headers) for each in (api, other))
        assert mine["id"] != theirs["id"]

    def test_is_free_again_after_a_refusal(self, api: Api) -> None:
        made = api.dataset(epsilon=1)
        headers = {"Idempotency-Key": "j"}
        body = {"dataset_id": made["id"], "algorithm": UNIFORM | {"epsilon": 2}, "target_reports": 10}
        refused(api.post("/jobs", body, headers=headers), 409, "budget_exhausted")
        api.made(f"/datasets/{made['id']}/grants", {"epsilon": 1})
        assert api.made("/jobs", body, headers=headers)["state"] == "queued"

    def test_sent_by_many_at_once_happens_once(self, api: Api) -> None:
        made = api.dataset(epsilon=32)
        body = {"dataset_id": made["id"], "algorithm": UNIFORM, "target_reports": 10}
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda _: api.post("/jobs", body, headers={"Idempotency-Key": "j"}), range(8)))
        assert {answer.status_code for answer in answers} == {202}
        assert len({answer.json()["id"] for answer in answers}) == 1
        assert len(api.get("/jobs").json()["items"]) == 1
        assert api.get(f"/datasets/{made['id']}/budget").json()["reserved"] == 1
