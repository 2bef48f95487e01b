"""Uploads that cannot be: refused whole, for a stated reason, without a value of theirs, by a gateway that goes on."""

import asyncio
import base64
import hashlib
import io
import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest

from models import sealing
from models.db import Database
from models.settings import Settings
from service import record_formats, uploads
from service.problems import BadRequest, Unavailable
from tests.service.api import Api, refused, unknown
from tests.service.mutated_arrow import NO_SCHEMA
from tests.service.test_records import FORMS, WITH_USERS, arrow, counted, npy, send

CSV, JSON, NPY = "text/csv", "application/json", "application/x-npy"
ARROW = "application/vnd.apache.arrow.stream"
SECRET = "4711.25"  # a value nobody may find in a refusal
GOOD = [0.5, 0.5]


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


WHOLE_NPY, WHOLE_ARROW = npy([GOOD] * 50), FORMS["arrow"][1]
BAD: dict[str, tuple[str, bytes, int, str, str]] = {  # what: (kind, body, status, code, what the refusal says)
    "no body": (CSV, b"", 422, "validation_failed", "header row is missing"),
    "no body, npy": (NPY, b"", 400, "bad_request", "no NPY file"),
    "no body, json": (JSON, b"", 400, "bad_request", "not JSON"),
    "no body, arrow": (ARROW, b"", 400, "bad_request", "not a whole Arrow IPC stream"),
    "no records": (CSV, b"x,y\n", 422, "validation_failed", "no records"),
    "no records, json": (JSON, b'{"columns":["x","y"],"rows":[]}', 422, "validation_failed", "no records"),
    "no records, npy": (NPY, npy(np.empty((0, 2))), 422, "validation_failed", "no records"),
    "no records, arrow": (ARROW, arrow(x=pa.array([], pa.float64()), y=pa.array([], pa.float64())), 422,
                          "validation_failed", "no records"),
    "a column missing": (CSV, b"x\n0.5\n", 422, "validation_failed", "column y is missing"),
    "no header": (CSV, b"4711.25,0.5\n0.5,0.5\n", 422, "validation_failed", "column x is missing"),
    "a column too many": (CSV, b"x,4711.25,y\n1,2,3\n", 422, "validation_failed", "from 1: column 2"),
    "a column twice": (CSV, b"x,y,x\n1,1,1\n", 422, "validation_failed", "column x is there more than once"),
    "columns of json": (JSON, rows(columns=("x", "4711.25")), 422, "validation_failed", "column y is missing"),
    "columns of arrow": (ARROW, arrow(x=[1.0], z=[2.0]), 422, "validation_failed", "column y is missing"),
    "columns of npy": (NPY, npy([[1.0, 2.0, 3.0]]), 422, "validation_failed", "shape (n, 2)"),
    "no number": (CSV, b"x,y\n0.5,0.5\n0.5,secret 4711.25\n", 422, "validation_failed", "record 1: y is not a finite"),
    "an empty cell": (CSV, b"x,y\n,0.5\n", 422, "validation_failed", "record 0: x is not a finite"),
    "not a number": (CSV, b"x,y\n0.5,0.5\nnan,1\n", 422, "validation_failed", "record 1: x is not a finite"),
    "only Python's number": (CSV, b"x,y\n0.5,0.5\n0.5,0_4711\n", 422, "validation_failed", "record 1: y is not a fin"),
    "wide digits": (CSV, "x,y\n０.５,0.5\n".encode(), 422, "validation_failed", "record 0: x is not a finite"),
    "infinite": (NPY, npy([GOOD, [np.inf, 1]]), 422, "validation_failed", "record 1: x is not a finite"),
    "infinite, far in": (NPY, npy([GOOD] * 200_000 + [[1, -np.inf]]), 422, "validation_failed", "record 200000: y is"),
    "infinite, arrow": (ARROW, arrow(x=[0.5, float("nan")], y=[0.5, 0.5]), 422, "validation_failed", "record 1: x is"),
    "text in json": (JSON, rows([0.5, SECRET]), 422, "validation_failed", "record 1: y is not a finite number"),
    "null in json": (JSON, rows([None, 0.5]), 422, "validation_failed", "record 1: x is not a finite number (rec"),
    "a number too large": (JSON, rows().replace(b"[0.5, 0.5]", b"[0.5, 1e999]"), 422, "validation_failed", "finite"),
    "not a number in json": (JSON, rows().replace(b"[0.5, 0.5]", b"[0.5, NaN]"), 400, "bad_request", "no NaN"),
    "no row in json": (JSON, rows(SECRET), 422, "validation_failed", "record 1: a list of values is needed"),
    "a short row": (JSON, rows([0.5]), 422, "validation_failed", "record 1: there are not the 2 values"),
    "a long line": (CSV, b"x,y\n0.5,0.5\n0.5,0.5,4711.25\n", 422, "validation_failed", "record 1: the line has not"),
    "a cut-off line": (CSV, b"x,y\n0.5,0.5\n0.5", 422, "validation_failed", "record 1: the line has not the 2 cells"),
    "another object": (JSON, b'{"columns":["x","y"],"rows":[],"4711.25":1}', 422, "validation_failed", "an object of"),
    "broken json": (JSON, b'{"columns":["x","y"],"rows":[[4711.25,', 400, "bad_request", "not JSON"),
    "broken json after a misfit": (JSON, b'{"columns":["x","y"],"rows":[["4711.25",1]', 400, "bad_request", "not JSON"),
    "a misfit without columns": (JSON, b'{"rows":[["4711.25"]]}', 422, "validation_failed", "an object of"),
    "a misfit of no column": (JSON, b'{"columns":["x","y"],"rows":[[1,1,"4711.25"]]}', 422, "validation_failed",
                              "record 0: a value is not"),
    "a misfit among other columns": (JSON, b'{"columns":[1],"rows":[["x"]]}', 422, "validation_failed", "an object of"),
    "no text in json": (JSON, b'{"columns":["x","\xff"],"rows":[]}', 400, "bad_request", "not JSON"),
    "no text after a misfit": (JSON, b'{"rows":[["1"]],"columns":["\xff"]}', 400, "bad_request", "not JSON"),
    "deep json": (JSON, b"[" * 200_000, 422, "validation_failed", "an object of"),
    "no text": (CSV, b"x,y\n0.5,\xff\n", 400, "bad_request", "not UTF-8"),
    "a cut-off character": (CSV, "x,ü".encode()[:-1], 400, "bad_request", "not UTF-8"),
    "a cell over two lines": (CSV, b'x,y\n"4711.25\n",0.5\n', 400, "bad_request", "record a line"),
    "a quote left open": (CSV, b'x,y\n0.5,"4711.25\n', 400, "bad_request", "record a line"),
    "a line without end": (CSV, b"x,y\n" + b"1" * 3_000_000, 400, "bad_request", "a line is over"),
    "whole numbers": (NPY, npy(np.ones((3, 2), dtype=np.int64)), 422, "validation_failed", "float64 or float32"),
    "big-endian": (NPY, npy(np.ones((3, 2), dtype=">f8")), 422, "validation_failed", "little-endian"),
    "complex": (NPY, npy(np.ones((3, 2), dtype=complex)), 422, "validation_failed", "float64 or float32"),
    "objects": (NPY, npy(np.array([[0.5, SECRET]], dtype=object)), 422, "validation_failed", "float64 or float32"),
    "a pickle": (NPY, pickle.dumps([GOOD]), 400, "bad_request", "no NPY file"),
    "one dimension": (NPY, npy([0.5, 0.5]), 422, "validation_failed", "shape (n, 2)"),
    "column by column": (NPY, npy(np.asfortranarray([GOOD, GOOD])), 422, "validation_failed", "row by row"),
    "a shape that lies": (NPY, npy_head("{'descr': '<f8', 'fortran_order': False, 'shape': (-1, 2)}"), 422,
                          "validation_failed", "shape (n, 2)"),
    "a head that is code": (NPY, npy_head("__import__('os').abort()"), 400, "bad_request", "no NPY file"),
    "a head too deep": (NPY, npy_head("(" * 9000), 400, "bad_request", "no NPY file"),
    "a head too long": (NPY, npy_head(" " * 20_000), 400, "bad_request", "no NPY file"),
    "npy cut off in its head": (NPY, WHOLE_NPY[:30], 400, "bad_request", "cut-off"),
    "npy cut off": (NPY, WHOLE_NPY[:-7], 400, "bad_request", "shorter than its header says"),
    "npy cut off between rows": (NPY, WHOLE_NPY[:-16], 400, "bad_request", "shorter than its header says"),
    "npy too long": (NPY, WHOLE_NPY + b"\0", 400, "bad_request", "longer than its header says"),
    "arrow cut off": (ARROW, WHOLE_ARROW[:-40], 400, "bad_request", "not a whole Arrow"),
    "arrow with a part missing": (ARROW, WHOLE_ARROW[:-60] + WHOLE_ARROW[-8:], 400, "bad_request", "not an Arrow"),
    "arrow of nothing": (ARROW, b"\xff\xff\xff\xff\0\0\0\0", 400, "bad_request", "not an Arrow"),
    "nulls": (ARROW, arrow(x=[0.5, None], y=GOOD), 422, "validation_failed", "nulls"),
    "arrow without a schema": (ARROW, NO_SCHEMA, 400, "bad_request", "not an Arrow"),
    "a name that is no text": (ARROW, WHOLE_ARROW.replace(b"x\0\0\0", b"\xff\0\0\0"), 400, "bad_request",
                               "not an Arrow"),
    "text in arrow": (ARROW, arrow(x=["4711.25"], y=[0.5]), 422, "validation_failed", "column x is of floats"),
    "compressed": (ARROW, compressed(), 422, "validation_failed", "neither compressed"),
    "a dictionary": (ARROW, arrow(x=pa.array([0.5, 0.5]).dictionary_encode(), y=GOOD), 422, "validation_failed",
                     "column x is of floats"),
}  # fmt: skip


def assert_silent(answer: httpx.Response) -> None:
    said = answer.text.replace(answer.headers["x-request-id"], "")  # which is random
    assert "4711" not in said
    assert "secret" not in said


class TestABadBody:
    @pytest.mark.parametrize("declared", ["clip", "refuse"])
    @pytest.mark.parametrize("what", BAD)
    def test_is_refused_and_nothing_of_it_is_stored(self, api: Api, what: str, declared: str) -> None:
        kind, body, status, code, says = BAD[what]
        made = api.dataset(trust="central", out_of_bounds=declared)
        answer = send(api, made["id"], (kind, body))
        document = refused(answer, status, code)
        assert says in document["detail"] + json.dumps(document.get("errors", ""))
        assert_silent(answer)
        assert counted(api, made["id"])["n_records"] == 0
        assert send(api, made["id"], FORMS["csv"]).status_code == 201  # and life goes on

    @pytest.mark.parametrize(
        ("kind", "body", "says"),
        [
            (CSV, b"x,y\n0.5,0.5\n", "column who is missing"),
            (CSV, b"who,x,y\na,0.5,0.5\n  ,0.5,0.5\n", "record 1: who is empty"),
            (CSV, b"who,x,y\n" + b"4711" * 20 + b",0.5,0.5\n", "record 0: who is empty or over 64 bytes"),
            (JSON, b'{"columns":["who","x","y"],"rows":[[4711.25,0.5,0.5]]}', "record 0: who is neither text nor"),
            (JSON, b'{"columns":["who","x","y"],"rows":[[1,0.5,"4711.25"]]}', "record 0: y is not a number"),
            (JSON, b'{"columns":["who","x","y"],"rows":[[null,0.5,0.5]]}', "record 0: who is neither text nor"),
            (JSON, b'{"columns":["who","x","y"],"rows":[["' + b"4711" * 20 + b'",0.5,0.5]]}', "over 64 bytes"),
            (ARROW, arrow(who=[4711.25], x=[0.5], y=[0.5]), "column who is of text or whole numbers"),
        ],
    )
    def test_is_refused_for_its_users(self, api: Api, kind: str, body: bytes, says: str) -> None:
        made = api.dataset(trust="central", user_feature="who")
        answer = send(api, made["id"], (kind, body))
        assert says in json.dumps(refused(answer, 422, "validation_failed"))
        assert_silent(answer)
        assert counted(api, made["id"])["n_records"] == 0

    def test_with_users_is_no_array(self, api: Api) -> None:
        made = api.dataset(trust="central", user_feature="who")
        refused(send(api, made["id"], FORMS["npy"]), 415, "unsupported_media_type")

    def test_of_users_where_there_are_none_has_a_column_too_many(self, api: Api) -> None:
        made = api.dataset(trust="central")
        refused(send(api, made["id"], WITH_USERS["csv"]), 422, "validation_failed")

    @pytest.mark.parametrize("kind", ["", "text/plain", "application/octet-stream", "multipart/form-data", "4711"])
    def test_of_another_kind_is_not_read(self, api: Api, kind: str) -> None:
        made = api.dataset(trust="central")
        answer = send(api, made["id"], (kind, b"x"))
        assert "application/x-npy" in refused(answer, 415, "unsupported_media_type")["detail"]


class TestAnArrowStream:
    def test_with_octets_changed_is_read_or_refused(self) -> None:
        """Records' and reports', in a process of its own: where the reader's checks do not hold, it ends."""
        command = [sys.executable, "-m", "tests.service.mutated_arrow", "1000", "1"]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        found = json.loads(ran.stdout)
        assert [set(each) for each in found.values()] == [{"read", "refused"}] * 2


class TestWhereItCannotGo:
    def test_a_local_dataset_takes_none(self, api: Api) -> None:
        made = api.dataset()
        refused(send(api, made["id"], FORMS["csv"]), 409, "conflict")
        refused(api.get(f"/datasets/{made['id']}/records"), 409, "conflict")
        refused(api.request("DELETE", f"/datasets/{made['id']}/records"), 409, "conflict")
        refused(send(api, unknown("ds"), FORMS["csv"]), 404, "not_found")

    def test_without_a_key_the_setting_is_named(self, started: Callable[..., Api], database: Database) -> None:
        api = started()
        made = api.dataset(trust="central", user_feature="who")
        answer = send(api, made["id"], WITH_USERS["csv"])
        assert "set SFUMATO_RECORDS_KEY" in refused(answer, 503, "unavailable")["detail"]
        assert counted(api, made["id"])["n_records"] == 0

    def test_with_another_key_than_before_it_is_named(
        self, started: Callable[..., Api], over: Callable[..., Api]
    ) -> None:
        first, second = (sealing.write_key(sealing.new_secret()) for _ in range(2))
        api = started(records_key=first)
        made = api.dataset(trust="central", user_feature="who")
        assert send(api, made["id"], WITH_USERS["csv"]).status_code == 201
        later = over(api.database, records_key=second)
        later = Api(later.http, api.database, api.secret)
        for answer in (send(later, made["id"], WITH_USERS["csv"]), later.get(f"/datasets/{made['id']}/records")):
            lacking = sealing.key_id(base64.b64decode(first))
            assert f"SFUMATO_RECORDS_KEY lacks the key {lacking}" in refused(answer, 503, "unavailable")["detail"]
            assert first not in answer.text
        assert later.request("DELETE", f"/datasets/{made['id']}/records").status_code == 204


class TestTooMuch:
    @pytest.fixture
    def api(self, started: Callable[..., Api]) -> Api:
        return started(
            records_key=sealing.write_key(sealing.new_secret()),
            max_records_bytes=4096,
            max_upload_records=100,
            max_dataset_records=120,
        )

    def test_in_one_body_is_refused_as_declared_and_as_it_comes(self, api: Api) -> None:
        made = api.dataset(trust="central")
        body = b"x,y\n" + b"0.5,0.5\n" * 600
        refused(send(api, made["id"], (CSV, body)), 413, "payload_too_large")

        def pieces() -> Iterator[bytes]:
            for start in range(0, len(body), 100):
                yield body[start : start + 100]

        answer = api.post(f"/datasets/{made['id']}/records", content=pieces(), headers={"content-type": CSV})
        refused(answer, 413, "payload_too_large")
        assert counted(api, made["id"])["n_records"] == 0

    def test_in_one_upload_or_dataset_is_refused_and_the_rest_stored(self, api: Api) -> None:
        made = api.dataset(trust="central")
        document = refused(send(api, made["id"], (NPY, npy([GOOD] * 101))), 413, "payload_too_large")
        assert "an upload takes 100 records" in document["detail"]
        assert send(api, made["id"], (NPY, npy([GOOD] * 100))).status_code == 201
        document = refused(send(api, made["id"], (NPY, npy([GOOD] * 21))), 422, "validation_failed")
        assert "a dataset takes 120 records" in document["detail"]
        assert send(api, made["id"], (NPY, npy([GOOD] * 20))).status_code == 201
        assert counted(api, made["id"])["n_records"] == 120

    @pytest.mark.parametrize("form", ["json", "arrow"])
    def test_in_a_form_that_is_read_whole_has_a_bound_of_its_own(
        self, started: Callable[..., Api], monkeypatch: pytest.MonkeyPatch, form: str
    ) -> None:
        for reader in (record_formats.JsonReader, record_formats.ArrowReader):
            monkeypatch.setattr(reader, "max_bytes", 64)
        api = started(records_key=sealing.write_key(sealing.new_secret()))
        made = api.dataset(trust="central")
        assert "64 bytes" in refused(send(api, made["id"], FORMS[form]), 413, "payload_too_large")["detail"]
        assert send(api, made["id"], FORMS["csv"]).status_code == 201

    def test_at_once_is_put_off_and_what_is_over_makes_room(self) -> None:
        held = uploads.Uploads(100)
        with held.begin() as first, held.begin() as second:
            first.take(60)
            second.take(40)
            with pytest.raises(Unavailable):
                second.take(1)
            assert held.n_bytes == 100
        assert held.n_bytes == 0


class _Eager:
    """Feeds on anything."""

    fed = b""

    def feed(self, piece: bytes) -> None:
        self.fed += piece

    def finish(self) -> None:
        raise AssertionError("the body was not whole")


class TestABodyThatBreaksOff:
    def test_is_no_upload(self, database: Database, settings: Settings, api: Api) -> None:
        """As a client that leaves looks to the application."""
        made = api.dataset(trust="central")
        app = api.http._transport._asgi.app  # type: ignore[attr-defined]
        sent: list[Any] = []
        messages = [
            {"type": "http.request", "body": b"x,y\n0.5,0.5\n", "more_body": True},
            {"type": "http.disconnect"},
        ]

        async def receive() -> Any:
            return messages.pop(0) if messages else {"type": "http.disconnect"}

        async def answer(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http", "method": "POST", "path": f"/v1/datasets/{made['id']}/records", "query_string": b"",
            "raw_path": b"", "http_version": "1.1", "scheme": "http", "server": ("t", 80), "client": ("t", 1),
            "root_path": "",
            "headers": [(b"content-type", b"text/csv"), (b"authorization", f"Bearer {api.secret}".encode())],
        }  # fmt: skip
        loop = api.http._transport._loop  # type: ignore[attr-defined]
        asyncio.run_coroutine_threadsafe(app(scope, receive, answer), loop).result(30)
        assert sent[0]["status"] == 400
        assert counted(api, made["id"])["n_records"] == 0

    def test_is_read_to_its_end_before_a_refusal_is_sent(self) -> None:
        """A client that still sends would find a broken connection in place of the answer."""
        left = [b"x" * (1 << 20) for _ in range(4)]

        async def body() -> Any:
            while left:
                yield left.pop()

        class Refusing(_Eager):
            def feed(self, piece: bytes) -> None:
                raise BadRequest("no")

        with pytest.raises(BadRequest, match="no"):
            asyncio.run(uploads.read(body(), Refusing(), hashlib.sha256()))
        assert left == []
