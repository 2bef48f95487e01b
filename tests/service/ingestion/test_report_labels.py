"""Labels of retained reports: in pages, each report once, with their expected accuracy."""

import secrets
from typing import Any

import numpy as np
import pytest
from sqlalchemy import insert

from clustering.simulate import SeededEntropy
from models.database.engine import Database
from models.tables.rounds import ReportBatch, Round
from service.ingestion import report_labels
from service.schemas.results import ReportLabelPage
from sfumato.api.client import Client
from sfumato.device.bulk import pack, perturb_records
from sfumato.model.cluster_model import ClusterModel, model_from_wire
from sfumato.model.posterior import posterior
from sfumato.specs import round_spec_from_wire
from tests.service.api import GRID, SQLITE_ONLY, Api, a_model, finish, packed, refused, unknown
from workers.job_runner import aggregate_without_job

WIDE = GRID | {"cells": [2, 3]}
OCTETS = {"content-type": "application/octet-stream"}


def send(api: Api, round_id: str, body: bytes) -> None:
    response = api.post(f"/rounds/{round_id}/reports", content=body, headers=OCTETS)
    assert response.status_code == 202, response.text


def reported(n: int, value: int, seed: int = 0) -> bytes:
    """Return packed reports with predictable ids."""
    return b"".join(
        bytes([seed, i % 256, i // 256]) + secrets.token_bytes(13) + b"\0" * 4 + bytes([value]) for i in range(n)
    )


class Collection:
    """A dataset with closed and aggregated rounds, for jobs with a given result."""

    def __init__(self, api: Api, *, keep: bool = True, model: ClusterModel | None = None) -> None:
        self.api, self.model = api, model or a_model()
        self.dataset_id = api.dataset(keep_reports=keep)["id"]
        self.rounds: list[dict[str, Any]] = []

    def round(self, *bodies: bytes, **other: Any) -> "Collection":
        """Add a round with these reports."""
        opened = self.api.round(self.dataset_id, **other)
        for body in bodies:
            send(self.api, opened["id"], body)
        return self.close(opened["id"])

    def close(self, round_id: str) -> "Collection":
        """Close and aggregate a round."""
        self.api.made(f"/rounds/{round_id}/close?allow_empty=true", None)
        aggregate_without_job(self.api.database, round_id)
        self.rounds.append(self.api.get(f"/rounds/{round_id}").json())
        return self

    def job(self) -> str:
        """Create a finished job over the rounds. Return its id."""
        algorithm = {"type": "uniform_grid", "epsilon": 8}
        algorithm |= {"variant": "paper"} if len(self.rounds) > 1 else {}  # only this variant has several rounds
        round_ids = [each["id"] for each in self.rounds]
        job_id: str = self.api.job(self.dataset_id, round_ids=round_ids, algorithm=algorithm)["id"]
        finish(self.api.database, job_id, self.model, [used(each["id"], each["n_reports"]) for each in self.rounds])
        return job_id

    def labels(self, limit: int) -> list[dict[str, Any]]:
        """Return the labels of all reports of a finished job, in pages of this size."""
        return self.api.list_all(f"/jobs/{self.job()}/labels", of="reports", limit=limit)


def used(round_id: str, n_reports: int) -> dict[str, Any]:
    return {"id": round_id, "index": 0, "n_reports": n_reports, "epsilon_nano": 1}


def read_ids(items: list[dict[str, Any]]) -> list[bytes]:
    """Return the predictable part of the report ids."""
    return [bytes.fromhex(item["report_id"])[:2] for item in items]


def ids_of(*counts: tuple[int, int]) -> list[bytes]:
    """Return the predictable part of the ids for (seed, number of reports)."""
    return [bytes([seed, i]) for seed, n in counts for i in range(n)]


class TestLabelsOfReports:
    @SQLITE_ONLY
    def test_are_the_posteriors_of_the_published_model(self, api: Api) -> None:
        collection = Collection(api).round(reported(5, 0), reported(6, 2), reported(7, 3))
        page = api.get(f"/jobs/{collection.job()}/labels", params={"of": "reports", "limit": 20}).json()
        spec = round_spec_from_wire(collection.rounds[0]["spec"])
        values = np.array([[0]] * 5 + [[2]] * 6 + [[3]] * 7, dtype=np.uint8)
        chances = posterior(model_from_wire(a_model().to_wire()), spec, np.zeros(18, dtype=np.int64), values)
        assert [item["cluster"] for item in page["items"]] == chances.argmax(axis=1).tolist()
        np.testing.assert_allclose([item["confidence"] for item in page["items"]], chances.max(axis=1))
        assert {item["round_id"] for item in page["items"]} == {collection.rounds[0]["id"]}
        assert all(len(item["report_id"]) == 32 for item in page["items"])
        assert ReportLabelPage.model_validate(page).type == "reports"
        assert page["expected_accuracy"] == pytest.approx(chances.max(axis=1).mean())
        assert page["baseline"] == 0.75
        assert "75.0 %" in page["caution"]
        assert "assign" in page["caution"]

    @SQLITE_ONLY
    def test_are_the_default_for_centroids_and_optional_for_a_label_map(self, api: Api) -> None:
        path = f"/jobs/{Collection(api, model=a_model(labels=False)).round(packed(4)).job()}/labels"
        assert api.get(path).json()["type"] == "reports"
        refused(api.get(path, params={"of": "cells"}), 409, "conflict")
        path = f"/jobs/{Collection(api).round(packed(4)).job()}/labels"
        assert api.get(path).json()["type"] == "cells"
        assert len(api.get(path, params={"of": "reports"}).json()["items"]) == 4
        refused(api.get(path, params={"of": "people"}), 422, "validation_failed")

    def test_pages_have_every_report_of_every_round_once(self, api: Api) -> None:
        collection = Collection(api).round(reported(3, 0, 1), reported(1, 1, 2), reported(4, 2, 3))
        first, second = (each["id"] for each in collection.round(reported(5, 3, 4), encoding=WIDE).rounds)
        for limit in (1, 4, 7, 20):
            items = collection.labels(limit)
            assert read_ids(items) == ids_of((1, 3), (2, 1), (3, 4), (4, 5))
            assert [item["round_id"] for item in items] == [first] * 8 + [second] * 5

    @SQLITE_ONLY
    def test_pages_do_not_depend_on_the_marks_of_the_log(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        bodies = [reported(n, 0, seed) for seed, n in enumerate((1, 1, 6, 2, 1, 3))]
        collection = Collection(api).round(*bodies, bodies[2], reported(3, 1, 9))
        for n_reports in (1, 2, 3, 5, 7, 100):
            monkeypatch.setattr(report_labels, "REPORTS_PER_MARK", n_reports)
            expected = ids_of((0, 1), (1, 1), (2, 6), (3, 2), (4, 1), (5, 3), (9, 3))  # six of 23 are repeats
            assert read_ids(collection.labels(2)) == expected

    def test_cursor_reveals_nothing_about_other_rounds(self, api: Api, other: Api) -> None:
        """A cursor counts reports of the round. It has no row numbers, which all tenants share, and no batch sizes."""
        theirs = other.round(other.dataset()["id"])["id"]

        def cursors(sizes: list[int]) -> list[str]:
            collection = Collection(api)
            opened = api.round(collection.dataset_id)["id"]
            for n in sizes:
                for _ in range(n):
                    send(other, theirs, packed(1))
                send(api, opened, reported(n, 1))
            path = f"/jobs/{collection.close(opened).job()}/labels"
            params = [{"of": "reports", "limit": 2, "cursor": after} for after in ("0.0", "0.1", "0.3")]
            return [api.get(path, params=each).json()["next_cursor"] for each in params]

        expected = ["0.2", "0.3", "0.5"]
        assert cursors([6]) == cursors([1, 4, 1]) == expected

    @SQLITE_ONLY
    def test_of_a_repeated_report_id_is_that_of_the_first(self, api: Api) -> None:
        first, second = reported(3, 0, 1), reported(2, 3, 2)
        changed = first[:16] + b"\0" * 4 + b"\x03"  # same id, other value
        collection = Collection(api).round(first, second + changed, first, second)
        assert (collection.rounds[0]["n_received"], collection.rounds[0]["n_reports"]) == (11, 5)
        for limit in (2, 20):
            items = collection.labels(limit)
            assert read_ids(items) == ids_of((1, 3), (2, 2))
            assert [item["cluster"] for item in items] == [items[0]["cluster"]] * 3 + [1, 1]

    @SQLITE_ONLY
    def test_find_repeats_in_parts_of_a_log(self, api: Api, database: Database) -> None:
        first, second = reported(60, 0, 1), reported(40, 3, 2)
        collection = Collection(api).round(first, second[: 21 * 30], first[: 21 * 25], second)
        with database.reading() as session:
            row = session.get_one(Round, collection.rounds[0]["id"])
            whole = report_labels._find_repeats(session, row)
            in_parts = report_labels._find_repeats(session, row, at_once=10)
        assert len(whole) == 25 + 30
        assert sorted(whole.tolist()) == whole.tolist() == in_parts.tolist()

    @SQLITE_ONLY
    def test_omit_malformed_reports(self, api: Api, database: Database) -> None:
        opened = api.round(api.dataset(keep_reports=True)["id"])
        send(api, opened["id"], reported(2, 1))
        with database.transaction() as session:  # damage the log
            bad = reported(1, 9, 7) + reported(1, 2, 8)
            for row in (bad, bad[:-1]):
                session.execute(insert(ReportBatch).values(round_id=opened["id"], n_reports=2, packed=row))
        job_id = api.job(opened["dataset_id"])["id"]
        finish(database, job_id, a_model(), [used(opened["id"], 2)])
        items = api.list_all(f"/jobs/{job_id}/labels", of="reports", limit=2)
        assert [first for first, _ in read_ids(items)] == [0, 0, 8]

    @SQLITE_ONLY
    def test_are_complete_in_the_python_client(self, api: Api) -> None:
        job_id = Collection(api).round(reported(25, 2, 1), reported(20, 3, 2)).job()
        client = Client("http://gateway", api.secret, transport=api.http._transport)
        labels = client.report_labels(job_id)
        assert len(list(labels)) == 45
        assert {label.cluster for label in labels} == {1}
        assert 0 < labels.baseline <= labels.expected_accuracy < 1
        assert "assign" in labels.caution

    @SQLITE_ONLY
    def test_of_deleted_reports_are_a_conflict_with_a_remedy(self, api: Api) -> None:
        collection = Collection(api, keep=False, model=a_model(labels=False)).round(packed(4))
        problem = refused(api.get(f"/jobs/{collection.job()}/labels"), 409, "conflict")
        assert "keep_reports" in problem["detail"]
        assert "assign" in problem["detail"]
        api.patch(f"/datasets/{collection.dataset_id}", {"keep_reports": True})
        items = collection.round(packed(3)).labels(20)
        assert [item["round_id"] for item in items] == [collection.rounds[1]["id"]] * 3

    @SQLITE_ONLY
    def test_are_deleted_with_their_dataset(self, api: Api) -> None:
        collection = Collection(api).round(packed(4))
        path = f"/jobs/{collection.job()}/labels?of=reports"
        assert api.get(path).status_code == 200
        api.delete(f"/datasets/{collection.dataset_id}")
        refused(api.get(path), 409, "conflict")

    @SQLITE_ONLY
    def test_are_not_visible_to_other_tenants_and_datasets(self, api: Api, other: Api) -> None:
        path = f"/jobs/{Collection(api).round(packed(2)).job()}/labels?of=reports"
        for stranger in (other, api.key("jobs", dataset_id=api.dataset()["id"])):
            refused(stranger.get(path), 404, "not_found")
        refused(api.key("device").get(path), 403, "forbidden")
        refused(api.get(f"/jobs/{unknown('job')}/labels"), 404, "not_found")
        for place in ("5", "ds_01jd0b1v3tq5c9m8x2h7r4k6ez", "0-1-0", "0.1.2", "0.9999999999999999"):
            refused(api.get(f"{path}&cursor={place}"), 422, "validation_failed")  # the cursor belongs to another list

    @SQLITE_ONLY
    def test_need_a_model_that_can_read_the_round(self, api: Api, database: Database) -> None:
        lattice = {"type": "lattice", "n_features": 2, "steps": 10}
        opened = api.round(api.dataset(keep_reports=True)["id"], encoding=lattice, mechanism="auto")
        width = round_spec_from_wire(opened["spec"]).mechanism.value_bytes
        send(api, opened["id"], secrets.token_bytes(16) + bytes(4 + width))
        job = api.job(opened["dataset_id"])
        finish(database, job["id"], a_model(), [used(opened["id"], 1)])
        refused(api.get(f"/jobs/{job['id']}/labels", params={"of": "reports"}), 409, "conflict")

    def test_cache_the_labellers_of_a_few_jobs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(report_labels, "MAX_CACHED", 2)
        labellers = report_labels.ReportLabellers()
        document = {"model": a_model().to_wire()}
        first = labellers.get("a", document)
        labellers.get("b", document)
        assert labellers.get("a", document) is first
        labellers.get("c", document)
        assert labellers.get("a", document) is first  # used after b
        assert len(labellers._cached) == 2


@SQLITE_ONLY
class TestExpectedAccuracy:
    def test_weights_rounds_by_their_reports_and_samples_the_first(
        self, api: Api, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(report_labels, "SAMPLE_REPORTS", 2)
        collection = Collection(api).round(reported(2, 3), reported(4, 0)).round(reported(3, 2), epsilon=2)
        page = api.get(f"/jobs/{collection.job()}/labels", params={"of": "reports"}).json()
        items = page["items"]
        by_hand = (6 * items[0]["confidence"] + 3 * items[6]["confidence"]) / 9
        assert page["expected_accuracy"] == pytest.approx(by_hand)
        assert items[0]["confidence"] != pytest.approx(items[2]["confidence"])

    def test_is_the_accuracy_for_people_distributed_like_the_model(self, api: Api) -> None:
        collection, n = Collection(api), 1000
        opened = api.round(collection.dataset_id, mechanism="grr", epsilon=1.0, target_reports=n)
        random = np.random.default_rng(1)
        clusters = (random.random(n) < 0.75).astype(np.int64)  # cluster 1 is the half with larger x
        points = np.stack([(clusters + random.random(n)) / 2, random.random(n) * 2 - 1], axis=1)
        sent = perturb_records(round_spec_from_wire(opened["spec"]), points, SeededEntropy(1))
        send(api, opened["id"], pack(sent).tobytes())
        job_id = collection.close(opened["id"]).job()
        assert collection.rounds[0]["state"] == "tallied"
        truth = {bytes(one).hex(): int(label) for one, label in zip(sent.report_ids, clusters, strict=True)}
        page = api.get(f"/jobs/{job_id}/labels", params={"of": "reports"}).json()
        items = api.list_all(f"/jobs/{job_id}/labels", of="reports", limit=20)
        accuracy = np.mean([truth[item["report_id"]] == item["cluster"] for item in items])
        assert len(items) == n
        assert abs(accuracy - page["expected_accuracy"]) < 3 * 0.5 / np.sqrt(n)  # a wrong model is far off
