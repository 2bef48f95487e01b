"""Every refusal is a problem document, says where, and repeats nothing."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError, InterfaceError, OperationalError

from models import errors as refusals
from models.db import Database
from models.settings import Settings
from service import problems
from service.app import create_app
from service.problems import from_exception
from sfumato.errors import InvalidEpsilon, InvalidPoint, ReportMalformed
from tests.service.api import FEATURES, GRID, UNIFORM, Api, refused, unknown
from tests.service.inprocess import InProcess

SECRET = "Zw9-private-4711"


class TestTheTree:
    def test_codes_differ_and_statuses_are_errors(self) -> None:
        codes = [problem.code for problem in problems.ALL_PROBLEMS]
        assert len(set(codes)) == len(codes)
        assert all(400 <= problem.status < 600 for problem in problems.ALL_PROBLEMS)

    def test_the_head_of_the_file_draws_it(self) -> None:
        drawn = re.findall(r"[├└]── (\w+) +(\d{3}) (\w+)", str(problems.__doc__))
        assert {(name, int(status), code) for name, status, code in drawn} == {
            (problem.__name__, problem.status, problem.code) for problem in problems.ALL_PROBLEMS
        }

    @pytest.mark.parametrize(
        ("error", "code"),
        [
            (refusals.NotFound("dataset"), "not_found"),
            (refusals.Conflict("x"), "conflict"),
            (refusals.RoundClosed("x"), "round_closed"),
            (refusals.TooFewReports(n_reports=1, min_reports=2), "too_few_reports"),
            (refusals.JobNotFinished("x"), "job_not_finished"),
            (refusals.IdempotencyKeyReused("x"), "idempotency_key_reused"),
            (refusals.LimitExceeded("x"), "validation_failed"),
            (InvalidEpsilon("x"), "validation_failed"),
            (InvalidPoint("x"), "validation_failed"),
            (ReportMalformed(3, "x"), "report_malformed"),
            (OperationalError("s", {}, Exception()), "unavailable"),
            (InterfaceError("s", {}, Exception()), "unavailable"),
            (IntegrityError("s", {}, Exception()), "internal_error"),
            (KeyError("x"), "internal_error"),
        ],
    )
    def test_an_error_of_the_domain_has_its_code(self, error: Exception, code: str) -> None:
        assert from_exception(error).code == code

    def test_every_refusal_of_the_models_but_the_workers_own_has_a_problem(self) -> None:
        codes = {kind.code for kind in refusals.Refused.__subclasses__() if kind is not refusals.StaleFence}
        assert codes <= {problem.code for problem in problems.ALL_PROBLEMS}


class TestTheRouter:
    def test_an_unknown_path_is_not_found(self, api: Api) -> None:
        refused(api.get("/nothing"), 404, "not_found")
        refused(api.http.get("/nothing"), 404, "not_found")

    def test_a_trailing_slash_is_another_path(self, api: Api) -> None:
        refused(api.get("/datasets/"), 404, "not_found")

    @pytest.mark.parametrize("path", ["/datasets", f"/rounds/{unknown('rnd')}/reports"])
    def test_an_unknown_method_says_which_are_known(self, api: Api, path: str) -> None:
        answer = api.request("PUT", path, json={})
        refused(answer, 405, "method_not_allowed")
        known = {"/datasets": "GET, POST"}.get(path, "POST")
        assert answer.headers["allow"] == known


def bodies() -> list[tuple[str, str, Any, str]]:
    """(method, path, body, pointer that must be named): one thing wrong in each."""
    dataset = {"name": "d", "trust": "local", "features": FEATURES, "epsilon": 1}
    job = {"dataset_id": unknown("ds"), "algorithm": UNIFORM, "target_reports": 10}
    round_ = {"encoding": GRID, "epsilon": 1, "target_reports": 10}
    rounds = f"/datasets/{unknown('ds')}/rounds"
    feature = {"name": "x", "lower": 0, "upper": 1}
    return [
        ("POST", "/datasets", [], ""),
        ("POST", "/datasets", {k: v for k, v in dataset.items() if k != "name"}, "/name"),
        ("POST", "/datasets", dataset | {SECRET: 1}, ""),
        ("POST", "/datasets", dataset | {"name": ""}, "/name"),
        ("POST", "/datasets", dataset | {"name": f"{SECRET}\x00"}, "/name"),
        ("POST", "/datasets", dataset | {"name": SECRET * 100}, "/name"),
        ("POST", "/datasets", dataset | {"name": "\ud800"}, "/name"),
        ("POST", "/datasets", dataset | {"trust": SECRET}, "/trust"),
        ("POST", "/datasets", dataset | {"features": []}, "/features"),
        ("POST", "/datasets", dataset | {"features": [feature] * 65}, "/features"),
        ("POST", "/datasets", dataset | {"features": [feature, feature]}, ""),
        ("POST", "/datasets", dataset | {"features": [feature | {"lower": 1, "name": SECRET}]}, "/features/0"),
        ("POST", "/datasets", dataset | {"features": [feature | {"lower": 2}]}, "/features/0"),
        ("POST", "/datasets", dataset | {"features": [feature | {"lower": SECRET}]}, "/features/0/lower"),
        ("POST", "/datasets", dataset | {"features": [feature | {"lower": True}]}, "/features/0/lower"),
        ("POST", "/datasets", dataset | {"features": [feature, feature | {"upper": None}]}, "/features/1/upper"),
        ("POST", "/datasets", dataset | {"features": [feature | {"lower": -1e308, "upper": 1e308}]}, "/features/0"),
        ("POST", "/datasets", dataset | {"epsilon": 0}, "/epsilon"),
        ("POST", "/datasets", dataset | {"epsilon": -1}, "/epsilon"),
        ("POST", "/datasets", dataset | {"epsilon": 33}, "/epsilon"),
        ("POST", "/datasets", dataset | {"epsilon": 1e-7}, "/epsilon"),
        ("POST", "/datasets", dataset | {"epsilon": 0.1234567891}, "/epsilon"),
        ("POST", "/datasets", dataset | {"epsilon": "1"}, "/epsilon"),
        ("POST", "/datasets", dataset | {"epsilon": 10**400}, "/epsilon"),
        ("POST", "/datasets", dataset | {"min_reports": 0}, "/min_reports"),
        ("POST", "/datasets", dataset | {"min_reports": 2**31}, "/min_reports"),
        ("POST", "/datasets", dataset | {"min_reports": 1.0}, "/min_reports"),
        ("POST", "/datasets", dataset | {"keep_reports": 1}, "/keep_reports"),
        ("POST", "/jobs", job | {"dataset_id": SECRET}, "/dataset_id"),
        ("POST", "/jobs", job | {"algorithm": {"type": SECRET}}, "/algorithm"),
        ("POST", "/jobs", job | {"algorithm": {"epsilon": 1}}, "/algorithm"),
        ("POST", "/jobs", job | {"algorithm": UNIFORM | {"cells": 1}}, "/algorithm/cells"),
        ("POST", "/jobs", job | {"algorithm": UNIFORM | {"epsilon": 1.0000000001}}, "/algorithm/epsilon"),
        ("POST", "/jobs", job | {"algorithm": UNIFORM | {SECRET: 1}}, "/algorithm"),
        ("POST", "/jobs", {k: v for k, v in job.items() if k != "target_reports"}, ""),
        ("POST", "/jobs", job | {"target_reports": 0}, "/target_reports"),
        ("POST", "/jobs", job | {"target_reports": 2**53}, "/target_reports"),
        ("POST", "/jobs", job | {"collect_seconds": 0}, "/collect_seconds"),
        ("POST", "/jobs", job | {"round_ids": [SECRET]}, "/round_ids/0"),
        ("POST", "/jobs", job | {"round_ids": [unknown("rnd")] * 2}, ""),
        ("POST", rounds, round_ | {"encoding": {"type": "grid", "cells": [1]}}, "/encoding"),
        ("POST", rounds, round_ | {"encoding": {"type": "grid", "cells": [2000, 2000]}}, "/encoding"),
        ("POST", rounds, round_ | {"encoding": {"type": "grid", "cells": [2, SECRET]}}, "/encoding/cells/1"),
        ("POST", rounds, round_ | {"encoding": {"type": "grid"}}, "/encoding/cells"),
        ("POST", rounds, round_ | {"mechanism": SECRET}, "/mechanism"),
        ("POST", rounds, round_ | {"draw": {"lo": "5", "hi": "5"}}, "/draw"),
        ("POST", rounds, round_ | {"draw": {"lo": SECRET, "hi": "5"}}, "/draw/lo"),
        ("POST", rounds, round_ | {"draw": {"lo": "0", "hi": str(2**64 + 1)}}, "/draw"),
        ("POST", "/keys", {"name": "k", "scopes": [SECRET]}, "/scopes/0"),
        ("POST", "/keys", {"name": "k", "scopes": []}, "/scopes"),
        ("POST", "/keys", {"name": "k", "scopes": ["device"], "expires_at": SECRET}, "/expires_at"),
        ("POST", "/keys", {"name": "k", "scopes": ["device"], "expires_at": "2020-01-01T00:00:00Z"}, "/expires_at"),
        ("POST", "/keys", {"name": "k", "scopes": ["device"], "expires_at": "9999-01-01T00:00:00Z"}, "/expires_at"),
        ("POST", "/keys", {"name": "k", "scopes": ["device"], "expires_at": "2099-01-01T00:00:00"}, "/expires_at"),
        ("POST", f"/jobs/{unknown('job')}/assign", {"points": [[SECRET]]}, "/points/0/0"),
    ]


class TestABodyThatDoesNotFit:
    @pytest.mark.parametrize(("method", "path", "body", "pointer"), bodies())
    def test_is_refused_with_its_place_and_not_repeated(
        self, api: Api, method: str, path: str, body: Any, pointer: str
    ) -> None:
        answer = api.request(method, path, content=json.dumps(body), headers={"content-type": "application/json"})
        problem = refused(answer, 422, "validation_failed")
        assert pointer in [error["pointer"] for error in problem["errors"]]
        assert all(error["message"] for error in problem["errors"])
        assert SECRET not in answer.text
        assert "input" not in problem["errors"][0]

    @pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999"])
    def test_numbers_that_are_none_are_refused(self, api: Api, value: str) -> None:
        body = '{"name":"d","trust":"local","epsilon":1,"features":[{"name":"x","lower":VALUE,"upper":1}]}'
        content = body.replace("VALUE", value)
        answer = api.post("/datasets", content=content, headers={"content-type": "application/json"})
        problem = refused(answer, 422, "validation_failed")
        assert problem["errors"][0]["pointer"] == "/features/0/lower"

    @pytest.mark.parametrize("body", [b"{", b"\xff\xfe", b"[" * 100_000, b'{"name": ' + b"1" * 5000 + b"}"])
    def test_what_is_no_json_cannot_be_read(self, api: Api, body: bytes) -> None:
        answer = api.post("/datasets", content=body, headers={"content-type": "application/json"})
        refused(answer, 400, "bad_request")

    def test_another_kind_of_body_is_not_read(self, api: Api) -> None:
        answer = api.post("/datasets", content=b"name=d", headers={"content-type": "application/x-www-form-urlencoded"})
        refused(answer, 415, "unsupported_media_type")

    def test_no_body_is_not_enough(self, api: Api) -> None:
        refused(api.post("/datasets"), 422, "validation_failed")

    def test_nothing_was_stored(self, api: Api) -> None:
        for method, path, body, _ in bodies():
            api.request(method, path, content=json.dumps(body), headers={"content-type": "application/json"})
        assert api.get("/datasets").json()["items"] == []
        assert api.get("/jobs").json()["items"] == []
        assert len(api.get("/keys").json()["items"]) == 1  # its own


class TestAParameterThatDoesNotFit:
    @pytest.mark.parametrize(
        ("path", "parameter"),
        [
            ("/datasets?limit=0", "limit"),
            ("/datasets?limit=1001", "limit"),
            (f"/datasets?limit={SECRET}", "limit"),
            (f"/datasets?cursor={SECRET}", "cursor"),
            ("/datasets?cursor=%00", "cursor"),
            ("/datasets?cursor=" + "A" * 3000, "cursor"),
            (f"/jobs/{unknown('job')}?wait=-1", "wait"),
            (f"/jobs/{unknown('job')}?wait=nan", "wait"),
            (f"/jobs/{unknown('job')}?wait=1e9", "wait"),
        ],
    )
    def test_is_named(self, api: Api, path: str, parameter: str) -> None:
        answer = api.get(path)
        problem = refused(answer, 422, "validation_failed")
        assert [error.get("parameter") for error in problem["errors"]] == [parameter]
        assert SECRET not in answer.text

    @pytest.mark.parametrize("key", ["", "x" * 256, "a b", "ä"])
    def test_an_idempotency_key_is_printable_and_short(self, api: Api, key: str) -> None:
        answer = api.post("/datasets", {}, headers={"Idempotency-Key": key.encode("latin-1")})  # type: ignore[dict-item]
        problem = refused(answer, 422, "validation_failed")
        assert "Idempotency-Key" in [error.get("parameter") for error in problem["errors"]]

    @pytest.mark.parametrize("path", ["/datasets/x", "/datasets/ds_%00", "/rounds/%1b[31m", "/jobs/job_" + "0" * 25])
    def test_an_id_that_was_never_given_out_is_not_found(self, api: Api, path: str) -> None:
        refused(api.get(path), 404, "not_found")


class TestAFaultOfOurs:
    def test_is_answered_without_a_word_of_it_and_logged_without_values(
        self, api: Api, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def fail(*_: object, **__: object) -> None:
            raise RuntimeError(SECRET)

        monkeypatch.setattr("models.dataset.page", fail)
        answer = api.get("/datasets")
        refused(answer, 500, "internal_error")
        logged = capsys.readouterr()
        assert SECRET not in answer.text + logged.out + logged.err
        assert "RuntimeError" in logged.out + logged.err
        assert answer.headers["x-request-id"] in logged.out + logged.err

    def test_leaves_the_service_alive(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        with monkeypatch.context() as patched:
            patched.setattr("models.dataset.page", lambda *_, **__: 1 / 0)
            refused(api.get("/datasets"), 500, "internal_error")
        assert api.get("/datasets").status_code == 200


class TestADatabaseThatIsAway:
    @pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)  # the other says that its table is gone
    def test_is_unavailable_and_comes_back(self, started: Any, capsys: pytest.CaptureFixture[str]) -> None:
        api: Api = started()
        made = api.dataset()
        with api.database.transaction() as session:
            session.execute(text("ALTER TABLE datasets RENAME TO gone"))
        answer = api.get(f"/datasets/{made['id']}")
        refused(answer, 503, "unavailable")
        assert int(answer.headers["retry-after"]) >= 1
        logged = capsys.readouterr()
        assert "database_away" in logged.out + logged.err
        with api.database.transaction() as session:
            session.execute(text("ALTER TABLE gone RENAME TO datasets"))
        assert api.get(f"/datasets/{made['id']}").status_code == 200

    def test_that_never_was_there_is_unavailable(self, tmp_path: Path, no_settings: None) -> None:
        nowhere = Database("postgresql+psycopg://nobody@127.0.0.1:1/none?connect_timeout=1")
        with InProcess(create_app(Settings(home=tmp_path), nowhere)) as gateway:
            client = gateway.client
            refused(client.get("/readyz"), 503, "unavailable")
            refused(client.get("/v1/datasets", headers={"Authorization": "Bearer sfk_x"}), 503, "unavailable")
            assert client.get("/healthz").json() == {"status": "ok"}
        nowhere.close()


class TestHealth:
    def test_needs_no_key(self, started: Callable[..., Api]) -> None:
        http = started().http  # of its own: keys of records that other tests left would be told here
        assert http.get("/healthz").json() == {"status": "ok"}
        assert http.get("/readyz").json() == {"status": "ok"}

    def test_a_database_without_our_schema_is_not_ready(
        self, empty_database_url: str, tmp_path: Path, no_settings: None
    ) -> None:
        empty = Database(empty_database_url)
        with InProcess(create_app(Settings(home=tmp_path), empty)) as gateway:
            refused(gateway.client.get("/readyz"), 503, "unavailable")
            assert gateway.client.get("/healthz").status_code == 200
        empty.close()
