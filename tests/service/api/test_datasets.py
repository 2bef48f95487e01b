"""Datasets, budgets and ledgers over HTTP."""

import hashlib
import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

from sqlalchemy import func, select

from models.database.engine import Database
from models.tables.rounds import ReportBatch, Round
from sfumato.specs import round_spec_from_wire
from tests.service.api import FEATURES, GRID, SQLITE_KIND_ONLY, SQLITE_ONLY, UNIFORM, Api, refused


class TestDataset:
    def test_is_created_with_a_first_grant_and_found(self, api: Api) -> None:
        body = {"name": "d", "trust": "local", "features": FEATURES, "epsilon": 0.123456789}
        response = api.post("/datasets", body)
        dataset = response.json()
        assert response.status_code == 201
        assert response.headers["location"] == f"/v1/datasets/{dataset['id']}"
        assert (dataset.pop("n_same_people"), dataset.pop("warnings")) == (0, [])
        assert api.get(f"/datasets/{dataset['id']}").json() == dataset
        assert dataset["features"] == FEATURES
        assert (dataset["min_reports"], dataset["keep_reports"], dataset["trust"]) == (100, False, "local")
        assert datetime.fromisoformat(dataset["created_at"]).tzinfo is not None
        assert len(dataset["created_at"]) == len("2026-01-01T00:00:00.000000Z")
        budget = api.budget(dataset["id"])
        assert budget["granted_nano"] == 123_456_789
        assert budget["granted"] == budget["remaining"] == 0.123456789

    def test_changes_only_with_the_current_etag(self, api: Api) -> None:
        dataset = api.dataset()
        path = f"/datasets/{dataset['id']}"
        etag = api.get(path).headers["etag"]
        changed = api.patch(path, {"name": "new", "keep_reports": True}, headers={"If-Match": etag})
        assert changed.json() == dataset | {"name": "new", "keep_reports": True}
        assert changed.headers["etag"] == api.get(path).headers["etag"] != etag
        refused(api.patch(path, {"name": "b"}, headers={"If-Match": etag}), 412, "precondition_failed")
        refused(api.patch(path, {"trust": "central"}), 422, "validation_failed")
        assert api.get(path).json() == changed.json()
        assert api.patch(path, {"name": "c"}, headers={"If-Match": "*"}).status_code == 200

    @SQLITE_ONLY
    def test_with_central_trust_has_no_rounds_and_no_local_jobs(self, api: Api) -> None:
        dataset_id = api.dataset(trust="central")["id"]
        body = {"encoding": GRID, "epsilon": 1, "target_reports": 10}
        refused(api.post(f"/datasets/{dataset_id}/rounds", body), 409, "conflict")
        job = {"dataset_id": dataset_id, "algorithm": UNIFORM, "target_reports": 10}
        refused(api.post("/jobs", job), 409, "conflict")
        assert api.budget(dataset_id)["charged_nano"] == 0

    @SQLITE_ONLY
    def test_with_periodic_features_has_rounds_on_circles(self, api: Api) -> None:
        hour = {"name": "hour", "lower": 0.0, "upper": 24.0, "unit": "h", "periodic": True}
        dataset = api.dataset(features=[hour, FEATURES[0]])
        assert dataset["features"] == [hour, FEATURES[0]]
        path = f"/datasets/{dataset['id']}/rounds"
        grid = {"type": "shifted_grid", "n_features": 2, "cells": 4, "shifts": 2}
        body = {"encoding": grid, "epsilon": 1, "target_reports": 10}
        spec = round_spec_from_wire(api.made(path, body)["spec"])
        assert (spec.features[0].periodic, spec.encoding.n_symbols) == (True, 4 * 5)
        for other in (grid | {"circles": [1]}, grid | {"circles": [2]}):
            refused(api.post(path, body | {"encoding": other}), 422, "validation_failed")
        forecast = {"dataset_id": dataset["id"], "expected_reports": 50_000}
        job = {"dataset_id": dataset["id"], "target_reports": 50_000}
        for kind, is_taken in (("shifted_grid", True), ("auto", True), ("grid_kmeans", True), ("uniform_grid", False)):
            algorithm = {"type": kind, "epsilon": 1.0, "clusters": 3}
            for path, request in (("/forecasts", forecast), ("/jobs", job)):
                answer = api.post(path, request | {"algorithm": algorithm})
                if is_taken:
                    assert answer.status_code < 300
                else:
                    assert "hour is periodic" in str(refused(answer, 422, "validation_failed"))

    @SQLITE_ONLY
    def test_with_periodic_features_that_are_no_circle_is_refused(self, api: Api) -> None:
        given = {"name": "d", "trust": "local", "epsilon": 8}
        for bounds in ((0, 23, "h"), (0, 0, "h"), (-180, 170, "degrees"), (24, 0, "h")):
            lower, upper, unit = bounds
            feature = {"name": "a", "lower": lower, "upper": upper, "unit": unit, "periodic": True}
            problem = refused(api.post("/datasets", given | {"features": [feature]}), 422, "validation_failed")
            assert "one period" in problem["errors"][0]["message"]

    @SQLITE_ONLY
    def test_with_periodic_features_over_records(self, api: Api) -> None:
        hour = {"name": "hour", "lower": 0.0, "upper": 24.0, "unit": "h", "periodic": True}
        for treatment, status in (("clip", 201), ("refuse", 422)):
            dataset_id = api.dataset(trust="central", features=[hour, FEATURES[0]], out_of_bounds=treatment)["id"]
            content = f"hour,{FEATURES[0]['name']}\n" + "25,0.5\n3,0.5\n" * 50
            answer = api.post(f"/datasets/{dataset_id}/records", content=content, headers={"Content-Type": "text/csv"})
            assert answer.status_code == status
        dataset_id = api.dataset(trust="central", features=[hour, FEATURES[0]], out_of_bounds="clip")["id"]
        answer = api.post(f"/datasets/{dataset_id}/records", content=content, headers={"Content-Type": "text/csv"})
        assert answer.json()["n_clipped"] == 0
        for kind, columns, is_taken in (
            ("density_map", None, True),
            ("private_kmeans", None, True),
            ("dp_kmeans", None, False),
            ("dp_kmeans", [FEATURES[0]["name"]], True),
        ):
            algorithm = {"type": kind, "epsilon": 1.0, "clusters": 2}
            body = {"dataset_id": dataset_id, "algorithm": algorithm} | ({"features": columns} if columns else {})
            answer = api.post("/jobs", body)
            if is_taken:
                assert answer.status_code == 202
            else:
                assert "hour is periodic" in str(refused(answer, 422, "validation_failed"))

    @SQLITE_ONLY
    def test_with_a_place_over_the_antimeridian(self, api: Api) -> None:
        given = [{"name": "lat", "lower": -21, "upper": -12, "coordinate": "latitude"},
                 {"name": "lon", "lower": 177, "upper": -178, "coordinate": "longitude"}]  # fmt: skip
        dataset = api.dataset(features=given)
        assert [each["coordinate"] for each in dataset["features"]] == ["latitude", "longitude"]
        assert dataset["features"][1]["upper"] == 182
        grid = {"type": "shifted_grid", "n_features": 2, "cells": 4, "shifts": 2}
        body = {"encoding": grid, "epsilon": 1, "target_reports": 10}
        spec = round_spec_from_wire(api.made(f"/datasets/{dataset['id']}/rounds", body)["spec"])
        assert [each.coordinate for each in spec.features] == ["latitude", "longitude"]
        central = api.dataset(trust="central", features=given, out_of_bounds="refuse")["id"]
        for rows, reason in (
            ("-15,-179\n-16,181\n-17,179\n", ""),
            ("-15,-179\n-90.5,179\n", "record 2: lat must be from -90 to 90 degrees"),
            ("-15,-179\n-15,999\n", "record 2: lon must be from -360 to 360 degrees"),
            ("-15,-179\n-15,170\n", "record 2: lon must lie in its bounds [177, 182]"),
        ):
            answer = api.post(
                f"/datasets/{central}/records", content=f"lat,lon\n{rows}", headers={"Content-Type": "text/csv"}
            )
            if reason:
                assert reason in str(refused(answer, 422, "validation_failed"))
            else:
                assert answer.status_code == 201

    @SQLITE_ONLY
    def test_with_no_place_on_earth_is_refused(self, api: Api) -> None:
        given = {"name": "d", "trust": "local", "epsilon": 8}
        latitude = {"name": "lat", "lower": 58, "upper": 71.2, "coordinate": "latitude"}
        longitude = {"name": "lon", "lower": 5, "upper": 31.2, "coordinate": "longitude"}
        for features, message in (
            ([latitude], "one latitude and one longitude"),
            ([latitude, longitude | {"coordinate": "latitude"}], "one latitude and one longitude"),
            ([latitude | {"upper": 91}, longitude], "a region on Earth in degrees"),
            ([latitude, longitude | {"unit": "km"}], "a region on Earth in degrees"),
        ):
            problem = refused(api.post("/datasets", given | {"features": features}), 422, "validation_failed")
            assert message in problem["errors"][0]["message"]

    @SQLITE_KIND_ONLY
    def test_above_the_limit_is_refused(self, started: Callable[..., Api]) -> None:
        api = started(max_datasets=2)
        for _ in range(2):
            api.dataset()
        response = api.post("/datasets", {"name": "d", "trust": "local", "features": FEATURES, "epsilon": 4})
        assert "2 datasets" in refused(response, 422, "validation_failed")["detail"]


class TestDeletedDataset:
    def test_loses_its_rounds_and_reports_but_not_its_ledger(self, api: Api, database: Database) -> None:
        dataset_id = api.dataset()["id"]
        path, opened, job = f"/datasets/{dataset_id}", api.round(dataset_id), api.job(dataset_id)
        assert api.report(opened["id"]).status_code == 202
        assert api.delete(path).status_code == 204
        refused(api.delete(path), 404, "not_found")
        refused(api.report(opened["id"]), 404, "not_found")
        for missing in (path, f"{path}/round", f"/rounds/{opened['id']}"):
            refused(api.get(missing), 404, "not_found")
        assert api.get("/datasets").json()["items"] == []
        assert api.get(f"/jobs/{job['id']}").json()["state"] == "canceled"
        with database.reading() as session:
            assert session.get_one(Round, opened["id"]).state == "closed"
            n_reports = select(func.count()).select_from(ReportBatch).where(ReportBatch.round_id == opened["id"])
            assert session.scalar(n_reports) == 0
        kinds = [entry["kind"] for entry in api.get(f"{path}/ledger?order=oldest").json()["items"]]
        assert kinds == ["grant", "charge", "reserve", "release"]
        assert api.budget(dataset_id)["reserved_nano"] == 0


class TestLedger:
    def test_lists_every_charge_in_a_hash_chain(self, api: Api) -> None:
        dataset_id = api.dataset(epsilon=4)["id"]
        grant = api.made(f"/datasets/{dataset_id}/grants", {"epsilon": 1.5})
        opened = api.round(dataset_id, epsilon=1)
        job = api.job(dataset_id, algorithm=UNIFORM | {"epsilon": 2})
        entries = api.get(f"/datasets/{dataset_id}/ledger?order=oldest").json()["items"]
        assert [(entry["kind"], entry["epsilon_nano"], entry["reference"]) for entry in entries] == [
            ("grant", 4_000_000_000, dataset_id),
            ("grant", 1_500_000_000, grant["reference"]),
            ("charge", round(opened["epsilon"] * 1e9), opened["id"]),
            ("reserve", 2_000_000_000, job["id"]),
        ]
        assert 0.99 < opened["epsilon"] <= 1
        assert [entry["epsilon"] for entry in entries] == [entry["epsilon_nano"] / 1e9 for entry in entries]
        budget = api.budget(dataset_id)
        assert (budget["ledger_seq"], budget["ledger_hash"]) == (4, check_chain(entries))
        assert budget["remaining_nano"] == 5_500_000_000 - 2_000_000_000 - budget["charged_nano"]

    @SQLITE_ONLY
    def test_refuses_an_invalid_grant(self, api: Api) -> None:
        dataset_id = api.dataset()["id"]
        for epsilon in (0, -1, 1e-7, 33, 0.0000000001):
            refused(api.post(f"/datasets/{dataset_id}/grants", {"epsilon": epsilon}), 422, "validation_failed")
        assert api.budget(dataset_id)["ledger_seq"] == 1

    def test_explains_an_exhausted_budget(self, api: Api) -> None:
        dataset_id = api.dataset(epsilon=2)["id"]
        api.round(dataset_id, epsilon=1.5)
        api.job(dataset_id, algorithm=UNIFORM | {"epsilon": 0.25})
        before = api.get(f"/datasets/{dataset_id}/ledger?order=oldest").json()["items"]
        body = {"encoding": GRID, "mechanism": "grr", "epsilon": 1, "target_reports": 10}
        problem = refused(api.post(f"/datasets/{dataset_id}/rounds", body), 409, "budget_exhausted")
        assert (problem["granted"], problem["reserved"]) == (2, 0.25)
        assert 1.49 < problem["charged"] <= 1.5
        assert 0.99 < problem["requested"] <= 1
        assert problem["entries"] == [before[2]["id"], before[1]["id"]]
        job = {"dataset_id": dataset_id, "algorithm": UNIFORM, "target_reports": 10}
        refused(api.post("/jobs", job), 409, "budget_exhausted")
        assert api.get(f"/datasets/{dataset_id}/ledger?order=oldest").json()["items"] == before
        assert len(api.get(f"/datasets/{dataset_id}/rounds").json()["items"]) == 1
        assert len(api.get("/jobs").json()["items"]) == 1


def check_chain(entries: list[dict[str, Any]]) -> str:
    """Check the hash of each entry by the rule in the description of the schema. Return the last one."""
    prev_hash = "0" * 64
    for seq, entry in enumerate(entries, start=1):
        assert (entry["seq"], entry["prev_hash"]) == (seq, prev_hash)
        columns = {name: value for name, value in entry.items() if name not in ("hash", "epsilon", "delta")}
        columns = {name: value for name, value in columns.items() if value is not None or "mu2" not in name}
        assert sum(name.endswith("delta_atto") for name in columns) == 7  # 4 of the curator, 3 of shuffled rounds
        at = datetime.fromisoformat(str(columns["at"]))
        columns["at"] = int(at.timestamp()) * 1_000_000 + at.microsecond
        text = json.dumps(columns, sort_keys=True, separators=(",", ":"))
        prev_hash = hashlib.sha256(text.encode()).hexdigest()
        assert entry["hash"] == prev_hash
    return prev_hash


class TestPages:
    def test_list_every_item_once_in_order(self, api: Api) -> None:
        for path in ("/jobs", "/datasets"):
            assert api.get(path).json() == {"items": [], "next_cursor": None}
        ids = [api.dataset(name=str(n))["id"] for n in range(7)]
        assert [item["id"] for item in api.list_all("/datasets", limit=2)] == ids
        for _ in range(6):
            api.made(f"/datasets/{ids[0]}/grants", {"epsilon": 1})
        assert [entry["seq"] for entry in api.list_all(f"/datasets/{ids[0]}/ledger", limit=3)] == list(range(1, 8))

    @SQLITE_ONLY
    def test_have_at_most_the_size_of_the_setting(self, api: Api) -> None:
        for _ in range(21):
            api.made("/keys", {"name": "k", "scopes": ["device"]})
        page = api.get("/keys", params={"limit": 1000}).json()
        assert len(page["items"]) == 20
        assert page["next_cursor"] is not None
