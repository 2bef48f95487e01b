"""The analyst's client: what it asks, how it reads the answers, and what a lost answer does not do twice."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from sfumato._datasets import BATCH_REPORTS
from sfumato.client import Client
from sfumato.errors import ApiProblem, InvalidPoint, InvalidSpec, JobTimeout, ReportMalformed
from sfumato.ledger import GENESIS, Balance, Head
from sfumato.specs import Draw, GridEncoding, ShiftedGrid, UniformGrid
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
    serving,
)
from tests.sfumato.scripted import refusal, round_spec
from tests.sfumato.test_ledger import BALANCE, CHAIN, HEAD

pytestmark = pytest.mark.usefixtures("three_attempts")


class TestDatasets:
    def test_one_is_created_as_told(self) -> None:
        service, client = serving({"POST datasets": ok(DATASET, 201)})
        dataset = client.create_dataset("world", FEATURES, epsilon=4.5, min_reports=7)
        assert service.bodies() == [
            {
                "name": "world",
                "trust": "local",
                "features": DATASET["features"],
                "epsilon": 4.5,
                "min_reports": 7,
                "keep_reports": False,
            }
        ]
        assert (dataset.id, dataset.features, dataset.created_at) == ("ds_1", FEATURES, MOMENT)

    def test_all_are_listed_page_after_page(self) -> None:
        parts = [[DATASET | {"id": f"ds_{page}{i}"} for i in range(3)] for page in range(3)]
        service, client = serving({"GET datasets": pages(*parts)})
        listed = client.datasets()
        assert isinstance(listed, Iterator)
        assert service.requests == []
        assert [dataset.id for dataset in listed] == [d["id"] for part in parts for d in part]
        assert [request.url.params.get("cursor") for request in service.requests] == [None, "1", "2"]

    @pytest.mark.parametrize(
        "page", [{"items": []}, {"items": [], "next_cursor": None}, {"items": [], "next_cursor": ""}]
    )
    def test_an_empty_list_ends(self, page: dict[str, Any]) -> None:
        _, client = serving({"GET datasets": ok(page)})
        assert list(client.datasets()) == []

    @pytest.mark.parametrize("page", [{}, {"items": {}}, {"items": [], "next_cursor": 5}])
    def test_what_is_no_page_is_refused(self, page: dict[str, Any]) -> None:
        _, client = serving({"GET datasets": ok(page)})
        with pytest.raises(ApiProblem, match="no page"):
            list(client.datasets())

    def test_a_service_that_turns_in_circles_is_not_followed_for_ever(self) -> None:
        _, client = serving({"GET datasets": ok({"items": [DATASET], "next_cursor": "same"})})
        assert len(list(client.datasets())) == 2

    def test_one_is_read_changed_and_deleted(self) -> None:
        service, client = serving(
            {
                "GET datasets/ds_1": ok(DATASET),
                "PATCH datasets/ds_1": ok(DATASET | {"name": "new"}),
                "DELETE datasets/ds_1": httpx.Response(204),
            }
        )
        assert client.get_dataset("ds_1").name == "world"
        assert client.update_dataset("ds_1", name="new", keep_reports=False).name == "new"
        assert json.loads(service.requests[1].content) == {"name": "new", "keep_reports": False}
        client.delete_dataset("ds_1")
        assert [request.method for request in service.requests] == ["GET", "PATCH", "DELETE"]

    def test_fields_of_a_newer_service_are_passed_over(self) -> None:
        _, client = serving({"GET datasets/ds_1": ok(DATASET | {"colour": "red"})})
        assert client.get_dataset("ds_1").id == "ds_1"

    @pytest.mark.parametrize("answer", [[], {}, {"id": "ds_1"}, DATASET | {"created_at": 5}, DATASET | {"features": 1}])
    def test_an_answer_that_is_no_dataset_is_refused(self, answer: Any) -> None:
        _, client = serving({"GET datasets/ds_1": ok(answer)})
        with pytest.raises((InvalidSpec, ApiProblem)):
            client.get_dataset("ds_1")

    def test_a_problem_is_raised_with_all_it_says(self) -> None:
        problem = {"code": "budget_exhausted", "title": "t", "status": 409, "requested": 2.0, "entries": ["led_1"]}
        _, client = serving({"POST datasets/ds_1/grants": httpx.Response(409, json=problem)})
        with pytest.raises(ApiProblem) as raised:
            client.grant("ds_1", 2)
        assert raised.value.code == "budget_exhausted"
        assert raised.value.problem["entries"] == ["led_1"]

    def test_a_problem_of_several_places_names_them(self) -> None:
        errors = [
            {"pointer": "", "message": "column y is missing"},
            {"pointer": "/epsilon", "message": "is too small"},
            {"pointer": "", "message": "it is wrong"},  # what the detail says already
            "no place",
        ]
        problem = {"code": "validation_failed", "detail": "it is wrong", "errors": errors}
        _, client = serving({"GET datasets/ds_1": httpx.Response(422, json=problem)})
        with pytest.raises(ApiProblem) as raised:
            client.get_dataset("ds_1")
        assert str(raised.value) == "422 validation_failed: it is wrong; column y is missing; /epsilon: is too small"

    @pytest.mark.parametrize("errors", [None, "text", 5, [[]], [{}], [{"message": None}]])
    def test_a_problem_whose_errors_are_no_list_of_places_is_raised_all_the_same(self, errors: Any) -> None:
        problem = {"code": "validation_failed", "detail": "it is wrong", "errors": errors}
        _, client = serving({"GET datasets/ds_1": httpx.Response(422, json=problem)})
        with pytest.raises(ApiProblem, match="it is wrong"):
            client.get_dataset("ds_1")


def ledger_service(entries: list[Any], head: Head, balance: Balance, **changes: Any) -> Client:
    budget = {
        "dataset_id": "ds_1",
        **balance._asdict(),
        "remaining_nano": balance.granted_nano - balance.reserved_nano - balance.posted_nano,
        "ledger_seq": head.seq,
        "ledger_hash": head.hash,
    } | changes
    wire = [entry_wire(entry) for entry in entries]
    _, client = serving(
        {"GET datasets/ds_1/budget": ok(budget), "GET datasets/ds_1/ledger": pages(wire[:2], wire[2:5], wire[5:])}
    )
    return client


class TestLedger:
    def test_entries_and_budget_are_read_in_nano_epsilon(self) -> None:
        client = ledger_service(CHAIN, HEAD, BALANCE)
        assert list(client.ledger("ds_1")) == CHAIN
        budget = client.budget("ds_1")
        assert (budget.balance, budget.head, budget.remaining_nano) == (BALANCE, HEAD, 5_000_000_001)

    def test_a_sound_ledger_is_verified(self) -> None:
        found = ledger_service(CHAIN, HEAD, BALANCE).verify_ledger("ds_1")
        assert found.ok
        assert found.head == HEAD

    def test_entries_made_while_it_is_read_do_no_harm(self) -> None:
        earlier = Head(4, CHAIN[3].hash)
        balance = Balance(CHAIN[3].granted_nano, CHAIN[3].reserved_nano, CHAIN[3].posted_nano)
        assert ledger_service(CHAIN, earlier, balance).verify_ledger("ds_1").head == HEAD

    def test_edits_removals_reordering_and_a_cut_tail_show(self) -> None:
        edited = list(CHAIN)
        edited[2] = CHAIN[3]
        for entries in (CHAIN[:-1], CHAIN[1:], CHAIN[::-1], edited, []):
            assert not ledger_service(entries, HEAD, BALANCE).verify_ledger("ds_1").ok

    def test_a_head_noted_earlier_must_be_on_the_way(self) -> None:
        client = ledger_service(CHAIN, HEAD, BALANCE)
        assert client.verify_ledger("ds_1", noted=[GENESIS, Head(2, CHAIN[1].hash)]).ok
        assert client.verify_ledger("ds_1", noted=[Head(2, "f" * 64)]).broken_at == 2
        assert client.verify_ledger("ds_1", noted=[Head(9, "f" * 64)]).reason == "the last entries are missing"

    def test_a_budget_that_says_otherwise_shows(self) -> None:
        client = ledger_service(CHAIN, HEAD, Balance(8 * 10**9 + 1, 0, 10**9))
        assert client.verify_ledger("ds_1").reason == "the budget is not the ledger's balance"

    def test_a_service_of_before_there_was_a_delta_is_understood(self) -> None:
        wire = [{name: value for name, value in entry_wire(e).items() if not name.endswith("_atto")} for e in CHAIN]
        budget = {"dataset_id": "ds_1", "ledger_seq": HEAD.seq, "ledger_hash": HEAD.hash, "remaining_nano": 5}
        budget |= dict(zip(("granted_nano", "reserved_nano", "posted_nano"), BALANCE, strict=False))
        _, client = serving({"GET datasets/ds_1/budget": ok(budget), "GET datasets/ds_1/ledger": pages(wire)})
        assert client.verify_ledger("ds_1").ok

    def test_delta_is_read_to_the_atto(self) -> None:
        told = {name: 5 * 10**12 + 1 for name in Balance._fields if name.endswith("_atto")}
        client = ledger_service(CHAIN, HEAD, BALANCE._replace(**told), remaining_delta_atto=7)
        assert client.budget("ds_1").balance == BALANCE._replace(**told)
        assert client.budget("ds_1").remaining_delta_atto == 7
        assert client.verify_ledger("ds_1").reason == "the budget is not the ledger's balance"

    def test_a_grant_of_delta_says_so_and_one_without_says_nothing_of_it(self) -> None:
        service, client = serving({"POST datasets/ds_1/grants": ok(entry_wire(CHAIN[0]), 201)})
        client.grant("ds_1", 0, delta=1e-6)
        client.grant("ds_1", 2)
        assert service.bodies() == [{"epsilon": 0, "delta": 1e-6}, {"epsilon": 2}]

    @pytest.mark.parametrize(
        "change",
        [{"epsilon_nano": 1.5}, {"seq": "1"}, {"at": "yesterday"}, {"granted_nano": None}, {"delta_atto": 0.5}],
    )
    def test_an_entry_of_wrong_types_is_refused(self, change: dict[str, Any]) -> None:
        _, client = serving({"GET datasets/ds_1/ledger": pages([entry_wire(CHAIN[0]) | change])})
        with pytest.raises(InvalidSpec, match="no ledger entry"):
            list(client.ledger("ds_1"))

    def test_a_grant_whose_answer_was_lost_is_asked_for_under_the_same_key(self) -> None:
        service, client = serving({"POST datasets/ds_1/grants": [lost, lost, ok(entry_wire(CHAIN[0]), 201)]})
        assert client.grant("ds_1", 8) == CHAIN[0]
        keys = {request.headers["Idempotency-Key"] for request in service.requests}
        assert len(service.requests) == 3
        assert len(keys) == 1
        client.grant("ds_1", 8)
        assert service.requests[-1].headers["Idempotency-Key"] not in keys


class TestRounds:
    def test_one_is_opened_as_told(self) -> None:
        service, client = serving({"POST datasets/ds_1/rounds": ok(ROUND, 201)})
        opened = client.open_round(
            "ds_1", GridEncoding((4, 4)), epsilon=1, target_reports=1000, draw=Draw(0, 5), mechanism="ss"
        )
        assert service.bodies() == [
            {
                "encoding": {"type": "grid", "cells": [4, 4]},
                "mechanism": "ss",
                "epsilon": 1,
                "target_reports": 1000,
                "min_reports": 0,
                "collect_seconds": 604800,
                "draw": {"lo": "0", "hi": "5"},
            }
        ]
        assert opened.spec == round_spec()
        assert (opened.state, opened.n_reports, opened.closes_at, opened.closed_at) == ("open", None, MOMENT, None)

    def test_they_are_read_listed_and_closed(self) -> None:
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
        return ids, np.arange(n) % 7, np.full((n, 3), 9, dtype=np.uint8)

    def test_they_travel_packed_in_batches_and_all_arrive_in_order(self) -> None:
        n = BATCH_REPORTS + 10
        service, client = serving({"POST rounds/rnd_1/reports": ok({"accepted": 1}, 202)})
        seen: list[int] = []
        ids, slots, values = self.reports(n)
        assert client.send_reports("rnd_1", ids, slots, values, on_progress=seen.append) == n
        assert seen == [BATCH_REPORTS, n]
        packed = np.frombuffer(b"".join(r.content for r in service.requests), np.uint8).reshape(n, 23)
        assert (packed[:, :16] == ids).all()
        assert (packed[:, 16:20].copy().view("<u4")[:, 0] == slots).all()
        assert (packed[:, 20:] == 9).all()
        assert {r.headers["Content-Type"] for r in service.requests} == {"application/octet-stream"}
        assert all("Idempotency-Key" not in r.headers for r in service.requests)

    def test_a_lost_answer_is_asked_for_again_with_the_same_bytes(self) -> None:
        service, client = serving({"POST rounds/rnd_1/reports": [lost, refusal(503, "unavailable"), ok({}, 202)]})
        client.send_reports("rnd_1", *self.reports(5))
        assert len({request.content for request in service.requests}) == 1
        assert len(service.requests) == 3

    def test_a_bad_one_is_named_by_its_place_among_all(self) -> None:
        bad = httpx.Response(422, json={"code": "report_malformed", "detail": "slot out of range", "index": 3})
        _, client = serving({"POST rounds/rnd_1/reports": [ok({}, 202), bad]})
        with pytest.raises(ReportMalformed, match="slot out of range") as raised:
            client.send_reports("rnd_1", *self.reports(BATCH_REPORTS + 10))
        assert raised.value.index == BATCH_REPORTS + 3

    def test_another_refusal_is_a_problem(self) -> None:
        _, client = serving({"POST rounds/rnd_1/reports": refusal(409, "round_closed")})
        with pytest.raises(ApiProblem, match="round_closed"):
            client.send_reports("rnd_1", *self.reports(3))

    def test_none_are_no_request(self) -> None:
        service, client = serving({})
        assert client.send_reports("rnd_1", *self.reports(0)) == 0
        assert service.requests == []


class TestJobs:
    def test_one_that_collects_says_how_much(self) -> None:
        service, client = serving({"POST jobs": ok(JOB, 202)})
        job = client.submit_job("ds_1", ShiftedGrid(epsilon=2, clusters=6), target_reports=1000, collect_seconds=60)
        (body,) = service.bodies()
        assert body["algorithm"]["type"] == "shifted_grid"
        assert body["algorithm"]["clusters"] == 6
        assert {k: v for k, v in body.items() if k != "algorithm"} == {
            "dataset_id": "ds_1",
            "target_reports": 1000,
            "min_reports": 0,
            "collect_seconds": 60,
        }
        assert (job.state, job.is_final, job.progress.open_round_id, job.created_at) == (
            "collecting",
            False,
            "rnd_1",
            MOMENT,
        )

    def test_one_over_earlier_rounds_names_them_and_nothing_to_collect(self) -> None:
        service, client = serving({"POST jobs": ok(JOB, 202)})
        client.submit_job("ds_1", UniformGrid(epsilon=1), round_ids=["rnd_1", "rnd_2"], idempotency_key="mine")
        (body,) = service.bodies()
        assert set(body) == {"dataset_id", "algorithm", "round_ids"}
        assert service.requests[0].headers["Idempotency-Key"] == "mine"

    def test_a_submission_whose_answer_was_lost_keeps_its_idempotency_key(self) -> None:
        service, client = serving({"POST jobs": [lost, refusal(500, "internal_error"), ok(JOB, 202)]})
        client.submit_job("ds_1", UniformGrid(epsilon=1), target_reports=10)
        assert len({request.headers["Idempotency-Key"] for request in service.requests}) == 1
        assert len({request.content for request in service.requests}) == 1

    def test_waiting_ends_with_the_job_and_tells_how_it_goes(self) -> None:
        states = ["queued", "collecting", "running", "failed"]
        error = {"code": "too_few_reports", "detail": "3 of 100"}
        replies = [ok(JOB | {"state": state, "error": error if state == "failed" else None}) for state in states]
        service, client = serving({"GET jobs/job_1": replies})
        seen: list[str] = []
        job = client.wait_for_job("job_1", timeout_seconds=60, on_progress=lambda job: seen.append(job.state))
        assert seen == states
        assert job.error is not None
        assert (job.error.code, job.error.detail) == ("too_few_reports", "3 of 100")
        assert {request.url.params["wait"] for request in service.requests} == {"1"}

    def test_waiting_asks_the_service_to_wait(self) -> None:
        service, client = serving({"GET jobs/job_1": ok(JOB | {"state": "succeeded"})})
        assert client.wait_for_job("job_1").state == "succeeded"
        assert service.requests[0].url.params["wait"] == "30"
        assert service.requests[0].extensions["timeout"]["read"] > 30

    @pytest.mark.parametrize("seconds", [0, 0.3])
    def test_waiting_ends_in_time(self, seconds: float) -> None:
        service, client = serving({"GET jobs/job_1": ok(JOB)})
        with pytest.raises(JobTimeout, match="collecting") as raised:
            client.wait_for_job("job_1", timeout_seconds=seconds)
        assert raised.value.job.id == "job_1"
        assert isinstance(raised.value, TimeoutError)
        assert len(service.requests) <= 8

    def test_they_are_listed_read_and_cancelled(self) -> None:
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
    def test_one_holds_a_model_that_labels_points_here(self) -> None:
        _, client = serving({"GET jobs/job_1/result": ok(RESULT)})
        result = client.result("job_1")
        assert result.model.assign([[0, -1], [10, 1]]).tolist() == [0, 1]
        assert (result.epsilon, result.rounds[0].n_reports, result.created_at) == (2.0, 1000, MOMENT)

    def test_one_that_is_not_there_yet_is_a_problem(self) -> None:
        _, client = serving({"GET jobs/job_1/result": refusal(409, "job_not_finished")})
        with pytest.raises(ApiProblem, match="job_not_finished"):
            client.result("job_1")

    def test_the_picture_is_text(self) -> None:
        service, client = serving({"GET jobs/job_1/plot.svg": httpx.Response(200, content="<svg>é</svg>".encode())})
        assert client.plot_svg("job_1") == "<svg>é</svg>"
        assert service.requests[0].headers["Accept"] == "image/svg+xml"

    def test_the_picture_is_bytes(self) -> None:
        service, client = serving({"GET jobs/job_1/plot.png": httpx.Response(200, content=b"\x89PNG\r\n\xff")})
        assert client.plot_png("job_1") == b"\x89PNG\r\n\xff"
        assert service.requests[0].headers["Accept"] == "image/png"

    def test_points_are_labelled_by_the_service_in_parts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sfumato._jobs.ASSIGN_NUMBERS", 4)

        def label(request: httpx.Request) -> httpx.Response:
            return ok({"labels": [int(point[0]) for point in json.loads(request.content)["points"]]})

        service, client = serving({"POST jobs/job_1/assign": label})
        assert client.assign("job_1", [[0, 0], [1, 0], [2, 0]]).tolist() == [0, 1, 2]
        assert len(service.requests) == 2
        assert client.assign("job_1", np.zeros((0, 2))).shape == (0,)

    def test_points_that_are_none_are_not_sent(self) -> None:
        service, client = serving({})
        for points in ([1.0, 2.0], [[float("nan"), 1.0]]):
            with pytest.raises(InvalidPoint):
                client.assign("job_1", points)
        assert service.requests == []


class TestKeys:
    def test_one_is_made_with_a_secret_that_does_not_print(self) -> None:
        service, client = serving({"POST keys": ok(KEY | {"secret": "sfk_shown_once"}, 201)})
        key = client.create_key("app", ["device"], dataset_id="ds_1", expires_at=MOMENT)
        assert service.bodies() == [
            {
                "name": "app",
                "scopes": ["device"],
                "dataset_id": "ds_1",
                "expires_at": "2026-03-04T05:06:07.000008+00:00",
            }
        ]
        assert key.secret == "sfk_shown_once"
        assert "shown_once" not in repr(key)

    def test_one_whose_secret_was_lost_is_revoked_and_made_again(self) -> None:
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

    def test_one_is_replaced_by_another(self) -> None:
        service, client = serving({"POST keys/key_1/rotate": ok(KEY | {"id": "key_2", "secret": "sfk_2"}, 201)})
        assert client.rotate_key("key_1", overlap_seconds=60).secret == "sfk_2"
        assert service.bodies() == [{"overlap_seconds": 60}]

    def test_one_whose_new_secret_was_lost_is_replaced_once_more(self) -> None:
        service, client = serving(
            {
                "POST keys/key_1/rotate": [lost, ok(KEY | {"id": "key_2", "secret": None}, 201)],
                "POST keys/key_2/rotate": ok(KEY | {"id": "key_3", "secret": "sfk_3"}, 201),
            }
        )
        assert client.rotate_key("key_1").id == "key_3"
        assert service.bodies()[-1] == {"overlap_seconds": 0}

    def test_they_are_listed_and_revoked(self) -> None:
        _, client = serving({"GET keys": pages([KEY]), "DELETE keys/key_1": httpx.Response(204)})
        (key,) = client.list_keys()
        assert key.secret is None
        client.revoke_key(key.id)

    def test_an_end_without_a_zone_is_refused(self) -> None:
        _, client = serving({})
        with pytest.raises(InvalidSpec, match="zone"):
            client.create_key("app", ["device"], expires_at=MOMENT.replace(tzinfo=None))
