"""Rounds over HTTP: opening at a cost, listing for devices, closing."""

import time

import pytest

from clustering.rounds import tally
from runtime.job_signal import PipeJobSignal, RedisJobSignal
from service.api.routes import rounds
from sfumato import mechanisms
from sfumato.specs import RoundSpec, round_spec_from_wire, to_wire
from tests.service.api import FEATURES, GRID, SQLITE_ONLY, Api, refused, unknown

SHIFTED = {"type": "shifted_grid", "n_features": 2, "cells": 4, "shifts": 2}


class TestOpening:
    def test_publishes_the_spec_with_thresholds(self, api: Api) -> None:
        dataset = api.dataset(min_reports=30)
        participation = {"lo": "0", "hi": str(2**63)}
        body = {"encoding": SHIFTED, "epsilon": 1.5, "target_reports": 50, "participation": participation}
        response = api.post(f"/datasets/{dataset['id']}/rounds", body | {"min_reports": 40})
        opened = response.json()
        assert response.status_code == 201
        assert response.headers["location"] == f"/v1/rounds/{opened['id']}"
        spec = round_spec_from_wire(opened["spec"])
        assert to_wire(spec) == opened["spec"]
        assert to_wire(spec.encoding) == SHIFTED
        assert [to_wire(feature) for feature in spec.features] == FEATURES
        assert (spec.participation.lo, spec.participation.hi) == (0, 2**63)
        n_symbols = spec.encoding.n_symbols + 1  # one for records outside
        assert spec.mechanism == mechanisms.design("auto", n_symbols, 1_500_000_000)
        assert opened["epsilon"] == spec.mechanism.epsilon_nano() / 1e9
        assert (opened["state"], opened["index"], opened["job_id"]) == ("open", 0, None)
        assert (opened["target_reports"], opened["min_reports"], opened["n_received"]) == (50, 40, 0)
        assert opened["collection_id"] == opened["id"]
        assert api.get(f"/rounds/{opened['id']}").json() == opened
        assert api.get(f"/datasets/{dataset['id']}/rounds").json() == {"items": [opened], "next_cursor": None}
        assert api.round(dataset["id"], min_reports=7)["min_reports"] == 30  # the minimum of the dataset

    @SQLITE_ONLY
    def test_of_an_impossible_round_is_refused_at_no_cost(self, api: Api) -> None:
        assert rounds.MAX_COUNTERS == tally.MAX_COUNTERS
        dataset_id = api.dataset()["id"]
        for change, pointer in (
            ({"encoding": {"type": "grid", "cells": [4]}}, "/encoding"),  # other features
            ({"encoding": SHIFTED | {"n_features": 1}}, "/encoding"),
            ({"encoding": SHIFTED | {"cells": 255, "shifts": 64}}, "/encoding"),  # more counters than a tally has
            ({"encoding": GRID | {"cells": [100, 100]}, "mechanism": "ss"}, None),  # too many symbols
            ({"encoding": GRID | {"cells": [65, 65]}, "mechanism": "olh"}, None),
        ):
            body = {"epsilon": 1, "target_reports": 10} | change
            problem = refused(api.post(f"/datasets/{dataset_id}/rounds", body), 422, "validation_failed")
            assert pointer in (None, problem.get("errors", [{"pointer": None}])[0]["pointer"])
        assert api.budget(dataset_id)["charged_nano"] == 0

    @SQLITE_ONLY
    def test_of_too_many_coefficients_is_refused(self, api: Api) -> None:
        path = f"/datasets/{api.dataset()['id']}/rounds"
        shifted = {"type": "shifted_grid", "n_features": 2, "cells": 510, "shifts": 8}
        body = {"encoding": shifted, "mechanism": "hr", "epsilon": 1, "target_reports": 10}
        problem = refused(api.post(path, body), 422, "validation_failed")
        assert problem["errors"][0]["pointer"] == "/encoding"
        assert api.made(path, body | {"mechanism": "grr"})["state"] == "open"

    def test_of_more_rounds_than_the_limit_is_refused(self, api: Api) -> None:
        dataset_id = api.dataset(epsilon=32)["id"]
        opened = [api.round(dataset_id)["id"] for _ in range(16)]
        assert [each["id"] for each in api.list_all(f"/datasets/{dataset_id}/rounds", limit=6)] == opened
        body = {"encoding": GRID, "epsilon": 1, "target_reports": 10}
        refused(api.post(f"/datasets/{dataset_id}/rounds", body), 422, "validation_failed")
        api.made(f"/rounds/{opened[0]}/close?allow_empty=true", None)
        assert api.round(dataset_id)["state"] == "open"


class TestListForDevices:
    def test_has_identical_bytes_for_every_device(self, api: Api) -> None:
        dataset = api.dataset()
        opened = [api.round(dataset["id"]) for _ in range(2)]
        path = f"/datasets/{dataset['id']}/round"
        response = api.key("device").get(path)
        names = ("id", "collection_id", "index", "epsilon", "closes_at", "keep_reports", "spec")
        assert response.json()["rounds"] == [{name: each[name] for name in names} for each in opened]
        assert isinstance(round_spec_from_wire(opened[0]["spec"]), RoundSpec)
        assert api.report(opened[0]["id"]).status_code == 202
        again = api.key("device", dataset_id=dataset["id"]).get(path)
        assert (again.content, again.headers["etag"]) == (response.content, response.headers["etag"])
        assert "public" in response.headers["cache-control"]
        assert "retry-after" not in response.headers

    @SQLITE_ONLY
    def test_is_not_sent_again_to_a_device_with_its_etag(self, api: Api) -> None:
        opened = api.round(api.dataset()["id"])
        path = f"/datasets/{opened['dataset_id']}/round"
        tag = api.get(path).headers["etag"]
        for named in (tag, f"W/{tag}", f'"x", {tag}', "*"):
            response = api.get(path, headers={"If-None-Match": named})
            assert (response.status_code, response.content, response.headers["etag"]) == (304, b"", tag)
        assert api.get(path, headers={"If-None-Match": '"x"'}).status_code == 200
        api.made(f"/rounds/{opened['id']}/close?allow_empty=true", None)
        changed = api.get(path, headers={"If-None-Match": tag})
        assert (changed.status_code, changed.json()) == (200, {"rounds": []})
        assert int(changed.headers["retry-after"]) > 0

    def test_omits_a_round_whose_time_is_over(self, api: Api) -> None:
        opened = api.round(api.dataset()["id"], collect_seconds=1)
        time.sleep(1.05)
        assert api.get(f"/datasets/{opened['dataset_id']}/round").json() == {"rounds": []}
        refused(api.report(opened["id"]), 409, "round_closed")


class TestClosing:
    @SQLITE_ONLY
    def test_an_empty_round_says_that_it_gives_no_result_before_it_is_done(self, api: Api) -> None:
        opened = api.round(api.dataset()["id"])
        path = f"/rounds/{opened['id']}/close"
        problem = refused(api.post(path), 409, "too_few_reports")
        assert "has no reports: closing it gives no result and releases no epsilon" in problem["detail"]
        assert api.get(f"/rounds/{opened['id']}").json() == opened
        for _ in range(2):
            assert api.made(f"{path}?allow_empty=true", None)["state"] == "closed"

    def test_refuses_further_reports_and_happens_once(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        job_ids: list[str] = []
        for kind in (PipeJobSignal, RedisJobSignal):
            monkeypatch.setattr(kind, "notify", lambda _self, job_id: job_ids.append(job_id))
        opened = api.round(api.dataset()["id"])
        assert api.report(opened["id"]).status_code == 202
        closed = api.made(f"/rounds/{opened['id']}/close", None)
        assert job_ids == [opened["id"]]
        assert closed["state"] == "closed"
        assert closed["closed_at"] is not None
        refused(api.report(opened["id"]), 409, "round_closed")
        again = api.made(f"/rounds/{opened['id']}/close", None)
        assert again == closed
        assert again["n_received"] == 1
        refused(api.post(f"/rounds/{unknown('rnd')}/close"), 404, "not_found")
