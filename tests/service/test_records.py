"""Records over HTTP: four forms, one meaning; stored once for each key; counted for those who may know."""

import hashlib
import io
import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest
import structlog
from sqlalchemy import func, select

from models import record, sealing
from models.dataset import Dataset
from models.db import Database
from models.idempotency import IdempotentAnswer
from models.record import Records, RecordSegment
from models.settings import Settings
from sfumato.client import Client
from sfumato.encodings import cells, scale_many
from sfumato.specs import LATTICE, Feature
from tests.service.api import FEATURES, Api, refused, unknown

ROWS = [[0.25, -1.0], [1.0, 1.0], [0.0, 0.123456789]]
USERS = ["anna", "7", "anna"]
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


X, Y = ([row[i] for row in ROWS] for i in range(2))
FORMS: dict[str, tuple[str, bytes]] = {
    "json": ("application/json", json.dumps({"columns": ["y", "x"], "rows": [row[::-1] for row in ROWS]}).encode()),
    "csv": ("text/csv", b"x,y\n" + b"".join(b"%r,%r\n" % tuple(row) for row in ROWS)),
    "csv of Windows": ("Text/CSV; charset=utf-8", b'\xef\xbb\xbf"y", x \r\n-1,0.25\r\n"1",1\r\n\r\n.123456789,0'),
    "npy": ("application/x-npy", npy(ROWS)),
    "arrow": ("application/vnd.apache.arrow.stream", arrow(y=Y, x=X)),
}
WITH_USERS: dict[str, tuple[str, bytes]] = {
    "json": (
        "application/json",
        json.dumps(
            {"columns": ["x", "who", "y"], "rows": [[x, u, y] for x, u, y in zip(X, ["anna", 7, "anna"], Y)]}  # noqa: B905
        ).encode(),
    ),
    "csv": ("text/csv", b'who,x,y\n"anna",0.25,-1\n7,1,1\n anna ,0,0.123456789\n'),
    "arrow": ("application/vnd.apache.arrow.stream", arrow(who=USERS, y=Y, x=X)),
}


def send(api: Api, dataset_id: str, form: tuple[str, bytes], **headers: str) -> httpx.Response:
    return api.post(f"/datasets/{dataset_id}/records", content=form[1], headers={"content-type": form[0], **headers})


def counted(api: Api, dataset_id: str) -> dict[str, Any]:
    answer = api.get(f"/datasets/{dataset_id}/records")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.fixture
def stored(database: Database, settings: Settings) -> Callable[[str], Records]:
    """What a job would be handed."""

    def load(dataset_id: str) -> Records:
        with database.reading() as session:
            return record.load(session, dataset_id, sealing.keyring_of(settings))

    return load


class TestAnUpload:
    @pytest.mark.parametrize("form", FORMS)
    def test_means_the_same_in_every_form(self, api: Api, stored: Callable[[str], Records], form: str) -> None:
        made = api.dataset(trust="central")
        answer = send(api, made["id"], FORMS[form])
        assert answer.status_code == 201, answer.text
        assert answer.headers["location"] == f"/v1/datasets/{made['id']}/records"
        body = answer.json()
        assert body.pop("id").startswith("upl_")
        assert body == {"n_records": 3, "n_clipped": 0}
        expected = cells(scale_many(DOMAIN, ROWS), [LATTICE] * 2)
        assert stored(made["id"]).points.tolist() == expected.tolist()

    @pytest.mark.parametrize("form", WITH_USERS)
    def test_says_whose_records_they_are(self, api: Api, stored: Callable[[str], Records], form: str) -> None:
        made = api.dataset(trust="central", user_feature="who")
        assert send(api, made["id"], WITH_USERS[form]).status_code == 201
        assert counted(api, made["id"]) == {
            "n_records": 3, "n_uploads": 1, "n_clipped": 0, "n_users": 2, "n_used": 2,
        }  # fmt: skip
        expected = cells(scale_many(DOMAIN, ROWS[:2]), [LATTICE] * 2)
        assert stored(made["id"]).points.tolist() == expected.tolist()

    def test_is_of_the_same_users_whatever_its_form(self, api: Api) -> None:
        made = api.dataset(trust="central", user_feature="who", max_records_per_user=4)
        for form in WITH_USERS.values():
            assert send(api, made["id"], form).status_code == 201
        assert counted(api, made["id"])["n_users"] == 2
        assert counted(api, made["id"])["n_used"] == 4 + 3

    @pytest.mark.parametrize("kind", ["<f8", "<f4"])
    def test_of_many_records_comes_in_pieces(self, api: Api, stored: Callable[[str], Records], kind: str) -> None:
        made = api.dataset(trust="central")
        rows = np.random.default_rng(1).uniform(0, 1, (250_000, 2)).astype(kind)
        assert send(api, made["id"], ("application/x-npy", npy(rows))).json()["n_records"] == 250_000
        expected = cells(scale_many(DOMAIN, rows), [LATTICE] * 2)
        assert (stored(made["id"]).points == expected).all()

    def test_as_text_is_cut_anywhere_without_harm(self, api: Api, stored: Callable[[str], Records]) -> None:
        made = api.dataset(trust="central", user_feature="größe")
        rows = np.random.default_rng(2).uniform(0, 1, (40_000, 2))
        text = "größe,x,y\n" + "".join(f"müller{i},{x!r},{y!r}\n" for i, (x, y) in enumerate(rows.tolist()))
        assert send(api, made["id"], ("text/csv", text.encode())).status_code == 201
        assert (stored(made["id"]).points == cells(scale_many(DOMAIN, rows), [LATTICE] * 2)).all()
        assert counted(api, made["id"])["n_users"] == 40_000

    def test_has_values_outside_of_their_bounds_clipped_and_counted(
        self, api: Api, stored: Callable[[str], Records]
    ) -> None:
        made = api.dataset(trust="central")
        rows = [[-5.0, 0.0], [0.5, 9e300], [2.0, -2.0], [0.5, 0.5]]
        answer = send(api, made["id"], ("application/x-npy", npy(rows))).json()
        assert (answer["n_records"], answer["n_clipped"]) == (4, 3)
        top, half = LATTICE - 1, LATTICE // 2
        assert stored(made["id"]).points.tolist() == [[0, half], [half, top], [top, 0], [half, half * 3 // 2]]
        assert counted(api, made["id"])["n_clipped"] == 3

    def test_is_refused_for_them_where_the_dataset_says_so(self, api: Api) -> None:
        made = api.dataset(trust="central", out_of_bounds="refuse")
        assert send(api, made["id"], FORMS["npy"]).status_code == 201  # the bounds themselves are inside
        document = refused(send(api, made["id"], ("text/csv", b"x,y\n0.5,0.5\n0.5,1.25\n")), 422, "validation_failed")
        assert "record 1: y is outside of its bounds" in document["detail"]
        assert "1.25" not in json.dumps(document)
        assert counted(api, made["id"])["n_records"] == 3


class TestAKey:
    def test_makes_an_upload_happen_once(self, api: Api) -> None:
        made = api.dataset(trust="central")
        first, second = (send(api, made["id"], FORMS["csv"], **{"Idempotency-Key": "one"}) for _ in range(2))
        assert (first.status_code, first.content) == (second.status_code, second.content)
        assert second.headers["idempotent-replayed"] == "true"
        assert counted(api, made["id"])["n_uploads"] == 1

    def test_of_another_kind_or_none_makes_it_happen_again(self, api: Api) -> None:
        made = api.dataset(trust="central")
        for headers in ({"Idempotency-Key": "one"}, {"Idempotency-Key": "two"}, {}, {}):
            assert send(api, made["id"], FORMS["csv"], **headers).status_code == 201
        assert counted(api, made["id"]) == {
            "n_records": 12, "n_uploads": 4, "n_clipped": 0, "n_users": None, "n_used": 12,
        }  # fmt: skip

    def test_with_another_body_or_form_is_refused(self, api: Api) -> None:
        made = api.dataset(trust="central")
        send(api, made["id"], FORMS["csv"], **{"Idempotency-Key": "one"})
        for dataset_id, form in (
            (made["id"], ("text/csv", FORMS["csv"][1] + b"0,0\n")),
            (made["id"], FORMS["json"]),
        ):
            answer = send(api, dataset_id, form, **{"Idempotency-Key": "one"})
            refused(answer, 422, "idempotency_key_reused")
        assert counted(api, made["id"])["n_uploads"] == 1

    def test_is_another_one_in_another_dataset_and_after_deleting(self, api: Api) -> None:
        made, other = api.dataset(trust="central"), api.dataset(trust="central")
        for dataset_id in (made["id"], other["id"]):
            assert send(api, dataset_id, FORMS["csv"], **{"Idempotency-Key": "one"}).status_code == 201
        api.request("DELETE", f"/datasets/{made['id']}/records")
        for _ in range(2):
            answer = send(api, made["id"], FORMS["csv"], **{"Idempotency-Key": "one"})
            assert answer.status_code == 201
        assert answer.headers["idempotent-replayed"] == "true"
        assert [counted(api, each["id"])["n_records"] for each in (made, other)] == [3, 3]

    def test_cannot_be_tested_by_another_request(self, api: Api) -> None:
        made = api.dataset(trust="central")
        send(api, made["id"], FORMS["csv"], **{"Idempotency-Key": "made-of-records"})
        for guess in ("made-of-records", "made-of-others"):
            answer = api.key("jobs").post(f"/jobs/{unknown('job')}/cancel", headers={"Idempotency-Key": guess})
            refused(answer, 404, "not_found")

    def test_and_its_body_are_kept_only_as_a_secret_of_the_dataset_hashes_them(
        self, api: Api, database: Database
    ) -> None:
        made, other = api.dataset(trust="central"), api.dataset(trust="central")
        kind, body = FORMS["csv"]
        for dataset_id in (made["id"], other["id"]):
            send(api, dataset_id, (kind, body), **{"Idempotency-Key": "one"})
        with database.reading() as session:
            found = list(session.scalars(select(IdempotentAnswer).order_by(IdempotentAnswer.created_at)))[-2:]
        what = "\n".join(["POST", f"/v1/datasets/{other['id']}/records", "", kind, ""]).encode() + body
        assert found[1].location == f"/v1/datasets/{other['id']}/records"
        assert hashlib.sha256(what).digest() != found[1].fingerprint
        assert len({"one", found[0].key, found[1].key, hashlib.sha256(b"one").hexdigest()}) == 4

    def test_sent_by_many_at_once_is_stored_by_one(self, api: Api) -> None:
        made = api.dataset(trust="central")
        with ThreadPoolExecutor(6) as pool:
            answers = list(
                pool.map(lambda _: send(api, made["id"], FORMS["npy"], **{"Idempotency-Key": "one"}), range(6))
            )
        assert {(answer.status_code, answer.content) for answer in answers} == {(201, answers[0].content)}
        assert counted(api, made["id"])["n_uploads"] == 1

    def test_of_an_upload_that_was_refused_may_be_used_for_its_mended_one(self, api: Api) -> None:
        made = api.dataset(trust="central")
        refused(send(api, made["id"], ("text/csv", b"x,y\n1,\n"), **{"Idempotency-Key": "k"}), 422, "validation_failed")
        assert send(api, made["id"], ("text/csv", b"x,y\n1,1\n"), **{"Idempotency-Key": "k"}).status_code == 201


def numbers(value: Any) -> set[float]:
    """Every number in a piece of JSON; those in a text that is one too."""
    if isinstance(value, Mapping):
        return set().union(*map(numbers, value.values()))
    if isinstance(value, list):
        return set().union(*map(numbers, value))
    return {float(value)} if isinstance(value, int | float) or (isinstance(value, str) and value.isdigit()) else set()


class TestTheirNumber:
    """Private: whoever lacks the scope finds it nowhere."""

    @pytest.fixture
    def said(self) -> Iterator[list[dict[str, Any]]]:
        with structlog.testing.capture_logs() as lines:
            yield lines

    def test_shows_in_no_other_answer_and_in_no_line_of_the_log(
        self, http: httpx.Client, api: Api, said: list[dict[str, Any]]
    ) -> None:
        made = api.dataset(trust="central")
        before = api.get(f"/datasets/{made['id']}")
        rows = np.full((31_337, 2), 7.0)
        assert send(api, made["id"], ("application/x-npy", npy(rows))).status_code == 201
        after = api.get(f"/datasets/{made['id']}")
        assert (after.content, after.headers["etag"]) == (before.content, before.headers["etag"])
        assert counted(api, made["id"])["n_clipped"] == 31_337
        own = [line for line in said if line["path"].endswith("/records")]
        assert [set(line) for line in own] == [
            {"event", "log_level", "method", "path", "status", "request_id"}
        ] * 2  # no time: it tells how many there were
        assert 31_337 not in numbers(said)
        reader = api.key("datasets", "jobs", "ledger")
        for path in ("", "/budget", "/ledger", "/rounds"):
            assert 31_337 not in numbers(reader.get(f"/datasets/{made['id']}{path}").json())
        refused(reader.get(f"/datasets/{made['id']}/records"), 403, "forbidden")


class TestDeleting:
    def test_takes_all_of_them_and_leaves_the_dataset(self, api: Api, database: Database) -> None:
        made = api.dataset(trust="central", user_feature="who")
        send(api, made["id"], WITH_USERS["csv"])
        for _ in range(2):
            assert api.request("DELETE", f"/datasets/{made['id']}/records").status_code == 204
        assert counted(api, made["id"]) == {
            "n_records": 0, "n_uploads": 0, "n_clipped": 0, "n_users": 0, "n_used": 0,
        }  # fmt: skip
        assert api.get(f"/datasets/{made['id']}").json() == made
        assert send(api, made["id"], WITH_USERS["csv"]).status_code == 201
        assert api.request("DELETE", f"/datasets/{made['id']}").status_code == 204
        with database.reading() as session:
            left = select(func.count()).where(RecordSegment.dataset_id == made["id"])
            assert session.scalar(left) == 0
        refused(api.get(f"/datasets/{made['id']}/records"), 404, "not_found")
        refused(send(api, made["id"], WITH_USERS["csv"]), 404, "not_found")


class TestADeclaration:
    def test_of_users_and_bounds_is_kept_and_shown(self, api: Api) -> None:
        made = api.dataset(trust="central", user_feature="who", max_records_per_user=7, out_of_bounds="refuse")
        found = api.get(f"/datasets/{made['id']}").json()
        assert (found["user_feature"], found["max_records_per_user"], found["out_of_bounds"]) == ("who", 7, "refuse")
        plain = api.dataset(trust="central")
        assert (plain["user_feature"], plain["max_records_per_user"], plain["out_of_bounds"]) == (None, 1, "clip")
        answer = api.request("PATCH", f"/datasets/{made['id']}", json={"max_records_per_user": 8})
        refused(answer, 422, "validation_failed")

    @pytest.mark.parametrize(
        "wrong",
        [
            {"trust": "local", "user_feature": "who"},
            {"trust": "local", "out_of_bounds": "refuse"},
            {"user_feature": "x"},
            {"max_records_per_user": 2},
            {"user_feature": "who", "max_records_per_user": 0},
            {"user_feature": ""},
            {"user_feature": "w" * 65},
            {"out_of_bounds": "drop"},
        ],
    )
    def test_that_cannot_be_is_refused(self, api: Api, wrong: dict[str, Any]) -> None:
        given = {"name": "d", "trust": "central", "features": FEATURES, "epsilon": 1} | wrong
        refused(api.post("/datasets", given), 422, "validation_failed")


class TestTheClient:
    @pytest.fixture
    def client(self, http: httpx.Client, api: Api) -> Client:
        return Client("http://gateway", api.secret, transport=http._transport)

    def test_uploads_counts_and_deletes(
        self, client: Client, stored: Callable[[str], Records], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sfumato._records.PART_BYTES", 1 << 12)
        made = client.create_dataset("c", DOMAIN, epsilon=1, trust="central", user_feature="who", min_reports=1)
        assert (made.user_feature, made.max_records_per_user, made.out_of_bounds) == ("who", 1, "clip")
        rows = np.random.default_rng(3).uniform(0, 1, (1000, 2))
        told: list[int] = []
        for _ in range(2):  # the second changes nothing
            done = client.upload_records(
                made.id, rows, users=range(1000), idempotency_key="mine", on_progress=told.append
            )
        assert (done.n_records, done.n_clipped, len(done.ids)) == (1000, 0, 19)
        assert told == [*range(54, 1000, 54), 1000] * 2
        found = client.count_records(made.id)
        assert (found.n_records, found.n_uploads, found.n_users, found.n_used) == (1000, 19, 1000, 1000)
        assert (stored(made.id).points == cells(scale_many(DOMAIN, rows), [LATTICE] * 2)).all()
        client.delete_records(made.id)
        assert client.count_records(made.id).n_records == 0

    def test_uploads_arrays_twice_under_two_keys(self, client: Client, database: Database) -> None:
        made = client.create_dataset("c", DOMAIN, epsilon=1, trust="central", out_of_bounds="refuse")
        for _ in range(2):
            assert client.upload_records(made.id, np.array(ROWS, dtype=np.float32)).n_records == 3
        assert client.count_records(made.id).n_uploads == 2
        with database.reading() as session:
            assert session.get_one(Dataset, made.id).out_of_bounds == "refuse"
