"""Documents in request bodies: limits, members given twice, null, and what is checked before a body is read."""

import gzip
import json
import time

import pytest

from service.api.bodies import MAX_MEMBERS, MAX_VALUES
from service.http.problems import MAX_ERRORS
from tests.service.api import FEATURES, SQLITE_ONLY, Api, refused

DATASET = {"name": "d", "trust": "local", "features": FEATURES, "epsilon": 8}
ROUTES = ("/datasets", "/jobs", "/keys", "/webhooks", "/jobs/job_{0}/assign", "/keys/key_{0}/rotate")
JSON = {"Content-Type": "application/json"}
CPU_SECONDS = 2.0  # a document takes below 0.1 s on an idle machine


@SQLITE_ONLY
class TestMemberTwice:
    @pytest.mark.parametrize("place", ["top", "inner", "escaped"])
    def test_is_refused_and_named(self, api: Api, place: str) -> None:
        text = json.dumps(DATASET)
        body = {
            "top": text.replace('"name"', '"epsilon": 1, "name"', 1),
            "inner": text.replace('"lower"', '"upper": 9, "lower"', 1),
            "escaped": text.replace('"name"', '"\\u0065psilon": 1, "name"', 1),
        }[place]
        problem = refused(api.post("/datasets", content=body.encode(), headers=JSON), 400, "bad_request")
        assert ("upper" if place == "inner" else "epsilon") in problem["detail"]

    def test_with_a_name_that_may_be_a_value_is_not_repeated(self, api: Api) -> None:
        problem = refused(api.post("/datasets", content=b'{"a b":1,"a b":2}', headers=JSON), 400, "bad_request")
        assert "a b" not in problem["detail"]


@SQLITE_ONLY
class TestNull:
    @pytest.mark.parametrize("name", ["min_reports", "source", "features", "epsilon"])
    def test_gets_one_error_with_the_remedy(self, api: Api, name: str) -> None:
        problem = refused(api.post("/datasets", DATASET | {name: None}), 422, "validation_failed")
        (error,) = problem["errors"]
        assert error["pointer"] == f"/{name}"
        assert "leave the member out" in error["message"]


@SQLITE_ONLY
class TestLargeDocument:
    @pytest.mark.parametrize(
        ("path", "body"),
        [
            ("/datasets", b'{"features":[' + b"1," * 140_000 + b"1]}"),
            ("/jobs", b'{"round_ids":[' + b"1," * 140_000 + b"1]}"),
            ("/datasets/{}/rounds", b'{"encoding":{"type":"tree_grid","levels":[' + b'"",' * 140_000 + b"1]}}"),
            ("/datasets/{}/rounds", b'{"encoding":{"type":"phase","weights":[[' + b'"",' * 140_000 + b"1]]}}"),
            ("/datasets/{}/rounds", b'{"encoding":{"type":"grid","cells":[' + b'"",' * 140_000 + b"1]}}"),
            ("/jobs", b"{" + b",".join(b'"x%x":1' % i for i in range(MAX_MEMBERS)) + b"}"),
            ("/keys", b'{"name":"x","scopes":[' + b'"x",' * 140_000 + b'"device"]}'),
            ("/webhooks", b'{"event_types":[' + b'"x",' * 140_000 + b'"x"]}'),
        ],
        ids=["features", "round ids", "levels", "weights", "cells", "unknown members", "scopes", "types"],
    )
    def test_of_faults_is_refused_quickly_with_few_errors(self, api: Api, path: str, body: bytes) -> None:
        path = path.format(api.dataset()["id"])
        start = time.process_time()
        problem = refused(api.post(path, content=body, headers=JSON), 422, "validation_failed")
        assert time.process_time() - start < CPU_SECONDS
        assert 1 <= len(problem["errors"]) <= MAX_ERRORS

    def test_has_a_limit_on_its_values(self, api: Api) -> None:
        body = b'{"features":[' + b"1," * MAX_VALUES + b"1]}"
        refused(api.post("/datasets", content=body, headers=JSON), 413, "payload_too_large")

    def test_has_a_limit_on_its_members(self, api: Api) -> None:
        body = b"{" + b",".join(b'"x%x":1' % i for i in range(MAX_MEMBERS + 1)) + b"}"
        refused(api.post("/jobs", content=body, headers=JSON), 413, "payload_too_large")

    def test_in_gzip_has_a_limit_on_its_ratio(self, api: Api) -> None:
        dataset_id = api.dataset(trust="central", delta=1e-6)["id"]
        names = [each["name"] for each in FEATURES]
        text = ",".join(names) + "\n" + (",".join("0.5" for _ in names) + "\n") * 400_000
        packed = gzip.compress(text.encode())
        assert len(packed) * 20 < len(text)
        headers = {"content-type": "text/csv", "content-encoding": "gzip"}
        problem = refused(
            api.post(f"/datasets/{dataset_id}/records", content=packed, headers=headers), 413, "payload_too_large"
        )
        assert "20 times" in problem["detail"]


@SQLITE_ONLY
class TestScope:
    @pytest.mark.parametrize("path", ROUTES)
    def test_is_checked_before_the_body_is_read(self, api: Api, path: str) -> None:
        refused(
            api.key("device").post(path.format("0" * 26), content=b"not a document", headers=JSON), 403, "forbidden"
        )


@SQLITE_ONLY
def test_a_rotation_needs_no_body(api: Api) -> None:
    key = api.made("/keys", {"name": "k", "scopes": ["jobs"]})
    rotated = api.post(f"/keys/{key['id']}/rotate")
    assert rotated.status_code == 201, rotated.text
    assert rotated.json()["replaces"] == key["id"]
