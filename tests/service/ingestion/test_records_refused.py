"""Invalid uploads are rejected as a whole, with a reason and without their values, and the gateway continues."""

import asyncio
import base64
import gzip
import hashlib
import io
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest

from models import encryption
from models.database.engine import Database
from service.http.problems import BadRequest, Unavailable
from service.ingestion import record_formats, upload_memory
from tests.service.api import SQLITE_KIND_ONLY, SQLITE_ONLY, Api, refused, stranger, unknown
from tests.service.ingestion.test_records import FORMS, WITH_USERS, arrow, arrow_file, count, npy, send
from tests.service.mutated_arrow import NO_SCHEMA

CSV, JSON, NPY = "text/csv", "application/json", "application/x-npy"
ARROW = "application/vnd.apache.arrow.stream"
SECRET = "4711.25"  # a value that must not occur in an error
GOOD = [0.5, 0.5]
RECORD = {"columns": ["x", "y"], "rows": [GOOD]}


def rows(*bad: Any, columns: tuple[str, ...] = ("x", "y")) -> bytes:
    return json.dumps({"columns": columns, "rows": [GOOD, *bad]}).encode()


def compressed() -> bytes:
    table = pa.table({"x": [0.5] * 1000, "y": [0.5] * 1000})
    file = io.BytesIO()
    with pa.ipc.new_stream(file, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    return file.getvalue()


def npy_head(text: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
WHOLE_NPY, WHOLE_ARROW = npy([GOOD] * 50), FORMS["arrow"][1]
BAD: dict[str, tuple[str, bytes, int, str, str]] = {  # name: (content type, body, status, code, part of the detail)
    "no body": (CSV, b"", 422, "validation_failed", "header row is missing"),
    "no body, npy": (NPY, b"", 400, "bad_request", "the body is empty"),
    "no body, json": (JSON, b"", 400, "bad_request", "valid JSON"),
    "no body, arrow": (ARROW, b"", 400, "bad_request", "Arrow IPC stream is incomplete"),
    "no records": (CSV, b"x,y\n", 422, "validation_failed", "no records"),
    "no records, json": (JSON, b'{"columns":["x","y"],"rows":[]}', 422, "validation_failed", "no records"),
    "no records, npy": (NPY, npy(np.empty((0, 2))), 422, "validation_failed", "no records"),
    "no records, arrow": (ARROW, arrow(x=pa.array([], pa.float64()), y=pa.array([], pa.float64())), 422,
                          "validation_failed", "no records"),
    "a column missing": (CSV, b"x\n0.5\n", 422, "validation_failed", "column y is missing"),
    "no header": (CSV, b"4711.25,0.5\n0.5,0.5\n", 422, "validation_failed", "column x is missing"),
    "no header but text": (CSV, b"secret,4711\n0.5,0.5\n", 422, "validation_failed", "column 1 (counted from 1)"),
    "a column too many": (CSV, b"x,4711.25,y\n1,2,3\n", 422, "validation_failed", "column 2 (counted from 1)"),
    "a column twice": (CSV, b"x,y,x\n1,1,1\n", 422, "validation_failed", "column x occurs more than once"),
    "columns of json": (JSON, rows(columns=("x", "4711.25")), 422, "validation_failed", "column y is missing"),
    "columns of arrow": (ARROW, arrow(x=[1.0], z=[2.0]), 422, "validation_failed", "column y is missing"),
    "another column": (CSV, b"x,z\n1,2\n", 422, "validation_failed", "column z is not declared"),
    "other columns of json": (JSON, rows(columns=("lon", "lat")), 422, "validation_failed", "column lon is not decl"),
    "other columns of arrow": (ARROW, arrow(lon=[1.0], lat=[2.0]), 422, "validation_failed", "column lat is not decl"),
    "columns of npy": (NPY, npy([[1.0, 2.0, 3.0]]), 422, "validation_failed", "shape (n, 2)"),
    "semicolons": (CSV, b"x;y\n4711,25;2,5\n", 422, "validation_failed", "separated by semicolons"),
    "tabs": (CSV, b"x\ty\n4711.25\t2\n", 422, "validation_failed", "separated by tabs"),
    "no number": (CSV, b"x,y\n0.5,0.5\n0.5,secret 4711.25\n", 422, "validation_failed", "record 2: y must be a finite"),
    "an empty cell": (CSV, b"x,y\n,0.5\n", 422, "validation_failed", "record 1: x must be a finite"),
    "not a number": (CSV, b"x,y\n0.5,0.5\nnan,1\n", 422, "validation_failed", "record 2: x must be a finite"),
    "only Python's number": (CSV, b"x,y\n0.5,0.5\n0.5,0_4711\n", 422, "validation_failed", "record 2: y must be a fin"),
    "wide digits": (CSV, "x,y\n０.５,0.5\n".encode(), 422, "validation_failed", "record 1: x must be a finite"),
    "infinite": (NPY, npy([GOOD, [np.inf, 1]]), 422, "validation_failed", "record 2: x must be a finite"),
    "infinite, far in": (NPY, npy([GOOD] * 200_000 + [[1, -np.inf]]), 422, "validation_failed", "record 200001: y"),
    "infinite, arrow": (ARROW, arrow(x=[0.5, float("nan")], y=[0.5, 0.5]), 422, "validation_failed", "record 2: x"),
    "text in json": (JSON, rows([0.5, SECRET]), 422, "validation_failed", "record 2: y must be a finite number"),
    "null in json": (JSON, rows([None, 0.5]), 422, "validation_failed", "record 2: x must be a finite number (rec"),
    "a number too large": (JSON, rows().replace(b"[0.5, 0.5]", b"[0.5, 1e999]"), 422, "validation_failed", "finite"),
    "not a number in json": (JSON, rows().replace(b"[0.5, 0.5]", b"[0.5, NaN]"), 400, "bad_request", "no NaN"),
    "no row in json": (JSON, rows(SECRET), 422, "validation_failed", "record 2: expected a list of values"),
    "a short row": (JSON, rows([0.5]), 422, "validation_failed", "record 2: expected 2 values"),
    "a long line": (CSV, b"x,y\n0.5,0.5\n0.5,0.5,4711.25\n", 422, "validation_failed", "record 2: the line must"),
    "a cut-off line": (CSV, b"x,y\n0.5,0.5\n0.5", 422, "validation_failed", "record 2: the line must"),
    "another object": (JSON, b'{"columns":["x","y"],"rows":[],"4711.25":1}', 422, "validation_failed", "an object"),
    "broken json": (JSON, b'{"columns":["x","y"],"rows":[[4711.25,', 400, "bad_request", "valid JSON"),
    "broken json after an error": (JSON, b'{"columns":["x","y"],"rows":[["4711.25",1]', 400, "bad_request", "JSON"),
    "a type error without columns": (JSON, b'{"rows":[["4711.25"]]}', 422, "validation_failed", "an object"),
    "a type error of no column": (JSON, b'{"columns":["x","y"],"rows":[[1,1,"4711.25"]]}', 422, "validation_failed",
                              "record 1: a value has the wrong type"),
    "a type error of other columns": (JSON, b'{"columns":[1],"rows":[["x"]]}', 422, "validation_failed", "an object"),
    "no text in json": (JSON, b'{"columns":["x","\xff"],"rows":[]}', 400, "bad_request", "valid JSON"),
    "no text after an error": (JSON, b'{"rows":[["1"]],"columns":["\xff"]}', 400, "bad_request", "valid JSON"),
    "deep json": (JSON, b"[" * 200_000, 400, "bad_request", "an object"),
    "no text": (CSV, b"x,y\n0.5,\xff\n", 400, "bad_request", "not valid UTF-8"),
    "a cut-off character": (CSV, "x,ü".encode()[:-1], 400, "bad_request", "not valid UTF-8"),
    "a cell over two lines": (CSV, b'x,y\n"4711.25\n",0.5\n', 400, "bad_request", "one record per line"),
    "a quote left open": (CSV, b'x,y\n0.5,"4711.25\n', 400, "bad_request", "one record per line"),
    "a line without end": (CSV, b"x,y\n" + b"1" * 3_000_000, 400, "bad_request", "a line is too long"),
    "whole numbers": (NPY, npy(np.ones((3, 2), dtype=np.int64)), 422, "validation_failed", "float64 or float32"),
    "big-endian": (NPY, npy(np.ones((3, 2), dtype=">f8")), 422, "validation_failed", "little-endian"),
    "complex": (NPY, npy(np.ones((3, 2), dtype=complex)), 422, "validation_failed", "float64 or float32"),
    "objects": (NPY, npy(np.array([[0.5, SECRET]], dtype=object)), 422, "validation_failed", "float64 or float32"),
    "a pickle": (NPY, pickle.dumps([GOOD]), 400, "bad_request", "not an NPY file"),
    "one dimension": (NPY, npy([0.5, 0.5]), 422, "validation_failed", "shape (n, 2)"),
    "column by column": (NPY, npy(np.asfortranarray([GOOD, GOOD])), 422, "validation_failed", "row by row"),
    "a shape that lies": (NPY, npy_head("{'descr': '<f8', 'fortran_order': False, 'shape': (-1, 2)}"), 422,
                          "validation_failed", "shape (n, 2)"),
    "a head that is code": (NPY, npy_head("__import__('os').abort()"), 400, "bad_request", "not an NPY file"),
    "a head too deep": (NPY, npy_head("(" * 9000), 400, "bad_request", "not an NPY file"),
    "a head too long": (NPY, npy_head(" " * 20_000), 400, "bad_request", "not an NPY file"),
    "npy cut off in its head": (NPY, WHOLE_NPY[:30], 400, "bad_request", "incomplete"),
    "npy cut off": (NPY, WHOLE_NPY[:-7], 400, "bad_request", "shorter than its header declares"),
    "npy cut off between rows": (NPY, WHOLE_NPY[:-16], 400, "bad_request", "shorter than its header declares"),
    "npy too long": (NPY, WHOLE_NPY + b"\0", 400, "bad_request", "longer than its header declares"),
    "arrow cut off": (ARROW, WHOLE_ARROW[:-40], 400, "bad_request", "Arrow IPC stream is incomplete"),
    "arrow with a part missing": (ARROW, WHOLE_ARROW[:-60] + WHOLE_ARROW[-8:], 400, "bad_request", "not a valid Arrow"),
    "arrow of nothing": (ARROW, b"\xff\xff\xff\xff\0\0\0\0", 400, "bad_request", "not a valid Arrow"),
    "nulls": (ARROW, arrow(x=[0.5, None], y=GOOD), 422, "validation_failed", "record 2: x is missing (null)"),
    "arrow without a schema": (ARROW, NO_SCHEMA, 400, "bad_request", "not a valid Arrow"),
    "a name that is no text": (ARROW, WHOLE_ARROW.replace(b"x\0\0\0", b"\xff\0\0\0"), 400, "bad_request",
                               "not a valid Arrow"),
    "text in arrow": (ARROW, arrow(x=["4711.25"], y=[0.5]), 422, "validation_failed", "column x has the type string"),
    "compressed": (ARROW, compressed(), 422, "validation_failed", "without compression"),
    "two streams": (ARROW, WHOLE_ARROW * 2, 400, "bad_request", "more after the end"),
    "a stream and more": (ARROW, WHOLE_ARROW + b"4711" + END_OF_STREAM, 400, "bad_request", "more after the end"),
    "a file and more": (ARROW, arrow_file(x=GOOD, y=GOOD) + b"4711", 400, "bad_request", "incomplete"),
    "two files": (ARROW, arrow_file(x=GOOD, y=GOOD) * 2, 400, "bad_request", "more after the end"),
    "two arrays": (NPY, WHOLE_NPY * 2, 400, "bad_request", "longer than its header declares"),
    "two documents": (JSON, rows() * 2, 400, "bad_request", "valid JSON"),
}  # fmt: skip


def check_silence(response: httpx.Response) -> None:
    """Check that an error repeats no submitted value."""
    text = response.text.replace(response.headers["x-request-id"], "")  # remove the random id
    assert "4711" not in text
    assert "secret" not in text


@pytest.fixture(scope="class")
def dataset_ids(http: httpx.Client, database: Database) -> tuple[Api, dict[str, str]]:
    """Return an API client and the ids of datasets that clip values, refuse them, and name users."""
    api = stranger(http, database)
    declarations = {"clip": {}, "refuse": {"out_of_bounds": "refuse"}, "users": {"user_feature": "who"}}
    return api, {name: api.dataset(trust="central", **given)["id"] for name, given in declarations.items()}


@SQLITE_ONLY
class TestInvalidBody:
    @pytest.mark.parametrize("name", BAD)
    def test_is_rejected_and_not_stored(self, dataset_ids: tuple[Api, dict[str, str]], name: str) -> None:
        api, ids = dataset_ids
        kind, body, status, code, message = BAD[name]
        for dataset_id in (ids["clip"], ids["refuse"]):
            response = send(api, dataset_id, (kind, body))
            document = refused(response, status, code)
            assert message in document["detail"] + json.dumps(document.get("errors", ""))
            check_silence(response)
            assert count(api, dataset_id)["n_records"] == 0

    @pytest.mark.parametrize("encoding", ["br", "zstd", "deflate", "gzip, gzip"])
    def test_with_an_encoding_is_rejected_by_its_header(
        self, dataset_ids: tuple[Api, dict[str, str]], encoding: str
    ) -> None:
        api, ids = dataset_ids
        for path in (f"/datasets/{ids['clip']}/records", "/datasets", f"/rounds/{unknown('rnd')}/reports"):
            headers = {"content-type": JSON, "content-encoding": encoding}
            response = api.post(path, content=gzip.compress(rows()), headers=headers)
            assert "Content-Encoding" in refused(response, 415, "unsupported_media_type")["detail"]
        assert count(api, ids["clip"])["n_records"] == 0

    def test_does_not_prevent_later_uploads(self, api: Api) -> None:
        dataset_id = api.dataset(trust="central")["id"]
        for kind, body, *_ in BAD.values():
            send(api, dataset_id, (kind, body))
        assert send(api, dataset_id, FORMS["csv"]).status_code == 201

    @pytest.mark.parametrize(
        ("kind", "body", "message"),
        [
            (CSV, b"x,y\n0.5,0.5\n", "column who is missing"),
            (CSV, b"who,x,y\na,0.5,0.5\n  ,0.5,0.5\n", "record 2: who is missing"),
            (CSV, b"who,x,y\n" + b"4711" * 20 + b",0.5,0.5\n", "record 1: who must have 1 to 64 bytes"),
            (JSON, b'{"columns":["who","x","y"],"rows":[[4711.25,0.5,0.5]]}', "record 1: who must be text"),
            (JSON, b'{"columns":["who","x","y"],"rows":[[1,0.5,"4711.25"]]}', "record 1: y must be a number"),
            (JSON, b'{"columns":["who","x","y"],"rows":[[null,0.5,0.5]]}', "record 1: who must be text"),
            (JSON, b'{"columns":["who","x","y"],"rows":[["' + b"4711" * 20 + b'",0.5,0.5]]}', "1 to 64 bytes"),
            (ARROW, arrow(who=[4711.25], x=[0.5], y=[0.5]), "column who has the type double: send the users as text"),
        ],
    )
    def test_with_invalid_users_is_rejected(
        self, dataset_ids: tuple[Api, dict[str, str]], kind: str, body: bytes, message: str
    ) -> None:
        api, ids = dataset_ids
        response = send(api, ids["users"], (kind, body))
        assert message in json.dumps(refused(response, 422, "validation_failed"))
        check_silence(response)
        assert count(api, ids["users"])["n_records"] == 0

    def test_lists_few_and_short_names_of_columns(self, dataset_ids: tuple[Api, dict[str, str]]) -> None:
        api, ids = dataset_ids
        names = ["x", "n" * 5000, "a\u202eb", "-1e5", *(f"column {i}" for i in range(900))]
        table = {name: [0.5] for name in names}
        bodies = (
            (CSV, (",".join(names) + "\n").encode()),
            (JSON, json.dumps({"columns": names, "rows": []}).encode()),
            (ARROW, arrow(**table)),
        )
        for form in bodies:
            errors = refused(send(api, ids["clip"], form), 422, "validation_failed")["errors"]
            assert [error["message"] for error in errors] == [
                "column y is missing: add it",
                f"column {'n' * 64}… is not declared: remove it",
                "column 3 (counted from 1) is not declared: remove it",
                "column 4 (counted from 1) is not declared: remove it",
                "column column 0 is not declared: remove it",
                "column column 1 is not declared: remove it",
                "each of 898 more columns is not declared: remove it",
            ]

    def test_of_an_unsuitable_format_is_rejected(self, dataset_ids: tuple[Api, dict[str, str]]) -> None:
        api, ids = dataset_ids
        refused(send(api, ids["users"], FORMS["npy"]), 415, "unsupported_media_type")  # an array has no users
        refused(send(api, ids["clip"], WITH_USERS["csv"]), 422, "validation_failed")  # users are not declared
        for kind in ("", "text/plain", "application/octet-stream", "multipart/form-data", "4711"):
            response = send(api, ids["clip"], (kind, b"x"))
            assert "application/x-npy" in refused(response, 415, "unsupported_media_type")["detail"]


class TestArrowStream:
    @pytest.mark.slow
    def test_with_changed_bytes_is_read_or_rejected(self) -> None:
        """Run in a separate process, because a stream that passes a wrong check crashes it."""
        command = [sys.executable, "-m", "tests.service.mutated_arrow", "1000", "1"]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        found = json.loads(ran.stdout)
        assert [set(each) for each in found.values()] == [{"read", "refused"}] * 6


@SQLITE_KIND_ONLY
class TestWrongDataset:
    def test_a_local_dataset_accepts_no_records(self, started: Callable[..., Api]) -> None:
        api = started()
        path = f"/datasets/{api.dataset()['id']}/records"
        for response in (api.post(path, RECORD), api.get(path), api.delete(f"{path}?all=true")):
            refused(response, 409, "conflict")
        refused(send(api, unknown("ds"), FORMS["csv"]), 404, "not_found")

    def test_without_a_key_the_error_names_the_setting(self, started: Callable[..., Api]) -> None:
        api = started()
        dataset_id = api.dataset(trust="central", user_feature="who")["id"]
        response = send(api, dataset_id, WITH_USERS["csv"])
        assert "set SFUMATO_RECORDS_KEY" in refused(response, 503, "unavailable")["detail"]
        assert count(api, dataset_id)["n_records"] == 0

    def test_with_another_key_the_error_names_it(self, started: Callable[..., Api], over: Callable[..., Api]) -> None:
        first, second = (encryption.encode_key(encryption.new_secret()) for _ in range(2))
        api = started(records_key=first)
        dataset_id = api.dataset(trust="central", user_feature="who")["id"]
        assert send(api, dataset_id, WITH_USERS["csv"]).status_code == 201
        later = Api(over(api.database, records_key=second).http, api.database, api.secret)
        missing = encryption.key_id(base64.b64decode(first))
        for response in (send(later, dataset_id, WITH_USERS["csv"]), later.get(f"/datasets/{dataset_id}/records")):
            assert f"SFUMATO_RECORDS_KEY lacks the key {missing}" in refused(response, 503, "unavailable")["detail"]
            assert first not in response.text
        assert later.delete(f"/datasets/{dataset_id}/records?all=true").status_code == 204


@SQLITE_KIND_ONLY
class TestLimits:
    @pytest.fixture
    def limited(self, started: Callable[..., Api], monkeypatch: pytest.MonkeyPatch) -> tuple[Api, str]:
        """Return an API client with low limits and the id of a dataset."""
        for reader in (record_formats.JsonReader, record_formats.ArrowReader):
            monkeypatch.setattr(reader, "max_bytes", 64)
        limits = {"max_records_bytes": 4096, "max_upload_records": 100, "max_dataset_records": 120}
        api = started(records_key=encryption.encode_key(encryption.new_secret()), **limits)
        return api, api.dataset(trust="central")["id"]

    def test_of_a_body_apply_to_declared_and_received_bytes(self, limited: tuple[Api, str]) -> None:
        api, dataset_id = limited
        body = b"x,y\n" + b"0.5,0.5\n" * 600
        refused(send(api, dataset_id, (CSV, body)), 413, "payload_too_large")
        pieces = (body[start : start + 100] for start in range(0, len(body), 100))
        response = api.post(f"/datasets/{dataset_id}/records", content=pieces, headers={"content-type": CSV})
        refused(response, 413, "payload_too_large")
        for form in ("json", "arrow"):  # formats that are parsed as a whole have a lower limit
            assert "64 bytes" in refused(send(api, dataset_id, FORMS[form]), 413, "payload_too_large")["detail"]
        assert count(api, dataset_id)["n_records"] == 0
        assert send(api, dataset_id, FORMS["csv"]).status_code == 201

    def test_of_an_upload_and_of_a_dataset_apply(self, limited: tuple[Api, str]) -> None:
        api, dataset_id = limited
        for n_records, status, code, message in (
            (101, 413, "payload_too_large", "too many records: at most 100 per upload"),
            (100, 201, "", ""),
            (21, 422, "validation_failed", "a dataset may have at most 120 records"),
            (20, 201, "", ""),
        ):
            response = send(api, dataset_id, (NPY, npy(np.random.default_rng(n_records).uniform(0, 1, (n_records, 2)))))
            assert response.status_code == status
            assert not code or message in refused(response, status, code)["detail"]
        assert count(api, dataset_id)["n_records"] == 120

    def test_of_memory_apply_until_uploads_end(self, database_kind: str) -> None:
        limit = upload_memory.MemoryLimit(100, "too many")
        with upload_memory.MemoryReservation(limit) as first, upload_memory.MemoryReservation(limit) as second:
            first.grow(60)
            second.grow(40)
            with pytest.raises(Unavailable):
                second.grow(1)
            assert limit.n_bytes == 100
        assert limit.n_bytes == 0


class RefusingReader:
    """A reader that refuses any bytes."""

    def feed(self, piece: bytes) -> None:
        raise BadRequest("no")

    def finish(self) -> None:
        raise AssertionError("the body was not whole")


class TestIncompleteBody:
    @SQLITE_ONLY
    def test_is_rejected(self, api: Api) -> None:
        """Simulate a client that disconnects."""
        dataset_id = api.dataset(trust="central")["id"]
        app = api.http._transport._asgi.app  # type: ignore[attr-defined]
        sent: list[Any] = []
        messages = [{"type": "http.request", "body": b"x,y\n0.5,0.5\n", "more_body": True}]

        async def receive() -> Any:
            return messages.pop(0) if messages else {"type": "http.disconnect"}

        async def send_message(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http", "method": "POST", "path": f"/v1/datasets/{dataset_id}/records", "query_string": b"",
            "raw_path": b"", "http_version": "1.1", "scheme": "http", "server": ("t", 80), "client": ("t", 1),
            "root_path": "",
            "headers": [(b"content-type", b"text/csv"), (b"authorization", f"Bearer {api.secret}".encode())],
        }  # fmt: skip
        loop = api.http._transport._loop  # type: ignore[attr-defined]
        asyncio.run_coroutine_threadsafe(app(scope, receive, send_message), loop).result(30)
        assert sent[0]["status"] == 400
        assert count(api, dataset_id)["n_records"] == 0

    def test_is_read_to_its_end_before_the_error_is_sent(self) -> None:
        """Otherwise a client that still sends would get a connection error instead of the response."""
        left = [b"x" * (1 << 20) for _ in range(4)]

        async def body() -> Any:
            while left:
                yield left.pop()

        with pytest.raises(BadRequest, match="no"):
            asyncio.run(upload_memory.read_upload(body(), RefusingReader(), hashlib.sha256()))
        assert left == []
