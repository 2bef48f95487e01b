"""Uploads that repeat records of earlier uploads, in any form."""

import io

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from tests.service.api import Api, refused

CSV = {"Content-Type": "text/csv"}
N = 400


@pytest.fixture
def rows() -> NDArray[np.float64]:
    return np.random.default_rng(3).uniform([0, -1], [1, 1], (N, 2)).round(3)


def csv(rows: NDArray[np.float64], users: list[str] | None = None) -> str:
    head = "x,y\n" if users is None else "x,y,who\n"
    ends = [""] * len(rows) if users is None else [f",{each}" for each in users]
    return head + "".join(f"{x},{y}{end}\n" for (x, y), end in zip(rows.tolist(), ends, strict=True))


class TestRepeated:
    def test_uploads_are_refused_in_every_form(self, api: Api, rows: NDArray[np.float64]) -> None:
        path = f"/datasets/{api.dataset(trust='central')['id']}/records"
        assert api.made(path, None, content=csv(rows), headers=CSV)["n_repeated"] == 0
        stream = io.BytesIO()
        table = pa.table({"x": rows[:, 0], "y": rows[:, 1]})
        with pa.ipc.new_stream(stream, table.schema) as writer:
            writer.write_table(table)
        numbers = io.BytesIO()
        np.save(numbers, rows[::-1].copy())
        new = np.array([[0.12345, 0.54321]])
        for content, kind in (
            (csv(rows), "text/csv"),
            (csv(rows[np.argsort(rows[:, 0])]), "text/csv"),
            (csv(np.vstack([rows, new])), "text/csv"),
            (csv(rows[: N // 2]), "text/csv"),
            (stream.getvalue(), "application/vnd.apache.arrow.stream"),
            (numbers.getvalue(), "application/x-npy"),
        ):
            refused(api.post(path, content=content, headers={"Content-Type": kind}), 409, "duplicate_content")
        for number, part in enumerate((rows[:150], rows[150:]), 1):
            query = f"?upload=again&part={number}&last={str(number == 2).lower()}"
            answer = api.post(path + query, content=csv(part), headers=CSV)
        refused(answer, 409, "duplicate_content")
        assert api.get(path).json()["n_records"] == N
        stored = api.made(f"{path}?allow_duplicates=true", None, content=csv(rows[::-1]), headers=CSV)
        assert (stored["n_records"], stored["n_repeated"]) == (N, 0)

    @pytest.mark.parametrize(("n_known", "n_repeated"), [(199, 0), (200, 200), (379, 379), (380, None)])
    def test_records_are_counted_from_half_on(
        self, api: Api, rows: NDArray[np.float64], n_known: int, n_repeated: int | None
    ) -> None:
        path = f"/datasets/{api.dataset(trust='central')['id']}/records"
        api.made(path, None, content=csv(rows), headers=CSV)
        others = np.random.default_rng(4).uniform([0, -1], [1, 1], (N, 2)).round(5) * 0.999
        mixed = np.random.default_rng(5).permutation(np.vstack([rows[:n_known], others[n_known:]]))
        answer = api.post(path, content=csv(mixed), headers=CSV)
        if n_repeated is None:
            refused(answer, 409, "duplicate_content")
        else:
            assert answer.json()["n_repeated"] == n_repeated

    def test_values_of_other_users_are_new(self, api: Api, rows: NDArray[np.float64]) -> None:
        made = api.dataset(trust="central", user_feature="who", max_records_per_user=9)
        path = f"/datasets/{made['id']}/records"
        for prefix in "ab":
            users = [f"{prefix}{number}" for number in range(N)]
            assert api.made(path, None, content=csv(rows, users), headers=CSV)["n_repeated"] == 0
        refused(api.post(path, content=csv(rows[::-1], users[::-1]), headers=CSV), 409, "duplicate_content")
        assert api.request("DELETE", path, params={"user": users[0]}).status_code == 204
        refused(api.post(path, content=csv(rows[1:], users[1:]), headers=CSV), 409, "duplicate_content")

    def test_occurrences_are_counted(self, api: Api, rows: NDArray[np.float64]) -> None:
        path = f"/datasets/{api.dataset(trust='central')['id']}/records"
        api.made(path, None, content=csv(rows[:1].repeat(30, axis=0)), headers=CSV)
        stored = api.made(path, None, content=csv(rows[:1].repeat(60, axis=0)), headers=CSV)
        assert stored["n_repeated"] == 30
