"""Uploads in parts: no record counts before all parts are stored, and each part counts once."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as configure

from models.database.engine import Database
from models.records import records
from models.tables.datasets import RecordSegment
from service.api.routes.records import PART_MICROSECONDS
from tests.service.api import SQLITE_ONLY, Api, refused, stranger
from tests.service.api.test_tenant_limits import set_quota
from tests.service.ingestion.test_records import Stored, count, npy, send, stored, to_cells  # noqa: F401 - a fixture

ROWS = np.linspace(0, 1, 12).reshape(6, 2)
PARTS = {1: ROWS[:2], 2: ROWS[2:5], 3: ROWS[5:]}


def send_part(
    api: Api, dataset_id: str, number: int, name: str = "mine", rows: np.ndarray | None = None, more: str = ""
) -> httpx.Response:
    """Send one of three parts, or other rows."""
    body = npy(PARTS[number] if rows is None else rows)
    query = f"?upload={name}&part={number}&last={str(number == 3).lower()}{more}"
    return send(api, dataset_id, ("application/x-npy", body), query=query)


def n_rows(database: Database, dataset_id: str) -> int:
    """Return the number of stored segments, complete or not."""
    with database.reading() as session:
        return session.query(RecordSegment).filter(RecordSegment.dataset_id == dataset_id).count()


class TestParts:
    def test_count_together_when_the_last_one_is_stored(self, api: Api, stored: Stored) -> None:  # noqa: F811
        dataset_id = api.dataset(trust="central")["id"]
        first, second = (send_part(api, dataset_id, number) for number in (1, 2))
        assert (first.status_code, second.status_code) == (201, 201)
        assert (first.json()["n_records"], second.json()["n_records"]) == (2, 3)
        assert (count(api, dataset_id)["n_records"], len(stored(dataset_id))) == (0, 0)
        last = send_part(api, dataset_id, 3)
        assert [each.json()["n_lacking"] for each in (first, second, last)] == [None, None, 1]
        assert {each.json()["id"] for each in (first, second, last)} == {first.json()["id"]}
        assert (count(api, dataset_id)["n_records"], count(api, dataset_id)["n_uploads"]) == (6, 1)
        assert stored(dataset_id).tolist() == to_cells(ROWS).tolist()
        assert send_part(api, dataset_id, 2).json() == second.json()
        assert send_part(api, dataset_id, 3).json() == last.json()
        assert count(api, dataset_id)["n_records"] == 6

    def test_of_different_uploads_do_not_mix(self, api: Api, stored: Stored) -> None:  # noqa: F811
        dataset_id = api.dataset(trust="central")["id"]
        for name in ("a", "b"):
            send_part(api, dataset_id, 1, name)
        send_part(api, dataset_id, 2, "b")
        refused(send_part(api, dataset_id, 3, "a"), 409, "conflict")
        send_part(api, dataset_id, 3, "b")
        assert stored(dataset_id).tolist() == to_cells(ROWS).tolist()

    def test_that_are_refused_leave_nothing_that_counts(self, api: Api) -> None:
        dataset_id = api.dataset(trust="central")["id"]
        send_part(api, dataset_id, 1)
        refused(send_part(api, dataset_id, 2, rows=np.array([[np.nan, 0.0]])), 422, "validation_failed")
        missing = refused(send_part(api, dataset_id, 3), 409, "conflict")
        assert missing["detail"] == "part 2 of this upload is missing: send it, then the last part again"
        assert count(api, dataset_id)["n_records"] == 0
        for number in (1, 2, 3):  # the mended file, as another upload
            assert send_part(api, dataset_id, number, "mended").status_code == 201
        assert count(api, dataset_id)["n_records"] == 6

    def test_with_other_records_than_before_are_refused(self, api: Api) -> None:
        dataset_id = api.dataset(trust="central")["id"]
        send_part(api, dataset_id, 1)
        other = refused(send_part(api, dataset_id, 1, rows=ROWS[1:3]), 409, "conflict")
        assert "part 1 of this upload is stored with other records" in other["detail"]
        for number in (2, 3):
            send_part(api, dataset_id, number)
        late = send(api, dataset_id, ("application/x-npy", npy(ROWS)), query="?upload=mine&part=4")
        assert "this upload is complete" in refused(late, 409, "conflict")["detail"]
        early = send(api, dataset_id, ("application/x-npy", npy(PARTS[2])), query="?upload=mine&part=2&last=true")
        assert "part 3 of this upload is stored already" in refused(early, 409, "conflict")["detail"]
        assert count(api, dataset_id)["n_records"] == 6

    @SQLITE_ONLY
    def test_may_arrive_in_any_order_but_for_the_last(self, api: Api, stored: Stored) -> None:  # noqa: F811
        dataset_id = api.dataset(trust="central")["id"]
        for number in (2, 1, 3):
            send_part(api, dataset_id, number)
        assert stored(dataset_id).tolist() == to_cells(ROWS).tolist()

    @SQLITE_ONLY
    def test_of_the_same_records_are_a_duplicate_upload(self, api: Api) -> None:
        dataset_id = api.dataset(trust="central")["id"]
        for name, status in (("a", 201), ("b", 409)):
            for number in (1, 2):
                assert send_part(api, dataset_id, number, name).status_code == 201
            assert send_part(api, dataset_id, 3, name).status_code == status
        assert "same 6 records" in send_part(api, dataset_id, 3, "b").json()["detail"]
        assert send_part(api, dataset_id, 3, "b", more="&allow_duplicates=true").status_code == 201
        assert count(api, dataset_id)["n_records"] == 12
        # An upload may start with the records of another one.
        assert send(api, dataset_id, ("application/x-npy", npy(PARTS[1]))).status_code == 201

    @SQLITE_ONLY
    @pytest.mark.parametrize(
        "query",
        ["?upload=a", "?part=1", "?last=true", "?upload=a&part=0", "?upload=a%20b&part=1", "?upload=a&part=10001"],
    )
    def test_need_a_name_and_a_number(self, api: Api, query: str) -> None:
        dataset_id = api.dataset(trust="central")["id"]
        refused(send(api, dataset_id, ("application/x-npy", npy(ROWS)), query=query), 422, "validation_failed")
        assert count(api, dataset_id)["n_records"] == 0

    def test_sent_at_once_are_one_upload(self, api: Api, stored: Stored) -> None:  # noqa: F811
        dataset_id = api.dataset(trust="central")["id"]
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda number: send_part(api, dataset_id, number), [1, 2] * 4))
        assert {each.status_code for each in answers} <= {201, 409}
        for number in (1, 2, 3):
            assert send_part(api, dataset_id, number).status_code == 201
        assert stored(dataset_id).tolist() == to_cells(ROWS).tolist()


class TestIncompleteUploads:
    def test_expire_a_day_after_their_newest_part(self, api: Api, database: Database) -> None:
        dataset_id = api.dataset(trust="central")["id"]
        send_part(api, dataset_id, 1, "whole")
        send_part(api, dataset_id, 2, "whole")
        send_part(api, dataset_id, 3, "whole")
        send_part(api, dataset_id, 1)
        send_part(api, dataset_id, 2)
        now = database.clock()
        for later, n_left in ((0, 5), (PART_MICROSECONDS // 2, 5), (PART_MICROSECONDS + 1, 3)):
            database.run("delete", lambda session, at=now + later: records.delete_expired(session, now=at))
            assert n_rows(database, dataset_id) == n_left
        assert count(api, dataset_id)["n_records"] == 6
        assert "part 1 of this upload is missing" in send_part(api, dataset_id, 3).json()["detail"]

    @SQLITE_ONLY
    def test_take_part_of_the_limit_of_a_dataset(self, api: Api) -> None:
        set_quota(api, max_dataset_records=6)
        dataset_id = api.dataset(trust="central")["id"]
        for number in (1, 2):
            send_part(api, dataset_id, number)
        assert (
            send(api, dataset_id, ("application/x-npy", npy(ROWS[:2]))).json()["detail"]
            == "a dataset may have at most 6 records"
        )
        assert send_part(api, dataset_id, 3).status_code == 201

    def test_are_deleted_with_the_records(self, api: Api, database: Database) -> None:
        dataset_id = api.dataset(trust="central")["id"]
        send_part(api, dataset_id, 1)
        assert api.delete(f"/datasets/{dataset_id}/records?all=true").status_code == 204
        assert n_rows(database, dataset_id) == 0
        assert "part 1 of this upload is missing" in send_part(api, dataset_id, 3).json()["detail"]


@pytest.fixture(scope="class")
def shared(http: httpx.Client, database: Database) -> Api:
    """Return a client with a tenant of its own."""
    return stranger(http, database)


@SQLITE_ONLY
class TestAnySequence:
    @given(sent=st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 3)), max_size=12))
    @configure(max_examples=30, deadline=None, database=None)
    def test_of_parts_counts_whole_uploads_only(self, shared: Api, sent: list[tuple[str, int]]) -> None:
        dataset_id = shared.dataset(trust="central")["id"]
        present: dict[str, set[int]] = {"a": set(), "b": set()}
        complete: set[str] = set()
        for name, number in sent:
            response = send_part(shared, dataset_id, number, name, more="&allow_duplicates=true")
            if number < 3 or present[name] >= {1, 2}:
                assert response.status_code == 201
                present[name].add(number)
            else:
                assert response.status_code == 409
            if number == 3 and response.status_code == 201:
                complete.add(name)
            assert count(shared, dataset_id)["n_records"] == 6 * len(complete)
