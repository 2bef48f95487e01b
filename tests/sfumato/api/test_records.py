"""Uploads of records: bodies, parts, and keys that prevent a second upload."""

import io
import re
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pandas as pd
import pytest

from sfumato.api.client import Client
from sfumato.errors import ApiProblem, InvalidPoint, InvalidSpec, Unreachable
from tests.sfumato.answers import DATASET, lost, ok, serving
from tests.sfumato.scripted import refusal

pytestmark = pytest.mark.usefixtures("three_attempts")

CENTRAL = DATASET | {"trust": "central", "user_feature": "who", "max_records_per_user": 3, "out_of_bounds": "refuse"}
STORED = {"id": "upl_1", "n_records": 2, "n_clipped": 1}
POST = "POST datasets/ds_1/records"
ROWS = [[0.5, 0.25], [1.0, 0.0]]


def sent(service: Any) -> list[tuple[str, str, bytes]]:
    """Return media type, idempotency key or name of the upload, and body of every request."""
    return [
        (request.headers["Content-Type"], request.headers.get("Idempotency-Key") or name_of(request), request.content)
        for request in service.requests
        if request.method == "POST"
    ]


def name_of(request: httpx.Request) -> str:
    """Return the name of an upload in parts."""
    return str(request.url.params["upload"])


def parts_of(service: Any) -> list[tuple[str, str]]:
    """Return number and `last` of each part that was sent."""
    return [(each.url.params["part"], each.url.params["last"]) for each in service.requests]


class TestDataset:
    def test_declares_users_and_bounds(self) -> None:
        service, client = serving({"POST datasets": ok(CENTRAL, 201)})
        made = client.create_dataset(
            "c", (), epsilon=1, trust="central", user_feature="who", max_records_per_user=3, out_of_bounds="refuse"
        )
        (body,) = service.bodies()
        assert (body["user_feature"], body["max_records_per_user"], body["out_of_bounds"]) == ("who", 3, "refuse")
        assert (made.user_feature, made.max_records_per_user, made.out_of_bounds) == ("who", 3, "refuse")

    def test_is_granted_a_delta_on_request(self) -> None:
        service, client = serving({"POST datasets": ok(CENTRAL, 201)})
        client.create_dataset("c", (), epsilon=1, trust="central", delta=1e-6)
        client.create_dataset("c", (), epsilon=1, trust="central")
        assert [body.get("delta") for body in service.bodies()] == [1e-6, None]

    def test_of_an_older_service_has_the_defaults(self) -> None:
        _, client = serving({"GET datasets/ds_1": ok(DATASET)})
        found = client.get_dataset("ds_1")
        assert (found.user_feature, found.max_records_per_user, found.out_of_bounds) == (None, 1, "clip")


class TestUploading:
    @pytest.mark.parametrize(("given", "kind"), [(ROWS, "<f8"), (np.asfortranarray(ROWS, dtype=np.float32), "<f4")])
    def test_sends_an_array_with_its_type(self, given: Any, kind: str) -> None:
        service, client = serving({POST: ok(STORED, 201)})
        done = client.upload_records("ds_1", given)
        ((media_type, key, body),) = sent(service)
        array = np.load(io.BytesIO(body), allow_pickle=False)
        assert (media_type, array.dtype, array.tolist()) == ("application/x-npy", np.dtype(kind), ROWS)
        assert array.flags.c_contiguous
        assert len(key) >= 32
        assert (done.id, done.n_records, done.n_clipped) == ("upl_1", 2, 1)

    def test_an_upload_has_one_key_for_all_its_attempts(self) -> None:
        service, client = serving({POST: [lost, refusal(503, "unavailable"), ok(STORED, 201), ok(STORED, 201)]})
        client.upload_records("ds_1", ROWS)
        client.upload_records("ds_1", ROWS)
        first, second, third, other = sent(service)
        assert first == second == third
        assert other[1] != first[1]
        assert other[2] == first[2]

    def test_sends_users_as_text(self) -> None:
        service, client = serving({"GET datasets/ds_1": ok(CENTRAL), POST: ok(STORED, 201)})
        client.upload_records("ds_1", ROWS, users=["a,b", 7], idempotency_key="mine")
        assert sent(service) == [("text/csv", "mine", b'x,y,who\n0.5,0.25,"a,b"\n1.0,0.0,7\n')]

    def test_matches_the_columns_of_a_frame_and_takes_users_from_it(self) -> None:
        service, client = serving({"GET datasets/ds_1": ok(CENTRAL), POST: ok(STORED, 201)})
        names = [feature["name"] for feature in CENTRAL["features"]]
        frame = pd.DataFrame(ROWS, columns=names).assign(who=["a", "b"])
        for order in (["who", *names], [*names[::-1], "who"]):
            client.upload_records("ds_1", frame[order], idempotency_key="mine")
            client.upload_records("ds_1", frame[order].to_dict("records"), idempotency_key="mine")
        assert set(sent(service)) == {("text/csv", "mine", b"x,y,who\n0.5,0.25,a\n1.0,0.0,b\n")}
        for wrong in (frame[["who", names[0]]], frame.assign(z=1)):
            with pytest.raises(InvalidPoint, match=f"Select the columns {', '.join(names)}"):
                client.upload_records("ds_1", wrong)
        assert len(sent(service)) == 4

    def test_names_the_missing_column_of_users(self) -> None:
        service, client = serving({"GET datasets/ds_1": ok(CENTRAL), POST: refusal(415, "unsupported_media_type")})
        with pytest.raises(InvalidSpec, match="have no column who, which names the user"):
            client.upload_records("ds_1", pd.DataFrame(ROWS, columns=["x", "y"]))
        assert sent(service) == []
        with pytest.raises(InvalidSpec, match="needs the user or the attributes of each record: pass a table"):
            client.upload_records("ds_1", ROWS)

    @pytest.mark.parametrize("kind", [str, Path])
    def test_a_path_is_a_file_and_no_table(self, kind: Any, tmp_path: Path) -> None:
        _, client = serving({POST: ok(STORED, 201)})
        (tmp_path / "people.csv").write_text("x,y\n0.5,0.25\n")
        assert client.upload_file("ds_1", kind(tmp_path / "people.csv")).n_records == STORED["n_records"]
        with pytest.raises(InvalidSpec, match="send a file with upload_file"):
            client.upload_records("ds_1", kind(tmp_path / "people.csv"))

    def test_content_in_place_of_a_path_is_refused_with_the_right_call(self, tmp_path: Path) -> None:
        service, client = serving({POST: ok(STORED, 201)})
        text = "x,y\n0.5,0.25\n"
        (tmp_path / "people.csv").write_text(text)
        with (tmp_path / "people.csv").open() as opened:
            for content in (text, text.encode(), opened):
                with pytest.raises(InvalidSpec, match="send a file with upload_file"):
                    client.upload_records("ds_1", content)
            for content, remedy in (
                (text, "write it to a file"),
                (text.encode(), "upload_records"),
                (ROWS, "upload_records"),
            ):
                with pytest.raises(InvalidSpec, match=f"path must be the path of a file; .*{remedy}"):
                    client.upload_file("ds_1", content)
        assert sent(service) == []

    @pytest.mark.parametrize("users", [["a", 7], ("a", 7), np.array(["a", 7], dtype=object), pd.Series(["a", 7])])
    def test_takes_users_that_are_text_or_whole_numbers(self, users: Any) -> None:
        service, client = serving({"GET datasets/ds_1": ok(CENTRAL), POST: ok(STORED, 201)})
        client.upload_records("ds_1", ROWS, users=users)
        ((_, _, body),) = sent(service)
        assert body == b"x,y,who\n0.5,0.25,a\n1.0,0.0,7\n"

    @pytest.mark.parametrize(
        ("users", "message"),
        [
            *(
                (["a", missing], r"record 2 \(counted from 1\) has no user")
                for missing in (None, np.nan, pd.NA, pd.NaT, "")
            ),
            *(
                (pd.Series([7, None], dtype=kind), r"record 2 \(counted from 1\) has no user")
                for kind in (object, "Int64")
            ),
            *(
                ([7, other], r"the user of record 2 \(counted from 1\) must be text or a whole number; got")
                for other in (7.0, np.float64(7), True, b"a", "\ud800", pd.Timestamp(0), ("a",), np.timedelta64(1, "s"))
            ),
            (pd.Series([7, None]), r"the user of record 1 .* got float; .* fill the gap"),
            (np.array([7.0, 8.0]), "got float"),
            ("ab", "users must be a list or column of ids; got str"),
            ({"a", "b"}, "got set"),
        ],
    )
    def test_refuses_other_users_and_sends_nothing(self, users: Any, message: str) -> None:
        service, client = serving({"GET datasets/ds_1": ok(CENTRAL)})
        with pytest.raises(InvalidSpec, match=message):
            client.upload_records("ds_1", ROWS, users=users)
        names = [feature["name"] for feature in CENTRAL["features"]]
        if not isinstance(users, str | set):
            with pytest.raises(InvalidSpec, match=message):
                client.upload_records(
                    "ds_1",
                    pd.DataFrame(ROWS, columns=names).assign(
                        who=pd.Series(users, dtype=getattr(users, "dtype", object))
                    ),
                )
        assert sent(service) == []

    def test_does_not_send_invalid_records(self) -> None:
        service, client = serving({"GET datasets/ds_1": ok(DATASET)})
        for bad in ([0.5], [[np.nan, 1]], [["4711", "x"]], [[1], [1, 2]], [[np.inf, 0]]):
            with pytest.raises(InvalidPoint) as raised:
                client.upload_records("ds_1", bad)
            assert "4711" not in str(raised.value)
        with pytest.raises(InvalidSpec, match="one entry for each record"):
            client.upload_records("ds_1", ROWS, users=["a"])
        with pytest.raises(InvalidSpec, match="no user_feature"):
            client.upload_records("ds_1", ROWS, users=["a", "b"])
        assert sent(service) == []


class TestFiles:
    def upload(self, path: Path, **options: Any) -> tuple[list[tuple[str, str, bytes]], list[int]]:
        service, client = serving({POST: lambda _: httpx.Response(201, json=STORED)})
        progress: list[int] = []
        client.upload_file("ds_1", path, on_progress=progress.append, **options)
        return sent(service), progress

    def test_of_text_are_sent_in_whole_lines_with_the_header(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sfumato.api.records.PART_BYTES", 10)
        path = tmp_path / "a.csv"
        path.write_bytes(b"x,y\n1,2\n3,4\n5,6\n7,8")
        parts, progress = self.upload(path)
        assert [body for _, _, body in parts] == [b"x,y\n1,2\n3,4\n5,6\n", b"x,y\n7,8"]
        assert progress == [16, 19]
        ((name,),) = ({key for _, key, _ in parts},)
        assert len(name) == 64

    def test_have_keys_that_depend_on_the_content(self, tmp_path: Path) -> None:
        first, second = tmp_path / "a.csv", tmp_path / "b.csv"
        first.write_bytes(b"x,y\n1,2\n")
        second.write_bytes(b"x,y\n1,3\n")
        assert self.upload(first) == self.upload(first)
        assert self.upload(first)[0][0][1] != self.upload(second)[0][0][1]
        assert self.upload(first, idempotency_key="k")[0][0][1] == "k"

    def test_of_arrays_are_sent_in_parts(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sfumato.api.records.PART_BYTES", 32)
        path = tmp_path / "a.npy"
        rows = np.arange(10.0).reshape(5, 2)
        np.save(path, np.asfortranarray(rows))
        parts, progress = self.upload(path)
        arrays = [np.load(io.BytesIO(body)) for _, _, body in parts]
        assert [array.shape for array in arrays] == [(2, 2), (2, 2), (1, 2)]
        assert np.concatenate(arrays).tolist() == rows.tolist()
        assert progress == [32, 64, 80]

    def test_have_another_name_after_a_correction(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sfumato.api.records.PART_BYTES", 10)
        path = tmp_path / "a.csv"
        names = []
        for last in (b"oops", b"7,8", b"7,8"):
            path.write_bytes(b"x,y\n1,2\n1,2\n1,2\n" * 2 + last)
            names.append({name for _, name, _ in self.upload(path)[0]})
        assert [len(each) for each in names] == [1, 1, 1]
        assert names[0] != names[1] == names[2]

    def test_have_keys_that_depend_on_the_secret_of_the_client(self, tmp_path: Path) -> None:
        path = tmp_path / "a.csv"
        path.write_bytes(b"x,y\n1,2\n")
        keys = set()
        for secret in ("sfk_a", "sfk_b"):
            service, _ = serving({POST: ok(STORED, 201)})
            Client("http://service.example", secret, transport=httpx.MockTransport(service)).upload_file("ds_1", path)
            keys.add(sent(service)[0][1])
        assert len(keys) == 2


MESSAGE = "record 1: y is not a finite number; nothing of this request was stored"
REFUSED = {"detail": MESSAGE, "errors": [{"pointer": "", "message": MESSAGE}]}


class TestParts:
    @pytest.fixture(autouse=True)
    def small_parts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sfumato.api.records.PART_BYTES", 32)

    def failing(self, *answers: Any) -> Exception:
        _, client = serving({POST: list(answers)})
        with pytest.raises((ApiProblem, Unreachable)) as raised:
            client.upload_records("ds_1", ROWS * 3)
        return raised.value

    def test_are_numbered_and_the_last_one_completes_the_upload(self) -> None:
        service, client = serving({POST: lambda _: httpx.Response(201, json=STORED)})
        done = client.upload_records("ds_1", ROWS * 3, allow_duplicates=True)
        assert parts_of(service) == [("1", "false"), ("2", "false"), ("3", "true")]
        assert (done.id, done.n_records, done.n_clipped) == ("upl_1", 6, 3)
        assert {each.url.params["allow_duplicates"] for each in service.requests} == {"true"}
        assert len({name_of(each) for each in service.requests}) == 1

    def test_have_one_name_for_each_idempotency_key(self) -> None:
        service, client = serving({POST: lambda _: httpx.Response(201, json=STORED)})
        for key in ("a" * 255, "b", "b", None, None):
            client.upload_records("ds_1", ROWS * 3, idempotency_key=key)
        names = [name_of(each) for each in service.requests][::3]
        assert names[1] == names[2]
        assert len(set(names)) == 4

    @pytest.mark.parametrize("key", ["é", "two words", "a" * 256, "\n"])
    def test_with_a_key_that_no_header_can_contain_are_not_sent(self, key: str, tmp_path: Path) -> None:
        service, client = serving({})
        (tmp_path / "a.csv").write_text("x\n1\n")
        for upload in (
            lambda: client.upload_records("ds_1", ROWS, idempotency_key=key),
            lambda: client.upload_file("ds_1", tmp_path / "a.csv", idempotency_key=key),
        ):
            with pytest.raises(InvalidSpec, match="visible ASCII characters"):
                upload()
        assert service.requests == []

    def test_that_fail_name_the_record_in_the_whole_upload(self) -> None:
        good, bad = ok(STORED, 201), refusal(422, "validation_failed", **REFUSED)
        assert str(self.failing(bad)).endswith(MESSAGE)
        message = "record 5: y is not a finite number; nothing of this request was stored"
        error = self.failing(good, good, bad)
        assert isinstance(error, ApiProblem)
        assert (error.status, error.code, error.problem["detail"]) == (422, "validation_failed", message)
        assert error.problem["errors"] == [{"pointer": "", "message": message}]
        other = refusal(409, "conflict", detail="record 7 is no record: it conflicts")
        assert str(self.failing(good, other)) == "409 conflict: record 7 is no record: it conflicts"

    def test_that_are_lost_leave_an_incomplete_upload(self) -> None:
        assert "none of its records count: repeat the call" in str(self.failing(ok(STORED, 201), lost, lost, lost))

    def test_whose_last_one_is_lost_may_be_stored(self) -> None:
        good = ok(STORED, 201)
        assert "; the records may be stored: repeat the call" in str(self.failing(good, good, lost, lost, lost))

    def test_of_an_upload_without_a_response_are_repeated_with_the_stated_key(self) -> None:
        service, client = serving({POST: [lost, lost, lost]})
        with pytest.raises(Unreachable, match="the records may be stored") as raised:
            client.upload_records("ds_1", ROWS)
        stated = re.search("idempotency_key='(.+)', which stores them once$", str(raised.value))
        assert stated is not None
        assert service.requests[0].headers["Idempotency-Key"] == stated[1]

    def test_have_a_longer_timeout_if_they_are_large(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sfumato.api.records.PART_BYTES", 1 << 30)
        many = ok(STORED | {"n_records": 400_000}, 201)
        service, client = serving({POST: lambda _: many})
        client.upload_records("ds_1", np.zeros((1 << 19, 2)))
        timeouts = service.requests[0].extensions["timeout"]
        assert timeouts["connect"] == 30
        assert 38 < timeouts["read"] < 39  # 8 MiB
        monkeypatch.setattr("sfumato.api.records.PART_BYTES", 32)
        client.upload_records("ds_1", ROWS * 3)  # the last part is compared with the 800,000 records before
        assert [round(each.extensions["timeout"]["read"]) for each in service.requests[1:]] == [30, 30, 38]


class TestCounting:
    def test_counts_and_deletes_records(self) -> None:
        counts = {"n_records": 5, "n_uploads": 2, "n_clipped": 1, "n_users": None, "n_used": 5}
        service, client = serving(
            {"GET datasets/ds_1/records": ok(counts), "DELETE datasets/ds_1/records": httpx.Response(204)}
        )
        found = client.count_records("ds_1")
        assert (found.n_records, found.n_uploads, found.n_clipped, found.n_users, found.n_used) == (5, 2, 1, None, 5)
        client.delete_records("ds_1", everything=True)
        assert [request.method for request in service.requests] == ["GET", "DELETE"]

    def test_refuses_an_invalid_count(self) -> None:
        _, client = serving({"GET datasets/ds_1/records": ok({"n_records": 5})})
        with pytest.raises(InvalidSpec):
            client.count_records("ds_1")
