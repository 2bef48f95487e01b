"""The client's records: what goes over the wire, part by part, and that a lost answer uploads nothing twice."""

import io
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from sfumato.client import Client
from sfumato.errors import ApiProblem, InvalidPoint, InvalidSpec, Unreachable
from tests.sfumato.answers import DATASET, lost, ok, serving
from tests.sfumato.scripted import refusal

pytestmark = pytest.mark.usefixtures("three_attempts")

CENTRAL = DATASET | {"trust": "central", "user_feature": "who", "max_records_per_user": 3, "out_of_bounds": "refuse"}
STORED = {"id": "upl_1", "n_records": 2, "n_clipped": 1}
POST = "POST datasets/ds_1/records"
ROWS = [[0.5, 0.25], [1.0, 0.0]]


def sent(service: Any) -> list[tuple[str, str, bytes]]:
    """(kind, key, body) of every upload."""
    return [
        (request.headers["Content-Type"], request.headers["Idempotency-Key"], request.content)
        for request in service.requests
        if request.method == "POST"
    ]


class TestADataset:
    def test_declares_users_and_bounds(self) -> None:
        service, client = serving({"POST datasets": ok(CENTRAL, 201)})
        made = client.create_dataset(
            "c", (), epsilon=1, trust="central", user_feature="who", max_records_per_user=3, out_of_bounds="refuse"
        )
        (body,) = service.bodies()
        assert (body["user_feature"], body["max_records_per_user"], body["out_of_bounds"]) == ("who", 3, "refuse")
        assert (made.user_feature, made.max_records_per_user, made.out_of_bounds) == ("who", 3, "refuse")

    def test_is_granted_a_delta_where_one_is_asked_for(self) -> None:
        service, client = serving({"POST datasets": ok(CENTRAL, 201)})
        client.create_dataset("c", (), epsilon=1, trust="central", delta=1e-6)
        client.create_dataset("c", (), epsilon=1, trust="central")
        assert [body.get("delta") for body in service.bodies()] == [1e-6, None]

    def test_of_an_older_service_has_what_it_always_had(self) -> None:
        _, client = serving({"GET datasets/ds_1": ok(DATASET)})
        found = client.get_dataset("ds_1")
        assert (found.user_feature, found.max_records_per_user, found.out_of_bounds) == (None, 1, "clip")


class TestUploading:
    @pytest.mark.parametrize(("given", "kind"), [(ROWS, "<f8"), (np.array(ROWS, dtype=np.float32), "<f4")])
    def test_an_array_goes_as_it_is(self, given: Any, kind: str) -> None:
        service, client = serving({POST: ok(STORED, 201)})
        done = client.upload_records("ds_1", given)
        ((media_type, key, body),) = sent(service)
        array = np.load(io.BytesIO(body), allow_pickle=False)
        assert (media_type, array.dtype, array.tolist()) == ("application/x-npy", np.dtype(kind), ROWS)
        assert array.flags.c_contiguous
        assert key.endswith(".0")
        assert (done.ids, done.n_records, done.n_clipped) == (("upl_1",), 2, 1)

    def test_columns_laid_out_in_any_way_go_row_by_row(self) -> None:
        service, client = serving({POST: ok(STORED, 201)})
        client.upload_records("ds_1", np.asfortranarray(ROWS))
        assert b"'fortran_order': False" in sent(service)[0][2]

    def test_two_uploads_have_two_keys_and_one_has_one_over_its_retries(self) -> None:
        service, client = serving({POST: [lost, refusal(503, "unavailable"), ok(STORED, 201), ok(STORED, 201)]})
        client.upload_records("ds_1", ROWS)
        client.upload_records("ds_1", ROWS)
        first, second, third, other = sent(service)
        assert first == second == third
        assert other[1] != first[1]
        assert other[2] == first[2]

    def test_users_go_along_as_text(self) -> None:
        service, client = serving({"GET datasets/ds_1": ok(CENTRAL), POST: ok(STORED, 201)})
        client.upload_records("ds_1", ROWS, users=["a,b", 7], idempotency_key="mine")
        assert sent(service) == [("text/csv", "mine.0", b'x,y,who\n0.5,0.25,"a,b"\n1.0,0.0,7\n')]

    def test_what_is_no_record_is_not_sent(self) -> None:
        service, client = serving({"GET datasets/ds_1": ok(DATASET)})
        for bad in ([0.5], [[np.nan, 1]], [["4711", "x"]], [[1], [1, 2]], [[np.inf, 0]]):
            with pytest.raises(InvalidPoint) as raised:
                client.upload_records("ds_1", bad)
            assert "4711" not in str(raised.value)
        with pytest.raises(InvalidSpec, match="one user for each"):
            client.upload_records("ds_1", ROWS, users=["a"])
        with pytest.raises(InvalidSpec, match="no user_feature"):
            client.upload_records("ds_1", ROWS, users=["a", "b"])
        assert sent(service) == []

    def test_a_refusal_ends_it(self) -> None:
        service, client = serving({POST: refusal(422, "validation_failed")})
        with pytest.raises(ApiProblem):
            client.upload_records("ds_1", ROWS)
        assert len(sent(service)) == 1


class TestFiles:
    def upload(self, path: Path, **options: Any) -> tuple[list[tuple[str, str, bytes]], list[int]]:
        service, client = serving({POST: lambda _: httpx.Response(201, json=STORED)})
        told: list[int] = []
        client.upload_file("ds_1", path, on_progress=told.append, **options)
        return sent(service), told

    def test_of_text_go_in_whole_lines_under_their_header(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sfumato._records.PART_BYTES", 10)
        path = tmp_path / "a.csv"
        path.write_bytes(b"x,y\n1,2\n3,4\n5,6\n7,8")
        parts, told = self.upload(path)
        assert [body for _, _, body in parts] == [b"x,y\n1,2\n3,4\n5,6\n", b"x,y\n7,8"]
        assert told == [16, 19]
        assert len({key for _, key, _ in parts}) == 2

    def test_have_the_same_keys_again_and_others_for_anything_else(self, tmp_path: Path) -> None:
        first, second = tmp_path / "a.csv", tmp_path / "b.csv"
        first.write_bytes(b"x,y\n1,2\n")
        second.write_bytes(b"x,y\n1,3\n")
        assert self.upload(first) == self.upload(first)
        assert self.upload(first)[0][0][1] != self.upload(second)[0][0][1]
        assert self.upload(first, idempotency_key="k")[0][0][1] == "k.0"

    def test_of_arrays_go_in_parts(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sfumato._records.PART_BYTES", 32)
        path = tmp_path / "a.npy"
        rows = np.arange(10.0).reshape(5, 2)
        np.save(path, np.asfortranarray(rows))
        parts, told = self.upload(path)
        arrays = [np.load(io.BytesIO(body)) for _, _, body in parts]
        assert [array.shape for array in arrays] == [(2, 2), (2, 2), (1, 2)]
        assert np.concatenate(arrays).tolist() == rows.tolist()
        assert told == [32, 64, 80]

    def test_that_are_mended_go_on_where_they_stopped(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sfumato._records.PART_BYTES", 10)
        path = tmp_path / "a.csv"
        keys = []
        for last in (b"oops", b"7,8", b"7,8"):
            path.write_bytes(b"x,y\n1,2\n1,2\n1,2\n" * 2 + last)
            keys.append([key for _, key, _ in self.upload(path)[0]])
        bad, mended, again = keys
        assert bad[:-1] == mended[:-1]
        assert bad[-1] != mended[-1]
        assert mended == again
        assert len(set(mended)) == len(mended) > 2

    def test_have_keys_that_nobody_makes_without_the_clients(self, tmp_path: Path) -> None:
        path = tmp_path / "a.csv"
        path.write_bytes(b"x,y\n1,2\n")
        keys = set()
        for secret in ("sfk_a", "sfk_b"):
            service, _ = serving({POST: ok(STORED, 201)})
            Client("http://service.example", secret, transport=httpx.MockTransport(service)).upload_file("ds_1", path)
            keys.add(sent(service)[0][1])
        assert len(keys) == 2


SAYS = "record 1: y is not a finite number; nothing of the upload was stored"
REFUSED = {"code": "validation_failed", "detail": SAYS, "errors": [{"pointer": "", "message": SAYS}]}


class TestAFailureHalfWay:
    def failing(self, *answers: Any) -> Exception:
        _, client = serving({POST: list(answers)})
        with pytest.raises((ApiProblem, Unreachable)) as raised:
            client.upload_records("ds_1", ROWS * 3)
        return raised.value

    @pytest.fixture(autouse=True)
    def small_parts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sfumato._records.PART_BYTES", 32)

    def test_names_the_record_in_the_whole_and_what_is_stored(self) -> None:
        good, bad = ok(STORED, 201), httpx.Response(422, json=REFUSED)
        assert str(self.failing(bad)).endswith(SAYS)
        says = (
            "record 5: y is not a finite number; nothing of its part was stored; "
            "4 records before it are stored, in 2 parts"
        )
        error = self.failing(good, good, bad)
        assert isinstance(error, ApiProblem)
        assert (error.status, error.code, error.problem["detail"]) == (422, "validation_failed", says)
        assert error.problem["errors"] == [{"pointer": "", "message": says}]

    def test_for_any_other_reason_says_what_is_stored(self) -> None:
        other = httpx.Response(409, json={"code": "conflict", "title": "record 7 is no record: it conflicts"})
        assert str(self.failing(ok(STORED, 201), other)) == (
            "409 conflict: record 7 is no record: it conflicts; nothing of its part was stored; "
            "2 records before it are stored, in 1 part"
        )
        assert "; 2 records before it are stored, in 1 part" in str(self.failing(ok(STORED, 201), lost, lost, lost))


class TestCounting:
    def test_is_read_and_deleting_asked_for(self) -> None:
        counts = {"n_records": 5, "n_uploads": 2, "n_clipped": 1, "n_users": None, "n_used": 5}
        service, client = serving(
            {"GET datasets/ds_1/records": ok(counts), "DELETE datasets/ds_1/records": httpx.Response(204)}
        )
        found = client.count_records("ds_1")
        assert (found.n_records, found.n_uploads, found.n_clipped, found.n_users, found.n_used) == (5, 2, 1, None, 5)
        client.delete_records("ds_1")
        assert [request.method for request in service.requests] == ["GET", "DELETE"]

    def test_of_something_else_is_refused(self) -> None:
        _, client = serving({"GET datasets/ds_1/records": ok({"n_records": 5})})
        with pytest.raises(InvalidSpec):
            client.count_records("ds_1")
