"""Labels of the reports that a dataset kept: in pages, each report once, and with what they are worth."""

import base64
import secrets
from typing import Any

import numpy as np
import pytest
from sqlalchemy import insert

from clustering.simulate import SeededEntropy
from models.db import Database
from models.report import ReportBatch
from models.round import Round
from service import report_labels
from service.job_resources import ReportLabelPage
from sfumato import mechanisms
from sfumato.bulk import pack, perturb_records
from sfumato.client import Client
from sfumato.cluster_model import ClusterModel, model_from_wire
from sfumato.posterior import posterior
from sfumato.specs import round_spec_from_wire
from tests.service.api import GRID, Api, a_model, finish, packed, refused, unknown
from workers.runner import fold_alone

OCTETS = {"content-type": "application/octet-stream"}


def send(api: Api, round_id: str, body: bytes) -> None:
    answer = api.post(f"/rounds/{round_id}/reports", content=body, headers=OCTETS)
    assert answer.status_code == 202, answer.text


def reported(n: int, value: int, seed: int = 0) -> bytes:
    """Packed reports with ids a test can tell."""
    return b"".join(
        bytes([seed, i % 256, i // 256]) + secrets.token_bytes(13) + b"\0" * 4 + bytes([value]) for i in range(n)
    )


class Collected:
    """A finished job over rounds whose reports came, were closed and counted."""

    def __init__(self, api: Api, database: Database, *, keep: bool = True, model: ClusterModel | None = None) -> None:
        self.api, self.database, self.model = api, database, model or a_model()
        self.dataset = api.dataset(keep_reports=keep)
        self.rounds: list[dict[str, Any]] = []

    def round(self, *bodies: bytes, **other: Any) -> "Collected":
        opened = self.api.round(self.dataset["id"], **other)
        for body in bodies:
            send(self.api, opened["id"], body)
        self.api.made(f"/rounds/{opened['id']}/close", None)
        fold_alone(self.database, opened["id"])
        self.rounds.append(self.api.get(f"/rounds/{opened['id']}").json())
        return self

    def job(self) -> str:
        algorithm = {"type": "uniform_grid", "epsilon": 8}
        round_ids = [each["id"] for each in self.rounds]
        made = self.api.job(self.dataset["id"], round_ids=round_ids, algorithm=algorithm)
        used = [
            {"id": each["id"], "index": 0, "n_reports": each["n_reports"], "epsilon_nano": 1} for each in self.rounds
        ]
        finish(self.database, made["id"], self.model, used)
        return str(made["id"])


def pages(api: Api, job_id: str, limit: int) -> list[list[dict[str, Any]]]:
    """Every page's items."""
    found, cursor = [], None
    while True:
        params = {"of": "reports", "limit": limit} | ({"cursor": cursor} if cursor else {})
        answer = api.get(f"/jobs/{job_id}/labels", params=params)
        assert answer.status_code == 200, answer.text
        found.append(answer.json()["items"])
        cursor = answer.json()["next_cursor"]
        if cursor is None:
            return found


def as_cursor(place: str) -> str:
    return base64.urlsafe_b64encode(place.encode()).decode().rstrip("=")


class TestLabelsOfReports:
    def test_are_the_posteriors_of_the_published_model(self, api: Api, database: Database) -> None:
        collected = Collected(api, database).round(reported(5, 0), reported(6, 2), reported(7, 3))
        job_id = collected.job()
        answer = api.get(f"/jobs/{job_id}/labels", params={"of": "reports", "limit": 20}).json()
        spec = round_spec_from_wire(collected.rounds[0]["spec"])
        values = np.array([[0]] * 5 + [[2]] * 6 + [[3]] * 7, dtype=np.uint8)
        chances = posterior(model_from_wire(a_model().to_wire()), spec, np.zeros(18, dtype=np.int64), values)
        assert [item["cluster"] for item in answer["items"]] == chances.argmax(axis=1).tolist()
        np.testing.assert_allclose([item["confidence"] for item in answer["items"]], chances.max(axis=1))
        assert {item["round_id"] for item in answer["items"]} == {collected.rounds[0]["id"]}
        assert all(len(item["report_id"]) == 32 for item in answer["items"])
        assert ReportLabelPage.model_validate(answer).type == "reports"
        assert answer["expected_accuracy"] == pytest.approx(chances.max(axis=1).mean())
        assert answer["baseline"] == 0.75
        assert "75.0 %" in answer["caution"]
        assert "assign" in answer["caution"]

    def test_are_what_a_result_of_centroids_has_and_a_label_map_only_when_asked(
        self, api: Api, database: Database
    ) -> None:
        centred = Collected(api, database, model=a_model(labels=False)).round(packed(4)).job()
        assert api.get(f"/jobs/{centred}/labels").json()["type"] == "reports"
        refused(api.get(f"/jobs/{centred}/labels", params={"of": "cells"}), 409, "conflict")
        mapped = Collected(api, database).round(packed(4)).job()
        assert api.get(f"/jobs/{mapped}/labels").json()["type"] == "cells"
        assert len(api.get(f"/jobs/{mapped}/labels", params={"of": "reports"}).json()["items"]) == 4
        refused(api.get(f"/jobs/{mapped}/labels", params={"of": "people"}), 422, "validation_failed")

    @pytest.mark.parametrize("limit", [1, 4, 7, 20])
    def test_come_in_pages_that_hold_every_report_of_every_round_once(
        self, api: Api, database: Database, limit: int
    ) -> None:
        collected = Collected(api, database).round(reported(3, 0, 1), reported(1, 1, 2), reported(4, 2, 3))
        collected.round(reported(5, 3, 4), encoding=GRID | {"cells": [2, 3]})
        found = pages(api, collected.job(), limit)
        assert all(len(page) <= limit for page in found)
        items = [item for page in found for item in page]
        assert [bytes.fromhex(item["report_id"])[:2] for item in items] == [
            bytes([seed, i]) for seed, n in ((1, 3), (2, 1), (3, 4), (4, 5)) for i in range(n)
        ]
        assert [item["round_id"] for item in items] == [collected.rounds[0]["id"]] * 8 + [collected.rounds[1]["id"]] * 5

    @pytest.mark.parametrize("every", [1, 2, 3, 5, 7, 100])
    def test_go_on_at_the_same_place_wherever_the_log_is_entered(
        self, api: Api, database: Database, monkeypatch: pytest.MonkeyPatch, every: int
    ) -> None:
        monkeypatch.setattr(report_labels, "REPORTS_A_MARK", every)
        bodies = [reported(n, 0, seed) for seed, n in enumerate((1, 1, 6, 2, 1, 3))]
        collected = Collected(api, database).round(*bodies, bodies[2], reported(3, 1, 9))
        found = pages(api, collected.job(), 2)
        assert len(found) == 12  # of 23 reports, six of which came again
        assert [bytes.fromhex(item["report_id"])[:2] for page in found for item in page] == [
            bytes([seed, i]) for seed, n in ((0, 1), (1, 1), (2, 6), (3, 2), (4, 1), (5, 3), (9, 3)) for i in range(n)
        ]

    def test_go_on_by_a_cursor_that_tells_nothing_of_what_others_send(
        self, api: Api, other: Api, database: Database
    ) -> None:
        """It counts reports of the round itself: not the log's rows, which all share, nor how they were grouped."""
        theirs = other.round(other.dataset()["id"])["id"]

        def cursors(sent: list[int]) -> list[str]:
            collected = Collected(api, database)
            opened = api.round(collected.dataset["id"])["id"]
            for n in sent:
                for _ in range(n):
                    send(other, theirs, packed(1))
                send(api, opened, reported(n, 1))
            api.made(f"/rounds/{opened}/close", None)
            fold_alone(database, opened)
            collected.rounds.append(api.get(f"/rounds/{opened}").json())
            found, job_id = [], collected.job()
            for after in ("0.0", "0.1", "0.3"):
                params = {"of": "reports", "limit": 2, "cursor": as_cursor(after)}
                found.append(api.get(f"/jobs/{job_id}/labels", params=params).json()["next_cursor"])
            return found

        expected = [as_cursor("0.2"), as_cursor("0.3"), as_cursor("0.5")]
        assert cursors([6]) == cursors([1, 4, 1]) == expected

    @pytest.mark.parametrize("limit", [2, 20])
    def test_count_a_report_that_was_sent_again_once_where_it_came_first(
        self, api: Api, database: Database, limit: int
    ) -> None:
        first, second = reported(3, 0, 1), reported(2, 3, 2)
        changed = first[:16] + b"\0" * 4 + b"\x03"  # the same id with another value
        collected = Collected(api, database).round(first, second + changed, first, second)
        assert (collected.rounds[0]["n_received"], collected.rounds[0]["n_reports"]) == (11, 5)
        items = [item for page in pages(api, collected.job(), limit) for item in page]
        assert [bytes.fromhex(item["report_id"])[:2] for item in items] == [
            b"\x01\x00", b"\x01\x01", b"\x01\x02", b"\x02\x00", b"\x02\x01"
        ]  # fmt: skip
        assert [item["cluster"] for item in items] == pytest.approx([items[0]["cluster"]] * 3 + [1, 1])

    def test_find_what_was_sent_again_in_parts_of_a_log_too(
        self, api: Api, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first, second = reported(60, 0, 1), reported(40, 3, 2)
        collected = Collected(api, database).round(first, second[: 21 * 30], first[: 21 * 25], second)
        with database.reading() as session:
            counted = session.get_one(Round, collected.rounds[0]["id"])
            whole = report_labels._repeats(session, counted)
            in_parts = report_labels._repeats(session, counted, at_once=10)
        assert len(whole) == 25 + 30
        assert sorted(whole.tolist()) == whole.tolist() == in_parts.tolist()

    def test_leave_out_what_no_device_could_have_sent(self, api: Api, database: Database) -> None:
        opened = api.dataset(keep_reports=True)
        asked = api.round(opened["id"])
        send(api, asked["id"], reported(2, 1))
        with database.transaction() as session:  # a log that was damaged
            bad = reported(1, 9, 7) + reported(1, 2, 8)
            for row in (bad, bad[:-1]):
                session.execute(insert(ReportBatch).values(round_id=asked["id"], n_reports=2, packed=row))
        job = api.job(opened["id"])
        finish(database, job["id"], a_model(), [{"id": asked["id"], "index": 0, "n_reports": 2, "epsilon_nano": 1}])
        items = [item for page in pages(api, job["id"], 2) for item in page]
        assert [bytes.fromhex(item["report_id"])[0] for item in items] == [0, 0, 8]

    def test_reach_the_python_client_whole(self, api: Api, database: Database) -> None:
        job_id = Collected(api, database).round(reported(25, 2, 1), reported(20, 3, 2)).job()
        client = Client("http://gateway", api.secret, transport=api.http._transport)
        labels = client.report_labels(job_id)
        assert len(list(labels)) == 45
        assert {label.cluster for label in labels} == {1}
        assert 0 < labels.baseline <= labels.expected_accuracy < 1
        assert "assign" in labels.caution

    def test_say_what_to_do_where_the_reports_were_scrubbed(self, api: Api, database: Database) -> None:
        job_id = Collected(api, database, keep=False, model=a_model(labels=False)).round(packed(4)).job()
        problem = refused(api.get(f"/jobs/{job_id}/labels"), 409, "conflict")
        assert "keep_reports" in problem["detail"]
        assert "assign" in problem["detail"]

    def test_are_gone_with_their_dataset(self, api: Api, database: Database) -> None:
        collected = Collected(api, database).round(packed(4))
        job_id = collected.job()
        assert api.get(f"/jobs/{job_id}/labels", params={"of": "reports"}).status_code == 200
        api.request("DELETE", f"/datasets/{collected.dataset['id']}")
        refused(api.get(f"/jobs/{job_id}/labels", params={"of": "reports"}), 409, "conflict")

    def test_of_some_rounds_are_told_where_others_were_not_kept(self, api: Api, database: Database) -> None:
        collected = Collected(api, database, keep=False).round(packed(4))
        api.request("PATCH", f"/datasets/{collected.dataset['id']}", json={"keep_reports": True})
        job_id = collected.round(packed(3)).job()
        items = api.get(f"/jobs/{job_id}/labels", params={"of": "reports"}).json()["items"]
        assert [item["round_id"] for item in items] == [collected.rounds[1]["id"]] * 3

    def test_are_not_told_other_tenants_or_other_datasets_keys(self, api: Api, other: Api, database: Database) -> None:
        job_id = Collected(api, database).round(packed(2)).job()
        refused(other.get(f"/jobs/{job_id}/labels", params={"of": "reports"}), 404, "not_found")
        bound = api.key("jobs", dataset_id=api.dataset()["id"])
        refused(bound.get(f"/jobs/{job_id}/labels", params={"of": "reports"}), 404, "not_found")
        refused(api.key("device").get(f"/jobs/{job_id}/labels"), 403, "forbidden")
        refused(api.get(f"/jobs/{unknown('job')}/labels"), 404, "not_found")

    @pytest.mark.parametrize("place", ["5", "ds_01jd0b1v3tq5c9m8x2h7r4k6ez", "0-1-0", "0.1.2", "0.9999999999999999"])
    def test_refuse_a_cursor_of_another_list(self, api: Api, database: Database, place: str) -> None:
        job_id = Collected(api, database).round(packed(2)).job()
        answer = api.get(f"/jobs/{job_id}/labels", params={"of": "reports", "cursor": as_cursor(place)})
        refused(answer, 422, "validation_failed")

    def test_are_refused_where_the_model_cannot_read_the_round(self, api: Api, database: Database) -> None:
        collected = Collected(api, database)
        opened = api.round(
            collected.dataset["id"], encoding={"type": "lattice", "n_features": 2, "steps": 10}, mechanism="auto"
        )
        width = mechanisms.value_bytes(round_spec_from_wire(opened["spec"]).mechanism)
        send(api, opened["id"], secrets.token_bytes(16) + bytes(4 + width))
        job = api.job(collected.dataset["id"])
        used = [{"id": opened["id"], "index": 0, "n_reports": 1, "epsilon_nano": 1}]
        finish(database, job["id"], a_model(), used)
        refused(api.get(f"/jobs/{job['id']}/labels", params={"of": "reports"}), 409, "conflict")

    def test_hold_a_few_jobs_readers_and_no_more(
        self, api: Api, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(report_labels, "MAX_HELD", 2)
        held = report_labels.Labellers()
        document = {"model": a_model().to_wire()}
        first = held.of("a", document)
        held.of("b", document)
        assert held.of("a", document) is first
        held.of("c", document)
        assert held.of("a", document) is first  # asked for later than b
        assert len(held._held) == 2


class TestExpectedAccuracy:
    def test_weighs_rounds_by_their_reports_and_looks_at_the_first_of_each(
        self, api: Api, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(report_labels, "SUMMED_REPORTS", 2)
        collected = Collected(api, database).round(reported(2, 3), reported(4, 0)).round(reported(3, 2), epsilon=2)
        answer = api.get(f"/jobs/{collected.job()}/labels", params={"of": "reports"}).json()
        items = answer["items"]
        by_hand = (6 * items[0]["confidence"] + 3 * items[6]["confidence"]) / 9
        assert answer["expected_accuracy"] == pytest.approx(by_hand)
        assert items[0]["confidence"] != pytest.approx(items[2]["confidence"])

    def test_is_reached_by_people_who_are_as_the_model_says(self, api: Api, database: Database) -> None:
        collected = Collected(api, database)
        n = 2000
        opened = api.round(collected.dataset["id"], mechanism="grr", epsilon=1.0, target_reports=n)
        random = np.random.default_rng(1)
        own = (random.random(n) < 0.75).astype(np.int64)  # cluster 1 is the right half
        points = np.stack([(own + random.random(n)) / 2, random.random(n) * 2 - 1], axis=1)
        sent = perturb_records(round_spec_from_wire(opened["spec"]), points, SeededEntropy(1))
        send(api, opened["id"], pack(sent).tobytes())
        fold_alone(database, opened["id"])
        collected.rounds.append(api.get(f"/rounds/{opened['id']}").json())
        assert collected.rounds[0]["state"] == "tallied"
        job_id = collected.job()
        truth = {bytes(one).hex(): int(label) for one, label in zip(sent.report_ids, own, strict=True)}
        found = {item["report_id"]: item["cluster"] for page in pages(api, job_id, 20) for item in page}
        said = api.get(f"/jobs/{job_id}/labels", params={"of": "reports"}).json()["expected_accuracy"]
        right = np.mean([truth[report_id] == label for report_id, label in found.items()])
        assert abs(right - said) < 3 * 0.5 / np.sqrt(len(found))  # seeded; of another model it is far off
