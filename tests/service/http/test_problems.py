"""Every error is a problem document that locates the error and repeats no submitted value."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError, InterfaceError, OperationalError

from devservers.inprocess import InProcess
from models import errors as refusals
from models.database.engine import Database
from runtime.settings import Settings
from service.app import create_app
from service.http import problems
from service.http.problems import from_exception
from sfumato.errors import InvalidEpsilon, InvalidPoint, ReportMalformed
from tests.service.api import FEATURES, GRID, SQLITE_KIND_ONLY, SQLITE_ONLY, UNIFORM, Api, refused, unknown

SECRET = "Zw9-private-4711"


class TestProblems:
    def test_have_unique_codes_and_error_statuses(self) -> None:
        codes = [problem.code for problem in problems.ALL_PROBLEMS]
        assert len(set(codes)) == len(codes)
        assert all(400 <= problem.status < 600 for problem in problems.ALL_PROBLEMS)

    def test_are_listed_in_the_module_docstring(self) -> None:
        drawn = re.findall(r"[├└]── (\w+) +(\d{3}) (\w+)", str(problems.__doc__))
        assert {(name, int(status), code) for name, status, code in drawn} == {
            (problem.__name__, problem.status, problem.code) for problem in problems.ALL_PROBLEMS
        }

    def test_match_domain_errors(self) -> None:
        for error, code in (
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
        ):
            assert from_exception(error).code == code

    def test_exist_for_every_error_of_the_models_except_those_of_workers(self) -> None:
        codes = {kind.code for kind in refusals.ChangeRejected.__subclasses__() if kind is not refusals.StaleFence}
        assert codes <= {problem.code for problem in problems.ALL_PROBLEMS}


@SQLITE_ONLY
def test_an_unknown_path_or_method_is_refused(api: Api) -> None:
    refused(api.get("/nothing"), 404, "not_found")
    refused(api.http.get("/nothing"), 404, "not_found")
    refused(api.get("/datasets/"), 404, "not_found")  # a trailing slash is another path
    for path in ("/datasets/x", "/datasets/ds_%00", "/rounds/%1b[31m", "/jobs/job_" + "0" * 25):
        refused(api.get(path), 404, "not_found")
    for path, methods in (("/datasets", "GET, POST"), (f"/rounds/{unknown('rnd')}/reports", "POST")):
        response = api.request("PUT", path, json={})
        refused(response, 405, "method_not_allowed")
        assert response.headers["allow"] == methods


def bodies() -> list[tuple[str, Any, str]]:
    """Return (path, body, expected pointer) tuples with one error each."""
    dataset = {"name": "d", "trust": "local", "features": FEATURES, "epsilon": 1}
    job = {"dataset_id": unknown("ds"), "algorithm": UNIFORM, "target_reports": 10}
    round_ = {"encoding": GRID, "epsilon": 1, "target_reports": 10}
    feature = {"name": "x", "lower": 0, "upper": 1}
    key = {"name": "k", "scopes": ["device"]}
    of_dataset = [
        ({"name": None}, "/name"),
        ({SECRET: 1}, ""),
        *(({"name": name}, "/name") for name in ("", f"{SECRET}\x00", SECRET * 100, "\ud800")),
        ({"trust": SECRET}, "/trust"),
        *(({"features": features}, "/features") for features in ([], [feature] * 65)),
        ({"features": [feature, feature]}, "/features"),
        ({"epsilonn": 1}, "/epsilonn"),
        ({"features": [feature | {"lowr": 1}]}, "/features/0/lowr"),
        ({"features": [feature | {"lower": 1, "name": SECRET}]}, "/features/0"),
        ({"features": [feature | {"lower": 2}]}, "/features/0"),
        ({"features": [feature | {"lower": SECRET}]}, "/features/0/lower"),
        ({"features": [feature | {"lower": True}]}, "/features/0/lower"),
        ({"features": [feature, feature | {"upper": None}]}, "/features/1/upper"),
        ({"features": [feature | {"lower": -1e308, "upper": 7e307}]}, "/features/0/lower"),
        *(({"epsilon": epsilon}, "/epsilon") for epsilon in (0, -1, 33, 1e-7, 0.1234567891, "1", 10**400)),
        *(({"min_reports": number}, "/min_reports") for number in (0, 2**31, 1.5)),
        ({"keep_reports": 1}, "/keep_reports"),
    ]
    of_job = [
        ({"dataset_id": SECRET}, "/dataset_id"),
        *(({"algorithm": algorithm}, "/algorithm") for algorithm in ({"type": SECRET}, {"epsilon": 1})),
        ({"algorithm": UNIFORM | {"cells": 1}}, "/algorithm/cells"),
        ({"algorithm": UNIFORM | {"epsilon": 1.0000000001}}, "/algorithm/epsilon"),
        ({"algorithm": UNIFORM | {SECRET: 1}}, "/algorithm"),
        ({"target_reports": None}, "/target_reports"),
        *(({"target_reports": number}, "/target_reports") for number in (0, 2**53)),
        ({"collect_seconds": 0}, "/collect_seconds"),
        ({"round_ids": [SECRET]}, "/round_ids/0"),
        ({"round_ids": [unknown("rnd")] * 2}, "/round_ids"),
    ]
    of_round = [
        *(({"encoding": {"type": "grid", "cells": cells}}, "/encoding") for cells in ([1], [2000, 2000])),
        ({"encoding": {"type": "grid", "cells": [2, SECRET]}}, "/encoding/cells/1"),
        ({"encoding": {"type": "grid"}}, "/encoding/cells"),
        ({"mechanism": SECRET}, "/mechanism"),
        ({"participation": {"lo": SECRET, "hi": "5"}}, "/participation/lo"),
        *(
            ({"participation": {"lo": lo, "hi": hi}}, "/participation")
            for lo, hi in (("5", "5"), ("0", str(2**64 + 1)))
        ),
    ]
    times = (SECRET, "2020-01-01T00:00:00Z", "9999-01-01T00:00:00Z", "2099-01-01T00:00:00")
    of_key = [
        ({"scopes": [SECRET]}, "/scopes/0"),
        ({"scopes": []}, "/scopes"),
        *(({"expires_at": time}, "/expires_at") for time in times),
    ]
    return [
        ("/datasets", [], ""),
        *(("/datasets", dataset | change, pointer) for change, pointer in of_dataset),
        *(("/jobs", job | change, pointer) for change, pointer in of_job),
        *((f"/datasets/{unknown('ds')}/rounds", round_ | change, pointer) for change, pointer in of_round),
        *(("/keys", key | change, pointer) for change, pointer in of_key),
    ]


@SQLITE_ONLY
class TestInvalidBody:
    JSON: ClassVar = {"content-type": "application/json"}

    def test_is_rejected_with_a_pointer_and_not_repeated_or_stored(self, api: Api) -> None:
        for path, body, pointer in bodies():
            response = api.post(path, content=json.dumps(body), headers=self.JSON)
            problem = refused(response, 422, "validation_failed")
            assert pointer in [error["pointer"] for error in problem["errors"]], (path, body)
            assert all(error["message"] in problem["detail"] for error in problem["errors"][:5])
            assert problem["title"] == "The request is not valid"
            assert SECRET not in response.text
            assert "input" not in problem["errors"][0]
        assert api.get("/datasets").json()["items"] == api.get("/jobs").json()["items"] == []
        assert len(api.get("/keys").json()["items"]) == 1  # the caller's own key

    def test_without_a_field_names_it_and_the_remedy(self, api: Api) -> None:
        (error,) = refused(api.post("/keys", {"name": "k"}), 422, "validation_failed")["errors"]
        assert error == {"pointer": "/scopes", "message": "this field is required: add it"}

    def test_with_nan_or_infinity_is_rejected(self, api: Api) -> None:
        body = '{"name":"d","trust":"local","epsilon":1,"features":[{"name":"x","lower":VALUE,"upper":1}]}'
        for value in ("NaN", "Infinity", "-Infinity", "1e999"):
            response = api.post("/datasets", content=body.replace("VALUE", value), headers=self.JSON)
            problem = refused(response, 422, "validation_failed")
            assert problem["errors"][0]["pointer"] == "/features/0/lower"

    def test_that_is_not_json_is_refused(self, api: Api) -> None:
        for body in (b"{", b"\xff\xfe", b"[" * 100_000, b'{"name": ' + b"1" * 5000 + b"}"):
            refused(api.post("/datasets", content=body, headers=self.JSON), 400, "bad_request")
        form = {"content-type": "application/x-www-form-urlencoded"}
        refused(api.post("/datasets", content=b"name=d", headers=form), 415, "unsupported_media_type")
        refused(api.post("/datasets"), 422, "validation_failed")


@SQLITE_ONLY
class TestInvalidParameter:
    def test_is_named(self, api: Api) -> None:
        job = f"/jobs/{unknown('job')}"
        for path, values in (
            ("/datasets?limit=", ("0", "1001", SECRET)),
            ("/datasets?cursor=", (SECRET, "%00", "A" * 3000)),
            (f"{job}?wait=", ("-1", "nan", "1e9")),
        ):
            for value in values:
                response = api.get(path + value)
                problem = refused(response, 422, "validation_failed")
                assert [error.get("parameter") for error in problem["errors"]] == [path.partition("?")[2][:-1]]
                assert SECRET not in response.text

    def test_an_idempotency_key_must_be_printable_and_short(self, api: Api) -> None:
        for key in ("", "x" * 256, "a b", "ä"):
            headers: Any = {"Idempotency-Key": key.encode("latin-1")}
            problem = refused(api.post("/datasets", {}, headers=headers), 422, "validation_failed")
            assert "Idempotency-Key" in [error.get("parameter") for error in problem["errors"]]


@SQLITE_ONLY
class TestInternalError:
    def test_reveals_nothing_in_the_response_and_no_values_in_the_log(
        self, api: Api, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def fail(*_: object, **__: object) -> None:
            raise RuntimeError(SECRET)

        with monkeypatch.context() as patched:
            patched.setattr("models.datasets.page", fail)
            response = api.get("/datasets")
        refused(response, 500, "internal_error")
        logged = "".join(capsys.readouterr())
        assert SECRET not in response.text + logged
        assert "RuntimeError" in logged
        assert response.headers["x-request-id"] in logged
        assert api.get("/datasets").status_code == 200  # the service continues


class TestUnavailableDatabase:
    @SQLITE_KIND_ONLY  # PostgreSQL reports a missing table
    def test_is_reported_as_unavailable_until_it_is_back(
        self, started: Callable[..., Api], capsys: pytest.CaptureFixture[str]
    ) -> None:
        api = started()
        path = f"/datasets/{api.dataset()['id']}"
        with api.database.transaction() as session:
            session.execute(text("ALTER TABLE datasets RENAME TO gone"))
        response = api.get(path)
        refused(response, 503, "unavailable")
        assert int(response.headers["retry-after"]) >= 1
        assert "database_unavailable" in "".join(capsys.readouterr())
        with api.database.transaction() as session:
            session.execute(text("ALTER TABLE gone RENAME TO datasets"))
        assert api.get(path).status_code == 200

    def test_that_never_existed_is_reported_as_unavailable(self, tmp_path: Path, no_settings: None) -> None:
        nowhere = Database("postgresql+psycopg://nobody@127.0.0.1:1/none?connect_timeout=1")
        with InProcess(create_app(Settings(home=tmp_path), nowhere)) as gateway:
            client = gateway.client
            refused(client.get("/readyz"), 503, "unavailable")
            refused(client.get("/v1/datasets", headers={"Authorization": "Bearer sfk_x"}), 503, "unavailable")
            assert client.get("/healthz").json() == {"status": "ok"}
        nowhere.close()


class TestHealth:
    def test_needs_no_key(self, started: Callable[..., Api]) -> None:
        http = started().http  # a new gateway, because record keys of other tests affect readiness
        assert http.get("/healthz").json() == {"status": "ok"}
        assert http.get("/readyz").json() == {"status": "ok"}

    def test_a_database_without_the_schema_is_not_ready(
        self, empty_database_url: str, tmp_path: Path, no_settings: None
    ) -> None:
        empty = Database(empty_database_url)
        with InProcess(create_app(Settings(home=tmp_path), empty)) as gateway:
            refused(gateway.client.get("/readyz"), 503, "unavailable")
            assert gateway.client.get("/healthz").status_code == 200
        empty.close()
