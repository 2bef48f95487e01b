"""Records over HTTP: formats, idempotency keys, counts and deletion."""

import hashlib
import io
import json
import zlib
from base64 import b85decode
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest
import structlog
from sqlalchemy import func, select

from models import encryption
from models.database.engine import Database
from models.records import records
from models.tables.datasets import RecordSegment
from models.tables.jobs import IdempotentResponse
from runtime.settings import Settings
from sfumato.api.client import Client
from sfumato.errors import ApiProblem
from sfumato.records.encodings import cells, scale_many
from sfumato.specs import LATTICE, Feature
from tests.service.api import FEATURES, SQLITE_ONLY, Api, refused, stranger, unknown

ROWS = [[0.25, -1.0], [1.0, 1.0], [0.0, 0.123456789]]
USERS = ["anna", "7", "anna"]
AGAIN = "?allow_duplicates=true"
Stored = Callable[[str], np.ndarray]
DOMAIN = [Feature(**feature) for feature in FEATURES]  # type: ignore[arg-type]


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, np.asarray(array), allow_pickle=True)
    return file.getvalue()


def arrow(**columns: Any) -> bytes:
    table = pa.table(columns)
    file = io.BytesIO()
    with pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    return file.getvalue()


def arrow_file(**columns: Any) -> bytes:
    table = pa.table(columns)
    file = io.BytesIO()
    with pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    return file.getvalue()


X, Y = ([row[i] for row in ROWS] for i in range(2))
FORMS: dict[str, tuple[str, bytes]] = {
    "json": ("application/json", json.dumps({"columns": ["y", "x"], "rows": [row[::-1] for row in ROWS]}).encode()),
    "csv": ("text/csv", b"x,y\n" + b"".join(b"%r,%r\n" % tuple(row) for row in ROWS)),
    "csv of Windows": ("Text/CSV; charset=utf-8", b'\xef\xbb\xbf"y", x \r\n-1,0.25\r\n"1",1\r\n\r\n.123456789,0'),
    "npy": ("application/x-npy", npy(ROWS)),
    "arrow": ("application/vnd.apache.arrow.stream", arrow(y=Y, x=X)),
    "arrow file": ("application/vnd.apache.arrow.file", arrow_file(y=Y, x=X)),
    "arrow file as a stream": ("application/vnd.apache.arrow.stream", arrow_file(y=Y, x=X)),
}
# A file that `write_ipc` of polars 2.1 wrote; the users are categorical. Its schema has no length before it, and its
# dictionary follows the batch.
POLARS_FILE = zlib.decompress(
    b85decode(
        "c-rk$K}y3=5S_N61T7L{7g1bv=`z+ul`h&)M1?{n6m%Dho35%GQNcwH-~q%Fxby}s;sLyX;HrqYC?X;v#5X@vNk3RAZvAC4{WJ6C"
        "znS@o=lhMFWg>%!UZN<<6aP=)IYrZC;%SfxJNq+`Lx@Xp{4MN@&=$mmq&NWU2KF@XAt#V$>={#lI1*=(jT{!uDr8RKJ`^sCU(DbX"
        "(ueH=`W(`R><x1`HZ35|p?PG;AyZyqnAa;X1<A@jRG?0A%WnB-rC2869BkKvn%7+4X!u(-uU;fs@4&}cQ)PUUd<14D_MfUBhU&+0"
        "`#^bMiXP;AuD2(-;(lhpVoue}Y@XnkR?(So;eO}g<4Ush^U8^?YWCsY5gls&Q1g?_Go!`*wkMhE-`1cjx)SWKmF_RQmC5jTl_7r8"
        "lX*^8i8)nA=9C_plYS5Sa<6$cAxnZInn7RV*^%7C<Vug>Q_%XV$1=}Wr_)NtlqRf~67}vvuYT9d_sIrpL%k=QdsE0i3cjcD8wkN`"
        "?cV)=BgTItLLBU=Z|xUM_Nt5"
    )
)
WITH_USERS: dict[str, tuple[str, bytes]] = {
    "json": (
        "application/json",
        json.dumps(
            {"columns": ["x", "who", "y"], "rows": [[X[i], ["anna", 7, "anna"][i], Y[i]] for i in range(3)]}
        ).encode(),
    ),
    "csv": ("text/csv", b'who,x,y\n"anna",0.25,-1\n7,1,1\n anna ,0,0.123456789\n'),
    "arrow": ("application/vnd.apache.arrow.stream", arrow(who=USERS, y=Y, x=X)),
    "arrow file of polars": ("application/vnd.apache.arrow.file", POLARS_FILE),
}


def send(api: Api, dataset_id: str, form: tuple[str, bytes], key: str = "", query: str = "") -> httpx.Response:
    """Upload records, optionally with an idempotency key and a query."""
    headers = {"content-type": form[0]} | ({"Idempotency-Key": key} if key else {})
    return api.post(f"/datasets/{dataset_id}/records{query}", content=form[1], headers=headers)


def count(api: Api, dataset_id: str) -> dict[str, Any]:
    """Return the response with the number of records."""
    response = api.get(f"/datasets/{dataset_id}/records")
    assert response.status_code == 200, response.text
    document: dict[str, Any] = response.json()
    return document


def count_of(n_records: int, n_uploads: int, n_users: int | None, n_used: int) -> dict[str, Any]:
    return {"n_records": n_records, "n_uploads": n_uploads, "n_clipped": 0, "n_users": n_users, "n_used": n_used}


@pytest.fixture
def stored(database: Database, settings: Settings) -> Callable[[str], np.ndarray]:
    """Return a function that loads the points of a dataset as a job does."""

    def load(dataset_id: str) -> np.ndarray:
        with database.reading() as session:
            return records.load(session, dataset_id, encryption.load_keyring(settings)).points

    return load


def to_cells(rows: Any) -> np.ndarray:
    """Return the stored form of records."""
    return cells(scale_many(DOMAIN, rows), [LATTICE] * 2)


class TestAnUpload:
    @pytest.mark.parametrize("form", FORMS)
    @SQLITE_ONLY
    def test_has_the_same_records_in_every_format(self, api: Api, stored: Stored, form: str) -> None:
        dataset_id = api.dataset(trust="central")["id"]
        response = send(api, dataset_id, FORMS[form])
        assert response.status_code == 201, response.text
        assert response.headers["location"] == f"/v1/datasets/{dataset_id}/records"
        body = response.json()
        assert body.pop("id").startswith("upl_")
        assert body == {
            "n_records": 3,
            "n_clipped": 0,
            "n_zeros": 0,
            "n_constant": 0,
            "n_lacking": 4,
            "n_repeated": 0,
            "warnings": [],
            "attributes": [],
        }
        assert stored(dataset_id).tolist() == to_cells(ROWS).tolist()

    @SQLITE_ONLY
    def test_does_not_reveal_the_budget_to_a_key_for_records(self, api: Api) -> None:
        def lacking(epsilon: float, *scopes: str) -> int:
            dataset_id = api.dataset(trust="central", epsilon=epsilon)["id"]
            return int(send(api.key(*scopes), dataset_id, FORMS["csv"]).json()["n_lacking"])

        assert lacking(0.5, "records") == lacking(1, "records")
        assert lacking(0.5, "records", "ledger") > lacking(1, "records", "grants") > 0

    def test_names_the_user_of_each_record(self, api: Api, stored: Stored) -> None:
        for form in WITH_USERS.values():
            dataset_id = api.dataset(trust="central", user_feature="who")["id"]
            assert send(api, dataset_id, form).status_code == 201
            assert count(api, dataset_id) == count_of(3, 1, 2, 2)
            assert stored(dataset_id).tolist() == to_cells(ROWS[:2]).tolist()

    @SQLITE_ONLY
    def test_has_the_same_users_in_every_format(self, api: Api) -> None:
        dataset_id = api.dataset(trust="central", user_feature="who", max_records_per_user=4)["id"]
        for form in WITH_USERS.values():
            assert send(api, dataset_id, form, query=AGAIN).status_code == 201
        n_uploads = len(WITH_USERS)
        assert count(api, dataset_id) == count_of(3 * n_uploads, n_uploads, 2, 4 + min(4, n_uploads))

    @pytest.mark.parametrize("kind", ["<f8", "<f4"])
    @SQLITE_ONLY
    def test_may_have_many_records(self, api: Api, stored: Stored, kind: str) -> None:
        dataset_id = api.dataset(trust="central")["id"]
        rows = np.random.default_rng(1).uniform(0, 1, (250_000, 2)).astype(kind)
        assert send(api, dataset_id, ("application/x-npy", npy(rows))).json()["n_records"] == 250_000
        assert (stored(dataset_id) == to_cells(rows)).all()

    @SQLITE_ONLY
    def test_of_text_may_be_cut_at_any_byte(self, api: Api, stored: Stored) -> None:
        dataset_id = api.dataset(trust="central", user_feature="größe")["id"]
        rows = np.random.default_rng(2).uniform(0, 1, (10_000, 2))
        text = "größe,x,y\n" + "".join(f"müller{i},{x!r},{y!r}\n" for i, (x, y) in enumerate(rows.tolist()))
        assert send(api, dataset_id, ("text/csv", text.encode())).status_code == 201
        assert (stored(dataset_id) == to_cells(rows)).all()
        assert count(api, dataset_id)["n_users"] == 10_000

    @SQLITE_ONLY
    def test_has_values_outside_of_their_bounds_clipped_and_counted(self, api: Api, stored: Stored) -> None:
        dataset_id = api.dataset(trust="central")["id"]
        rows = [[-5.0, 0.0], [0.5, 9e300], [2.0, -2.0], [0.5, 0.5]]
        upload = send(api, dataset_id, ("application/x-npy", npy(rows)), query="?accept_clipping=true").json()
        assert (upload["n_records"], upload["n_clipped"]) == (4, 3)
        top, half = LATTICE - 1, LATTICE // 2
        assert stored(dataset_id).tolist() == [[0, half], [half, top], [top, 0], [half, half * 3 // 2]]
        assert count(api, dataset_id)["n_clipped"] == 3

    @SQLITE_ONLY
    def test_with_values_outside_of_their_bounds_is_refused_if_the_dataset_requires_it(self, api: Api) -> None:
        dataset_id = api.dataset(trust="central", out_of_bounds="refuse")["id"]
        assert send(api, dataset_id, FORMS["npy"]).status_code == 201  # the bounds themselves are inside
        document = refused(send(api, dataset_id, ("text/csv", b"x,y\n0.5,0.5\n0.5,1.25\n")), 422, "validation_failed")
        assert "record 2: y must lie in its bounds [-1, 1]" in document["detail"]
        assert "1.25" not in json.dumps(document)
        assert count(api, dataset_id)["n_records"] == 3


class TestAKey:
    def test_makes_an_upload_happen_once_and_only_with_the_same_body(self, api: Api) -> None:
        dataset_id = api.dataset(trust="central")["id"]
        first, second = (send(api, dataset_id, FORMS["csv"], "one") for _ in range(2))
        assert (first.status_code, first.content) == (second.status_code, second.content)
        assert second.headers["idempotent-replayed"] == "true"
        for form in (("text/csv", FORMS["csv"][1] + b"0,0\n"), FORMS["json"]):
            refused(send(api, dataset_id, form, "one"), 422, "idempotency_key_reused")
        assert count(api, dataset_id)["n_uploads"] == 1
        for key in ("two", "", ""):
            assert send(api, dataset_id, FORMS["csv"], key, AGAIN).status_code == 201
        assert count(api, dataset_id) == count_of(12, 4, None, 12)

    @SQLITE_ONLY
    def test_belongs_to_its_dataset_and_ends_with_the_deletion_of_the_records(self, api: Api) -> None:
        first, other = (api.dataset(trust="central")["id"] for _ in range(2))
        for dataset_id in (first, other):
            assert send(api, dataset_id, FORMS["csv"], "one").status_code == 201
        api.delete(f"/datasets/{first}/records?all=true")
        for _ in range(2):
            response = send(api, first, FORMS["csv"], "one")
            assert response.status_code == 201
        assert response.headers["idempotent-replayed"] == "true"
        assert [count(api, each)["n_records"] for each in (first, other)] == [3, 3]

    @SQLITE_ONLY
    def test_cannot_be_tested_by_another_request(self, api: Api) -> None:
        send(api, api.dataset(trust="central")["id"], FORMS["csv"], "key-of-records")
        for guess in ("key-of-records", "another-key"):
            response = api.key("jobs").post(f"/jobs/{unknown('job')}/cancel", headers={"Idempotency-Key": guess})
            refused(response, 404, "not_found")

    @SQLITE_ONLY
    def test_and_its_body_are_stored_as_hashes_with_a_secret_of_the_dataset(self, api: Api, database: Database) -> None:
        first, other = (api.dataset(trust="central")["id"] for _ in range(2))
        kind, body = FORMS["csv"]
        for dataset_id in (first, other):
            send(api, dataset_id, (kind, body), "one")
        with database.reading() as session:
            rows = list(session.scalars(select(IdempotentResponse).order_by(IdempotentResponse.created_at)))[-2:]
        request = "\n".join(["POST", f"/v1/datasets/{other}/records", "", kind, ""]).encode() + body
        assert rows[1].location == f"/v1/datasets/{other}/records"
        assert hashlib.sha256(request).digest() != rows[1].fingerprint
        assert len({"one", rows[0].key, rows[1].key, hashlib.sha256(b"one").hexdigest()}) == 4

    def test_sent_by_many_at_once_is_stored_by_one(self, api: Api) -> None:
        dataset_id = api.dataset(trust="central")["id"]
        with ThreadPoolExecutor(6) as pool:
            responses = list(pool.map(lambda _: send(api, dataset_id, FORMS["npy"], "one"), range(6)))
        assert {(each.status_code, each.content) for each in responses} == {(201, responses[0].content)}
        assert count(api, dataset_id)["n_uploads"] == 1

    @SQLITE_ONLY
    def test_of_a_refused_upload_may_be_used_for_the_corrected_one(self, api: Api) -> None:
        dataset_id = api.dataset(trust="central")["id"]
        refused(send(api, dataset_id, ("text/csv", b"x,y\n1,\n"), "k"), 422, "validation_failed")
        assert send(api, dataset_id, ("text/csv", b"x,y\n1,1\n"), "k").status_code == 201


class TestTheSameContent:
    @pytest.mark.parametrize("forms", [FORMS, WITH_USERS])
    def test_is_stored_once_in_any_format_unless_duplicates_are_allowed(
        self, api: Api, forms: dict[str, tuple[str, bytes]]
    ) -> None:
        user = "who" if forms is WITH_USERS else None
        dataset_id = api.dataset(trust="central", **({"user_feature": user} if user else {}))["id"]
        first, *others = forms.values()
        assert send(api, dataset_id, first).status_code == 201
        for form in (first, *others):
            document = refused(send(api, dataset_id, form), 409, "duplicate_content")
            assert "the same 3 records" in document["detail"]
            assert "allow_duplicates=true" in document["detail"]
        assert count(api, dataset_id)["n_uploads"] == 1
        assert send(api, dataset_id, others[0], query=AGAIN).status_code == 201
        assert count(api, dataset_id)["n_records"] == 6

    @SQLITE_ONLY
    def test_with_another_order_user_or_value_is_other_content(self, api: Api) -> None:
        dataset_id = api.dataset(trust="central", user_feature="who")["id"]
        for body in (b"a,0,0\nb,1,1\n", b"b,1,1\na,0,0\n", b"a,0,0\nc,1,1\n", b"a,0,0\nb,1,.9\n", b"a,0,0\n"):
            assert send(api, dataset_id, ("text/csv", b"who,x,y\n" + body)).status_code == 201

    def test_sent_by_many_at_once_is_stored_by_one(self, api: Api) -> None:
        dataset_id = api.dataset(trust="central")["id"]
        with ThreadPoolExecutor(6) as pool:
            responses = list(pool.map(lambda _: send(api, dataset_id, FORMS["npy"]), range(6)))
        assert sorted(each.status_code for each in responses) == [201, *[409] * 5]

    @SQLITE_ONLY
    def test_is_known_to_its_dataset_only_and_until_the_records_are_deleted(self, api: Api, database: Database) -> None:
        first, other = (api.dataset(trust="central")["id"] for _ in range(2))
        for dataset_id in (first, other):
            assert send(api, dataset_id, FORMS["csv"]).status_code == 201
        api.delete(f"/datasets/{first}/records?all=true")
        assert send(api, first, FORMS["csv"]).status_code == 201
        of = RecordSegment.dataset_id.in_([first, other])
        with database.reading() as session:
            hashes = list(session.scalars(select(RecordSegment.content).where(of)))
        assert len(set(hashes)) == 2  # the key differs, so equal records have different hashes
        api.delete(f"/datasets/{first}/records?all=true")
        with database.reading() as session:
            left = set(session.scalars(select(RecordSegment.content).where(of)))
        assert len(left) == 1

    @SQLITE_ONLY
    def test_cannot_be_tested_without_the_scope(self, api: Api, http: httpx.Client, database: Database) -> None:
        dataset_id = api.dataset(trust="central")["id"]
        send(api, dataset_id, FORMS["csv"])
        refused(send(api.key("jobs", "datasets", "ledger"), dataset_id, FORMS["csv"]), 403, "forbidden")
        refused(send(stranger(http, database), dataset_id, FORMS["csv"]), 404, "not_found")


def numbers(value: Any) -> set[float]:
    """Return every number in a JSON value, including numbers in strings."""
    if isinstance(value, Mapping):
        return set().union(*map(numbers, value.values()))
    if isinstance(value, list):
        return set().union(*map(numbers, value))
    return {float(value)} if isinstance(value, int | float) or (isinstance(value, str) and value.isdigit()) else set()


@SQLITE_ONLY
class TestTheirNumber:
    """The number of records is private: only keys with the scope `records` can read it."""

    def test_shows_in_no_other_answer_and_in_no_line_of_the_log(self, api: Api) -> None:
        path = f"/datasets/{api.dataset(trust='central')['id']}"
        before = api.get(path)
        with structlog.testing.capture_logs() as lines:
            outside = ("application/x-npy", npy(np.full((31_337, 2), 7.0)))
            upload = send(api, path.rpartition("/")[2], outside, query="?accept_clipping=true")
            n_clipped = count(api, path.rpartition("/")[2])["n_clipped"]
            after = api.get(path)
        assert (upload.status_code, n_clipped) == (201, 31_337)
        assert (after.content, after.headers["etag"]) == (before.content, before.headers["etag"])
        members = {
            "event",
            "key",
            "log_level",
            "method",
            "path",
            "status",
            "request_id",
        }  # a time would reveal the number
        assert [set(line) for line in lines if line["path"].endswith("/records")] == [members] * 2
        assert 31_337 not in numbers(lines)
        reader = api.key("datasets", "jobs", "ledger")
        for name in ("", "/budget", "/ledger", "/rounds"):
            assert 31_337 not in numbers(reader.get(f"{path}{name}").json())
        refused(reader.get(f"{path}/records"), 403, "forbidden")


class TestDeleting:
    def test_removes_all_records_and_keeps_the_dataset(self, api: Api, database: Database) -> None:
        dataset = api.dataset(trust="central", user_feature="who")
        path = f"/datasets/{dataset['id']}"
        send(api, dataset["id"], WITH_USERS["csv"])
        for _ in range(2):
            assert api.delete(f"{path}/records?all=true").status_code == 204
        assert count(api, dataset["id"]) == count_of(0, 0, 0, 0)
        assert api.get(path).json() == dataset
        assert send(api, dataset["id"], WITH_USERS["csv"]).status_code == 201
        assert api.delete(path).status_code == 204
        with database.reading() as session:
            assert session.scalar(select(func.count()).where(RecordSegment.dataset_id == dataset["id"])) == 0
        refused(api.get(f"{path}/records"), 404, "not_found")
        refused(send(api, dataset["id"], WITH_USERS["csv"]), 404, "not_found")


@SQLITE_ONLY
class TestADeclaration:
    def test_of_users_and_bounds_is_stored_and_shown(self, api: Api) -> None:
        declaration = {"user_feature": "who", "max_records_per_user": 7, "out_of_bounds": "refuse"}
        path = f"/datasets/{api.dataset(trust='central', **declaration)['id']}"
        document = api.get(path).json()
        assert document | declaration == document
        plain = api.dataset(trust="central")
        assert (plain["user_feature"], plain["max_records_per_user"], plain["out_of_bounds"]) == (None, 1, "clip")
        refused(api.patch(path, {"max_records_per_user": 8}), 422, "validation_failed")

    def test_that_is_invalid_is_refused(self, api: Api) -> None:
        for wrong in (
            {"trust": "local", "user_feature": "who"},
            {"trust": "local", "out_of_bounds": "refuse"},
            {"user_feature": "x"},
            {"max_records_per_user": 2},
            {"user_feature": "who", "max_records_per_user": 0},
            {"user_feature": ""},
            {"user_feature": "w" * 65},
            {"out_of_bounds": "drop"},
        ):
            body = {"name": "d", "trust": "central", "features": FEATURES, "epsilon": 1} | wrong
            refused(api.post("/datasets", body), 422, "validation_failed")


@SQLITE_ONLY
class TestTheClient:
    @pytest.fixture
    def client(self, http: httpx.Client, api: Api) -> Client:
        return Client("http://gateway", api.secret, transport=http._transport)

    def test_uploads_counts_and_deletes(self, client: Client, stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sfumato.api.records.PART_BYTES", 1 << 12)
        dataset = client.create_dataset("c", DOMAIN, epsilon=1, trust="central", user_feature="who", min_reports=1)
        assert (dataset.user_feature, dataset.max_records_per_user, dataset.out_of_bounds) == ("who", 1, "clip")
        rows = np.random.default_rng(3).uniform(0, 1, (1000, 2))
        progress: list[int] = []
        options = {"users": range(1000), "idempotency_key": "mine", "on_progress": progress.append}
        for _ in range(2):  # the second upload changes nothing
            upload = client.upload_records(dataset.id, rows, **options)  # type: ignore[arg-type]
        assert (upload.n_records, upload.n_clipped) == (1000, 0)
        assert progress == [*range(54, 1000, 54), 1000] * 2
        total = client.count_records(dataset.id)
        assert (total.n_records, total.n_uploads, total.n_users, total.n_used) == (1000, 1, 1000, 1000)
        assert (stored(dataset.id) == to_cells(rows)).all()
        client.delete_records(dataset.id, everything=True)
        assert client.count_records(dataset.id).n_records == 0

    def test_uploads_arrays_twice_only_on_request(self, client: Client) -> None:
        dataset = client.create_dataset("c", DOMAIN, epsilon=1, trust="central", out_of_bounds="refuse")
        rows = np.array(ROWS, dtype=np.float32)
        assert client.upload_records(dataset.id, rows).n_records == 3
        with pytest.raises(ApiProblem, match="already has an upload of the same 3 records"):
            client.upload_records(dataset.id, rows)
        assert client.upload_records(dataset.id, rows, allow_duplicates=True).n_records == 3
        assert client.count_records(dataset.id).n_uploads == 2
