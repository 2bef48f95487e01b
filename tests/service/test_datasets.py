"""Datasets, budgets and ledgers over HTTP."""

import hashlib
import json
from datetime import datetime

import pytest
from sqlalchemy import func, select

from models.db import Database
from models.report import ReportBatch
from models.round import Round
from tests.service.api import FEATURES, GRID, UNIFORM, Api, refused


class TestADataset:
    def test_is_made_and_found(self, api: Api) -> None:
        answer = api.post("/datasets", {"name": "d", "trust": "local", "features": FEATURES, "epsilon": 4})
        made = answer.json()
        assert answer.status_code == 201
        assert answer.headers["location"] == f"/v1/datasets/{made['id']}"
        assert api.get(f"/datasets/{made['id']}").json() == made
        assert made["features"] == FEATURES
        assert (made["min_reports"], made["keep_reports"], made["trust"]) == (100, False, "local")
        assert datetime.fromisoformat(made["created_at"]).tzinfo is not None
        assert len(made["created_at"]) == len("2026-01-01T00:00:00.000000Z")

    def test_comes_with_its_first_grant(self, api: Api) -> None:
        made = api.dataset(epsilon=0.123456789)
        budget = api.get(f"/datasets/{made['id']}/budget").json()
        assert budget["granted_nano"] == 123_456_789
        assert budget["granted"] == budget["remaining"] == 0.123456789

    def test_changes_what_may_change(self, api: Api) -> None:
        made = api.dataset()
        changed = api.request("PATCH", f"/datasets/{made['id']}", json={"name": "new", "keep_reports": True})
        assert changed.json() == made | {"name": "new", "keep_reports": True}
        refused(api.request("PATCH", f"/datasets/{made['id']}", json={"trust": "central"}), 422, "validation_failed")
        assert api.get(f"/datasets/{made['id']}").json() == changed.json()

    def test_changes_only_what_the_caller_has_seen(self, api: Api) -> None:
        made = api.dataset()
        path = f"/datasets/{made['id']}"
        seen = api.get(path).headers["etag"]
        changed = api.request("PATCH", path, json={"name": "a"}, headers={"If-Match": seen})
        assert changed.status_code == 200
        assert changed.headers["etag"] == api.get(path).headers["etag"] != seen
        answer = api.request("PATCH", path, json={"name": "b"}, headers={"If-Match": seen})
        refused(answer, 412, "precondition_failed")
        assert api.get(path).json()["name"] == "a"
        assert api.request("PATCH", path, json={"name": "c"}, headers={"If-Match": "*"}).status_code == 200

    def test_a_central_one_has_no_rounds_and_no_local_jobs(self, api: Api) -> None:
        made = api.dataset(trust="central")
        body = {"encoding": GRID, "epsilon": 1, "target_reports": 10}
        refused(api.post(f"/datasets/{made['id']}/rounds", body), 409, "conflict")
        job = {"dataset_id": made["id"], "algorithm": UNIFORM, "target_reports": 10}
        refused(api.post("/jobs", job), 409, "conflict")
        assert api.get(f"/datasets/{made['id']}/budget").json()["posted_nano"] == 0

    def test_more_than_allowed_are_refused(self, started) -> None:  # type: ignore[no-untyped-def]
        api: Api = started(max_datasets=2)
        api.dataset()
        api.dataset()
        answer = api.post("/datasets", {"name": "d", "trust": "local", "features": FEATURES, "epsilon": 4})
        assert "2 datasets" in refused(answer, 422, "validation_failed")["detail"]


class TestADeletedDataset:
    def test_is_gone_with_its_rounds_and_reports_and_keeps_its_ledger(self, api: Api, database: Database) -> None:
        made = api.dataset()
        opened, job = api.round(made["id"]), api.job(made["id"])
        assert api.report(opened["id"]).status_code == 202
        assert api.request("DELETE", f"/datasets/{made['id']}").status_code == 204
        refused(api.get(f"/datasets/{made['id']}"), 404, "not_found")
        refused(api.request("DELETE", f"/datasets/{made['id']}"), 404, "not_found")
        refused(api.get(f"/rounds/{opened['id']}"), 404, "not_found")
        refused(api.report(opened["id"]), 404, "not_found")
        refused(api.get(f"/datasets/{made['id']}/round"), 404, "not_found")
        assert made["id"] not in [item["id"] for item in api.get("/datasets").json()["items"]]
        assert api.get(f"/jobs/{job['id']}").json()["state"] == "canceled"
        with database.reading() as session:
            assert session.get_one(Round, opened["id"]).state == "closed"
            held = select(func.count()).select_from(ReportBatch).where(ReportBatch.round_id == opened["id"])
            assert session.scalar(held) == 0
        kinds = [entry["kind"] for entry in api.get(f"/datasets/{made['id']}/ledger").json()["items"]]
        assert kinds == ["grant", "post", "reserve", "release"]
        assert api.get(f"/datasets/{made['id']}/budget").json()["reserved_nano"] == 0


class TestTheLedger:
    def test_tells_every_charge_and_chains_them(self, api: Api) -> None:
        made = api.dataset(epsilon=4)
        api.made(f"/datasets/{made['id']}/grants", {"epsilon": 1.5})
        opened = api.round(made["id"], epsilon=1)
        job = api.job(made["id"], algorithm=UNIFORM | {"epsilon": 2})
        entries = api.get(f"/datasets/{made['id']}/ledger").json()["items"]
        told = [(entry["kind"], entry["epsilon_nano"], entry["reference"]) for entry in entries]
        assert told[0] == ("grant", 4_000_000_000, made["id"])
        assert told[1][:2] == ("grant", 1_500_000_000)
        assert told[2] == ("post", round(opened["epsilon"] * 1e9), opened["id"])
        assert told[3] == ("reserve", 2_000_000_000, job["id"])
        assert 0.99 < opened["epsilon"] <= 1
        prev_hash = "0" * 64
        for seq, entry in enumerate(entries, start=1):
            assert (entry["seq"], entry["prev_hash"]) == (seq, prev_hash)
            assert entry["epsilon"] == entry["epsilon_nano"] / 1e9
            prev_hash = entry["hash"]
            assert hash_of(entry) == prev_hash
        budget = api.get(f"/datasets/{made['id']}/budget").json()
        assert (budget["ledger_seq"], budget["ledger_hash"]) == (4, prev_hash)
        assert budget["remaining_nano"] == 5_500_000_000 - 2_000_000_000 - budget["posted_nano"]
        assert budget["remaining"] == budget["remaining_nano"] / 1e9

    def test_a_grant_has_a_ceiling(self, api: Api) -> None:
        made = api.dataset()
        for epsilon in (0, -1, 1e-7, 33, 0.0000000001):
            refused(api.post(f"/datasets/{made['id']}/grants", {"epsilon": epsilon}), 422, "validation_failed")
        assert api.get(f"/datasets/{made['id']}/budget").json()["ledger_seq"] == 1

    def test_comes_in_pages(self, api: Api) -> None:
        made = api.dataset()
        for _ in range(6):
            api.made(f"/datasets/{made['id']}/grants", {"epsilon": 1})
        path = f"/datasets/{made['id']}/ledger"
        seen, cursor = [], None
        while True:
            page = api.get(path, params={"limit": 3} | ({"cursor": cursor} if cursor else {})).json()
            seen += [entry["seq"] for entry in page["items"]]
            cursor = page["next_cursor"]
            if cursor is None:
                break
            assert len(page["items"]) == 3
        assert seen == list(range(1, 8))

    def test_says_what_exhausted_the_budget(self, api: Api) -> None:
        made = api.dataset(epsilon=2)
        api.round(made["id"], epsilon=1.5)
        api.job(made["id"], algorithm=UNIFORM | {"epsilon": 0.25})
        before = api.get(f"/datasets/{made['id']}/ledger").json()["items"]
        body = {"encoding": GRID, "mechanism": "grr", "epsilon": 1, "target_reports": 10}
        problem = refused(api.post(f"/datasets/{made['id']}/rounds", body), 409, "budget_exhausted")
        assert (problem["granted"], problem["reserved"]) == (2, 0.25)
        assert 1.49 < problem["posted"] <= 1.5
        assert 0.99 < problem["requested"] <= 1
        assert problem["entries"] == [before[2]["id"], before[1]["id"]]
        job = {"dataset_id": made["id"], "algorithm": UNIFORM, "target_reports": 10}
        refused(api.post("/jobs", job), 409, "budget_exhausted")
        assert api.get(f"/datasets/{made['id']}/ledger").json()["items"] == before
        assert len(api.get(f"/datasets/{made['id']}/rounds").json()["items"]) == 1
        assert len(api.get("/jobs").json()["items"]) == 1


def hash_of(entry: dict[str, object]) -> str:
    """As the schema's description says."""
    columns = {name: value for name, value in entry.items() if name not in ("hash", "epsilon", "delta")}
    deltas = {name: value for name, value in columns.items() if name.endswith("delta_atto")}
    assert len(deltas) == 4
    if not any(deltas.values()):
        columns = {name: value for name, value in columns.items() if name not in deltas}
    at = datetime.fromisoformat(str(columns["at"]))
    columns["at"] = int(at.timestamp()) * 1_000_000 + at.microsecond
    return hashlib.sha256(json.dumps(columns, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


class TestPages:
    def test_show_everything_once_in_order(self, api: Api) -> None:
        made = [api.dataset(name=str(n))["id"] for n in range(7)]
        seen: list[str] = []
        cursor = None
        while True:
            page = api.get("/datasets", params={"limit": 2} | ({"cursor": cursor} if cursor else {})).json()
            seen += [item["id"] for item in page["items"]]
            cursor = page["next_cursor"]
            if cursor is None:
                break
        assert seen == made

    def test_are_no_longer_than_the_operator_allows(self, api: Api) -> None:
        for _ in range(21):
            api.made("/keys", {"name": "k", "scopes": ["device"]})
        page = api.get("/keys", params={"limit": 1000}).json()
        assert len(page["items"]) == 20
        assert page["next_cursor"] is not None

    @pytest.mark.parametrize("path", ["/jobs", "/datasets"])
    def test_without_anything_are_empty(self, api: Api, path: str) -> None:
        assert api.get(path).json() == {"items": [], "next_cursor": None}
