"""Rounds over HTTP: opened at a cost, shown to devices, closed."""

import time
from typing import Any

import pytest

from models.db import Database
from models.doorbell import PipeDoorbell, RedisDoorbell
from service.routes import rounds as routes
from sfumato import mechanisms
from sfumato.specs import RoundSpec, round_spec_from_wire, to_wire
from tests.service.api import FEATURES, GRID, Api, refused, unknown

SHIFTED = {"type": "shifted_grid", "n_features": 2, "cells": 4, "shifts": 2}


class TestOpening:
    def test_publishes_the_spec_as_asked_with_thresholds(self, api: Api) -> None:
        made = api.dataset()
        draw = {"lo": "0", "hi": str(2**63)}
        body = {"encoding": SHIFTED, "epsilon": 1.5, "target_reports": 50, "min_reports": 7, "draw": draw}
        answer = api.post(f"/datasets/{made['id']}/rounds", body)
        opened = answer.json()
        assert answer.status_code == 201
        assert answer.headers["location"] == f"/v1/rounds/{opened['id']}"
        spec = round_spec_from_wire(opened["spec"])
        assert to_wire(spec) == opened["spec"]
        assert to_wire(spec.encoding) == SHIFTED
        assert [to_wire(feature) for feature in spec.features] == FEATURES
        assert (spec.draw.lo, spec.draw.hi) == (0, 2**63)
        assert spec.mechanism == mechanisms.design("auto", spec.encoding.n_symbols, 1_500_000_000)
        assert opened["epsilon"] == mechanisms.epsilon_nano(spec.mechanism) / 1e9
        assert (opened["state"], opened["index"], opened["job_id"]) == ("open", 0, None)
        assert (opened["target_reports"], opened["min_reports"], opened["n_received"]) == (50, 7, 0)
        assert opened["collection_id"] == opened["id"]
        assert api.get(f"/rounds/{opened['id']}").json() == opened
        assert api.get(f"/datasets/{made['id']}/rounds").json() == {"items": [opened], "next_cursor": None}

    def test_holds_to_the_datasets_own_minimum(self, api: Api) -> None:
        made = api.dataset(min_reports=30)
        assert api.round(made["id"], min_reports=7)["min_reports"] == 30

    def test_with_an_encoding_for_other_features_is_refused_before_it_costs(self, api: Api) -> None:
        made = api.dataset()
        for encoding in ({"type": "grid", "cells": [4]}, SHIFTED | {"n_features": 1}):
            body = {"encoding": encoding, "epsilon": 1, "target_reports": 10}
            problem = refused(api.post(f"/datasets/{made['id']}/rounds", body), 422, "validation_failed")
            assert problem["errors"][0]["pointer"] == "/encoding"
        assert api.get(f"/datasets/{made['id']}/budget").json()["posted_nano"] == 0

    def test_with_more_counters_than_a_tally_holds_is_refused(self, api: Api) -> None:
        made = api.dataset()
        body = {"encoding": SHIFTED | {"cells": 255, "shifts": 64}, "epsilon": 1, "target_reports": 10}
        problem = refused(api.post(f"/datasets/{made['id']}/rounds", body), 422, "validation_failed")
        assert problem["errors"][0]["pointer"] == "/encoding"

    def test_takes_as_many_counters_as_a_tally_does(self) -> None:
        from clustering import plan

        assert routes.MAX_COUNTERS == plan.MAX_COUNTERS

    def test_with_a_mechanism_that_cannot_carry_the_symbols_is_refused(self, api: Api) -> None:
        made = api.dataset()
        body = {"encoding": GRID | {"cells": [100, 100]}, "mechanism": "ss", "epsilon": 1, "target_reports": 10}
        refused(api.post(f"/datasets/{made['id']}/rounds", body), 422, "validation_failed")
        assert api.get(f"/datasets/{made['id']}/budget").json()["posted_nano"] == 0

    def test_of_more_than_a_dataset_may_ask_at_once_is_refused(self, api: Api) -> None:
        made = api.dataset(epsilon=32)
        opened = [api.round(made["id"]) for _ in range(16)]
        body = {"encoding": GRID, "epsilon": 1, "target_reports": 10}
        refused(api.post(f"/datasets/{made['id']}/rounds", body), 422, "validation_failed")
        api.made(f"/rounds/{opened[0]['id']}/close", None)
        assert api.round(made["id"])["state"] == "open"


class TestWhatADeviceIsShown:
    def test_is_the_open_rounds_in_the_very_same_bytes_for_everyone(self, api: Api) -> None:
        made = api.dataset()
        opened = [api.round(made["id"]) for _ in range(2)]
        path = f"/datasets/{made['id']}/round"
        seen = api.key("device").get(path)
        shown = seen.json()["rounds"]
        assert [each["id"] for each in shown] == [each["id"] for each in opened]
        for each, one in zip(shown, opened, strict=True):
            assert each == {
                name: one[name] for name in ("id", "collection_id", "index", "epsilon", "closes_at", "spec")
            }
            assert isinstance(round_spec_from_wire(each["spec"]), RoundSpec)
        assert api.report(opened[0]["id"]).status_code == 202
        again = api.key("device", dataset_id=made["id"]).get(path)
        assert (again.content, again.headers["etag"]) == (seen.content, seen.headers["etag"])
        assert "public" in seen.headers["cache-control"]
        assert "retry-after" not in seen.headers

    def test_is_not_sent_twice_to_who_has_it(self, api: Api) -> None:
        made = api.dataset()
        opened = api.round(made["id"])
        path = f"/datasets/{made['id']}/round"
        tag = api.get(path).headers["etag"]
        for named in (tag, f"W/{tag}", f'"x", {tag}', "*"):
            answer = api.get(path, headers={"If-None-Match": named})
            assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", tag)
        assert api.get(path, headers={"If-None-Match": '"x"'}).status_code == 200
        api.made(f"/rounds/{opened['id']}/close", None)
        changed = api.get(path, headers={"If-None-Match": tag})
        assert (changed.status_code, changed.json()) == (200, {"rounds": []})

    def test_says_when_to_ask_again_where_there_is_none(self, api: Api) -> None:
        made = api.dataset()
        answer = api.get(f"/datasets/{made['id']}/round")
        assert answer.json() == {"rounds": []}
        assert int(answer.headers["retry-after"]) > 0

    def test_ends_with_the_rounds_time(self, api: Api) -> None:
        made = api.dataset()
        opened = api.round(made["id"], collect_seconds=1)

        time.sleep(1.05)
        assert api.get(f"/datasets/{made['id']}/round").json() == {"rounds": []}
        refused(api.report(opened["id"]), 409, "round_closed")


class TestClosing:
    def test_takes_no_more_reports_and_happens_once(self, api: Api) -> None:
        opened = api.round(api.dataset()["id"])
        assert api.report(opened["id"]).status_code == 202
        closed = api.made(f"/rounds/{opened['id']}/close", {})
        assert closed["state"] == "closed"
        assert closed["closed_at"] is not None
        refused(api.report(opened["id"]), 409, "round_closed")
        again = api.made(f"/rounds/{opened['id']}/close", None)
        assert again == closed
        assert again["n_received"] == 1

    def test_rings_for_a_worker(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        rung: list[str] = []
        for kind in (PipeDoorbell, RedisDoorbell):
            monkeypatch.setattr(kind, "ring", lambda _self, job_id: rung.append(job_id))
        opened = api.round(api.dataset()["id"])
        api.made(f"/rounds/{opened['id']}/close", None)
        assert rung == [opened["id"]]

    def test_of_an_unknown_round_is_not_found(self, api: Api) -> None:
        refused(api.post(f"/rounds/{unknown('rnd')}/close"), 404, "not_found")


class TestPages:
    def test_of_rounds_show_every_one(self, api: Api, database: Database) -> None:
        made = api.dataset()
        opened = [api.round(made["id"])["id"] for _ in range(5)]
        first: dict[str, Any] = api.get(f"/datasets/{made['id']}/rounds", params={"limit": 3}).json()
        second = api.get(f"/datasets/{made['id']}/rounds", params={"cursor": first["next_cursor"]}).json()
        assert [each["id"] for each in first["items"] + second["items"]] == opened
