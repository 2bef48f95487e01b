"""Generated uploads: the value arrives exactly, or a sentence refuses the request and nothing is stored."""

import gzip
import io
import json
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable
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
from sfumato.records.encodings import cells, scale_many
from sfumato.specs import LATTICE, Feature
from tests.service.api import SQLITE_ONLY, Api, stranger
from tests.service.ingestion.test_records import AGAIN, arrow, arrow_file, count, npy, send

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


def frame(kind: str, values: list[float]) -> bytes:
    """Return the body of an upload."""
    if kind == NPY:
        return npy(np.array(values).reshape(-1, 1))
    if kind == JSON:
        return json.dumps({"columns": ["x"], "rows": [[value] for value in values]}).encode()
    if kind == CSV:
        return "".join(["x\n", *(f"{value!r}\n" for value in values)]).encode()
    return (arrow if kind == STREAM else arrow_file)(x=values)


def framings() -> st.SearchStrategy[tuple[str, bytes, list[float]]]:
    """Return bodies that have one upload, several, or something after the end, with the values of all of them."""
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

    def test_of_a_file_has_no_batch_that_its_footer_does_not_list(self, dataset: Dataset) -> None:
        files = [arrow_file(x=pa.chunked_array([[1.0]] * n_batches)) for n_batches in (1, 2)]
        at_footer = [len(file) - 10 - int.from_bytes(file[-10:-6], "little") for file in files]
        hidden = files[1][: at_footer[1]] + files[0][at_footer[0] :]
        assert pa.ipc.open_file(hidden).read_all().num_rows == 1
        response = dataset.send(FILE, hidden)
        assert response.status_code == 400
        assert "does not list the batches" in response.json()["detail"]


PACKINGS: dict[str, tuple[dict[str, str], Callable[[bytes], bytes], bool]] = {
    "identity": ({"content-encoding": "identity"}, bytes, True),
    "gzip": ({"content-encoding": "gzip"}, gzip.compress, True),
    "stored gzip": ({"content-encoding": "GZip"}, lambda body: gzip.compress(body, 0), True),
    "gzip with a name": ({"content-encoding": "x-gzip"}, lambda body: named_gzip(body), True),
    "gzip not named": ({}, gzip.compress, False),
    "gzip twice": ({"content-encoding": "gzip"}, lambda body: gzip.compress(gzip.compress(body)), False),
    "two members": (
        {"content-encoding": "gzip"},
        lambda body: gzip.compress(body[:8]) + gzip.compress(body[8:]),
        False,
    ),
    "more after the end": ({"content-encoding": "gzip"}, lambda body: gzip.compress(body) + b"x", False),
    "truncated": ({"content-encoding": "gzip"}, lambda body: gzip.compress(body)[:-3], False),
    "wrong checksum": ({"content-encoding": "gzip"}, lambda body: gzip.compress(body)[:-8] + bytes(8), False),
    "named, not packed": ({"content-encoding": "gzip"}, bytes, False),
    "zlib": ({"content-encoding": "gzip"}, zlib.compress, False),
    "deflate": ({"content-encoding": "deflate"}, zlib.compress, False),
    "several": ({"content-encoding": "gzip, identity"}, gzip.compress, True),
    "twice": ({"content-encoding": "gzip, gzip"}, lambda body: gzip.compress(gzip.compress(body)), False),
}


def named_gzip(body: bytes) -> bytes:
    """Pack a body with the name of a file in its head."""
    file = io.BytesIO()
    with gzip.GzipFile("records.csv", "wb", fileobj=file) as packed:
        packed.write(body)
    return file.getvalue()


@SQLITE_ONLY
class TestEncodings:
    @given(
        kind=st.sampled_from([CSV, JSON, NPY, STREAM, FILE]),
        values=st.lists(st.integers(1, 99).map(float), min_size=1, max_size=200),
        packing=st.sampled_from(sorted(PACKINGS)),
    )
    @configure(max_examples=60, deadline=None, database=None)
    def test_of_a_body_are_unpacked_or_refused(
        self, dataset: Dataset, kind: str, values: list[float], packing: str
    ) -> None:
        headers, pack, is_accepted = PACKINGS[packing]
        assert dataset.check(kind, pack(frame(kind, values)), values, headers) == is_accepted

    @given(
        kind=st.sampled_from([CSV, JSON]),
        values=st.lists(st.integers(1, 99).map(float), min_size=1, max_size=3),
        text=st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32"]),
    )
    @configure(max_examples=20, deadline=None, database=None)
    def test_of_text_are_read_or_refused(self, dataset: Dataset, kind: str, values: list[float], text: str) -> None:
        is_accepted = dataset.check(kind, frame(kind, values).decode().encode(text), values)
        assert is_accepted == text.startswith("utf-8")

    @pytest.mark.parametrize("n_bytes", [(1 << 20) - 1, 1 << 20, (1 << 20) + 1, 5 << 20])
    def test_of_large_bodies_arrive_whole(self, dataset: Dataset, n_bytes: int) -> None:
        shape = ((n_bytes - 2) // 32, 32)  # a number such as 7.03…5
        rows = np.random.default_rng(1).integers(ord("0"), ord("9") + 1, shape, dtype=np.uint8)
        rows[:, 1], rows[:, -1] = ord("."), ord("\n")
        body = (b"x\n" + rows.tobytes()[:-1]).ljust(n_bytes - 1, b"0") + b"\n"
        assert len(body) == n_bytes
        response = dataset.send(CSV, gzip.compress(body), {"content-encoding": "gzip"})
        assert response.json()["n_records"] == len(rows)

    def test_that_unpack_beyond_the_limit_are_refused_at_the_limit(self, dataset: Dataset) -> None:
        body = gzip.compress(b"x\n" + bytes(64 << 20))
        response = dataset.api.post("/datasets", content=body, headers={"content-encoding": "gzip"})
        assert (response.status_code, len(body) < 100_000) == (413, True)
        assert "at most 1048576 bytes" in response.json()["detail"]

    @pytest.mark.parametrize("path", ["/datasets", "/forecasts"])
    def test_with_a_byte_order_mark_are_read_on_other_paths(self, people: Api, path: str) -> None:
        body = {
            "/datasets": {"name": "Marked", "trust": "local", "epsilon": 1, "features": [X]},
            "/forecasts": {
                "n_features": 1,
                "expected_reports": 9000,
                "algorithm": {"type": "uniform_grid", "epsilon": 1},
            },
        }[path]
        headers = {"content-type": JSON, "content-encoding": "gzip"}
        response = people.post(path, content=gzip.compress(BOM_UTF8 + json.dumps(body).encode()), headers=headers)
        assert response.status_code in (200, 201), response.text


X = {"name": "x", "lower": 0, "upper": 100}

SPELLINGS = [
    "7",
    "7.0",
    "7e0",
    "+7",
    " 7 ",
    "07",
    "7.",
    '"7"',
    '" 7"',
    "7_0",
    "\uff17",
    "7,0",
    '"7,0"',
    "7;",
    "'7'",
    "0x7",
    "",
]
EXACT = {"7", "7.0", "7e0", "+7", " 7 ", "07", "7.", '"7"', '" 7"'}


@SQLITE_ONLY
class TestDialects:
    @given(
        cells=st.lists(st.sampled_from(SPELLINGS), min_size=1, max_size=4),
        header=st.sampled_from(["x", '"x"', " x ", "\ufeffx", "\n\nx", "\r\nx", "x;y", "X", "x,x", "x,"]),
        end=st.sampled_from(["\n", "\r\n", "\n\n", "\r"]),
        is_ended=st.booleans(),
    )
    @configure(max_examples=60, deadline=None, database=None)
    def test_of_csv_arrive_exactly_or_are_refused(
        self, dataset: Dataset, cells: list[str], header: str, end: str, is_ended: bool
    ) -> None:
        body = (end.join([header, *cells]) + end * is_ended).encode()
        values = [7.0] * sum(bool(cell) for cell in cells)
        is_accepted = dataset.check(CSV, body, values)
        if is_accepted:
            assert {cell for cell in cells if cell} <= EXACT


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
