"""The analyst's client: requests, parsed responses, and retries that do nothing twice."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from sfumato.api.client import Client
from sfumato.api.datasets import BATCH_REPORTS
from sfumato.errors import ApiProblem, InvalidPoint, InvalidSpec, JobTimeout, ReportMalformed
from sfumato.privacy.ledger import GENESIS, Balance, Head
from sfumato.specs import Feature, GridEncoding, Participation, ShiftedGrid, UniformGrid
from tests.sfumato.answers import (
    AT,
    DATASET,
    FEATURES,
    JOB,
    KEY,
    MOMENT,
    RESULT,
    ROUND,
    entry_wire,
    lost,
    ok,
    pages,
    receipt,
    serving,
)
from tests.sfumato.privacy.test_ledger import BALANCE, CHAIN, HEAD
from tests.sfumato.scripted import refusal, round_spec

pytestmark = pytest.mark.usefixtures("three_attempts")


class TestAddress:
    def test_may_come_from_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        service, _ = serving({"GET datasets": pages([])})
        monkeypatch.setenv("SFUMATO_URL", "http://127.0.0.1:8000/")
        monkeypatch.setenv("SFUMATO_KEY", " sfk_x\n")
        assert list(Client(transport=httpx.MockTransport(service)).datasets()) == []
        (request,) = service.requests
        assert str(request.url).startswith("http://127.0.0.1:8000/v1/datasets")
        assert request.headers["Authorization"] == "Bearer sfk_x"

    @pytest.mark.parametrize(
        ("url", "key", "message"),
        [
            (None, "sfk_x", "url is missing: pass it, or set SFUMATO_URL"),
            ("http://x", None, "key is missing: pass it, or set SFUMATO_KEY"),
            ("http://x", "", "key is missing"),
            ("127.0.0.1:8000", "sfk_x", "for example http://127.0.0.1:8000"),
            ("http://x", "sfk_é", "key must be a string of ASCII characters"),
        ],
    )
    def test_is_refused_with_the_remedy(
        self, monkeypatch: pytest.MonkeyPatch, url: str | None, key: str | None, message: str
    ) -> None:
        monkeypatch.delenv("SFUMATO_URL", raising=False)
        monkeypatch.delenv("SFUMATO_KEY", raising=False)
        with pytest.raises(InvalidSpec, match=message):
            Client(url, key)


class TestDatasets:
    def test_creates_one(self) -> None:
        service, client = serving({"POST datasets": ok(DATASET, 201)})
        dataset = client.create_dataset("world", FEATURES, epsilon=4.5, min_reports=7)
        body = {"name": "world", "trust": "local", "features": DATASET["features"]}
        assert service.bodies() == [body | {"epsilon": 4.5, "min_reports": 7}]
        assert (dataset.id, dataset.features, dataset.created_at) == ("ds_1", FEATURES, MOMENT)

    def test_refuses_an_unknown_setting(self) -> None:
        service, client = serving({"POST datasets": ok(DATASET, 201)})
        with pytest.raises(TypeError, match="no argument 'min_report': use one of min_reports, "):
            client.create_dataset("world", FEATURES, epsilon=1, min_report=7)  # type: ignore[call-arg]
        assert service.bodies() == []

    def test_accepts_features_as_tuples(self) -> None:
        service, client = serving({"POST datasets": ok(DATASET, 201)})
        client.create_dataset("world", [("east", 0, 10, "km"), Feature("north", 0, 5)], epsilon=1)
        (body,) = service.bodies()
        assert body["features"] == [
            {"name": "east", "lower": 0.0, "upper": 10.0, "unit": "km"},
            {"name": "north", "lower": 0.0, "upper": 5.0, "unit": ""},
        ]

    @pytest.mark.parametrize("features", ["east", ["east", "north"], [("east", 0)], 5, None, [("east", 10, 0)]])
    def test_refuses_other_features_with_a_reason(self, features: Any) -> None:
        service, client = serving({})
        with pytest.raises(InvalidSpec, match=r"feature|lower must lie below"):
            client.create_dataset("world", features, epsilon=1)
        assert service.requests == []

    def test_lists_page_after_page(self) -> None:
        parts = [[DATASET | {"id": f"ds_{page}{i}"} for i in range(3)] for page in range(3)]
        service, client = serving({"GET datasets": pages(*parts)})
        listed = client.datasets()
        assert isinstance(listed, Iterator)
        assert service.requests == []
        assert [dataset.id for dataset in listed] == [d["id"] for part in parts for d in part]
        assert [request.url.params.get("cursor") for request in service.requests] == [None, "1", "2"]

    @pytest.mark.parametrize("page", [{"items": []}, {"items": [], "next_cursor": ""}])
    def test_an_empty_page_is_the_last(self, page: dict[str, Any]) -> None:
        _, client = serving({"GET datasets": ok(page)})
        assert list(client.datasets()) == []

    @pytest.mark.parametrize("page", [{}, {"items": {}}, {"items": [], "next_cursor": 5}])
    def test_refuses_an_invalid_page(self, page: dict[str, Any]) -> None:
        _, client = serving({"GET datasets": ok(page)})
        with pytest.raises(ApiProblem, match="not a page"):
            list(client.datasets())

    def test_stops_at_a_repeated_cursor(self) -> None:
        _, client = serving({"GET datasets": ok({"items": [DATASET], "next_cursor": "same"})})
        assert len(list(client.datasets())) == 2

    def test_gets_updates_and_deletes_one(self) -> None:
        service, client = serving(
            {
                "GET datasets/ds_1": ok(DATASET | {"colour": "red"}),  # a field of a newer service
                "PATCH datasets/ds_1": ok(DATASET | {"name": "new"}),
                "DELETE datasets/ds_1": httpx.Response(204),
            }
        )
        assert client.get_dataset("ds_1").name == "world"
        assert client.update_dataset("ds_1", name="new", keep_reports=False).name == "new"
        assert json.loads(service.requests[1].content) == {"name": "new", "keep_reports": False}
        client.delete_dataset("ds_1")
        assert [request.method for request in service.requests] == ["GET", "PATCH", "DELETE"]

    @pytest.mark.parametrize("answer", [httpx.Response(200, html="<html>"), httpx.Response(202, json={})])
    def test_is_not_deleted_by_another_answer(self, answer: httpx.Response) -> None:
        _, client = serving({"DELETE datasets/ds_1": answer, "DELETE keys/key_1": answer})
        for call in (lambda: client.delete_dataset("ds_1"), lambda: client.revoke_key("key_1")):
            with pytest.raises(ApiProblem, match="the deletion is not confirmed"):
                call()

    @pytest.mark.parametrize("answer", [[], {}, {"id": "ds_1"}, DATASET | {"created_at": 5}, DATASET | {"features": 1}])
    def test_refuses_an_invalid_dataset(self, answer: Any) -> None:
        _, client = serving({"GET datasets/ds_1": ok(answer)})
        with pytest.raises((InvalidSpec, ApiProblem)):
            client.get_dataset("ds_1")

    def test_raises_a_problem_with_all_its_members(self) -> None:
        problem = refusal(409, "budget_exhausted", requested=2.0, entries=["led_1"])
        _, client = serving({"POST datasets/ds_1/grants": problem})
        with pytest.raises(ApiProblem) as raised:
            client.grant("ds_1", 2)
        assert raised.value.code == "budget_exhausted"
        assert raised.value.problem["entries"] == ["led_1"]

    @pytest.mark.parametrize(
        ("errors", "message"),
        [
            (
                [
                    {"pointer": "", "message": "column y is missing"},
                    {"pointer": "/epsilon", "message": "is too small"},
                    {"pointer": "", "message": "it is wrong"},  # equal to the detail
                    "no place",
                ],
                "; column y is missing; /epsilon: is too small",
            ),
            *((errors, "") for errors in (None, "text", 5, [[]], [{}], [{"message": None}])),
        ],
    )
    def test_a_problem_names_the_places_of_its_errors(self, errors: Any, message: str) -> None:
        problem = refusal(422, "validation_failed", detail="it is wrong", errors=errors)
        _, client = serving({"GET datasets/ds_1": problem})
        with pytest.raises(ApiProblem) as raised:
            client.get_dataset("ds_1")
        assert str(raised.value).startswith(f"422 validation_failed: it is wrong{message}")


def ledger_service(entries: list[Any], head: Head, balance: Balance, **changes: Any) -> Client:
    budget = {
        "dataset_id": "ds_1",
        **balance._asdict(),
        "remaining_nano": balance.granted_nano - balance.reserved_nano - balance.charged_nano,
        "ledger_seq": head.seq,
        "ledger_hash": head.hash,
    } | changes
    wire = [entry_wire(entry) for entry in entries]
    _, client = serving(
        {"GET datasets/ds_1/budget": ok(budget), "GET datasets/ds_1/ledger": pages(wire[:2], wire[2:5], wire[5:])}
    )
    return client


class TestLedger:
    def test_reads_entries_and_budget_and_verifies_them(self) -> None:
        client = ledger_service(CHAIN, HEAD, BALANCE)
        assert list(client.ledger("ds_1")) == CHAIN
        budget = client.budget("ds_1")
        assert (budget.balance, budget.head, budget.remaining_nano) == (BALANCE, HEAD, 5_000_000_001)
        verification = client.verify_ledger("ds_1")
        assert (verification.ok, verification.head) == (True, HEAD)

    def test_allows_entries_added_during_the_verification(self) -> None:
        earlier = Head(4, CHAIN[3].hash)
        balance = Balance(CHAIN[3].granted_nano, CHAIN[3].reserved_nano, CHAIN[3].charged_nano)
        assert ledger_service(CHAIN, earlier, balance).verify_ledger("ds_1").head == HEAD

    @pytest.mark.parametrize("entries", [CHAIN[:-1], CHAIN[::-1], []], ids=["cut", "reversed", "empty"])
    def test_detects_a_changed_ledger(self, entries: list[Any]) -> None:
        assert not ledger_service(entries, HEAD, BALANCE).verify_ledger("ds_1").ok

    def test_a_noted_head_must_be_in_the_chain(self) -> None:
        client = ledger_service(CHAIN, HEAD, BALANCE)
        assert client.verify_ledger("ds_1", noted=[GENESIS, Head(2, CHAIN[1].hash)]).ok
        assert client.verify_ledger("ds_1", noted=[Head(2, "f" * 64)]).broken_at == 2
        assert client.verify_ledger("ds_1", noted=[Head(9, "f" * 64)]).reason == "the last entries are missing"

    def test_verifies_a_ledger_without_delta(self) -> None:
        wire = [{name: value for name, value in entry_wire(e).items() if not name.endswith("_atto")} for e in CHAIN]
        budget = {"dataset_id": "ds_1", "ledger_seq": HEAD.seq, "ledger_hash": HEAD.hash, "remaining_nano": 5}
        budget |= dict(zip(("granted_nano", "reserved_nano", "charged_nano"), BALANCE, strict=False))
        _, client = serving({"GET datasets/ds_1/budget": ok(budget), "GET datasets/ds_1/ledger": pages(wire)})
        assert client.verify_ledger("ds_1").ok

    def test_reads_delta_in_atto(self) -> None:
        amounts = {name: 5 * 10**12 + 1 for name in Balance._fields if name.endswith("_atto")}
        client = ledger_service(CHAIN, HEAD, BALANCE._replace(**amounts), remaining_delta_atto=7)
        assert client.budget("ds_1").balance == BALANCE._replace(**amounts)
        assert client.budget("ds_1").remaining_delta_atto == 7
        assert client.verify_ledger("ds_1").reason == "the published budget differs from the ledger's balance"

    def test_sends_a_delta_only_if_there_is_one(self) -> None:
        service, client = serving({"POST datasets/ds_1/grants": ok(entry_wire(CHAIN[0]), 201)})
        client.grant("ds_1", 0, delta=1e-6)
        client.grant("ds_1", 2)
        assert service.bodies() == [{"epsilon": 0, "delta": 1e-6}, {"epsilon": 2}]

    @pytest.mark.parametrize(
        "change",
        [{"epsilon_nano": 1.5}, {"seq": "1"}, {"at": "yesterday"}, {"granted_nano": None}, {"delta_atto": 0.5}],
    )
    def test_refuses_an_entry_with_wrong_types(self, change: dict[str, Any]) -> None:
        _, client = serving({"GET datasets/ds_1/ledger": pages([entry_wire(CHAIN[0]) | change])})
        with pytest.raises(InvalidSpec, match="type LedgerEntry"):
            list(client.ledger("ds_1"))

    def test_repeats_a_lost_grant_under_the_same_key(self) -> None:
        service, client = serving({"POST datasets/ds_1/grants": [lost, lost, ok(entry_wire(CHAIN[0]), 201)]})
        assert client.grant("ds_1", 8) == CHAIN[0]
        keys = {request.headers["Idempotency-Key"] for request in service.requests}
        assert len(service.requests) == 3
        assert len(keys) == 1
        client.grant("ds_1", 8)
        assert service.requests[-1].headers["Idempotency-Key"] not in keys


class TestRounds:
    def test_opens_one(self) -> None:
        service, client = serving({"POST datasets/ds_1/rounds": ok(ROUND, 201)})
        participation = Participation(0, 5)
        opened = client.open_round(
            "ds_1", GridEncoding((4, 4)), epsilon=1, target_reports=1000, participation=participation, mechanism="ss"
        )
        (body,) = service.bodies()
        assert body["encoding"] == {"type": "grid", "cells": [4, 4]}
        assert body["participation"] == {"lo": "0", "hi": "5"}
        assert (body["mechanism"], body["epsilon"], body["target_reports"]) == ("ss", 1, 1000)
        assert (body["min_reports"], body["collect_seconds"]) == (0, 604800)
        assert opened.spec == round_spec()
        assert (opened.state, opened.n_reports, opened.closes_at, opened.closed_at) == ("open", None, MOMENT, None)

    def test_gets_lists_and_closes_them(self) -> None:
        service, client = serving(
            {
                "GET rounds/rnd_1": ok(ROUND),
                "GET datasets/ds_1/rounds": pages([ROUND], [ROUND]),
                "POST rounds/rnd_1/close": ok(ROUND | {"state": "closed", "closed_at": AT}),
            }
        )
        assert client.get_round("rnd_1").n_received == 5
        assert len(list(client.rounds("ds_1"))) == 2
        assert client.close_round("rnd_1").closed_at == MOMENT
        assert service.requests[-1].content == b""


class TestReports:
    def reports(self, n: int) -> tuple[Any, Any, Any]:
        ids = np.arange(16 * n, dtype=np.uint64).astype("<u8").view(np.uint8)[: 16 * n].reshape(n, 16)
        return ids, np.arange(n) % 7, np.full((n, 2), 9, dtype=np.uint8)

    def test_sends_packed_batches_in_order(self) -> None:
        n = BATCH_REPORTS + 10
        service, client = serving({"POST rounds/rnd_1/reports": receipt})
        progress: list[int] = []
        ids, slots, values = self.reports(n)
        assert client.send_reports("rnd_1", ids, slots, values, on_progress=progress.append) == n
        assert progress == [BATCH_REPORTS, n]
        packed = np.frombuffer(b"".join(r.content for r in service.requests), np.uint8).reshape(n, 22)
        assert (packed[:, :16] == ids).all()
        assert (packed[:, 16:20].copy().view("<u4")[:, 0] == slots).all()
        assert (packed[:, 20:] == 9).all()
        assert {r.headers["Content-Type"] for r in service.requests} == {"application/octet-stream"}
        assert all("Idempotency-Key" not in r.headers for r in service.requests)

    def test_repeats_the_same_bytes_after_a_lost_response(self) -> None:
        service, client = serving({"POST rounds/rnd_1/reports": [lost, refusal(503, "unavailable"), receipt]})
        client.send_reports("rnd_1", *self.reports(5))
        assert len({request.content for request in service.requests}) == 1
        assert len(service.requests) == 3

    def test_names_the_proxy_that_refuses_a_body(self) -> None:
        html = {"Content-Type": "text/html"}
        proxy = httpx.Response(413, headers=html, content=b"<h1>413 Request Entity Too Large</h1>")
        _, client = serving({"POST rounds/rnd_1/reports": proxy})
        with pytest.raises(
            ApiProblem, match=r"the proxy .* accepts bodies below 110 bytes only: .*client_max_body_size"
        ):
            client.send_reports("rnd_1", *self.reports(5))

    def test_sends_bodies_that_common_proxies_accept(self) -> None:
        def accept(request: httpx.Request) -> httpx.Response:
            return ok({"round_id": "rnd_1", "accepted": len(request.content) // 320}, 202)

        service, client = serving({"POST rounds/rnd_1/reports": accept})
        ids, slots, _ = self.reports(10_000)
        client.send_reports("rnd_1", ids, slots, np.zeros((10_000, 300), dtype=np.uint8))
        assert max(len(request.content) for request in service.requests) < 1 << 20
        assert 22 * BATCH_REPORTS < 1 << 20

    def test_names_a_malformed_report_by_its_overall_index(self) -> None:
        bad = refusal(422, "report_malformed", detail="slot out of range", index=3)
        _, client = serving({"POST rounds/rnd_1/reports": [receipt, bad]})
        with pytest.raises(ReportMalformed, match="slot out of range") as raised:
            client.send_reports("rnd_1", *self.reports(BATCH_REPORTS + 10))
        assert raised.value.index == BATCH_REPORTS + 3

    def test_sends_no_request_without_reports(self) -> None:
        service, client = serving({})
        assert client.send_reports("rnd_1", *self.reports(0)) == 0
        assert service.requests == []


class TestJobs:
    def test_submits_one_that_collects(self) -> None:
        service, client = serving({"POST jobs": ok(JOB, 202)})
        job = client.submit_job("ds_1", ShiftedGrid(epsilon=2, clusters=6), target_reports=1000, collect_seconds=60)
        (body,) = service.bodies()
        assert (body["algorithm"]["type"], body["algorithm"]["clusters"]) == ("shifted_grid", 6)
        assert (body["dataset_id"], body["target_reports"]) == ("ds_1", 1000)
        assert "min_reports" not in body  # the service has the default
        assert body["collect_seconds"] == 60
        assert (job.state, job.is_final, job.created_at) == ("collecting", False, MOMENT)
        assert job.progress.open_round_id == "rnd_1"

    def test_accepts_an_algorithm_as_a_mapping(self) -> None:
        service, client = serving({"POST jobs": ok(JOB, 202)})
        client.submit_job("ds_1", {"type": "uniform_grid", "epsilon": 1, "clusters": 3}, target_reports=10)
        client.submit_job("ds_1", UniformGrid(epsilon=1, clusters=3), target_reports=10)
        first, second = service.bodies()
        assert first == second

    @pytest.mark.parametrize(
        ("algorithm", "message"),
        [
            ("private_kmeans", "algorithm must be parameters such as PrivateKmeans"),
            (UniformGrid, "algorithm must be parameters such as PrivateKmeans"),
            ({"type": "kmeans", "epsilon": 1}, "unknown algorithm"),
            ({"type": "uniform_grid", "epsilon": 1, "k": 3}, "UniformGrid: unknown k: use epsilon, clusters, cells"),
            ({"type": "uniform_grid"}, "UniformGrid: a field is missing"),
        ],
    )
    def test_refuses_other_algorithms_with_a_reason(self, algorithm: Any, message: str) -> None:
        service, client = serving({})
        with pytest.raises(InvalidSpec, match=message):
            client.submit_job("ds_1", algorithm, target_reports=10)
        assert service.requests == []

    def test_submits_one_over_earlier_rounds(self) -> None:
        service, client = serving({"POST jobs": ok(JOB, 202)})
        client.submit_job("ds_1", UniformGrid(epsilon=1), round_ids=["rnd_1", "rnd_2"], idempotency_key="mine")
        (body,) = service.bodies()
        assert set(body) == {"dataset_id", "algorithm", "round_ids"}
        client.submit_job(
            "ds_1", UniformGrid(epsilon=1), round_ids=["rnd_1"], allow_insufficient=True, min_reports=5, min_batch=9
        )
        sent = service.bodies()[1]  # the service refuses what it does not read
        assert (sent["allow_insufficient"], sent["min_reports"], sent["min_batch"]) == (True, 5, 9)
        assert service.requests[0].headers["Idempotency-Key"] == "mine"

    def test_repeats_a_lost_submission_under_the_same_key(self) -> None:
        service, client = serving({"POST jobs": [lost, refusal(500, "internal_error"), ok(JOB, 202)]})
        client.submit_job("ds_1", UniformGrid(epsilon=1), target_reports=10)
        assert len({request.headers["Idempotency-Key"] for request in service.requests}) == 1
        assert len({request.content for request in service.requests}) == 1

    def test_waiting_reports_progress_until_the_job_ends(self) -> None:
        states = ["queued", "collecting", "running", "failed"]
        error = {"code": "too_few_reports", "detail": "3 of 100"}
        replies = [ok(JOB | {"state": state, "error": error if state == "failed" else None}) for state in states]
        service, client = serving({"GET jobs/job_1": replies})
        progress: list[str] = []
        job = client.wait_for_job("job_1", timeout_seconds=60, on_progress=lambda job: progress.append(job.state))
        assert progress == states
        assert job.error is not None
        assert (job.error.code, job.error.detail) == ("too_few_reports", "3 of 100")
        assert {request.url.params["wait"] for request in service.requests} == {"1"}

    def test_waiting_uses_long_polls(self) -> None:
        service, client = serving({"GET jobs/job_1": ok(JOB | {"state": "succeeded"})})
        assert client.wait_for_job("job_1").state == "succeeded"
        assert service.requests[0].url.params["wait"] == "30"
        assert service.requests[0].extensions["timeout"]["read"] > 30

    @pytest.mark.parametrize("seconds", [0, 0.1])
    def test_waiting_times_out(self, seconds: float) -> None:
        service, client = serving({"GET jobs/job_1": ok(JOB)})
        with pytest.raises(JobTimeout, match="collecting") as raised:
            client.wait_for_job("job_1", timeout_seconds=seconds)
        assert raised.value.job.id == "job_1"
        assert isinstance(raised.value, TimeoutError)
        assert len(service.requests) <= 8

    def test_lists_gets_and_cancels_them(self) -> None:
        service, client = serving(
            {
                "GET jobs": pages([JOB]),
                "GET jobs/job_1": ok(JOB),
                "POST jobs/job_1/cancel": ok(JOB | {"state": "canceled"}),
            }
        )
        assert [job.id for job in client.jobs("ds_1")] == ["job_1"]
        assert service.requests[0].url.params["dataset_id"] == "ds_1"
        assert not client.get_job("job_1").is_final
        assert client.cancel_job("job_1").is_final


class TestResults:
    def test_has_a_model_that_labels_points(self) -> None:
        _, client = serving({"GET jobs/job_1/result": ok(RESULT)})
        result = client.result("job_1")
        assert result.model.assign([[0, -1], [10, 1]]).tolist() == [0, 1]
        assert (result.epsilon, result.rounds[0].n_reports, result.created_at) == (2.0, 1000, MOMENT)

    @pytest.mark.parametrize(
        ("kind", "media", "content"), [("svg", "svg+xml", "<svg>é</svg>"), ("png", "png", b"\x89PNG\r\n\xff")]
    )
    def test_gets_pictures(self, kind: str, media: str, content: str | bytes) -> None:
        raw = content if isinstance(content, bytes) else content.encode()
        service, client = serving({f"GET jobs/job_1/plot.{kind}": httpx.Response(200, content=raw)})
        assert getattr(client, f"plot_{kind}")("job_1") == content
        assert service.requests[0].headers["Accept"] == f"image/{media}"

    def test_assigns_points_in_parts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sfumato.api.jobs.ASSIGN_NUMBERS", 4)

        def label(request: httpx.Request) -> httpx.Response:
            assert request.headers["Content-Type"] == "application/octet-stream"
            points = np.frombuffer(request.content, dtype="<f8").reshape(-1, 2)
            return ok({"labels": points[:, 0].astype(int).tolist()})

        service, client = serving({"POST jobs/job_1/assign": label})
        assert client.assign("job_1", [[0, 0], [1, 0], [2, 0]]).tolist() == [0, 1, 2]
        assert len(service.requests) == 2
        assert client.assign("job_1", np.zeros((0, 2))).shape == (0,)

    def test_assigns_the_columns_of_a_frame_by_name(self) -> None:
        def label(request: httpx.Request) -> httpx.Response:
            return ok({"labels": np.frombuffer(request.content, dtype="<f8")[::2].astype(int).tolist()})

        _, client = serving({"POST jobs/job_1/assign": label, "GET jobs/job_1/result": ok(RESULT)})
        first, second = (feature.name for feature in client.result("job_1").model.features)
        assert client.assign("job_1", {second: [5.0, 5.0], first: [1.0, 2.0]}).tolist() == [1, 2]
        with pytest.raises(InvalidPoint, match="missing"):
            client.assign("job_1", {second: [5.0], "z": [1.0]})

    def test_does_not_send_invalid_points(self) -> None:
        service, client = serving({})
        for points in ([1.0, 2.0], [[float("nan"), 1.0]]):
            with pytest.raises(InvalidPoint):
                client.assign("job_1", points)
        assert service.requests == []


class TestKeys:
    def test_creates_one_whose_repr_hides_the_secret(self) -> None:
        service, client = serving({"POST keys": ok(KEY | {"secret": "sfk_shown_once"}, 201)})
        key = client.create_key("app", ["device"], dataset_id="ds_1", expires_at=MOMENT)
        expires_at = "2026-03-04T05:06:07.000008+00:00"
        body = {"name": "app", "scopes": ["device"], "dataset_id": "ds_1", "expires_at": expires_at}
        assert service.bodies() == [body]
        assert key.secret == "sfk_shown_once"
        assert "shown_once" not in repr(key)

    def test_revokes_one_with_a_lost_secret_and_creates_another(self) -> None:
        service, client = serving(
            {
                "POST keys": [lost, ok(KEY | {"secret": None}, 201), ok(KEY | {"id": "key_2", "secret": "sfk_2"}, 201)],
                "DELETE keys/key_1": httpx.Response(204),
            }
        )
        assert client.create_key("app", ["device"]).id == "key_2"
        first, again, _, second = service.requests
        assert first.headers["Idempotency-Key"] == again.headers["Idempotency-Key"]
        assert second.headers["Idempotency-Key"] != first.headers["Idempotency-Key"]

    def test_rotates_again_after_a_lost_secret(self) -> None:
        service, client = serving(
            {
                "POST keys/key_1/rotate": [lost, ok(KEY | {"id": "key_2", "secret": None}, 201)],
                "POST keys/key_2/rotate": ok(KEY | {"id": "key_3", "secret": "sfk_3"}, 201),
            }
        )
        key = client.rotate_key("key_1", overlap_seconds=60)
        assert (key.id, key.secret) == ("key_3", "sfk_3")
        assert [body["overlap_seconds"] for body in service.bodies()] == [60, 60, 0]

    def test_lists_and_revokes_them(self) -> None:
        _, client = serving({"GET keys": pages([KEY]), "DELETE keys/key_1": httpx.Response(204)})
        (key,) = client.list_keys()
        assert key.secret is None
        client.revoke_key(key.id)

    def test_refuses_an_expiry_without_time_zone(self) -> None:
        _, client = serving({})
        with pytest.raises(InvalidSpec, match="zone"):
            client.create_key("app", ["device"], expires_at=MOMENT.replace(tzinfo=None))
