"""Generated uploads: the value arrives exactly, or a sentence refuses the request and nothing is stored."""

import json
from decimal import Decimal
from itertools import chain
from typing import Any

import httpx
import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import settings as configure

from models import encryption
from models.database.engine import Database
from models.records import records
from runtime.settings import Settings
from sfumato.mechanisms.encodings import cells, scale_many
from sfumato.specs import LATTICE, Feature
from tests.service.api import SQLITE_ONLY, Api, stranger
from tests.service.test_records import AGAIN, arrow, arrow_file, count, npy, send

CSV, JSON, NPY = "text/csv", "application/json", "application/x-npy"
STREAM, FILE = "application/vnd.apache.arrow.stream", "application/vnd.apache.arrow.file"
DOMAIN = [Feature("x", 0, 100)]
REFUSALS = (400, 413, 415, 422)


class Dataset:
    """A dataset with one feature `x` from 0 to 100, and its records."""

    def __init__(self, api: Api, settings: Settings, **other: Any) -> None:
        self.api, self._settings = api, settings
        features = [{"name": "x", "lower": 0, "upper": 100}]
        self.id: str = api.dataset(trust="central", features=features, **other)["id"]

    def send(self, kind: str, body: bytes, headers: dict[str, str] | None = None) -> httpx.Response:
        """Upload records, also if they are stored already."""
        more = {"content-type": kind} | (headers or {})
        return self.api.post(f"/datasets/{self.id}/records{AGAIN}", content=body, headers=more)

    def stored(self) -> list[int]:
        """Return the stored values of all records."""
        with self.api.database.reading() as session:
            points = records.load(session, self.id, encryption.load_keyring(self._settings)).points
        return [int(point) for point in points[:, 0]]

    def check(self, kind: str, body: bytes, values: list[float], headers: dict[str, str] | None = None) -> bool:
        """Check that an upload stores exactly these values, or is refused with a sentence and stores nothing."""
        before = self.stored()
        response = self.send(kind, body, headers)
        if response.status_code == 201:
            added = sorted(before + cells(scale_many(DOMAIN, [[value] for value in values]), [LATTICE])[:, 0].tolist())
            assert sorted(self.stored()) == added
            return True
        assert response.status_code in REFUSALS, response.text
        problem = response.json()
        assert " " in problem["detail"]
        assert self.stored() == before
        return False


@pytest.fixture(scope="class")
def dataset(http: httpx.Client, database: Database, settings: Settings) -> Dataset:
    """Return a dataset without users."""
    return Dataset(stranger(http, database), settings)


@pytest.fixture(scope="class")
def people(http: httpx.Client, database: Database) -> Api:
    """Return a client for datasets with users."""
    return stranger(http, database)


def spellings(number: int) -> st.SearchStrategy[tuple[Any, bool]]:
    """Return spellings of a whole number, and whether a column may have them as the id of a user."""
    whole: list[Any] = [number, str(number), f" {number} ", f"0{number}", f"{number}".translate(WIDE)]
    other: list[Any] = [float(number), f"{number}.0", f"{number}.", f"{number}e0", f"+{number}", f"{number},0"]
    missing: list[Any] = [None, "", " ", "nan", "NaN", "null", "None", "<NA>", float("nan")]
    return st.sampled_from([(each, True) for each in whole] + [(each, False) for each in other + missing])


WIDE = {ord("0") + digit: 0xFF10 + digit for digit in range(10)}


@SQLITE_ONLY
class TestUserIds:
    @given(data=st.data(), number=st.integers(0, 10**6), kind=st.sampled_from([CSV, JSON, STREAM, FILE]))
    @configure(max_examples=30, deadline=None, database=None)
    def test_of_one_number_are_one_person_or_refused(
        self, people: Api, data: st.DataObject, number: int, kind: str
    ) -> None:
        dataset_id = people.dataset(trust="central", user_feature="who", max_records_per_user=1)["id"]
        spelled, is_id = data.draw(spellings(number))
        users = [str(number), spelled] if isinstance(spelled, str) else [number, spelled]
        table = {"who": users, "x": [0.5, 0.5], "y": [0.5, 0.5]}
        text = "" if spelled is None else f'"{spelled}"'
        body = {
            CSV: lambda: f"who,x,y\n{number},0.5,0.5\n{text},0.5,0.5\n".encode(),
            JSON: lambda: json.dumps({"columns": ["who", "x", "y"], "rows": [[u, 0.5, 0.5] for u in users]}).encode(),
            STREAM: lambda: arrow(**table),
            FILE: lambda: arrow_file(**table),
        }[kind]()
        response = send(people, dataset_id, (kind, body))
        counts = count(people, dataset_id)
        if is_id:
            assert response.status_code == 201, response.text
            assert (counts["n_records"], counts["n_users"]) == (2, 1)
        else:
            assert response.status_code in (400, 422)
            assert "who" in response.text or "NaN" in response.text
            assert counts["n_records"] == 0


def framings() -> st.SearchStrategy[tuple[str, bytes, list[float]]]:
    """Return bodies that have one upload, several, or something after the end, with the values of all of them."""

    def frame(kind: str, values: list[float]) -> bytes:
        if kind == NPY:
            return npy(np.array(values).reshape(-1, 1))
        if kind == JSON:
            return json.dumps({"columns": ["x"], "rows": [[value] for value in values]}).encode()
        if kind == CSV:
            return "".join(["x\n", *(f"{value!r}\n" for value in values)]).encode()
        return (arrow if kind == STREAM else arrow_file)(x=values)

    kinds = st.sampled_from([CSV, JSON, NPY, STREAM, FILE])
    values = st.lists(st.integers(1, 99).map(float), min_size=1, max_size=4)
    ends = [b"", b"\0", b"rubbish", b"\xff\xff\xff\xff\0\0\0\0", b"\x93NUMPY", b"ARROW1", b"{}"]
    return st.builds(
        lambda kind, parts, end: (
            kind,
            b"".join(frame(kind, part) for part in parts) + end,
            list(chain.from_iterable(parts)),
        ),
        kinds,
        st.lists(values, min_size=1, max_size=2),
        st.sampled_from(ends),
    )


@SQLITE_ONLY
class TestFramings:
    @given(framing=framings())
    @configure(max_examples=40, deadline=None, database=None)
    def test_are_read_whole_or_refused(self, dataset: Dataset, framing: tuple[str, bytes, list[float]]) -> None:
        kind, body, values = framing
        dataset.check(kind, body, values)


NUMBERS = [
    *(pa.int8(), pa.int64(), pa.uint8(), pa.uint64(), pa.float16(), pa.float32(), pa.float64()),
    *(pa.decimal32(5, 2), pa.decimal64(10, 2), pa.decimal128(20, 2), pa.decimal256(40, 2)),
]
NO_NUMBERS = [pa.string(), pa.large_string(), pa.bool_(), pa.null(), pa.date32(), pa.binary(), pa.list_(pa.int8())]
TEXTS = [pa.string(), pa.large_string(), pa.string_view()]


@SQLITE_ONLY
class TestArrowTypes:
    @given(
        kind=st.sampled_from(NUMBERS),
        values=st.lists(st.integers(0, 100), min_size=1, max_size=5),
        is_dictionary=st.booleans(),
        is_file=st.booleans(),
    )
    @configure(max_examples=40, deadline=None, database=None)
    def test_of_numbers_arrive_exactly(
        self, dataset: Dataset, kind: pa.DataType, values: list[int], is_dictionary: bool, is_file: bool
    ) -> None:
        exact: list[Any] = values
        if pa.types.is_decimal(kind):
            exact = [Decimal(value) * Decimal("0.37") for value in values]
        elif pa.types.is_floating(kind):
            exact = [value / 4 for value in values]
        column = pa.array(np.array(exact, np.float16) if kind == pa.float16() else exact, kind)
        if is_dictionary and not pa.types.is_float16(kind) and not pa.types.is_decimal(kind):
            column = column.dictionary_encode()
        body = (arrow_file if is_file else arrow)(x=column)
        assert dataset.check(FILE if is_file else STREAM, body, [float(value) for value in exact])

    @pytest.mark.parametrize("kind", NO_NUMBERS, ids=str)
    def test_of_other_values_are_refused_by_their_name(self, dataset: Dataset, kind: pa.DataType) -> None:
        body = arrow(x=pa.nulls(2, kind))
        assert not dataset.check(STREAM, body, [])
        assert f"column x has the type {str(kind).partition('<')[0]}" in dataset.send(STREAM, body).json()["detail"]

    @given(
        kind=st.sampled_from([*TEXTS, pa.int8(), pa.uint64(), pa.decimal128(38, 0)]),
        users=st.lists(st.integers(0, 20), min_size=1, max_size=8),
        is_dictionary=st.booleans(),
    )
    @configure(max_examples=20, deadline=None, database=None)
    def test_of_users_are_all_the_same_person(
        self, people: Api, kind: pa.DataType, users: list[int], is_dictionary: bool
    ) -> None:
        dataset_id = people.dataset(trust="central", user_feature="who", max_records_per_user=1)["id"]
        ids = pa.array([str(user) for user in users], pa.large_string())
        column = ids.cast(kind) if kind in TEXTS else ids.cast(pa.int64()).cast(kind)
        if is_dictionary:
            indices, entries = ids.dictionary_encode().indices, ids.dictionary_encode().dictionary
            entries = entries.cast(kind) if kind in TEXTS else entries.cast(pa.int64()).cast(kind)
            column = pa.DictionaryArray.from_arrays(indices, entries)
        body = arrow(who=column, x=[0.5] * len(users), y=[0.5] * len(users))
        assert send(people, dataset_id, (STREAM, body)).status_code == 201
        again = {"columns": ["who", "x", "y"], "rows": [[user, 0.5, 0.5] for user in users]}
        assert send(people, dataset_id, (JSON, json.dumps(again).encode()), query=AGAIN).status_code == 201
        assert count(people, dataset_id)["n_users"] == len(set(users))

    def test_of_texts_that_share_a_long_text_are_refused_unread(self, people: Api) -> None:
        dataset_id = people.dataset(trust="central", user_feature="who")["id"]
        long = pa.array(["4711" * 500_000], pa.string_view())
        buffers = [None, pa.py_buffer(long.buffers()[1].to_pybytes() * 10_000), long.buffers()[2]]
        views = pa.Array.from_buffers(pa.string_view(), 10_000, buffers)
        entries = pa.DictionaryArray.from_arrays(pa.array([0] * 10_000, pa.int8()), long)
        for column in (views, entries):
            body = arrow(who=column, x=[0.5] * 10_000, y=[0.5] * 10_000)
            response = send(people, dataset_id, (STREAM, body))
            assert response.status_code == 422
            assert "who" in response.json()["detail"]
            assert "4711" not in response.json()["detail"]


@SQLITE_ONLY
class TestBoundsThatWereRounded:
    WIDTHS = (np.float16, np.float32, np.float64)

    @given(
        bounds=st.tuples(st.floats(-1000, 1000, width=64), st.floats(1, 1000, width=64)),
        width=st.sampled_from(WIDTHS),
        is_arrow=st.booleans(),
    )
    @configure(max_examples=20, deadline=None, database=None)
    def test_are_inside_in_the_width_that_came(
        self, people: Api, bounds: tuple[float, float], width: type[np.floating], is_arrow: bool
    ) -> None:
        lower, upper = bounds[0], bounds[0] + bounds[1]
        features = [{"name": "x", "lower": lower, "upper": upper}]
        dataset_id = people.dataset(trust="central", features=features, out_of_bounds="refuse")["id"]
        ends = np.array([[lower], [upper]], width)
        is_arrow = is_arrow or width is np.float16
        form = (STREAM, arrow(x=pa.array(ends[:, 0]))) if is_arrow else (NPY, npy(ends))
        assert send(people, dataset_id, form).json()["n_clipped"] == 0
        beyond = np.nextafter(np.nextafter(ends, width(np.inf)), width(np.inf))
        form = (STREAM, arrow(x=pa.array(beyond[:, 0]))) if is_arrow else (NPY, npy(beyond))
        assert "record 2: x must lie in its bounds" in send(people, dataset_id, form).json()["detail"]
